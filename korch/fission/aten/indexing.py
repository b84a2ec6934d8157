"""Reads and writes at positions given by data.

PyTorch raises an error for an index outside; here it is clamped (reads) or left out (writes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from korch.fission.aten.call import Call, promote
from korch.fission.operators import indexing
from korch.fission.reading import Refused
from korch.fission.tensor import Number, Tensor, concat, constant, where
from korch.ir.types import DType


def embedding(call: Call, weight: Tensor, indices: Tensor, *_: object) -> Tensor:
    return call.onnx(indexing.Gather, weight, indices, axis=0)[0]


def index_select(call: Call, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.rank:
        return x
    return call.onnx(indexing.Gather, x, index.reshape((index.type.elements,)), axis=x.axis(dim))[0]


def gather(call: Call, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not x.rank or not index.rank:
        line = x.reshape((1,)) if not x.rank else x
        return line.apply("gather_elements", index.reshape((index.type.elements,)), axis=0).reshape(call.shape)
    return x.apply("gather_elements", index, axis=x.axis(dim))


def _chosen(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], list[Tensor]]:
    """The indexed axes and their indices, which have one shape."""
    axes = [d for d, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(index.dtype is DType.BOOL for index in given):
        raise Refused("the size of what a mask chooses depends on the model's inputs")
    shape = np.broadcast_shapes(*(index.shape for index in given))
    return axes, [index.cast(DType.INT64).expand(shape) for index in given]


def _adjacent(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(axes[0], axes[0] + len(axes)))


def _positions(given: Sequence[Tensor]) -> Tensor:
    last = given[0].rank
    return concat([index.unsqueeze(last) for index in given], last)


def index(call: Call, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """NumPy's advanced indexing. Indexed dimensions that are adjacent stay in their place, others come first."""
    masked = _known_mask(x, indices)
    if masked is not None:
        x, indices = masked
    axes, given = _chosen(x, indices)
    if len(axes) == 1:
        return call.onnx(indexing.Gather, x, given[0], axis=axes[0])[0]
    rest = [d for d in range(x.rank) if d not in axes]
    found = x.transpose([*axes, *rest]).apply("gather_nd", _positions(given), batch_dims=0)
    if not _adjacent(axes) or not axes[0]:
        return found
    k, lead = given[0].rank, axes[0]
    return found.transpose([*range(k, k + lead), *range(k), *range(k + lead, found.rank)])


def _known_mask(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor | None]] | None:
    """A constant mask as the positions where it holds."""
    if len(indices) != 1 or indices[0] is None or indices[0].dtype is not DType.BOOL or indices[0].known is None:
        return None
    mask = indices[0].known
    places = np.flatnonzero(mask)
    flat = x.reshape((mask.size, *x.shape[mask.ndim :]))
    return flat, [constant(x.builder, places)]


def index_put(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Where a mask chooses and one value is put, a choice; else a scatter."""
    masks = [i for i in indices if i is not None and i.dtype is DType.BOOL]
    if masks:
        if len(masks) != len(indices) or len(indices) != 1 or values.type.elements != 1 or accumulate:
            raise Refused("with a mask only one value is put")
        mask = masks[0].along(range(masks[0].rank), x.rank)
        return where(mask, values.reshape(()).cast(x.dtype), x)
    axes, given = _chosen(x, indices)
    rest = [d for d in range(x.rank) if d not in axes]
    order = [*axes, *rest]
    k = given[0].rank
    shape = (*given[0].shape, *(x.shape[d] for d in rest))
    updates = values.cast(x.dtype)
    if _adjacent(axes) and axes[0]:
        lead = axes[0]
        placed = (*(x.shape[d] for d in rest[:lead]), *given[0].shape, *(x.shape[d] for d in rest[lead:]))
        updates = updates.expand(placed)
        updates = updates.transpose([*range(lead, lead + k), *range(lead), *range(lead + k, updates.rank)])
    updates = updates.expand(shape)
    moved = x.transpose(order)
    result = _scattered(moved, _positions(given), updates, accumulate)
    return result.transpose([order.index(d) for d in range(x.rank)])


def _scattered(x: Tensor, positions: Tensor, updates: Tensor, accumulate: bool) -> Tensor:
    if accumulate and x.dtype is DType.BOOL:
        summed = x.cast(DType.UINT8).apply("scatter_nd", positions, updates.cast(DType.UINT8), reduction="max")
        return summed.cast(DType.BOOL)
    return x.apply("scatter_nd", positions, updates, reduction="add" if accumulate else "none")


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor, reduction: str) -> Tensor:
    line = x if x.rank else x.reshape((1,))
    places = index if index.rank else index.reshape((1,))
    updates = src if src.rank or not x.rank else src.reshape((1,))
    updates = updates if updates.rank else updates.reshape((1,))
    if any(a < b for a, b in zip(updates.shape, places.shape, strict=True)):
        raise Refused("the source is smaller than the index")
    updates = updates.slice([0] * updates.rank, [1] * updates.rank, places.shape)
    axis = line.axis(dim)
    return line.apply("scatter_elements", places, updates, axis=axis, reduction=reduction).reshape(x.shape)


def scatter_src(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(x, dim, index, src.cast(x.dtype), "none")


def scatter_value(call: Call, x: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    return _scatter(x, dim, index, call.tensor(value, x.dtype).expand(index.shape), "none")


def scatter_add(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(x, dim, index, src.cast(x.dtype), "add")


REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def scatter_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Without the elements themselves, those that are written to begin with what changes nothing."""
    if reduce not in REDUCTIONS:
        raise Refused(f"reduce={reduce!r} is not supported")
    if not include_self:
        neutral = constant(x.builder, np.asarray(_neutral(x.dtype, reduce), x.dtype.numpy))
        x = _scatter(x, dim, index, neutral.expand(index.shape), "none")
    return _scatter(x, dim, index, src.cast(x.dtype), REDUCTIONS[reduce])


def _neutral(dtype: DType, reduce: str) -> float | int:
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    if dtype.is_float:
        return -math.inf if reduce == "amax" else math.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduce == "amax" else limits.max)


def masked_fill(call: Call, x: Tensor, mask: Tensor, value: Number | Tensor) -> Tensor:
    return where(mask, call.tensor(value, call.dtype).reshape(()), x)


def masked_scatter(call: Call, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The k-th element where the mask holds is the k-th of the source."""
    holds = mask.expand(call.shape)
    flat = holds.reshape((holds.type.elements,)).cast(DType.INT64)
    places = flat.apply("cumsum", axis=0, exclusive=True, reverse=False)
    values = source.reshape((source.type.elements,)).apply("gather", places, axis=0)
    return where(holds, values.reshape(call.shape).cast(x.dtype), x)


def bucketize(
    call: Call, x: Tensor | Number, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """How many boundaries, which ascend, lie before x (with `right`: not after it); NaN comes after all."""
    dtype = promote(boundaries, x)
    value = call.tensor(x, dtype)
    value = value.unsqueeze(value.rank)
    limits = boundaries.cast(dtype)
    after = value < limits if right else value <= limits
    return (~after).cast(DType.INT64).sum(-1)
