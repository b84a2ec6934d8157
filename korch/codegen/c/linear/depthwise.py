"""Depthwise convolution, channels innermost: each channel has its own kernel.

A step computes a few neighbouring outputs for one vector of channels; a column of the input is loaded once for all
the outputs that it reaches. Padding is never read: rows are left out at run time, columns when the code is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from korch.codegen.c.index import to_c
from korch.codegen.c.linear.contraction import STAGE_BYTES, blocks_of, decode
from korch.codegen.c.linear.fuse import Epilogue, approach, epilogue, staged
from korch.codegen.c.linear.geometry import Conv, padded_rows
from korch.codegen.c.linear.operand import no_table, place_of
from korch.codegen.c.linear.problem import Arguments, Constant, Problem
from korch.codegen.c.linear.split import Balanced
from korch.codegen.c.linear.tile import Columns, accumulator
from korch.codegen.kernel import Argument, Kernel, Packed

# More tiles than this at the borders are not written out: such a kernel copies padded rows instead.
MOST_BORDER_TILES = 8
# Where a column has a multiple of this many channels, all columns fall into few sets of the first-level cache:
# copying blocks of channels may pay. Where a tile's columns fill that cache, going by blocks may.
ALIASED, BLOCK = 512, 64
# How many floats lie between what is read and what is asked for, at least a tile; floats of a cache line.
AHEAD, LINE = 512, 16


@dataclass(frozen=True)
class Plane:
    """What a row of outputs reads: `start` is a C expression (`const float *`) for row i, column 0 and channel 0
    of the first tap, `row` and `column` are steps in floats. Where `clipped`, pads are not in memory; where `far`,
    rows come from beyond the second-level cache."""

    start: str
    row: int
    column: int
    clipped: bool
    far: bool = False


def depthwise_kernels(problem: Problem, g: Conv, weights: Constant) -> tuple[Kernel, ...] | str:
    """Kernels for a convolution whose groups have one input and one output channel each."""
    sizes = _sizes(problem, g)
    kernels = [_kernel(problem, g, weights, size, g.groups, g.groups) for size in sizes[:2]]
    columns = (sizes[0] - 1) * g.strides[1] + g.reach[1]
    if g.groups % BLOCK == 0 and g.kernel[0] * columns * g.groups * 4 > problem.target.l1_bytes // 2:
        kernels.append(_kernel(problem, g, weights, sizes[0], g.groups, BLOCK))
    if g.groups % ALIASED == 0:
        kernels.append(_kernel(problem, g, weights, sizes[0], BLOCK, BLOCK))
    return tuple(kernels)


def _sizes(problem: Problem, g: Conv) -> list[int]:
    """Outputs in a step, the most promising number first."""
    sizes = [size for size in (6, 4, 8) if size + g.kernel[1] + 1 <= problem.target.vector_registers] or [4]
    return list(dict.fromkeys(Balanced.of(g.length, size).largest for size in sizes))


def _kernel(problem: Problem, g: Conv, weights: Constant, size: int, channels: int, block: int) -> Kernel:
    """A kernel of `size` outputs in a step, which goes through a row with `block` channels at a time. Where `channels`
    are fewer than there are, blocks of them are copied first."""
    arguments = Arguments()
    joined = g.joined(channels)
    outer = (g.images, joined.groups)
    work = 2.0 * g.images * g.groups * g.rows * g.length * g.depth
    unit_bytes = (g.strides[0] * g.padded[1] + g.length) * channels * 4
    blocks = blocks_of(math.prod(outer), g.rows, unit_bytes, work)
    tiles = Balanced.of(g.length, size)
    plane, fill, scratch = _source(problem, arguments, joined, tiles, blocks)
    lines = [
        "typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;",
        "static void KERNEL_task(void *context, int64_t task, int64_t worker) {",
        "char *const *p = ((KERNEL_context *)context)->p;",
        "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;",
        f"const int64_t block = task % {blocks.count}; task /= {blocks.count};",
        *decode(outer),
        f"const int64_t lo = {blocks.start('block')}, hi = {blocks.start('block + 1')};",
        fill,
        *_rows(problem, arguments, joined, weights, tiles, plane, block),
        "}",
        "void KERNEL(const korch_runtime *runtime, char *const *p) {",
        "KERNEL_context context = {runtime, p};",
        f"korch_parallel(runtime, {math.prod(outer) * blocks.count}, KERNEL_task, &context);",
        "}",
    ]
    source = "\n".join(lines) + "\n"
    parameters = (("outputs", tiles.largest), ("channels", channels), ("block", block))
    return Kernel("depthwise", source, tuple(arguments.arguments), parameters, tuple(arguments.packed), 0, scratch)


def rows_in_place(problem: Problem, arguments: Arguments, g: Conv, weights: Constant) -> str | None:
    """C statements that compute the rows `lo` to `hi` of image o0, all groups, from the input where it lies; None
    where it cannot be read there."""
    joined = g.joined(g.groups)
    tiles = Balanced.of(g.length, _sizes(problem, g)[0])
    plane, _, scratch = _source(problem, arguments, joined, tiles, Balanced(g.rows, 1))
    return None if scratch else "\n".join(_rows(problem, arguments, joined, weights, tiles, plane, g.groups))


def _rows(
    problem: Problem, arguments: Arguments, g: Conv, weights: Constant, tiles: Balanced, plane: Plane, block: int
) -> list[str]:
    """The rows `lo` to `hi` of image o0 and group o1 of channels."""
    lanes, taps = problem.target.lanes(), g.kernel[0] * g.kernel[1]
    key = f"depthwise {lanes}: {weights.text}"
    packed = arguments.pack(Packed(weights.weights, key, partial(_pack, weights, lanes)))
    finish = epilogue(problem, arguments, lambda j, c: g.result_index(problem, j, c), g.length, g.channels)
    return [
        f"const float *weights = (const float *){packed} + o1 * {g.channels * taps};",
        "for (int64_t i = lo; i < hi; ++i) {",
        f"const float *x = {plane.start};",
        *_row_range(g, plane.clipped),
        f"for (int64_t first = 0; first < {g.channels}; first += {block}) {{",
        *_tiles(g, tiles, plane, block, finish),
        "} }",
    ]


def _pack(weights: Constant, lanes: int, *arrays: np.ndarray) -> np.ndarray:
    """[C, 1, kernel…] as [vectors of channels, padded with zeros][kernel…][lanes]: what a step reads is one run."""
    w = weights.evaluate(*arrays)
    taps = w.reshape(w.shape[0], -1)
    taps = np.pad(taps, ((0, -w.shape[0] % lanes), (0, 0)))
    return np.ascontiguousarray(taps.reshape(-1, lanes, taps.shape[1]).swapaxes(1, 2))


def _source(
    problem: Problem, arguments: Arguments, g: Conv, tiles: Balanced, blocks: Balanced
) -> tuple[Plane, str, int]:
    """Where rows are read, C statements that fill the scratch before, and its size in bytes."""
    place = place_of(problem.fragment, problem.linear.inputs[0], g.input_index(problem)) if g.groups == 1 else None
    steps = [place.step(name) for name in ("h", "w", "q")] if place else []
    if place and all(s is not None for s in steps) and (steps[2] == 1 or g.channels == 1):
        h, w = steps[0] or 0, steps[1] or 0
        outside = [t for t in range(tiles.count) if _is_border(g, tiles, t)]
        if len(outside) <= MOST_BORDER_TILES:
            base = place.at(h=0, w=0, q=0)
            source = arguments.pointer(Argument("input", place.value))
            shift = f"(i * {g.strides[0]} - {g.pads[0]}) * {h} - {g.pads[1] * w}"
            start = f"(const float *){source} + {to_c(base, no_table)} + ({shift})"
            far = g.channels * g.height * g.width * 4 > problem.target.l2_bytes // 2
            return Plane(start, h * g.dilations[0], w * g.dilations[1], True, far), "", 0
    line = g.padded[1] * g.channels
    first, last = f"lo * {g.strides[0]}", f"(hi - 1) * {g.strides[0]} + {g.reach[0]}"
    copy = padded_rows(problem, arguments, g, problem.linear.inputs[0], first, last, "scratch")
    size = ((blocks.largest - 1) * g.strides[0] + g.reach[0]) * line * 4
    fill = f"float *scratch = (float *)(runtime->scratch + worker * runtime->scratch_stride);\n{copy}"
    start = f"scratch + (i - lo) * {g.strides[0] * line}"
    return Plane(start, line * g.dilations[0], g.channels * g.dilations[1], False), fill, size


def _row_range(g: Conv, clipped: bool) -> list[str]:
    """The kernel's rows that lie inside the input."""
    if not clipped:
        return [f"const int64_t u0 = 0, u1 = {g.kernel[0]};"]
    s, d, p = g.strides[0], g.dilations[0], g.pads[0]
    # Row i*s + u*d - p is inside from the first u with u*d >= p - i*s on, up to u*d < height + p - i*s.
    return [
        f"const int64_t before = {p} - i * {s}, after = {g.height + p} - i * {s};",
        f"const int64_t u0 = before > 0 ? (before + {d - 1}) / {d} : 0;",
        f"const int64_t reach = after > 0 ? (after + {d - 1}) / {d} : 0;",
        f"const int64_t u1 = reach < {g.kernel[0]} ? reach : {g.kernel[0]};",
    ]


def _start(tiles: Balanced, t: int) -> int:
    return t * tiles.size + min(t, tiles.big)


def _columns(g: Conv, j: int) -> list[int]:
    """The input columns that output j reads, those outside included."""
    return [j * g.strides[1] - g.pads[1] + v * g.dilations[1] for v in range(g.kernel[1])]


def _is_border(g: Conv, tiles: Balanced, t: int) -> bool:
    first, last = _start(tiles, t), _start(tiles, t + 1) - 1
    return _columns(g, first)[0] < 0 or _columns(g, last)[-1] >= g.width


def _tiles(g: Conv, tiles: Balanced, plane: Plane, block: int, finish: Epilogue) -> list[str]:
    """All outputs of a row for a block of channels: loops over tiles inside, and each tile at a border on its own."""
    lines: list[str] = []
    t = 0
    while t < tiles.count:
        j, size = _start(tiles, t), _start(tiles, t + 1) - _start(tiles, t)
        if plane.clipped and _is_border(g, tiles, t):
            lines += [f"{{ const int64_t j = {j};", *_channels(g, plane, size, j, block, finish), "}"]
            t += 1
            continue
        end = t
        while end < tiles.count and _start(tiles, end + 1) - _start(tiles, end) == size:
            if plane.clipped and _is_border(g, tiles, end):
                break
            end += 1
        lines += [
            f"for (int64_t j = {j}; j < {_start(tiles, end)}; j += {size}) {{",
            *_channels(g, plane, size, None, block, finish),
            "}",
        ]
        t = end
    return lines


def _channels(g: Conv, plane: Plane, size: int, j: int | None, block: int, finish: Epilogue) -> list[str]:
    """A tile for the channels `first` to `last` (all of them, or a block); j is given where it is at a border."""
    lanes = finish.problem.target.lanes()
    whole, tail = block // lanes * lanes, block % lanes
    if not finish.heavy:
        lines: list[str] = []
        if whole:
            lines += [f"for (int64_t c = first; c < first + {whole}; c += {lanes}) {{"]
            lines += [*_outputs(g, plane, size, j, lanes, finish), finish(size, Columns(1, lanes)), "}"]
        if tail:
            lines.append(f"{{ const int64_t c = first + {whole};")
            lines += [*_outputs(g, plane, size, j, tail, finish), finish(size, Columns(1, tail)), "}"]
        return lines
    # Sums of several vectors are finished together.
    group = min(-(-block // lanes), STAGE_BYTES // (4 * lanes * size)) * lanes
    lines = [
        f"float stage[{size * group}] __attribute__((aligned(64)));",
        f"for (int64_t at = first; at < first + {block}; at += {group}) {{",
        f"const int64_t left = first + {block} - at, count = left < {group} ? left : {group};",
    ]
    for purpose in ("sum", "finish"):
        for valid in (lanes, tail):
            if not valid or (valid == lanes and not whole):
                continue
            if valid == lanes:
                lines.append(f"for (int64_t c = at; c + {lanes} <= at + count; c += {lanes}) {{")
            else:
                lines.append(f"if (count % {lanes}) {{ const int64_t c = at + count / {lanes} * {lanes};")
            columns = Columns(1, valid)
            if purpose == "sum":
                lines += _outputs(g, plane, size, j, valid, finish)
                lines += staged(size, columns, lanes, "(stage + (c - at))", group)
            else:
                lines.append(finish.rows(columns, str(size), "(stage + (c - at))", str(group)))
            lines.append("}")
    return [*lines, "}"]


def _outputs(g: Conv, plane: Plane, size: int, j: int | None, valid: int, finish: Epilogue) -> list[str]:
    """`size` outputs for one vector of channels, summed into the accumulators."""
    lanes, taps = finish.problem.target.lanes(), g.kernel[0] * g.kernel[1]
    step = plane.column // g.dilations[1]
    sums = _sums(g, size, j, valid, lanes, step)
    return [
        *_prefetches(g, plane, size, lanes, step, finish),
        f"vf32 {', '.join(f'{accumulator(t, 0)} = {{0}}' for t in range(size))};",
        f"const float *y = x + j * {g.strides[1] * step} + c, *w = weights + c * {taps};",
        f"if (u1 - u0 == {g.kernel[0]}) {{",
        *(line.replace("y + ", f"y + {u * plane.row} + ").replace("w + ", f"w + {u * g.kernel[1] * lanes} + ")
          for u in range(g.kernel[0]) for line in ("{", *sums, "}")),
        "} else {",
        f"y += u0 * {plane.row}; w += u0 * {g.kernel[1] * lanes};",
        f"for (int64_t u = u0; u < u1; ++u, y += {plane.row}, w += {g.kernel[1] * lanes}) {{",
        *sums,
        "} }",
    ]  # fmt: skip


def _sums(g: Conv, size: int, j: int | None, valid: int, lanes: int, step: int) -> list[str]:
    """The products of one row of taps: the row of the input is at `y`, the weights are at `w`."""
    reads: dict[int, list[tuple[int, int]]] = {}
    for t in range(size):
        for v in range(g.kernel[1]):
            if j is not None and not 0 <= _columns(g, j + t)[v] < g.width:
                continue
            reads.setdefault(t * g.strides[1] + v * g.dilations[1], []).append((t, v))
    used = sorted({v for uses in reads.values() for _, v in uses})
    lines = [f"const vf32 w{v} = korch_load_f32(w + {v * lanes});" for v in used]
    for position in sorted(reads):
        at = f"y + {position * step}"
        load = f"korch_load_f32({at})" if valid == lanes else f"korch_load_n_f32({at}, {valid})"
        sums = " ".join(
            f"{accumulator(t, 0)} = korch_fma_f32(x, w{v}, {accumulator(t, 0)});" for t, v in reads[position]
        )
        lines.append(f"{{ const vf32 x = {load}; {sums} }}")
    return lines


def _prefetches(g: Conv, plane: Plane, size: int, lanes: int, step: int, finish: Epilogue) -> list[str]:
    """Asks for what the next tile reads first: the new columns of the rows that no tile has read so far.

    A tile reads many short runs at once, which hardware prefetching does not see as streams.
    """
    if not plane.far:
        return []
    ahead = size * g.strides[1] * max(1, AHEAD // (size * g.strides[1] * abs(step)))
    reach = (g.kernel[1] - 1) * g.dilations[1] + 1
    asked = [
        f"__builtin_prefetch(x + {row * plane.row // g.dilations[0]} + (j * {g.strides[1]} + {column}) * {step} + c);"
        for row in range(max(0, g.reach[0] - g.strides[0]), g.reach[0])
        for column in range(reach - g.strides[1] + ahead, reach - g.strides[1] + ahead + size * g.strides[1])
    ]
    outputs = approach(finish)(size, Columns(1, lanes))
    asked += [f"{{ const int64_t next = j + {size}; {{ const int64_t j = next;", outputs, "} }"]
    return [f"if (c % {LINE} == 0) {{", *asked, "}"] if lanes < LINE else asked
