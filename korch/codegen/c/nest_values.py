"""Values at an index, as a graph of scalar operations: what is left of a fragment between two reductions.

`Values.at` substitutes indices backwards through elementwise, broadcast, layout and gather primitives, down to
what has a *source*: memory, or a C variable that already holds the value. Equal operations on equal operands
are one node, so what several readers share is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from korch.codegen.c.index import Index, Variable, constant, dot, loaded, of_atom
from korch.codegen.c.nest_domain import Domain
from korch.codegen.c.nest_reads import GATHERS, LAYOUT_READS, Guard, Indices
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType

_NONE: frozenset[str] = frozenset()


class NestError(Exception):
    """A fragment that this generator does not take; the message says why."""


@dataclass(frozen=True)
class Memory:
    """A buffer: `pointer` is a C expression of type char *, `strides` are in elements, one per dimension.

    With a `domain`, the buffer holds a part of the value by axes: strides and `origin` (the part's first point)
    are per axis. `variables` are those that the pointer or the content depends on, beside the index."""

    pointer: str
    strides: tuple[int, ...]
    variables: frozenset[str] = _NONE
    domain: Domain | None = None
    origin: Indices = ()

    def offset(self, index: Indices) -> Index:
        """Where an element lies, in elements."""
        if self.domain is None:
            return dot(index, self.strides)
        point = self.domain.coordinates(index)
        return dot((i - o for i, o in zip(point, self.origin, strict=True)), self.strides)


@dataclass(frozen=True)
class Registers:
    """C variables that hold the value (as a register of its dtype) at certain indices.

    `variables` are the loop variables they depend on, beside those of the index."""

    at: Mapping[Indices, str]
    variables: frozenset[str] = _NONE


@dataclass(frozen=True)
class Stage:
    """In planning: a value that another loop nest computes. Where it is read is noted in `Values.stage_reads`."""


Source = Memory | Registers | Stage


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A scalar value at one point of a loop nest; it differs only between points that differ in `variables`."""

    dtype: DType
    variables: frozenset[str]
    args: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Literal(Node):
    """A constant."""

    value: np.generic = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Read(Node):
    """One element of memory, read only where the guards hold (else it is 0)."""

    memory: Memory = field(kw_only=True)
    offset: Index = field(kw_only=True)
    guards: tuple[Guard, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Held(Node):
    """The content of a C variable."""

    text: str = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Apply(Node):
    """An elementwise primitive; with a `function`, that C function of the arguments, which does the work of several."""

    definition: Definition = field(kw_only=True)
    function: str = field(default="", kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class Choose(Node):
    """The first argument where the guards hold, else the second."""

    guards: tuple[Guard, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False, slots=True)
class TableRead(Node):
    """An entry of a constant table of numbers."""

    values: tuple[float, ...] = field(kw_only=True)
    at: Index = field(kw_only=True)


GATE = "korch_gate_f32"


def _gate(definition: Definition, args: tuple[Node, ...]) -> tuple[Node | None, Node] | None:
    """(a, x) where a primitive's result is a / (1 + exp(-x)): sigmoid (a is None, for 1), silu, gated units.

    One function is faster and closer to the exact value than four primitives and the rounding between them.
    """
    if definition.primitive == "mul":
        for a, b in (args, args[::-1]):
            if isinstance(b, Apply) and b.function == GATE and _is_one(b.args[0]):
                return a, b.args[1]
    if definition.primitive != "div":
        return None
    for one, e in _operands(args[1], "add", 2):
        for (negative,) in _operands(e, "exp", 1):
            for (x,) in _operands(negative, "neg", 1):
                if _is_one(one):
                    return None if _is_one(args[0]) else args[0], x
    return None


def _operands(node: Node, primitive: str, count: int) -> list[tuple[Node, ...]]:
    """The arguments of a node that is this primitive, in both orders where there are two; none of another node."""
    if not isinstance(node, Apply) or node.function or node.definition.primitive != primitive:
        return []
    return [node.args, node.args[::-1]] if count == 2 else [node.args]


def _is_one(node: Node) -> bool:
    return isinstance(node, Literal) and bool(node.value == 1)


class Values:
    """The values of one graph, read through `sources` (for every input at least).

    With `share`, equal nodes of both are one node: what one loop body has computed outside itself, another finds.
    """

    def __init__(self, graph: Graph, sources: Mapping[str, Source], share: Values | None = None) -> None:
        self.graph = graph
        self.sources = dict(sources)
        self.open_guards: dict[Guard, None] = {}  # met so far, decided neither way by the variables' ranges
        self.stage_reads: dict[tuple[str, Indices], None] = {}
        self._definitions = {v: d for d in graph.definitions for v in d.outputs}
        self._nodes: dict[tuple[object, ...], Node] = share._nodes if share else {}
        self._memo: dict[tuple[object, ...], Node] = {}
        self._loaded: dict[tuple[Node, int], int] = share._loaded if share else {}

    def at(self, value: str, index: Indices, guards: tuple[Guard, ...] = ()) -> Node:
        """The node of a value's element. `guards` are open ones, without which it is not needed."""
        key = (value, index, guards)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._expand(value, index, guards)
        return found

    def define(self, value: str, index: Indices) -> Node:
        """The node of a value that is computed here, even where it has a source for others."""
        return self._compute(value, index, ()) if value in self._definitions else self.at(value, index)

    @property
    def nodes(self) -> Iterable[Node]:
        """All nodes made so far, arguments before their users."""
        return self._nodes.values()

    def literal(self, value: object, dtype: DType) -> Node:
        scalar = np.asarray(value).astype(dtype.numpy).reshape(())[()]
        return self._intern(("literal", dtype, scalar.tobytes()), Literal, dtype, _NONE, value=scalar)

    def table(self, values: tuple[float, ...], at: Index, dtype: DType) -> Node:
        if at.value is not None:
            return self.literal(values[at.value], dtype)
        if len(at.terms) == 1 and at.terms[0][1] > 1 and isinstance(at.terms[0][0], Variable):
            # A table of its own for every so many entries, so that they lie next to each other.
            atom, k = at.terms[0]
            every = range(at.constant + k * atom.low, at.constant + k * atom.high + 1, k)
            values, at = tuple(values[i] for i in every), of_atom(atom) - atom.low
        return self._intern(("table", dtype, values, at), TableRead, dtype, at.variables, values=values, at=at)

    def apply(self, definition: Definition, args: tuple[Node, ...], dtype: DType) -> Node:
        function = ""
        if dtype is DType.FLOAT32:
            gate = _gate(definition, args)
            if gate is not None:
                function, args = GATE, (gate[0] or self.literal(1, dtype), gate[1])
        key = (definition.primitive, definition.attributes, function, args)
        variables = _NONE.union(*(a.variables for a in args))
        return self._intern(key, Apply, dtype, variables, args, definition=definition, function=function)

    def converted(self, node: Node, dtype: DType) -> Node:
        """The node cast to another dtype."""
        if node.dtype is dtype:
            return node
        return self.apply(Definition("cast", (), (), (("to", dtype.value),)), (node,), dtype)

    def choose(self, guards: tuple[Guard, ...], yes: Node, no: Node) -> Node:
        if not guards:
            return yes
        variables = yes.variables | no.variables | _NONE.union(*(g.index.variables for g in guards))
        return self._intern(("choose", guards, yes, no), Choose, yes.dtype, variables, (yes, no), guards=guards)

    def decide(self, guards: Iterable[Guard]) -> tuple[Guard, ...] | None:
        """The guards that remain open, and noted as such; None when one of them never holds."""
        remaining: list[Guard] = []
        for g in guards:
            truth = g.truth
            if truth is False:
                return None
            if truth is None:
                remaining.append(g)
                self.open_guards.setdefault(g)
        return tuple(remaining)

    def load_index(self, value: str, index: Indices, size: int, guards: tuple[Guard, ...]) -> Index:
        """The integer that a value holds, made an index into a dimension of `size` as gathers do."""
        node = self.at(value, index, guards)
        if isinstance(node, Literal):
            integer = int(node.value)
            return constant(min(max(integer + size if integer < 0 else integer, 0), max(size - 1, 0)))
        number = self._loaded.setdefault((node, size), len(self._loaded))
        return loaded(f"loaded{number}", 0, max(size - 1, 0), node.variables, (node, size))

    def _expand(self, value: str, index: Indices, guards: tuple[Guard, ...]) -> Node:
        source = self.sources.get(value)
        dtype = self.graph.types[value].dtype
        if isinstance(source, Registers):
            text = source.at.get(index)
            if text is None:
                raise NestError(f"{value} is read at {index}, not where it is computed")
            variables = source.variables.union(*(i.variables for i in index))
            return self._intern(("held", text), Held, dtype, variables, text=text)
        if isinstance(source, Memory):
            return self._read(source, source.offset(index), dtype, guards)
        if isinstance(source, Stage):
            self.stage_reads.setdefault((value, index))
            variables = _NONE.union(*(i.variables for i in index))
            return self._intern(("stage", value, index), Held, dtype, variables, text=value)
        if value in self.graph.constants:
            return self.literal(self.graph.constants[value], dtype)
        return self._compute(value, index, guards)

    def _compute(self, value: str, index: Indices, guards: tuple[Guard, ...]) -> Node:
        dtype = self.graph.types[value].dtype
        definition = self._definitions[value]
        types = [self.graph.types[v] for v in definition.inputs]
        name = definition.primitive
        if name in LAYOUT_READS:
            return self._layout(definition, types, index, guards)
        if name in GATHERS:

            def load(operand: int, at: Indices, size: int) -> Index:
                return self.load_index(definition.inputs[operand], at, size, guards)

            return self.at(definition.inputs[0], GATHERS[name](definition, types, index, load), guards)
        if TABLE[name].kind != "elementwise":
            raise NestError(f"{value} ({name}) is needed in the middle of a loop that does not compute it")
        args = tuple(self.at(v, index, guards) for v in definition.inputs)
        return self.apply(definition, args, dtype)

    def _layout(self, d: Definition, types: list[TensorType], index: Indices, guards: tuple[Guard, ...]) -> Node:
        cases = LAYOUT_READS[d.primitive](d, types, index)
        branches: list[tuple[tuple[Guard, ...], Node]] = []
        for case in cases:
            remaining = self.decide(case.guards)
            if remaining is None:
                continue
            if case.operand is None:
                node = self.literal(d.attribute("value"), types[0].dtype)
            else:
                inner = guards + tuple(g for g in remaining if g not in guards)
                node = self.at(d.inputs[case.operand], case.index, inner)
            branches.append((remaining, node))
            if not remaining:
                break
        result = branches[-1][1]
        for remaining, node in reversed(branches[:-1]):
            result = self.choose(remaining, node, result)
        return result

    def _read(self, memory: Memory, offset: Index, dtype: DType, guards: tuple[Guard, ...]) -> Node:
        variables = memory.variables | offset.variables | _NONE.union(*(g.index.variables for g in guards))
        key = ("read", memory.pointer, offset, guards, dtype)
        return self._intern(key, Read, dtype, variables, memory=memory, offset=offset, guards=guards)

    def _intern(
        self,
        key: tuple[object, ...],
        kind: type[Node],
        dtype: DType,
        variables: frozenset[str],
        args: tuple[Node, ...] = (),
        **fields: object,
    ) -> Node:
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = kind(dtype, variables, args, **fields)
        return found
