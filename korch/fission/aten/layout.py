"""Views, copies and rearrangements of ATen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from korch.fission.aten.call import Call
from korch.fission.operators import layout
from korch.fission.reading import Refused
from korch.fission.tensor import Number, Tensor, concat, where

STRIDED_ELEMENTS = 1 << 16
"""Elements up to which `as_strided` is made of known positions."""


def view(call: Call, x: Tensor, *_: object, **__: object) -> Tensor:
    """The same elements in the shape that PyTorch states."""
    return x.reshape(call.shape)


def expand(call: Call, x: Tensor, *_: object, **__: object) -> Tensor:
    return x.expand(call.shape)


def permute(call: Call, x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.transpose([d % x.rank for d in dims])


def transpose(call: Call, x: Tensor, dim0: int, dim1: int) -> Tensor:
    perm = list(range(x.rank))
    if perm:
        a, b = dim0 % x.rank, dim1 % x.rank
        perm[a], perm[b] = perm[b], perm[a]
    return x.transpose(perm)


def t(call: Call, x: Tensor) -> Tensor:
    return x.transpose(range(x.rank)[::-1])


def select(call: Call, x: Tensor, dim: int, index: int) -> Tensor:
    axis = x.axis(dim)
    return x.narrow(axis, index % x.shape[axis], 1).reshape(call.shape)


def _bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(n)
    return first, max(first, last)


def slice_(
    call: Call, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    axis = x.axis(dim)
    first, last = _bounds(x.shape[axis], start, end)
    return x.narrow(axis, first, -(-(last - first) // step), step)


def slice_scatter(
    call: Call, x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """x with a slice of it replaced: put together from pieces, or with a step chosen by position."""
    axis = x.axis(dim)
    n = x.shape[axis]
    first, last = _bounds(n, start, end)
    src = src.cast(x.dtype).expand([len(range(first, last, step)) if d == axis else m for d, m in enumerate(x.shape)])
    if step == 1:
        pieces = [x.narrow(axis, 0, first), src, x.narrow(axis, last, n - last)]
        return concat([p for p in pieces if p.shape[axis]] or [x], axis)
    places = np.arange(n) - first
    hit = (places >= 0) & (places % step == 0) & (np.arange(n) < last)
    if not hit.any():
        return x
    spread = src.take(axis, [int(p) // step if h else 0 for p, h in zip(places, hit, strict=True)])
    return where(call.constant(hit).along((axis,), x.rank), spread, x)


def select_scatter(call: Call, x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    axis = x.axis(dim)
    at = index % x.shape[axis]
    return slice_scatter(call, x, src.unsqueeze(axis), axis, at, at + 1)


def split_with_sizes(call: Call, x: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    axis, starts = x.axis(dim), np.cumsum([0, *split_sizes])
    return tuple(x.narrow(axis, int(s), n) for s, n in zip(starts, split_sizes, strict=False))


def split(call: Call, x: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    axis = x.axis(dim)
    sizes = [type.shape[axis] for _, type in call.node.results]
    return split_with_sizes(call, x, sizes, axis)


def unbind(call: Call, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = x.axis(dim)
    return tuple(x.narrow(axis, i, 1).reshape(call.shape) for i in range(x.shape[axis]))


def cat(call: Call, xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    """An empty tensor of rank 1 fits anywhere and adds nothing."""
    parts = [x.cast(call.dtype) for x in xs if x.shape != (0,)]
    if not parts:
        return xs[0].cast(call.dtype)
    return concat(parts, parts[0].axis(dim))


def stack(call: Call, xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = dim % (xs[0].rank + 1)
    return concat([x.cast(call.dtype).unsqueeze(axis) for x in xs], axis)


def flip(call: Call, x: Tensor, dims: Sequence[int]) -> Tensor:
    for axis in x.axes(dims) if x.rank else ():
        n = x.shape[axis]
        x = x.narrow(axis, n - 1, n, -1) if n else x
    return x


def roll(call: Call, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Without dimensions the flattened tensor is moved."""
    if not dims:
        return roll(call, x.reshape((x.type.elements,)), shifts, (0,)).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = x.axis(dim)
        n = x.shape[axis]
        cut = n - shift % n if n else 0
        if 0 < cut < n:
            x = concat([x.narrow(axis, cut, n - cut), x.narrow(axis, 0, cut)], axis)
    return x


def repeat(call: Call, x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Whole copies, one after another."""
    shape = (*(1,) * (len(repeats) - x.rank), *x.shape)
    paired = [n for pair in zip([1] * len(shape), shape, strict=True) for n in pair]
    wanted = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    return x.reshape(paired).expand(wanted).reshape(call.shape)


def diagonal(call: Call, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Every (columns + 1)-th element of the two dimensions flattened."""
    a, b = x.axis(dim1), x.axis(dim2)
    rest = [d for d in range(x.rank) if d not in (a, b)]
    rows, columns, count = x.shape[a], x.shape[b], call.shape[-1]
    lead = [x.shape[d] for d in rest]
    flat = x.transpose([*rest, a, b]).reshape((*lead, rows * columns))
    if not count:
        return flat.narrow(len(rest), 0, 0)
    return flat.narrow(len(rest), offset if offset >= 0 else -offset * columns, count, columns + 1)


def as_strided(
    call: Call, x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Of a row-major tensor (the importer sees to that): known positions of it flattened."""
    places = np.full(tuple(size), storage_offset or 0, np.int64)
    if places.size > STRIDED_ELEMENTS:
        raise Refused(f"more than {STRIDED_ELEMENTS} elements")
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(n) * step).reshape([n if d == axis else 1 for d in range(len(size))])
    flat = x.reshape((x.type.elements,))
    if places.size and places.max() >= x.type.elements:
        raise Refused("it reads beyond its tensor")
    return flat.take(0, [int(p) for p in places.reshape(-1)]).reshape(size)


def unfold(call: Call, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows along one dimension, which become the last one."""
    axis = x.axis(dimension)
    count = (x.shape[axis] - size) // step + 1
    taken = x.take(axis, [w * step + k for w in range(count) for k in range(size)])
    split = taken.reshape((*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
    rest = [d for d in range(split.rank) if d != axis + 1]
    return split.transpose([*rest, axis + 1])


def _sides(x: Tensor, pad: Sequence[int]) -> tuple[list[int], list[int]]:
    """PyTorch's padding, which begins at the last dimension, as cells before and after each."""
    before, after = [0] * x.rank, [0] * x.rank
    for i in range(len(pad) // 2):
        before[x.rank - 1 - i], after[x.rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return before, after


def constant_pad(call: Call, x: Tensor, pad: Sequence[int], value: Number = 0) -> Tensor:
    return x.pad(*_sides(x, pad), value)


def repeated_pad(mode: str) -> Callable[..., Tensor]:
    """Padding by what the border or a mirror at it shows."""

    def function(call: Call, x: Tensor, padding: Sequence[int]) -> Tensor:
        before, after = _sides(x, padding)
        return call.onnx(layout.Pad, x, call.integers([*before, *after]), mode=mode)[0]

    return function


def triangle(upper: int) -> Callable[..., Tensor]:
    def function(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
        return call.onnx(layout.Trilu, x, call.integers((diagonal,)), upper=upper)[0]

    return function


def pixel_shuffle(call: Call, x: Tensor, upscale_factor: int) -> Tensor:
    r, (*lead, c, h, w) = upscale_factor, x.shape
    k = len(lead)
    blocks = x.reshape((*lead, c // (r * r), r, r, h, w))
    return blocks.transpose([*range(k + 1), k + 3, k + 1, k + 4, k + 2]).reshape(call.shape)


def pixel_unshuffle(call: Call, x: Tensor, downscale_factor: int) -> Tensor:
    r, (*lead, c, h, w) = downscale_factor, x.shape
    k = len(lead)
    blocks = x.reshape((*lead, c, h // r, r, w // r, r))
    return blocks.transpose([*range(k + 1), k + 2, k + 4, k + 1, k + 3]).reshape(call.shape)


def im2col(
    call: Call,
    x: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """The windows of an image as columns: [N, C, H, W] -> [N, C * taps, windows]."""
    image = x if x.rank == 4 else x.unsqueeze(0)
    image = image.pad((0, 0, *padding), (0, 0, *padding))
    counts = [(image.shape[2 + i] - (kernel_size[i] - 1) * dilation[i] - 1) // stride[i] + 1 for i in range(2)]
    for i in (1, 0):
        places = [k * dilation[i] + w * stride[i] for k in range(kernel_size[i]) for w in range(counts[i])]
        image = image.take(2 + i, places)
    n, c = image.shape[:2]
    split = image.reshape((n, c, kernel_size[0], counts[0], kernel_size[1], counts[1]))
    columns = split.transpose((0, 1, 2, 4, 3, 5)).reshape((n, c * math.prod(kernel_size), math.prod(counts)))
    return columns.reshape(call.shape)
