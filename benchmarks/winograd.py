"""Winograd's kernels against direct convolution: `python -m benchmarks.winograd [--only TEXT] [--cold]`.

For each 3x3 layer the fastest direct kernel and both Winograd kernels run in turns, one call each, on warm data (with
`--cold`, on weights that come from memory). Printed are the least time of a call, how many times faster than direct
that is, and the relative error against float64. One thread is timed by its CPU time, so that other processes
disturb the caches only; several by the clock.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.linear import Layer, conv
from korch.codegen.c.backend import library_source
from korch.codegen.c.linear import linear_implementations
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target, target_named
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.costs.runtime import runtime_library
from korch.costs.session import Session, harness
from korch.costs.worker import Call
from korch.ir.evaluate import evaluate
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE

COLD_BYTES = 256 << 20


def upsampled(layer: Layer) -> Layer:
    """The layer on an input of half the size, enlarged to the nearest element and reflected at its borders."""
    fragment = layer.fragment
    (conv_definition,), types = fragment.graph.definitions, dict(fragment.graph.types)
    image, weights = conv_definition.inputs
    batch, channels, height, width = types[image].shape
    types[image] = replace(types[image], shape=(batch, channels, height // 2, width // 2))
    value, definitions = image, []
    for axis, size in ((2, height), (3, width)):
        indices = tuple(i // 2 for i in (1, *range(size), size - 2))
        taken = Definition("take", (value,), (f"t{axis}",), (("axis", axis), ("indices", indices)))
        (types[f"t{axis}"],) = TABLE["take"].infer([types[value]], dict(taken.attributes))
        definitions.append(taken)
        value = f"t{axis}"
    attributes = tuple(sorted({**dict(conv_definition.attributes), "pads": (0, 0, 0, 0)}.items()))
    definitions.append(replace(conv_definition, inputs=(value, weights), attributes=attributes))
    layouts = {**fragment.layouts, image: Layout.channels_last(types[image].shape)}
    graph = Graph(types, fragment.graph.inputs, fragment.graph.outputs, tuple(definitions))
    return Layer(f"{layer.name}, upsampled", Fragment(graph, fragment.weights, layouts), layer.operations)


LAYERS: tuple[Layer, ...] = (
    conv("candy", 128, 128, 56, 3),
    conv("yolov4", 64, 64, 104, 3),
    conv("yolov4", 128, 256, 52, 3),
    conv("yolov4", 256, 256, 26, 3),
    conv("yolov4", 256, 512, 26, 3),
    conv("yolov4", 512, 512, 13, 3),
    conv("yolov4", 512, 1024, 13, 3),
    conv("yolov4", 32, 64, 208, 3),
    upsampled(conv("candy", 128, 64, 112, 3)),
    upsampled(conv("candy", 64, 32, 224, 3)),
)


class Bench:
    """The kernels of one layer in one library."""

    def __init__(self, layer: Layer, kernels: Sequence[Kernel], target: Target, folder: Path, cold: bool) -> None:
        self.kernels = kernels
        names = [f"kernel_{k}" for k in range(len(kernels))]
        path = folder / f"{abs(hash(layer.name))}.so"
        source = library_source(list(zip(names, kernels, strict=True)), target, harness(names))
        compile_shared(find_toolchain(), source, target, path, timeout=600)
        self.library = ctypes.CDLL(str(path))
        graph, rng = layer.fragment.graph, np.random.default_rng(0)
        inputs = {v: rng.standard_normal(graph.types[v].shape, np.float32) for v in graph.input_values}
        self.calls = [Call(layer.fragment, kernel, inputs) for kernel in kernels]
        self.lists = [call.pointers(call.copies(COLD_BYTES if cold else 0)) for call in self.calls]
        (self.reference,) = evaluate(graph, inputs, double=True).values()

    def seconds(self, session: Session, number: int, threads: int) -> float:
        """One call's time (where weights are cold, the mean of one call for each of their places)."""
        lists, scratch = self.lists[number], self.kernels[number].worker_scratch_bytes
        start = time.thread_time()
        elapsed = session.seconds(self.library, number, lists, len(lists), scratch)
        return (time.thread_time() - start if threads == 1 else elapsed) / len(lists)

    def error(self, number: int) -> float:
        (got,) = self.calls[number].results().values()
        return float(np.linalg.norm(got - self.reference) / np.linalg.norm(self.reference))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="host")
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cold", action="store_true", help="weights from memory")
    options = parser.parse_args()
    target = target_named(options.target)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        runtime = runtime_library(find_toolchain(), target, folder)
        sessions = {threads: Session(runtime, threads) for threads in options.threads}
        for layer in LAYERS:
            if options.only in layer.name:
                report(layer, target, folder, sessions, options.rounds, options.cold)


def report(layer: Layer, target: Target, folder: Path, sessions: dict[int, Session], rounds: int, cold: bool) -> None:
    """Measures a layer and prints its lines."""
    kernels = linear_implementations(layer.fragment, target)
    assert not isinstance(kernels, str), kernels
    bench = Bench(layer, kernels, target, folder, cold)
    best: dict[int, list[float]] = {}
    for threads, session in sessions.items():
        runs = [[bench.seconds(session, k, threads) for k in range(len(kernels))] for _ in range(rounds + 1)]
        best[threads] = [min(times) for times in zip(*runs[1:], strict=True)]
    direct = {t: min(b for b, k in zip(bs, kernels, strict=True) if k.family == "conv") for t, bs in best.items()}
    print(layer.name)
    for number, kernel in enumerate(kernels):
        times = [
            f"{t} thread{'s' if t > 1 else ''} {bs[number] * 1e6:8.0f} us {direct[t] / bs[number]:5.2f}x"
            for t, bs in best.items()
        ]
        print(f"  {kernel.label:48s} {'   '.join(times)}   error {bench.error(number):.1e}", flush=True)


if __name__ == "__main__":
    main()
