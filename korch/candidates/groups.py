"""Contraction: definitions that are always fused move through the enumeration as one group.

Three rules, lossless as long as fusing such definitions never hurts:

- What is computed from constants alone (by moving, repeating or elementwise) is *free*: every candidate that
  needs it computes it again, and it is never written to memory.
- A broadcast of a computed value is computed inside each elementwise consumer.
- Elementwise groups that only one elementwise group reads, of the same shape, join it where the whole then reads
  no more than one of them did: the chains x -> relu -> neg, x * sigmoid(x), relu(a + b).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from korch.ir.graph import Graph
from korch.ir.primitives import TABLE

# Why the backend cannot make one kernel of these definitions (ascending indices); None when it can.
Fusible = Callable[[Graph, Sequence[int]], str | None]

_FREE_KINDS = frozenset({"elementwise", "broadcast", "layout"})


@dataclass(frozen=True, slots=True)
class Group:
    """Definitions that stay together. `own` belong to this group alone; `definitions` also has the free and
    the broadcast ones that it computes for itself (all ascending). `reads` are the values it takes from outside
    (constants are not listed), `values` those that others may take from it."""

    own: tuple[int, ...]
    definitions: tuple[int, ...]
    reads: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Grouping:
    """`groups` in the order of the graph. `absorbed` has, for each definition of the graph, the free and
    broadcast definitions that are computed inside whatever kernel holds it."""

    groups: tuple[Group, ...]
    absorbed: tuple[tuple[int, ...], ...]

    def closed(self, definitions: Iterable[int]) -> tuple[int, ...]:
        """The definitions together with what they absorb, ascending."""
        found = set(definitions)
        for d in tuple(found):
            found.update(self.absorbed[d])
        return tuple(sorted(found))


def reads_of(graph: Graph, definitions: Iterable[int]) -> tuple[str, ...]:
    """What the definitions read and none of them computes, constants left out, in order of first use."""
    members = tuple(definitions)
    made = {v for d in members for v in graph.definitions[d].outputs}
    read = (v for d in members for v in graph.definitions[d].inputs)
    return tuple(dict.fromkeys(v for v in read if v not in made and v not in graph.constants))


def live_definitions(graph: Graph) -> frozenset[int]:
    """The definitions that may take part in computing an output, alternatives included."""
    definers = graph.definers()
    found: set[int] = set()
    waiting = list(graph.output_values)
    seen = set(waiting)
    while waiting:
        for d in definers.get(waiting.pop(), ()):
            found.add(d)
            fresh = [v for v in graph.definitions[d].inputs if v not in seen]
            seen.update(fresh)
            waiting.extend(fresh)
    return frozenset(found)


def groups_of(graph: Graph, fusible: Fusible | None = None, limit: int = 32) -> Grouping:
    """The groups of a graph, none of more than `limit` own definitions.

    `fusible` decides whether a reduction, a layout change or a linear primitive can compute its free inputs
    itself; without it that is assumed.
    """
    live = live_definitions(graph)
    absorbed = _absorbed(graph, live, fusible)
    users = {v: tuple(d for d in ids if d in live) for v, ids in graph.users().items()}
    alone = _standing_alone(graph, live, absorbed, users)
    parts = _contract(graph, alone, absorbed, users, limit)
    groups: list[Group] = []
    for own in parts:
        definitions = tuple(sorted({*own, *(a for d in own for a in absorbed[d])}))
        groups.append(Group(own, definitions, reads_of(graph, definitions), graph.definitions[own[-1]].outputs))
    return Grouping(tuple(groups), tuple(absorbed))


def _free(graph: Graph, live: frozenset[int]) -> set[int]:
    """The definitions that depend on constants alone."""
    known, free = set(graph.constants), set[int]()
    for i, d in enumerate(graph.definitions):
        if i in live and TABLE[d.primitive].kind in _FREE_KINDS and known.issuperset(d.inputs):
            free.add(i)
            known.update(d.outputs)
    return free


def _absorbed(graph: Graph, live: frozenset[int], fusible: Fusible | None) -> list[tuple[int, ...]]:
    """For each definition, what it computes for itself."""
    free, definers = _free(graph, live), graph.definers()
    found: list[tuple[int, ...]] = [()] * len(graph)
    for i, d in enumerate(graph.definitions):
        kind = TABLE[d.primitive].kind
        if i not in live or kind in ("opaque", "gather"):
            continue
        taken: set[int] = set()
        for v in d.inputs:
            makers = [m for m in definers.get(v, ()) if m in live]
            if not makers or makers[0] >= i:
                continue
            repeated = len(makers) == 1 and graph.definitions[makers[0]].primitive == "broadcast"
            if free.issuperset(makers) or (repeated and kind in ("elementwise", "broadcast")):
                taken.update((makers[0], *found[makers[0]]))
        if taken and kind not in ("elementwise", "broadcast") and fusible is not None and i not in free:
            taken = set() if fusible(graph, tuple(sorted({*taken, i}))) else taken
        found[i] = tuple(sorted(taken))
    return found


def _standing_alone(
    graph: Graph,
    live: frozenset[int],
    absorbed: Sequence[tuple[int, ...]],
    users: Mapping[str, tuple[int, ...]],
) -> list[int]:
    """The definitions that need a group: all but those that every user computes for itself."""
    outputs = set(graph.output_values)
    found: list[int] = []
    for i, d in enumerate(graph.definitions):
        if i not in live:
            continue
        takers = [u for v in d.outputs for u in users[v]]
        needed = not takers or not outputs.isdisjoint(d.outputs)
        if needed or any(i not in absorbed[u] for u in takers):
            found.append(i)
    return found


def _contract(
    graph: Graph,
    alone: Sequence[int],
    absorbed: Sequence[tuple[int, ...]],
    users: Mapping[str, tuple[int, ...]],
    limit: int,
) -> list[tuple[int, ...]]:
    """The own definitions of every group, in the order of their last ones."""
    parts = _Parts(graph, users, limit)
    for i in alone:
        parts.add(i, set(reads_of(graph, sorted({i, *absorbed[i]}))))
        while parts.take_in(i):
            pass
    return sorted((tuple(sorted(own)) for own in parts.members.values()), key=lambda own: own[-1])


class _Parts:
    """The groups found so far, each named by its last definition, the root."""

    def __init__(self, graph: Graph, users: Mapping[str, tuple[int, ...]], limit: int) -> None:
        self.members: dict[int, list[int]] = {}
        self._graph, self._users, self._limit = graph, users, limit
        self._definers = graph.definers()
        self._outputs = frozenset(graph.output_values)
        self._reads: dict[int, set[str]] = {}
        self._root: dict[int, int] = {}

    def add(self, definition: int, reads: set[str]) -> None:
        self.members[definition], self._reads[definition] = [definition], reads
        self._root[definition] = definition

    def take_in(self, root: int) -> bool:
        """Merges into a group those that only it reads, where it then reads no more than one of them did alone.
        Whether there were any."""
        if TABLE[self._graph.definitions[root].primitive].kind != "elementwise":
            return False
        inner = [p for p in map(self._inner, sorted(self._reads[root])) if p is not None]
        inner = [p for p in dict.fromkeys(inner) if self._alike(p, root) and self._only_reader(p) == root]
        return any(self._merge(root, chosen) for chosen in (inner, *([p] for p in inner if len(inner) > 1)))

    def _inner(self, value: str) -> int | None:
        makers = self._definers.get(value, ())
        return self._root.get(makers[0]) if len(makers) == 1 and value not in self._outputs else None

    def _only_reader(self, root: int) -> int | None:
        (value,) = self._graph.definitions[root].outputs
        readers = {self._root.get(u) for u in self._users[value]}
        return readers.pop() if len(readers) == 1 else None

    def _alike(self, root: int, other: int) -> bool:
        graph = self._graph
        one, two = graph.definitions[root], graph.definitions[other]
        elementwise = TABLE[one.primitive].kind == "elementwise"
        return elementwise and graph.types[one.outputs[0]].shape == graph.types[two.outputs[0]].shape

    def _merge(self, root: int, others: Sequence[int]) -> bool:
        made = {self._graph.definitions[p].outputs[0] for p in others}
        reads = (self._reads[root] - made).union(*(self._reads[p] for p in others))
        size = len(self.members[root]) + sum(len(self.members[p]) for p in others)
        if size > self._limit or not any(reads <= self._reads[p] for p in others):
            return False
        for p in others:
            for member in self.members.pop(p):
                self._root[member] = root
                self.members[root].append(member)
        self._reads[root] = reads
        return True
