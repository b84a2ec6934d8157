"""What must be computed before what, when values have alternatives.

A value *needs* another when every way to compute it passes through the other. With one definition per value
these are its ancestors. Sets of values and of groups are Python integers used as bitsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from korch.candidates.groups import Group
from korch.ir.graph import Graph


def bits(of: int) -> Iterator[int]:
    """The positions of the ones, ascending."""
    while of:
        low = of & -of
        yield low.bit_length() - 1
        of ^= low


@dataclass(frozen=True)
class Dependence:
    """Bitsets over the values that leave groups (`number` counts them) and over groups.

    - `reads`, `makes`: the values that a group reads and computes.
    - `needs`: for each value, itself and all it needs.
    - `neighbours`: for each group, those that compute what it reads or read what it computes.
    - `rivals`: for each group, those (itself included) that compute a value of its.
    - `makers`, `takers`: for each value, the groups that compute it and those that read it.
    - `outputs`: the model's outputs; `certain`: the values that every plan computes.
    - `order`: the values, each after all that any of its groups reads. Alternatives may define values by each other
      (a = -b, b = -a): those on such circles, and what depends on them, are left out.
    """

    number: dict[str, int]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    needs: tuple[int, ...]
    neighbours: tuple[int, ...]
    rivals: tuple[int, ...]
    makers: tuple[int, ...]
    takers: tuple[int, ...]
    outputs: int
    certain: int
    order: tuple[int, ...]

    @property
    def circular(self) -> bool:
        """Whether some values are defined by each other."""
        return len(self.order) < len(self.number)


def dependence_of(graph: Graph, groups: Sequence[Group]) -> Dependence:
    """The dependence between groups. Values that no group computes (the model's inputs) are left out."""
    number: dict[str, int] = {}
    for g in groups:
        for v in g.values:
            number.setdefault(v, len(number))

    def bitset(values: Iterable[str]) -> int:
        found = 0
        for v in values:
            if v in number:
                found |= 1 << number[v]
        return found

    reads = tuple(bitset(g.reads) for g in groups)
    makes = tuple(bitset(g.values) for g in groups)
    makers, takers = [0] * len(number), [0] * len(number)
    for g in range(len(groups)):
        for v in bits(makes[g]):
            makers[v] |= 1 << g
        for v in bits(reads[g]):
            takers[v] |= 1 << g
    neighbours, rivals = [0] * len(groups), [0] * len(groups)
    for g in range(len(groups)):
        for v in bits(reads[g]):
            neighbours[g] |= makers[v]
        for v in bits(makes[g]):
            neighbours[g] |= takers[v]
            rivals[g] |= makers[v]
    needs = _needs(len(number), makers, reads)
    outputs, certain = bitset(graph.output_values), 0
    for v in bits(outputs):
        certain |= needs[v]
    return Dependence(
        number,
        reads,
        makes,
        tuple(needs),
        tuple(neighbours),
        tuple(rivals),
        tuple(makers),
        tuple(takers),
        outputs,
        certain,
        _order(reads, makes, makers, takers),
    )


def _order(reads: Sequence[int], makes: Sequence[int], makers: Sequence[int], takers: Sequence[int]) -> tuple[int, ...]:
    """Kahn's topological order of the values."""
    waiting = [sum(reads[g].bit_count() for g in bits(groups)) for groups in makers]
    ready = [v for v, count in enumerate(waiting) if not count]
    found: list[int] = []
    while ready:
        v = ready.pop()
        found.append(v)
        for g in bits(takers[v]):
            for w in bits(makes[g]):
                waiting[w] -= 1
                if not waiting[w]:
                    ready.append(w)
    return tuple(found)


def _needs(count: int, makers: Sequence[int], reads: Sequence[int]) -> list[int]:
    """The greatest solution of: needs(v) = {v} and what is common to all its groups' needs, each of which is
    the union over what the group reads. Starting from everything makes values that wait for each other right."""
    everything = (1 << count) - 1
    needs = [everything] * count
    changed = True
    while changed:
        changed = False
        for v in range(count):
            common = everything
            for g in bits(makers[v]):
                found = 0
                for r in bits(reads[g]):
                    found |= needs[r]
                common &= found
                if not common:
                    break
            common |= 1 << v
            if common != needs[v]:
                needs[v], changed = common, True
    return needs
