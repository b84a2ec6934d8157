"""Tensor types: a dtype and a static shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class DType(StrEnum):
    """Element types, named as in NumPy and ml_dtypes.

    Those of CODES are of eight bits or less, one element in a byte. They only move: what computes with them
    reads their bits (`bitcast` to uint8).
    """

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8_E8M0FNU = "float8_e8m0fnu"
    FLOAT4_E2M1FN = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    @property
    def numpy(self) -> np.dtype:
        if self is DType.BFLOAT16 or self in CODES:
            import ml_dtypes  # only here: loading an artifact needs NumPy and the standard library alone

            return np.dtype(getattr(ml_dtypes, self.value))
        return np.dtype(self.value)

    @property
    def size(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_signed(self) -> bool:
        return self in FLOATS or self.value.startswith("int")

    @property
    def is_integer(self) -> bool:
        return self not in FLOATS and self not in CODES and self is not DType.BOOL

    @staticmethod
    def of(dtype: np.dtype | type) -> DType:
        """The DType of a NumPy dtype; ValueError when Korch has none for it."""
        return DType(np.dtype(dtype).name)


FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})

CODES = frozenset(d for d in DType if d.value.startswith(("float8", "float4", "int4", "uint4", "int2", "uint2")))
"""Formats in which numbers are only stored."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value. `str` prints it as `float32[1,3,224,224]`; a scalar is `float32[]`."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.size

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"

    @staticmethod
    def parse(text: str) -> TensorType:
        """The inverse of `str`; ValueError on anything else."""
        dtype, bracket, rest = text.strip().partition("[")
        if not bracket or not rest.endswith("]"):
            raise ValueError(f"not a tensor type: {text!r} (expected for example float32[1,3])")
        return TensorType(DType(dtype), tuple(int(d) for d in rest[:-1].split(",") if d.strip()))

    @staticmethod
    def of(array: np.ndarray) -> TensorType:
        return TensorType(DType.of(array.dtype), tuple(array.shape))


def shape_text(shape: Sequence[int]) -> str:
    """As on the command line: `1x3x224x224`; `scalar` when there are no dimensions."""
    return "x".join(map(str, shape)) or "scalar"
