"""How close kernels come to the roofline: `python -m benchmarks.roofline [MODEL.korch ...] [--only TEXT]`.

Without models: the layers and loop nests of `benchmarks/linear.py` and `benchmarks/nests.py`. With optimized models:
every distinct kernel of their plans. The bound of a kernel is the longer of two times measured in turn with it, on
one thread: its operations at the rate of a loop of multiply-adds, and a loop that streams as many bytes as the kernel
must read and write, in buffers of the same sizes. All implementations that the C backend offers run; the fastest
counts. Prints one line for each case; without models and `--only`, writes `benchmarks/results/roofline.json` and
`roofline.md`.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import json
import math
import mmap
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import linear, nests
from benchmarks.linear import CHAINS, HARNESS, aligned
from korch.artifact.format import open_artifact
from korch.codegen.c.backend import implementations
from korch.codegen.c.prelude import prelude
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target, target_named
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.costs.bounds import work_of
from korch.costs.samples import place, sample_inputs
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE
from korch.ir.types import TensorType
from korch.pipeline import device_name

RESULTS = Path(__file__).parent / "results"
PER_LIBRARY = 48  # kernels compiled together

STREAM = """
__attribute__((visibility("default")))
void stream(const float *from, int64_t reads, float *to, int64_t writes, int64_t times) {
  const int64_t both = (reads < writes ? reads : writes) & ~(4 * W - 1);
  for (int64_t i = 0; i < times; ++i) {
    int64_t k = 0;
    for (; k < both; k += 4 * W) {
      vf32 a = korch_load_f32(from + k), b = korch_load_f32(from + k + W);
      vf32 c = korch_load_f32(from + k + 2 * W), d = korch_load_f32(from + k + 3 * W);
      korch_store_f32(to + k, a), korch_store_f32(to + k + W, b);
      korch_store_f32(to + k + 2 * W, c), korch_store_f32(to + k + 3 * W, d);
    }
    vf32 a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t j = k; j + 4 * W <= reads; j += 4 * W) {
      a += korch_load_f32(from + j), b += korch_load_f32(from + j + W);
      c += korch_load_f32(from + j + 2 * W), d += korch_load_f32(from + j + 3 * W);
    }
    for (int64_t j = k; j + W <= writes; j += W) korch_store_f32(to + j, a);
    korch_store_f32(to, a + b + c + d);
  }
}
"""


@dataclass(frozen=True)
class Case:
    """A fragment, and in how many kernels of the plan it occurs."""

    name: str
    fragment: Fragment
    uses: int = 1


@dataclass(frozen=True)
class Row:
    """What was measured: times in microseconds; `limit` says which of the two bounds is the longer."""

    name: str
    family: str
    limit: str
    uses: int
    microseconds: float
    bound: float
    flops: float
    bytes: int

    @property
    def fraction(self) -> float:
        """Of the bound."""
        return self.bound / self.microseconds

    @property
    def gap(self) -> float:
        """Microseconds above the bound, over all uses."""
        return self.uses * (self.microseconds - self.bound)


class Arena:
    """Memory as the runtime gives it: one block, in large pages where the system has them."""

    def __init__(self, size: int) -> None:
        whole = mmap.mmap(-1, size + (4 << 20))
        whole.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(whole, np.uint8)
        memory[:] = 0
        self.memory, self.used = memory, -memory.ctypes.data % (2 << 20)

    def take(self, size: int) -> np.ndarray:
        """Zeroed bytes at an address that is a multiple of 64."""
        start = self.used
        self.used += -(-size // 64) * 64
        return self.memory[start : start + size]


def parse_fragment(text: str) -> Fragment:
    """The inverse of `Fragment.text`."""
    types: dict[str, TensorType] = {}
    layouts: dict[str, Layout] = {}
    constants: dict[str, np.ndarray] = {}
    inputs: list[str] = []
    weights: set[str] = set()
    outputs: list[str] = []
    definitions: list[Definition] = []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("input", "weight"):
            name, _, described = rest.partition(": ")
            described, _, layout = described.partition(" ")
            types[name], layouts[name] = TensorType.parse(described), Layout.parse(layout)
            inputs.append(name)
            weights |= {name} if kind == "weight" else set()
        elif kind == "constant":
            name, _, described = rest.partition(": ")
            described, _, digits = described.partition(" = ")
            types[name] = t = TensorType.parse(described)
            constants[name] = np.frombuffer(bytes.fromhex(digits), t.dtype.numpy).reshape(t.shape)
        elif kind == "output":
            name, _, layout = rest.partition(" ")
            layouts[name] = Layout.parse(layout)
            outputs.append(name)
        else:
            definitions.append(_definition(line, types))
    graph = Graph(types, tuple((v, v) for v in inputs), tuple((v, v) for v in outputs), tuple(definitions), constants)
    return Fragment(graph, frozenset(weights), layouts)


def _definition(line: str, types: dict[str, TensorType]) -> Definition:
    """Parses a line of a fragment's text, and adds the types of its outputs."""
    names, _, rest = line.partition(" = ")
    call = ast.parse(rest[: rest.rindex(" : ")], mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    operands = tuple(a.id for a in call.args if isinstance(a, ast.Name))
    attributes = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    results = TABLE[call.func.id].infer([types[v] for v in operands], attributes)
    types.update(zip(names.split(", "), results, strict=True))
    return Definition(call.func.id, operands, tuple(names.split(", ")), tuple(attributes.items()))


def cases_of_plan(path: Path) -> list[Case]:
    """The distinct kernels of an artifact's first plan."""
    uses: dict[str, list[str]] = {}
    for kernel in open_artifact(path).manifest["plans"][0]["kernels"]:
        uses.setdefault(kernel["fragment"], []).append(kernel["name"])
    return [Case(f"{path.stem}: {_title(f)}", f, len(uses[f.text])) for f in map(parse_fragment, uses)]


def _title(fragment: Fragment) -> str:
    graph = fragment.graph
    linear_ones = [d for d in graph.definitions if TABLE[d.primitive].kind == "linear" or d.primitive == "resample"]
    named = list(dict.fromkeys(d.primitive for d in (linear_ones or graph.definitions)))
    shapes = [f"{graph.types[v].shape}{fragment.layouts[v]}" for v in graph.input_values if v not in fragment.weights]
    outputs = [f"{graph.types[v].shape}{fragment.layouts[v]}" for v in graph.output_values]
    kernel = ""
    for d in linear_ones:
        if d.primitive == "conv":
            w, groups = graph.types[d.inputs[1]].shape, d.int("groups")
            kernel += f" {'x'.join(map(str, w[2:]))}/{d.ints('strides')[0]} groups {groups}"
    rest = len(graph.definitions) - len(linear_ones)
    return f"{'+'.join(named)[:40]}{kernel} +{rest} {' '.join(shapes)} -> {' '.join(outputs)}".replace(", ", ",")


def standard_cases() -> list[Case]:
    """The layers and loop nests of the other two benchmarks."""
    return [
        *(Case(layer.name, layer.fragment) for layer in linear.LAYERS),
        *(Case(layer.name, layer.fragment) for layer in linear.PAIRS),
        *(Case(f"nest: {make.__name__}", make()) for make in nests.CASES),
    ]


class Racer:
    """The kernels of some cases in one library, and the loops that they are compared with."""

    def __init__(self, kernels: list[Kernel], target: Target, directory: Path) -> None:
        names = [f"kernel_{k}" for k in range(len(kernels))]
        bodies = [k.source.replace("KERNEL", name) for name, k in zip(names, kernels, strict=True)]
        table = f"static void (*const kernels[])(const korch_runtime *, char *const *) = {{{', '.join(names)}}};"
        text = "\n".join([*bodies, table, HARNESS, STREAM])
        path = directory / f"roofline_{names[-1]}_{id(self)}.so"
        compile_shared(find_toolchain(), f"{prelude(target, text)}\n{text}", target, path, timeout=600)
        self.library, self.target = ctypes.CDLL(str(path)), target

    def row(self, case: Case, first: int, kernels: tuple[Kernel, ...], seconds: float) -> Row:
        """Times the kernels `first`… of the library, which are the case's, in turn with both loops."""
        work = work_of(case.fragment)
        types = case.fragment.graph.types
        written = sum(types[v].bytes for v in case.fragment.graph.output_values)
        calls = [_call(self.library, first + k, case.fragment, kernel) for k, kernel in enumerate(kernels)]
        stream = self._stream(work.bytes - written, written)
        peak = self._multiply_add()
        once = min(_seconds(call, 1) for call in (calls * 2)) + 1e-7
        times = max(1, int(1e-3 / once))
        best, streamed, rate = [math.inf] * len(calls), math.inf, 0.0
        end, rounds = time.perf_counter() + seconds * (len(calls) + 1), 0
        while time.perf_counter() < end or rounds < 4:
            for k, call in enumerate(calls):
                best[k] = min(best[k], _seconds(call, times))
                streamed = min(streamed, _seconds(stream, times))
                rate = max(rate, peak())
            rounds += 1
            if rounds == 3:  # the slow ones are out
                keep = [k for k in range(len(calls)) if best[k] < 1.5 * min(best)]
                calls, best, kernels = ([x[k] for k in keep] for x in (calls, best, list(kernels)))  # type: ignore[assignment]
        found = min(range(len(calls)), key=best.__getitem__)
        bounds = {"arithmetic": work.flops / rate, "memory": streamed}
        limit = max(bounds, key=bounds.__getitem__)
        return Row(
            case.name, kernels[found].label, limit, case.uses, best[found] * 1e6, bounds[limit] * 1e6, work.flops,
            work.bytes,
        )  # fmt: skip

    def _multiply_add(self, times: int = 20_000):
        data = aligned(4096)

        def rate() -> float:
            start = time.thread_time()
            self.library.multiply_add(ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(times))
            return 2 * times * CHAINS * self.target.lanes() / max(1e-9, time.thread_time() - start)

        return rate

    def _stream(self, reads: int, writes: int):
        arena = Arena(reads + writes + 512)
        source, sink = arena.take(max(reads, 64)), arena.take(max(writes, 64) + 64)

        def stream(times: int) -> None:
            self.library.stream(
                ctypes.c_void_p(source.ctypes.data), ctypes.c_int64(reads // 4),
                ctypes.c_void_p(sink.ctypes.data), ctypes.c_int64(writes // 4), ctypes.c_int64(times),
            )  # fmt: skip

        return stream


def _seconds(call, times: int) -> float:
    start = time.thread_time()
    call(times)
    return (time.thread_time() - start) / times


def _call(library: ctypes.CDLL, number: int, fragment: Fragment, kernel: Kernel):
    graph = fragment.graph
    inputs = sample_inputs(fragment)
    packs = [np.ascontiguousarray(k.packer(*(inputs[w] for w in k.weights))) for k in kernel.packed]
    sizes = {v: layout.span(graph.types[v].shape) * graph.types[v].dtype.size for v, layout in fragment.layouts.items()}
    total = sum(sizes.values()) + sum(a.nbytes for a in packs) + kernel.scratch_bytes + kernel.worker_scratch_bytes
    arena = Arena(total + 256 * (len(kernel.arguments) + 2))
    buffers: list[np.ndarray] = []
    for a in kernel.arguments:
        if a.kind == "packed":
            array = packs[a.index]
            buffers.append(arena.take(array.nbytes))
            buffers[-1][:] = array.reshape(-1).view(np.uint8)
        elif a.kind == "scratch":
            buffers.append(arena.take(kernel.scratch_bytes))
        else:
            buffers.append(arena.take(sizes[a.value]))
            if a.value in inputs:
                buffers[-1][:] = place(inputs[a.value], fragment.layouts[a.value]).view(np.uint8)
    scratch = arena.take(kernel.worker_scratch_bytes + 64)
    pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))

    def call(times: int) -> None:
        library.run(ctypes.c_int64(number), ctypes.c_void_p(scratch.ctypes.data), pointers, ctypes.c_int64(times))
        assert buffers  # they live as long as the call

    return call


def rows(cases: Iterable[Case], target: Target, seconds: float) -> Iterator[Row]:
    """Measures all cases; those without kernels are named on standard error."""
    batch: list[tuple[Case, tuple[Kernel, ...]]] = []

    def run() -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as directory:
            racer = Racer([k for _, kernels in batch for k in kernels], target, Path(directory))
        first = 0
        for case, kernels in batch:
            yield racer.row(case, first, kernels, seconds)
            first += len(kernels)
        batch.clear()

    for case in cases:
        kernels = implementations(case.fragment, target)
        if isinstance(kernels, str):
            print(f"{case.name}: {kernels}", file=sys.stderr)
            continue
        batch.append((case, kernels))
        if sum(len(k) for _, k in batch) >= PER_LIBRARY:
            yield from run()
    if batch:
        yield from run()


def group_of(row: Row) -> str:
    """The family's name without its parameters."""
    return re.split(r" \w+=", row.family)[0]


def markdown(found: list[Row]) -> str:
    """The median of each family, then every row, largest gaps first within a family."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(group_of(row), []).append(row)
    lines = ["One thread, float32, warm data. The bound is the longer of the arithmetic at peak and a stream of the",
             "same bytes, both measured in turn with the kernel.", "",
             "| family | kernels | median of the bound | least |", "|---|---|---|---|"]  # fmt: skip
    for name, members in sorted(groups.items()):
        shares = [r.fraction for r in members]
        lines.append(f"| {name} | {len(members)} | {statistics.median(shares):.0%} | {min(shares):.0%} |")
    lines += ["", "| kernel | family | µs | bound µs | limit | of the bound |", "|---|---|---|---|---|---|"]
    for _, members in sorted(groups.items()):
        for r in sorted(members, key=lambda r: -r.gap):
            cells = (r.name, r.family, f"{r.microseconds:.1f}", f"{r.bound:.1f}", r.limit, f"{r.fraction:.0%}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="optimized models")
    parser.add_argument("--target", default="host")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each kernel")
    options = parser.parse_args()
    target = target_named(options.target)
    cases = [c for path in options.models for c in cases_of_plan(path)] or standard_cases()
    found: list[Row] = []
    for row in rows([c for c in cases if options.only in c.name], target, options.seconds):
        found.append(row)
        uses = f" x{row.uses}" if row.uses > 1 else ""
        print(
            f"{row.fraction:5.0%} {row.microseconds:9.1f} us{uses:4s} gap {row.gap:8.0f} {row.limit[:3]} "
            f"{row.family[:40]:40s} {row.name}",
            flush=True,
        )
    if options.only or options.models or not found:
        return
    RESULTS.mkdir(exist_ok=True)
    data = {"device": device_name(), "rows": [{**asdict(r), "fraction": r.fraction} for r in found]}
    (RESULTS / "roofline.json").write_text(json.dumps(data, indent=1) + "\n")
    (RESULTS / "roofline.md").write_text(markdown(found))


if __name__ == "__main__":
    main()
