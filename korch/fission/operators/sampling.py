"""Sampling at positions that are data: flattened spatial dimensions are gathered, tap by tap."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from korch.fission.builder import Builder
from korch.fission.operators.windows import windows
from korch.fission.reading import Refused, integer, integers, listed, number, text, wide
from korch.fission.tensor import Tensor, constant, where
from korch.importers.operators import Operator
from korch.ir.types import DType

CUBIC = -0.75
"""Keys' coefficient in GridSample's cubic mode."""


def GridSample(b: Builder, op: Operator, x: Tensor, grid: Tensor) -> Tensor:
    """x [N, C, spatial…] at the normalized positions grid [N, out…, rank], last dimension first."""
    mode = text(op, "mode", "linear", ("linear", "bilinear", "nearest", "cubic", "bicubic"))
    padding = text(op, "padding_mode", "zeros", ("zeros", "border", "reflection"))
    aligned = bool(integer(op, "align_corners", 0))
    sizes, w = x.shape[2:], wide(x) if x.dtype.is_float else x.cast(DType.FLOAT32)
    points = math.prod(grid.shape[1:-1])
    taps: list[list[tuple[Tensor, Tensor]]] = []
    for d, n in enumerate(sizes):
        at = wide(grid).narrow(grid.rank - 1, len(sizes) - 1 - d, 1).reshape((x.shape[0], points))
        at = (at + 1) / 2 * (n - 1) if aligned else ((at + 1) * n - 1) / 2
        at = at.round() if mode == "nearest" else at
        taps.append(_taps(_kept_inside(at, n, padding, aligned), mode))
    flat = w.reshape((*x.shape[:2], math.prod(sizes)))
    total: Tensor | None = None
    for corner in product(*taps):
        index, inside, weight = _corner(corner, sizes, padding, aligned)
        shape = (*x.shape[:2], points)
        value = flat.apply("gather_elements", index.unsqueeze(1).expand(shape), axis=2)
        if padding == "zeros":
            value = where(inside.unsqueeze(1), value, 0)
        if mode != "nearest":
            value = value * weight.unsqueeze(1)
        total = value if total is None else total + value
    assert total is not None
    return total.reshape((*x.shape[:2], *grid.shape[1:-1])).cast(x.dtype)


def _reflected(at: Tensor, low: float, high: float) -> Tensor:
    """Mirrored at both borders until inside."""
    span = high - low
    if span <= 0:
        return at * 0 + low
    phase = abs(at - low) % (2 * span)
    return where(phase > span, 2 * span - phase, phase) + low


def _kept_inside(at: Tensor, n: int, padding: str, aligned: bool) -> Tensor:
    """Positions beyond the border moved to it or mirrored, as the padding mode says."""
    low, high = (0.0, n - 1.0) if aligned else (-0.5, n - 0.5)
    if padding == "border":
        return where(at < low, 0, where(at > high, n - 1, at))
    if padding == "reflection":
        return where((at < low) | (at > high), _reflected(at, low, high), at)
    return at


def _taps(at: Tensor, mode: str) -> list[tuple[Tensor, Tensor]]:
    """Whole positions around each point of one dimension, with their weights."""
    if mode == "nearest":
        return [(at, at)]
    base = at.floor()
    f = at - base
    if mode in ("linear", "bilinear"):
        return [(base, 1 - f), (base + 1, f)]
    weights = (_cubic_far(f + 1), _cubic_near(f), _cubic_near(1 - f), _cubic_far(2 - f))
    return [(base + float(k), weight) for k, weight in zip((-1, 0, 1, 2), weights, strict=True)]


def _cubic_near(x: Tensor) -> Tensor:
    return (x * (CUBIC + 2) - (CUBIC + 3)) * x * x + 1


def _cubic_far(x: Tensor) -> Tensor:
    return ((x * CUBIC - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC


def _corner(
    corner: tuple[tuple[Tensor, Tensor], ...], sizes: tuple[int, ...], padding: str, aligned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One tap of every dimension: the flat index, whether all lie inside, and the product of the weights."""
    index, inside, weight = None, None, None
    for (at, factor), n in zip(corner, sizes, strict=True):
        within = (at >= 0) & (at <= n - 1)
        if padding == "reflection":
            at = _reflected(at, 0.0, n - 1.0) if aligned else _reflected(at, -0.5, n - 0.5)
        place = at.maximum(0).minimum(n - 1).cast(DType.INT64)
        index = place if index is None else index * n + place
        inside = within if inside is None else inside & within
        weight = factor if weight is None else weight * factor
    assert index is not None and inside is not None and weight is not None
    return index, inside, weight


def DeformConv(
    b: Builder,
    op: Operator,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """A convolution whose taps are moved by offsets [N, groups * taps * 2, out…] (y, x) and weighted by a mask."""
    if x.rank != 4:
        raise Refused("only two spatial dimensions are supported")
    at = windows(op, x.shape[2:], w.shape[2:])
    parts, groups = integer(op, "offset_group", 1), integer(op, "group", 1)
    count, channels, taps, points = x.shape[0], x.shape[1], math.prod(at.kernel), math.prod(at.shape)
    moves = wide(offset).reshape((count * parts, taps, 2, points))
    axes: list[list[tuple[Tensor, Tensor]]] = []
    for d in range(2):
        shape = (at.kernel[0], at.kernel[1], at.shape[0], at.shape[1])
        tap, place = np.indices(shape)[d], np.indices(shape)[2 + d]
        regular = (place * at.strides[d] + tap * at.dilations[d] - at.before[d]).reshape(taps, points)
        moved = moves.narrow(2, d, 1).reshape((count * parts, taps, points)) + moves.like(regular)
        axes.append(_taps(moved.reshape((count * parts, taps * points)), "linear"))
    flat = wide(x).reshape((count * parts, channels // parts, math.prod(at.size)))
    columns = flat.like(0)
    for corner in product(*axes):
        index, inside, weight = _corner(corner, at.size, "zeros", False)
        value = flat.apply("gather_elements", index.unsqueeze(1).expand((*flat.shape[:2], taps * points)), axis=2)
        columns = columns + where(inside.unsqueeze(1), value, 0) * weight.unsqueeze(1)
    if mask is not None:
        columns = columns * wide(mask).reshape((count * parts, 1, taps * points))
    columns = columns.reshape((count, groups, channels // groups * taps, points))
    kernel = wide(w).reshape((groups, w.shape[0] // groups, channels // groups * taps))
    y = (kernel @ columns).reshape((count, w.shape[0], *at.shape))
    return (y if bias is None else y + wide(bias).along((1,), 4)).cast(x.dtype)


def RoiAlign(b: Builder, op: Operator, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    """x [N, C, H, W], rois [R, 4] as (x1, y1, x2, y2), batch [R] -> [R, C, out_h, out_w]."""
    samples = integer(op, "sampling_ratio", 0)
    if samples < 1:
        raise Refused("sampling_ratio=0 takes a number of samples that depends on the data")
    mode = text(op, "mode", "avg", ("avg", "max"))
    modes = ("half_pixel", "output_half_pixel")
    default = "half_pixel" if op.version >= 16 else "output_half_pixel"
    shifted = text(op, "coordinate_transformation_mode", default, modes) == "half_pixel"
    height, width = x.shape[2:]
    out = (integer(op, "output_height", 1), integer(op, "output_width", 1))
    w, edges = wide(x), wide(rois) * number(op, "spatial_scale", 1.0) - (0.5 if shifted else 0.0)
    rows = _roi_axis(edges, (1, 3), out[0], samples, height, shifted)
    columns = _roi_axis(edges, (0, 2), out[1], samples, width, shifted)
    count, channels = rois.shape[0], x.shape[1]
    images = w.reshape((*x.shape[:2], height * width)).apply("gather", batch, axis=0)
    grid = (out[0] * samples, out[1] * samples)
    parts: list[Tensor] = []
    for (row, row_weight), (column, column_weight) in product(rows, columns):
        index = (row.unsqueeze(2) * width + column.unsqueeze(1)).reshape((count, math.prod(grid)))
        weight = (row_weight.unsqueeze(2) * column_weight.unsqueeze(1)).reshape((count, math.prod(grid)))
        index = index.unsqueeze(1).expand((count, channels, math.prod(grid)))
        parts.append(images.apply("gather_elements", index, axis=2) * weight.unsqueeze(1))
    first, *others = parts
    for part in others:
        first = first + part if mode == "avg" else first.maximum(part)
    bins = first.reshape((count, channels, out[0], samples, out[1], samples))
    pooled = bins.sum((3, 5)) / (samples * samples) if mode == "avg" else bins.max((3, 5))
    return pooled.cast(x.dtype)


def _roi_axis(
    edges: Tensor, sides: tuple[int, int], out: int, samples: int, size: int, shifted: bool
) -> list[tuple[Tensor, Tensor]]:
    """The two taps of each sample along one axis: positions and weights [R, out * samples], 0 outside."""
    start, end = (edges.narrow(1, side, 1) for side in sides)
    length = end - start if shifted else (end - start).maximum(1)
    steps = (np.arange(out * samples) + 0.5) / (samples * out)
    at = start + length * edges.like(steps)
    inside = (at >= -1) & (at <= size)
    at = at.maximum(0).minimum(size - 1)
    low = at.floor()
    f = at - low
    high = (low + 1).minimum(size - 1)
    return [(place.cast(DType.INT64), where(inside, weight, 0)) for place, weight in ((low, 1 - f), (high, f))]


def MaxUnpool(b: Builder, op: Operator, x: Tensor, indices: Tensor, output_shape: Tensor | None = None) -> Tensor:
    """Values put back where a pooling found them, zeros elsewhere."""
    kernel = integers(op, "kernel_shape")
    rank = len(kernel)
    strides, pads = integers(op, "strides", (1,) * rank), integers(op, "pads", (0,) * (2 * rank))
    spatial = [
        (n - 1) * s + k - pads[d] - pads[rank + d]
        for d, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    shape = (*x.shape[:2], *spatial)
    zeros = x.like(0).expand((math.prod(shape),))
    places, values = (t.reshape((x.type.elements,)) for t in (indices, x))
    y = zeros.apply("scatter_elements", places, values, axis=0, reduction="none").reshape(shape)
    if output_shape is None:
        return y
    wanted = listed(output_shape, "output_shape")
    return y.pad((0,) * y.rank, [n - m for n, m in zip(wanted, shape, strict=True)])


def Col2Im(b: Builder, op: Operator, x: Tensor, image: Tensor, block: Tensor) -> Tensor:
    """Overlapping blocks added up: a transposed convolution that puts each column where it belongs."""
    size, kernel = listed(image, "image_shape"), listed(block, "block_shape")
    rank, taps = len(size), math.prod(kernel)
    strides, dilations = integers(op, "strides", (1,) * rank), integers(op, "dilations", (1,) * rank)
    pads = integers(op, "pads", (0,) * (2 * rank))
    channels = x.shape[1] // taps
    blocks = [
        (n + pads[d] + pads[rank + d] - (k - 1) * dilations[d] - 1) // strides[d] + 1
        for d, (n, k) in enumerate(zip(size, kernel, strict=True))
    ]
    place = np.tile(np.eye(taps), (channels, 1)).reshape(channels * taps, 1, *kernel)
    columns = x.reshape((*x.shape[:2], *blocks))
    return columns.apply(
        "conv_transpose",
        constant(b, place.astype(x.dtype.numpy)),
        strides=strides,
        dilations=dilations,
        pads=pads[:rank],
        groups=channels,
        shape=(x.shape[0], channels, *size),
    )
