"""Opaque primitives: whole loops that are never fused."""

from __future__ import annotations

import numpy as np

from korch.ir.primitives.gather import elements_rule
from korch.ir.primitives.primitive import (
    ANY,
    NUMBER,
    Arrays,
    Attributes,
    Primitive,
    Types,
    axis_of,
    flag,
    integer,
    one_dtype,
    require,
    widen,
    word,
)
from korch.ir.primitives.reduce import accumulator
from korch.ir.types import DType, TensorType

REDUCTIONS = ("none", "add", "mul", "max", "min")
_UFUNCS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _top_k_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    axis, k = axis_of(attributes, x.rank), integer(attributes, "k")
    flag(attributes, "largest")
    flag(attributes, "sorted")
    require(0 <= k <= x.shape[axis], f"k is {k}, the axis has {x.shape[axis]} elements")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape), TensorType(DType.INT64, shape))


def _top_k(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    """NaN counts as greater than everything, as in NumPy's sort. Sorted whether asked for or not."""
    (x,) = arrays
    wide, axis = widen(x), axis_of(attributes, x.ndim)
    if flag(attributes, "largest"):
        # Ascending and stable from the back, read backwards: descending, the first of equal ones first.
        order = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - order, axis)
    else:
        order = np.argsort(wide, axis=axis, kind="stable")
    order = np.take(order, range(integer(attributes, "k")), axis=axis).astype(np.int64)
    return (np.take_along_axis(x, order, axis=axis), order)


def _cumsum_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    axis_of(attributes, x.rank)
    flag(attributes, "exclusive")
    flag(attributes, "reverse")
    return (TensorType(one_dtype(types, NUMBER), x.shape),)


def _cumsum(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    axis, reverse = axis_of(attributes, x.ndim), flag(attributes, "reverse")
    along = np.flip(x, axis) if reverse else x
    sums = np.add.accumulate(along, axis=axis, dtype=accumulator(x.dtype))
    if flag(attributes, "exclusive"):
        first = np.zeros_like(np.take(sums, range(min(1, sums.shape[axis])), axis=axis))
        sums = np.concatenate([first, np.take(sums, range(max(0, sums.shape[axis] - 1)), axis=axis)], axis=axis)
    sums = np.flip(sums, axis) if reverse else sums
    return (sums.astype(x.dtype).astype(arrays[0].dtype),)


def _scatter_check(types: Types, attributes: Attributes) -> None:
    data, indices, updates = types
    require(indices.dtype.is_integer, f"the indices are {indices.dtype.value}, not integers")
    require(updates.dtype is data.dtype, f"the updates are {updates.dtype.value}, the data {data.dtype.value}")
    reduction = word(attributes, "reduction", REDUCTIONS)
    require(reduction in ("none", "max", "min") or data.dtype is not DType.BOOL, "bools do not add or multiply")


def _scatter_elements_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    data, indices, updates = types
    _scatter_check(types, attributes)
    require(updates.shape == indices.shape, "the updates must have the indices' shape")
    elements_rule(data, indices, axis_of(attributes, data.rank))
    return (data,)


def _scatter(data: np.ndarray, at: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    """Updates in their order; float16 and bfloat16 are combined in float32 and rounded at the end."""
    if reduction == "none":
        result = data.copy()
        result[at] = updates
        return result
    result = np.array(widen(data))
    _UFUNCS[reduction].at(result, at, widen(updates))
    return result.astype(data.dtype)


def _inside(indices: np.ndarray, size: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices counted from the front, and which of them lie inside."""
    wide = indices.astype(np.int64)
    wide = np.where(wide < 0, wide + size, wide)
    return wide, (wide >= 0) & (wide < size)


def _scatter_elements(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    data, indices, updates = arrays
    axis = axis_of(attributes, data.ndim)
    along, keep = _inside(indices, data.shape[axis])
    at = [np.asarray(a) for a in np.indices(indices.shape)]
    at[axis] = along
    chosen = tuple(a[keep] for a in at)
    return (_scatter(data, chosen, updates[keep], word(attributes, "reduction", REDUCTIONS)),)


def _scatter_nd_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    data, indices, updates = types
    _scatter_check(types, attributes)
    require(indices.rank >= 1, "the indices need a dimension")
    depth = indices.shape[-1]
    require(1 <= depth <= data.rank, f"an index of {depth} numbers does not fit the data")
    wanted = (*indices.shape[:-1], *data.shape[depth:])
    require(updates.shape == wanted, f"the updates must have the shape {wanted}")
    return (data,)


def _scatter_nd(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    data, indices, updates = arrays
    depth = indices.shape[-1]
    at, inside = _inside(indices, np.array(data.shape[:depth], np.int64))
    keep = inside.all(axis=-1)
    chosen = tuple(at[..., k][keep] for k in range(depth))
    return (_scatter(data, chosen, updates[keep], word(attributes, "reduction", REDUCTIONS)),)


OPAQUE: tuple[Primitive, ...] = (
    Primitive("top_k", "opaque", (1, 1), NUMBER, _top_k_rule, _top_k, "", "", ("axis", "k", "largest", "sorted")),
    Primitive("cumsum", "opaque", (1, 1), NUMBER, _cumsum_rule, _cumsum, "", "", ("axis", "exclusive", "reverse")),
    Primitive(
        "scatter_elements",
        "opaque",
        (3, 3),
        ANY,
        _scatter_elements_rule,
        _scatter_elements,
        "",
        "",
        ("axis", "reduction"),
    ),
    Primitive("scatter_nd", "opaque", (3, 3), ANY, _scatter_nd_rule, _scatter_nd, "", "", ("reduction",)),
)
