"""The C text of one pass: its loops over kept axes, and the statements in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from korch.codegen.c.emit import Registers, Source, Values, Writer
from korch.codegen.c.index import Index, constant, variable
from korch.codegen.c.nest_blocks import Block
from korch.codegen.c.nest_pieces import Range, has_table, split_points, table_points
from korch.codegen.c.nest_plan import MOST_TAPS, Family, axis_variables, reduction_term
from korch.codegen.c.nest_reads import Indices
from korch.codegen.c.nest_reduce import Reducer, accumulator_dtype
from korch.codegen.c.nest_schedule import Group, PassSchedule
from korch.codegen.c.nest_values import Stage
from korch.ir.graph import Definition

if TYPE_CHECKING:
    from korch.codegen.c.nest_code import Coder

_SHORT_WINDOW = 4
_MOST_PIECES = 48  # loop bodies of one pass; beyond, conditions are evaluated at run time


@dataclass
class Body:
    """What the statements of a loop body need: a variable for each kept axis, one set for each vector of an
    unrolled loop; the vector axis of each set; the number of valid lanes; and the values."""

    values: Values
    points: list[dict[str, Index]]
    axes: Sequence[str | None]
    lanes: int | str | None
    pieces: dict[str, str] = field(default_factory=dict[str, str])


class PassCoder:
    """Writes the loops of one pass. `mode` is whole, partial (one piece of a split reduction) or combine."""

    def __init__(
        self,
        coder: Coder,
        out: Writer,
        schedule: PassSchedule,
        group: Group,
        sources: Mapping[str, Source],
        ranges: Mapping[str, Range],
        opened: Mapping[str, Index],
        mode: str = "",
    ) -> None:
        self.coder, self.out, self.p, self.group = coder, out, schedule, group
        self.plan, self.sources, self.ranges, self.opened = coder.plan, sources, ranges, opened
        self.mode = mode or ("partial" if group.chunk else "whole")
        self.lanes = coder.lanes
        self.pieces = 1
        self.block: Block | None = None  # while one is written
        self.shared = Values(coder.plan.graph, {})
        families = schedule.loops.families
        self.families = families[:1] if self.mode == "partial" else families
        looks = [self.plan.look(f) for f in self.families]
        self.guarded = any(s.guards or any(map(has_table, s.indices())) for s in looks)

    def write(self) -> None:
        self.out.open("", ("@pass",))
        points = {name: index for name, index in self.opened.items() if name in self.p.loops.names}
        self._axis([n for n in self.p.order if n not in self.opened], points)
        self.out.close()

    # Kept axes.

    def _axis(self, rest: list[str], points: dict[str, Index]) -> None:
        if not rest:
            self._body([points], [None], None)
            return
        name = rest[0]
        if name == self.p.tile:
            self._blocks(name, rest[1], points)
            return
        whole = self._range(name)
        for piece in self._pieces(name, whole, rest, points):
            if name == self.p.vector:
                self._vectors(name, piece, points)
                continue
            if piece.static and piece.high - piece.low == 1:
                self._axis(rest[1:], {**points, name: variable(name, piece.low, piece.low)})
                continue
            size = self.plan.extents[name]
            head = f"for (int64_t {name} = {piece.first}; {name} < {piece.last(size)}; ++{name})"
            self.out.open(head, (name,))
            self._axis(rest[1:], {**points, name: variable(name, piece.low, piece.high - 1)})
            self.out.close()

    def _range(self, name: str) -> Range:
        return self.ranges.get(name, Range(0, self.plan.extents[name]))

    def _pieces(self, name: str, whole: Range, rest: Sequence[str], points: Mapping[str, Index]) -> Iterator[Range]:
        """The range cut where conditions change from open to decided."""
        cuts: list[int] = []
        if self.guarded:
            full = {n: variable(n, 0, self.plan.extents[n] - 1) for n in rest}
            values = self._probe({**points, **full})
            cuts = split_points(values.open_guards, name, whole.low, whole.high)
            cuts = sorted({*cuts, *table_points(values.nodes, name, whole.low, whole.high)})
            if self.pieces * (len(cuts) + 1) > _MOST_PIECES:
                cuts = []
            self.pieces *= len(cuts) + 1
        edges = [whole.low, *cuts, whole.high]
        for low, high in itertools.pairwise(edges):
            yield Range(low, high, whole.from_text, whole.to_text)

    def _probe(self, points: Mapping[str, Index]) -> Values:
        """The conditions that are open for these ranges."""
        values = self._values()
        values.sources.update({v: Stage() for v in self.p.loops.values() if v in self.plan.stages})
        for k, family in enumerate(self.families):
            index = self._index(family, points)
            for v, d in itertools.zip_longest(family.values, family.definitions):
                if d is None:
                    values.define(v, index)
                elif self.mode != "combine":
                    for loops in self._iterations(k, family):
                        term = reduction_term(self.plan.graph, d, index, loops)
                        remaining = values.decide(term.guards)
                        for operand, at in term.reads if remaining is not None else ():
                            values.at(d.inputs[operand], at, remaining or ())
        return values

    def _iterations(self, position: int, family: Family) -> Iterator[Indices]:
        """The loops of a reduction as they will be: constants in turn where they are unrolled, else variables.

        Long windows stay variables, lest the border be cut into a piece for each of its elements.
        """
        sizes = family.loops.extents
        unrolled = math.prod(sizes) <= MOST_TAPS and max(sizes, default=1) <= _SHORT_WINDOW
        if not unrolled or self.mode != "whole" or self.p.lanes.get(position):
            yield family.loops.index(axis_variables(family.loop_names, sizes))
            return
        for point in itertools.product(*map(range, sizes)):
            yield family.loops.index(tuple(map(constant, point)))

    def _values(self) -> Values:
        return Values(self.plan.graph, self.sources, self.shared)

    def fresh_values(self, body: Body) -> Values:
        """The values of a body, without what has been noted in it."""
        return Values(self.plan.graph, body.values.sources)

    def _index(self, family: Family, points: Mapping[str, Index]) -> Indices:
        return family.index(tuple(points[n] for n in family.names))

    def _vectors(self, name: str, r: Range, points: dict[str, Index]) -> None:
        """The loop along the vector axis: unrolled, single and partial vectors."""
        size = self.plan.extents[name]
        index = variable(name, r.low, r.high - 1)
        if self.guarded and self._varies(name, {**points, name: index}):
            self.out.open(f"for (int64_t {name} = {r.first}; {name} < {r.last(size)}; ++{name})", (name,))
            self._body([{**points, name: index}], [None], None)
            self.out.close()
            return
        for names, lanes in self._steps(name, r, self._unroll(r.high - r.low)):
            several = [variable(n, r.low, r.high - 1) for n in names]
            self._body([{**points, name: i} for i in several], names if r.high - r.low > 1 else [None], lanes)

    def _steps(self, name: str, r: Range, unroll: int) -> Iterator[tuple[list[str], int | str | None]]:
        """Opens, in turn, the loop over `unroll` vectors at once, that over single ones, and what is left: gives
        the C variables of the vectors' first elements and the number of valid lanes."""
        out, lanes, size = self.out, self.lanes, self.plan.extents[name]
        extra = [f"{name}_{u}" for u in range(1, unroll)]
        if r.static or r.low == 0:  # tasks cut at whole vectors
            out.residues.update(dict.fromkeys((name, *extra), r.low % lanes))
        last, most, step = r.last(size), r.high - r.low, unroll * lanes
        out.open("", ())
        out.add(f"int64_t {name} = {r.first};")
        if unroll > 1:
            out.open(f"for (; {name} + {step} <= {last}; {name} += {step})", (name, *extra))
            for u, e in enumerate(extra, 1):
                out.add(f"const int64_t {e} = {name} + {u * lanes};")
            yield [name, *extra], None
            out.close()
            most = most % step if r.static else most
        if most >= lanes:
            out.open(f"for (; {name} + {lanes} <= {last}; {name} += {lanes})", (name,))
            yield [name], None
            out.close()
            most = most % lanes if r.static else most
        if most % lanes or not r.static:
            out.open(f"if ({name} < {last})", (name,))
            count: int | str = most
            if not r.static:
                count = f"{name}_n"
                out.add(f"const int64_t {count} = {last} - {name};")
            yield [name], count
            out.close()
        out.close()
        for n in (name, *extra):
            out.residues.pop(n, None)

    def _unroll(self, most: int) -> int:
        """Vectors per step: several where a reduction waits for its own additions."""
        count = sum(len(f.definitions) for f in self.families)
        if not count or self.mode == "combine":
            return 1
        return max(1, min(4 if count < 3 else 2, most // self.lanes))

    def _varies(self, name: str, points: Mapping[str, Index]) -> bool:
        """Whether an open condition depends on a variable."""
        return any(name in g.index.variables for g in self._probe(points).open_guards)

    # Statements.

    def _body(self, points: list[dict[str, Index]], axes: Sequence[str | None], lanes: int | str | None) -> None:
        self._statements(Body(self._values(), points, axes, lanes))

    def _statements(self, body: Body) -> None:
        for k, family in enumerate(self.families):
            if family.definitions:
                self._reduce(k, family, body)
            else:
                for value in family.values:
                    self._define(family, value, body)

    def _define(self, family: Family, value: str, body: Body) -> None:
        held: dict[Indices, str] = {}
        for points, axis in zip(body.points, body.axes, strict=True):
            index = self._index(family, points)
            node = body.values.define(value, index)
            held[index] = self.out.value(node, axis, body.lanes)
            self._keep(value, held[index], index, axis, body.lanes)
        if value in self.plan.stages:
            body.values.sources[value] = Registers(held, self._here())

    def _here(self) -> frozenset[str]:
        """Marks what is set at this place, so that nothing that depends on it is computed before."""
        marker = f"@{self.out.name('m')}"
        self.out.levels[-1].variables |= {marker}
        return frozenset({marker})

    def _keep(self, value: str, text: str, index: Indices, axis: str | None, lanes: int | str | None) -> None:
        """Stores a root where others read it."""
        if value not in self.coder.schedule.buffers:
            return
        memory = self.coder.memory(value, self.group)
        dtype = self.plan.graph.types[value].dtype
        if self.block is not None and self.block.takes(text, dtype, memory, index):
            return
        self.out.store_register(text, dtype, memory, index, axis, lanes)

    def _reduce(self, position: int, family: Family, body: Body) -> None:
        reducer = Reducer(self, position, family, body)
        results = reducer.write()
        for value, definition, texts in zip(family.values, family.definitions, results, strict=True):
            held: dict[Indices, str] = {}
            for points, axis, text in zip(body.points, body.axes, texts, strict=True):
                index = self._index(family, points)
                if self.mode == "partial":
                    self._store_partial(definition, value, text, points, axis, body.lanes)
                    continue
                held[index] = text
                self._keep(value, text, index, axis, body.lanes)
            body.values.sources[value] = Registers(held, self._here())

    def partial_point(self, points: Mapping[str, Index], piece: Index) -> Indices:
        return (piece, *(points[n] for n in self.p.order))

    def _store_partial(
        self,
        definition: Definition,
        value: str,
        text: str,
        points: Mapping[str, Index],
        axis: str | None,
        lanes: int | str | None,
    ) -> None:
        assert self.group.chunk
        piece = variable("piece", 0, self.group.chunk[2] - 1)
        dtype = accumulator_dtype(self.plan.graph, definition)
        memory = self.coder.partial(value)
        self.out.store_register(text, dtype, memory, self.partial_point(points, piece), axis, lanes)

    # Blocks that are transposed.

    def _blocks(self, tile: str, vector: str, points: dict[str, Index]) -> None:
        """Loops over W x W blocks of two axes, of which memory is contiguous along one or the other: W columns
        after W columns, so that the cache lines of W rows are filled, or used up, before they are evicted."""
        for along in self._pieces(vector, self._range(vector), [vector, tile], points):
            fixed = {**points, vector: variable(vector, along.low, along.high - 1)}
            across = list(self._pieces(tile, self._range(tile), [tile], fixed))
            if any(self._unlike(tile, rows, vector, along, points) for rows in across):
                for rows in across:
                    self._rows(tile, rows, vector, along, points)
                continue
            for _, lanes in self._steps(vector, along, 1):
                for rows in across:
                    self._open_rows(tile, rows)
                    self._block(tile, rows, vector, along, points, lanes)
                    self.out.close()

    def _unlike(self, tile: str, a: Range, vector: str, b: Range, points: dict[str, Index]) -> bool:
        """Whether a block's elements differ in conditions, or are too few."""
        ranges = {**points, tile: variable(tile, a.low, a.high - 1), vector: variable(vector, b.low, b.high - 1)}
        return 1 in (a.high - a.low, b.high - b.low) or (
            self.guarded and any(self._varies(n, ranges) for n in (tile, vector))
        )

    def _rows(self, tile: str, across: Range, vector: str, along: Range, points: dict[str, Index]) -> None:
        """Plain loops, without blocks."""
        last = across.last(self.plan.extents[tile])
        self.out.open(f"for (int64_t {tile} = {across.first}; {tile} < {last}; ++{tile})", (tile,))
        self._vectors(vector, along, {**points, tile: variable(tile, across.low, across.high - 1)})
        self.out.close()

    def _open_rows(self, tile: str, r: Range) -> None:
        start, end, lanes = f"{tile}_block", r.last(self.plan.extents[tile]), self.lanes
        self.out.open(f"for (int64_t {start} = {r.first}; {start} < {end}; {start} += {lanes})", (start,))
        self.out.add(f"const int64_t {tile}_n = {end} - {start} < {lanes} ? {end} - {start} : {lanes};")

    def _block(
        self,
        tile: str,
        across: Range,
        vector: str,
        along: Range,
        points: dict[str, Index],
        lanes: int | str | None,
    ) -> None:
        ranges = ((tile, across), (vector, along))
        points = {**points, **{n: variable(n, r.low, r.high - 1) for n, r in ranges}}
        body = Body(self._values(), [points], [vector], lanes)
        self.block = Block(self.out, self.lanes, tile, vector, lanes, self.coder.transposed)
        if not any(f.definitions for f in self.families):
            values = (body.values.define(v, self._index(f, points)) for f in self.families for v in f.values)
            self.block.read(list(values))
        self.block.open()
        self._statements(body)
        self.block.close()
        self.block = None
