"""`korch explain`: the plan in a `.korch` file, and the sources of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import JsonOption, errors_in_one_line, print_json, say


def explain(
    model: Annotated[Path, typer.Argument(help="A .korch file.")],
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="Print this kernel's fragment and source.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the plan: each kernel, what it computes, its measured cost, and the certificate."""
    from korch.artifact.format import open_artifact
    from korch.report.text import explain_kernel, explain_plan

    with errors_in_one_line():
        artifact = open_artifact(model)
        if json:
            print_json(artifact.manifest)
        elif kernel is not None:
            sources = {plan["source"]: artifact.read(plan["source"]).decode() for plan in artifact.manifest["plans"]}
            say(explain_kernel(artifact.manifest, sources, kernel))
        else:
            say(explain_plan(artifact.manifest))
