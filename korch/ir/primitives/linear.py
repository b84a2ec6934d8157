"""Linear primitives: matmul, convolution, transposed convolution, resampling with constant weights."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.lib.stride_tricks import as_strided

from korch.ir.primitives.primitive import (
    FLOAT,
    NUMBER,
    Arrays,
    Attributes,
    Domain,
    Primitive,
    Types,
    axis_of,
    integer,
    integers,
    one_dtype,
    require,
    shape_of,
    widen,
)
from korch.ir.primitives.reduce import tap_range
from korch.ir.types import DType, TensorType

# im2col copies are made in blocks of at most this many bytes, so that they stay in cache and memory.
_BLOCK_BYTES = 8 << 20

_BYTES = frozenset({DType.INT8, DType.UINT8})


def _result_dtype(types: Types) -> DType:
    """int8 and uint8 (also mixed) give int32; all others their own."""
    if all(t.dtype in _BYTES for t in types):
        return DType.INT32
    return one_dtype(types, NUMBER)


def _working(arrays: Arrays) -> tuple[list[np.ndarray], np.dtype]:
    """The operands in the dtype to compute in, and the result's dtype.

    Products of 8-bit integers add up exactly in float64 (up to 2^37 of them), where a fast matmul exists.
    """
    dtype = arrays[0].dtype
    if all(DType.of(a.dtype) in _BYTES for a in arrays):
        return [a.astype(np.float64) for a in arrays], np.dtype(np.int32)
    return [widen(a) for a in arrays], dtype


def _finish(result: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "i" and result.dtype.kind == "f":
        return result.astype(np.int64).astype(dtype)
    return result.astype(dtype, copy=False)


def _matmul_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    a, b = types
    require(a.rank >= 2 and b.rank >= 2, "both need two dimensions")
    require(a.shape[-1] == b.shape[-2], f"the inner dimensions {a.shape[-1]} and {b.shape[-2]} differ")
    require(b.rank == 2 or a.shape[:-2] == b.shape[:-2], "the batch dimensions differ (broadcast first)")
    return (TensorType(_result_dtype(types), (*a.shape[:-1], b.shape[-1])),)


def _matmul(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    (a, b), dtype = _working(arrays)
    if b.ndim == 2:
        flat = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) @ b
        return (_finish(flat.reshape(*a.shape[:-1], b.shape[-1]), dtype),)
    return (_finish(np.matmul(a, b), dtype),)


def _conv_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, w = types
    n = x.rank - 2
    require(n >= 1 and w.rank == x.rank, "x is [N, C, spatial…] and w [O, C/groups, kernel…]")
    strides, dilations = integers(attributes, "strides", n), integers(attributes, "dilations", n)
    pads, groups = integers(attributes, "pads", 2 * n), integer(attributes, "groups")
    require(all(v >= 1 for v in (*strides, *dilations, groups)), "strides, dilations and groups are positive")
    require(x.shape[1] == groups * w.shape[1], f"{x.shape[1]} channels, but {groups} groups of {w.shape[1]}")
    require(w.shape[0] % groups == 0, f"{w.shape[0]} output channels do not divide into {groups} groups")
    spatial: list[int] = []
    for d in range(n):
        reach = (w.shape[2 + d] - 1) * dilations[d] + 1
        room = x.shape[2 + d] + pads[d] + pads[n + d] - reach
        require(room >= 0, f"the kernel reaches over {reach}, the padded input has {room + reach}")
        spatial.append(room // strides[d] + 1)
    return (TensorType(_result_dtype(types), (x.shape[0], w.shape[0], *spatial)),)


def _padded(x: np.ndarray, pads: tuple[int, ...]) -> np.ndarray:
    """Zeros added around the spatial dimensions; negative pads cut off."""
    n = x.ndim - 2
    before, after = pads[:n], pads[n:]
    cut = [slice(max(0, -b), size - max(0, -a)) for b, a, size in zip(before, after, x.shape[2:], strict=True)]
    x = x[(slice(None), slice(None), *cut)]
    if not any(p > 0 for p in pads):
        return np.ascontiguousarray(x)
    width = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    return np.pad(x, [(0, 0), (0, 0), *width])


def _patches(x: np.ndarray, kernel: tuple[int, ...], attributes: Attributes) -> np.ndarray:
    """A view [N, C, kernel…, out…] of the padded input: element (k, o) is x[o*stride + k*dilation]."""
    n = len(kernel)
    strides, dilations = integers(attributes, "strides"), integers(attributes, "dilations")
    out = [(x.shape[2 + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1 for d in range(n)]
    steps = x.strides[2:]
    return as_strided(
        x,
        (*x.shape[:2], *kernel, *out),
        (
            *x.strides[:2],
            *(s * d for s, d in zip(steps, dilations, strict=True)),
            *(s * d for s, d in zip(steps, strides, strict=True)),
        ),
        writeable=False,
    )


def _conv_depthwise(patches: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One input channel for each group: tap after tap, without copies of the input."""
    n = w.ndim - 2
    batch, channels = patches.shape[:2]
    out = patches.shape[2 + n :]
    multiplier = w.shape[0] // channels
    taps = w.reshape(channels, multiplier, *w.shape[2:])
    result = np.zeros((batch, channels, multiplier, *out), w.dtype)
    for tap in itertools.product(*map(range, w.shape[2:])):
        factor = taps[(slice(None), slice(None), *tap)].reshape(channels, multiplier, *(1,) * n)
        result += patches[(slice(None), slice(None), *tap)][:, :, None] * factor
    return result.reshape(batch, channels * multiplier, *out)


def _conv_blocks(patches: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """im2col over blocks of rows of the output, and one matmul for each."""
    n = w.ndim - 2
    batch, channels = patches.shape[:2]
    out = patches.shape[2 + n :]
    depth = w.shape[1] * math.prod(w.shape[2:])
    weights = w.reshape(groups, w.shape[0] // groups, depth)
    result = np.empty((batch, groups, w.shape[0] // groups, out[0], math.prod(out[1:])), w.dtype)
    row = channels * math.prod(w.shape[2:]) * math.prod(out[1:]) * w.dtype.itemsize
    rows = max(1, _BLOCK_BYTES // max(1, row))
    for i, first in itertools.product(range(batch), range(0, out[0], rows)):
        block = patches[i][(slice(None),) * (1 + n) + (slice(first, first + rows),)]
        count = block.shape[1 + n]
        columns = block.reshape(groups, depth, count * math.prod(out[1:]))
        product = np.matmul(weights, columns)
        result[i, :, :, first : first + count] = product.reshape(*product.shape[:2], count, -1)
    return result.reshape(batch, w.shape[0], *out)


def _conv(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    (x, w), dtype = _working(arrays)
    groups = integer(attributes, "groups")
    x = _padded(x, integers(attributes, "pads"))
    patches = _patches(x, w.shape[2:], attributes)
    if 0 in patches.shape or 0 in w.shape:
        return (np.zeros((x.shape[0], w.shape[0], *patches.shape[w.ndim :]), dtype),)
    if w.shape[1] == 1 and groups > 1:
        return (_finish(_conv_depthwise(patches, w), dtype),)
    return (_finish(_conv_blocks(patches, w, groups), dtype),)


def _conv_transpose_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, w = types
    n = x.rank - 2
    require(n >= 1 and w.rank == x.rank, "x is [N, C, spatial…] and w [C, O/groups, kernel…]")
    strides, dilations = integers(attributes, "strides", n), integers(attributes, "dilations", n)
    integers(attributes, "pads", n)
    groups, shape = integer(attributes, "groups"), shape_of(attributes, x.rank)
    require(all(v >= 1 for v in (*strides, *dilations, groups)), "strides, dilations and groups are positive")
    require(x.shape[1] == w.shape[0], f"{x.shape[1]} channels, but weights for {w.shape[0]}")
    require(x.shape[1] % groups == 0, f"{x.shape[1]} channels do not divide into {groups} groups")
    wanted = (x.shape[0], w.shape[1] * groups)
    require(shape[:2] == wanted, f"attribute shape begins with {shape[:2]}, not {wanted}")
    return (TensorType(_result_dtype(types), shape),)


def _conv_transpose(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    """One matmul gives what each input element sends to each tap; taps are then added where they belong."""
    (x, w), dtype = _working(arrays)
    n, groups, shape = x.ndim - 2, integer(attributes, "groups"), shape_of(attributes)
    strides, dilations = integers(attributes, "strides"), integers(attributes, "dilations")
    pads = integers(attributes, "pads")
    result = np.zeros((shape[0], groups, w.shape[1], *shape[2:]), w.dtype)
    weights = w.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1)
    for i in range(x.shape[0]):
        sent = np.matmul(weights, x[i].reshape(groups, w.shape[0] // groups, math.prod(x.shape[2:])))
        sent = sent.reshape(groups, w.shape[1], *w.shape[2:], *x.shape[2:])
        for tap in itertools.product(*map(range, w.shape[2:])):
            target, source = [slice(None)] * 2, [slice(None)] * 2
            for d in range(n):
                first, last, into = _sent_range(
                    x.shape[2 + d], shape[2 + d], strides[d], tap[d] * dilations[d] - pads[d]
                )
                source.append(slice(first, last))
                count = last - first
                target.append(slice(into, into + (count - 1) * strides[d] + 1, strides[d]) if count else slice(0, 0))
            result[(i, *target)] += sent[(slice(None), slice(None), *tap)][tuple(source)]
    return (_finish(result.reshape(shape), dtype),)


def _sent_range(size: int, out: int, stride: int, offset: int) -> tuple[int, int, int]:
    """Which inputs i in 0..size-1 reach a position i*stride + offset in 0..out-1."""
    return tap_range(out, size, stride, offset)


def _taps(attributes: Attributes) -> tuple[np.ndarray, np.ndarray]:
    """Indices [out, taps] and weights [out, taps]."""
    indices, weights = attributes["indices"], attributes["weights"]
    if not isinstance(indices, tuple) or not isinstance(weights, tuple) or len(indices) != len(weights):
        raise ValueError("indices and weights must be tuples of one length")
    rows = [(i, w) for i, w in zip(indices, weights, strict=True)]
    counts = {len(v) if isinstance(v, tuple) else -1 for row in rows for v in row}
    require(len(counts) <= 1 and -1 not in counts, "all tuples in indices and weights must have one length")
    count = counts.pop() if counts else 0
    shape = (len(indices), count)
    return np.array(indices, np.int64).reshape(shape), np.array(weights, np.float64).reshape(shape)


def _resample_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    (x,) = types
    axis = axis_of(attributes, x.rank)
    indices, _ = _taps(attributes)
    inside = bool(((indices >= 0) & (indices < x.shape[axis])).all())
    require(inside, f"an index leaves the dimension of {x.shape[axis]}")
    shape = (*x.shape[:axis], len(indices), *x.shape[axis + 1 :])
    return (TensorType(one_dtype(types, FLOAT), shape),)


def _resample(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x = widen(arrays[0])
    axis = axis_of(attributes, x.ndim)
    indices, weights = _taps(attributes)
    result = np.zeros((*x.shape[:axis], len(indices), *x.shape[axis + 1 :]), x.dtype)
    column = [1] * x.ndim
    column[axis] = len(indices)
    for t in range(indices.shape[1]):
        # A filling tap (weight 0) takes no part, even where it reads a NaN or an infinity.
        weight = weights[:, t].astype(x.dtype).reshape(column)
        result += np.where(weight == 0, x.dtype.type(0), np.take(x, indices[:, t], axis=axis) * weight)
    return (result.astype(arrays[0].dtype, copy=False),)


_UNIT = Domain(((-1.0, 1.0),))
_C = "korch_fma_{R}({0}, {1}, {2})"
_TRITON = "{0} * {1} + {2}"

LINEAR: tuple[Primitive, ...] = (
    Primitive("matmul", "linear", (2, 2), NUMBER, _matmul_rule, _matmul, _C, "tl.dot({0}, {1}, {2})", (), _UNIT, 8),
    Primitive(
        "conv",
        "linear",
        (2, 2),
        NUMBER,
        _conv_rule,
        _conv,
        _C,
        "tl.dot({0}, {1}, {2})",
        ("strides", "dilations", "pads", "groups"),
        _UNIT,
        8,
    ),
    Primitive(
        "conv_transpose",
        "linear",
        (2, 2),
        NUMBER,
        _conv_transpose_rule,
        _conv_transpose,
        _C,
        "tl.dot({0}, {1}, {2})",
        ("strides", "dilations", "pads", "groups", "shape"),
        _UNIT,
        8,
    ),
    Primitive(
        "resample",
        "linear",
        (1, 1),
        FLOAT,
        _resample_rule,
        _resample,
        _C,
        _TRITON,
        ("axis", "indices", "weights"),
        _UNIT,
        8,
    ),
)
