"""Which layouts each value may have, and how a primitive carries the layout of one operand to another.

Every value may be row-major. Around convolutions and pooling values may also lie channels-last; what a reshape
or a transpose makes of a layout is a layout too, so that, for instance, flattening and transposing an image held
channels-last into tokens moves nothing. The model's inputs and outputs and constants are row-major only.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from korch.candidates.groups import live_definitions
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE

_SAME_ORDER = frozenset({"slice", "pad", "concat", "take", "resample", "window_sum", "window_max"})
_IMAGES = frozenset({"conv", "conv_transpose", "window_sum", "window_max"})
_CONVOLUTIONS = frozenset({"conv", "conv_transpose"})
MOVES = frozenset({"reshape", "transpose"})

Order = tuple[int, ...]


def carried(graph: Graph, definition: Definition, operand: int, layout: Layout) -> Layout | None:
    """The layout that the output has when it keeps that of the input at position `operand`; None where nothing
    follows from it (a broadcast's new dimensions may lie anywhere)."""
    source = graph.types[definition.inputs[operand]].shape
    target = graph.types[definition.outputs[0]].shape
    order = _forward(definition, operand, layout.order, source, target)
    return None if order is None or layout.strides is not None else Layout.canonical(target, order)


def returned(graph: Graph, definition: Definition, operand: int, layout: Layout) -> Layout | None:
    """The inverse: the layout of that input when the output has this one; None where nothing follows from it
    (a reduction's dropped dimensions may have lain anywhere)."""
    source = graph.types[definition.inputs[operand]].shape
    target = graph.types[definition.outputs[0]].shape
    order = _backward(definition, operand, layout.order, source, target)
    return None if order is None or layout.strides is not None else Layout.canonical(source, order)


def _forward(d: Definition, operand: int, order: Order, source: Order, target: Order) -> Order | None:
    kind = TABLE[d.primitive].kind
    if kind == "elementwise" or d.primitive in _SAME_ORDER:
        return order
    if d.primitive in _CONVOLUTIONS:
        return order if operand == 0 and _is_image(order, source) else None
    if d.primitive == "transpose":
        perm = d.ints("perm")
        return tuple(perm.index(axis) for axis in order)
    if d.primitive == "reshape":
        return _reshaped(order, source, target)
    if kind == "reduce":
        axes = (d.int("axis"),) if d.primitive in ("arg_max", "arg_min") else d.ints("axes")
        left = [axis for axis in range(len(source)) if axis not in axes]
        return tuple(left.index(axis) for axis in order if axis in left)
    return None


def _backward(d: Definition, operand: int, order: Order, source: Order, target: Order) -> Order | None:
    kind = TABLE[d.primitive].kind
    if kind == "elementwise" or d.primitive in _SAME_ORDER:
        return order
    if d.primitive in _CONVOLUTIONS:
        return order if operand == 0 and _is_image(order, target) else None
    if d.primitive == "transpose":
        perm = d.ints("perm")
        return tuple(perm[axis] for axis in order)
    if d.primitive == "reshape":
        return _reshaped(order, target, source)
    if d.primitive == "broadcast":
        axes = d.ints("axes")
        return tuple(axes.index(axis) for axis in order if axis in axes)
    return None


def _is_image(order: Order, shape: Order) -> bool:
    layout = Layout.canonical(shape, order)
    return layout in (Layout.row_major(shape), Layout.channels_last(shape))


def _reshaped(order: Order, source: Order, target: Order) -> Order | None:
    """The order after a reshape: runs of dimensions with equal products correspond, and a run that is split or
    merged must lie in memory as one row-major piece."""
    if math.prod(source) == 0:
        return None
    first: dict[int, tuple[list[int], list[int]]] = {}
    for ins, outs in _runs(source, target):
        first[ins[0]] = (ins, outs)
    dense = [axis for axis in order if source[axis] != 1]
    found = [axis for axis in range(len(target)) if target[axis] == 1]
    at = 0
    while at < len(dense):
        if dense[at] not in first:
            return None
        ins, outs = first[dense[at]]
        if dense[at : at + len(ins)] != ins:
            return None
        found.extend(outs)
        at += len(ins)
    return tuple(found)


def _runs(source: Order, target: Order) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions (those of size 1 left out) whose sizes have equal products."""
    left = [axis for axis in range(len(source)) if source[axis] != 1]
    right = [axis for axis in range(len(target)) if target[axis] != 1]
    i = j = 0
    while i < len(left):
        ins, outs = [left[i]], [right[j]]
        a, b = source[left[i]], target[right[j]]
        while a != b:
            if a < b:
                i += 1
                ins.append(left[i])
                a *= source[left[i]]
            else:
                j += 1
                outs.append(right[j])
                b *= target[right[j]]
        yield ins, outs
        i, j = i + 1, j + 1


def layouts_of(graph: Graph, limit: int = 3) -> dict[str, tuple[Layout, ...]]:
    """The layouts of every value, row-major first, at most `limit` each.

    Channels-last starts at the data and the output of convolutions and pooling and spreads through everything
    that keeps or carries it. What a transpose makes of a row-major operand spreads through reshapes and
    transposes only: it serves the kernels beside it (a head read in place, a key matrix read transposed).
    """
    fixed = {*graph.constants, *graph.input_values, *graph.output_values}
    found = {v: [Layout.row_major(t.shape)] for v, t in graph.types.items()}
    live = live_definitions(graph)
    touching: dict[str, list[int]] = {v: [] for v in graph.types}
    for i in sorted(live):
        d = graph.definitions[i]
        for v in dict.fromkeys((*d.inputs, *d.outputs)):
            touching[v].append(i)

    def spread(seeds: Iterable[tuple[str, Layout]], through: frozenset[str] | None) -> None:
        waiting = deque(seeds)
        while waiting:
            value, layout = waiting.popleft()
            if value in fixed or layout in found[value] or len(found[value]) >= limit:
                continue
            found[value].append(layout)
            for i in touching[value]:
                if through is None or graph.definitions[i].primitive in through:
                    waiting.extend(_next(graph, graph.definitions[i], value, layout))

    spread(_channels_last(graph, live), None)
    spread(_transposed(graph, live), MOVES)
    return {v: tuple(layouts) for v, layouts in found.items()}


def _next(graph: Graph, d: Definition, value: str, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """What follows for the other values of a definition from the layout of one."""
    for k, v in enumerate(d.inputs):
        if v == value:
            there = carried(graph, d, k, layout)
            if there is not None:
                yield d.outputs[0], there
        elif value == d.outputs[0]:
            there = returned(graph, d, k, layout)
            if there is not None:
                yield v, there


def _channels_last(graph: Graph, live: Iterable[int]) -> Iterator[tuple[str, Layout]]:
    for i in sorted(live):
        d = graph.definitions[i]
        if d.primitive in _IMAGES:
            for v in (d.inputs[0], d.outputs[0]):
                yield v, Layout.channels_last(graph.types[v].shape)


def _transposed(graph: Graph, live: Iterable[int]) -> Iterator[tuple[str, Layout]]:
    for i in sorted(live):
        d = graph.definitions[i]
        if d.primitive == "transpose":
            x, y = d.inputs[0], d.outputs[0]
            there = carried(graph, d, 0, Layout.row_major(graph.types[x].shape))
            back = returned(graph, d, 0, Layout.row_major(graph.types[y].shape))
            assert there is not None and back is not None
            yield y, there
            yield x, back


@dataclass(frozen=True)
class Placements:
    """The layouts of all values, and how each definition links them.

    Nodes number the pairs of a value and one of its layouts: `nodes[value]` are its nodes, row-major first,
    `layouts` and `values` say what they are. `sure[node]` are pairs (definition, node at another operand of it
    that follows from this one); `unsure[node]` those that agree with it where several may.
    """

    nodes: Mapping[str, tuple[int, ...]]
    values: tuple[str, ...]
    layouts: tuple[Layout, ...]
    sure: tuple[tuple[tuple[int, int], ...], ...]
    unsure: tuple[tuple[tuple[int, int], ...], ...]


def placements_of(graph: Graph, layouts: Mapping[str, tuple[Layout, ...]]) -> Placements:
    """The links between the layouts of a graph's values."""
    nodes: dict[str, tuple[int, ...]] = {}
    values: list[str] = []
    flat: list[Layout] = []
    for v, choices in layouts.items():
        nodes[v] = tuple(range(len(flat), len(flat) + len(choices)))
        values.extend(v for _ in choices)
        flat.extend(choices)
    sure: list[list[tuple[int, int]]] = [[] for _ in flat]
    unsure: list[list[tuple[int, int]]] = [[] for _ in flat]
    for i, d in enumerate(graph.definitions):
        for k, x in enumerate(d.inputs):
            if x in graph.constants or TABLE[d.primitive].kind in ("gather", "opaque"):
                continue
            there = {n: carried(graph, d, k, flat[n]) for n in nodes[x]}
            back = {m: returned(graph, d, k, flat[m]) for m in nodes[d.outputs[0]]}
            for n, m in itertools.product(there, back):
                forward, backward = there[n] == flat[m], back[m] == flat[n]
                if forward or backward:
                    (sure if forward else unsure)[n].append((i, m))
                    (sure if backward else unsure)[m].append((i, n))
    return Placements(nodes, tuple(values), tuple(flat), tuple(map(tuple, sure)), tuple(map(tuple, unsure)))


def assignments(
    places: Placements,
    definitions: Sequence[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    limit: int = 24,
) -> list[tuple[int, ...]]:
    """Nodes for the inputs and the outputs, in that order: the combinations of layouts worth having.

    The layout of each input and output is carried through the definitions as far as it goes. Boundary values
    that so depend on each other move together: all row-major, as any of them wants it, and with the inputs or
    the outputs row-major (a conversion on the way). Parts that do not meet (the two factors of a matmul) are
    combined freely, up to `limit` combinations.
    """
    boundary = tuple(dict.fromkeys((*inputs, *outputs)))
    plain = tuple(places.nodes[v][0] for v in (*inputs, *outputs))
    if all(len(places.nodes[v]) == 1 for v in boundary):
        return [plain]
    members = frozenset(definitions)
    reached = {n: _reach(places, members, n) for v in boundary for n in places.nodes[v]}
    found: list[dict[str, int]] = [{}]
    for part in _parts(places, boundary, reached):
        choices = _part_choices(places, part, reached, set(inputs), set(outputs))
        found = [a | b for a in found for b in choices][: max(limit, 1)]
    return list(dict.fromkeys(tuple(a[v] for v in (*inputs, *outputs)) for a in found))


def _reach(places: Placements, definitions: frozenset[int], start: int) -> dict[str, int]:
    """The node of every value that the layout of one value determines, itself included: breadth first, and
    where several agree, the first, once nothing else is certain."""
    found = {places.values[start]: start}
    certain, possible = deque([start]), deque[int]()
    while certain or possible:
        if certain:
            node, links = certain.popleft(), places.sure
            possible.append(node)
        else:
            node, links = possible.popleft(), places.unsure
        for d, m in links[node]:
            if d in definitions and places.values[m] not in found:
                found[places.values[m]] = m
                certain.append(m)
    return found


def _parts(places: Placements, boundary: Sequence[str], reached: Mapping[int, Mapping[str, int]]) -> list[list[str]]:
    """The boundary values, those together of which one's layout determines the other's."""
    part_of = {v: {v} for v in boundary}
    for v in boundary:
        for n in places.nodes[v]:
            for w in reached[n]:
                if w in part_of and part_of[w] is not part_of[v]:
                    part_of[v] |= part_of[w]
                    for u in part_of[w]:
                        part_of[u] = part_of[v]
    distinct = {id(part): part for part in part_of.values()}
    return [[v for v in boundary if v in part] for part in distinct.values()]


def _part_choices(
    places: Placements,
    part: Sequence[str],
    reached: Mapping[int, Mapping[str, int]],
    inputs: set[str],
    outputs: set[str],
) -> list[dict[str, int]]:
    """The layouts of values that move together, all row-major first."""
    plain = {v: places.nodes[v][0] for v in part}
    found = [plain]
    few = sum(v in inputs for v in part) <= 4
    for v in part:
        for n in places.nodes[v]:
            whole = plain | {w: m for w, m in reached[n].items() if w in plain}
            found.append(whole)
            if few:
                found.append(plain | {w: whole[w] for w in part if w in outputs})
                found.append(plain | {w: whole[w] for w in part if w in inputs})
    return [dict(items) for items in dict.fromkeys(tuple(choice.items()) for choice in found)]
