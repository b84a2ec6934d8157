"""Operators that read or write at positions given by data, and sorting."""

from __future__ import annotations

import numpy as np

from korch.fission.builder import Builder
from korch.fission.reading import Refused, contents, integer, single, text
from korch.fission.tensor import Tensor, constant, where
from korch.importers.operators import Operator
from korch.ir.types import DType

TAKEN = 1 << 16
"""Known indices up to this many become part of the graph; more are a constant read by a gather."""


def Gather(b: Builder, op: Operator, x: Tensor, indices: Tensor) -> Tensor:
    """Known indices are a slice or a `take`."""
    axis = x.axis(integer(op, "axis", 0))
    known = indices.known
    if known is None or known.size > TAKEN or x.known is not None:
        return x.apply("gather", indices, axis=axis)
    places = [int(i) for i in known.reshape(-1)]
    n = x.shape[axis]
    if any(not -n <= p < n for p in places):
        raise Refused(f"an index leaves the dimension of {n}")
    part = x.take(axis, [p % n for p in places])
    return part.reshape((*x.shape[:axis], *known.shape, *x.shape[axis + 1 :]))


def GatherElements(b: Builder, op: Operator, x: Tensor, indices: Tensor) -> Tensor:
    return x.apply("gather_elements", indices, axis=x.axis(integer(op, "axis", 0)))


def GatherND(b: Builder, op: Operator, x: Tensor, indices: Tensor) -> Tensor:
    return x.apply("gather_nd", indices, batch_dims=integer(op, "batch_dims", 0))


REDUCTIONS = ("none", "add", "mul", "max", "min")


def ScatterElements(b: Builder, op: Operator, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return x.apply(
        "scatter_elements",
        indices,
        updates,
        axis=x.axis(integer(op, "axis", 0)),
        reduction=text(op, "reduction", "none", REDUCTIONS),
    )


def ScatterND(b: Builder, op: Operator, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return x.apply("scatter_nd", indices, updates, reduction=text(op, "reduction", "none", REDUCTIONS))


def OneHot(b: Builder, op: Operator, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    """values[1] where the new axis' position equals the index (from the end when negative), values[0] elsewhere."""
    count = int(contents(depth, "depth").reshape(-1)[0])
    rank = indices.rank + 1
    axis = integer(op, "axis", -1) % rank
    places = indices.cast(DType.INT64)
    places = where(places < 0, places + count, places).unsqueeze(axis)
    hit = places.equal(constant(b, np.arange(count)).along((axis,), rank))
    off, on = (values.narrow(0, i, 1).reshape(()) for i in (0, 1))
    return where(hit, on, off)


def TopK(b: Builder, op: Operator, x: Tensor, k: Tensor | None = None) -> tuple[Tensor, ...]:
    count = integer(op, "k") if k is None else single(k, "k")
    return x.apply_all(
        "top_k",
        axis=x.axis(integer(op, "axis", -1)),
        k=count,
        largest=bool(integer(op, "largest", 1)),
        sorted=bool(integer(op, "sorted", 1)),
    )


def CumSum(b: Builder, op: Operator, x: Tensor, axis: Tensor) -> Tensor:
    return x.apply(
        "cumsum",
        axis=x.axis(single(axis, "axis")),
        exclusive=bool(integer(op, "exclusive", 0)),
        reverse=bool(integer(op, "reverse", 0)),
    )


def CumProd(b: Builder, op: Operator, x: Tensor, axis: Tensor) -> Tensor:
    """By doubling: after step s each element is the product of the 2 ** s elements up to it."""
    along = x.axis(single(axis, "axis"))
    n = x.shape[along]
    forward = [n - 1 - i for i in range(n)] if integer(op, "reverse", 0) else list(range(n))
    y = x.take(along, forward)
    if integer(op, "exclusive", 0):
        y = _shifted(y, along, 1)
    distance = 1
    while distance < n:
        y = y * _shifted(y, along, distance)
        distance *= 2
    return y.take(along, forward)


def _shifted(x: Tensor, axis: int, distance: int) -> Tensor:
    """Moved toward the end of the axis by a distance up to its size, with ones in front."""
    kept = x.narrow(axis, 0, x.shape[axis] - distance)
    return kept.pad([distance if d == axis else 0 for d in range(x.rank)], [0] * x.rank, 1)


def Compress(b: Builder, op: Operator, x: Tensor, condition: Tensor) -> Tensor:
    """The positions where a known condition holds, of one axis or of the flattened input."""
    if "axis" not in op.attributes:
        x = x.reshape((x.type.elements,))
    axis = x.axis(integer(op, "axis", 0))
    places = np.flatnonzero(contents(condition, "condition"))
    return x.take(axis, [int(p) for p in places if p < x.shape[axis]])


def ReverseSequence(b: Builder, op: Operator, x: Tensor, lengths: Tensor) -> Tensor:
    """The first `lengths[i]` steps of sequence i in reverse, the rest as it is."""
    batch, time = integer(op, "batch_axis", 1), integer(op, "time_axis", 0)
    steps = constant(b, np.arange(x.shape[time])).along((time,), x.rank)
    last = lengths.cast(DType.INT64).along((batch,), x.rank) - 1
    places = where(steps <= last, last - steps, steps)
    return x.apply("gather_elements", places.expand(x.shape), axis=time)


def TensorScatter(b: Builder, op: Operator, x: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
    """A cache with `update` written along one axis from each batch element's start on."""
    axis = x.axis(integer(op, "axis", -2))
    places = constant(b, np.arange(update.shape[axis])).along((axis,), x.rank)
    if starts is not None:
        places = places + starts.cast(DType.INT64).along((0,), x.rank)
    if text(op, "mode", "linear", ("linear", "circular")) == "circular":
        places = places % x.shape[axis]
    return x.apply("scatter_elements", places.expand(update.shape), update, axis=axis, reduction="none")
