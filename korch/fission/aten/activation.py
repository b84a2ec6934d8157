"""Activation functions of ATen."""

from __future__ import annotations

from korch.fission.aten.call import Call
from korch.fission.aten.elementwise import clamp
from korch.fission.operators import activation
from korch.fission.operators.activation import softplus as _softplus
from korch.fission.tensor import Number, Tensor, where


def relu(call: Call, x: Tensor) -> Tensor:
    return x.maximum(0)


def relu6(call: Call, x: Tensor) -> Tensor:
    return clamp(call, x, 0, 6)


def hardtanh(call: Call, x: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    return clamp(call, x, min_val, max_val)


def leaky_relu(call: Call, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    w = x.cast(call.wide)
    return where(w > 0, w, w * negative_slope)


def prelu(call: Call, x: Tensor, weight: Tensor) -> Tensor:
    """One slope, or one for each channel (dimension 1)."""
    w = x.cast(call.wide)
    slope = weight.cast(call.wide)
    if slope.rank <= 1:
        slope = slope.reshape(()) if slope.type.elements == 1 else slope.along((1,), x.rank)
    return where(w > 0, w, w * slope)


def elu(call: Call, x: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    w = x.cast(call.wide)
    return where(w > 0, w * float(scale), (w * float(input_scale)).expm1() * (float(alpha) * float(scale)))


def gelu(call: Call, x: Tensor, *, approximate: str = "none") -> Tensor:
    return call.onnx(activation.Gelu, x, approximate=approximate)[0]


def sigmoid(call: Call, x: Tensor) -> Tensor:
    return activation.sigmoid(x.cast(call.wide))


def log_sigmoid_forward(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    """log(1 / (1 + exp(-x))); the second result serves training."""
    return (-_softplus(-x.cast(call.wide)),)


def silu(call: Call, x: Tensor) -> Tensor:
    w = x.cast(call.wide)
    return w * activation.sigmoid(w)


def hardsigmoid(call: Call, x: Tensor) -> Tensor:
    return (x.cast(call.wide) + 3).maximum(0).minimum(6) / 6


def hardswish(call: Call, x: Tensor) -> Tensor:
    w = x.cast(call.wide)
    return w * (w + 3).maximum(0).minimum(6) / 6


def mish(call: Call, x: Tensor) -> Tensor:
    return call.onnx(activation.Mish, x)[0]


def softplus(call: Call, x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x itself above the threshold."""
    w = x.cast(call.wide)
    scaled = w * float(beta)
    return where(scaled > float(threshold), w, _softplus(scaled) / float(beta))


def softmax(call: Call, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    if not x.rank:
        return softmax(call, x.reshape((1,)), 0).reshape(())
    return call.onnx(activation.Softmax, x.cast(call.wide), axis=dim)[0]


def log_softmax(call: Call, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    if not x.rank:
        return log_softmax(call, x.reshape((1,)), 0).reshape(())
    return call.onnx(activation.LogSoftmax, x.cast(call.wide), axis=dim)[0]
