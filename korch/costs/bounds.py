"""A lower bound on the time of any kernel for a fragment: work over measured ceilings (the roofline model of
Williams, Waterman and Patterson, CACM 2009, with one bandwidth per cache level)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph


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


@dataclass(frozen=True)
class Work:
    """What a fragment must do at least: float operations, and bytes read and written."""

    flops: float
    bytes: int


# Operations per element of the primitives that are more than one instruction (a sound undercount).
_OPERATIONS = {
    **dict.fromkeys(("exp", "log", "tanh", "erf", "log1p", "expm1", "sin", "cos", "pow"), 8.0),
    "div": 2.0,
    "sqrt": 2.0,
}
# Primitives that need not read the whole of their first input.
_SELECTIVE = frozenset({"slice", "take", "gather", "gather_elements", "gather_nd", "window_max", "window_sum", "conv"})


def flops_of(graph: Graph, definition: Definition) -> float:
    """Float operations of one definition, multiply and add counted apart; 0 for what only moves data."""
    out = graph.types[definition.outputs[0]]
    if definition.primitive == "matmul":
        return 2.0 * out.elements * graph.types[definition.inputs[0]].shape[-1]
    if definition.primitive == "conv":
        return 2.0 * out.elements * math.prod(graph.types[definition.inputs[1]].shape[1:])
    if definition.primitive == "conv_transpose":
        return 2.0 * graph.types[definition.inputs[0]].elements * math.prod(graph.types[definition.inputs[1]].shape[1:])
    if definition.primitive.startswith(("reduce_", "arg_")):
        return float(graph.types[definition.inputs[0]].elements)
    if definition.primitive.startswith("window_"):
        return float(out.elements)
    if definition.primitive in (
        "broadcast",
        "reshape",
        "transpose",
        "slice",
        "pad",
        "concat",
        "take",
        "cast",
    ):
        return 0.0
    return _OPERATIONS.get(definition.primitive, 1.0) * out.elements


def _least_flops(graph: Graph, definition: Definition) -> float:
    """As `flops_of`, but a convolution of 3x3 with stride, dilation and groups of 1 counts for the quarter that
    Winograd's F(4x4,3x3) needs."""
    flops = flops_of(graph, definition)
    if definition.primitive != "conv" or graph.types[definition.inputs[1]].shape[2:] != (3, 3):
        return flops
    ones = (*definition.ints("strides"), *definition.ints("dilations"), definition.int("groups"))
    return flops / 4 if all(n == 1 for n in ones) else flops


def work_of(fragment: Fragment) -> Work:
    """The least work of a fragment: every operation once, every needed input byte and output byte once."""
    graph = fragment.graph
    users = graph.users()
    moved = sum(graph.types[v].bytes for v in dict.fromkeys(graph.output_values))
    for value in dict.fromkeys(graph.input_values):
        whole, needed = graph.types[value].bytes, 0
        for i in users[value]:
            d = graph.definitions[i]
            if d.primitive in _SELECTIVE and d.inputs[0] == value:
                size = graph.types[value].dtype.size
                needed = max(needed, min(whole, sum(graph.types[v].elements for v in d.outputs) * size))
            else:
                needed = whole
        moved += needed
    return Work(sum(_least_flops(graph, d) for d in graph.definitions), moved)


def lower_bound(fragment: Fragment, ceilings: Ceilings) -> float:
    """Microseconds that no kernel for this fragment can beat."""
    work = work_of(fragment)
    return ceilings.launch_us + max(work.flops / ceilings.flops_per_us, work.bytes / ceilings.bandwidth(work.bytes))
