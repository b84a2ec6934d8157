"""`korch run`: one inference with a `.korch` file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import JsonOption, errors_in_one_line, print_json, say


def run(
    model: Annotated[Path, typer.Argument(help="A .korch file.")],
    input: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="An input; those not given are random."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write each output there as NAME.npy.")] = None,
    json: JsonOption = False,
) -> None:
    """Run MODEL once and print (or write) its outputs."""
    import korch
    from korch.inputs import read_inputs, write_arrays

    with errors_in_one_line(json=json):
        loaded = korch.load(model)
        values = read_inputs(input or [], loaded.inputs)
        results = loaded.run(values)
        files: dict[str, str] = {}
        if output is not None:
            files = write_arrays(results, output)
        described = {name: f"{a.dtype.name}[{','.join(map(str, a.shape))}]" for name, a in results.items()}
        if json:
            print_json({"outputs": described, "files": files})
        else:
            for name, text in described.items():
                say(f"{name}: {text}" + (f" -> {files[name]}" if name in files else ""))
