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
    from korch.report.text import explain_kernel, explain_plan, read_artifact

    with errors_in_one_line():
        artifact = read_artifact(model)
        if json:
            print_json(artifact.manifest)
        elif kernel is not None:
            say(explain_kernel(artifact, kernel))
        else:
            say(explain_plan(artifact))
