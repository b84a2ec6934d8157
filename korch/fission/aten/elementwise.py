"""Arithmetic, comparison, logic and elementary functions of ATen.

float16 and bfloat16 are computed in float32 and rounded once, as PyTorch does on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from korch.fission.aten.call import Call, promote
from korch.fission.operators import elementwise
from korch.fission.reading import Refused
from korch.fission.tensor import Number, Tensor, where
from korch.ir.types import DType

Operand = Tensor | Number


def unary(primitive: str) -> Callable[[Call, Tensor], Tensor]:
    """A function of floats; integers become floats first."""

    def function(call: Call, x: Tensor) -> Tensor:
        return x.cast(call.dtype).map(primitive)

    return function


def rounding(primitive: str) -> Callable[[Call, Tensor], Tensor]:
    """A rounding to whole numbers, which leaves integers alone."""

    def function(call: Call, x: Tensor) -> Tensor:
        return x.map(primitive) if x.dtype.is_float else x

    return function


def identity(call: Call, x: Tensor, *_: object, **__: object) -> Tensor:
    """What only moves memory or changes the dtype, which is the result's anyway."""
    return x


def abs_(call: Call, x: Tensor) -> Tensor:
    return abs(x) if x.dtype.is_signed else x


def sign(call: Call, x: Tensor) -> Tensor:
    """PyTorch's sign of NaN is 0."""
    if x.dtype is DType.BOOL:
        return x
    return where(x.map("isnan"), 0, x.map("sign")) if x.dtype.is_float else x.map("sign")


def trunc(call: Call, x: Tensor) -> Tensor:
    return truncated(x) if x.dtype.is_float else x


def truncated(x: Tensor) -> Tensor:
    return where(x < 0, x.map("ceil"), x.floor())


def round_decimals(call: Call, x: Tensor, *, decimals: int) -> Tensor:
    if not x.dtype.is_float:
        raise Refused("integers are not rounded to decimals")
    w, scale = x.cast(call.wide), 10.0 ** abs(decimals)
    return (w * scale).round() / scale if decimals >= 0 else (w / scale).round() * scale


def reciprocal(call: Call, x: Tensor) -> Tensor:
    return 1 / x.cast(call.wide)


def rsqrt(call: Call, x: Tensor) -> Tensor:
    return 1 / x.cast(call.wide).sqrt()


def log2(call: Call, x: Tensor) -> Tensor:
    """Divided rather than multiplied: whole powers give whole numbers."""
    w = x.cast(call.wide)
    return w.log() / w.like(2).log()


def log10(call: Call, x: Tensor) -> Tensor:
    w = x.cast(call.wide)
    return w.log() / w.like(10).log()


def exp2(call: Call, x: Tensor) -> Tensor:
    w = x.cast(call.wide)
    return w.like(2).power(w)


def add(call: Call, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    if call.dtype is DType.BOOL:
        return call.tensor(x, DType.BOOL) | call.tensor(y, DType.BOOL)
    return call.tensor(x, call.wide) + _scaled(call, y, alpha)


def sub(call: Call, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    return call.tensor(x, call.wide) - _scaled(call, y, alpha)


def rsub(call: Call, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    return call.tensor(y, call.wide) - _scaled(call, x, alpha)


def _scaled(call: Call, x: Operand, alpha: Number) -> Tensor:
    w = call.tensor(x, call.wide)
    return w if alpha == 1 else w * call.tensor(alpha, call.wide)


def mul(call: Call, x: Operand, y: Operand) -> Tensor:
    if call.dtype is DType.BOOL:
        return call.tensor(x, DType.BOOL) & call.tensor(y, DType.BOOL)
    return call.tensor(x, call.wide) * call.tensor(y, call.wide)


def div(call: Call, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Tensor:
    a, b = call.tensor(x, call.wide), call.tensor(y, call.wide)
    if rounding_mode is None:
        return a / b
    if not a.dtype.is_float:
        quotient = a / b
        if rounding_mode == "trunc":
            return quotient
        rest = a - quotient * b
        return where(~rest.equal(0) & ((rest < 0) ^ (b < 0)), quotient - 1, quotient)
    return truncated(a / b) if rounding_mode == "trunc" else _floored(a, b)


def _floored(a: Tensor, b: Tensor) -> Tensor:
    """The whole number below a / b that goes with `remainder`: made of the exact rest, so that a division which
    rounds up to a whole number does not count too far. Where the quotient is 0 it has the sign of a / b."""
    rest = a.map("fmod", b)
    whole = (a - rest) / b
    whole = where(~rest.equal(0) & ((b < 0) ^ (rest < 0)), whole - 1, whole)
    floor = whole.floor()
    floor = where((whole - floor) > 0.5, floor + 1, floor)
    floor = where(whole.equal(0), (a / b) * 0, floor)
    return where(b.equal(0), a / b, floor)


def floor_divide(call: Call, x: Operand, y: Operand) -> Tensor:
    return div(call, x, y, rounding_mode="floor")


def remainder(call: Call, x: Operand, y: Operand) -> Tensor:
    return call.tensor(x, call.wide) % call.tensor(y, call.wide)


def fmod(call: Call, x: Operand, y: Operand) -> Tensor:
    return call.tensor(x, call.wide).map("fmod", call.tensor(y, call.wide))


def pow_(call: Call, x: Operand, y: Operand) -> Tensor:
    base = call.tensor(x, call.wide)
    if isinstance(y, Tensor) or not base.dtype.is_float:
        return base.power(call.tensor(y, call.wide))
    return _power(base, float(y))


def _power(x: Tensor, exponent: float) -> Tensor:
    """PyTorch computes these exponents without a power, which shows at infinities and zeros."""
    match exponent:
        case 0.5:
            return x.sqrt()
        case -0.5:
            return 1 / x.sqrt()
        case 2.0:
            return x * x
        case 3.0:
            return x * x * x
        case -1.0:
            return 1 / x
        case -2.0:
            return 1 / (x * x)
        case _:
            return x.power(exponent)


def maximum(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if call.dtype is DType.BOOL:
        return x | y
    return x.cast(call.dtype).maximum(y.cast(call.dtype))


def minimum(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if call.dtype is DType.BOOL:
        return x & y
    return x.cast(call.dtype).minimum(y.cast(call.dtype))


def fmax(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The greater; where one is NaN, the other."""
    a, b = x.cast(call.dtype), y.cast(call.dtype)
    if not a.dtype.is_float:
        return maximum(call, a, b)
    return where(a.map("isnan"), b, where(b.map("isnan"), a, a.maximum(b)))


def fmin(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The lesser; where one is NaN, the other."""
    a, b = x.cast(call.dtype), y.cast(call.dtype)
    if not a.dtype.is_float:
        return minimum(call, a, b)
    return where(a.map("isnan"), b, where(b.map("isnan"), a, a.minimum(b)))


def clamp(call: Call, x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """NaN comes through, and `max` wins where it lies below `min`."""
    y = x.cast(call.wide)
    if min is not None:
        y = y.maximum(call.tensor(min, call.wide))
    return y if max is None else y.minimum(call.tensor(max, call.wide))


def clamp_max(call: Call, x: Tensor, max: Operand) -> Tensor:
    return clamp(call, x, None, max)


def neg(call: Call, x: Tensor) -> Tensor:
    return -x


def atan2(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return x.cast(call.wide).map("atan2", y.cast(call.wide))


def _compared(call: Call, x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    dtype = promote(x, y)
    dtype = DType.UINT8 if dtype is DType.BOOL else dtype
    return call.tensor(x, dtype), call.tensor(y, dtype)


def eq(call: Call, x: Operand, y: Operand) -> Tensor:
    a, b = _compared(call, x, y)
    return a.equal(b)


def ne(call: Call, x: Operand, y: Operand) -> Tensor:
    a, b = _compared(call, x, y)
    return ~a.equal(b)


def lt(call: Call, x: Operand, y: Operand) -> Tensor:
    a, b = _compared(call, x, y)
    return a < b


def le(call: Call, x: Operand, y: Operand) -> Tensor:
    a, b = _compared(call, x, y)
    return a <= b


def gt(call: Call, x: Operand, y: Operand) -> Tensor:
    return lt(call, y, x)


def ge(call: Call, x: Operand, y: Operand) -> Tensor:
    return le(call, y, x)


def logical_and(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return x.cast(DType.BOOL) & y.cast(DType.BOOL)


def logical_or(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return x.cast(DType.BOOL) | y.cast(DType.BOOL)


def logical_xor(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return x.cast(DType.BOOL) ^ y.cast(DType.BOOL)


def logical_not(call: Call, x: Tensor) -> Tensor:
    return ~x.cast(DType.BOOL)


def bitwise_and(call: Call, x: Operand, y: Operand) -> Tensor:
    return call.tensor(x, call.dtype) & call.tensor(y, call.dtype)


def bitwise_or(call: Call, x: Operand, y: Operand) -> Tensor:
    return call.tensor(x, call.dtype) | call.tensor(y, call.dtype)


def bitwise_xor(call: Call, x: Operand, y: Operand) -> Tensor:
    return call.tensor(x, call.dtype) ^ call.tensor(y, call.dtype)


def bitwise_not(call: Call, x: Tensor) -> Tensor:
    return ~x


def shift(direction: str) -> Callable[[Call, Operand, Operand], Tensor]:
    """ONNX's shifts keep the sign to the right and give 0 beyond the width, as PyTorch's do."""

    def function(call: Call, x: Operand, y: Operand) -> Tensor:
        a, b = call.tensor(x, call.dtype), call.tensor(y, call.dtype)
        return call.onnx(elementwise.BitShift, a, b, direction=direction)[0]

    return function


def isnan(call: Call, x: Tensor) -> Tensor:
    return x.map("isnan") if x.dtype.is_float else call.constant(np.False_).expand(x.shape)


def isinf(call: Call, x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        return call.constant(np.False_).expand(x.shape)
    return x.map("isinf", positive=True, negative=True)


def where_(call: Call, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    return where(condition.cast(DType.BOOL), call.tensor(x, call.dtype), call.tensor(y, call.dtype))
