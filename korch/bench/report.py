"""`korch bench` as a function: optimizes when needed, times the engines, and reports as JSON or text."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from korch.artifact.load import LoadedPlan, load
from korch.bench.bench import Comparison, check_engines, compare_engines
from korch.bench.engines import SUFFIXES
from korch.errors import InvalidInput, InvalidModel
from korch.ir.types import TensorType
from korch.pipeline import Options, Progress, optimize_to_file, resolve_threads
from korch.verify import random_inputs


def bench_model(
    model: Path, optimized: Path | None, peers: Sequence[str], options: Options, progress: Progress
) -> dict[str, Any]:
    """The JSON of `korch bench`.

    Keys: `model`, `threads`, `shape`, `engines` (name -> `median_ms`, `min_ms`, `runs`, `peak_bytes`), `speedup`
    (peer -> its median over Korch's), `max_rel_error` (the largest relative L2 difference of Korch's outputs from a
    peer's, over outputs and peers; None without peers).
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
    return {
        "model": model.name,
        "threads": threads,
        "shape": {name: list(a.shape) for name, a in inputs.items()},
        "engines": {name: t.json() for name, t in comparison.timings.items()},
        "speedup": {name: comparison.speedup(name) for name in files},
        "max_rel_error": largest_difference(comparison),
    }


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


def largest_difference(comparison: Comparison) -> float | None:
    """The largest relative L2 difference of Korch's outputs from any peer's."""
    found: list[float] = []
    for name, outputs in comparison.outputs.items():
        if name == "korch":
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
    row: Callable[[str, str, str, str, str], str] = "{:<22}{:>12}{:>12}{:>8}{:>16}".format
    lines.append(row("engine", "median ms", "min ms", "runs", "korch is faster"))
    for name, t in report["engines"].items():
        ratio = f"{report['speedup'][name]:.2f}x" if name in report["speedup"] else ""
        lines.append(row(name, f"{t['median_ms']:.3f}", f"{t['min_ms']:.3f}", str(t["runs"]), ratio))
    if report["max_rel_error"] is not None:
        lines.append(f"largest relative L2 difference from a peer: {report['max_rel_error']:.2g}")
    return "\n".join(lines)
