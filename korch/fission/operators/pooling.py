"""Pooling: reductions over windows. An average is the window's sum over the count of what took part."""

from __future__ import annotations

import math

import numpy as np

from korch.fission.builder import Builder
from korch.fission.operators.windows import Windows, windows
from korch.fission.reading import Refused, integer, integers, wide
from korch.fission.tensor import Tensor, constant, where
from korch.importers.operators import Operator

INDEXED_TAPS = 256
"""The greatest window for which the positions of the maxima are computed, tap by tap."""


def pooled(primitive: str, x: Tensor, w: Windows) -> Tensor:
    """A window reduction over the spatial dimensions."""
    return x.apply(
        primitive,
        window=(1, 1, *w.kernel),
        strides=(1, 1, *w.strides),
        dilations=(1, 1, *w.dilations),
        pads=(0, 0, *w.before),
        shape=(*x.shape[:2], *w.shape),
    )


def pool_windows(op: Operator, x: Tensor) -> Windows:
    return windows(op, x.shape[2:], integers(op, "kernel_shape"))


def AveragePool(b: Builder, op: Operator, x: Tensor) -> Tensor:
    w = pool_windows(op, x)
    counts = w.counts(padding=bool(integer(op, "count_include_pad", 0)))
    total = pooled("window_sum", wide(x), w)
    if counts.size and (counts == counts.flat[0]).all():
        return (total / int(counts.flat[0])).cast(x.dtype)
    return (total / total.like(counts)).cast(x.dtype)


def MaxPool(b: Builder, op: Operator, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    w = pool_windows(op, x)
    greatest = pooled("window_max", x, w)
    return greatest if len(op.outputs) < 2 else (greatest, _positions(op, x, w))


def _positions(op: Operator, x: Tensor, w: Windows) -> Tensor:
    """Where in the flattened input each window's maximum lies: the first of equal ones, in the window's order."""
    if math.prod(w.kernel) > INDEXED_TAPS:
        raise Refused(f"the indices of a window of {math.prod(w.kernel)} elements are not supported")
    lowest = -math.inf if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)
    places = np.arange(math.prod(x.shape)).reshape(x.shape)
    if integer(op, "storage_order", 0):
        spatial = np.arange(math.prod(w.size)).reshape(w.size[::-1]).transpose()
        places = places.reshape(*x.shape[:2], -1)[..., :1, None].reshape(*x.shape[:2], *[1] * len(w.size)) + spatial
    reach = [(k - 1) * d + 1 for k, d in zip(w.kernel, w.dilations, strict=True)]
    span = [(o - 1) * s + r for o, s, r in zip(w.shape, w.strides, reach, strict=True)]
    after = [n - size - p for n, size, p in zip(span, w.size, w.before, strict=True)]
    padded = x.pad((0, 0, *w.before), (0, 0, *after), lowest)
    index = constant(x.builder, places).pad((0, 0, *w.before), (0, 0, *after), 0)
    best: Tensor | None = None
    found = index
    for tap in np.ndindex(*w.kernel):
        starts = (0, 0, *(t * d for t, d in zip(tap, w.dilations, strict=True)))
        shape = (*x.shape[:2], *w.shape)
        value = padded.slice(starts, (1, 1, *w.strides), shape)
        place = index.slice(starts, (1, 1, *w.strides), shape)
        if best is None:
            best, found = value, place
            continue
        better = best < value
        best, found = where(better, value, best), where(better, place, found)
    return found


def LpPool(b: Builder, op: Operator, x: Tensor) -> Tensor:
    p = integer(op, "p", 2)
    return root(pooled("window_sum", powers(wide(x), p), pool_windows(op, x)), p).cast(x.dtype)


def GlobalAveragePool(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return wide(x).mean(range(2, x.rank), keepdims=True).cast(x.dtype)


def GlobalMaxPool(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.max(range(2, x.rank), keepdims=True)


def GlobalLpPool(b: Builder, op: Operator, x: Tensor) -> Tensor:
    p = integer(op, "p", 2)
    return root(powers(wide(x), p).sum(range(2, x.rank), keepdims=True), p).cast(x.dtype)


def powers(x: Tensor, p: int) -> Tensor:
    """|x| ** p."""
    return abs(x) if p == 1 else x * x if p == 2 else abs(x).power(float(p))


def root(x: Tensor, p: int) -> Tensor:
    """x ** (1 / p)."""
    return x if p == 1 else x.sqrt() if p == 2 else x.power(1 / p)
