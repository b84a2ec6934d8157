"""`korch explain`: the plan in a `.korch` file, and the sources of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import JsonOption, errors_in_one_line, print_json, say


def explain(
    model: Annotated[Path, typer.Argument(help="A .korch file.")],
    kernel: Annotated[str | None, typer.Option("--kernel", help="Print this kernel's fragment and source.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with all of it.")] = None,
    json: JsonOption = False,
) -> None:
    """Show the plan: each kernel, what it computes, its measured cost, and the certificate."""
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
