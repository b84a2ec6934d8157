"""`korch check`: what would be supported; nothing is built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import JsonOption, ShapeOption, errors_in_one_line, one_shape_set, print_json, say


def check(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    shape: ShapeOption = None,
    json: JsonOption = False,
) -> None:
    """Say what MODEL holds, which dimensions are unbound, and which operators are not supported.

    Exit code 1 when it cannot be supported; unbound dimensions alone are no failure.
    """
    from korch.check import check_model

    with errors_in_one_line(json=json):
        report = check_model(model, one_shape_set(shape))
        if json:
            print_json(report.json())
        else:
            say(report.text())
        if report.refused:
            raise typer.Exit(1)
