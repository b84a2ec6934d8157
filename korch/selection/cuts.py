"""Cover rows that a relaxed solution breaks.

Every plan computes certain values, so it has a column that computes such a value by one of its groups. That column
either reads what the group reads, which then exists, or computes that too:

- *edge rows*: for a group h that every plan runs, a value v that it reads, and a set S of layouts of v: the sum of
  y_r over the resources r of v in S, plus the sum of x_c over the columns that compute h and read none of them, is
  at least 1;
- *alternatives*: for a value with several groups, each of which may or may not run: the same summed over all of
  them, with v chosen for each; or instead of a group's part such a sum for a value that it reads.

All plans that run satisfy them, recomputation included. Fractional solutions break them where they split one group
over many columns that each read a little of a value of which there is only a little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from korch.candidates.dependence import bits
from korch.selection.program import Program, Row, Vector, row

# A group, and resources: the columns that hold the group and read none of them, and the resources themselves.
Part = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Cutter:
    """`pairs` are (group, value, resource of the value) with the columns that hold the group and read the resource,
    all in one array cut at `starts`; `always` the groups that every plan runs; `targets` the values with several
    groups that every plan computes, and the outputs."""

    program: Program
    pairs: tuple[tuple[int, int, int], ...]
    starts: NDArray[np.int64]
    columns: NDArray[np.int64]
    held: tuple[NDArray[np.int64], ...]
    always: frozenset[int]
    targets: tuple[int, ...]

    def broken(self, solution: Vector, slack: float = 0.02) -> list[Row]:
        """The rows that a solution (a number for each variable) misses by more than `slack`."""
        through = self._through(solution)
        total = [float(solution[columns].sum()) for columns in self.held]
        edges: dict[tuple[int, int], tuple[float, Part]] = {}
        for (g, v, r), amount in zip(self.pairs, through, strict=True):
            less = float(solution[self.program.exists(r)]) - float(amount)
            if less < 0:
                sofar, (_, resources) = edges.get((g, v), (total[g], (g, ())))
                edges[g, v] = (sofar + less, (g, (*resources, r)))
        chosen: list[tuple[Part, ...]] = [
            (part,) for (g, _), (amount, part) in edges.items() if g in self.always and amount < 1 - slack
        ]
        chosen.extend(parts for amount, parts in self._cheapest(total, edges) if amount < 1 - slack)
        return [self._row(parts) for parts in dict.fromkeys(chosen)]

    def _through(self, solution: Vector) -> Vector:
        """For each pair, how much the columns that hold the group and read the resource are used."""
        if not self.pairs:
            return np.zeros(0)
        return np.add.reduceat(solution[self.columns], self.starts)

    def _cheapest(
        self, total: list[float], edges: dict[tuple[int, int], tuple[float, Part]]
    ) -> Iterator[tuple[float, tuple[Part, ...]]]:
        """For each target, the least sum found, and its parts."""
        if not self.targets:
            return
        d = self.program.dependence
        by_value: list[tuple[float, tuple[Part, ...]]] = [(np.inf, ())] * len(d.makers)
        for v in d.order:
            amount, parts = 0.0, list[Part]()
            for g in bits(d.makers[v]):
                best = (total[g], ((g, ()),))
                for r in bits(d.reads[g]):
                    local = edges.get((g, r))
                    best = min(best, by_value[r], *([(local[0], (local[1],))] if local else []))
                amount += best[0]
                parts.extend(best[1])
            by_value[v] = (amount, tuple(dict.fromkeys(parts)))
        yield from (by_value[v] for v in self.targets)

    def _row(self, parts: Iterable[Part]) -> Row:
        terms: dict[int, float] = {}
        for g, resources in parts:
            without = set(resources)
            terms.update((self.program.exists(r), 1.0) for r in resources)
            terms.update((c, 1.0) for c in self.program.holds[g] if without.isdisjoint(self.program.reads[c]))
        return row(terms.items(), 1.0)


def cutter_of(program: Program) -> Cutter:
    """What is needed to look for broken rows, prepared once."""
    d = program.dependence
    through: dict[tuple[int, int, int], list[int]] = {}
    for g, columns in enumerate(program.holds):
        for c in columns:
            for r in program.reads[c]:
                v = d.number.get(program.resources[r].value)
                if v is not None and d.reads[g] >> v & 1:
                    through.setdefault((g, v, r), []).append(c)
    counts = [len(columns) for columns in through.values()]
    always = frozenset(d.makers[v].bit_length() - 1 for v in bits(d.certain) if d.makers[v].bit_count() == 1)
    several = [v for v in range(len(d.makers)) if d.makers[v].bit_count() > 1]
    targets = {*bits(d.outputs), *(v for v in several if d.certain >> v & 1)} if several else set[int]()
    return Cutter(
        program,
        tuple(through),
        np.cumsum([0, *counts[:-1]], dtype=np.int64),
        np.array([c for columns in through.values() for c in columns], dtype=np.int64),
        tuple(np.array(columns, dtype=np.int64) for columns in program.holds),
        always,
        tuple(sorted(targets)),
    )
