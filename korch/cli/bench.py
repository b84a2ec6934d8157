"""`korch bench`: the optimized model against other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from korch.cli.common import (
    JsonOption,
    ShapeOption,
    ThreadsOption,
    errors_in_one_line,
    one_shape_set,
    print_json,
    progress_bar,
    say,
)


def bench(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    optimized: Annotated[
        Path | None, typer.Argument(help="Its .korch file; made for the occasion when not given.")
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="Comma-separated: onnxruntime, openvino, torch, torch-channels-last, torch-compile, ncnn, mnn, tvm."
        ),
    ] = "onnxruntime",
    shape: ShapeOption = None,
    threads: ThreadsOption = 0,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds for selection.")] = None,
    json: JsonOption = False,
) -> None:
    """Time MODEL with Korch and with other engines: one process each, alternating bursts, medians and ratios."""
    from korch.bench.report import bench_model, bench_text
    from korch.pipeline import Options

    with errors_in_one_line(json=json):
        options = Options(shapes=(one_shape_set(shape),), threads=threads, budget=budget)
        peers = [name.strip() for name in against.split(",") if name.strip()]
        with progress_bar() as progress:
            report = bench_model(model, optimized, peers, options, progress)
        if json:
            print_json(report)
        else:
            say(bench_text(report))
