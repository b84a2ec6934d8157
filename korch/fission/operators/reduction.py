"""Reductions. Sums of float16 and bfloat16 are taken in float32, and everything made of them is rounded once."""

from __future__ import annotations

from korch.fission.builder import Builder
from korch.fission.reading import integer, integers, listed, wide
from korch.fission.tensor import Tensor, where
from korch.importers.operators import Operator
from korch.ir.types import DType


def reduced_axes(op: Operator, x: Tensor, given: Tensor | None) -> tuple[int, ...]:
    """From the input (opset 13 for ReduceSum, 18 for the others) or the attribute; all when neither says more."""
    axes = integers(op, "axes", ()) if given is None else listed(given, "axes")
    if not axes:
        return () if integer(op, "noop_with_empty_axes", 0) else x.axes()
    return x.axes(axes)


def keeps(op: Operator) -> bool:
    return bool(integer(op, "keepdims", 1))


def ReduceSum(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.sum(reduced_axes(op, x, axes), keeps(op))


def ReduceProd(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.prod(reduced_axes(op, x, axes), keeps(op))


def ReduceMax(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.max(reduced_axes(op, x, axes), keeps(op))


def ReduceMin(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.min(reduced_axes(op, x, axes), keeps(op))


def ReduceMean(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Integers: the quotient of the sum, truncated."""
    return wide(x).mean(reduced_axes(op, x, axes), keeps(op)).cast(x.dtype)


def ReduceL1(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    magnitude = abs(x) if x.dtype.is_signed else x
    return magnitude.sum(reduced_axes(op, x, axes), keeps(op))


def ReduceL2(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    w = wide(x) if x.dtype.is_float else x.cast(DType.FLOAT64)
    return (w * w).sum(reduced_axes(op, x, axes), keeps(op)).sqrt().cast(x.dtype)


def ReduceSumSquare(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    w = wide(x)
    return (w * w).sum(reduced_axes(op, x, axes), keeps(op)).cast(x.dtype)


def ReduceLogSum(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    w = wide(x) if x.dtype.is_float else x.cast(DType.FLOAT64)
    return w.sum(reduced_axes(op, x, axes), keeps(op)).log().cast(x.dtype)


def ReduceLogSumExp(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """The greatest element, where it is finite, is subtracted first: only -inf gives -inf, a +inf gives +inf."""
    w = wide(x) if x.dtype.is_float else x.cast(DType.FLOAT64)
    over = reduced_axes(op, x, axes)
    greatest = w.max(over, keepdims=True)
    shift = where(greatest.map("isinf", positive=True, negative=True), 0, greatest)
    result = (w - shift).exp().sum(over, keepdims=True).log() + shift
    kept = keeps(op)
    return result.reshape(n for d, n in enumerate(result.shape) if kept or d not in over).cast(x.dtype)


def arg(op: Operator, x: Tensor, primitive: str) -> Tensor:
    axis = x.axis(integer(op, "axis", 0))
    found = x.apply(primitive, axis=axis, last=bool(integer(op, "select_last_index", 0)))
    return found.unsqueeze(axis) if keeps(op) else found


def ArgMax(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return arg(op, x, "arg_max")


def ArgMin(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return arg(op, x, "arg_min")


def LpNormalization(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """x / norm along one axis; where the norm is 0 so is the result."""
    w, axis = wide(x), x.axis(integer(op, "axis", -1))
    first = integer(op, "p", 2) == 1
    norm = abs(w).sum(axis, keepdims=True) if first else (w * w).sum(axis, keepdims=True).sqrt()
    return (w / where(norm.equal(0), 1, norm)).cast(x.dtype)
