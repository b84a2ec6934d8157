"""Activation functions.

The float16 and bfloat16 forms are computed in float32 and rounded once.
"""

from __future__ import annotations

import math

import numpy as np

from korch.fission.builder import Builder
from korch.fission.reading import integer, number, text, wide
from korch.fission.tensor import Tensor, constant, where
from korch.importers.operators import Operator


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)): where exp overflows to infinity, the result is 0, its limit."""
    return 1 / (1 + (-x).exp())


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), which never overflows."""
    return x.maximum(0) + (-abs(x)).exp().log1p()


def elu(x: Tensor, alpha: float) -> Tensor:
    """x, and alpha * (exp(x) - 1) where x is negative."""
    return where(x < 0, x.expm1() * alpha, x)


def Relu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.maximum(0)


def LeakyRelu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    w = wide(x)
    return where(w < 0, w * number(op, "alpha", 0.01), w).cast(x.dtype)


def PRelu(b: Builder, op: Operator, x: Tensor, slope: Tensor) -> Tensor:
    return where(x < 0, x * slope, x)


def ThresholdedRelu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return where(x > number(op, "alpha", 1.0), x, 0)


def Elu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return elu(wide(x), number(op, "alpha", 1.0)).cast(x.dtype)


def Celu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))."""
    w, alpha = wide(x), number(op, "alpha", 1.0)
    return where(w < 0, (w / alpha).expm1() * alpha, w).cast(x.dtype)


def Selu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    # The standard's default constants, as the floats that it prints.
    alpha = number(op, "alpha", 1.67326319217681884765625)
    gamma = number(op, "gamma", 1.05070102214813232421875)
    return (elu(wide(x), alpha) * gamma).cast(x.dtype)


def Sigmoid(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return sigmoid(wide(x)).cast(x.dtype)


def HardSigmoid(b: Builder, op: Operator, x: Tensor) -> Tensor:
    w = wide(x) * number(op, "alpha", 0.2) + number(op, "beta", 0.5)
    return w.minimum(1).maximum(0).cast(x.dtype)


def HardSwish(b: Builder, op: Operator, x: Tensor) -> Tensor:
    w = wide(x)
    return (w * (w * (1 / 6) + 0.5).minimum(1).maximum(0)).cast(x.dtype)


def Swish(b: Builder, op: Operator, x: Tensor) -> Tensor:
    w = wide(x)
    return (w * sigmoid(w * number(op, "alpha", 1.0))).cast(x.dtype)


def SwiGLU(b: Builder, op: Operator, gate: Tensor, x: Tensor) -> Tensor:
    w = wide(gate)
    return (w * sigmoid(w * number(op, "alpha", 1.0)) * wide(x)).cast(x.dtype)


def Softplus(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return softplus(wide(x)).cast(x.dtype)


def Softsign(b: Builder, op: Operator, x: Tensor) -> Tensor:
    w = wide(x)
    return (w / (1 + abs(w))).cast(x.dtype)


def Mish(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """x * tanh(log(1 + exp(x))) = x * n / (n + 2) with t = exp(x), n = t * (t + 2).

    From x = 20 on the factor rounds to 1 in every float; the limit keeps t * t finite.
    """
    w = wide(x)
    t = w.minimum(20).exp()
    n = t * (t + 2)
    return (w * (n / (n + 2))).cast(x.dtype)


def Gelu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    w = wide(x)
    if text(op, "approximate", "none", ("none", "tanh")) == "tanh":
        inner = (w + w * w * w * 0.044715) * math.sqrt(2 / math.pi)
        return (w * 0.5 * (1 + inner.tanh())).cast(x.dtype)
    return (w * 0.5 * (1 + (w * math.sqrt(0.5)).erf())).cast(x.dtype)


def Shrink(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    bias, limit = number(op, "bias", 0.0), number(op, "lambd", 0.5)
    if not x.dtype.is_float:
        bias, limit = int(bias), int(limit)
    return where(x < -limit, x + bias, where(x > limit, x - bias, 0))


def softmax_axes(op: Operator, x: Tensor) -> tuple[int, ...]:
    """Before opset 13 the input is flattened to a matrix at `axis`, so the sum goes over all dimensions from there."""
    if op.version >= 13:
        return x.axes(integer(op, "axis", -1))
    return tuple(range(integer(op, "axis", 1) % max(x.rank, 1), x.rank))


def Softmax(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """The greatest is subtracted first, so exp never overflows; a row that holds +inf, or only -inf, is NaN."""
    axes, w = softmax_axes(op, x), wide(x)
    e = (w - w.max(axes, keepdims=True)).exp()
    return (e / e.sum(axes, keepdims=True)).cast(x.dtype)


def LogSoftmax(b: Builder, op: Operator, x: Tensor) -> Tensor:
    axes, w = softmax_axes(op, x), wide(x)
    shifted = w - w.max(axes, keepdims=True)
    return (shifted - shifted.exp().sum(axes, keepdims=True).log()).cast(x.dtype)


def Hardmax(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """1 at the first of the greatest, 0 elsewhere."""
    axes = softmax_axes(op, x)
    rows = x.reshape((*x.shape[: axes[0]], math.prod(x.shape[a] for a in axes), *x.shape[axes[-1] + 1 :]))
    greatest = rows.apply("arg_max", axis=axes[0], last=False)
    places = constant(b, np.arange(rows.shape[axes[0]])).along((axes[0],), rows.rank)
    hit = places.equal(greatest.unsqueeze(axes[0]))
    return hit.cast(x.dtype).reshape(x.shape)
