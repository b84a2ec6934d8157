"""The C text of a schedule: phases, tasks, loops, and the statements in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from korch.codegen.c.emit import Memory, Registers, Source, Values, Writer, storage_tag
from korch.codegen.c.index import MOST_PROGRESSIONS, Entry, Index, constant, cuts_of, variable
from korch.codegen.c.nest_plan import MOST_TAPS, Family, Plan, axis_variables, output_memory, reduction_term
from korch.codegen.c.nest_reads import Guard, Indices
from korch.codegen.c.nest_reduce import Reducer, accumulator_dtype
from korch.codegen.c.nest_schedule import Group, PassSchedule, Schedule
from korch.codegen.c.nest_values import Node, Read, Stage
from korch.codegen.target import Target
from korch.ir.graph import Definition

_SHORT_WINDOW = 4
_MOST_PIECES = 48  # loop bodies of one pass; beyond, conditions are evaluated at run time


@dataclass(frozen=True)
class Range:
    """A loop: static bounds `low..high - 1`, of which a task may do only the part between C expressions."""

    low: int
    high: int
    from_text: str | None = None
    to_text: str | None = None

    @property
    def static(self) -> bool:
        return self.from_text is None

    @property
    def first(self) -> str:
        if self.from_text is None:
            return str(self.low)
        return self.from_text if self.low == 0 else f"({self.from_text} > {self.low} ? {self.from_text} : {self.low})"

    def last(self, size: int) -> str:
        """One past the last; `size` is that of the whole axis."""
        if self.to_text is None:
            return str(self.high)
        return self.to_text if self.high == size else f"({self.to_text} < {self.high} ? {self.to_text} : {self.high})"


@dataclass
class Body:
    """What the statements of a loop body need: a variable for each kept axis, one set for each vector of an
    unrolled loop; the vector axis of each set; the number of valid lanes; and the values."""

    values: Values
    points: list[dict[str, Index]]
    axes: list[str | None]
    lanes: int | str | None
    pieces: dict[str, str] = field(default_factory=dict[str, str])


class Coder:
    """Writes the C text of one kernel."""

    def __init__(self, plan: Plan, schedule: Schedule, target: Target, pointers: Mapping[str, str]) -> None:
        self.plan, self.schedule, self.target = plan, schedule, target
        self.pointers = pointers  # C expressions for inputs, outputs ("out " + name) and "scratch"
        self.lanes = target.lanes()
        self.transposed: set[str] = set()

    def source(self) -> str:
        functions: list[str] = []
        tables: list[str] = []
        calls: list[str] = []
        for number, groups in enumerate(self.schedule.phases):
            out = Writer(self.target, f"v{number}_" if number else "v")
            self._phase(out, groups)
            functions.append(
                f"static void KERNEL_phase{number}(void *context, int64_t task, int64_t worker) {{\n"
                "char *const *p = ((KERNEL_context *)context)->p;\n"
                "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;\n"
                "char *local = runtime->scratch + worker * runtime->scratch_stride;\n"
                f"{out.text}\n}}"
            )
            tables.append(out.tables)
            tasks = sum(g.tasks for g in groups)
            calls.append(f"korch_parallel(runtime, {tasks}, KERNEL_phase{number}, &context);")
            for group in groups:
                if group.chunk:
                    out = Writer(self.target, f"c{number}_")
                    self._combine(out, group)
                    calls.append(f"{{\n{out.text}\n}}")
                    tables.append(out.tables)
        context = "typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;"
        entry = "\n".join(
            [
                "void KERNEL(const korch_runtime *runtime, char *const *p) {",
                "KERNEL_context context = {runtime, p};",
                *calls,
                "}",
            ]
        )
        helpers = [transpose(kind, self.lanes) for kind in sorted(self.transposed)]
        return "\n".join(t for t in [context, *helpers, *tables, *functions, entry] if t) + "\n"

    # Phases and groups.

    def _phase(self, out: Writer, groups: Sequence[Group]) -> None:
        first = 0
        for number, group in enumerate(groups):
            if len(groups) > 1:
                condition = f"task < {first + group.tasks}"
                head = f"else if ({condition})" if number else f"if ({condition})"
                out.open(head if number < len(groups) - 1 else "else", barrier=True)
            self._group(out, group, first)
            if len(groups) > 1:
                out.close()
            first += group.tasks

    def _group(self, out: Writer, group: Group, first: int) -> None:
        ranges = self._task(out, group, first)
        sources = self._sources(group)
        if len(group.passes) == 1:
            p = group.passes[0]
            PassCoder(self, out, p, group, sources, ranges, {}).write()
            return
        opened: dict[str, Index] = {}
        out.open("", ("@group",))
        for name in group.outer:
            size, block = self.plan.extents[name], group.blocks[name]
            r = ranges.get(name, Range(0, size))
            if block == 1:
                out.open(f"for (int64_t {name} = {r.first}; {name} < {r.last(size)}; ++{name})", (name, "@group"))
                opened[name] = variable(name, 0, size - 1)
            else:
                base, last = f"{name}_base", r.last(size)
                out.open(f"for (int64_t {base} = {r.first}; {base} < {last}; {base} += {block})", (base, "@group"))
                out.add(f"const int64_t {name}_end = {base} + {block} < {last} ? {base} + {block} : {last};")
                ranges[name] = Range(0, size, base, f"{name}_end")
        for p in group.passes:
            PassCoder(self, out, p, group, sources, ranges, opened).write()
        for _ in range(len(group.outer) + 1):
            out.close()

    def _task(self, out: Writer, group: Group, first: int) -> dict[str, Range]:
        """Decodes the task's number into the range of each axis that tasks cut."""
        ranges: dict[str, Range] = {}
        if group.tasks == 1:
            return ranges
        out.add(f"int64_t t = task - {first};")
        if group.chunk:
            name, size, pieces = group.chunk
            whole = group.passes[0].loops.families[0].extents()[name]
            out.add(f"const int64_t piece = t % {pieces}; t /= {pieces};")
            out.add(f"const int64_t {name}_lo = piece * {size};")
            out.add(f"const int64_t {name}_hi = {name}_lo + {size} < {whole} ? {name}_lo + {size} : {whole};")
            ranges[name] = Range(0, whole, f"{name}_lo", f"{name}_hi")
        for name, parts in reversed(group.parts.items()):
            size, block = self.plan.extents[name], group.blocks[name]
            count = math.ceil(size / block)
            out.add(f"const int64_t {name}_k = t % {parts}; t /= {parts};")
            step = f" * {block}" if block > 1 else ""
            low = f"{name}_k * {count} / {parts}{step}"
            high = f"({name}_k + 1) * {count} / {parts}{step}"
            out.add(f"const int64_t {name}_lo = {low};")
            if size % block:
                high = f"{name}_k + 1 < {parts} ? {high} : {size}"
            out.add(f"const int64_t {name}_hi = {high};")
            ranges[name] = Range(0, size, f"{name}_lo", f"{name}_hi")
        return ranges

    def _combine(self, out: Writer, group: Group) -> None:
        """Partial results of a split reduction, combined in order by the caller."""
        PassCoder(self, out, group.passes[0], group, self._sources(group), {}, {}, "combine").write()

    # Sources.

    def _sources(self, group: Group) -> dict[str, Source]:
        graph = self.plan.graph
        found: dict[str, Source] = {
            v: output_memory(graph, self.plan.layouts, v, self.pointers[v]) for v in graph.input_values
        }
        own = set(group.values())
        for value in self.schedule.buffers:
            if value in self.plan.stages:
                found[value] = self.memory(value, group if value in own else None)
        return found

    def memory(self, value: str, group: Group | None) -> Memory:
        """Where a root's value lies; `group` is given when it is the one that computes it."""
        buffer = self.schedule.buffers[value]
        marker = frozenset({"@group"} if group and len(group.passes) > 1 else ())
        if buffer.kind == "output":
            memory = output_memory(self.plan.graph, self.plan.layouts, value, self.pointers[f"out {value}"])
            return Memory(memory.pointer, memory.strides, marker)
        steps = dict(zip(buffer.axes, _strides(buffer.extents), strict=True))
        owner = self.plan.roots[value]
        origin: list[Index] = []
        for name in owner.names:
            blocked = group is not None and name in group.outer and group.blocks[name] > 1 and name in steps
            base = variable(f"{name}_base", 0, self.plan.extents[name] - 1)
            origin.append(base if blocked and buffer.kind == "local" else variable("0", 0, 0))
        strides = tuple(steps.get(name, 0) for name in owner.names)
        start = "local" if buffer.kind == "local" else self.pointers["scratch"]
        return Memory(f"{start} + {buffer.offset}", strides, marker, owner.kept, tuple(origin))

    def partial(self, value: str) -> Memory:
        """Partial results: the piece first, then the axes of the value."""
        buffer = self.schedule.buffers[f"partial {value}"]
        return Memory(f"{self.pointers['scratch']} + {buffer.offset}", _strides(buffer.extents))


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
        if name == self.p.tile and self._tiled(rest, points):
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
        most = r.high - r.low
        if r.static or r.low == 0:  # tasks cut at whole vectors
            self.out.residues[name] = r.low % self.lanes
        unroll = self._unroll(most)
        step = unroll * self.lanes
        last = r.last(size)
        self.out.open("", ())
        self.out.add(f"int64_t {name} = {r.first};")
        if unroll > 1:
            extra = [f"{name}_{u}" for u in range(1, unroll)]
            self.out.open(f"for (; {name} + {step} <= {last}; {name} += {step})", (name, *extra))
            for u, e in enumerate(extra, 1):
                self.out.add(f"const int64_t {e} = {name} + {u * self.lanes};")
            if name in self.out.residues:
                self.out.residues.update(dict.fromkeys(extra, self.out.residues[name]))
            several = [index, *(variable(e, r.low, r.high - 1) for e in extra)]
            self._body([{**points, name: i} for i in several], [name, *extra], None)
            self.out.close()
            most = most % step if r.static else most
        if most >= self.lanes:
            head = f"for (; {name} + {self.lanes} <= {last}; {name} += {self.lanes})"
            self.out.open(head, (name,))
            self._body([{**points, name: index}], [name], None)
            self.out.close()
            most = most % self.lanes if r.static else most
        if most % self.lanes or not r.static:
            self.out.open(f"if ({name} < {last})", (name,))
            count: int | str = most
            if not r.static:
                count = f"{name}_n"
                self.out.add(f"const int64_t {count} = {last} - {name};")
            self._body([{**points, name: index}], [name], count)
            self.out.close()
        self.out.close()
        self.out.residues.pop(name, None)

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

    def _body(self, points: list[dict[str, Index]], axes: list[str | None], lanes: int | str | None) -> None:
        body = Body(self._values(), points, axes, lanes)
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

    # Transposition.

    def _tiled(self, rest: list[str], points: dict[str, Index]) -> bool:
        """Loops over W x W blocks of the tile and vector axes; False when conditions vary along them."""
        tile, vector = rest
        assert vector == self.p.vector
        sizes = {n: self.plan.extents[n] for n in rest}
        full = {**points, **{n: variable(n, 0, sizes[n] - 1) for n in rest}}
        if self.guarded and any(self._varies(n, full) for n in rest):
            return False
        across, along = self._range(tile), self._range(vector)
        block, count = f"{tile}_block", f"{tile}_n"
        self.out.open(
            f"for (int64_t {block} = {across.first}; {block} < {across.last(sizes[tile])}; {block} += {self.lanes})",
            (block,),
        )
        left = f"{across.last(sizes[tile])} - {block}"
        self.out.add(f"const int64_t {count} = {left} < {self.lanes} ? {left} : {self.lanes};")
        last = along.last(sizes[vector])
        self.out.add(f"int64_t {vector} = {along.first};")
        if along.high - along.low >= self.lanes:
            head = f"for (; {vector} + {self.lanes} <= {last}; {vector} += {self.lanes})"
            self.out.open(head, (vector,))
            self._tile(tile, vector, full, None)
            self.out.close()
        if (along.high - along.low) % self.lanes or not along.static:
            self.out.open(f"if ({vector} < {last})", (vector,))
            self.out.add(f"const int64_t {vector}_n = {last} - {vector};")
            self._tile(tile, vector, full, f"{vector}_n")
            self.out.close()
        self.out.close()
        return True

    def _tile(self, tile: str, vector: str, points: dict[str, Index], lanes: str | None) -> None:
        body = Body(self._values(), [points], [vector], lanes)
        roots = [body.values.define(v, self._index(f, points)) for f in self.families for v in f.values]
        block, count = f"{tile}_block", f"{tile}_n"
        loaded: list[tuple[Node, str, str]] = []
        for node in _reachable(roots):
            if not isinstance(node, Read) or node.guards or node.offset.stride(tile) != 1:
                continue
            stride = node.offset.stride(vector)
            if stride is None or stride in (0, 1):
                continue
            kind, size = storage_tag(node.dtype), node.dtype.size * 8
            self.coder.transposed.add(f"u{size}")
            array = self.out.name("t")
            at = self.out.index(node.offset, {tile: block})
            self.out.add(
                f"u{size} {array}[{self.lanes * self.lanes}] __attribute__((aligned(64))); "
                f"KERNEL_transpose_u{size}((const u{size} *)({node.memory.pointer}) + ({at}), {stride}, "
                f"{lanes or self.lanes}, {count}, {array});"
            )
            loaded.append((node, kind, array))
        self.out.open(f"for (int64_t {tile} = {block}; {tile} < {block} + {count}; ++{tile})", (tile,))
        for node, kind, array in loaded:
            text = f"korch_load_{kind}((const {kind} *){array} + ({tile} - {block}) * {self.lanes})"
            name = self.out.declare("f32" if kind in ("f16", "bf16") else kind, text)
            self.out.levels[-1].known[(node, vector, lanes)] = name
        for family in self.families:
            for value in family.values:
                self._define(family, value, body)
        self.out.close()


def has_table(index: Index) -> bool:
    """Whether a constant table is looked up in an index."""
    return any(isinstance(a, Entry) for a in index.atoms())


def table_points(nodes: Iterable[Node], name: str, low: int, high: int) -> set[int]:
    """Where in low..high-1 tables that this variable indexes change from one arithmetic progression to another;
    nothing when that is so often that little is gained."""
    points: set[int] = set()
    for node in nodes:
        if not isinstance(node, Read):
            continue
        for atom in node.offset.atoms():
            step = atom.at.stride(name) if isinstance(atom, Entry) else None
            if not isinstance(atom, Entry) or step != 1 or len(atom.at.variables) != 1:
                continue
            points.update(s - atom.at.constant for s in cuts_of(atom.values))
    if len(points) > 2 * MOST_PROGRESSIONS:
        return set()
    return {p for p in points if low < p < high}


def split_points(guards: Mapping[Guard, None], name: str, low: int, high: int) -> list[int]:
    """Where in low..high-1 a condition on this variable becomes, or ceases to be, always true."""
    points: set[int] = set()
    for g in guards:
        step = g.index.stride(name)
        if not step:
            continue
        rest = g.index - variable(name, low, high - 1) * step if high - low > 1 else g.index
        if name in rest.variables:
            continue
        if step > 0:
            start, end = -((rest.low - g.low) // step), (g.high - rest.high) // step
        else:
            start, end = -((g.high - rest.high) // -step), (rest.low - g.low) // -step
        if start <= end:
            points.update((start, end + 1))
    return sorted(p for p in points if low < p < high)


def _strides(extents: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(extents):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _reachable(roots: Sequence[Node]) -> list[Node]:
    seen: dict[int, Node] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            pending.extend(node.args)
    return list(seen.values())


def transpose(kind: str, lanes: int) -> str:
    """A C function: t[j * W + i] = p[i * stride + j] for rows i and columns j.

    Whole blocks go through registers: rows i and i + s exchange their blocks of s elements, for s = W/2 … 1.
    """
    rows = range(lanes)
    lines = [f"v{kind} a{i} = korch_load_{kind}(p + {i} * stride);" for i in rows]
    step = lanes // 2
    while step:
        low = ",".join(str(j if not j & step else lanes + j - step) for j in rows)
        high = ",".join(str(j + step if not j & step else lanes + j) for j in rows)
        for i in rows:
            if not i & step:
                a, b = f"a{i}", f"a{i + step}"
                lines.append(
                    f"{{ v{kind} x = __builtin_shufflevector({a}, {b}, {low}); "
                    f"{b} = __builtin_shufflevector({a}, {b}, {high}); {a} = x; }}"
                )
        step //= 2
    lines += [f"korch_store_{kind}(t + {i * lanes}, a{i});" for i in rows]
    body = "\n".join(lines)
    return (
        f"static __attribute__((noinline)) void KERNEL_transpose_{kind}"
        f"(const {kind} *p, int64_t stride, int64_t rows, int64_t columns, {kind} *t) {{\n"
        f"if (rows == {lanes} && columns == {lanes}) {{\n{body}\nreturn;\n}}\n"
        "for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < columns; ++j) "
        f"t[j * {lanes} + i] = p[i * stride + j];\n}}"
    )


__all__ = ["Coder", "Range", "split_points", "transpose"]
