"""Formats of eight bits or less: conversion against ml_dtypes and onnx, bit by bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from korch.fission.builder import Builder
from korch.fission.codes import ROUND_MODES, convert, is_integer_code
from korch.fission.tensor import Tensor
from korch.ir.evaluate import evaluate
from korch.ir.types import CODES, DType, TensorType

SMALL_FLOATS = sorted(d for d in CODES if not is_integer_code(d) and d is not DType.FLOAT8_E8M0FNU)
SMALL_INTEGERS = sorted(d for d in CODES if is_integer_code(d))
SOURCES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def converted(x: np.ndarray, to: DType, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    builder = Builder()
    tensor = Tensor(builder, builder.input("x", TensorType.of(x)))
    result = convert(tensor, to, saturate, round_mode)
    return evaluate(builder.finish([("y", result.value)]), {"x": x})["y"]


def codes(dtype: DType) -> np.ndarray:
    """Every code."""
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def hard(to: DType, source: type) -> np.ndarray:
    """All numbers of the format, the middles between them and their neighbours, random bits, and what is special."""
    numbers = codes(to).astype(np.float64)
    finite = np.unique(numbers[np.isfinite(numbers)])
    middles = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf)]
    random = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
    special = [np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1e9, -1e9, 464, 465, 247.9, 248, 61439, 61440]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([finite, middles, *near, special, random[~np.isnan(random)]]).astype(source)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("to", SMALL_FLOATS, ids=str)
def test_to_a_small_float(to: DType, source: type) -> None:
    x = hard(to, source)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(to.numpy)
    np.testing.assert_array_equal(converted(x, to, saturate=False).view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("to", SMALL_FLOATS, ids=str)
def test_saturation(to: DType) -> None:
    x = hard(to, np.float32)
    limit = float(ml_dtypes.finfo(to.numpy).max)
    expected = np.clip(x, -limit, limit).astype(to.numpy)
    np.testing.assert_array_equal(converted(x, to).view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("to", SMALL_FLOATS, ids=str)
def test_nan(to: DType) -> None:
    found = converted(np.array([np.nan, -np.nan], np.float32), to).astype(np.float32)
    expected = np.zeros(2, np.float32) if to is DType.FLOAT4_E2M1FN else np.full(2, np.nan, np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("round_mode", ROUND_MODES)
def test_to_a_power_of_two(round_mode: str, saturate: bool) -> None:
    x = np.append(hard(DType.FLOAT8_E8M0FNU, np.float32), np.array([np.nan, 3e38, 3.4e38], np.float32))
    found = converted(x, DType.FLOAT8_E8M0FNU, saturate, round_mode)
    expected = numpy_helper.to_float8e8m0(x, saturate, round_mode)
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("source", sorted(CODES), ids=str)
def test_from_every_code(source: DType) -> None:
    x = codes(source)
    np.testing.assert_array_equal(converted(x, DType.FLOAT32), x.astype(np.float32))
    if is_integer_code(source):
        np.testing.assert_array_equal(converted(x, DType.INT64), x.astype(np.int64))


@pytest.mark.parametrize("to", SMALL_INTEGERS, ids=str)
def test_to_a_small_integer(to: DType) -> None:
    """Integers wrap, floats are cut off toward zero and must be in range."""
    integers = np.arange(-40, 40, dtype=np.int32)
    np.testing.assert_array_equal(converted(integers, to).view(np.uint8), integers.astype(to.numpy).view(np.uint8))
    least, greatest = ml_dtypes.iinfo(to.numpy).min, ml_dtypes.iinfo(to.numpy).max
    floats = np.array([-1e9, -8.7, -1.5, -0.5, 0.9, 7.9, 15.2, 1e9, np.nan, np.inf], np.float32)
    cut = np.trunc(np.nan_to_num(floats))
    expected = np.where((cut >= least) & (cut <= greatest), cut, 0)
    np.testing.assert_array_equal(converted(floats, to).astype(np.float32), expected)


def test_one_small_format_to_another() -> None:
    x = codes(DType.FLOAT8_E5M2)
    found = converted(x, DType.FLOAT8_E4M3FN, saturate=False)
    np.testing.assert_array_equal(
        found.astype(np.float32), x.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )
