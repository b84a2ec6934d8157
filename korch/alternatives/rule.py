"""Rewrite rules that add equivalent definitions of a value; the program of `korch.selection` chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import TensorType

EXACT = "exact"  # every element keeps its class (finite, NaN, infinity) and sign
REASSOCIATES = "reassociates"  # changes rounding


@dataclass(frozen=True)
class Match:
    """A graph with what rules ask about it: each value's first definition and its constants."""

    graph: Graph
    first: Mapping[str, Definition]

    @staticmethod
    def of(graph: Graph) -> Match:
        first: dict[str, Definition] = {}
        for d in graph.definitions:
            for v in d.outputs:
                first.setdefault(v, d)
        return Match(graph, first)

    def definition(self, value: str, primitive: str) -> Definition | None:
        """The definition of a value when it is by that primitive."""
        d = self.first.get(value)
        return d if d is not None and d.primitive == primitive else None

    def constant(self, value: str) -> np.ndarray | None:
        """A constant's array; a broadcast of a constant counts as one."""
        if value in self.graph.constants:
            return self.graph.constants[value]
        d = self.definition(value, "broadcast")
        if d is None or d.inputs[0] not in self.graph.constants:
            return None
        small = self.graph.constants[d.inputs[0]]
        shape = [1] * len(d.ints("shape"))
        for k, axis in enumerate(d.ints("axes")):
            shape[axis] = small.shape[k]
        return np.broadcast_to(small.reshape(shape), d.ints("shape"))

    def scalar(self, value: str) -> float | None:
        """The number that a constant holds in all its elements."""
        array = self.constant(value)
        if array is None or array.size == 0:
            return None
        first = array.reshape(-1)[0] if array.size == 1 else array[(0,) * array.ndim]
        return float(first) if array.size == 1 or all(s == 0 for s in array.strides) else None


@dataclass
class Replacement:
    """New definitions that compute an existing value. `emit` names fresh values; `end` defines the value itself."""

    match: Match
    prefix: str
    origin: str
    definitions: list[Definition] = field(default_factory=list[Definition])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def constant(self, array: np.ndarray) -> str:
        name = f"{self.prefix}k{len(self.constants)}"
        self.constants[name] = array
        self.types[name] = TensorType.of(array)
        return name

    def filled(self, value: float, like: str) -> str:
        """A constant of one number, broadcast to the type of `like`."""
        t = self.type_of(like)
        scalar = self.constant(np.array(value, t.dtype.numpy))
        return self.emit("broadcast", scalar, shape=t.shape, axes=())

    def type_of(self, value: str) -> TensorType:
        return self.types[value] if value in self.types else self.match.graph.types[value]

    def emit(self, primitive: str, *inputs: str, **attributes: Attribute) -> str:
        name = f"{self.prefix}{len(self.definitions)}"
        self._define(name, primitive, inputs, attributes)
        return name

    def end(self, value: str, primitive: str, *inputs: str, **attributes: Attribute) -> Replacement:
        self._define(value, primitive, inputs, attributes)
        return self

    def _define(self, value: str, primitive: str, inputs: tuple[str, ...], attributes: Mapping[str, Attribute]) -> None:
        (inferred,) = TABLE[primitive].infer([self.type_of(v) for v in inputs], attributes)
        if value in self.match.graph.types:
            assert self.match.graph.types[value] == inferred, (value, inferred)
        else:
            self.types[value] = inferred
        self.definitions.append(Definition(primitive, inputs, (value,), tuple(sorted(attributes.items())), self.origin))


@dataclass(frozen=True)
class Rule:
    """`apply` looks at one definition by the primitive `root` and gives its replacement, or the reason why not.

    An empty reason means that the pattern is not there at all; any other is shown by `korch explain --rules`.
    """

    name: str
    label: str
    root: str
    apply: Callable[[Match, Definition, Replacement], Replacement | str]

    @property
    def equation(self) -> str:
        return (self.apply.__doc__ or "").strip()


@dataclass(frozen=True)
class Firing:
    """Where a rule was tried: `reason` is None where it fired."""

    rule: str
    value: str
    origin: str
    reason: str | None


def add_alternatives(graph: Graph, rules: Iterable[Rule]) -> tuple[Graph, tuple[Firing, ...]]:
    """The graph with every definition that a rule adds, right after the definition it is an alternative to."""
    match = Match.of(graph)
    by_root: dict[str, list[Rule]] = {}
    for rule in rules:
        by_root.setdefault(rule.root, []).append(rule)
    definitions: list[Definition] = []
    types, constants = dict(graph.types), dict(graph.constants)
    firings: list[Firing] = []
    for d in graph.definitions:
        definitions.append(d)
        for rule in by_root.get(d.primitive, ()):
            blank = Replacement(match, f"a{len(firings)}_", d.origin)
            result = rule.apply(match, d, blank)
            if result == "":
                continue
            refused = result if isinstance(result, str) else None
            firings.append(Firing(rule.name, d.outputs[0], d.origin, refused))
            if isinstance(result, Replacement):
                definitions.extend(result.definitions)
                types.update(result.types)
                constants.update(result.constants)
    return Graph(types, graph.inputs, graph.outputs, tuple(definitions), constants), tuple(firings)
