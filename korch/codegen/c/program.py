"""A whole plan as one C file: its kernels, and `korch_run`, which calls them in order (docs/kernels.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from korch.artifact.memory import Buffer, plan_memory
from korch.codegen.c.backend import kernel_hash, library_source
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.graph import Graph
from korch.ir.layout import Layout, Resource

ALIGNMENT = 64


@dataclass(frozen=True)
class Step:
    """One kernel call of a plan. `names` maps the fragment's value names to the graph's."""

    fragment: Fragment
    kernel: Kernel
    names: Mapping[str, str]

    def resource(self, canonical: str) -> Resource:
        return Resource(self.names[canonical], self.fragment.layouts[canonical])

    @property
    def outputs(self) -> tuple[Resource, ...]:
        return tuple(self.resource(v) for v in self.fragment.graph.output_values)

    @property
    def inputs(self) -> tuple[Resource, ...]:
        return tuple(
            self.resource(v) for v in self.fragment.graph.input_values if v not in self.fragment.weights
        )


@dataclass(frozen=True)
class Alias:
    """`target` occupies the bytes of `source`: no work at run time."""

    source: Resource
    target: Resource


@dataclass(frozen=True)
class Program:
    """Generated code; `kernels` names each step's."""

    source: str
    arena_bytes: int
    worker_scratch_bytes: int
    kernels: tuple[str, ...]


class ConstantBlock:
    """The constants of one or several plans, one after the other: equal bytes are stored once.

    `arrays` pairs offsets, in ascending order, with arrays; `size` is in bytes.
    """

    def __init__(self) -> None:
        self.arrays: list[tuple[int, np.ndarray]] = []
        self.size = 0
        self._offsets: dict[bytes, int] = {}

    def place(self, array: np.ndarray) -> int:
        """The offset of an array's bytes in row-major order."""
        array = np.ascontiguousarray(array)
        digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data if array.size else b"").digest()
        if digest not in self._offsets:
            self._offsets[digest] = self.size
            self.arrays.append((self.size, array))
            self.size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return self._offsets[digest]


class _Weights:
    """Where one plan's constants lie in the block: each form of a constant is made once."""

    def __init__(self, graph: Graph, block: ConstantBlock) -> None:
        self._constants = graph.constants
        self._block = block
        self._offsets: dict[tuple[tuple[str, ...], str], int] = {}

    def raw(self, value: str) -> int:
        """The offset of a constant in row-major order."""
        return self._place(((value,), "raw"), lambda: self._constants[value])

    def packed(self, step: Step, index: int) -> int:
        """The offset of a form that a step's kernel asks for."""
        packed = step.kernel.packed[index]
        values = tuple(step.names[w] for w in packed.weights)
        return self._place((values, packed.key), lambda: packed.packer(*(self._constants[v] for v in values)))

    def _place(self, key: tuple[tuple[str, ...], str], make: Callable[[], np.ndarray]) -> int:
        if key not in self._offsets:
            self._offsets[key] = self._block.place(make())
        return self._offsets[key]


def generate_program(
    graph: Graph, steps: Sequence[Step | Alias], target: Target, block: ConstantBlock
) -> Program:
    """The C file of a plan whose steps are in a legal order, with memory planned by lifetime.

    Its constants are added to `block`.
    """
    weights = _Weights(graph, block)
    places, copies, arena = _place_resources(graph, steps)
    names: dict[str, str] = {}
    chosen: dict[str, Kernel] = {}
    calls: list[str] = []
    per_step: list[str] = []
    scratch = 0
    for index, step in enumerate(steps):
        if isinstance(step, Alias):
            continue
        name = names.setdefault(kernel_hash(step.kernel), f"kernel_{len(names)}")
        chosen[name] = step.kernel
        per_step.append(name)
        scratch = max(scratch, step.kernel.worker_scratch_bytes)
        pointers: list[str] = []
        for a in step.kernel.arguments:
            if a.kind == "packed":
                pointers.append(f"w + {weights.packed(step, a.index)}")
            elif a.kind == "scratch":
                pointers.append(arena.scratch[index])
            elif a.value in step.fragment.weights:
                pointers.append(f"w + {weights.raw(step.names[a.value])}")
            else:
                pointers.append(places[step.resource(a.value)])
        calls.append(f"  {{ char *const p[] = {{{', '.join(pointers) or '0'}}}; {name}(runtime, p); }}")
    for output, value in copies:
        size = graph.types[value].bytes
        origin = f"w + {weights.raw(value)}" if value in graph.constants else places[_row_major(graph, value)]
        if size:
            calls.append(f"  __builtin_memcpy(io[{output}], {origin}, {size});")
    entry = "\n".join(
        [
            '__attribute__((visibility("default")))',
            "void korch_run(const korch_runtime *runtime, char *const *io, char *arena, const char *weights) {",
            "  char *const w = (char *)weights; (void)w; (void)arena; (void)io; (void)runtime;",
            *calls,
            "}",
        ]
    )
    source = library_source(list(chosen.items()), target, entry)
    return Program(source, arena.size, scratch, tuple(per_step))


@dataclass(frozen=True)
class _Arena:
    size: int
    scratch: Mapping[int, str]


def _row_major(graph: Graph, value: str) -> Resource:
    return Resource(value, Layout.row_major(graph.types[value].shape))


def _place_resources(
    graph: Graph, steps: Sequence[Step | Alias]
) -> tuple[dict[Resource, str], list[tuple[int, str]], _Arena]:
    """A C pointer for each resource; the model outputs that must be copied at the end; the arena."""
    root: dict[Resource, Resource] = {}

    def find(r: Resource) -> Resource:
        while root.get(r, r) != r:
            r = root[r]
        return r

    for step in steps:
        if isinstance(step, Alias):
            root[step.target] = find(step.source)
    pointer: dict[Resource, str] = {}
    for k, value in enumerate(graph.input_values):
        pointer.setdefault(find(_row_major(graph, value)), f"io[{k}]")
    copies: list[tuple[int, str]] = []
    for k, value in enumerate(graph.output_values, len(graph.inputs)):
        place = find(_row_major(graph, value))
        if value in graph.constants or place in pointer:
            copies.append((k, value))
        else:
            pointer[place] = f"io[{k}]"
    first: dict[Resource, int] = {}
    last: dict[Resource, int] = {}
    size: dict[Resource, int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Alias):
            continue
        for r in (*step.inputs, *step.outputs):
            place = find(r)
            first.setdefault(place, index)
            last[place] = index
            t = graph.types[r.value]
            size[place] = max(size.get(place, 0), r.layout.span(t.shape) * t.dtype.size)
    for _, value in copies:
        if value not in graph.constants:
            last[find(_row_major(graph, value))] = len(steps)
    kept = [r for r in first if r not in pointer]
    buffers = [Buffer(size[r], first[r], last[r]) for r in kept]
    with_scratch = [i for i, s in enumerate(steps) if isinstance(s, Step) and s.kernel.scratch_bytes]
    for i in with_scratch:
        step = steps[i]
        assert isinstance(step, Step)
        buffers.append(Buffer(step.kernel.scratch_bytes, i, i))
    offsets, total = plan_memory(buffers)
    for r, offset in zip(kept, offsets, strict=False):
        pointer[r] = f"arena + {offset}"
    scratch = {i: f"arena + {offsets[len(kept) + j]}" for j, i in enumerate(with_scratch)}
    places = {r: pointer[find(r)] for step in steps for r in _resources(step)}
    for value in (*graph.input_values, *graph.output_values):
        if value not in graph.constants:
            places[_row_major(graph, value)] = pointer[find(_row_major(graph, value))]
    return places, copies, _Arena(total, scratch)


def _resources(step: Step | Alias) -> tuple[Resource, ...]:
    return (step.source, step.target) if isinstance(step, Alias) else (*step.inputs, *step.outputs)
