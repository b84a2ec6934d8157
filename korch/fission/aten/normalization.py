"""Normalizations of ATen. Statistics of float16 and bfloat16 are taken in float32."""

from __future__ import annotations

from collections.abc import Sequence

from korch.fission.aten.call import Call
from korch.fission.operators import normalization
from korch.fission.operators.normalization import standardized
from korch.fission.reading import Refused
from korch.fission.tensor import Tensor


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None, axes: Sequence[int]) -> Tensor:
    if weight is not None:
        y = y * weight.cast(y.dtype).along(axes, y.rank)
    return y if bias is None else y + bias.cast(y.dtype).along(axes, y.rank)


def layer_norm(
    call: Call, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    axes = tuple(range(x.rank - len(normalized_shape), x.rank))
    y, mean, inverse = standardized(x.cast(call.wide), axes, eps)
    return (_scaled(y, weight, bias, axes), mean, inverse)


def rms_norm(
    call: Call, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, ...]:
    w, axes = x.cast(call.wide), tuple(range(x.rank - len(normalized_shape), x.rank))
    epsilon = eps if eps is not None else 2.0**-23 if x.dtype.size == 4 else 2.0**-52
    if eps is None and x.dtype.size not in (4, 8):
        raise Refused("without eps this dtype is not supported")
    inverse = 1 / ((w * w).mean(axes, keepdims=True) + epsilon).sqrt()
    return (_scaled(w * inverse, weight, None, axes), inverse)


def group_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, ...]:
    split = x.cast(call.wide).reshape((N, group, C // group, HxW))
    y, mean, inverse = standardized(split, (2, 3), eps)
    scaled = _scaled(y.reshape(x.shape), weight, bias, (1,))
    return (scaled, mean.reshape((N, group)), inverse.reshape((N, group)))


def batch_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """By given statistics, one scale and one shift per channel. The other results are empty."""
    scale = running_mean.like(1).expand(running_mean.shape) if weight is None else weight
    shift = running_mean.like(0).expand(running_mean.shape) if bias is None else bias
    (y,) = call.onnx(normalization.BatchNormalization, x, scale, shift, running_mean, running_var, epsilon=eps)
    empty = call.tensor(0, call.dtype).expand((0,))
    return (y, *(empty for _ in call.node.results[1:]))


def batch_norm_functional(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if training:
        raise Refused("batch statistics of a training step are not supported")
    found = batch_norm(call, x, weight, bias, running_mean, running_var, momentum, eps)
    return (*found[:3], running_mean, running_var)


def batch_norm_no_stats(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """By the batch's own statistics (instance normalization arrives so)."""
    axes = tuple(d for d in range(x.rank) if d != 1)
    y, mean, inverse = standardized(x.cast(call.wide), axes, eps)
    return (_scaled(y, weight, bias, (1,)), mean.reshape((x.shape[1],)), inverse.reshape((x.shape[1],)))
