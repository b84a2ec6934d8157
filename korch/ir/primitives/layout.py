"""Broadcast, and layout primitives: each output element reads one input element or a constant."""

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
    integers,
    one_dtype,
    require,
    shape_of,
)
from korch.ir.types import CODES, TensorType


def _broadcast_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    shape, axes = shape_of(attributes), integers(attributes, "axes", x.rank)
    require(list(axes) == sorted(set(axes)), f"attribute axes must be ascending and distinct, not {axes}")
    require(all(0 <= a < len(shape) for a in axes), f"attribute axes {axes} does not fit the shape {shape}")
    for n, a in zip(x.shape, axes, strict=True):
        require(n in (1, shape[a]), f"a dimension of {n} does not broadcast to {shape[a]}")
    return (TensorType(x.dtype, shape),)


def _broadcast(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    shape, axes = shape_of(attributes), integers(attributes, "axes")
    unit = [1] * len(shape)
    for n, a in zip(arrays[0].shape, axes, strict=True):
        unit[a] = n
    return (np.broadcast_to(arrays[0].reshape(unit), shape),)


def _reshape_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    shape = shape_of(attributes)
    require(math.prod(shape) == types[0].elements, f"the shape {shape} has another number of elements")
    return (TensorType(types[0].dtype, shape),)


def _reshape(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (arrays[0].reshape(shape_of(attributes)),)


def _transpose_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    perm = integers(attributes, "perm", x.rank)
    require(sorted(perm) == list(range(x.rank)), f"attribute perm is no permutation: {perm}")
    return (TensorType(x.dtype, tuple(x.shape[p] for p in perm)),)


def _transpose(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (arrays[0].transpose(integers(attributes, "perm")),)


def _slice_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    starts, steps = integers(attributes, "starts", x.rank), integers(attributes, "steps", x.rank)
    shape = shape_of(attributes, x.rank)
    for n, start, step, out in zip(x.shape, starts, steps, shape, strict=True):
        require(step != 0, "attribute steps has a zero")
        inside = out == 0 or (0 <= start < n and 0 <= start + (out - 1) * step < n)
        require(inside, f"the slice from {start} by {step}, {out} elements, leaves a dimension of {n}")
    return (TensorType(x.dtype, shape),)


def slice_of(start: int, step: int, count: int) -> slice:
    """The Python slice that reads `count` elements from `start`, `step` apart."""
    if count == 0:
        return slice(0, 0)
    stop = start + (count - 1) * step + (1 if step > 0 else -1)
    return slice(start, None if stop < 0 else stop, step)


def _slice(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    starts, steps = integers(attributes, "starts"), integers(attributes, "steps")
    index = tuple(map(slice_of, starts, steps, shape_of(attributes)))
    return (arrays[0][index],)


def _pad_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    integers(attributes, "before", x.rank)
    value = attributes["value"]
    require(isinstance(value, (bool, int, float)), f"attribute value must be a number or bool, not {value!r}")
    if x.dtype.is_integer:
        limits = np.iinfo(x.dtype.numpy)
        fits = float(value).is_integer() and limits.min <= int(value) <= limits.max  # type: ignore[arg-type]
        require(fits, f"the value {value!r} is no {x.dtype.value}")
    return (TensorType(x.dtype, shape_of(attributes, x.rank)),)


def _pad(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    (x,) = arrays
    before, shape, value = integers(attributes, "before"), shape_of(attributes), attributes["value"]
    result = np.full(shape, int(value) if x.dtype.kind in "iu" else value, x.dtype)  # type: ignore[arg-type]
    firsts = [max(0, b) for b in before]
    lasts = [max(f, min(s, b + n)) for f, s, b, n in zip(firsts, shape, before, x.shape, strict=True)]
    target = tuple(map(slice, firsts, lasts))
    source = tuple(slice(f - b, last - b) for f, last, b in zip(firsts, lasts, before, strict=True))
    if all(last > f for f, last in zip(firsts, lasts, strict=True)):
        result[target] = x[source]
    return (result,)


def _concat_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    dtype, first = one_dtype(types, ANY | CODES), types[0]
    axis = axis_of(attributes, first.rank)
    for t in types:
        same = t.rank == first.rank and all(
            n == m for d, (n, m) in enumerate(zip(t.shape, first.shape, strict=True)) if d != axis
        )
        require(same, f"the shapes differ outside axis {axis}")
    total = sum(t.shape[axis] for t in types)
    return (TensorType(dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _concat(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (np.concatenate(arrays, axis=axis_of(attributes, arrays[0].ndim)),)


def _take_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    axis, indices = axis_of(attributes, x.rank), integers(attributes, "indices")
    require(all(0 <= i < x.shape[axis] for i in indices), f"an index leaves the dimension of {x.shape[axis]}")
    return (TensorType(x.dtype, (*x.shape[:axis], len(indices), *x.shape[axis + 1 :])),)


def _take(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    (x,) = arrays
    indices = np.array(integers(attributes, "indices"), np.int64)
    return (np.take(x, indices, axis=axis_of(attributes, x.ndim)),)


def _moves(
    name: str, kind: str, rule: object, meaning: object, attributes: tuple[str, ...], most: int | None = 1
) -> Primitive:
    return Primitive(name, kind, (1, most), ANY, rule, meaning, "{0}", "{0}", attributes)  # type: ignore[arg-type]


BROADCAST: tuple[Primitive, ...] = (_moves("broadcast", "broadcast", _broadcast_rule, _broadcast, ("shape", "axes")),)

LAYOUT: tuple[Primitive, ...] = (
    _moves("reshape", "layout", _reshape_rule, _reshape, ("shape",)),
    _moves("transpose", "layout", _transpose_rule, _transpose, ("perm",)),
    _moves("slice", "layout", _slice_rule, _slice, ("starts", "steps", "shape")),
    _moves("pad", "layout", _pad_rule, _pad, ("before", "shape", "value")),
    _moves("concat", "layout", _concat_rule, _concat, ("axis",), None),
    _moves("take", "layout", _take_rule, _take, ("axis", "indices")),
)
