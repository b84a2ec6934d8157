"""Enumeration: all connected convex sets of groups that the backend can fuse, up to stated caps.

The paper defines a candidate as the difference of two execution states, an execution state being a set of
definitions that contains all it depends on. Those are the convex sets. Here they are grown one group at a time,
smallest first: every connected convex set of n groups contains one of n - 1 (leave out a source or a sink that
does not hold it together), so under a predicate that also accepts the parts of what it accepts nothing is missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from korch.candidates.dependence import Dependence, bits, dependence_of
from korch.candidates.groups import Fusible, Group
from korch.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Caps:
    """`groups` in one set; sets that share their first or their last group (`per_seed`, the smallest are kept);
    sets in all (`total`)."""

    groups: int = 16
    per_seed: int = 128
    total: int = 40_000


@dataclass(frozen=True)
class Enumeration:
    """`sets` are bitsets over the groups, smallest first.

    `caps` are those that held in the end: when the sets of n groups would exceed `total`, the enumeration stops
    at n - 1 groups. `crowded` counts the groups whose sets were cut at `per_seed`; where either cap took effect,
    `grown` larger sets were added by growing each single group greedily. `refused` counts the backend's reasons.
    """

    sets: tuple[int, ...]
    caps: Caps
    crowded: int = 0
    grown: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class _Growth:
    """One run's memory: the predicate's answers, and the sets counted by their first and last groups."""

    graph: Graph
    groups: Sequence[Group]
    dependence: Dependence
    fusible: Fusible
    answers: dict[int, bool] = field(default_factory=dict[int, bool])
    refused: Counter[str] = field(default_factory=Counter[str])

    def accepts(self, chosen: int) -> bool:
        """Whether the set is convex and the backend fuses it."""
        known = self.answers.get(chosen)
        if known is None:
            known = self._convex(chosen) and self._fuses(chosen)
            self.answers[chosen] = known
        return known

    def neighbours(self, chosen: int) -> int:
        """The groups that may join: connected, and not a second definition of a value computed inside."""
        near, taken = 0, 0
        for g in bits(chosen):
            near |= self.dependence.neighbours[g]
            taken |= self.dependence.rivals[g]
        return near & ~taken & ~chosen

    def _convex(self, chosen: int) -> bool:
        d, read, made = self.dependence, 0, 0
        for g in bits(chosen):
            read |= d.reads[g]
            made |= d.makes[g]
        if any(d.needs[v] & made for v in bits(read & ~made)):
            return False
        return not d.circular or self._computable(chosen, made)

    def _computable(self, chosen: int, made: int) -> bool:
        """Whether the groups can be computed one after the other: none defines a value by itself."""
        d, left = self.dependence, list(bits(chosen))
        while left:
            waiting = [g for g in left if d.reads[g] & made]
            if len(waiting) == len(left):
                return False
            for g in left:
                if not d.reads[g] & made:
                    made &= ~d.makes[g]
            left = waiting
        return True

    def _fuses(self, chosen: int) -> bool:
        definitions = {d for g in bits(chosen) for d in self.groups[g].definitions}
        reason = self.fusible(self.graph, tuple(sorted(definitions)))
        if reason is not None:
            self.refused[reason] += 1
        return reason is None


def enumerate_sets(
    graph: Graph,
    groups: Sequence[Group],
    fusible: Fusible,
    caps: Caps | None = None,
    dependence: Dependence | None = None,
) -> Enumeration:
    """Every connected convex set of groups that `fusible` accepts, up to the caps.

    A set never holds two definitions of one value. Single groups are always in, whatever the backend says: it is
    for the costs to show that one cannot be made.
    """
    asked = caps or Caps()
    growth = _Growth(graph, groups, dependence or dependence_of(graph, groups), fusible)
    level = [1 << g for g in range(len(groups))]
    sets, size = list(level), 1
    counts, crowded = [0] * len(groups), set[int]()
    while level and size < asked.groups and len(sets) <= asked.total:
        level = _next_level(growth, level, asked.per_seed, counts, crowded)
        sets.extend(level)
        size += 1
    reached, seeds = asked.groups, sorted(crowded)
    if size > 1 and len(sets) > asked.total:
        del sets[len(sets) - len(level) :]
        reached, seeds = size - 1, range(len(groups))
    known = set(sets)
    grown = [s for g in seeds for s in _greedy(growth, g, asked.groups) if s not in known]
    sets.extend(dict.fromkeys(grown))
    return Enumeration(tuple(sets), replace(asked, groups=reached), len(crowded), len(set(grown)), growth.refused)


def _next_level(
    growth: _Growth, level: Sequence[int], per_seed: int, counts: list[int], crowded: set[int]
) -> list[int]:
    """The sets with one group more. `counts` has for each group the sets that it is the first or the last of."""
    found: list[int] = []
    seen: set[int] = set()
    for chosen in level:
        for g in bits(growth.neighbours(chosen)):
            larger = chosen | (1 << g)
            if larger in seen:
                continue
            seen.add(larger)
            ends = ((larger & -larger).bit_length() - 1, larger.bit_length() - 1)
            full = [e for e in ends if counts[e] >= per_seed]
            if full:
                crowded.update(full)
            elif growth.accepts(larger):
                found.append(larger)
                for e in ends:
                    counts[e] += 1
    return found


def _greedy(growth: _Growth, seed: int, size: int) -> list[int]:
    """The sets on the way of one group that takes in its neighbours, the earliest first, while it can."""
    chosen, found = 1 << seed, list[int]()
    while chosen.bit_count() < size:
        larger = (chosen | (1 << g) for g in bits(growth.neighbours(chosen)))
        taken = next((s for s in larger if growth.accepts(s)), None)
        if taken is None:
            break
        chosen = taken
        found.append(chosen)
    return found


def by_execution_states(graph: Graph) -> frozenset[frozenset[int]]:
    """The paper's candidates: all differences of two execution states, as sets of definitions, the empty one left
    out. For tests, on graphs of a dozen definitions with one definition per value."""
    states = {frozenset[int]()}
    definers = graph.definers()
    for i, d in enumerate(graph.definitions):
        before = {m for v in d.inputs for m in definers.get(v, ())}
        states.update([s | {i} for s in states if before <= s])
    return frozenset(b - a for a in states for b in states if a < b)
