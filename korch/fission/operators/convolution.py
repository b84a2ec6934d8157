"""Convolutions. The bias is an addition of its own."""

from __future__ import annotations

from korch.fission.builder import Builder
from korch.fission.operators.windows import AUTO_PADS, windows
from korch.fission.reading import has, integer, integers, text
from korch.fission.tensor import Tensor
from korch.importers.operators import Operator


def convolved(op: Operator, x: Tensor, w: Tensor) -> Tensor:
    """The convolution that the operator's attributes describe, without a bias; negative padding cuts off."""
    at = windows(op, x.shape[2:], w.shape[2:])
    cut = x.pad((0, 0, *(min(p, 0) for p in at.before)), (0, 0, *(min(p, 0) for p in at.after)))
    return cut.apply(
        "conv",
        w,
        strides=at.strides,
        dilations=at.dilations,
        pads=(*(max(p, 0) for p in at.before), *(max(p, 0) for p in at.after)),
        groups=integer(op, "group", 1),
    )


def Conv(b: Builder, op: Operator, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    y = convolved(op, x, w)
    return y if bias is None else y + bias.along((1,), y.rank)


def ConvTranspose(b: Builder, op: Operator, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    size, kernel, groups = x.shape[2:], w.shape[2:], integer(op, "group", 1)
    ones, zeros = (1,) * len(size), (0,) * len(size)
    strides, dilations = integers(op, "strides", ones), integers(op, "dilations", ones)
    extra = integers(op, "output_padding", zeros)
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)]
    before, shape = _transposed_sizes(op, size, strides, full, extra)
    y = x.apply(
        "conv_transpose",
        w,
        strides=strides,
        dilations=dilations,
        pads=tuple(before),
        groups=groups,
        shape=(x.shape[0], w.shape[1] * groups, *shape),
    )
    return y if bias is None else y + bias.along((1,), y.rank)


def _transposed_sizes(
    op: Operator, size: tuple[int, ...], strides: tuple[int, ...], full: list[int], extra: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """The padding cut off in front, and the output's spatial size.

    `full` is the size without padding. A given output size, or SAME (input * stride), decides the padding,
    whose odd cell falls to the end with SAME_UPPER and to the front otherwise.
    """
    rank = len(size)
    auto_pad = text(op, "auto_pad", "NOTSET", AUTO_PADS)
    if has(op, "output_shape"):
        shape = list(integers(op, "output_shape"))[-rank:]
    elif auto_pad.startswith("SAME"):
        shape = [n * s for n, s in zip(size, strides, strict=True)]
    else:
        pads = integers(op, "pads", (0,) * (2 * rank)) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        sizes = zip(full, extra, pads[:rank], pads[rank:], strict=True)
        return list(pads[:rank]), [f + e - p - q for f, e, p, q in sizes]
    totals = [max(0, f + e - n) for f, e, n in zip(full, extra, shape, strict=True)]
    return [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals], shape
