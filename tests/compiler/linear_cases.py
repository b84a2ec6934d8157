"""What the tests of linear kernels share: small fragments, and running a file of kernels on guarded buffers."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from korch.codegen.c.prelude import prelude
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.ir.evaluate import evaluate
from korch.ir.fragment import Fragment
from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType

# Tasks in reverse order on two workers: results may depend on neither.
HARNESS = """
typedef void body(void *context, int64_t task, int64_t worker);
static void backwards(const korch_runtime *runtime, int64_t tasks, body *run, void *context) {
  for (int64_t t = tasks - 1; t >= 0; --t) run(context, t, t & 1);
}
static void onwards(const korch_runtime *runtime, int64_t tasks, body *run, void *context) {
  for (int64_t t = 0; t < tasks; ++t) run(context, t, 0);
}
__attribute__((visibility("default")))
void harness(int64_t kernel, char *scratch, int64_t stride, char *const *p, int64_t times, int64_t forward) {
  korch_runtime runtime = {1, 2, scratch, stride, 0, forward ? onwards : backwards};
  for (int64_t i = 0; i < times; ++i) kernels[kernel](&runtime, p);
}
"""


@dataclass
class Build:
    """Builds a fragment, one value after the other."""

    dtype: DType = DType.FLOAT32
    types: dict[str, TensorType] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    definitions: list[Definition] = field(default_factory=list)

    def input(self, *shape: int, order: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None) -> str:
        name = f"i{len(self.layouts)}"
        self.types[name] = TensorType(self.dtype, shape)
        self.layouts[name] = Layout.canonical(shape, order or tuple(range(len(shape))), strides)
        return name

    def weight(self, *shape: int) -> str:
        name = self.input(*shape)
        self.weights.append(name)
        return name

    def constant(self, value: float) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, self.dtype.numpy)
        self.types[name] = TensorType(self.dtype, ())
        return name

    def op(self, primitive: str, *inputs: str, **attributes: Attribute) -> str:
        name = f"t{len(self.definitions)}"
        (self.types[name],) = TABLE[primitive].infer([self.types[v] for v in inputs], attributes)
        self.definitions.append(Definition(primitive, inputs, (name,), tuple(sorted(attributes.items()))))
        return name

    def spread(self, value: str, shape: tuple[int, ...], *axes: int) -> str:
        """A value broadcast to a shape."""
        return self.op("broadcast", value, shape=shape, axes=axes)

    def shape(self, value: str) -> tuple[int, ...]:
        return self.types[value].shape

    def fragment(self, *outputs: str, orders: dict[str, tuple[int, ...]] | None = None) -> Fragment:
        inputs = tuple(self.layouts)
        layouts = dict(self.layouts)
        for v in outputs:
            shape = self.shape(v)
            layouts[v] = Layout.canonical(shape, (orders or {}).get(v, tuple(range(len(shape)))))
        graph = Graph(
            self.types,
            tuple((v, v) for v in inputs),
            tuple((v, v) for v in outputs),
            tuple(self.definitions),
            self.constants,
        )
        return Fragment(graph, frozenset(self.weights), layouts)


class Guarded:
    """Memory that ends exactly where the next page may not be touched."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        pages = -(-max(size, 1) // page)
        self._map = mmap.mmap(-1, (pages + 1) * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(base + pages * page), ctypes.c_size_t(page), 0) == 0
        self.address = base + pages * page - size
        self.bytes = (
            np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address)) if size else np.zeros(0, np.uint8)
        )

    def array(self, dtype: np.dtype | type) -> np.ndarray:
        return self.bytes.view(dtype)


class Library:
    """Kernels compiled into one file, callable by their number."""

    def __init__(self, cases: Sequence[tuple[Fragment, Kernel]], target: Target, directory: Path) -> None:
        self.cases = list(cases)
        named = [(f"kernel_{k}", kernel) for k, (_, kernel) in enumerate(self.cases)]
        table = ", ".join(name for name, _ in named)
        tail = f"static void (*const kernels[])(const korch_runtime *, char *const *) = {{{table}}};\n{HARNESS}"
        path = directory / "linear.so"
        text = "\n".join([*(kernel.source.replace("KERNEL", name) for name, kernel in named), tail])
        compile_shared(find_toolchain(), f"{prelude(target, text)}\n{text}", target, path, timeout=600)
        self.library = ctypes.CDLL(str(path))

    def run(self, number: int, inputs: dict[str, np.ndarray], forward: bool = False) -> dict[str, np.ndarray]:
        """The outputs of a kernel on arrays in their logical shapes; every buffer is exactly as large as it is."""
        fragment, kernel = self.cases[number]
        graph = fragment.graph
        buffers: dict[str, Guarded] = {}
        for v in (*graph.input_values, *graph.output_values):
            layout, shape = fragment.layouts[v], graph.types[v].shape
            buffers[v] = Guarded(layout.span(shape) * graph.types[v].dtype.size)
            buffers[v].bytes[:] = 0xFF  # NaN
            if v in inputs:
                self._view(fragment, v, buffers[v])[...] = inputs[v]
        kept: list[Guarded] = []
        pointers: list[int] = []
        for a in kernel.arguments:
            if a.kind == "packed":
                packed = kernel.packed[a.index]
                array = np.ascontiguousarray(packed.packer(*(inputs[w] for w in packed.weights)))
                kept.append(Guarded(array.nbytes))
                kept[-1].bytes[:] = array.reshape(-1).view(np.uint8)
                pointers.append(kept[-1].address)
            elif a.kind == "scratch":
                kept.append(Guarded(kernel.scratch_bytes))
                kept[-1].bytes[:] = 0xFF
                pointers.append(kept[-1].address)
            else:
                pointers.append(buffers[a.value].address)
        stride = -(-kernel.worker_scratch_bytes // 64) * 64
        scratch = Guarded(stride * 2)
        scratch.bytes[:] = 0xFF  # NaN
        array = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        self.library.harness(
            ctypes.c_int64(number), ctypes.c_void_p(scratch.address), ctypes.c_int64(stride), array,
            ctypes.c_int64(1), ctypes.c_int64(forward),
        )  # fmt: skip
        return {v: self._view(fragment, v, buffers[v]).copy() for v in graph.output_values}

    def _view(self, fragment: Fragment, value: str, buffer: Guarded) -> np.ndarray:
        dtype, shape = fragment.graph.types[value].dtype, fragment.graph.types[value].shape
        strides = tuple(dtype.size * s for s in fragment.layouts[value].strides_of(shape))
        return np.lib.stride_tricks.as_strided(buffer.array(dtype.numpy), shape, strides)


def random_inputs(fragment: Fragment, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    types = fragment.graph.types
    return {v: rng.standard_normal(types[v].shape).astype(types[v].dtype.numpy) for v in fragment.graph.input_values}


def oracle(fragment: Fragment, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fragment's outputs in float64."""
    return evaluate(fragment.graph, inputs, double=True)


def deviation(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest error, in units of the reference's root mean square."""
    scale = float(np.sqrt(np.mean(np.square(wanted)))) or 1.0
    return float(np.max(np.abs(got.astype(np.float64) - wanted))) / scale


def tolerance(fragment: Fragment) -> float:
    """The deviation that rounding explains: it grows as a random walk over the products of one output."""
    types, depth = fragment.graph.types, 1
    last = types[fragment.graph.output_values[-1]].dtype
    stored = {DType.FLOAT16: 2.0**-9, DType.BFLOAT16: 2.0**-6}.get(last, 0.0)  # of values up to 4 times the scale
    for d in fragment.graph.definitions:
        if d.primitive == "matmul":
            depth = types[d.inputs[0]].shape[-1]
        elif d.primitive in ("conv", "conv_transpose"):
            depth = int(np.prod(types[d.inputs[1]].shape[1:]))
    return stored + 2.0**-24 * (8 + 4 * depth**0.5)
