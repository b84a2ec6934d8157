"""Small graphs for the tests of candidates and selection, and the exhaustive search that these compare with."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import numpy as np

from korch.candidates.groups import Group, reads_of
from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType
from korch.selection.order import order_of
from korch.selection.program import Program

IMAGE = (1, 2, 3, 2)


class Sketch:
    """A graph under construction; `add` gives the name of the new value."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.types = {v: TensorType(DType.FLOAT32, shape) for v, shape in inputs.items()}
        self.inputs = tuple((v, v) for v in inputs)
        self.constants: dict[str, np.ndarray] = {}
        self.definitions: list[Definition] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = array.astype(np.float32)
        self.types[name] = TensorType.of(self.constants[name])
        return name

    def add(self, primitive: str, *inputs: str, value: str = "", origin: str = "", **attributes: Attribute) -> str:
        types = TABLE[primitive].infer([self.types[v] for v in inputs], attributes)
        outputs = (value or f"v{len(self.definitions)}",)
        self.types.update(zip(outputs, types, strict=True))
        self.definitions.append(Definition(primitive, inputs, outputs, tuple(sorted(attributes.items())), origin))
        return outputs[0]

    def conv(self, x: str, channels: int, origin: str = "", kernel: int = 1) -> str:
        """A convolution with padding that keeps the size."""
        depth = self.types[x].shape[1]
        rng = np.random.default_rng(len(self.constants))
        w = self.constant(rng.standard_normal((channels, depth, kernel, kernel)))
        pads = (kernel // 2,) * 4
        return self.add("conv", x, w, strides=(1, 1), dilations=(1, 1), pads=pads, groups=1, origin=origin)

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.types, self.inputs, tuple((v, v) for v in outputs), tuple(self.definitions), self.constants)


def random_graph(seed: int, size: int, *, images: bool = True, alternatives: bool = False) -> Graph:
    """A random graph of about `size` definitions over images of one shape, their channel sums and broadcasts.

    With `alternatives`, some values have a second definition.
    """
    rng = random.Random(seed)
    s = Sketch(x=IMAGE)
    values, small, used = ["x"], list[str](), set[str]()
    while len(s.definitions) < size:
        kind = rng.choice(("unary", "unary", "binary", "binary", "conv", "reduce", "broadcast"))
        a, b = rng.choice(values[-3:]), rng.choice(values)
        if kind == "conv" and images:
            values.append(s.conv(a, IMAGE[1], kernel=rng.choice((1, 3))))
        elif kind == "reduce":
            small.append(s.add("reduce_sum", a, axes=(2, 3)))
        elif kind == "broadcast" and small:
            b = s.add("broadcast", rng.choice(small), shape=IMAGE, axes=(0, 1))
            values.append(s.add("sub", a, b))
            used.update(s.definitions[-2].inputs)
        elif kind == "binary":
            values.append(s.add(rng.choice(("add", "mul")), a, b))
            if alternatives and rng.random() < 0.6:
                _alternative(s)
        else:
            values.append(s.add(rng.choice(("neg", "tanh")), a))
        used.update(s.definitions[-1].inputs)
    made = [v for v in dict.fromkeys(d.outputs[0] for d in s.definitions)]
    return s.graph(*([v for v in made if v not in used] or made[-1:]))


def _alternative(s: Sketch) -> None:
    """Another definition of the last value: a + b = a - -b, a * b = b * a."""
    last = s.definitions[-1]
    a, b = last.inputs
    if last.primitive == "mul":
        s.add("mul", b, a, value=last.outputs[0])
    else:
        s.add("sub", a, s.add("neg", b), value=last.outputs[0])


def one_by_one(graph: Graph) -> tuple[Group, ...]:
    """Every definition a group of its own."""
    return tuple(Group((i,), (i,), reads_of(graph, (i,)), d.outputs) for i, d in enumerate(graph.definitions))


def fuses_all(graph: Graph, definitions: Sequence[int]) -> str | None:
    """A backend that can fuse everything."""
    return None


def one_convolution(graph: Graph, definitions: Sequence[int]) -> str | None:
    """A backend that fuses anything around one convolution."""
    count = sum(graph.definitions[d].primitive == "conv" for d in definitions)
    return "two convolutions" if count > 1 else None


def cheapest(program: Program, costs: Sequence[float]) -> float | None:
    """The cost of the cheapest plan that runs, among all sequences of columns (Dijkstra over what exists); None
    when there is none."""
    masks = [
        (sum(1 << r for r in reads), sum(1 << r for r in writes), cost)
        for reads, writes, cost in zip(program.reads, program.writes, costs, strict=True)
        if cost < float("inf")
    ]
    goal = sum(1 << r for r in program.required)
    best = {0: 0.0}
    heap = [(0.0, 0)]
    while heap:
        cost, there = heapq.heappop(heap)
        if there & goal == goal:
            return cost
        if cost > best[there]:
            continue
        for reads, writes, price in masks:
            after = there | writes
            if reads & ~there == 0 and after != there and cost + price < best.get(after, float("inf")):
                best[after] = cost + price
                heapq.heappush(heap, (cost + price, after))
    return None


def random_plan(program: Program, rng: random.Random) -> tuple[int, ...]:
    """Some plan that runs, with columns that it does not need."""
    there: set[int] = set()
    chosen: list[int] = []
    while not program.required <= there:
        ready = [c for c, reads in enumerate(program.reads) if there.issuperset(reads) and c not in chosen]
        chosen.append(rng.choice(ready))
        there.update(program.writes[chosen[-1]])
    assert order_of(program, chosen).runs
    return tuple(chosen)
