"""Folds made while the graph is built. Each function emits one primitive, or finds that less will do.

Only what is true for every value is folded: x * 1, x / 1 and x - 0.0 vanish, x * 0, x - x and x + 0.0 do not
(NaN, infinities and -0.0). What needs a choice among equivalent forms belongs to `korch.alternatives`.

A dimension of size 1 that a reshape inserts (the `keepdims` of a reduction) sinks: elementwise primitives work on
the smaller rank and a broadcast absorbs it, so that reduce, elementwise and broadcast meet without a reshape between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from korch.fission.builder import Builder, collapse
from korch.ir.graph import Attribute, Definition
from korch.ir.types import DType


def reshape(b: Builder, value: str, shape: Sequence[int]) -> str:
    """The same elements in row-major order; a reshape of a reshape is one."""
    shape = tuple(shape)
    producer = b.producer(value)
    if producer is not None and producer.primitive == "reshape":
        value = producer.inputs[0]
    if b.types[value].shape == shape:
        return value
    return b.emit("reshape", (value,), {"shape": shape})[0]


def transpose(b: Builder, value: str, perm: Sequence[int]) -> str:
    """Permuted dimensions; transposes merge, and one that only moves dimensions of size 1 is a reshape."""
    producer = b.producer(value)
    if producer is not None and producer.primitive == "transpose":
        inner = producer.ints("perm")
        value, perm = producer.inputs[0], [inner[p] for p in perm]
    shape = b.types[value].shape
    moving = [p for p in perm if shape[p] != 1]
    if all(p < q for p, q in pairwise(moving)):
        return reshape(b, value, [shape[p] for p in perm])
    return b.emit("transpose", (value,), {"perm": tuple(perm)})[0]


def slice_(b: Builder, value: str, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> str:
    """Elements `starts + o * steps` per dimension; a slice of a slice is one."""
    producer = b.producer(value)
    if producer is not None and producer.primitive == "slice":
        first, stride = producer.ints("starts"), producer.ints("steps")
        starts = [f + s * t for f, s, t in zip(first, starts, stride, strict=True)]
        steps = [s * t for s, t in zip(steps, stride, strict=True)]
        value = producer.inputs[0]
    # Where at most one element is taken, the step says nothing; where none is, nor does the start.
    steps = tuple(s if n > 1 else 1 for s, n in zip(steps, shape, strict=True))
    starts = tuple(s if n > 0 else 0 for s, n in zip(starts, shape, strict=True))
    shape = tuple(shape)
    whole = not any(starts) and all(s == 1 for s in steps)
    if whole and b.types[value].shape == shape:
        return value
    return b.emit("slice", (value,), {"starts": starts, "steps": steps, "shape": shape})[0]


def pad(b: Builder, value: str, before: Sequence[int], shape: Sequence[int], fill: float | int | bool) -> str:
    """The tensor inside a larger one filled with `fill`."""
    if b.types[value].shape == tuple(shape):
        return value
    return b.emit("pad", (value,), {"before": tuple(before), "shape": tuple(shape), "value": fill})[0]


def concat(b: Builder, values: Sequence[str], axis: int) -> str:
    """One after another along `axis`; empty parts are left out."""
    parts = [v for v in values if b.types[v].shape[axis]] or list(values[:1])
    return parts[0] if len(parts) == 1 else b.emit("concat", parts, {"axis": axis})[0]


def take(b: Builder, value: str, axis: int, indices: Sequence[int]) -> str:
    """Known positions along `axis`, each in range; evenly spaced ones are a slice, one repeated is a broadcast."""
    producer = b.producer(value)
    if producer is not None and producer.primitive == "take" and producer.int("axis") == axis:
        inner = producer.ints("indices")
        value, indices = producer.inputs[0], [inner[i] for i in indices]
    shape = list(b.types[value].shape)
    steps = {q - p for p, q in pairwise(indices)} or {1}
    if len(steps) > 1:
        return b.emit("take", (value,), {"axis": axis, "indices": tuple(indices)})[0]
    step, count = steps.pop(), len(indices)
    starts, strides = [0] * len(shape), [1] * len(shape)
    starts[axis], strides[axis] = indices[0] if indices else 0, step or 1
    shape[axis] = count if step else 1
    part = slice_(b, value, starts, strides, shape)
    shape[axis] = count
    return broadcast(b, part, shape, range(len(shape)))


def broadcast(b: Builder, value: str, shape: Sequence[int], axes: Sequence[int]) -> str:
    """Dimension k of the input becomes dimension `axes[k]`; nested ones merge, and inserting 1s is a reshape."""
    shape = tuple(shape)
    if b.types[value].shape == shape:
        return value
    while (inner := _as_broadcast(b, b.producer(value))) is not None:
        value, places = inner
        axes = [axes[p] for p in places]
    if value in b.constants:
        # A constant of one element becomes rank 0: generators print it as a literal.
        kept = [d for d, n in enumerate(b.types[value].shape) if n != 1]
        value = reshape(b, value, [b.types[value].shape[d] for d in kept])
        axes = [axes[d] for d in kept]
    source = b.types[value].shape
    if all(n == 1 for d, n in enumerate(shape) if d not in axes) and source == tuple(shape[a] for a in axes):
        return reshape(b, value, shape)
    return b.emit("broadcast", (value,), {"shape": shape, "axes": tuple(axes)})[0]


def expand(b: Builder, value: str, shape: Sequence[int]) -> str:
    """NumPy's broadcasting to `shape`: dimensions are aligned at the end."""
    rank = len(b.types[value].shape)
    return broadcast(b, value, shape, range(len(shape) - rank, len(shape)))


def reduce(b: Builder, primitive: str, value: str, axes: Sequence[int]) -> str:
    """A reduction that drops its axes; those of size 1 need no reduction."""
    shape = b.types[value].shape
    axes = tuple(sorted(axes))
    if all(shape[a] == 1 for a in axes):
        return reshape(b, value, [n for d, n in enumerate(shape) if d not in axes])
    return b.emit(primitive, (value,), {"axes": axes})[0]


def cast(b: Builder, value: str, to: DType) -> str:
    """Another dtype. Widening, then casting again, is one cast: float16 to float32 and back vanishes."""
    producer = b.producer(value)
    if producer is not None and producer.primitive == "cast":
        source = producer.inputs[0]
        if widens(b.types[source].dtype, b.types[value].dtype):
            value = source
    if b.types[value].dtype is to:
        return value
    return elementwise(b, "cast", (value,), {"to": to.value})


def widens(narrow: DType, wide: DType) -> bool:
    """Whether a cast keeps every value and stays a float or an integer, so that a later cast cannot tell."""
    if narrow is DType.BOOL:
        return True
    if narrow.is_float != wide.is_float or wide is DType.BOOL:
        return False
    if narrow.is_float:
        return wide.size > narrow.size
    return np.can_cast(narrow.numpy, wide.numpy, "safe")


def elementwise(
    b: Builder, primitive: str, values: Sequence[str], attributes: Mapping[str, Attribute] | None = None
) -> str:
    """An elementwise primitive on inputs that are broadcast to their common shape first."""
    values = [_stored_small(b, v) for v in values]
    shape = np.broadcast_shapes(*(b.types[v].shape for v in values))
    values = [expand(b, v, shape) for v in values]
    inner = _without_inserted(b, values, shape)
    if inner is not None:
        values = [reshape(b, v, inner) for v in values]
    found = _identity(b, primitive, values)
    if found is None:
        found = b.emit(primitive, values, attributes)[0]
    return reshape(b, found, shape)


def _stored_small(b: Builder, value: str) -> str:
    """A constant that repeats itself in memory becomes a broadcast of what is stored."""
    array = b.constants.get(value)
    if array is None or all(n <= 1 or stride for n, stride in zip(array.shape, array.strides, strict=True)):
        return value
    return b.spread(array)


def uniform(b: Builder, value: str) -> np.generic | None:
    """The element of a constant that holds only one (a scalar, or one repeated by strides of 0)."""
    array = b.known(value)
    if array is None or not array.size:
        return None
    if any(n > 1 and stride for n, stride in zip(array.shape, array.strides, strict=True)):
        return None
    return array[(0,) * array.ndim]


def _identity(b: Builder, primitive: str, values: Sequence[str]) -> str | None:
    """The input that the primitive would return unchanged, for every value; else None."""
    if primitive in ("neg", "not"):
        producer = b.producer(values[0])
        return producer.inputs[0] if producer is not None and producer.primitive == primitive else None
    if primitive in ("max", "min", "and", "or") and values[0] == values[1]:
        return values[0]
    if primitive == "where":
        return _chosen(b, values)
    if len(values) != 2:
        return None
    for kept, other in ((values[0], values[1]), (values[1], values[0])):
        element = uniform(b, other)
        if element is not None and _is_neutral(primitive, element, right=other == values[1]):
            return kept
    return None


def _chosen(b: Builder, values: Sequence[str]) -> str | None:
    condition, a, other = values
    if a == other:
        return a
    known = b.known(condition)
    if known is None:
        return None
    chosen = collapse(known)
    return a if chosen.all() else other if not chosen.any() else None


def _is_neutral(primitive: str, element: np.generic, right: bool) -> bool:
    """Whether an operand, given on the right or left, leaves the other one as it is, -0.0 and NaN included."""
    dtype = DType.of(element.dtype)
    match primitive:
        case "mul":
            return bool(element == 1)
        case "div" | "pow":
            return right and bool(element == 1)
        case "add":
            return bool(element == 0) and (not dtype.is_float or bool(np.signbit(element)))
        case "sub":
            return right and bool(element == 0) and not (dtype.is_float and bool(np.signbit(element)))
        case "and":
            return dtype is DType.BOOL and bool(element)
        case "or" | "xor":
            return not element
        case _:
            return False


def _inserted(b: Builder, definition: Definition | None) -> tuple[str, list[int]] | None:
    """The source of a reshape that only inserts dimensions of size 1, and where its dimensions went."""
    if definition is None or definition.primitive != "reshape":
        return None
    source = definition.inputs[0]
    narrow, wide = b.types[source].shape, definition.ints("shape")
    places: list[int] = []
    for d, n in enumerate(wide):
        if len(places) < len(narrow) and narrow[len(places)] == n:
            places.append(d)
        elif n != 1:
            return None
    return (source, places) if len(places) == len(narrow) else None


def _as_broadcast(b: Builder, definition: Definition | None) -> tuple[str, Sequence[int]] | None:
    if definition is not None and definition.primitive == "broadcast":
        return definition.inputs[0], definition.ints("axes")
    return _inserted(b, definition)


def _without_inserted(b: Builder, values: Sequence[str], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The one smaller shape from which all inputs were reshaped by inserting dimensions of 1; constants follow."""
    found: set[tuple[int, ...]] = set()
    for value in values:
        if b.known(value) is not None:
            continue
        inner = _inserted(b, b.producer(value))
        if inner is None or len(inner[1]) == len(shape):
            return None
        found.add(b.types[inner[0]].shape)
    return found.pop() if len(found) == 1 else None
