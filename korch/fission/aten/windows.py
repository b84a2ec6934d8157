"""Convolution and pooling of ATen. A missing batch dimension is added and taken off again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from korch.fission.aten.call import Call
from korch.fission.operators import convolution as onnx_convolution
from korch.fission.operators import pooling
from korch.fission.operators.pooling import pool_windows, pooled
from korch.fission.reading import Refused
from korch.fission.tensor import Tensor, concat
from korch.importers.operators import Operator


def each(values: int | Sequence[int], rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One number per spatial dimension: one given stands for all, none for the default."""
    given = (values,) if isinstance(values, int) else tuple(values) or tuple(default)
    return given * rank if len(given) == 1 else given


def convolution(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    rank = weight.rank - 2
    image = x if x.rank == weight.rank else x.unsqueeze(0)
    pads = each(padding, rank)
    found = call.onnx(
        onnx_convolution.ConvTranspose if transposed else onnx_convolution.Conv,
        image,
        weight,
        bias,
        strides=each(stride, rank),
        dilations=each(dilation, rank),
        pads=(*pads, *pads),
        group=groups,
        output_padding=each(output_padding, rank) if transposed else None,
    )
    return found[0].reshape(call.shape)


def avg_pool(rank: int) -> Callable[..., Tensor]:
    def function(
        call: Call,
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        """`divisor_override` replaces the number of elements of a window."""
        attributes = _attributes(rank, kernel_size, stride, padding, (1,), ceil_mode)
        image = x if x.rank == rank + 2 else x.unsqueeze(0)
        if divisor_override is None:
            averaged = call.onnx(pooling.AveragePool, image, count_include_pad=int(count_include_pad), **attributes)
            return averaged[0].reshape(call.shape)
        at = pool_windows(Operator("AveragePool", "", 24, call.node.name, (), (), attributes), image)
        return (pooled("window_sum", image.cast(call.wide), at) / divisor_override).reshape(call.shape)

    return function


def _attributes(
    rank: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> dict[str, Any]:
    kernel, pads = each(kernel_size, rank), each(padding, rank)
    return {
        "kernel_shape": kernel,
        "strides": each(stride, rank, kernel),
        "pads": (*pads, *pads),
        "dilations": each(dilation, rank),
        "ceil_mode": int(ceil_mode),
    }


def max_pool(rank: int) -> Callable[..., tuple[Tensor, ...]]:
    def function(
        call: Call,
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, ...]:
        """The maxima, and their positions in the flattened plane (ONNX counts through the whole tensor)."""
        attributes = _attributes(rank, kernel_size, stride, padding, dilation, ceil_mode)
        image = x if x.rank == rank + 2 else x.unsqueeze(0)
        indexed = call.uses(1)
        found = call.onnx(pooling.MaxPool, image, outputs=1 + indexed, **attributes)
        if not indexed:
            return (found[0].reshape(call.shape),)
        plane = math.prod(image.shape[2:])
        return (found[0].reshape(call.shape), (found[1] % plane).reshape(call.shape))

    return function


def adaptive_avg_pool(call: Call, x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Output o averages the positions from floor(o * n / size) up to ceil((o + 1) * n / size), axis by axis."""
    w = x.cast(call.wide)
    for axis, size in zip(range(x.rank - len(output_size), x.rank), output_size, strict=True):
        w = _adaptive(w, axis, size)
    return w


def _adaptive(x: Tensor, axis: int, size: int) -> Tensor:
    n = x.shape[axis]
    if size and n % size == 0:
        split = x.reshape((*x.shape[:axis], size, n // size, *x.shape[axis + 1 :]))
        return split.mean(axis + 1)
    bounds = [(o * n // size, -(-(o + 1) * n // size)) for o in range(size)]
    if not bounds:
        raise Refused("an output of size 0")
    return concat([x.narrow(axis, a, b - a).mean(axis, keepdims=True) for a, b in bounds], axis)
