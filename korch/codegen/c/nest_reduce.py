"""The statements of a reduction: accumulators, loops, what is added, and the result."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from korch.codegen.c.emit import register_tag, rounded
from korch.codegen.c.index import Index, variable
from korch.codegen.c.nest_pieces import split_points
from korch.codegen.c.nest_plan import MOST_TAPS, Family, reduction_term
from korch.codegen.c.nest_reads import REDUCTIONS, Guard, Indices, Term
from korch.codegen.c.nest_values import Node, Read
from korch.codegen.c.prelude import literal
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import DType

if TYPE_CHECKING:
    from korch.codegen.c.nest_pass import Body, PassCoder

_LONGEST_SUM = 128  # additions to one accumulator, after which it is folded into another
_SHORTEST_FOLD = 8
_EQUAL, _WHERE = Definition("eq", (), ()), Definition("where", (), ())


@dataclass
class Accumulator:
    """A register that accumulates; arg-reductions have a second one for the position."""

    name: str
    position: str = ""


@dataclass
class Accumulators:
    """Those of one reduction at one point: several where the lanes run along the reduction."""

    each: list[Accumulator] = field(default_factory=list[Accumulator])


@dataclass(frozen=True)
class _Loop:
    """A loop over the C variable `name` from `first` to before `last`; `size` is its length where that is known;
    `points` has the index of each loop variable."""

    name: str
    index: Index
    first: str
    last: str
    size: int | None
    points: dict[str, Index]


class Reducer:
    """Writes the reductions of one family in one loop body."""

    def __init__(self, coder: PassCoder, position: int, family: Family, body: Body) -> None:
        self.coder, self.out, self.family, self.body = coder, coder.out, family, body
        self.order = coder.p.loop_orders[position]
        self.extents = dict(zip(family.loop_names, family.loops.extents, strict=True))
        kept = coder.p.vector is not None
        self.lane = None if kept else coder.p.lanes.get(position)
        graph = coder.plan.graph
        self.dtypes = [accumulator_dtype(graph, d) for d in family.definitions]
        self.indices = [family.index(tuple(p[n] for n in family.names)) for p in body.points]
        self.clamped: set[Guard] = set()
        self.bounds: dict[str, tuple[list[str], list[str]]] = {}

    def write(self) -> list[list[str]]:
        """The registers that hold the results: for each value, one for each point of the body."""
        self.ways = self._ways()
        accumulators = [[self._start(k) for _ in self.body.points] for k in range(len(self.family.values))]
        self.accumulators = accumulators
        if self.coder.mode == "combine":
            self._combine()
        elif all(self.extents.values()):
            self._clamp()
            unrolled = not self.lane and math.prod(self.extents.values()) <= MOST_TAPS and not self.bounds
            self._loops(0, {}, unrolled and self.coder.mode == "whole")
        return [[self._finish(k, a) for a in row] for k, row in enumerate(accumulators)]

    def _ways(self) -> int:
        """Accumulators at a point: additions are waited for four cycles, and two start in each."""
        if self.lane is None:
            return 1
        most = 4 if len(self.family.definitions) == 1 else 2
        return max(1, min(most, self.extents[self.lane] // self.coder.lanes))

    # Start and finish.

    def _combine_name(self, k: int) -> str:
        return REDUCTIONS[self.family.definitions[k].primitive].combine

    def _start(self, k: int) -> Accumulators:
        combine, dtype = self._combine_name(k), self.dtypes[k]
        tag = register_tag(dtype)
        found = Accumulators()
        for _ in range(self.ways):
            start = literal(neutral(combine, dtype))
            name = self.out.declare(tag, f"korch_splat_{tag}({start})")
            position = ""
            if combine.startswith("arg"):
                beyond = "-1" if self._last(k) else "0x7fffffffffffffffll"
                position = self.out.declare("i64", f"korch_splat_i64({beyond})")
            found.each.append(Accumulator(name, position))
        return found

    def _last(self, k: int) -> bool:
        return bool(self.family.definitions[k].attribute("last"))

    def _operation(self, k: int, value: str, into: str) -> str:
        """C text that combines two partial results."""
        name = {"sum": "reduce_sum", "prod": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}
        tag = register_tag(self.dtypes[k])
        return TABLE[name[self._combine_name(k)]].c.format(value, into, T=tag, R=tag)

    def _finish(self, k: int, found: Accumulators) -> str:
        combine, tag = self._combine_name(k), register_tag(self.dtypes[k])
        each = found.each
        while len(each) > 1:  # as a tree
            for a, b in zip(each[::2], each[1::2], strict=False):
                self._merge(k, b, a)
            each = each[::2]
        result = each[0]
        if combine.startswith("arg"):
            return self._finish_position(k, result)
        if self.lane is not None:
            text = f"korch_splat_{tag}(korch_reduce_{combine}_{tag}({result.name}))"
            self.out.add(f"{result.name} = {text};")
        if self.coder.mode == "partial":
            return result.name
        dtype = self.coder.plan.graph.types[self.family.values[k]].dtype
        text = rounded(result.name, dtype)
        return result.name if text == result.name else self.out.declare(tag, text)

    def _merge(self, k: int, other: Accumulator, into: Accumulator) -> None:
        if into.position:
            self._take_better(k, other.name, other.position, into, None)
        else:
            self.out.add(f"{into.name} = {self._operation(k, other.name, into.name)};")

    # Positions.

    def _better(self, k: int, value: str, at: str, best: str, best_at: str) -> str:
        """C text of the mask: this one is further out, or equal and comes first (last)."""
        tag = register_tag(self.dtypes[k])
        first, second = (best, value) if self._combine_name(k) == "arg_max" else (value, best)
        further, equal = f"korch_lt_{tag}({first}, {second})", f"korch_eq_{tag}({value}, {best})"
        if self.dtypes[k].is_float:
            nan, best_nan = f"korch_isnan_{tag}({value})", f"korch_isnan_{tag}({best})"
            further, equal = f"({further} | ({nan} & ~{best_nan}))", f"({equal} | ({nan} & {best_nan}))"
        earlier = f"korch_lt_i64({best_at}, {at})" if self._last(k) else f"korch_lt_i64({at}, {best_at})"
        return f"{further} | ({equal} & {earlier})"

    def _take_better(self, k: int, value: str, at: str, best: Accumulator, lanes: int | str | None) -> None:
        tag = register_tag(self.dtypes[k])
        mask = self._better(k, value, at, best.name, best.position)
        if lanes is not None:
            mask = f"({mask}) & korch_first({lanes})"
        name = self.out.declare("b8", mask)
        self.out.add(f"{best.position} = korch_where_i64({name}, {at}, {best.position});")
        self.out.add(f"{best.name} = korch_where_{tag}({name}, {value}, {best.name});")

    def _finish_position(self, k: int, result: Accumulator) -> str:
        if self.lane is None:
            return result.position
        # Lanes meet pairwise; every lane ends with the best of all.
        step, tag = self.coder.lanes // 2, register_tag(self.dtypes[k])
        while step:
            order = ",".join(str(i ^ step) for i in range(self.coder.lanes))
            value = self.out.declare(tag, f"__builtin_shufflevector({result.name}, {result.name}, {order})")
            at = self.out.declare("i64", f"__builtin_shufflevector({result.position}, {result.position}, {order})")
            self._take_better(k, value, at, result, None)
            step //= 2
        return result.position

    # Loops.

    def _term(self, d: Definition, index: Indices, points: dict[str, Index]) -> Term:
        loops = self.family.loops.index(tuple(points[n] for n in self.family.loop_names))
        return reduction_term(self.coder.plan.graph, d, index, loops)

    def _clamp(self) -> None:
        """Turns conditions on one loop into its bounds."""
        points = {n: variable(n, 0, size - 1) for n, size in self.extents.items()}
        for d in self.family.definitions:
            for g in self._term(d, self.indices[0], points).guards:
                if g.truth is not None:
                    continue
                inner = [n for n in self.order if n in g.index.variables]
                if len(inner) != 1 or inner[0] == self.lane:
                    continue
                name, step = inner[0], g.index.stride(inner[0])
                if step is None or step < 0 or len(g.index.variables) == 1:
                    continue
                rest = g.index - points[name] * step
                text = self.out.index(rest)
                low, high = self.bounds.setdefault(name, ([], []))
                if g not in self.clamped:
                    low.append(f"({g.low} - ({text}))")
                    high.append(f"({g.high} - ({text}))")
                    if step > 1:
                        low[-1] = f"({low[-1]} > 0 ? ({low[-1]} + {step - 1}) / {step} : 0)"
                        high[-1] = f"({high[-1]} < 0 ? -1 : {high[-1]} / {step})"
                    self.clamped.add(g)

    def _loops(self, depth: int, points: dict[str, Index], unrolled: bool) -> None:
        if depth == len(self.order):
            self._accumulate(points, None, 0, None)
            return
        name = self.order[depth]
        size = self.extents[name]
        if unrolled:
            for i in range(size):
                self._loops(depth + 1, {**points, name: variable(name, i, i)}, True)
            return
        for number, (low, high) in enumerate(self._pieces(depth, points)):
            own = f"{name}s{number}" if number else name
            index = variable(own, low, high - 1)
            first, last = str(low), str(high)
            r = self.coder.ranges.get(name)
            if r is not None and r.from_text is not None and r.to_text is not None:
                first = r.from_text if low == 0 else f"({r.from_text} > {low} ? {r.from_text} : {low})"
                last = r.to_text if high == size else f"({r.to_text} < {high} ? {r.to_text} : {high})"
            if high - low == 1 and r is None and name != self.lane:
                self._loops(depth + 1, {**points, name: index}, False)
                continue
            if name in self.bounds:
                first, last = self._bounded(name, size)
            loop = _Loop(own, index, first, last, high - low if r is None else None, {**points, name: index})
            if depth == len(self.order) - 1 and self._folds(name, high - low):
                self._folded(loop, name, high - low)
            else:
                self._loop(depth, loop, name)

    def _loop(self, depth: int, loop: _Loop, name: str) -> None:
        if name == self.lane:
            self._lane_loop(loop)
            return
        own = loop.name
        self.out.open(f"for (int64_t {own} = {loop.first}; {own} < {loop.last}; ++{own})", (own,))
        self._loops(depth + 1, loop.points, False)
        self.out.close()

    # Long sums: rounding errors grow with the number of additions to one accumulator, so that it is started anew
    # from time to time, and what it holds added to a second one.

    def _steps(self, name: str, length: int) -> int:
        """Additions to one accumulator in a loop of this length."""
        return length // (self.ways * self.coder.lanes) if name == self.lane else length

    def _folds(self, name: str, length: int) -> bool:
        plain = all(self._combine_name(k) == "sum" and t.is_float for k, t in enumerate(self.dtypes))
        around = math.prod(n for other, n in self.extents.items() if other != name)
        steps = self._steps(name, length)
        return plain and name not in self.bounds and steps >= _SHORTEST_FOLD and around * steps > 2 * _LONGEST_SUM

    def _folded(self, loop: _Loop, name: str, length: int) -> None:
        """The innermost loop in pieces, each with accumulators of its own."""
        own, out = loop.name, self.out
        if self._steps(name, length) > 2 * _LONGEST_SUM:
            step = _LONGEST_SUM * (self.ways * self.coder.lanes if name == self.lane else 1)
            out.open(f"for (int64_t {own}_f = {loop.first}; {own}_f < {loop.last}; {own}_f += {step})", (f"{own}_f",))
            out.add(f"const int64_t {own}_e = {own}_f + {step} < {loop.last} ? {own}_f + {step} : {loop.last};")
            loop = replace(loop, first=f"{own}_f", last=f"{own}_e", size=None)
        else:
            out.open("", ())
        totals = self.accumulators
        self.accumulators = [[self._start(k) for _ in row] for k, row in enumerate(totals)]
        self._loop(len(self.order) - 1, loop, name)
        for k, (row, parts) in enumerate(zip(totals, self.accumulators, strict=True)):
            for total, part in zip(row, parts, strict=True):
                for into, other in zip(total.each, part.each, strict=True):
                    self._merge(k, other, into)
        self.accumulators = totals
        out.close()

    def _bounded(self, name: str, size: int) -> tuple[str, str]:
        """Declares the bounds of a loop from its conditions."""
        low, high = self.out.name("lo"), self.out.name("hi")
        self.out.add(f"int64_t {low} = 0, {high} = {size};")
        for text in self.bounds[name][0]:
            self.out.add(f"{low} = {text} > {low} ? {text} : {low};")
        for text in self.bounds[name][1]:
            self.out.add(f"{high} = {text} + 1 < {high} ? {text} + 1 : {high};")
        return low, high

    def _pieces(self, depth: int, points: dict[str, Index]) -> list[tuple[int, int]]:
        """The range of a loop, cut where conditions change."""
        name = self.order[depth]
        size = self.extents[name]
        if not self.coder.guarded or name in self.bounds:
            return [(0, size)]
        full = {n: variable(n, 0, self.extents[n] - 1) for n in self.order[depth:]}
        values = self.coder.fresh_values(self.body)
        for d in self.family.definitions:
            term = self._term(d, self.indices[0], {**points, **full})
            remaining = values.decide(g for g in term.guards if g not in self.clamped)
            for operand, at in term.reads if remaining is not None else ():
                values.at(d.inputs[operand], at, remaining or ())
        cuts = split_points(values.open_guards, name, 0, size)
        edges = [0, *cuts[:8], size]
        return list(itertools.pairwise(edges))

    def _lane_loop(self, loop: _Loop) -> None:
        """The innermost loop, whose steps are vectors."""
        name, index, first, last, points = loop.name, loop.index, loop.first, loop.last, loop.points
        original = next(n for n, i in points.items() if i is index)
        lanes, out = self.coder.lanes, self.out
        guards = self._open_guards(points)
        if any(name in g.index.variables for g in guards):
            # One element at a time, in lane 0.
            out.open(f"for (int64_t {name} = {first}; {name} < {last}; ++{name})", (name,))
            self._accumulate(points, None, 0, 1)
            out.close()
            return
        out.open("", ())
        out.add(f"int64_t {name} = {first};")
        rest = loop.size
        step = self.ways * lanes
        if self.ways > 1 and (rest is None or rest >= step):
            extra = [f"{name}_{u}" for u in range(1, self.ways)]
            out.open(f"for (; {name} + {step} <= {last}; {name} += {step})", (name, *extra))
            self._accumulate(points, name, 0, None)
            for u, e in enumerate(extra, 1):
                out.add(f"const int64_t {e} = {name} + {u * lanes};")
                moved = variable(e, index.low, index.high)
                self._accumulate({**points, original: moved}, e, u, None)
            out.close()
            rest = None if rest is None else rest % step
        if rest is None or rest >= lanes:
            out.open(f"for (; {name} + {lanes} <= {last}; {name} += {lanes})", (name,))
            self._accumulate(points, name, 0, None)
            out.close()
            rest = None if rest is None else rest % lanes
        if rest is None or rest:
            out.open(f"if ({name} < {last})", (name,))
            count: int | str = rest or f"{name}_n"
            if rest is None:
                out.add(f"const int64_t {count} = {last} - {name};")
            self._accumulate(points, name, 0, count)
            out.close()
        out.close()

    def _open_guards(self, points: dict[str, Index]) -> list[Guard]:
        values = self.coder.fresh_values(self.body)
        for d in self.family.definitions:
            term = self._term(d, self.indices[0], points)
            remaining = values.decide(g for g in term.guards if g not in self.clamped)
            for operand, at in term.reads if remaining is not None else ():
                values.at(d.inputs[operand], at, remaining or ())
        return list(values.open_guards)

    # What is added.

    def _accumulate(self, points: dict[str, Index], lane: str | None, way: int, lanes: int | str | None) -> None:
        """Statements for one iteration: the lanes run along `lane`, or along the axis of each point."""
        for u, (index, axis) in enumerate(zip(self.indices, self.body.axes, strict=True)):
            along = lane if self.lane is not None else axis
            valid = lanes if self.lane is not None else self.body.lanes
            for k, d in enumerate(self.family.definitions):
                term = self._term(d, index, points)
                remaining = self.body.values.decide(g for g in term.guards if g not in self.clamped)
                if remaining is None:
                    continue
                nodes = self._factors(k, d, term, remaining)
                target = self.accumulators[k][u].each[way]
                self._add(k, d, nodes, points, target, along, valid, remaining)

    def _factors(self, k: int, d: Definition, term: Term, guards: tuple[Guard, ...]) -> list[Node]:
        """The one or two operands of a product."""
        values, dtype = self.body.values, self.dtypes[k]
        nodes = [values.at(d.inputs[operand], at, guards) for operand, at in term.reads]
        if term.weight is not None:
            rows = d.attribute("weights")
            assert isinstance(rows, tuple)
            weights = tuple(float(w) for row in rows if isinstance(row, tuple) for w in row)  # type: ignore[arg-type]
            weight = values.table(weights, term.weight, dtype)
            if 0.0 in weights:  # such a tap takes no part, whatever it reads
                zero = values.literal(0, dtype)
                absent = values.apply(_EQUAL, (weight, zero), DType.BOOL)
                nodes[0] = values.apply(_WHERE, (absent, zero, values.converted(nodes[0], dtype)), dtype)
            nodes.append(weight)
        return [values.converted(n, dtype) if dtype.is_integer else n for n in nodes]

    def _add(
        self,
        k: int,
        d: Definition,
        nodes: list[Node],
        points: dict[str, Index],
        target: Accumulator,
        along: str | None,
        lanes: int | str | None,
        guards: tuple[Guard, ...],
    ) -> None:
        out, tag = self.out, register_tag(self.dtypes[k])
        texts = [out.value(n, along, lanes) for n in nodes]
        masked = self.lane is not None and lanes is not None
        if guards:
            out.open(f"if ({out.condition(guards)})", ())
        if target.position:
            loops = self.family.loops.index(tuple(points[n] for n in self.family.loop_names))
            at = out.positions(loops[0], along if self.lane is not None else None)
            self._take_better(k, texts[0], at, target, lanes if masked else None)
        else:
            if len(texts) == 2:
                text = TABLE[d.primitive].c.format(*texts, target.name, T=tag, R=tag)
            else:
                text = self._operation(k, texts[0], target.name)
            if masked:
                text = f"korch_where_{tag}(korch_first({lanes}), {text}, {target.name})"
            out.add(f"{target.name} = {text};")
        if guards:
            out.close()

    def _combine(self) -> None:
        """Adds up the pieces of a split reduction."""
        chunk = self.coder.group.chunk
        assert chunk
        self.lane, pieces = None, chunk[2]
        piece = variable("piece", 0, pieces - 1)
        self.out.open(f"for (int64_t piece = 0; piece < {pieces}; ++piece)", ("piece",))
        for k, value in enumerate(self.family.values):
            memory = self.coder.coder.partial(value)
            for u, (points, axis) in enumerate(zip(self.body.points, self.body.axes, strict=True)):
                offset = memory.offset(self.coder.partial_point(points, piece))
                node = Read(self.dtypes[k], offset.variables, (), memory=memory, offset=offset, guards=())
                target = self.accumulators[k][u].each[0]
                text = self._operation(k, self.out.value(node, axis, self.body.lanes), target.name)
                self.out.add(f"{target.name} = {text};")
        self.out.close()


def accumulator_dtype(graph: Graph, d: Definition) -> DType:
    """What a reduction is accumulated in: the dtype of its result, or float32 for narrower floats. Arg-reductions
    compare in the dtype of their operand."""
    dtype = graph.types[d.inputs[0] if d.primitive.startswith("arg") else d.outputs[0]].dtype
    return DType.FLOAT32 if dtype in (DType.FLOAT16, DType.BFLOAT16) else dtype


def neutral(combine: str, dtype: DType) -> np.generic:
    """What a reduction starts from."""
    kind = dtype.numpy.type
    if combine in ("sum", "prod"):
        return kind(0 if combine == "sum" else 1)
    least = combine.endswith("max")
    if dtype is DType.BOOL:
        return kind(not least)
    if dtype.is_float:
        return kind(-np.inf if least else np.inf)
    info = np.iinfo(dtype.numpy)
    return kind(info.min if least else info.max)
