"""Reductions over whole axes and over windows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from korch.ir.primitives.primitive import (
    ANY,
    NUMBER,
    Arrays,
    Attributes,
    Domain,
    Primitive,
    Types,
    axis_of,
    flag,
    integers,
    one_dtype,
    require,
    shape_of,
    widen,
)
from korch.ir.types import DType, TensorType


def lowest(dtype: np.dtype) -> float | int | bool:
    """The neutral element of max."""
    if dtype == np.bool_:
        return False
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def highest(dtype: np.dtype) -> float | int | bool:
    """The neutral element of min."""
    if dtype == np.bool_:
        return True
    return np.inf if dtype.kind == "f" else int(np.iinfo(dtype).max)


def accumulator(dtype: np.dtype) -> np.dtype:
    """What sums and products are taken in: float64 for floats, the dtype itself for integers (they wrap)."""
    return np.dtype(np.float64) if dtype.kind == "f" else dtype


def _axes(attributes: Attributes, rank: int) -> tuple[int, ...]:
    axes = integers(attributes, "axes")
    require(list(axes) == sorted(set(axes)), f"attribute axes must be ascending and distinct, not {axes}")
    require(all(0 <= a < rank for a in axes), f"attribute axes is {axes}; the input has {rank} dimensions")
    return axes


def _sum(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    result = np.add.reduce(x, axis=integers(attributes, "axes"), dtype=accumulator(x.dtype))
    return (np.asarray(result).astype(x.dtype).astype(arrays[0].dtype),)


def _prod(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    result = np.multiply.reduce(x, axis=integers(attributes, "axes"), dtype=accumulator(x.dtype))
    return (np.asarray(result).astype(x.dtype).astype(arrays[0].dtype),)


def _max(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    result = np.maximum.reduce(x, axis=integers(attributes, "axes"), initial=lowest(x.dtype))
    return (np.asarray(result).astype(arrays[0].dtype),)


def _min(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    result = np.minimum.reduce(x, axis=integers(attributes, "axes"), initial=highest(x.dtype))
    return (np.asarray(result).astype(arrays[0].dtype),)


def _extreme(function: Callable[..., np.ndarray], arrays: Arrays, attributes: Attributes) -> np.ndarray:
    x = widen(arrays[0])
    axis = axis_of(attributes, x.ndim)
    if not flag(attributes, "last"):
        return np.asarray(function(x, axis=axis)).astype(np.int64)
    return np.asarray(x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)).astype(np.int64)


def _arg_max(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (_extreme(np.argmax, arrays, attributes),)


def _arg_min(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (_extreme(np.argmin, arrays, attributes),)


def _rule(dtypes: frozenset[DType]) -> Callable[[Types, Attributes], tuple[TensorType, ...]]:
    def rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        (x,) = types
        axes = _axes(attributes, x.rank)
        kept = tuple(n for d, n in enumerate(x.shape) if d not in axes)
        return (TensorType(one_dtype(types, dtypes), kept),)

    return rule


def _arg_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    axis = axis_of(attributes, x.rank)
    flag(attributes, "last")
    kept = x.shape[:axis] + x.shape[axis + 1 :]
    require(x.shape[axis] > 0 or 0 in kept, "nothing has no greatest element: the axis is empty")
    return (TensorType(DType.INT64, kept),)


def tap_range(size: int, out: int, stride: int, offset: int) -> tuple[int, int, int]:
    """Which outputs o in 0..out-1 read a position o*stride + offset in 0..size-1.

    Gives the first, the one past the last, and the position that the first reads.
    """
    first = max(0, -(offset // stride)) if offset < 0 else 0
    last = min(out, (size - 1 - offset) // stride + 1) if size > offset else 0
    return first, max(first, last), first * stride + offset


def _window_axis(
    x: np.ndarray,
    axis: int,
    combine: np.ufunc,
    neutral: float | int | bool,
    window: tuple[int, int, int, int, int],
) -> np.ndarray:
    """One dimension at a time: a window is a product of intervals, so sums and maxima separate."""
    size, stride, dilation, pad, out = window
    if (size, stride, pad, out) == (1, 1, 0, x.shape[axis]):
        return x
    result = np.full((*x.shape[:axis], out, *x.shape[axis + 1 :]), neutral, x.dtype)
    front = (slice(None),) * axis
    for w in range(size):
        first, last, read = tap_range(x.shape[axis], out, stride, w * dilation - pad)
        if first == last:
            continue
        target = result[(*front, slice(first, last))]
        source = x[(*front, slice(read, read + (last - first - 1) * stride + 1, stride))]
        combine(target, source, out=target)
    return result


def _window(x: np.ndarray, attributes: Attributes, combine: np.ufunc, neutral: float | int | bool) -> np.ndarray:
    names = ("window", "strides", "dilations", "pads", "shape")
    columns = zip(*(integers(attributes, name) for name in names), strict=True)
    for axis, (size, stride, dilation, pad, out) in enumerate(columns):
        x = _window_axis(x, axis, combine, neutral, (size, stride, dilation, pad, out))
    return x


def _window_sum(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    result = _window(x.astype(accumulator(x.dtype)), attributes, np.add, 0)
    return (result.astype(x.dtype).astype(arrays[0].dtype),)


def _window_max(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    result = _window(x, attributes, np.maximum, lowest(x.dtype))
    return (result.astype(arrays[0].dtype),)


def _window_rule(dtypes: frozenset[DType]) -> Callable[[Types, Attributes], tuple[TensorType, ...]]:
    def rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        (x,) = types
        for name in ("window", "strides", "dilations"):
            values = integers(attributes, name, x.rank)
            require(all(v >= 1 for v in values), f"attribute {name} must be positive, not {values}")
        integers(attributes, "pads", x.rank)
        return (TensorType(one_dtype(types, dtypes), shape_of(attributes, x.rank)),)

    return rule


_WINDOW = ("window", "strides", "dilations", "pads", "shape")
_PRODUCT = Domain(((0.5, 2.0),))
_UNIT = Domain(((-1.0, 1.0),))

_TRITON_MAX = "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"
_TRITON_MIN = "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"

REDUCE: tuple[Primitive, ...] = (
    Primitive(
        "reduce_sum",
        "reduce",
        (1, 1),
        NUMBER,
        _rule(NUMBER),
        _sum,
        "{0} + {1}",
        "{0} + {1}",
        ("axes",),
        _UNIT,
        4,
    ),
    Primitive(
        "reduce_prod",
        "reduce",
        (1, 1),
        NUMBER,
        _rule(NUMBER),
        _prod,
        "{0} * {1}",
        "{0} * {1}",
        ("axes",),
        _PRODUCT,
        4,
    ),
    Primitive(
        "reduce_max",
        "reduce",
        (1, 1),
        ANY,
        _rule(ANY),
        _max,
        "korch_max_{T}({0}, {1})",
        _TRITON_MAX,
        ("axes",),
    ),
    Primitive(
        "reduce_min",
        "reduce",
        (1, 1),
        ANY,
        _rule(ANY),
        _min,
        "korch_min_{T}({0}, {1})",
        _TRITON_MIN,
        ("axes",),
    ),
    Primitive(
        "arg_max",
        "reduce",
        (1, 1),
        ANY,
        _arg_rule,
        _arg_max,
        "korch_max_{T}({0}, {1})",
        "tl.argmax",
        ("axis", "last"),
    ),
    Primitive(
        "arg_min",
        "reduce",
        (1, 1),
        ANY,
        _arg_rule,
        _arg_min,
        "korch_min_{T}({0}, {1})",
        "tl.argmin",
        ("axis", "last"),
    ),
    Primitive(
        "window_sum",
        "reduce",
        (1, 1),
        NUMBER,
        _window_rule(NUMBER),
        _window_sum,
        "{0} + {1}",
        "{0} + {1}",
        _WINDOW,
        _UNIT,
        4,
    ),
    Primitive(
        "window_max",
        "reduce",
        (1, 1),
        ANY,
        _window_rule(ANY),
        _window_max,
        "korch_max_{T}({0}, {1})",
        _TRITON_MAX,
        _WINDOW,
    ),
)
