"""Quantized operators: integers are centered on their zero point; products are exact in int32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from korch.fission.builder import Builder
from korch.fission.codes import convert, is_integer_code
from korch.fission.operators.convolution import convolved
from korch.fission.operators.elementwise import result_dtype
from korch.fission.reading import integer, wide
from korch.fission.tensor import Tensor
from korch.importers.operators import Operator
from korch.ir.types import CODES, DType


def QuantizeLinear(b: Builder, op: Operator, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """round(x / scale) + zero, saturated; halves round to even."""
    to = zero.dtype if zero is not None else DType.UINT8
    if zero is None and integer(op, "output_dtype", 0):
        to = result_dtype(op, "output_dtype")
    w = wide(x) if x.dtype.is_float else x.cast(DType.FLOAT32)
    levels = w / _per_axis(op, x, scale).cast(w.dtype)
    if to in CODES and not is_integer_code(to):
        return convert(levels, to, bool(integer(op, "saturate", 1)))
    return shifted(levels.round(), None if zero is None else _per_axis(op, x, zero), to)


def DequantizeLinear(b: Builder, op: Operator, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """(x - zero) * scale; floats of eight bits or less have no zero point but 0."""
    to = result_dtype(op, "output_dtype") if integer(op, "output_dtype", 0) else scale.dtype
    if x.dtype in CODES and not is_integer_code(x.dtype):
        levels = convert(x, DType.FLOAT32)
    else:
        levels = centered(x, None if zero is None else _per_axis(op, x, zero))
    factor = _per_axis(op, x, wide(scale))
    return (levels.cast(factor.dtype) * factor).cast(to)


def _per_axis(op: Operator, x: Tensor, parameter: Tensor) -> Tensor:
    """A scale or zero point of the whole tensor, of each position of one axis, or of each block along it."""
    if parameter.type.elements == 1 and not integer(op, "block_size", 0):
        return parameter.reshape(())
    axis = x.axis(integer(op, "axis", 1))
    block = integer(op, "block_size", 0)
    if block:
        return parameter.take(axis, [i // block for i in range(x.shape[axis])])
    return parameter.along((axis,), x.rank)


def centered(x: Tensor, zero: Tensor | None) -> Tensor:
    """x - zero in int32."""
    levels = convert(x, DType.INT32)
    return levels if zero is None else levels - convert(zero, DType.INT32)


def shifted(levels: Tensor, zero: Tensor | None, to: DType) -> Tensor:
    """Whole float numbers moved by the zero point, saturated to an integer dtype."""
    levels = levels if zero is None else levels + convert(zero, levels.dtype)
    if to not in CODES:
        return levels.cast(to)
    limits = ml_dtypes.iinfo(to.numpy)
    return convert(levels.maximum(float(limits.min)).minimum(float(limits.max)), to)


def integer_matmul(x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None) -> Tensor:
    """(x - x_zero) @ (y - y_zero) in int32; a zero point of one dimension belongs to rows of x, columns of y."""
    if x_zero is not None and x_zero.rank == 1 and x_zero.shape[0] > 1:
        x_zero = x_zero.unsqueeze(1)
    if y_zero is not None and y_zero.rank == 1 and y_zero.shape[0] > 1 and y.rank > 1:
        y_zero = y_zero.unsqueeze(0)
    x_zero, y_zero = (z.reshape(()) if z is not None and z.type.elements == 1 else z for z in (x_zero, y_zero))
    if x.dtype is y.dtype and _is_zero(x_zero) and _is_zero(y_zero):
        return x @ y
    return centered(x, x_zero) @ centered(y, y_zero)


def _is_zero(zero: Tensor | None) -> bool:
    return zero is None or (zero.known is not None and not np.any(zero.known))


def MatMulInteger(
    b: Builder,
    op: Operator,
    x: Tensor,
    y: Tensor,
    x_zero: Tensor | None = None,
    y_zero: Tensor | None = None,
) -> Tensor:
    return integer_matmul(x, y, x_zero, y_zero)


def integer_convolution(op: Operator, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None) -> Tensor:
    """The convolution of centered integers in int32: the border is padded with the zero point."""
    if x.dtype is w.dtype and _is_zero(x_zero) and _is_zero(w_zero):
        return convolved(op, x, w)
    x_zero = None if x_zero is None else x_zero.reshape(())
    if w_zero is not None:
        w_zero = w_zero.reshape((w_zero.type.elements, *[1] * (w.rank - 1)))
    return convolved(op, centered(x, x_zero), centered(w, w_zero))


def ConvInteger(
    b: Builder,
    op: Operator,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
) -> Tensor:
    return integer_convolution(op, x, w, x_zero, w_zero)


def QLinearMatMul(
    b: Builder,
    op: Operator,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Tensor:
    product = integer_matmul(x, y, x_zero, y_zero)
    x_scale, y_scale, scale = wide(x_scale), wide(y_scale), wide(scale)
    if x_scale.type.elements > 1 and x_scale.rank == 1:
        x_scale = x_scale.unsqueeze(1)
    factor = x_scale * y_scale / scale
    if factor.type.elements == 1:
        factor = factor.reshape(())
    return shifted((product.cast(DType.FLOAT32) * factor).round(), zero, zero.dtype)


def QLinearConv(
    b: Builder,
    op: Operator,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """The bias is an int32 in units of x_scale * w_scale."""
    product = integer_convolution(op, x, w, x_zero, w_zero)
    if bias is not None:
        product = product + bias.along((1,), product.rank)
    factor = x_scale.reshape(()) * w_scale / scale.reshape(())
    factor = factor.reshape((factor.type.elements, *[1] * (x.rank - 2)))
    return shifted((product.cast(DType.FLOAT32) * factor).round(), zero.reshape(()), zero.dtype)
