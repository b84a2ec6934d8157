"""Fragments for tests, and running generated kernels on memory that ends where a page ends."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from korch.codegen.c.prelude import prelude
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType


@dataclass
class Make:
    """Builds a fragment definition by definition."""

    types: dict[str, TensorType] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    definitions: list[Definition] = field(default_factory=list)

    def input(self, *shape: int, dtype: DType = DType.FLOAT32) -> str:
        name = f"i{len(self.inputs)}"
        self.types[name] = TensorType(dtype, shape)
        self.inputs.append(name)
        return name

    def full(self, number: float, like: str) -> str:
        """A scalar constant, broadcast to another value's shape."""
        t = self.types[like]
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(number, t.dtype.numpy)
        self.types[name] = TensorType(t.dtype, ())
        return self("broadcast", name, shape=t.shape, axes=())

    def __call__(self, primitive: str, *inputs: str, **attributes: object) -> str:
        return self.all(primitive, *inputs, **attributes)[0]

    def all(self, primitive: str, *inputs: str, **attributes: object) -> tuple[str, ...]:
        types = [self.types[v] for v in inputs]
        results = TABLE[primitive].infer(types, attributes)  # type: ignore[arg-type]
        count = sum(len(d.outputs) for d in self.definitions)
        names = tuple(f"t{count + k}" for k in range(len(results)))
        self.types.update(zip(names, results, strict=True))
        self.definitions.append(Definition(primitive, inputs, names, tuple(sorted(attributes.items()))))  # type: ignore[arg-type]
        return names

    def spread(self, value: str, like: str, *axes: int) -> str:
        """A value without some dimensions of `like`, broadcast along them; `axes` are those it has."""
        return self("broadcast", value, shape=self.types[like].shape, axes=axes)

    def fragment(self, *outputs: str, layouts: Mapping[str, Layout] | None = None) -> Fragment:
        graph = Graph(
            dict(self.types),
            tuple((v, v) for v in self.inputs),
            tuple((v, v) for v in outputs),
            tuple(self.definitions),
            dict(self.constants),
        )
        found = {v: Layout.row_major(self.types[v].shape) for v in (*self.inputs, *outputs)}
        return Fragment(graph, frozenset(), {**found, **(layouts or {})})


_UNTOUCHED = 0xA5

_DRIVER = """
static int64_t test_threads;
static int64_t test_reverse;
static void test_parallel_for(const korch_runtime *r, int64_t tasks,
                              void (*body)(void *, int64_t, int64_t), void *context) {
  for (int64_t i = 0; i < tasks; i++) {
    int64_t task = test_reverse ? tasks - 1 - i : i;
    body(context, task, task % test_threads);
  }
}
__attribute__((visibility("default")))
void test_run(int64_t kernel, char *const *p, char *scratch, int64_t stride, int64_t threads, int64_t reverse) {
  korch_runtime r = {1, (uint32_t)threads, scratch, stride, 0, test_parallel_for};
  test_threads = threads;
  test_reverse = reverse;
  kernels[kernel](&r, p);
}
"""


class Library:
    """Several kernels compiled into one library."""

    def __init__(self, kernels: Sequence[Kernel], target: Target, directory: Path) -> None:
        self.kernels = kernels
        bodies = [k.source.replace("KERNEL", f"kernel_{i}") for i, k in enumerate(kernels)]
        names = ", ".join(f"kernel_{i}" for i in range(len(kernels)))
        table = f"static void (*const kernels[])(const korch_runtime *, char *const *) = {{{names}}};"
        text = "\n".join([*bodies, table, _DRIVER])
        source = f"{prelude(target, text)}\n{text}"
        path = directory / "kernels.so"
        (directory / "kernels.c").write_text(source)
        compile_shared(find_toolchain(), source, target, path)
        self.call = ctypes.CDLL(str(path)).test_run
        self.call.restype = None
        self.call.argtypes = [ctypes.c_int64] + [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3

    def run(
        self,
        number: int,
        fragment: Fragment,
        inputs: Mapping[str, np.ndarray],
        threads: int = 1,
        reverse: bool = False,
    ) -> dict[str, np.ndarray]:
        """The outputs. Memory is as large as the layouts say and not a byte larger: it ends at a page that must not
        be touched; in `reverse`, which runs tasks in opposite order, it begins at one."""
        kernel, types = self.kernels[number], fragment.graph.types
        memory: list[Fenced] = []
        views: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for a in kernel.arguments:
            if a.kind == "scratch":
                memory.append(Fenced(kernel.scratch_bytes, 64, reverse))
                continue
            t, layout = types[a.value], fragment.layouts[a.value]
            block = Fenced(layout.span(t.shape) * t.dtype.size, t.dtype.size, reverse)
            memory.append(block)
            flat = block.bytes.view(t.dtype.numpy)
            if a.kind == "input":
                placed(flat, t.shape, layout)[...] = inputs[a.value]
            else:
                block.bytes[...] = _UNTOUCHED
                views[a.value] = placed(flat, t.shape, layout), block.bytes
        scratch = Fenced(kernel.worker_scratch_bytes * threads, 64, reverse)
        pointers = (ctypes.c_void_p * max(1, len(memory)))(*(m.address for m in memory))
        self.call(number, pointers, scratch.address, kernel.worker_scratch_bytes, threads, int(reverse))
        results = {v: np.array(view) for v, (view, _) in views.items()}
        for view, block in views.values():
            view.view(np.dtype((np.void, view.itemsize)))[...] = bytes([_UNTOUCHED] * view.itemsize)
            assert (block == _UNTOUCHED).all(), "written between the elements of a strided output"
        return results


class Fenced:
    """A block of memory between two pages that must not be touched: it starts where the first one ends, or ends
    (up to `alignment`) where the second one starts."""

    def __init__(self, size: int, alignment: int, front: bool = False) -> None:
        page = mmap.PAGESIZE
        whole = -(-max(size, 1) // page) * page
        self._map = mmap.mmap(-1, whole + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None)
        for fence in (start, start + page + whole):
            if libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0):
                raise OSError("mprotect failed")
        offset = page if front else page + (whole - size) // alignment * alignment
        self.address = start + offset
        self.bytes = np.frombuffer(self._map, np.uint8, size, offset)


def placed(flat: np.ndarray, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """The value that lies in a flat array, as a view."""
    strides = tuple(s * flat.dtype.itemsize for s in layout.strides_of(shape))
    if math.prod(shape) == 0:
        return np.zeros(shape, flat.dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)
