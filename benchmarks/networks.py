"""The networks against their peers: `python -m benchmarks.networks [NAME ...] [--threads 2] [--budget SECONDS]`.

Per network one interleaved run (alternating bursts, one process per engine, idle engines stopped) of Korch and every
engine of `korch.bench.engines`, TVM only where `--peers` names it, as its tuning takes hours. Prints a table and writes
`benchmarks/results/networks.json`, `networks.md` and `networks.svg`. An engine that is not installed or cannot run a
network is named with its reason; one that computes something else is shown, and never counts as the best peer.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.chart import bars
from korch.bench.engines import ENGINES, SUFFIXES, lacking
from korch.bench.report import WRONG, bench_model, bench_text, correct_peers
from korch.pipeline import Options, device_name, optimize_to_file, resolve_threads, verify_model

RESULTS = Path(__file__).parent / "results"
PEERS = tuple(name for name in ENGINES if name not in ("korch", "tvm"))
NO_TORCH = "the network comes as ONNX only, without a definition in PyTorch"


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


def without(name: str, peers: Sequence[str]) -> dict[str, str]:
    """The peers that cannot take part, with the reason."""
    found = {peer: f"needs {lack}" for peer in peers if (lack := lacking(peer))}
    if name not in models.NAMES:
        found |= {peer: NO_TORCH for peer in peers if SUFFIXES[peer] == ".pt2"}
    return found


def bench_network(name: str, peers: Sequence[str], threads: int, budget: float | None, folder: Path) -> dict[str, Any]:
    """Optimizes, verifies and times one network; the JSON of `korch bench` and what optimizing said."""
    path = models.path(name)
    options = Options(threads=threads, budget=budget)
    optimized = folder / f"{name}.korch"
    (summary,) = optimize_to_file(path, optimized, options, quiet)
    (verification,) = verify_model(path, optimized, options, [], 0, quiet).values()
    absent = without(name, peers)
    present = [peer for peer in peers if peer not in absent]
    if any(SUFFIXES[peer] == ".pt2" for peer in present):
        torch_file(name)
    report = bench_model(path, optimized, present, options, quiet)
    report["failed"] = {**absent, **report["failed"]}
    print(bench_text(report), flush=True)
    return {
        **report,
        "verified": verification.ok,
        "verify": {n: {"rel_l2_error": e.rel_l2_error, "reason": e.reason} for n, e in verification.outputs.items()},
        "optimize": summary.json(),
        "device": device_name(),
    }


def markdown(results: dict[str, dict[str, Any]], threads: int) -> str:
    """One row per network: median milliseconds per engine, and the ratio to ONNX Runtime and to the best peer."""
    engines = [e for e in ENGINES if any(e in r["engines"] for r in results.values())]
    lines = [
        f"Median milliseconds, batch 1, float32, {threads} threads; each row is one interleaved run.",
        *device_lines(results),
        "",
        "| network | " + " | ".join(engines) + " | over ONNX Runtime | over the best peer | rel. L2 error |",
        "|---" * (len(engines) + 4) + "|",
    ]
    over_ort: list[float] = []
    over_best: list[float] = []
    for name, r in results.items():
        cells = [_cell(r["engines"].get(e)) for e in engines]
        best = min((r["speedup"][peer] for peer in correct_peers(r)), default=math.nan)
        ort = r["speedup"].get("onnxruntime", math.nan)
        over_ort.append(ort)
        over_best.append(best)
        error = max((e["rel_l2_error"] for e in r["verify"].values()), default=0.0)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {ort:.2f} | {best:.2f} | {error:.1e} |")
    means = f"{_geometric_mean(over_ort):.2f} | {_geometric_mean(over_best):.2f}"
    lines.append(f"| geometric mean |{' |' * len(engines)} {means} | |")
    lines += [
        "",
        "Relative L2 errors from the ONNX reference evaluator:",
        "",
        "| network | " + " | ".join(engines) + " |",
    ]
    lines.append("|---" * (len(engines) + 1) + "|")
    for name, r in results.items():
        lines.append(f"| {name} | " + " | ".join(_error(r["engines"].get(e)) for e in engines) + " |")
    lines += selection_lines(results)
    lines += ["", f"Struck out: wrong (an error above {WRONG:g}, or none that can be told). Left out:", ""]
    lines += [f"- {name}, {peer}: {why}" for name, r in results.items() for peer, why in r.get("failed", {}).items()]
    return "\n".join(lines) + "\n"


# Primitives, candidates and hours of tuning in table 2 of the paper (NVIDIA V100).
PAPER = {
    "candy": (184, 1031, 5.5),
    "efficientvit_b1": (380, 2174, 11.5),
    "yolox_nano": (367, 3361, 2.8),
    "yolov4": (569, 4644, 12.2),
    "segformer_b0": (672, 11400, 9.2),
}


def selection_lines(results: dict[str, dict[str, Any]]) -> list[str]:
    """How each plan was found, beside the paper's figures."""
    head = ("network", "primitives", "candidates", "structures", "measured", "seconds", "gap", "paper")
    lines = ["", "How the plans were found (seconds of work from an empty cache, or up to the budget):", ""]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, r in results.items():
        o = r["optimize"]
        share = f"{o['measured']} ({100 * o['measured'] / max(o['distinct'], 1):.0f} %)"
        paper = "{}, {}, {} h".format(*PAPER[name]) if name in PAPER else "-"
        cells = [o["primitives"], o["candidates"], o["distinct"], share]
        cells += [f"{o['seconds']:.0f}", f"{100 * o['gap']:.1f} %", paper]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    return lines


def device_lines(results: dict[str, dict[str, Any]]) -> list[str]:
    """Which networks were measured on which machine."""
    devices: dict[str, list[str]] = {}
    for name, r in results.items():
        devices.setdefault(f"{r['device']}, {r['optimize'].get('target', 'x86_64_v4')}", []).append(name)
    return [f"{', '.join(names)}: {device}." for device, names in devices.items()]


def _cell(timing: dict[str, Any] | None) -> str:
    if timing is None:
        return "-"
    error = timing.get("rel_l2_error")
    text = f"{timing['median_ms']:.2f}"
    return text if error is not None and error <= WRONG else f"~~{text}~~"


def _error(timing: dict[str, Any] | None) -> str:
    if timing is None:
        return "-"
    return "unknown" if timing.get("rel_l2_error") is None else f"{timing['rel_l2_error']:.1e}"


def chart(results: dict[str, dict[str, Any]], threads: int) -> str:
    """An SVG: how many times faster Korch is than each peer that is right, per network."""
    ratios = {name: {peer: r["speedup"][peer] for peer in correct_peers(r)} for name, r in results.items()}
    return bars(f"Korch's speed over each peer, {threads} threads, float32, batch 1", ratios, list(PEERS))


def _geometric_mean(values: list[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(models.ALL))
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated, default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=None)
    parser.add_argument("--folder", type=Path, default=RESULTS / "artifacts")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    threads = resolve_threads(arguments.threads)
    peers = [peer for peer in arguments.peers.split(",") if peer]
    if unknown := [peer for peer in peers if peer not in ENGINES]:
        parser.error(f"unknown peers: {', '.join(unknown)}")
    file = RESULTS / "networks.json"
    RESULTS.mkdir(exist_ok=True)
    stored: dict[str, Any] = json.loads(file.read_text())["networks"] if file.exists() else {}
    for name in arguments.names:
        stored[name] = bench_network(name, peers, threads, arguments.budget, arguments.folder)
        results = {n: stored[n] for n in models.ALL if n in stored}
        file.write_text(json.dumps({"networks": results}, indent=1) + "\n")
        (RESULTS / "networks.md").write_text(markdown(results, threads))
        (RESULTS / "networks.svg").write_text(chart(results, threads))
    print(markdown({n: stored[n] for n in models.ALL if n in stored}, threads))


if __name__ == "__main__":
    main()
