"""`korch bench` as a function: optimizes when needed, times the engines, and reports as JSON or text."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from korch.artifact.load import LoadedPlan, load
from korch.bench.bench import Comparison, check_engines, compare_engines
from korch.bench.engines import SUFFIXES
from korch.errors import InvalidInput, InvalidModel, KorchError
from korch.ir.types import TensorType
from korch.pipeline import Options, Progress, optimize_to_file, resolve_threads
from korch.reference import reference_outputs
from korch.verify import compare_output, random_inputs

WRONG = 1e-2
"""A peer whose outputs differ more than this (relative L2) from the reference computes something else. Korch's own
standard (`korch.verify`) is stricter; peers' Winograd convolutions with large tiles may miss that and still count."""


def bench_model(
    model: Path, optimized: Path | None, peers: Sequence[str], options: Options, progress: Progress
) -> dict[str, Any]:
    """The JSON of `korch bench`.

    Keys: `model`, `threads`, `shape`, `engines` (name -> `median_ms`, `min_ms`, `runs`, `peak_bytes`, `rel_l2_error`),
    `speedup` (peer -> its median over Korch's), `failed` (peer -> why it cannot run the model), `max_rel_error` (the
    largest relative L2 difference of Korch's outputs from a peer's that is not wrong, over outputs and peers; None
    without peers). `rel_l2_error` is the largest over the outputs, from the ONNX reference evaluator; None where the
    outputs do not fit the reference or the evaluator cannot run the model.
    """
    check_engines(peers)
    files = {name: _file_for(model, name) for name in peers if name != "korch"}
    threads = resolve_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="korch-bench-") as folder:
        if optimized is None:
            optimized = Path(folder) / "model.korch"
            optimize_to_file(model, optimized, options, progress)
        inputs = random_inputs(_signature(load(optimized).plans, options.shapes[0]))
        comparison = compare_engines({"korch": optimized, **files}, inputs, threads, progress=progress)
    progress("run the reference evaluator", 0, 0)
    errors = errors_of(comparison, _reference(model, inputs))
    wrong = {name for name, error in errors.items() if error is not None and error > WRONG}
    return {
        "model": model.name,
        "threads": threads,
        "shape": {name: list(a.shape) for name, a in inputs.items()},
        "engines": {name: {**t.json(), "rel_l2_error": errors[name]} for name, t in comparison.timings.items()},
        "speedup": {name: comparison.speedup(name) for name in comparison.timings if name != "korch"},
        "failed": dict(comparison.failed),
        "max_rel_error": largest_difference(comparison, wrong),
    }


def _reference(model: Path, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray] | None:
    try:
        return reference_outputs(model, inputs)
    except KorchError:  # the evaluator knows fewer models than the engines
        return None


def errors_of(comparison: Comparison, reference: Mapping[str, np.ndarray] | None) -> dict[str, float | None]:
    """Each engine's largest relative L2 error over the outputs, or None where they do not fit the reference."""
    if reference is None:
        return dict.fromkeys(comparison.outputs)
    return {label: _error(outputs, list(reference.values())) for label, outputs in comparison.outputs.items()}


def _error(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float | None:
    if [y.shape for y in outputs] != [r.shape for r in expected]:
        return None
    pairs = zip(outputs, expected, strict=True)
    worst = max((compare_output(y.astype(r.dtype), r).rel_l2_error for y, r in pairs), default=0.0)
    return worst if math.isfinite(worst) else None


def correct_peers(report: Mapping[str, Any]) -> list[str]:
    """The peers of a report that compute what the reference does."""
    errors = {name: report["engines"][name].get("rel_l2_error") for name in report["speedup"]}
    return [name for name, error in errors.items() if error is not None and error <= WRONG]


def _signature(plans: Sequence[LoadedPlan], shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, TensorType]:
    """The inputs of the first plan that has these shapes."""
    for plan in plans:
        if all(name in plan.inputs and plan.inputs[name].shape == shape for name, shape in shapes.items()):
            return plan.inputs
    held = " or ".join(", ".join(f"{n} {t}" for n, t in plan.inputs.items()) for plan in plans)
    raise InvalidInput(f"the optimized model has no plan for the shapes of --shape; it takes {held}")


def _file_for(model: Path, engine: str) -> Path:
    suffix = SUFFIXES[engine]
    path = model if suffix == ".onnx" else model.with_suffix(suffix)
    if not path.exists() and suffix == ".onnx":
        raise InvalidModel(f"{path}: no such file")
    if not path.exists():
        raise InvalidInput(
            f"the engine {engine} reads {path}, which is not there; write it with torch.export.save, or leave the "
            "engine out of --against"
        )
    return path


def largest_difference(comparison: Comparison, without: Collection[str] = ()) -> float | None:
    """The largest relative L2 difference of Korch's outputs from any peer's, some peers apart."""
    found: list[float] = []
    for name, outputs in comparison.outputs.items():
        if name == "korch" or name in without or len(outputs) != len(comparison.outputs["korch"]):
            continue
        if any(a.shape != b.shape for a, b in zip(comparison.outputs["korch"], outputs, strict=True)):
            continue
        for ours, theirs in zip(comparison.outputs["korch"], outputs, strict=True):
            reference = theirs.astype(np.float64)
            norm = float(np.linalg.norm(reference.reshape(-1))) or 1.0
            found.append(float(np.linalg.norm((ours.astype(np.float64) - reference).reshape(-1))) / norm)
    return max(found) if found else None


def bench_text(report: Mapping[str, Any]) -> str:
    """The report as a table."""
    shape = ", ".join(f"{name} {'x'.join(map(str, s))}" for name, s in report["shape"].items())
    lines = [f"{report['model']} ({shape}), {report['threads']} threads, medians of interleaved runs"]
    row: Callable[..., str] = "{:<22}{:>12}{:>12}{:>8}{:>16}{:>14}".format
    lines.append(row("engine", "median ms", "min ms", "runs", "korch is faster", "rel. error"))
    for name, t in report["engines"].items():
        ratio = f"{report['speedup'][name]:.2f}x" if name in report["speedup"] else ""
        error = "unknown" if t["rel_l2_error"] is None else f"{t['rel_l2_error']:.1e}"
        error += " wrong" if t["rel_l2_error"] is not None and t["rel_l2_error"] > WRONG else ""
        lines.append(row(name, f"{t['median_ms']:.3f}", f"{t['min_ms']:.3f}", str(t["runs"]), ratio, error))
    lines.extend(report["failed"].values())
    lines.append("rel. error: relative L2, from the ONNX reference evaluator")
    if report["max_rel_error"] is not None:
        lines.append(f"largest relative L2 difference from a peer: {report['max_rel_error']:.2g}")
    return "\n".join(lines)
