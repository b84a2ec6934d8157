"""`korch verify`: the optimized model against the ONNX reference evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from korch.cli.common import (
    JsonOption,
    ShapeOption,
    ThreadsOption,
    errors_in_one_line,
    parse_shapes,
    print_json,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from korch.verify import Verification


def verify(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    optimized: Annotated[
        Path | None, typer.Argument(help="Its .korch file; made for the occasion when not given.")
    ] = None,
    shape: ShapeOption = None,
    input: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="An input; those not given are random."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    threads: ThreadsOption = 0,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds for selection.")] = None,
    json: JsonOption = False,
) -> None:
    """Compare MODEL's outputs with the reference evaluator's and report the largest error."""
    from korch.pipeline import Options, verify_model

    with errors_in_one_line(json=json):
        with progress_bar() as progress:
            options = Options(shapes=parse_shapes(shape), threads=threads, budget=budget)
            reports = verify_model(model, optimized, options, input or [], seed, progress)
        ok = all(report.ok for report in reports.values())
        if json:
            plans = {shapes: outputs_json(report) for shapes, report in reports.items()}
            print_json({"ok": ok, "outputs": next(iter(plans.values())), "plans": plans})
        for shapes, report in reports.items() if not json else ():
            if len(reports) > 1:
                say(f"{shapes}:")
            for name, e in report.outputs.items():
                verdict = "ok" if e.reason is None else f"FAILED: {e.reason}"
                say(f"{name}: largest error {e.max_abs_error:.3g}, relative L2 {e.rel_l2_error:.3g}: {verdict}")
        if not ok:
            raise typer.Exit(1)


def outputs_json(report: Verification) -> dict[str, dict[str, object]]:
    """The errors of one plan's outputs."""
    return {
        name: {"max_abs_error": e.max_abs_error, "rel_l2_error": e.rel_l2_error, "reason": e.reason}
        for name, e in report.outputs.items()
    }
