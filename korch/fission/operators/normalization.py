"""Normalizations. Mean first, then the mean of squared differences: the other formula for the variance cancels.

Statistics of float16 and bfloat16 are taken in float32.
"""

from __future__ import annotations

import numpy as np

from korch.fission.builder import Builder
from korch.fission.reading import Refused, integer, integers, number, wide
from korch.fission.tensor import Tensor
from korch.importers.operators import Operator
from korch.ir.types import DType


def standardized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + epsilon), the mean, and 1 / sqrt(variance + epsilon); those two keep the rank."""
    mean = x.mean(axes, keepdims=True)
    d = x - mean
    inverse = 1 / ((d * d).mean(axes, keepdims=True) + epsilon).sqrt()
    return d * inverse, mean, inverse


def BatchNormalization(
    b: Builder, op: Operator, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor | tuple[Tensor, ...]:
    """One scale and one shift per channel when they are known, computed in float64 and rounded once."""
    epsilon = number(op, "epsilon", 1e-5)
    training = integer(op, "training_mode", 0) if op.version >= 14 else 0
    if op.version < 9 and not integer(op, "spatial", 1):
        raise Refused("spatial=0 is not supported")
    if training:
        return _batch_statistics(op, x, scale, bias, mean, variance)
    if len(op.outputs) > 1:
        raise Refused("its outputs beside the first are those of a training step")
    w = wide(x)
    known = [None if t.known is None else t.known.astype(np.float64) for t in (scale, bias, mean, variance)]
    if all(k is not None for k in known):
        s, t, m, v = (np.asarray(k) for k in known)
        factor = s / np.sqrt(v + epsilon)
        per_channel = (w.like(factor), w.like(t - m * factor))
        factor, shift = (t.along((1,), x.rank) for t in per_channel)
        return (w * factor + shift).cast(x.dtype)
    scale, bias, mean, variance = (t.cast(w.dtype).along((1,), x.rank) for t in (scale, bias, mean, variance))
    return ((w - mean) * (scale / (variance + epsilon).sqrt()) + bias).cast(x.dtype)


def _batch_statistics(
    op: Operator, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> tuple[Tensor, ...]:
    """training_mode: normalized by the batch's own statistics, and the running ones moved toward them."""
    w, momentum = wide(x), number(op, "momentum", 0.9)
    over = tuple(d for d in range(x.rank) if d != 1)
    y, center, _ = standardized(w, over, number(op, "epsilon", 1e-5))
    d = w - center
    spread = (d * d).mean(over)
    y = y * scale.cast(w.dtype).along((1,), x.rank) + bias.cast(w.dtype).along((1,), x.rank)
    running = [
        (wide(old) * momentum + new.cast(wide(old).dtype) * (1 - momentum)).cast(old.dtype)
        for old, new in ((mean, center.reshape(mean.shape)), (variance, spread))
    ]
    return (y.cast(x.dtype), *running)


def InstanceNormalization(b: Builder, op: Operator, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    w = wide(x)
    y, _, _ = standardized(w, tuple(range(2, x.rank)), number(op, "epsilon", 1e-5))
    scale, bias = (t.cast(w.dtype).along((1,), x.rank) for t in (scale, bias))
    return (y * scale + bias).cast(x.dtype)


def GroupNormalization(b: Builder, op: Operator, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, w = integer(op, "num_groups"), wide(x)
    if x.shape[1] % groups:
        raise Refused(f"{x.shape[1]} channels do not divide into {groups} groups")
    split = w.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    y, _, _ = standardized(split, tuple(range(2, split.rank)), number(op, "epsilon", 1e-5))
    scale, bias = (t.cast(w.dtype).reshape(split.shape[1:3]).along((1, 2), split.rank) for t in (scale, bias))
    return (y * scale + bias).reshape(x.shape).cast(x.dtype)


def LayerNormalization(
    b: Builder, op: Operator, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    w = wide(x)
    axes = tuple(range(x.axis(integer(op, "axis", -1)), x.rank))
    y, mean, inverse = standardized(w, axes, number(op, "epsilon", 1e-5))
    y = y * scale.cast(w.dtype)
    if bias is not None:
        y = y + bias.cast(w.dtype)
    stash = {1: DType.FLOAT32, 16: DType.BFLOAT16}.get(integer(op, "stash_type", 1), w.dtype)
    return (y.cast(x.dtype), mean.cast(stash), inverse.cast(stash))


def RMSNormalization(b: Builder, op: Operator, x: Tensor, scale: Tensor) -> Tensor:
    w = wide(x)
    axes = tuple(range(x.axis(integer(op, "axis", -1)), x.rank))
    inverse = 1 / ((w * w).mean(axes, keepdims=True) + number(op, "epsilon", 1e-5)).sqrt()
    return (w * inverse).cast(x.dtype) * scale.cast(x.dtype)


def MeanVarianceNormalization(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """(x - mean) / (standard deviation + 1e-9), as the standard's function body has it."""
    w, axes = wide(x), x.axes(integers(op, "axes", (0, 2, 3)))
    d = w - w.mean(axes, keepdims=True)
    deviation = (d * d).mean(axes, keepdims=True).sqrt()
    return (d / (deviation + 1e-9)).cast(x.dtype)


def LRN(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """x / (bias + alpha / size * (sum of squares over `size` neighbouring channels)) ** beta."""
    size, w = integer(op, "size"), wide(x)
    ones = (1,) * x.rank
    square_sum = (w * w).apply(
        "window_sum",
        window=(1, size, *ones[2:]),
        strides=ones,
        dilations=ones,
        pads=(0, (size - 1) // 2, *[0] * (x.rank - 2)),
        shape=x.shape,
    )
    base = square_sum * (number(op, "alpha", 1e-4) / size) + number(op, "bias", 1.0)
    return (w / base.power(number(op, "beta", 0.75))).cast(x.dtype)
