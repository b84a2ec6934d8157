"""What each idea is worth: `python -m benchmarks.ablation [NAME ...] [--threads 2] [--budget SECONDS]`.

Per network, plans over fewer candidates beside the plan over all: one kernel per operator, greedy fusion, selection
without alternatives, without layouts (all tensors row-major), without redundancy (nothing computed twice), and with one
output per kernel. All are timed whole in one interleaved run. Prints a table and writes
`benchmarks/results/ablation.json` and `ablation.md`. Predicted is the sum of the kernels' costs, each measured alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import models
from korch.artifact.load import load
from korch.artifact.pack import Weights, pack
from korch.bench.bench import compare_engines
from korch.candidates.build import Candidates
from korch.codegen.c.program import ConstantBlock
from korch.codegen.target import host_target
from korch.codegen.toolchain import find_toolchain
from korch.pipeline import (
    Network,
    Options,
    device_name,
    enumerate_candidates,
    make_artifact,
    make_plan,
    networks_of,
    resolve_threads,
)
from korch.verify import random_inputs

RESULTS = Path(__file__).parent / "results"
FULL = "all"


def variants_of(network: Network) -> dict[str, tuple[Network, Candidates]]:
    """The candidates of each variant by name, the full set first."""
    full = enumerate_candidates(network.graph)
    types = network.graph.types
    plain = replace(network, graph=network.plain)

    def row_major(column: int) -> bool:
        resources = (*full.columns[column].inputs, *full.columns[column].outputs)
        return all(r.layout.is_row_major(types[r.value].shape) for r in resources)

    def one_output(column: int) -> bool:
        return len(full.columns[column].outputs) == 1 or len(full.columns[column].definitions) == 1

    per_operator, greedy = (frozenset(full.partitions[name]) for name in ("per_operator", "greedy"))
    return {
        FULL: (network, full),
        "per operator": (network, full.only(per_operator.__contains__)),
        "greedy": (network, full.only(greedy.__contains__)),
        "no alternatives": (plain, enumerate_candidates(plain.graph)),
        "no layouts": (network, full.only(row_major)),
        "no redundancy": (network, replace(full, once=True, partitions={})),
        "one output": (network, full.only(one_output)),
    }


def ablate(name: str, threads: int, budget: float | None, folder: Path) -> dict[str, Any]:
    """The predicted and the actual time of each variant of one network, in milliseconds."""
    options = Options(threads=threads, budget=budget)
    (network,) = networks_of(models.path(name), options)
    toolchain, target = find_toolchain(), host_target()
    files: dict[str, Path] = {}
    rows: dict[str, dict[str, Any]] = {}
    for variant, (own, candidates) in variants_of(network).items():
        block = ConstantBlock()
        plan, summary = make_plan(own, target, toolchain, options, block, candidates=candidates)
        plan = replace(plan, weights=Weights(block.size, tuple(block.arrays)))
        files[f"korch:{variant}"] = folder / f"{name}-{variant.replace(' ', '-')}.korch"
        pack(make_artifact(own, [plan], toolchain), files[f"korch:{variant}"])
        rows[variant] = {
            "predicted_ms": summary.objective_us / 1e3,
            "gap": summary.gap,
            "kernels": summary.kernels,
            "candidates": summary.candidates,
            "seconds": summary.seconds,
        }
        print(f"{name}, {variant}: {rows[variant]}", flush=True)
    inputs = random_inputs(load(files[f"korch:{FULL}"]).inputs)
    timed = compare_engines(files, inputs, resolve_threads(threads))
    for variant, row in rows.items():
        timing = timed.timings[f"korch:{variant}"]
        row.update(actual_ms=timing.median_ms, min_ms=min(timing.times_ms))
        row["over_all"] = timing.median_ms / timed.timings[f"korch:{FULL}"].median_ms
    return rows


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Actual milliseconds as Markdown, and how many times the full plan's they are."""
    names = list(next(iter(found.values())))
    lines = ["| network | predicted | " + " | ".join(names) + " |", "|" + "---|" * (2 + len(names))]
    for network, rows in found.items():
        cells = [
            f"{rows[v]['actual_ms']:.2f}" + (f" ({rows[v]['over_all']:.2f})" if v != FULL else "") for v in names
        ]
        lines.append(f"| {network} | {rows[FULL]['predicted_ms']:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Ablate the networks named on the command line, or all five."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"networks: {', '.join(models.NAMES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=None, help="seconds of selection for each plan")
    parser.add_argument("--output", type=Path, default=RESULTS, help="default: %(default)s")
    arguments = parser.parse_args()
    names = arguments.names or list(models.NAMES)
    with tempfile.TemporaryDirectory(prefix="korch-ablation-") as folder:
        found = {n: ablate(n, arguments.threads, arguments.budget, Path(folder)) for n in names}
    text = table(found)
    print(text)
    report = {"device": device_name(), "threads": arguments.threads, "budget": arguments.budget, "networks": found}
    arguments.output.mkdir(exist_ok=True)
    (arguments.output / "ablation.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.output / "ablation.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
