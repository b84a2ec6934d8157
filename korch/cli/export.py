"""`korch export`: what a C program needs to run a `.korch` file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import JsonOption, errors_in_one_line, print_json, say


def export(
    model: Annotated[Path, typer.Argument(help="A .korch file.")],
    c: Annotated[Path, typer.Option("--c", metavar="DIR", help="The folder to fill.")],
    json: JsonOption = False,
) -> None:
    """Write the C header, the runtime library, the model and a sample main to DIR."""
    from korch.artifact.export import export_c

    with errors_in_one_line(json=json):
        export_c(model, c)
        files = sorted(str(p) for p in c.iterdir())
        if json:
            print_json({"files": files})
        else:
            say("\n".join(files))
