"""Rewrite rules that add equivalent definitions of a value; the program of `korch.selection` chooses among them.

Rules are tried on every definition, those that rules have added included, in rounds, so that one rule's result may be
another's pattern. Growth is bounded by `Caps`; what a cap kept out is reported like a refusal.

Equal things exist once: a new definition that computes what an existing one computes takes that one's value, and
equal constants are one constant. So what several values share (a merged matrix product, say) is shared by
construction, whichever of them a rule looked at.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import TensorType

EXACT = "exact"  # every element keeps its class (finite, NaN, infinity) and sign
REASSOCIATES = "reassociates"  # changes rounding

_Signature = tuple[str, tuple[str, ...], tuple[tuple[str, Attribute], ...]]


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds on growth: `rounds` of trying all rules; `per_value` definitions added to one value of the model;
    `share` is how many definitions may be added in all, as a multiple of the model's (at least `least`)."""

    rounds: int = 4
    per_value: int = 4
    share: float = 1.0
    least: int = 256


class Match:
    """The graph as it grows, with what rules ask about it. Rules only read it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = dict(graph.types)
        self.constants = dict(graph.constants)
        self.definitions = list(graph.definitions)
        self.born = ["model"] * len(graph.definitions)
        self._definers: dict[str, list[int]] = {}
        self._users: dict[str, list[int]] = {}
        self._known: dict[_Signature, str] = {}
        self._constant_names: dict[str, str] = {}
        self._outputs = frozenset(graph.output_values)
        for i, d in enumerate(self.definitions):
            self._index(i, d)

    def definition(self, value: str, primitive: str) -> Definition | None:
        """The first definition of a value by that primitive."""
        return next((d for d in self.definers(value) if d.primitive == primitive), None)

    def definers(self, value: str) -> list[Definition]:
        """All definitions of a value, the model's own first."""
        return [self.definitions[i] for i in self._definers.get(value, ())]

    def users(self, value: str) -> list[Definition]:
        """The definitions that read a value."""
        return [self.definitions[i] for i in self._users.get(value, ())]

    def siblings(self, d: Definition) -> list[Definition]:
        """The definitions by the same primitive that read the same first input and came into being alike: both are
        the model's, or one rule added both."""
        born = self.rule_of(d)
        ids = self._users.get(d.inputs[0], ())
        return [
            self.definitions[i]
            for i in ids
            if self.born[i] == born
            and self.definitions[i].primitive == d.primitive
            and self.definitions[i].inputs[0] == d.inputs[0]
        ]

    def rule_of(self, d: Definition) -> str:
        """The rule that added a definition; `model` for the model's own."""
        return self.born[self._place(d)]

    def used_elsewhere(self, value: str, by: Definition) -> bool:
        """Whether the model needs the value for anything but one definition."""
        return value in self._outputs or any(
            self.definitions[i] != by and self.born[i] == "model" for i in self._users.get(value, ())
        )

    def is_output(self, value: str) -> bool:
        return value in self._outputs

    def shape(self, value: str) -> tuple[int, ...]:
        return self.types[value].shape

    def constant(self, value: str) -> np.ndarray | None:
        """A constant's array; a broadcast of a constant counts as one (with strides of 0)."""
        if value in self.constants:
            return self.constants[value]
        d = self.definition(value, "broadcast")
        if d is None or d.inputs[0] not in self.constants:
            return None
        small = self.constants[d.inputs[0]]
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

    def existing(self, signature: _Signature) -> str | None:
        """The value that a definition equal to this one computes."""
        return self._known.get(signature)

    def constant_name(self, array: np.ndarray) -> str | None:
        """The name of an equal constant that a rule made before."""
        return self._constant_names.get(_digest(array))

    def depends(self, values: Iterable[str], on: str) -> bool:
        """Whether any way to compute one of the values passes through `on`."""
        waiting = list(values)
        seen = set(waiting)
        while waiting:
            value = waiting.pop()
            if value == on:
                return True
            for i in self._definers.get(value, ()):
                fresh = [v for v in self.definitions[i].inputs if v not in seen]
                seen.update(fresh)
                waiting.extend(fresh)
        return False

    def absorb(self, new: Replacement, rule: str) -> None:
        """Takes up the definitions of a replacement."""
        self.types.update(new.types)
        self.constants.update(new.constants)
        self._constant_names.update((_digest(array), name) for name, array in new.constants.items())
        for d in new.definitions:
            self.definitions.append(d)
            self.born.append(rule)
            self._index(len(self.definitions) - 1, d)

    def extended(self) -> Graph:
        """The graph with everything added, each definition before the users of its values."""
        definitions = [self.definitions[i] for i in self._order()]
        read = {v for d in definitions for v in d.inputs}
        model = self.graph
        constants = {v: a for v, a in self.constants.items() if v in model.constants or v in read}
        return Graph(self.types, model.inputs, model.outputs, tuple(definitions), constants)

    def _place(self, d: Definition) -> int:
        return next(i for i in self._definers[d.outputs[0]] if self.definitions[i] == d)

    def _index(self, i: int, d: Definition) -> None:
        for v in d.outputs:
            self._definers.setdefault(v, []).append(i)
        for v in dict.fromkeys(d.inputs):
            self._users.setdefault(v, []).append(i)
        if len(d.outputs) == 1:
            self._known.setdefault((d.primitive, d.inputs, d.attributes), d.outputs[0])

    def _order(self) -> list[int]:
        """A topological order, earlier definitions first: the model's own of a value, its alternatives, its users."""
        before = [{i for v in d.inputs for i in self._definers.get(v, ())} for d in self.definitions]
        for ids in self._definers.values():
            for i in ids[1:]:
                before[i].add(ids[0])
        after: list[list[int]] = [[] for _ in self.definitions]
        for i, needed in enumerate(before):
            for j in needed:
                after[j].append(i)
        waiting = [len(needed) for needed in before]
        ready = [i for i, count in enumerate(waiting) if not count]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            i = heapq.heappop(ready)
            found.append(i)
            for j in after[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    heapq.heappush(ready, j)
        assert len(found) == len(self.definitions), "alternatives define values by each other"
        return found


def _digest(array: np.ndarray) -> str:
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.blake2b(array.tobytes(), key=head[:64], digest_size=16).hexdigest()


@dataclass
class Replacement:
    """New definitions that compute an existing value. `emit` names fresh values; `end` defines the value itself."""

    match: Match
    prefix: str
    origin: str
    definitions: list[Definition] = field(default_factory=list[Definition])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    _known: dict[_Signature, str] = field(default_factory=dict[_Signature, str])

    def constant(self, array: np.ndarray) -> str:
        """A constant with these contents."""
        existing = self.match.constant_name(array)
        if existing is not None:
            return existing
        name = f"{self.prefix}k{len(self.constants)}"
        self.constants[name] = array if array.flags.c_contiguous else array.copy()
        self.types[name] = TensorType.of(array)
        return name

    def filled(self, value: float, like: str) -> str:
        """A constant of one number, broadcast to the type of `like`."""
        t = self.type_of(like)
        scalar = self.constant(np.array(value, t.dtype.numpy))
        return self.emit("broadcast", scalar, shape=t.shape, axes=())

    def along(self, vector: np.ndarray, axis: int, like: str) -> str:
        """A constant vector along one axis, rounded to the dtype of `like` and broadcast to its shape."""
        t = self.type_of(like)
        if vector.size and bool((vector == vector[0]).all()) and not np.signbit(vector).any():
            return self.filled(float(vector[0]), like)
        return self.emit("broadcast", self.constant(vector.astype(t.dtype.numpy)), shape=t.shape, axes=(axis,))

    def type_of(self, value: str) -> TensorType:
        return self.types[value] if value in self.types else self.match.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        return self.type_of(value).shape

    def emit(self, primitive: str, *inputs: str, **attributes: Attribute) -> str:
        """A value computed so: an existing one where there is one, else a fresh one."""
        signature = (primitive, inputs, tuple(sorted(attributes.items())))
        existing = self.match.existing(signature) or self._known.get(signature)
        if existing is not None:
            return existing
        name = f"{self.prefix}{len(self.definitions)}"
        self._define(name, primitive, inputs, attributes)
        self._known[signature] = name
        return name

    def again(self, d: Definition, *inputs: str, **changed: Attribute) -> str:
        """The same primitive on other inputs, with some attributes changed."""
        return self.emit(d.primitive, *inputs, **{**dict(d.attributes), **changed})

    def end(self, value: str, primitive: str, *inputs: str, **attributes: Attribute) -> Replacement:
        """Defines the value itself; what an existing value holds is taken from there, which costs nothing."""
        existing = self.match.existing((primitive, inputs, tuple(sorted(attributes.items()))))
        if existing is not None and existing != value:
            return self.equal(value, existing)
        self._define(value, primitive, inputs, attributes)
        return self

    def equal(self, value: str, existing: str) -> Replacement:
        """Defines the value as the same as another one: a reshape to the shape it has, which is an alias."""
        self._define(value, "reshape", (existing,), {"shape": self.shape(existing)})
        return self

    def finish(self, value: str, computed: str) -> Replacement:
        """Defines the value as what was just computed: by the last definition itself where that is fresh."""
        last = self.definitions[-1] if self.definitions else None
        if last is None or last.outputs != (computed,):
            return self.equal(value, computed)
        self.definitions.pop()
        found = self.types.pop(computed)
        assert found == self.match.types[value], (value, found, self.match.types[value])
        self.definitions.append(Definition(last.primitive, last.inputs, (value,), last.attributes, self.origin))
        return self

    def _define(self, value: str, primitive: str, inputs: tuple[str, ...], attributes: Mapping[str, Attribute]) -> None:
        (inferred,) = TABLE[primitive].infer([self.type_of(v) for v in inputs], attributes)
        if value in self.match.types:
            assert self.match.types[value] == inferred, (value, inferred, self.match.types[value])
        else:
            self.types[value] = inferred
        self.definitions.append(Definition(primitive, inputs, (value,), tuple(sorted(attributes.items())), self.origin))


Apply = Callable[[Match, Definition, Replacement], Replacement | str]


@dataclass(frozen=True)
class Rule:
    """`apply` looks at one definition by a primitive of `roots` and gives its replacement, or the reason why not.

    An empty reason means that the pattern is not there at all; any other is shown by `korch explain --rules`.
    """

    label: str
    roots: tuple[str, ...]
    apply: Apply

    @property
    def name(self) -> str:
        return self.apply.__name__

    @property
    def equation(self) -> str:
        """The docstring's first paragraph."""
        text = (self.apply.__doc__ or "").split("\n\n")[0]
        return " ".join(text.split())


@dataclass(frozen=True)
class Firing:
    """Where a rule was tried: `reason` is None where it fired."""

    rule: str
    value: str
    origin: str
    reason: str | None


def add_alternatives(graph: Graph, rules: Sequence[Rule], caps: Caps | None = None) -> tuple[Graph, tuple[Firing, ...]]:
    """The graph with every definition that a rule adds, and where each rule fired or why it did not.

    A rule fires at most once on one definition; a refusal is tried again in the next round.
    """
    caps = caps or Caps()
    match = Match(graph)
    by_root: dict[str, list[Rule]] = {}
    for rule in rules:
        for root in rule.roots:
            by_root.setdefault(root, []).append(rule)
    firings: dict[tuple[str, int], Firing] = {}
    added: Counter[str] = Counter()
    for _ in range(caps.rounds):
        before = len(match.definitions)
        for i in range(before):
            d = match.definitions[i]
            for rule in by_root.get(d.primitive, ()):
                at = (rule.name, i)
                if at in firings and firings[at].reason is None:
                    continue
                reason = _try(match, rule, d, caps, added, f"a{len(match.definitions)}_")
                if reason != "":
                    firings[at] = Firing(rule.name, d.outputs[0], d.origin, reason)
        if len(match.definitions) == before:
            break
    if len(match.definitions) == len(graph.definitions):
        return graph, tuple(firings.values())
    return match.extended(), tuple(firings.values())


def _try(match: Match, rule: Rule, d: Definition, caps: Caps, added: Counter[str], prefix: str) -> str | None:
    """None when the rule fired, else the reason; empty when there is nothing to say."""
    result = rule.apply(match, d, Replacement(match, prefix, d.origin))
    if isinstance(result, str):
        return result
    value, last = d.outputs[0], result.definitions[-1]
    if last in match.definers(value):
        return ""
    if match.depends((v for x in result.definitions for v in x.inputs), value):
        return "the value would be defined by itself"
    if added[value] >= caps.per_value:
        return f"cap: the value has {caps.per_value} alternatives already"
    model = len(match.graph.definitions)
    if len(match.definitions) + len(result.definitions) > model + max(caps.least, int(caps.share * model)):
        return "cap: the graph has grown by as much as it may"
    added[value] += 1
    match.absorb(result, rule.name)
    return None
