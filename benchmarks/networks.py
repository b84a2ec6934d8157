"""The five networks against their peers: `python -m benchmarks.networks [NAME ...] [--threads 2] [--budget SECONDS]`.

Per network one interleaved run (alternating bursts, one process per engine, idle engines stopped): Korch, ONNX Runtime,
OpenVINO and PyTorch eager in both memory formats. Prints a table and writes `benchmarks/results/networks.json` and
`networks.md`. Engines that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from benchmarks import models
from korch.bench.engines import ENGINES, missing_package
from korch.bench.report import bench_model, bench_text
from korch.pipeline import Options, device_name, optimize_to_file, resolve_threads, verify_model

RESULTS = Path(__file__).parent / "results"
PEERS = tuple(name for name in ENGINES if name != "korch")


def quiet(phase: str, done: int = 0, total: int = 0) -> None:
    """No progress."""


def torch_file(name: str) -> Path:
    """The network for the PyTorch engines, beside its ONNX file; written now if it is missing."""
    file = models.path(name).with_suffix(".pt2")
    if not file.exists():
        import torch

        from benchmarks.models.calibrate import images
        from benchmarks.models.export import build, definition

        x = images(definition(name).SIZE)
        with torch.no_grad():
            torch.export.save(torch.export.export(build(name), (x,)), file)
    return file


def bench_network(name: str, threads: int, budget: float | None, folder: Path) -> dict[str, Any]:
    """Optimizes, verifies and times one network; the JSON of `korch bench` and what optimizing said."""
    path = models.path(name)
    options = Options(threads=threads, budget=budget)
    optimized = folder / f"{name}.korch"
    (summary,) = optimize_to_file(path, optimized, options, quiet)
    (verification,) = verify_model(path, optimized, options, [], 0, quiet).values()
    peers = [p for p in PEERS if missing_package(p) is None]
    if "torch" in peers:
        torch_file(name)
    report = bench_model(path, optimized, peers, options, quiet)
    print(bench_text(report), flush=True)
    return {
        **report,
        "verified": verification.ok,
        "verify": {n: {"rel_l2_error": e.rel_l2_error, "reason": e.reason} for n, e in verification.outputs.items()},
        "optimize": summary.json(),
    }


def markdown(results: dict[str, dict[str, Any]], threads: int) -> str:
    """One row per network: median milliseconds per engine, and the ratio to ONNX Runtime and to the best peer."""
    engines = [e for e in ENGINES if any(e in r["engines"] for r in results.values())]
    lines = [
        f"Median milliseconds, batch 1, float32, {threads} threads; each row is one interleaved run.",
        "",
        "| network | " + " | ".join(engines) + " | over ONNX Runtime | over the best peer | rel. L2 error |",
        "|---" * (len(engines) + 4) + "|",
    ]
    over_ort: list[float] = []
    over_best: list[float] = []
    for name, r in results.items():
        cells = [f"{r['engines'][e]['median_ms']:.2f}" if e in r["engines"] else "-" for e in engines]
        best = min(r["speedup"].values(), default=math.nan)
        ort = r["speedup"].get("onnxruntime", math.nan)
        over_ort.append(ort)
        over_best.append(best)
        error = max((e["rel_l2_error"] for e in r["verify"].values()), default=0.0)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {ort:.2f} | {best:.2f} | {error:.1e} |")
    means = f"{_geometric_mean(over_ort):.2f} | {_geometric_mean(over_best):.2f}"
    lines.append(f"| geometric mean |{' |' * len(engines)} {means} | |")
    return "\n".join(lines) + "\n"


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(models.NAMES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=None)
    parser.add_argument("--folder", type=Path, default=RESULTS / "artifacts")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    threads = resolve_threads(arguments.threads)
    missing = [p for p in PEERS if missing_package(p)]
    if missing:
        print(f"left out, not installed: {', '.join(missing)}")
    file = RESULTS / "networks.json"
    stored: dict[str, Any] = json.loads(file.read_text())["networks"] if file.exists() else {}
    for name in arguments.names:
        stored[name] = bench_network(name, threads, arguments.budget, arguments.folder)
        results = {n: stored[n] for n in models.NAMES if n in stored}
        RESULTS.mkdir(exist_ok=True)
        file.write_text(json.dumps({"device": device_name(), "networks": results}, indent=1) + "\n")
        (RESULTS / "networks.md").write_text(markdown(results, threads))
    print(markdown({n: stored[n] for n in models.NAMES if n in stored}, threads))


if __name__ == "__main__":
    main()
