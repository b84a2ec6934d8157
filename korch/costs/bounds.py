"""A lower bound on the time of any kernel for a fragment: work over measured ceilings (the roofline model of
Williams, Waterman and Patterson, CACM 2009, with one bandwidth per cache level).

What a kernel may leave out does not count: elements that no output needs, what copies of one element have in common,
what weights alone decide (it may be packed beforehand), taps that lie in the padding, and the multiplications that
Winograd's algorithm saves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE


@dataclass(frozen=True)
class Ceilings:
    """What this machine can do at best with the threads at hand: the highest ever seen, plus a margin.

    `flops_per_us` counts float32 multiply and add apart. `bandwidths` pairs a footprint in bytes with the bytes
    per microsecond that may be moved when all data touched is at most that large; ascending, the last is memory.
    """

    flops_per_us: float
    bandwidths: tuple[tuple[int, float], ...]
    launch_us: float

    def bandwidth(self, footprint: int) -> float:
        """Bytes per microsecond for data that occupies `footprint` bytes."""
        return next((rate for size, rate in self.bandwidths if footprint <= size), self.bandwidths[-1][1])

    def highest(self, other: Ceilings) -> Ceilings:
        """The higher of the two in everything. KeyError when they are for other footprints."""
        rates = dict(other.bandwidths)
        return Ceilings(
            max(self.flops_per_us, other.flops_per_us),
            tuple((size, max(rate, rates[size])) for size, rate in self.bandwidths),
            min(self.launch_us, other.launch_us),
        )


@dataclass(frozen=True)
class Work:
    """What a fragment must do at least: operations as of float32 elements, and bytes read and written."""

    flops: float
    bytes: int


# Operations per element of the primitives that are more than one instruction (a sound undercount).
_OPERATIONS = {
    **dict.fromkeys(("exp", "log", "tanh", "erf", "log1p", "expm1", "sin", "cos"), 8.0),
    **dict.fromkeys(("div", "sqrt"), 2.0),
    **dict.fromkeys(("cast", "bitcast"), 0.0),
}
_WINOGRAD = 4.0  # F(4x4, 3x3) multiplies 36 times where the definition does 144 times
_PACKED_INTEGERS = 4.0  # integer products may come four to a lane


def lower_bound(fragment: Fragment, ceilings: Ceilings) -> float:
    """Microseconds that no kernel for this fragment can beat."""
    work = work_of(fragment)
    return ceilings.launch_us + max(work.flops / ceilings.flops_per_us, work.bytes / ceilings.bandwidth(work.bytes))


def work_of(fragment: Fragment) -> Work:
    """The least work of a fragment: every needed operation once, every needed input byte and output byte once."""
    graph = fragment.graph
    own = _own_elements(fragment)
    needed = _needed_elements(fragment, own)
    flops = 0.0
    for d in graph.definitions:
        out = d.outputs[0]
        if needed[out] and own[out]:
            flops += _operations(graph, d, needed[out], own) * _width(graph, d)
    values = dict.fromkeys(graph.input_values)
    read = sum(needed[v] * graph.types[v].dtype.size for v in values)
    written = sum(graph.types[v].bytes for v in dict.fromkeys(graph.output_values))
    return Work(flops, read + written)


def flops_of(graph: Graph, definition: Definition) -> float:
    """Float operations of one definition done in full, multiply and add counted apart; 0 for what only moves data."""
    own = {v: graph.types[v].elements for v in (*definition.inputs, *definition.outputs)}
    return _operations(graph, definition, own[definition.outputs[0]], own)


def _width(graph: Graph, d: Definition) -> float:
    """The share of a float32 lane that an element takes at least: narrow ones come more to a vector."""
    size = max(graph.types[v].dtype.size for v in (*d.inputs, *d.outputs))
    return min(1.0, size / 4)


def _own_elements(fragment: Fragment) -> dict[str, int]:
    """For each value, how many elements are not copies of others by broadcasting; 0 for what weights alone decide."""
    types = fragment.graph.types
    own = dict.fromkeys(fragment.graph.constants, 0)
    own |= {v: 0 if v in fragment.weights else types[v].elements for v in fragment.graph.input_values}
    for d in fragment.graph.definitions:
        kind, inputs = TABLE[d.primitive].kind, [own[v] for v in d.inputs]
        for v in d.outputs:
            whole = types[v].elements
            if kind in ("elementwise", "broadcast"):
                own[v] = min(whole, max(inputs))
            elif kind == "layout":
                own[v] = min(whole, sum(inputs))
            else:
                own[v] = whole if any(inputs) else 0
    return own


def _needed_elements(fragment: Fragment, own: Mapping[str, int]) -> dict[str, int]:
    """For each value, how many of its elements the outputs need at least."""
    graph = fragment.graph
    needed = dict.fromkeys(graph.types, 0)
    needed |= {v: graph.types[v].elements for v in graph.output_values}
    for d in reversed(graph.definitions):
        wanted = max(needed[v] for v in d.outputs)
        packed = not any(own[v] for v in d.outputs)
        for position, v in enumerate(d.inputs):
            read = min(graph.types[v].elements, wanted) if packed else _read(graph, d, position, wanted)
            needed[v] = max(needed[v], read)
    return needed


def _read(graph: Graph, d: Definition, position: int, wanted: int) -> int:
    """How many elements of an input are read at least, where `wanted` of the first output are needed."""
    name, whole = d.primitive, graph.types[d.inputs[position]].elements
    out = graph.types[d.outputs[0]].elements
    everything = wanted >= out
    if not wanted or not whole:
        return 0
    if TABLE[name].kind == "elementwise" or name in ("reshape", "transpose", "slice"):
        return min(whole, wanted)
    if name == "concat":
        return max(0, wanted - (out - whole))
    if name == "pad":
        kept = _kept(graph, d)
        return max(0, wanted - (out - kept))
    if name.startswith(("reduce_", "arg_")):
        return whole * wanted // out
    if name.startswith("gather"):
        return whole if everything and position == 1 else 1
    if name.startswith("scatter"):
        updates = graph.types[d.inputs[2]].elements
        return (max(0, whole - updates), whole, 1)[position]
    if not everything:
        return 1
    if name == "take":
        chosen = d.ints("indices")
        return whole // graph.types[d.inputs[0]].shape[d.int("axis")] * len(set(chosen))
    if name.startswith("window_"):
        return math.prod(touched for touched, _, _ in _axes(graph, d))
    if name in ("conv", "conv_transpose"):
        of = graph.types[d.inputs[position]].shape[:2]
        return math.prod(of) * math.prod(axis[position] for axis in _axes(graph, d))
    if name == "resample":
        used = {i for row in _resample_rows(d) for i in row}
        return whole // graph.types[d.inputs[0]].shape[d.int("axis")] * len(used)
    return whole


def _operations(graph: Graph, d: Definition, wanted: int, own: Mapping[str, int]) -> float:
    """Operations for `wanted` elements of the output; `own` as of `_own_elements`."""
    name, kind = d.primitive, TABLE[d.primitive].kind
    first, out = graph.types[d.inputs[0]], graph.types[d.outputs[0]]
    share = wanted / out.elements if out.elements else 0.0
    if kind == "elementwise":
        return _OPERATIONS.get(name, 1.0) * min(wanted, own[d.outputs[0]])
    if name.startswith(("reduce_", "arg_")):
        return share * own[d.inputs[0]]
    if name.startswith("window_") or name == "cumsum":
        return float(wanted)
    if name == "matmul":
        products = 2.0 * wanted * first.shape[-1]
        return products if first.dtype.is_float else products / _PACKED_INTEGERS
    if name in ("conv", "conv_transpose"):
        weight = graph.types[d.inputs[1]].shape
        channels = out.shape[1] * weight[1] if name == "conv" else first.shape[1] * weight[1]
        products = 2.0 * share * out.shape[0] * channels * math.prod(taps for _, _, taps in _axes(graph, d))
        return products / (_WINOGRAD if _may_be_winograd(d, weight) else 1.0)
    if name == "resample":
        rows = _resample_rows(d)
        return float(wanted) * sum(len(row) > 1 for row in rows) / max(1, len(rows))
    return 0.0


def _may_be_winograd(d: Definition, weight: tuple[int, ...]) -> bool:
    steps = {*d.ints("strides"), *d.ints("dilations"), d.int("groups")}
    return d.primitive == "conv" and weight[2:] == (3, 3) and steps == {1}


def _resample_rows(d: Definition) -> list[set[int]]:
    """For each place along the axis of the output, the places of the input that weigh on it."""
    indices, weights = d.attribute("indices"), d.attribute("weights")
    assert isinstance(indices, tuple) and isinstance(weights, tuple)
    rows: list[set[int]] = []
    for places, shares in zip(indices, weights, strict=True):
        assert isinstance(places, tuple) and isinstance(shares, tuple)
        rows.append({int(i) for i, w in zip(places, shares, strict=True) if w})  # type: ignore[arg-type]
    return rows


def _kept(graph: Graph, d: Definition) -> int:
    """Elements of a pad's input that are in its output."""
    x, shape = graph.types[d.inputs[0]].shape, d.ints("shape")
    spans = zip(x, d.ints("before"), shape, strict=True)
    return math.prod(max(0, min(n + before, size) - max(before, 0)) for n, before, size in spans)


def _axes(graph: Graph, d: Definition) -> list[tuple[int, int, int]]:
    """For each axis that a window or kernel slides along: how many places of the input and of the kernel are used,
    and how many pairs of both (places in the padding left out)."""
    x, out = graph.types[d.inputs[0]].shape, graph.types[d.outputs[0]].shape
    strides, dilations, pads = d.ints("strides"), d.ints("dilations"), d.ints("pads")
    if d.primitive.startswith("window_"):
        kernel = d.ints("window")
    else:
        kernel, x, out = graph.types[d.inputs[1]].shape[2:], x[2:], out[2:]
    slides = zip(x, out, kernel, strides, dilations, pads[: len(kernel)], strict=True)
    if d.primitive == "conv_transpose":  # each input place sends to output places as an output of conv reads inputs
        swapped = [_slide(m, n, k, s, e, p) for n, m, k, s, e, p in slides]
        return [(sending, taps, pairs) for _, taps, pairs, sending in swapped]
    return [(read, taps, pairs) for read, taps, pairs, _ in (_slide(*slide) for slide in slides)]


@functools.lru_cache(maxsize=4096)
def _slide(size: int, count: int, kernel: int, stride: int, dilation: int, pad: int) -> tuple[int, int, int, int]:
    """`count` positions of a kernel along `size` places: how many places, taps, pairs and positions are used."""
    pairs = [
        (i, t, place)
        for i in range(count)
        for t in range(kernel)
        if 0 <= (place := i * stride + t * dilation - pad) < size
    ]
    return len({p for _, _, p in pairs}), len({t for _, t, _ in pairs}), len(pairs), len({i for i, _, _ in pairs})
