"""Small graphs that hold a rule's pattern, and the check of what the rule makes of them."""

from __future__ import annotations

import numpy as np

from korch.alternatives.rule import Firing, Rule, add_alternatives
from korch.alternatives.rules import RULES
from korch.ir.evaluate import evaluate_values
from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType


class Sketch:
    """A graph written down primitive by primitive: `s("add", a, b)` gives the sum's value."""

    def __init__(self, dtype: str = "float64", seed: int = 0) -> None:
        self.dtype = DType(dtype)
        self.rng = np.random.default_rng(seed)
        self.types: dict[str, TensorType] = {}
        self.inputs: list[str] = []
        self.constants: dict[str, np.ndarray] = {}
        self.definitions: list[Definition] = []

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.types[name] = TensorType(self.dtype, shape)
        return name

    def constant(self, array: np.ndarray | float) -> str:
        name = f"w{len(self.constants)}"
        self.constants[name] = np.asarray(array, self.dtype.numpy)
        self.types[name] = TensorType.of(self.constants[name])
        return name

    def weight(self, *shape: int) -> str:
        """A constant of small integers, none of them 0: every sum and product of a few is exact."""
        return self.constant(self.rng.integers(1, 4, shape) * self.rng.choice([-1, 1], shape))

    def __call__(self, primitive: str, *inputs: str, **attributes: Attribute) -> str:
        outputs = TABLE[primitive].infer([self.types[v] for v in inputs], attributes)
        name = f"t{len(self.definitions)}"
        self.types[name] = outputs[0]
        self.definitions.append(Definition(primitive, inputs, (name,), tuple(sorted(attributes.items())), "node"))
        return name

    def along(self, axis: int, like: str, values: np.ndarray | None = None) -> str:
        """A constant that varies along one axis, broadcast to a value's shape."""
        shape = self.types[like].shape
        small = self.weight(shape[axis]) if values is None else self.constant(values)
        return self("broadcast", small, shape=shape, axes=(axis,))

    def filled(self, number: float, like: str) -> str:
        return self("broadcast", self.constant(number), shape=self.types[like].shape, axes=())

    def graph(self, *outputs: str) -> Graph:
        names = outputs or (self.definitions[-1].outputs[0],)
        return Graph(
            self.types,
            tuple((v, v) for v in self.inputs),
            tuple((f"y{k}", v) for k, v in enumerate(names)),
            tuple(self.definitions),
            self.constants,
        )


def conv(
    s: Sketch, x: str, w: str, stride: int = 1, dilation: int = 1, pads: tuple[int, ...] | None = None, groups: int = 1
) -> str:
    n = s.types[x].rank - 2
    return s(
        "conv", x, w, strides=(stride,) * n, dilations=(dilation,) * n, pads=pads or (0,) * (2 * n), groups=groups
    )


def rule_named(name: str) -> Rule:
    return next(r for r in RULES if r.name == name)


def fire(graph: Graph, *names: str) -> tuple[Graph, tuple[Firing, ...]]:
    return add_alternatives(graph, [rule_named(n) for n in names])


def refused(graph: Graph, name: str) -> set[str]:
    """The reasons of a rule on a graph; fails where it fired."""
    more, firings = fire(graph, name)
    assert more == graph, [f for f in firings if f.reason is None]
    return {f.reason for f in firings if f.reason}


def choices(graph: Graph, more: Graph) -> list[Graph]:
    """For each alternative that was added to a value of the model: the model with that value computed so, and by the
    last definition of every other value too."""
    found = []
    definers = more.definers()
    for v, ids in definers.items():
        if v in graph.types and len(ids) > 1:
            for keep in ids[1:]:
                kept = {w: (keep if w == v else other[0]) for w, other in definers.items()}
                found.append(_with(more, kept))
    found.append(_with(more, {v: ids[-1] for v, ids in definers.items()}))
    return found


def _with(more: Graph, kept: dict[str, int]) -> Graph:
    definitions = tuple(d for i, d in enumerate(more.definitions) if all(kept[v] == i for v in d.outputs))
    return Graph(more.types, more.inputs, more.outputs, definitions, more.constants)


def check(graph: Graph, *names: str, fires: bool | None = True, exact: bool = True, seed: int = 0) -> bool:
    """Every alternative that the rules add computes the same: to the last few bits on random float64, and to the bit
    on integers where `exact` (all sums and products of a pattern stay integers). Whether any rule fired."""
    more, firings = fire(graph, *names)
    fired = any(f.reason is None for f in firings)
    assert fires is None or fired == fires, firings
    if not fired:
        return False
    definitions = iter(more.definitions)
    assert all(d in definitions for d in graph.definitions), "the model's definitions are all there, in their order"
    rng = np.random.default_rng(seed)
    dtype = graph.types[graph.input_values[0]].dtype.numpy
    draws = [{v: rng.standard_normal(graph.types[v].shape).astype(dtype) for v in graph.input_values}]
    if exact:
        draws.append({v: rng.integers(-4, 5, graph.types[v].shape).astype(dtype) for v in graph.input_values})
    for k, inputs in enumerate(draws):
        wanted = evaluate_values(graph, inputs, graph.output_values)
        for other in choices(graph, more):
            got = evaluate_values(other, inputs, graph.output_values)
            for v in graph.output_values:
                if k:
                    np.testing.assert_array_equal(got[v], wanted[v])
                else:
                    np.testing.assert_allclose(got[v], wanted[v], rtol=1e-11, atol=1e-11)
    return True
