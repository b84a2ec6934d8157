"""Direct convolution: a matrix product over the kernel's taps, channels innermost.

Where the channels of neighbouring columns lie side by side, a kernel's row of taps is one contiguous run of
KW*C elements. Padding, and whatever is fused before the convolution, happens when a task copies the rows that it
reads into its scratch; without them the input is read in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from korch.codegen.c.index import Index, to_c, variable
from korch.codegen.c.linear.contraction import (
    SMALL_WORK,
    Contraction,
    Phase,
    blocks_of,
    contraction_source,
    decode,
)
from korch.codegen.c.linear.fuse import Plane, epilogue, prologue
from korch.codegen.c.linear.operand import Place, no_table, place_of
from korch.codegen.c.linear.problem import Arguments, Constant, Problem, constant_value
from korch.codegen.c.linear.split import Balanced, Panels, tile_choices, use_half
from korch.codegen.c.linear.tile import Walk
from korch.codegen.c.nest_reads import Indices
from korch.codegen.kernel import Argument, Kernel, Packed, Packer

# Implementations offered, the most promising first.
CHOICES = 3
# Threads share columns rather than rows below this many output positions, where the weights outweigh the rest.
FEW_ROWS = 400
MOST_CHUNKS = 32


@dataclass(frozen=True)
class Conv:
    """The geometry of a convolution of images [N, C, H, W] (a signal [N, C, W] has H = 1)."""

    images: int
    groups: int
    channels: int  # of a group
    height: int
    width: int
    outputs: int  # of a group
    rows: int
    length: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]  # before

    @staticmethod
    def of(problem: Problem) -> Conv | str:
        definition = problem.linear
        x, w = (problem.shape(v) for v in definition.inputs)
        y = problem.shape(problem.result)
        n = len(x) - 2
        if n > 2:
            return f"a convolution over {n} dimensions"

        def pair(values: tuple[int, ...], first: int) -> tuple[int, int]:
            return (values[0], values[1]) if n == 2 else (first, values[0])

        groups = definition.int("groups")
        height, width = pair(x[2:], 1)
        rows, length = pair(y[2:], 1)
        return Conv(
            x[0],
            groups,
            w[1],
            height,
            width,
            w[0] // groups,
            rows,
            length,
            pair(w[2:], 1),
            pair(definition.ints("strides"), 1),
            pair(definition.ints("dilations"), 1),
            pair(definition.ints("pads")[:n], 0),
        )

    @property
    def depth(self) -> int:
        return self.channels * self.kernel[0] * self.kernel[1]

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns that one output reads over."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))  # type: ignore[return-value]

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns, from the first pad on, that the outputs read."""
        counts = ((self.rows, self.length), self.strides, self.reach)
        return tuple((n - 1) * s + r for n, s, r in zip(*counts, strict=True))  # type: ignore[return-value]

    @property
    def inside(self) -> bool:
        """Whether no tap of any output lies outside of the input."""
        ends = (a - p for a, p in zip(self.padded, self.pads, strict=True))
        return max(self.pads) <= 0 and all(e <= n for e, n in zip(ends, (self.height, self.width), strict=True))

    def read_index(self, problem: Problem) -> Indices:
        """The input element that an output reads: image o0, group o1, i, j, taps u and v, channel q."""
        u, v = variable("u", 0, self.kernel[0] - 1), variable("v", 0, self.kernel[1] - 1)
        row = variable("i", 0, self.rows - 1) * self.strides[0] + u * self.dilations[0] - self.pads[0]
        column = variable("j", 0, self.length - 1) * self.strides[1] + v * self.dilations[1] - self.pads[1]
        return self._index(problem, variable("q", 0, self.channels - 1), self.channels, row, column)

    def input_index(self, problem: Problem) -> Indices:
        """The input element of image o0, group o1, row h, column w, channel q."""
        h, w = variable("h", 0, self.height - 1), variable("w", 0, self.width - 1)
        return self._index(problem, variable("q", 0, self.channels - 1), self.channels, h, w)

    def result_index(self, problem: Problem, j: Index, c: Index) -> Indices:
        """The output element of image o0, group o1, row i, column j, channel c."""
        return self._index(problem, c, self.outputs, variable("i", 0, self.rows - 1), j)

    def _index(self, problem: Problem, channel: Index, channels: int, row: Index, column: Index) -> Indices:
        image, group = variable("o0", 0, self.images - 1), variable("o1", 0, self.groups - 1)
        rank = len(problem.shape(problem.result))
        return (image, group * channels + channel, *((row, column) if rank == 4 else (column,)))


def merged(row_step: int, taps: list[tuple[int, int]], run: int, run_step: int) -> Walk:
    """Taps that continue each other's run become one."""
    taps = [tap for tap in taps if tap[0] > 1]
    if run == 1 and taps:
        run, run_step = taps.pop()
    while taps and taps[-1][1] == run * run_step:
        run *= taps.pop()[0]
    return Walk(row_step, tuple(taps), run, run_step)


def walk_in_place(g: Conv, place: Place) -> Walk | None:
    """How a tile reads the input itself; None when it is not a sum of strides."""
    steps = [place.step(name) for name in ("j", "u", "v", "q")]
    if any(s is None for s in steps):
        return None
    j, u, v, q = (s or 0 for s in steps)
    return merged(j, [(g.kernel[0], u), (g.kernel[1], v)], g.channels, q)


def walk_in_scratch(g: Conv) -> Walk:
    """How a tile reads padded rows [row][column][channel]."""
    width = g.channels
    taps = [(g.kernel[0], g.dilations[0] * g.padded[1] * width), (g.kernel[1], g.dilations[1] * width)]
    return merged(g.strides[1] * width, taps, g.channels, 1)


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
    value = problem.linear.inputs[0]
    place = place_of(problem.fragment, value, g.read_index(problem)) if g.inside else None
    walk = walk_in_place(g, place) if place else None
    depth = (walk or walk_in_scratch(g)).depth
    row_step = (walk or walk_in_scratch(g)).row_step
    tiles = tile_choices(g.outputs, g.length, depth, row_step, problem.target)[:CHOICES]
    return tuple(_kernel(problem, g, constant_weights, place if walk else None, *tile) for tile in tiles)


def _kernel(problem: Problem, g: Conv, weights: Constant, place: Place | None, rows: int, vectors: int) -> Kernel:
    target, value = problem.target, problem.linear.inputs[0]
    panels = Panels(g.outputs, target.lanes(), vectors, use_half(g.outputs, target))
    arguments = Arguments()
    key = f"conv panels of {vectors}x{panels.lanes}{'h' if panels.half else ''} groups={g.groups}: {weights.text}"
    packed = arguments.pack(Packed(weights.weights, key, _packer(panels, g.groups, weights)))

    outer = (g.images, g.groups)
    work = 2.0 * math.prod(outer) * g.rows * g.length * g.outputs * g.depth
    unit_bytes = (g.strides[0] * g.padded[1] * g.channels + g.length * g.outputs) * 4
    positions = g.images * g.rows * g.length
    by_columns = positions < FEW_ROWS and g.depth * g.outputs > 2 * positions * (g.channels + g.outputs)
    blocks = Balanced(g.rows, 1) if by_columns else blocks_of(math.prod(outer), g.rows, unit_bytes, work)
    if g.rows == 1:
        blocks = Balanced(Balanced.of(g.length, rows).count, 1)
    chunks = min(panels.count, MOST_CHUNKS) if by_columns and work >= SMALL_WORK else 1

    fill, phases, shared, private = "", (), 0, 0
    line, step = g.padded[1] * g.channels, g.strides[0] * g.padded[1] * g.channels
    if place is not None:
        walk = walk_in_place(g, place)
        source = arguments.pointer(Argument("input", place.value))
        a = f"(const float *){source} + {to_c(place.at(j=0, u=0, v=0, q=0), no_table)}"
    elif chunks > 1 or g.rows == 1:
        walk = walk_in_scratch(g)
        shared = math.prod(outer) * g.padded[0] * line * 4
        scratch = f"(float *){arguments.pointer(Argument('scratch'))}"
        at = f"(o0 * {g.groups} + o1) * {g.padded[0]}"
        copy = padded_rows(problem, arguments, g, value, "o2", "o2 + 1", f"{scratch} + ({at} + o2) * {line}")
        extents = (*outer, g.padded[0])
        phases = (Phase("pad", math.prod(extents), "\n".join([*decode(extents), copy])),)
        a = f"{scratch} + {at} * {line} + i * {step}"
    else:
        walk = walk_in_scratch(g)
        private = ((blocks.largest - 1) * g.strides[0] + g.reach[0]) * line * 4
        first, last = f"lo * {g.strides[0]}", f"(hi - 1) * {g.strides[0]} + {g.reach[0]}"
        fill = padded_rows(problem, arguments, g, value, first, last, "scratch")
        a = f"scratch + (i - lo) * {step}"
    assert walk is not None
    finish = epilogue(problem, arguments, lambda j, c: g.result_index(problem, j, c), g.length, g.outputs)
    b = f"(const float *){packed} + o1 * {panels.floats(g.depth)}"
    contraction = Contraction(outer, g.rows, g.length, walk, a, b, finish, rows, panels, blocks, chunks, fill, phases)
    source = contraction_source(contraction, target)
    parameters = (("mr", rows), ("nv", vectors))
    return Kernel("conv", source, tuple(arguments.arguments), parameters, tuple(arguments.packed), shared, private)


def _packer(panels: Panels, groups: int, weights: Constant) -> Packer:
    return lambda *arrays: pack_conv(panels, groups, weights.evaluate(*arrays))


def padded_rows(problem: Problem, arguments: Arguments, g: Conv, value: str, first: str, last: str, target: str) -> str:
    """C statements that compute the padded rows `first` to `last` of a group at `target` [row][column][channel]."""
    wide = g.padded[1]
    lead = min(max(g.pads[1], 0), wide)
    start = max(-g.pads[1], 0)
    body = max(0, min(wide - lead, g.width - start))
    tail = wide - lead - body
    line = wide * g.channels
    lines = [
        f"for (int64_t r = {first}; r < {last}; ++r) {{",
        f"float *to = {target} + (r - ({first})) * {line};",
        f"const int64_t h = r - {g.pads[0]};",
    ]
    if g.pads[0] > 0 or g.padded[0] - g.pads[0] > g.height:
        lines.append(f"if (h < 0 || h >= {g.height}) {{ __builtin_memset(to, 0, {line * 4}); continue; }}")
    if lead:
        lines.append(f"__builtin_memset(to, 0, {lead * g.channels * 4});")
    index = g.input_index(problem)
    place = place_of(problem.fragment, value, index)
    if place and place.step("q") == 1 and place.step("w") == g.channels:
        source = arguments.pointer(Argument("input", place.value))
        at = to_c(place.at(w=start, q=0), no_table)
        lines.append(
            f"__builtin_memcpy(to + {lead * g.channels}, (const float *){source} + {at}, {body * g.channels * 4});"
        )
    elif body:
        pointer = f"to + {(lead - start) * g.channels}"
        plane = Plane(index, str(start), str(start + body), g.channels, pointer, g.channels)
        lines.append(prologue(problem, arguments, value, plane))
    if tail:
        lines.append(f"__builtin_memset(to + {(lead + body) * g.channels}, 0, {tail * g.channels * 4});")
    return "\n".join([*lines, "}"])
