"""Direct convolution: a matrix product over the kernel's taps, channels innermost.

Where the channels of neighbouring columns lie side by side, a kernel's row of taps is one contiguous run of
KW*C elements. Padding, and whatever is fused before the convolution, happens when a task copies the rows that it
reads into its scratch; without them the input is read in place.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from korch.codegen.c.index import Index, to_c
from korch.codegen.c.linear.contraction import (
    Contraction,
    Phase,
    blocks_of,
    contraction_source,
    decode,
    panel_chunks,
)
from korch.codegen.c.linear.depthwise import depthwise_kernels
from korch.codegen.c.linear.fuse import Plane, approach, epilogue, prologue
from korch.codegen.c.linear.geometry import Conv, padded_rows, walk_in_place, walk_in_scratch
from korch.codegen.c.linear.operand import Place, no_table, place_of
from korch.codegen.c.linear.problem import Arguments, Constant, Problem, constant_value
from korch.codegen.c.linear.shifted import pays, shifted_kernel
from korch.codegen.c.linear.split import Balanced, Panels, tile_choices, use_half
from korch.codegen.c.linear.winograd import winograd_kernels
from korch.codegen.c.nest_reads import Indices
from korch.codegen.kernel import Argument, Kernel, Packed

# Implementations offered, the most promising first.
CHOICES = 3
# Threads share columns rather than rows below this many output positions, where the weights outweigh the rest.
FEW_ROWS = 400


def pack_conv(panels: Panels, groups: int, weights: np.ndarray) -> np.ndarray:
    """[O, C, kernel…] as panels [group][panel][kernel…, C][width]."""
    o, c = weights.shape[:2]
    w = weights.reshape(groups, o // groups, c, -1)
    rows = np.transpose(w, (0, 3, 2, 1)).reshape(groups, -1, o // groups)
    return panels.pack(rows)


def conv_kernels(problem: Problem) -> tuple[Kernel, ...] | str:
    """Kernels for a convolution with constant weights, one for each promising tile."""
    g = Conv.of(problem)
    if isinstance(g, str):
        return g
    constant_weights = constant_value(problem.fragment, problem.linear.inputs[1])
    if constant_weights is None:
        return "the weights of the convolution are not constant"
    if g.groups > 1 and g.channels == g.outputs == 1:
        return depthwise_kernels(problem, g, constant_weights)
    value = problem.linear.inputs[0]
    place = place_of(problem.fragment, value, g.read_index(problem)) if g.inside else None
    walk = walk_in_place(g, place) if place else None
    depth = (walk or walk_in_scratch(g)).depth
    row_step = (walk or walk_in_scratch(g)).row_step
    tiles = tile_choices(g.outputs, g.length, depth, row_step, problem.target)[:CHOICES]
    direct = (_kernel(problem, g, constant_weights, place if walk else None, *tile) for tile in tiles)
    others = list(winograd_kernels(problem, g, constant_weights))
    if pays(g, problem.target.lanes()):
        others.append(shifted_kernel(problem, g, constant_weights, place if walk else None))
    return (*others, *direct)


def _kernel(problem: Problem, g: Conv, weights: Constant, place: Place | None, rows: int, vectors: int) -> Kernel:
    panels = Panels(g.outputs, problem.target.lanes(), vectors, use_half(g.outputs, problem.target))
    arguments = Arguments()
    key = f"conv {panels.key} groups={g.groups}: {weights.text}"
    packed = arguments.pack(Packed(weights.weights, key, partial(pack_weights, panels, g.groups, weights)))
    source, shared, private = convolution_source(problem, arguments, g, packed, place, panels, rows)
    parameters = (("mr", rows), ("nv", vectors))
    return Kernel("conv", source, tuple(arguments.arguments), parameters, tuple(arguments.packed), shared, private)


def convolution_source(
    problem: Problem,
    arguments: Arguments,
    g: Conv,
    packed: str,
    place: Place | None,
    panels: Panels,
    rows: int,
    made: str = "",
) -> tuple[str, int, int]:
    """The C text of a direct convolution, and its shared and private scratch in bytes.

    `place` is the input's element where it is read in place. `made` are C statements that compute the input rows `lo`
    to `hi` (without padding) at `scratch`, for a convolution of one tap.
    """
    target, value = problem.target, problem.linear.inputs[0]
    outer = (g.images, g.groups)
    positions, tiles = g.rows * g.length, Balanced.of(g.length, rows)
    work = 2.0 * math.prod(outer) * positions * g.outputs * g.depth
    weights, rest = g.depth * g.outputs, g.images * positions * (g.channels + g.outputs)
    by_columns = g.images * positions < FEW_ROWS and weights > 2 * rest and not made
    units = g.rows if g.rows > 1 else tiles.count
    unit_bytes = (g.strides[0] * g.padded[1] * g.channels + g.length * g.outputs) * 4 * g.rows // units
    blocks = Balanced(units, 1) if by_columns else blocks_of(math.prod(outer), units, unit_bytes, work)
    chunks = panel_chunks(panels, weights, work) if by_columns else 1

    walk = (walk_in_place(g, place) if place else None) or walk_in_scratch(g)
    fill, phases, shared, private = "", (), 0, 0
    line = g.padded[1] * g.channels
    step = g.strides[0] * line
    if place is not None:
        source = arguments.pointer(Argument("input", place.value))
        a = f"(const float *){source} + {to_c(place.at(j=0, u=0, v=0, q=0), no_table)}"
    elif g.grid and chunks == 1:
        private = blocks.largest * tiles.largest * g.channels * 4
        pointer = f"scratch - lo * {g.channels}"
        plane = Plane(g.input_index(problem), "lo", "hi", g.channels, pointer, g.channels)
        fill, a = prologue(problem, arguments, value, plane), "scratch"
    elif chunks > 1 or g.rows == 1:
        shared = math.prod(outer) * g.padded[0] * line * 4
        scratch = f"(float *){arguments.pointer(Argument('scratch'))}"
        at = f"(o0 * {g.groups} + o1) * {g.padded[0]}"
        copy = padded_rows(problem, arguments, g, value, "o2", "o2 + 1", f"{scratch} + ({at} + o2) * {line}")
        extents = (*outer, g.padded[0])
        phases = (Phase("pad", math.prod(extents), "\n".join([*decode(extents), copy])),)
        a = f"{scratch} + {at} * {line} + i * {step}"
    else:
        private = ((blocks.largest - 1) * g.strides[0] + g.reach[0]) * line * 4
        first, last = f"lo * {g.strides[0]}", f"(hi - 1) * {g.strides[0]} + {g.reach[0]}"
        fill = made or padded_rows(problem, arguments, g, value, first, last, "scratch")
        a = f"scratch + (i - lo) * {step}"

    def result(j: Index, c: Index) -> Indices:
        return g.result_index(problem, j, c)

    after = epilogue(problem, arguments, result, g.length, g.outputs)
    before = approach(after)
    b = f"(const float *){packed} + o1 * {panels.floats(g.depth)}"
    contraction = Contraction(
        outer, g.rows, g.length, walk, a, b, after, rows, panels, blocks, chunks, fill, phases, before
    )
    return contraction_source(contraction, target), shared, private


def pack_weights(panels: Panels, groups: int, weights: Constant, *arrays: np.ndarray) -> np.ndarray:
    """What packs a constant: `pack_conv` of its value (a partial function of it can be sent to another process)."""
    return pack_conv(panels, groups, weights.evaluate(*arrays))
