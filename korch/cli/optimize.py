"""`korch optimize`: a model in, one `.korch` file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import (
    JsonOption,
    ShapeOption,
    ThreadsOption,
    console,
    errors_in_one_line,
    parse_shapes,
    print_json,
    progress_bar,
    say,
)


def optimize(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Default: MODEL.korch.")] = None,
    shape: ShapeOption = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", help="host, x86_64, x86_64_v3, x86_64_v4 or aarch64.")
    ] = None,
    threads: ThreadsOption = 0,
    numerics: Annotated[str, typer.Option(help="strict or default.")] = "default",
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds for selection; then the best plan so far is taken. A later run goes on."),
    ] = None,
    gap: Annotated[
        float, typer.Option(min=0, help="The certified gap in percent at which the search ends; 0: the best plan.")
    ] = 1.0,
    json: JsonOption = False,
) -> None:
    """Find the cheapest plan for MODEL on this machine and write it as one file."""
    from korch.pipeline import Options, optimize_to_file
    from korch.report.text import summary_text

    with errors_in_one_line(json=json):
        options = Options(
            shapes=parse_shapes(shape),
            targets=tuple(target or ["host"]),
            threads=threads,
            numerics=numerics,
            budget=budget,
            gap=gap / 100,
        )
        path = output or model.with_suffix(".korch")
        with progress_bar() as progress:
            summaries = optimize_to_file(model, path, options, progress)
        for line in dict.fromkeys(line for s in summaries for line in s.dropped):
            console.print(f"dropped: {line}", markup=False)
        if json:
            plans = [s.json() for s in summaries]
            print_json(plans[0] if len(plans) == 1 else {"plans": plans})
        else:
            say("\n".join(summary_text(s, titled=len(summaries) > 1) for s in summaries))
            say(f"wrote {path} ({path.stat().st_size / 2**20:.1f} MiB)")
