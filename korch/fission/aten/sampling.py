"""Resizing and sampling of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from korch.fission.aten.call import Call
from korch.fission.operators import resize, sampling
from korch.fission.reading import Refused
from korch.fission.tensor import Tensor

GRID_MODES = ("linear", "nearest", "cubic")
GRID_PADDING = ("zeros", "border", "reflection")


def _resized(
    call: Call, x: Tensor, scales: Sequence[float | None] | None, mode: str, coordinates: str, rounding: str = "floor"
) -> Tensor:
    """Given scales decide the coordinates, otherwise the sizes' ratio; the size is the one that PyTorch states."""
    rank = len(call.shape) - 2
    axes = tuple(range(2, 2 + rank))
    known = [s for s in scales or () if s is not None]
    given = known if len(known) == rank and coordinates != "align_corners" else None
    return call.onnx(
        resize.Resize,
        x,
        None,
        None if given is None else call.constant(np.asarray(given, np.float64)),
        None if given is not None else call.integers(call.shape[2:]),
        axes=axes,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        cubic_coeff_a=-0.75,
        nearest_mode=rounding,
    )[0]


def nearest(call: Call, x: Tensor, output_size: object, *scales: float | None) -> Tensor:
    return _resized(call, x, scales, "nearest", "asymmetric")


def nearest_vec(call: Call, x: Tensor, output_size: object, scale_factors: Sequence[float] | None) -> Tensor:
    return _resized(call, x, scale_factors, "nearest", "asymmetric")


def nearest_exact(call: Call, x: Tensor, output_size: object, *scales: float | None) -> Tensor:
    return _resized(call, x, scales, "nearest", "half_pixel", "round_prefer_ceil")


def nearest_exact_vec(call: Call, x: Tensor, output_size: object, scale_factors: Sequence[float] | None) -> Tensor:
    return nearest_exact(call, x, output_size, *(scale_factors or ()))


def weighted(mode: str) -> Callable[..., Tensor]:
    def function(call: Call, x: Tensor, output_size: object, align_corners: bool, *scales: float | None) -> Tensor:
        return _resized(call, x, scales, mode, "align_corners" if align_corners else "half_pixel")

    return function


def weighted_vec(mode: str) -> Callable[..., Tensor]:
    def function(
        call: Call, x: Tensor, output_size: object, align_corners: bool, scale_factors: Sequence[float] | None
    ) -> Tensor:
        return _resized(call, x, scale_factors, mode, "align_corners" if align_corners else "half_pixel")

    return function


def grid_sampler(
    call: Call, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    if interpolation_mode == 2 and padding_mode:
        raise Refused("cubic interpolation beyond the border is supported with zeros only")
    return call.onnx(
        sampling.GridSample,
        x,
        grid,
        mode=GRID_MODES[interpolation_mode],
        padding_mode=GRID_PADDING[padding_mode],
        align_corners=int(align_corners),
    )[0]


def col2im(
    call: Call,
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    if not x.dtype.is_float:
        raise Refused("only floats are supported")
    columns = x if x.rank == 3 else x.unsqueeze(0)
    image = call.onnx(
        sampling.Col2Im,
        columns,
        call.integers(output_size),
        call.integers(kernel_size),
        strides=stride,
        dilations=dilation,
        pads=(*padding, *padding),
    )[0]
    return image.reshape(call.shape)
