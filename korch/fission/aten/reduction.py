"""Reductions, scans and sorting of ATen. Axes of a tensor of rank 0 are those of one of rank 1, as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from korch.fission.aten.call import Call
from korch.fission.operators import indexing
from korch.fission.operators.reduction import ReduceLogSumExp
from korch.fission.tensor import Number, Tensor
from korch.ir.types import DType

Dims = int | Sequence[int] | None


def axes_of(x: Tensor, dim: Dims) -> tuple[int, ...]:
    """The axes that `dim` names; none named means all."""
    if x.rank == 0 or dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(x.rank))
    return x.axes(dim)


def lined(x: Tensor) -> Tensor:
    """A tensor of rank 0 as one of rank 1."""
    return x if x.rank else x.reshape((1,))


def sum_(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    return x.cast(call.wide).sum(axes_of(x, dim), keepdim)


def mean(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """The mean of nothing is NaN."""
    axes = axes_of(x, dim)
    total = x.cast(call.wide).sum(axes, keepdim)
    return total / float(math.prod(x.shape[a] for a in axes))


def prod(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    return x.cast(call.wide).prod(axes_of(x, dim), keepdim)


def amax(call: Call, x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return x.max(axes_of(x, dim), keepdim)


def amin(call: Call, x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return x.min(axes_of(x, dim), keepdim)


def any_(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return x.cast(DType.BOOL).max(axes_of(x, dim), keepdim)


def all_(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return x.cast(DType.BOOL).min(axes_of(x, dim), keepdim)


def arg(primitive: str) -> Callable[..., Tensor]:
    """Where the extreme lies: the first of equal ones, in the flattened tensor without a dimension."""

    def function(call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None or x.rank == 0:
            found = ordered(x).reshape((x.type.elements,)).apply(primitive, axis=0, last=False)
            return found.reshape((1,) * x.rank if keepdim else ())
        axis = x.axis(dim)
        found = ordered(x).apply(primitive, axis=axis, last=False)
        return found.unsqueeze(axis) if keepdim else found

    return function


def extreme(primitive: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The extreme along one dimension, and where it lies."""
    place = arg(f"arg_{primitive}")

    def function(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        value = x.reduce(f"reduce_{primitive}", axes_of(x, dim), keepdim)
        return value, place(call, x, dim, keepdim)

    return function


def ordered(x: Tensor) -> Tensor:
    """Booleans as numbers."""
    return x.cast(DType.UINT8) if x.dtype is DType.BOOL else x


def variance(x: Tensor, axes: tuple[int, ...], correction: float, keepdim: bool) -> Tensor:
    """The mean of squared differences from the mean, over n - correction (never less than 0)."""
    count = math.prod(x.shape[a] for a in axes)
    d = x - x.sum(axes, keepdims=True) / float(count)
    return (d * d).sum(axes, keepdim) / max(0.0, count - correction)


def var(call: Call, x: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> Tensor:
    return variance(x.cast(call.wide), axes_of(x, dim), 1 if correction is None else correction, keepdim)


def var_dim(call: Call, x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return var(call, x, dim, correction=int(unbiased), keepdim=keepdim)


def std(call: Call, x: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> Tensor:
    return var(call, x, dim, correction=correction, keepdim=keepdim).sqrt()


def var_mean(
    call: Call, x: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return var(call, x, dim, correction=correction, keepdim=keepdim), mean(call, x, dim, keepdim)


def logsumexp(call: Call, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    axes = axes_of(x, dim)
    if not axes:
        return x
    return call.onnx(ReduceLogSumExp, x.cast(call.wide), call.integers(axes), keepdims=int(keepdim))[0]


def cumsum(call: Call, x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    line = lined(x.cast(call.wide))
    return line.apply("cumsum", axis=line.axis(dim), exclusive=False, reverse=False).reshape(x.shape)


def cumprod(call: Call, x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    line = lined(x.cast(call.wide))
    return call.onnx(indexing.CumProd, line, call.integers((line.axis(dim),)))[0].reshape(x.shape)


def topk(call: Call, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, ...]:
    line = ordered(lined(x))
    found = line.apply_all("top_k", axis=line.axis(dim), k=k, largest=largest, sorted=sorted)
    return tuple(y.reshape(call.shape) for y in found)


def sort(call: Call, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, ...]:
    line = lined(x)
    return topk(call, x, line.shape[line.axis(dim)], dim, largest=descending)


def sort_stable(
    call: Call, x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, ...]:
    return sort(call, x, dim, descending)


def kthvalue(call: Call, x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, ...]:
    """The k-th smallest, counted from 1."""
    line = lined(x)
    axis = line.axis(dim)
    found = line.apply_all("top_k", axis=axis, k=k, largest=False, sorted=True)
    return tuple(y.narrow(axis, k - 1, 1).reshape(call.shape) for y in found)


def vector_norm(
    call: Call, x: Tensor, ord: Number = 2, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    axes, w = axes_of(x, dim), abs(x.cast(call.wide))
    if math.isinf(ord):
        return w.max(axes, keepdim) if ord > 0 else w.min(axes, keepdim)
    match float(ord):
        case 0.0:
            return (~w.equal(0)).cast(w.dtype).sum(axes, keepdim)
        case 1.0:
            return w.sum(axes, keepdim)
        case 2.0:
            return (w * w).sum(axes, keepdim).sqrt()
        case _:
            return w.power(float(ord)).sum(axes, keepdim).power(1 / float(ord))
