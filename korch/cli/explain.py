"""`korch explain`: the plan in a `.korch` file, and the sources of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import JsonOption, ShapeOption, errors_in_one_line, parse_shapes, print_json, say
from korch.ir.types import shape_text


def explain(
    model: Annotated[Path, typer.Argument(help="A .korch file; with --rules also an ONNX file.")],
    kernel: Annotated[str | None, typer.Option("--kernel", help="Print this kernel's fragment and source.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with all of it.")] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Show per rule where it added alternatives, and where not and why.")
    ] = False,
    shape: ShapeOption = None,
    json: JsonOption = False,
) -> None:
    """Show the plan: each kernel, what it computes, its measured cost, and the certificate.

    With --rules, what each rewrite rule did: as recorded in a .korch file, or tried on an ONNX file (nothing is built;
    --shape binds its unbound dimensions).
    """
    if rules:
        with errors_in_one_line(json=json):
            _explain_rules(model, shape, json=json)
        return
    from korch.artifact.format import open_artifact
    from korch.report.html import explain_html
    from korch.report.text import find_kernel, kernel_text, plan_text

    with errors_in_one_line(json=json):
        artifact = open_artifact(model)
        sources = {plan["source"]: artifact.read(plan["source"]).decode() for plan in artifact.manifest["plans"]}
        if html is not None:
            html.write_text(explain_html(artifact.manifest, sources), encoding="utf-8")
        if kernel is not None:
            found = find_kernel(artifact.manifest, sources, kernel)
            print_json(found) if json else say(kernel_text(found))
        elif json:
            print_json(artifact.manifest)
        else:
            say(plan_text(artifact.manifest) if html is None else f"wrote {html}")


def _explain_rules(model: Path, shape: list[str] | None, *, json: bool) -> None:
    from korch.artifact.format import open_artifact
    from korch.pipeline import Options, networks_of
    from korch.report.rules import rules_text
    from korch.report.text import plan_title

    if model.suffix == ".korch":
        manifest = open_artifact(model).manifest
        found = {plan_title(manifest, p): p["certificate"].get("rules", []) for p in manifest["plans"]}
    else:
        networks = networks_of(model, Options(shapes=parse_shapes(shape)))
        found = {f"{model.name}, {_sizes(n.inputs)}": n.rules for n in networks}
    if json:
        print_json({"rules": [{"plan": title, "rules": done} for title, done in found.items()]})
    else:
        say("\n\n".join(rules_text(title, done) for title, done in found.items()))


def _sizes(inputs: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape_text(shape)}" for name, shape in inputs.items())
