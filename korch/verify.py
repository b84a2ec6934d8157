"""Comparison of an optimized model with the ONNX reference evaluator (NumPy), by a stated standard."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from korch.ir.types import CODES, DType, TensorType

RELATIVE_L2 = {DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}  # others: 1e-4
LARGEST = {DType.FLOAT16: 1e-1, DType.BFLOAT16: 5e-1}  # others: 1e-3, relative to the channel's RMS


@dataclass(frozen=True)
class OutputError:
    """How far one output is from the reference. `reason` is None when it meets the standard."""

    max_abs_error: float
    rel_l2_error: float
    reason: str | None = None


@dataclass(frozen=True)
class Verification:
    """The errors of all outputs by name."""

    outputs: Mapping[str, OutputError]

    @property
    def ok(self) -> bool:
        return all(e.reason is None for e in self.outputs.values())


def random_inputs(types: Mapping[str, TensorType], seed: int = 0) -> dict[str, np.ndarray]:
    """One array per input: floats are normal, integers small and not negative, booleans are fair.

    A float input of four dimensions is taken for images and gets smooth noise of several frequencies, normalised:
    white noise drives a vision network out of the range that it was trained in.
    """
    found: dict[str, np.ndarray] = {}
    for name, t in types.items():
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        if t.dtype.is_float and t.rank == 4 and t.elements and min(t.shape[2:]) >= 8:
            found[name] = _images(t.shape, rng).astype(t.dtype.numpy)
        elif t.dtype.is_float:
            found[name] = rng.standard_normal(t.shape).astype(t.dtype.numpy)
        elif t.dtype is DType.BOOL:
            found[name] = rng.integers(0, 2, t.shape).astype(bool)
        elif t.dtype in CODES:
            found[name] = rng.integers(0, 256, t.shape, np.uint8).view(t.dtype.numpy)
        else:
            found[name] = rng.integers(0, 10, t.shape).astype(t.dtype.numpy)
    return found


def _images(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Octaves of noise, each twice as fine as the one before and weaker by the square root of two; the channels of
    an image share most of it. Mean 0, standard deviation 1."""
    count, channels, height, width = shape
    total = np.zeros(shape)
    cells = 4
    while cells <= max(height, width):
        noise = rng.standard_normal((count, 1, cells, cells)) + 0.4 * rng.standard_normal(
            (count, channels, cells, cells)
        )
        total += cells**-0.5 * _stretch(_stretch(noise, 2, height), 3, width)
        cells *= 2
    return (total - total.mean()) / (total.std() or 1.0)


def _stretch(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Linear interpolation of one axis to `size` points, its ends aligned."""
    at = np.linspace(0, array.shape[axis] - 1, size)
    low = np.minimum(at.astype(int), array.shape[axis] - 2)
    shape = [1] * array.ndim
    shape[axis] = size
    part = (at - low).reshape(shape)
    return np.take(array, low, axis) * (1 - part) + np.take(array, low + 1, axis) * part


def compare(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> Verification:
    """Each output against the reference.

    The standard: the relative L2 error is at most 1e-4 (float32 and float64; 1e-2 and 5e-2 for float16 and
    bfloat16), the largest error is at most 1e-3 of the reference's RMS over that channel (or of 1 % of the
    output's RMS, where that is greater; 1e-1 and 5e-1 for 16 bits), and the masks of NaN and infinities agree.
    Integers, booleans and codes of eight bits or less are equal. No output is missing. A channel is an index of
    dimension 1 where there are three dimensions or more, of the last dimension otherwise.
    """
    missing = OutputError(math.inf, math.inf, f"is missing; the optimized model has {', '.join(got)}")
    return Verification({n: compare_output(got[n], r) if n in got else missing for n, r in expected.items()})


def compare_output(value: np.ndarray, reference: np.ndarray) -> OutputError:
    """One output against the reference; see `compare`."""
    if value.shape != reference.shape or value.dtype != reference.dtype:
        got, want = TensorType.of(value), TensorType.of(reference)
        return OutputError(math.inf, math.inf, f"is {got}, the reference is {want}")
    dtype = DType.of(reference.dtype)
    if dtype in CODES:
        value, reference = value.view(np.uint8), reference.view(np.uint8)
    if not dtype.is_float:
        wrong = int(np.count_nonzero(value != reference))
        if not wrong:
            return OutputError(0.0, 0.0)
        error = np.abs(value.astype(np.float64) - reference.astype(np.float64))
        return OutputError(float(error.max()), _relative_l2(error, reference), f"{wrong} elements differ")
    v, r = value.astype(np.float64), reference.astype(np.float64)
    if not np.array_equal(np.isnan(v), np.isnan(r)):
        return OutputError(math.inf, math.inf, "NaN stands in other places than in the reference")
    infinite = np.isinf(v) | np.isinf(r)
    if not np.array_equal(v[infinite], r[infinite]):
        return OutputError(math.inf, math.inf, "infinities stand in other places than in the reference")
    finite = np.isfinite(r)
    if r.size and not finite.any():
        return OutputError(0.0, 0.0, "the reference has no finite value here, which proves nothing; give other inputs")
    r = np.where(finite, r, 0.0)
    error = np.abs(np.where(finite, v, 0.0) - r)
    largest, l2 = float(error.max(initial=0.0)), _relative_l2(error, r)
    if l2 > RELATIVE_L2.get(dtype, 1e-4):
        return OutputError(largest, l2, f"the relative L2 error is {l2:.2g}")
    worst = _largest_relative(error, r)
    if worst > LARGEST.get(dtype, 1e-3):
        return OutputError(largest, l2, f"the largest error is {worst:.2g} of its channel's RMS")
    return OutputError(largest, l2)


def _relative_l2(error: np.ndarray, reference: np.ndarray) -> float:
    norm = float(np.linalg.norm(reference.astype(np.float64).reshape(-1)))
    total = float(np.linalg.norm(error.reshape(-1)))
    return total / norm if norm else total


def _largest_relative(error: np.ndarray, reference: np.ndarray) -> float:
    """The largest error over its channel's RMS, or over 1 % of the whole output's where that is greater."""
    if error.size == 0:
        return 0.0
    whole = math.sqrt(float(np.mean(np.square(reference))))
    if reference.ndim == 0:
        return float(error) / whole if whole else float(error)
    channel = 1 if reference.ndim >= 3 else reference.ndim - 1
    others = tuple(k for k in range(reference.ndim) if k != channel)
    rms = np.sqrt(np.mean(np.square(reference), axis=others))
    scale = np.maximum(rms, 0.01 * whole)
    worst = error.max(axis=others)
    return float(np.max(np.where(scale > 0, worst / np.where(scale > 0, scale, 1.0), worst)))
