"""Conversion to and from the formats of eight bits or less (korch.ir.types.CODES), which only store numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from korch.fission.reading import wide
from korch.fission.tensor import Tensor, constant, where
from korch.ir.types import CODES, DType

ROUND_MODES = ("up", "down", "nearest")


def convert(x: Tensor, to: DType, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """ONNX's Cast between any two dtypes.

    To a float of eight bits or less it rounds to nearest even; what is out of range, infinities included, becomes
    the greatest finite number, or without `saturate` infinity or NaN. Integers wrap when they come from integers; a
    float out of their range gives 0 (the standard leaves it open, its tests expect 0). `round_mode` is
    how a number becomes a power of two (float8_e8m0fnu).
    """
    if x.dtype is to:
        return x
    if x.dtype in CODES:
        return convert(_decoded(x), to, saturate, round_mode)
    if to not in CODES:
        return x.cast(to)
    if is_integer_code(to):
        codes = _integer_codes(x, to)
    elif to is DType.FLOAT8_E8M0FNU:
        codes = _exponents(x.cast(DType.FLOAT32), saturate, round_mode)
    else:
        codes = _float_codes(wide(x) if x.dtype.is_float else x.cast(DType.FLOAT32), to, saturate)
    return codes.map("bitcast", to=to.value)


def is_integer_code(dtype: DType) -> bool:
    return dtype in (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2)


def _decoded(x: Tensor) -> Tensor:
    """The numbers as float32, int8 or uint8: looked up in the table of all codes."""
    every = np.arange(256, dtype=np.uint8).view(x.dtype.numpy)
    held = (np.int8 if x.dtype.is_signed else np.uint8) if is_integer_code(x.dtype) else np.float32
    table = constant(x.builder, every.astype(held))
    return table.apply("gather", x.map("bitcast", to="uint8"), axis=0)


def _integer_codes(x: Tensor, to: DType) -> Tensor:
    limits = ml_dtypes.iinfo(to.numpy)
    if x.dtype.is_float:
        inside = (x > float(limits.min) - 1) & (x < float(limits.max) + 1)
        x = where(inside, x, 0).cast(DType.INT8)
    return x.cast(DType.UINT8) & (1 << limits.bits) - 1


def _float_codes(x: Tensor, to: DType, saturate: bool) -> Tensor:
    """Rounding to nearest even, in arithmetic that is exact.

    With step the distance of neighbouring numbers of the format at |x|, the result is round(|x| / step) * step. The
    bits of a number that is normal in the format are a part of its float32 (float64) bits, with another bias; one
    that is denormal is its code times the least step.
    """
    info = ml_dtypes.finfo(to.numpy)
    mantissa, least, limit = info.nmant, int(info.minexp), float(info.max)
    word, held, bias = (DType.UINT64, 52, 1023) if x.dtype is DType.FLOAT64 else (DType.UINT32, 23, 127)
    width, sign = 8 * word.size, 8 if to is DType.FLOAT4_E2M1FN else 128
    size = abs(x).minimum(2 * limit)
    powers = size.map("bitcast", to=word.value) & ((1 << width - 1) - (1 << held))
    step = powers.map("bitcast", to=x.dtype.value).maximum(2.0**least) * 2.0**-mantissa
    rounded = (size / step).round() * step
    bits = rounded.map("bitcast", to=word.value).map("shift_right", held - mantissa)
    normal = bits - (bias + least - 1 << mantissa)
    codes = where(rounded < 2.0**least, (rounded * 2.0 ** (mantissa - least)).cast(word), normal).cast(DType.UINT8)
    codes = where(rounded > limit, _code(to, limit if saturate else np.inf), codes)
    codes = where(x.map("isnan"), _code(to, np.nan), codes)
    signed = codes | sign
    if "fnuz" in to.value:  # the code of -0 stands for NaN
        signed = where(codes.equal(0), codes, signed)
    negative = x.map("bitcast", to=word.value).map("shift_right", width - 1).cast(DType.BOOL)
    return where(negative, signed, codes)


def _code(dtype: DType, number: float) -> int:
    if dtype is DType.FLOAT4_E2M1FN and np.isnan(number):
        return 0  # it has no NaN
    with np.errstate(invalid="ignore"):
        return int(np.array(number, np.float32).astype(dtype.numpy).view(np.uint8))


def _exponents(x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """The biased exponent of float32 |x|, after rounding; 255, which is NaN, of NaN and infinities."""
    bits = x.map("bitcast", to="uint32")
    exponent = (bits.map("shift_right", 23) & 255).cast(DType.INT32)
    fraction = bits & 0x7FFFFF
    if round_mode == "up":
        above = fraction > 0
    elif round_mode == "nearest":  # a tie goes up, unless the number is denormal
        above = (fraction > 0x400000) | (fraction.equal(0x400000) & (exponent > 0))
    else:
        above = fraction < 0
    rounded = exponent + above.cast(DType.INT32)
    rounded = rounded.minimum(254) if saturate else rounded
    return where(exponent.equal(255), 255, rounded).cast(DType.UINT8)
