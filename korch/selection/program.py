"""The binary program: which columns make the cheapest plan that runs.

Variables: x_c, column c is used, and y_r, resource r exists. The model's inputs and the constants always exist.
Minimise the sum of cost times use, subject to these rows (all written as: sum >= bound):

- *supply*: y_r <= the sum of x_c over the columns that write r; y_r = 1 for what the model returns;
- *needs*: for each set O of resources and each resource r, the sum of x_c over the columns that write exactly O
  and read r is at most y_r. (Of two columns that write the same, the later one is useless, so this loses
  nothing, and it is tighter than one row for each column.)
- *covers*: for each value that every plan computes, at least one column computes it. More of these, which are
  added when a relaxed solution breaks them, are in `korch.selection.cuts`;
- *once*, where the candidates ask for it: at most one column computes a group;
- *loops*: a resource of a set U exists only if some column writes into U without reading from it: whatever
  writes the first of them cannot wait for another. From the start for the layouts of each value, which can be
  copied into each other; for other sets when a solution has a circle (`korch.selection.order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from korch.candidates.build import Candidates
from korch.candidates.candidate import Candidate
from korch.candidates.dependence import Dependence, bits, dependence_of
from korch.ir.layout import Layout, Resource

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """The sum of coefficient times variable is at least `bound`. Variables are numbered columns first."""

    variables: tuple[int, ...]
    coefficients: tuple[float, ...]
    bound: float = 0.0


@dataclass(frozen=True)
class Program:
    """The program without its costs.

    `reads` and `writes` have for each column the numbers of the resources (each once; the given ones, which
    always exist, are left out). Every plan that runs and has no useless columns satisfies the `rows`. `holds` has
    for each group the columns that compute its last definition, and so its values.
    """

    columns: tuple[Candidate, ...]
    resources: tuple[Resource, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    required: frozenset[int]
    rows: tuple[Row, ...]
    dependence: Dependence
    holds: tuple[tuple[int, ...], ...]

    @property
    def variables(self) -> int:
        return len(self.columns) + len(self.resources)

    def exists(self, resource: int) -> int:
        """The variable y_r."""
        return len(self.columns) + resource


@dataclass(frozen=True)
class Solution:
    """`chosen` columns, ascending; their cost; a lower bound on the cost of every plan; and the relative
    difference of the two."""

    chosen: tuple[int, ...]
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        return relative_gap(self.objective, self.bound)


def relative_gap(objective: float, bound: float) -> float:
    """The share of its cost that a plan may be from the best one; 1 for no plan at all (infinity)."""
    if objective <= bound:
        return 0.0
    return 1.0 if objective == np.inf else (objective - bound) / objective


def program_of(candidates: Candidates) -> Program:
    """The program over a graph's candidates."""
    graph, columns = candidates.graph, candidates.columns
    given = {Resource(v, Layout.row_major(graph.types[v].shape)) for v in graph.input_values}
    number: dict[Resource, int] = {}
    for column in columns:
        for r in (*column.inputs, *column.outputs):
            if r not in given:
                number.setdefault(r, len(number))
    wanted = {
        Resource(v, Layout.row_major(graph.types[v].shape)) for v in graph.output_values if v not in graph.constants
    } - given
    for r in sorted(wanted):
        number.setdefault(r, len(number))
    reads = tuple(tuple(dict.fromkeys(number[r] for r in c.inputs if r not in given)) for c in columns)
    writes = tuple(tuple(sorted({number[r] for r in c.outputs if r not in given})) for c in columns)
    dependence = dependence_of(graph, candidates.grouping.groups)
    group_of = {g.own[-1]: k for k, g in enumerate(candidates.grouping.groups)}
    holds: list[list[int]] = [[] for _ in group_of]
    for c, column in enumerate(columns):
        for d in column.definitions:
            if d in group_of:
                holds[group_of[d]].append(c)
    program = Program(
        columns,
        tuple(number),
        reads,
        writes,
        frozenset(number[r] for r in wanted),
        (),
        dependence,
        tuple(map(tuple, holds)),
    )
    once = _once(program, candidates) if candidates.once else ()
    rows = (*_supply(program), *_needs(program), *_covers(program), *once, *_layout_loops(program))
    return replace(program, rows=rows)


def row(terms: Iterable[tuple[int, float]], bound: float = 0.0) -> Row:
    """A row of terms (variable, coefficient), each variable once."""
    pairs = tuple(terms)
    return Row(tuple(v for v, _ in pairs), tuple(k for _, k in pairs), bound)


def _at_most(program: Program, columns: Iterable[int], resource: int) -> Row:
    """The sum of the columns is at most y_r."""
    return row([(program.exists(resource), 1.0), *((c, -1.0) for c in columns)])


def _supply(program: Program) -> Iterator[Row]:
    makers: list[list[int]] = [[] for _ in program.resources]
    for c, written in enumerate(program.writes):
        for r in written:
            makers[r].append(c)
    for r, columns in enumerate(makers):
        yield row([(program.exists(r), -1.0), *((c, 1.0) for c in columns)])


def _needs(program: Program) -> Iterator[Row]:
    sharing: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for c, read in enumerate(program.reads):
        for r in read:
            sharing.setdefault((program.writes[c], r), []).append(c)
    for (_, r), columns in sharing.items():
        yield _at_most(program, columns, r)


def _covers(program: Program) -> Iterator[Row]:
    for v in bits(program.dependence.certain):
        holders = dict.fromkeys(c for g in bits(program.dependence.makers[v]) for c in program.holds[g])
        yield row(((c, 1.0) for c in holders), 1.0)


def _once(program: Program, candidates: Candidates) -> Iterator[Row]:
    grouping = candidates.grouping
    absorbed = {d for some in grouping.absorbed for d in some}  # what everyone computes for himself
    for group, columns in zip(grouping.groups, program.holds, strict=True):
        if group.own[-1] not in absorbed:
            yield row(((c, -1.0) for c in columns), -1.0)


def _layout_loops(program: Program) -> Iterator[Row]:
    places: dict[str, list[int]] = {}
    for r, resource in enumerate(program.resources):
        places.setdefault(resource.value, []).append(r)
    sets = [
        frozenset(some)
        for together in places.values()
        for n in range(2, len(together) + 1)
        for some in combinations(together, n)
    ]
    yield from loops(program, sets)


def loops(program: Program, sets: Sequence[frozenset[int]]) -> Iterator[Row]:
    """The loop rows of sets of resources: one for each resource of each set."""
    inside: dict[int, list[int]] = {}
    for k, together in enumerate(sets):
        for r in together:
            inside.setdefault(r, []).append(k)
    support: list[list[int]] = [[] for _ in sets]
    for c, written in enumerate(program.writes):
        for k in dict.fromkeys(k for r in written for k in inside.get(r, ())):
            if sets[k].isdisjoint(program.reads[c]):
                support[k].append(c)
    for together, columns in zip(sets, support, strict=True):
        for r in sorted(together):
            yield row([(program.exists(r), -1.0), *((c, 1.0) for c in columns)])
