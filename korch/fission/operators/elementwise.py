"""Elementwise operators: arithmetic, comparison, logic and elementary functions."""

from __future__ import annotations

from functools import reduce

import numpy as np

from korch.fission.builder import Builder
from korch.fission.codes import ROUND_MODES, convert
from korch.fission.reading import Refused, integer, number, text, wide
from korch.fission.tensor import Tensor, where
from korch.importers.operators import Operator
from korch.ir.types import CODES, DType


def Abs(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return abs(x) if x.dtype.is_signed else x


def Acos(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("acos")


def Acosh(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("acosh")


def Asin(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("asin")


def Asinh(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("asinh")


def Atan(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("atan")


def Atanh(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("atanh")


def Cos(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("cos")


def Cosh(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("cosh")


def Sin(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("sin")


def Sinh(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("sinh")


def Tan(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("tan")


def Tanh(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.tanh()


def Erf(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.erf()


def Exp(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.exp()


def Log(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.log()


def Sqrt(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.sqrt()


def Reciprocal(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return 1 / x


def Neg(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return -x


def Sign(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("sign")


def Ceil(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("ceil")


def Floor(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.floor()


def Round(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """Half to even."""
    return x.round()


def IsNaN(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.map("isnan")


def IsInf(b: Builder, op: Operator, x: Tensor) -> Tensor:
    positive, negative = integer(op, "detect_positive", 1), integer(op, "detect_negative", 1)
    return x.map("isinf", positive=bool(positive), negative=bool(negative))


def Add(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x + y


def Sub(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x - y


def Mul(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x * y


def Div(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    """Integers truncate toward zero."""
    return x / y


def Mod(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    """The sign of the divisor, or with `fmod` of the dividend."""
    return x.map("fmod", y) if integer(op, "fmod", 0) else x % y


def Pow(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    """Small whole exponents become products."""
    exponent = y.known
    if x.dtype.is_float and exponent is not None and exponent.size == 1:
        shape = np.broadcast_shapes(x.shape, y.shape)
        match float(exponent.reshape(-1)[0]):
            case 2.0:
                return (x * x).expand(shape)
            case 3.0:
                return (wide(x) * wide(x) * wide(x)).cast(x.dtype).expand(shape)
            case -1.0:
                return (1 / x).expand(shape)
            case _:
                pass
    return x.power(y)


def Equal(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x.equal(y)


def Less(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x < y


def LessOrEqual(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x <= y


def Greater(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x > y


def GreaterOrEqual(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x >= y


def And(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x & y


def Or(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x | y


def Xor(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x ^ y


def Not(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return ~x


def BitwiseAnd(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x & y


def BitwiseOr(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x | y


def BitwiseXor(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x ^ y


def BitwiseNot(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return ~x


def BitShift(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    """Signed: to the right the sign is kept; a negative distance is, as its bits read unsigned, beyond the width."""
    left = text(op, "direction", "", ("LEFT", "RIGHT")) == "LEFT"
    primitive = "shift_left" if left else "shift_right"
    if not x.dtype.is_signed:
        return x.map(primitive, y)
    unsigned = f"u{x.dtype.value}"
    distance = y.map("bitcast", to=unsigned)
    if left:
        return x.map("bitcast", to=unsigned).map(primitive, distance).map("bitcast", to=x.dtype.value)
    negative = x < 0
    magnitude = where(negative, ~x, x).map("bitcast", to=unsigned)
    moved = magnitude.map(primitive, distance).map("bitcast", to=x.dtype.value)
    return where(negative, ~moved, moved)


def Max(b: Builder, op: Operator, *xs: Tensor) -> Tensor:
    return reduce(lambda x, y: x.maximum(y), xs)


def Min(b: Builder, op: Operator, *xs: Tensor) -> Tensor:
    return reduce(lambda x, y: x.minimum(y), xs)


def Sum(b: Builder, op: Operator, *xs: Tensor) -> Tensor:
    """float16 operands are added in float32."""
    return reduce(lambda x, y: x + y, map(wide, xs)).cast(xs[0].dtype)


def Mean(b: Builder, op: Operator, *xs: Tensor) -> Tensor:
    return (reduce(lambda x, y: x + y, map(wide, xs)) / len(xs)).cast(xs[0].dtype)


def Where(b: Builder, op: Operator, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return where(condition, x, y)


def Clip(b: Builder, op: Operator, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """min(max(x, low), high): NaN comes through, and `high` wins where it lies below `low`."""
    if op.version < 11:
        limits = np.finfo(np.float32)
        low = x.like(number(op, "min", float(limits.min))) if "min" in op.attributes else None
        high = x.like(number(op, "max", float(limits.max))) if "max" in op.attributes else None
    if low is not None:
        x = x.maximum(low.reshape(()))
    return x if high is None else x.minimum(high.reshape(()))


def Cast(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """A float becomes an integer by truncation, saturated, and NaN becomes 0."""
    return _converted(op, x, result_dtype(op))


def CastLike(b: Builder, op: Operator, x: Tensor, model: Tensor) -> Tensor:
    return _converted(op, x, model.dtype)


def _converted(op: Operator, x: Tensor, to: DType) -> Tensor:
    mode = text(op, "round_mode", "up", ROUND_MODES)
    return convert(x, to, bool(integer(op, "saturate", 1)), mode)


def BitCast(b: Builder, op: Operator, x: Tensor) -> Tensor:
    to = result_dtype(op)
    if x.dtype is to:
        return x
    if CODES & {x.dtype, to} and DType.UINT8 not in (x.dtype, to):
        return BitCast(b, op, x.map("bitcast", to="uint8"))
    if x.dtype is DType.BOOL:
        # A boolean is one byte of 0 or 1.
        return BitCast(b, op, x.cast(DType.UINT8))
    if to is DType.BOOL:
        raise Refused("bits are not reinterpreted as booleans")
    return x.map("bitcast", to=to.value)


ONNX_DTYPES: dict[int, DType] = {
    1: DType.FLOAT32,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.UINT16,
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    9: DType.BOOL,
    10: DType.FLOAT16,
    11: DType.FLOAT64,
    12: DType.UINT32,
    13: DType.UINT64,
    16: DType.BFLOAT16,
    17: DType.FLOAT8_E4M3FN,
    18: DType.FLOAT8_E4M3FNUZ,
    19: DType.FLOAT8_E5M2,
    20: DType.FLOAT8_E5M2FNUZ,
    21: DType.UINT4,
    22: DType.INT4,
    23: DType.FLOAT4_E2M1FN,
    24: DType.FLOAT8_E8M0FNU,
    25: DType.UINT2,
    26: DType.INT2,
}
"""The numbers of TensorProto.DataType."""


def result_dtype(op: Operator, name: str = "to", default: int | None = None) -> DType:
    """A dtype attribute."""
    value = op.attributes.get(name, default)
    if not isinstance(value, int) or value not in ONNX_DTYPES:
        raise Refused(f"attribute {name} names a dtype that is not supported: {value!r}")
    return ONNX_DTYPES[value]
