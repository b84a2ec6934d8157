"""Gathers: indices are data. Negative indices count from the end; indices outside are clamped."""

from __future__ import annotations

import math

import numpy as np

from korch.ir.primitives.primitive import (
    ANY,
    Arrays,
    Attributes,
    Primitive,
    Types,
    axis_of,
    integer,
    require,
)
from korch.ir.types import TensorType


def clamped(indices: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Indices into a dimension of `size`: from the end when negative, then clamped to it (int64)."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, np.maximum(size, 1) - 1)


def _check_indices(types: Types) -> None:
    require(types[1].dtype.is_integer, f"the indices are {types[1].dtype.value}, not integers")


def _gather_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    data, indices = types
    _check_indices(types)
    axis = axis_of(attributes, data.rank)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    require(data.shape[axis] > 0 or math.prod(shape) == 0, "nothing can be read from an empty dimension")
    return (TensorType(data.dtype, shape),)


def _gather(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    data, indices = arrays
    axis = axis_of(attributes, data.ndim)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    if math.prod(shape) == 0:
        return (np.zeros(shape, data.dtype),)
    return (np.take(data, clamped(indices, data.shape[axis]), axis=axis),)


def elements_rule(data: TensorType, indices: TensorType, axis: int) -> None:
    """The indices have the data's rank and reach no further than it outside the axis."""
    require(indices.rank == data.rank, "the indices must have the data's number of dimensions")
    outside = all(i <= n for d, (i, n) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != axis)
    require(outside, f"the indices are larger than the data outside axis {axis}")
    require(data.shape[axis] > 0 or indices.elements == 0, "an index leads into an empty dimension")


def _gather_elements_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    data, indices = types
    _check_indices(types)
    elements_rule(data, indices, axis_of(attributes, data.rank))
    return (TensorType(data.dtype, indices.shape),)


def _gather_elements(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    data, indices = arrays
    axis = axis_of(attributes, data.ndim)
    if indices.size == 0:
        return (np.zeros(indices.shape, data.dtype),)
    part = data[tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(indices.shape))]
    return (np.take_along_axis(part, clamped(indices, data.shape[axis]), axis=axis),)


def _gather_nd_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    data, indices = types
    _check_indices(types)
    batch = integer(attributes, "batch_dims")
    require(indices.rank >= 1 and 0 <= batch < min(data.rank, indices.rank), f"batch_dims {batch} does not fit")
    require(data.shape[:batch] == indices.shape[:batch], "the batch dimensions differ")
    depth = indices.shape[-1]
    require(1 <= depth <= data.rank - batch, f"an index of {depth} numbers does not fit the data")
    shape = (*indices.shape[:-1], *data.shape[batch + depth :])
    readable = 0 not in data.shape[batch : batch + depth] or math.prod(shape) == 0
    require(readable, "nothing can be read from an empty dimension")
    return (TensorType(data.dtype, shape),)


def _gather_nd(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    data, indices = arrays
    batch, depth = integer(attributes, "batch_dims"), indices.shape[-1]
    shape = (*indices.shape[:-1], *data.shape[batch + depth :])
    if math.prod(shape) == 0:
        return (np.zeros(shape, data.dtype),)
    at = clamped(indices, np.array(data.shape[batch : batch + depth], np.int64))
    rank = indices.ndim - 1
    fixed = [np.arange(n).reshape([n if k == d else 1 for k in range(rank)]) for d, n in enumerate(data.shape[:batch])]
    return (data[(*fixed, *(at[..., k] for k in range(depth)))],)


GATHER: tuple[Primitive, ...] = (
    Primitive("gather", "gather", (2, 2), ANY, _gather_rule, _gather, "{0}", "{0}", ("axis",)),
    Primitive(
        "gather_elements",
        "gather",
        (2, 2),
        ANY,
        _gather_elements_rule,
        _gather_elements,
        "{0}",
        "{0}",
        ("axis",),
    ),
    Primitive("gather_nd", "gather", (2, 2), ANY, _gather_nd_rule, _gather_nd, "{0}", "{0}", ("batch_dims",)),
)
