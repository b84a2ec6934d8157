"""Which axis each pass is vectorised over, which passes share outer loops, and how work becomes tasks.

A *group* is a run of passes inside common outer loops, over axes that all its passes have: what one pass computes
for the others is kept in a small buffer of the worker. Values that go from group to group lie in scratch memory
that all workers share. Groups that do not wait for each other form a *phase*: one parallel loop over their tasks.
Everything depends on shapes only, never on the number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from korch.codegen.c.index import (
    MOST_PROGRESSIONS,
    Entry,
    Index,
    Variable,
    constant,
    lane_pattern,
    progressions,
    repetition,
)
from korch.codegen.c.nest_plan import MOST_TAPS, Family, Look, Pass, Plan, operations
from korch.codegen.c.nest_reads import Indices
from korch.codegen.c.nest_values import NestError
from korch.codegen.target import Target

LOCAL_BYTES = 256 << 10  # of one worker
SHARED_BYTES = 256 << 10
TASK_NANOSECONDS = 10_000.0  # of work in one task, below which handing it out costs too much
_WORTH_TRYING = 1.3  # times the cheapest estimate: the estimate is no better than that
_SMALL_BYTES = 16 << 10
_NEAR_ELEMENTS = 64  # strides up to this find several lanes in a cache line or two
_SMALL_BLOCK = 4  # an axis shorter than this is not worth transposing
_SHORT_BYTES = 4096
_MOST_TASKS = 32
_FEW_TASKS = 4  # as many keep the cores of a small machine busy


@dataclass
class PassSchedule:
    """How one pass runs. `vector` is a kept axis, or None; then each reduction may have a vector axis of its own
    in `lanes`. `order` are the kept axes, outermost first, the vector axis last. `tile` is a second kept axis,
    along which memory that the vector axis strides through is contiguous: there, W x W blocks are transposed."""

    loops: Pass
    order: tuple[str, ...]
    vector: str | None
    lanes: dict[int, str | None]  # by the family's position in the pass
    loop_orders: dict[int, tuple[str, ...]]
    tile: str | None
    work: float  # nanoseconds, estimated


@dataclass
class Group:
    """Passes in common outer loops over `outer`; `blocks` gives the step of each outer axis, `parts` into how
    many pieces of whole blocks the tasks cut it. A lone pass has no outer loops of its own: `parts` cut its axes.

    `chunk` splits one loop of a lone pass's reduction into pieces, whose partial results are combined in order.
    """

    passes: list[PassSchedule]
    outer: tuple[str, ...] = ()
    blocks: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, int] = field(default_factory=dict[str, int])
    chunk: tuple[str, int, int] | None = None  # the loop, elements in one piece, pieces

    @property
    def tasks(self) -> int:
        return math.prod(self.parts.values()) * (self.chunk[2] if self.chunk else 1)

    def values(self) -> Iterable[str]:
        return (v for p in self.passes for v in p.loops.values())


@dataclass
class Buffer:
    """Where a value that other passes read lies: an output, worker memory (`local`) or `shared` scratch.
    `axes` (slowest first) and their extents in the buffer; local ones lack the outer axes."""

    kind: str
    offset: int = 0  # bytes
    axes: tuple[str, ...] = ()
    extents: tuple[int, ...] = ()


@dataclass
class Schedule:
    phases: list[list[Group]]
    buffers: dict[str, Buffer]
    local_bytes: int
    shared_bytes: int


def make_schedule(plan: Plan, target: Target, grain: float = TASK_NANOSECONDS, choice: int = 0) -> Schedule:
    """`grain` is the work of one task in nanoseconds, estimated; `choice` 0 takes the vector axes that are best by
    estimate, 1 the second best, and so on. NestError when values that are kept do not fit
    into the memory for them."""
    lanes = target.lanes()
    looks = {id(f): plan.look(f) for f in plan.families}
    # Loops that are unrolled: an iteration is looked at as it will be, with constants for their variables.
    few = {id(f): math.prod(f.loops.extents) <= MOST_TAPS for f in plan.families}
    iterations = {id(f): plan.look(f, True) if f.definitions and few[id(f)] else looks[id(f)] for f in plan.families}
    passes = _schedule_passes(plan, looks, iterations, lanes, choice)
    groups = _groups(plan, passes, looks, lanes, grain)
    buffers, local, shared = _buffers(plan, groups, looks, lanes)
    if local > LOCAL_BYTES:
        raise NestError(f"values kept between loops take {local >> 10} KiB of each thread's memory")
    if shared > SHARED_BYTES:
        raise NestError(f"values kept between loops take {shared >> 10} KiB of shared memory")
    return Schedule(_phases(plan, groups, looks), buffers, local, shared)


# Passes.


def _schedule_passes(
    plan: Plan, looks: dict[int, Look], iterations: dict[int, Look], lanes: int, choice: int
) -> list[PassSchedule]:
    """Vector axes for all passes together: what is best for one pass may lay out its values badly for the next.

    Tried are the best for each pass in turn, each axis as the vector axis of all passes that have it, and none of
    the axes that several passes share. `choice` counts the different results from the cheapest on; NestError when
    there are not so many that seem worth a trial.
    """
    shared = frozenset(n for n in plan.extents if sum(n in p.names for p in plan.passes) > 1)
    kept = sorted(frozenset[str]().union(*(p.names for p in plan.passes)))
    nothing = frozenset[str]()
    choices = [(nothing, nothing), (nothing, shared), *((frozenset({n}), nothing) for n in kept)]
    found: dict[object, tuple[float, list[PassSchedule]]] = {}
    for wanted, avoided in choices:
        passes: list[PassSchedule] = []
        orders: dict[str, tuple[str, ...]] = {}
        for loops in plan.passes:
            names = sorted(wanted & loops.names) or [*sorted(loops.names - avoided), None]
            p = _schedule_pass(plan, loops, looks, iterations, lanes, orders, names)
            orders.update(dict.fromkeys(loops.values(), p.order))
            passes.append(p)
        key = tuple((p.vector, tuple(p.lanes.items())) for p in passes)
        found.setdefault(key, (sum(p.work for p in passes), passes))
    ranked = sorted(found.values(), key=lambda f: f[0])
    if choice >= len(ranked) or ranked[choice][0] > _WORTH_TRYING * ranked[0][0]:
        raise NestError("no other vector axes are worth a trial")
    return ranked[choice][1]


def _schedule_pass(
    plan: Plan,
    loops: Pass,
    looks: dict[int, Look],
    iterations: dict[int, Look],
    lanes: int,
    orders: dict[str, tuple[str, ...]],
    axes: Sequence[str | None],
) -> PassSchedule:
    """The cheapest of the axes as vector axis; None stands for vectors along the loops of reductions."""
    best: tuple[float, str | None, str | None, dict[int, str | None]] | None = None
    for axis in axes:
        tile = _tile_axis(plan, loops, looks, axis) if axis else None
        chosen: dict[int, str | None] = {}
        total = 0.0
        for k, family in enumerate(loops.families):
            seen = iterations[id(family)]
            if axis is not None or not family.definitions:
                total += _cost(plan, family, seen, axis, tile, lanes, orders)
                continue
            options: list[tuple[float, str | None]] = [(_cost(plan, family, seen, None, None, lanes, orders), None)]
            for name in family.loop_names:
                points = math.prod(family.kept.extents)
                options.append((_cost(plan, family, seen, name, None, lanes, orders) + 12.0 * points, name))
            cost, chosen[k] = min(options, key=lambda o: o[0])
            total += cost
        if best is None or total < best[0]:
            best = (total, axis, tile, chosen)
    assert best is not None
    total, axis, tile, chosen = best
    order = _loop_order(plan, loops, looks, axis, tile)
    loop_orders = {
        k: _ordered_loops(family, looks[id(family)], chosen.get(k)) for k, family in enumerate(loops.families)
    }
    return PassSchedule(loops, order, axis, chosen, loop_orders, tile, total * 0.35)


def _cost(
    plan: Plan,
    family: Family,
    seen: Look,
    axis: str | None,
    tile: str | None,
    lanes: int,
    orders: dict[str, tuple[str, ...]],
) -> float:
    """Vector instructions of all iterations of a family, roughly."""
    extents = family.extents()
    points = math.prod(extents.values())
    if axis is not None:
        points = points / extents[axis] * math.ceil(extents[axis] / lanes)
    each = sum(operations(a.definition) * _share(a.variables, family, extents) for a in seen.applied)
    each += len(family.definitions)
    for read in seen.reads:
        across = None if family.definitions else tile
        each += _access(read.offset, axis, across, lanes) * _share(read.variables, family, extents)
    for offset, _ in seen.stores:
        share = 1 / max(1, math.prod(family.loops.extents))
        each += share * (_access(offset, axis, tile, lanes, True) if axis in family.names or axis is None else 1.0)
    for value, at in seen.stages:
        if value in orders:
            offset = _stage_offset(plan, value, at, orders[value])
            each += _access(offset, axis, None if family.definitions else tile, lanes) * _share(
                offset.variables, family, extents
            )
    for guard in seen.guards:
        if axis is not None and guard.index.stride(axis) is None:
            each *= lanes
            break
    return points * max(each, 1.0)


def _stage_offset(plan: Plan, value: str, at: Indices, order: tuple[str, ...]) -> Index:
    """Where an element lies in a buffer whose axes have this order."""
    point = dict(zip(plan.roots[value].names, at, strict=True))
    offset, step = constant(0), 1
    for name in reversed(order):
        offset, step = offset + point[name] * step, step * plan.extents[name]
    return offset


def _share(variables: frozenset[str], family: Family, extents: dict[str, int]) -> float:
    """How often something that varies with these variables is computed, of all iterations (loops invariant)."""
    iterations = math.prod(family.loops.extents)
    if iterations > MOST_TAPS and variables.isdisjoint(family.loop_names):
        return 1 / iterations
    return 1.0 if variables else 0.0


def _access(offset: Index, axis: str | None, tile: str | None, lanes: int, store: bool = False) -> float:
    """Vector instructions, roughly, that one access takes."""
    if axis is None:
        return 1.0
    stride = offset.stride(axis)
    if stride == 0:
        return 0.3
    if stride == 1:
        return 1.0
    if stride in (-1, 2):
        return 2.5
    if tile is not None and stride is not None and offset.stride(tile) == 1:
        return 3.0
    if stride is None and _main_stride(offset, axis) == 1:
        return 1.5
    if stride is None and _repeats(offset, axis, lanes):
        return 3.0
    if stride is None and (pattern := lane_pattern(offset, axis, 0, lanes)) and max(pattern) < lanes:
        return 2.5
    if stride is None:
        return 2.5 * lanes
    # Lanes one by one; far apart, each touches a cache line of its own, and a store has to fetch it first.
    near = abs(stride) <= _NEAR_ELEMENTS
    return lanes * ((1.2 if near else 3.0) if store else (1.2 if near else 1.6))


def _main_stride(offset: Index, axis: str) -> int | None:
    """The stride in the longest progression of a table, at whose ends loops will be cut."""
    total = 0
    for atom, k in offset.terms:
        if isinstance(atom, Entry) and atom.at.stride(axis) == 1 and len(atom.at.variables) == 1:
            starts = progressions(atom.values)
            if len(starts) > MOST_PROGRESSIONS:
                return None
            ends = [*starts[1:], len(atom.values)]
            length, begin = max((e - b, b) for b, e in zip(starts, ends, strict=True))
            total += k * (atom.values[begin + 1] - atom.values[begin]) if length > 1 else 0
        elif axis in atom.variables:
            if not isinstance(atom, Variable):
                return None
            total += k
    return total


def _repeats(offset: Index, axis: str, lanes: int) -> bool:
    """Whether the entries of a table are, but for its ends, repeated as often as fits into vectors."""
    for atom, k in offset.terms:
        if axis not in atom.variables:
            continue
        if not isinstance(atom, Entry) or k != 1 or atom.at.stride(axis) != 1 or len(atom.at.variables) != 1:
            return False
        found = repetition(atom.values)
        if found is None or lanes % found[2] or 2 * (found[1] - found[0]) < len(atom.values):
            return False
    return True


def _tile_axis(plan: Plan, loops: Pass, looks: dict[int, Look], axis: str) -> str | None:
    """The kept axis along which memory is contiguous that strides along the vector axis."""
    if plan.extents[axis] < _SMALL_BLOCK:
        return None
    votes: dict[str, int] = {}
    for family in loops.families:
        seen = looks[id(family)]
        offsets = [o for o, _ in seen.stores]
        if not family.definitions:
            offsets += [r.offset for r in seen.reads if not r.guards]
        for offset in offsets:
            if offset.stride(axis) in (None, 0, 1):
                continue
            for name in loops.names:
                if name != axis and offset.stride(name) == 1 and plan.extents[name] >= _SMALL_BLOCK:
                    votes[name] = votes.get(name, 0) + 1
    return max(sorted(votes), key=lambda n: votes[n]) if votes else None


def _loop_order(
    plan: Plan, loops: Pass, looks: dict[int, Look], vector: str | None, tile: str | None
) -> tuple[str, ...]:
    """Kept axes from the largest stride in memory to the smallest; the tile and vector axes last."""

    def step(name: str) -> int:
        for family in reversed(loops.families):
            for offset, _ in looks[id(family)].stores:
                return abs(offset.stride(name) or 0)
        strides = [abs(r.offset.stride(name) or 0) for f in loops.families for r in looks[id(f)].reads]
        return max(strides, default=0)

    last = {None: 0, tile: 1, vector: 2}
    return tuple(sorted(loops.names, key=lambda n: (last.get(n, 0), -step(n), n)))


def _ordered_loops(family: Family, seen: Look, vector: str | None) -> tuple[str, ...]:
    """Reduction loops from the largest stride in memory to the smallest; the vector axis last."""

    def step(name: str) -> int:
        return max((abs(r.offset.stride(name) or 0) for r in seen.reads), default=0)

    return tuple(sorted(family.loop_names, key=lambda n: (n == vector, -step(n), n)))


# Groups.


def _groups(plan: Plan, passes: list[PassSchedule], looks: dict[int, Look], lanes: int, grain: float) -> list[Group]:
    """Passes in runs that share enough outer axes; each read value comes from its own group or an earlier one."""
    groups: list[Group] = []
    home: dict[str, int] = {}
    for p in passes:
        own = set(p.loops.values())
        read = {v for f in p.loops.families for v, _ in looks[id(f)].stages} - own
        earliest = max((home[v] for v in read), default=-1)
        if earliest < 0 and groups and _interleaved(plan, groups[-1].passes[-1], p, looks):
            earliest = len(groups) - 1
        at = len(groups)
        if earliest >= 0:
            joined = _joined(plan, [*groups[earliest].passes, p], lanes, grain)
            if joined is not None:
                groups[earliest] = joined
                at = earliest
        if at < len(groups):
            home.update(dict.fromkeys(p.loops.values(), at))
            continue
        group = _alone(plan, p, lanes, grain)
        narrow = group.chunk is None and group.tasks < min(_wanted(p.work, grain), _FEW_TASKS)
        for part in _cut(p) if narrow else [p]:
            home.update(dict.fromkeys(part.loops.values(), len(groups)))
            groups.append(_alone(plan, part, lanes, grain))
    return groups


def _interleaved(plan: Plan, a: PassSchedule, b: PassSchedule, looks: dict[int, Look]) -> bool:
    """Whether two passes write short pieces of one output in turn, as slices along its fastest dimension are."""
    first, second = a.loops.families[-1], b.loops.families[-1]
    common = a.loops.names & b.loops.names
    if first.values != second.values or first.image == second.image or not common:
        return False
    (offset, size), *_ = looks[id(second)].stores
    inner = [offset.stride(n) or 0 for n in b.loops.names - common]
    return max(inner, default=1) < min(offset.stride(n) or 0 for n in common) <= _SHORT_BYTES // size


def _cut(p: PassSchedule) -> list[PassSchedule]:
    """A pass as several, each with one family of reductions, so that each reduction can be split."""
    starts = [k for k, f in enumerate(p.loops.families) if f.definitions and k]
    edges = [0, *starts, len(p.loops.families)]
    return [
        replace(
            p,
            loops=Pass(p.loops.families[a:b], p.loops.names),
            lanes={k - a: lane for k, lane in p.lanes.items() if a <= k < b},
            loop_orders={k - a: order for k, order in p.loop_orders.items() if a <= k < b},
            work=p.work / (len(edges) - 1),
        )
        for a, b in itertools.pairwise(edges)
    ]


def _wanted(work: float, grain: float) -> int:
    """Tasks that work of so many nanoseconds deserves."""
    return 1 if work < 2 * grain else min(_MOST_TASKS, int(work / grain) + 1)


def _joined(plan: Plan, passes: list[PassSchedule], lanes: int, grain: float) -> Group | None:
    """The passes as one group, when their common axes allow enough tasks and the buffers are small."""
    common = frozenset.intersection(*(p.loops.names for p in passes))
    work = sum(p.work for p in passes)
    wanted = _wanted(work, grain)
    before = sum(plan.graph.types[v].bytes for p in passes[:-1] for v in p.loops.values())
    if wanted > 1 and before <= _SMALL_BYTES and passes[-1].work > 8 * sum(p.work for p in passes[:-1]):
        return None  # nothing is gained by keeping close what is small
    # Axes of vectors, and of blocks that are transposed, stay loops of the passes; only their blocks are outer.
    vectors = {n for p in passes for n in (p.vector, p.tile) if n in common}
    order = tuple(n for n in passes[-1].order if n in common)
    blocks = {n: 1 for n in order}
    for name in vectors:
        assert name is not None
        blocks[name] = min(plan.extents[name], 8 * lanes)
    while True:
        group = Group(passes, order, dict(blocks))
        count = {n: math.ceil(plan.extents[n] / blocks[n]) for n in order}
        size = sum(_local_bytes(plan, group, v) for v in group.values())
        enough = math.prod(count.values()) >= min(wanted, _FEW_TASKS)
        if enough and size <= LOCAL_BYTES // 4:
            return _finished(plan, group, count, wanted)
        shrinkable = [n for n in vectors if n is not None and blocks[n] > lanes]
        if not shrinkable:
            if enough and size <= LOCAL_BYTES:
                return _finished(plan, group, count, wanted)
            return None
        for name in shrinkable:
            blocks[name] = max(lanes, blocks[name] // 2 // lanes * lanes)


def _finished(plan: Plan, group: Group, count: dict[str, int], wanted: int) -> Group:
    """The group with its tasks; an axis that is one block needs no outer loop."""
    group.parts = _parts(count, group.outer, wanted)
    group.outer = tuple(n for n in group.outer if group.blocks[n] < plan.extents[n])
    return group


def _alone(plan: Plan, p: PassSchedule, lanes: int, grain: float) -> Group:
    """A pass of its own: tasks cut its kept axes, or its reduction when these do not suffice."""
    wanted = _wanted(p.work, grain)
    group = Group([p])
    if wanted == 1:
        return group
    blocks = {n: 1 for n in p.order}
    if p.vector is not None:
        blocks[p.vector] = 4 * lanes
    if p.tile is not None:
        blocks[p.tile] = lanes
    count = {n: math.ceil(plan.extents[n] / blocks[n]) for n in p.order}
    if math.prod(count.values()) < min(wanted, _FEW_TASKS):
        group.chunk = _chunk(plan, p, wanted, lanes)
    if group.chunk is None:
        group.blocks, group.parts = blocks, _parts(count, p.order, wanted)
    return group


def _chunk(plan: Plan, p: PassSchedule, wanted: int, lanes: int) -> tuple[str, int, int] | None:
    """A loop of the first reduction to split, the size of a piece, and the number of pieces."""
    first = p.loops.families[0]
    if any(f.definitions for f in p.loops.families[1:]) or not first.definitions:
        return None
    if any(d.primitive.startswith("arg") or d.primitive.startswith("window") for d in first.definitions):
        return None
    extents = first.extents()
    if not p.loop_orders[0]:
        return None
    name = max(p.loop_orders[0], key=lambda n: extents[n])
    step = 4 * lanes if p.lanes.get(0) == name else 1
    kept = math.prod(first.kept.extents) * 8
    pieces = min(wanted, extents[name] // (2 * step), SHARED_BYTES // 2 // kept)
    if pieces < 2:
        return None
    size = math.ceil(extents[name] / pieces / step) * step
    return name, size, math.ceil(extents[name] / size)


def _parts(count: dict[str, int], order: tuple[str, ...], wanted: int) -> dict[str, int]:
    """Cuts axes, outermost first, into at least `wanted` tasks in all where possible."""
    parts: dict[str, int] = {}
    for name in order:
        missing = math.ceil(wanted / max(1, math.prod(parts.values())))
        parts[name] = min(count[name], missing)
    return {n: k for n, k in parts.items() if k > 1}


# Buffers.


def _local_shape(plan: Plan, group: Group, value: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    order = next(p.order for p in group.passes if value in set(p.loops.values()))
    axes = tuple(n for n in order if n not in group.outer or group.blocks.get(n, 1) > 1)
    return axes, tuple(min(plan.extents[n], group.blocks[n]) if n in group.outer else plan.extents[n] for n in axes)


def _local_bytes(plan: Plan, group: Group, value: str) -> int:
    return math.prod(_local_shape(plan, group, value)[1]) * plan.graph.types[value].dtype.size


def _buffers(plan: Plan, groups: list[Group], looks: dict[int, Look], lanes: int) -> tuple[dict[str, Buffer], int, int]:
    readers = _readers(plan, groups, looks)
    found: dict[str, Buffer] = {}
    local = shared = 0
    for group in groups:
        for p in group.passes:
            for value in p.loops.values():
                others = [g for g, q in readers.get(value, []) if q is not p]
                if value in plan.graph.output_values:
                    found[value] = Buffer("output")
                elif others:
                    inside = len(group.passes) > 1 and all(g is group for g in others)
                    size = plan.graph.types[value].dtype.size
                    if inside:
                        axes, extents = _local_shape(plan, group, value)
                        found[value] = Buffer("local", local, axes, extents)
                        local += -(-math.prod(extents) * size // 64) * 64
                    else:
                        extents = tuple(plan.extents[n] for n in p.order)
                        found[value] = Buffer("shared", shared, p.order, extents)
                        shared += -(-math.prod(extents) * size // 64) * 64
        if group.chunk:
            for value in group.passes[0].loops.families[0].values:
                order = group.passes[0].order
                extents = (group.chunk[2], *(plan.extents[n] for n in order))
                found[f"partial {value}"] = Buffer("shared", shared, ("", *order), extents)
                shared += -(-math.prod(extents) * 8 // 64) * 64
    return found, local, shared


def _readers(plan: Plan, groups: list[Group], looks: dict[int, Look]) -> dict[str, list[tuple[Group, PassSchedule]]]:
    found: dict[str, list[tuple[Group, PassSchedule]]] = {}
    for group in groups:
        for p in group.passes:
            for family in p.loops.families:
                for value, _ in looks[id(family)].stages:
                    found.setdefault(value, []).append((group, p))
    return found


def _phases(plan: Plan, groups: list[Group], looks: dict[int, Look]) -> list[list[Group]]:
    level: dict[str, int] = {}
    phases: list[list[Group]] = []
    for group in groups:
        own = set(group.values())
        read = {v for p in group.passes for f in p.loops.families for v, _ in looks[id(f)].stages} - own
        at = max((level[v] + 1 for v in read), default=0)
        level.update(dict.fromkeys(own, at))
        while len(phases) <= at:
            phases.append([])
        phases[at].append(group)
    return phases
