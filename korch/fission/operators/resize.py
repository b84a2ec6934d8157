"""Resize and Upsample: per axis, nearest positions are a `take` and weighted ones a `resample`.

Coordinates are exact fractions of the given scale, so that halfway cases round as the standard says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from korch.fission.builder import Builder
from korch.fission.reading import Refused, contents, integer, integers, listed, number, text, wide
from korch.fission.tensor import Tensor, constant, where
from korch.importers.operators import Operator
from korch.ir.types import DType

HALF = Fraction(1, 2)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - HALF),
    "round_prefer_ceil": lambda x: math.floor(x + HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: `size` positions become `out`; the region of interest is normalized."""

    axis: int
    size: int
    out: int
    scale: Fraction
    start: Fraction = Fraction(0)
    end: Fraction = Fraction(1)

    @property
    def width(self) -> Fraction:
        """The output's width before it is cut to an integer."""
        return self.scale * self.size

    @property
    def is_kept(self) -> bool:
        return self.scale == 1 and self.out == self.size and self.start == 0 and self.end == 1


def Resize(b: Builder, op: Operator, x: Tensor, *rest: Tensor | None) -> Tensor:
    """`rest` is roi, scales and sizes; before opset 11 scales alone."""
    if op.version < 11:
        nearest = text(op, "mode", "nearest", ("nearest", "linear")) == "nearest"
        return _old(b, op, x, rest[0], shrink=math.ceil if nearest else math.floor)
    roi, scales, sizes = (*rest, None, None, None)[:3]
    axes = _axes(b, op, x, roi, scales, sizes)
    mode = text(op, "mode", "nearest", ("nearest", "linear", "cubic"))
    coordinates = text(op, "coordinate_transformation_mode", "half_pixel", COORDINATES)
    if mode == "nearest":
        rounding = NEAREST[text(op, "nearest_mode", "round_prefer_floor", tuple(NEAREST))]
        y = _nearest(x, axes, coordinates, rounding)
    else:
        y = _weighted(op, x, axes, mode, coordinates)
    return _extrapolated(y, axes, number(op, "extrapolation_value", 0.0)) if _crops(coordinates) else y


def Upsample(b: Builder, op: Operator, x: Tensor, scales: Tensor | None = None) -> Tensor:
    """Resize with asymmetric coordinates, cut to integers."""
    return _old(b, op, x, scales, shrink=math.floor)


def _old(b: Builder, op: Operator, x: Tensor, scales: Tensor | None, shrink: Callable[[Fraction], int]) -> Tensor:
    """Before opset 11: asymmetric coordinates. A shrinking nearest Resize takes the position after (`shrink`)."""
    factors = _old_scales(op) if scales is None else _fractions(scales, "scales")
    shape = _declared(b, op, [math.floor(n * s) for n, s in zip(x.shape, factors, strict=True)])
    axes = [Axis(d, x.shape[d], shape[d], s) for d, s in enumerate(factors)]
    mode = text(op, "mode", "nearest", ("nearest", "linear"))
    if mode != "nearest":
        return _weighted(op, x, axes, "linear", "asymmetric")
    for a in axes:
        x = _nearest(x, [a], "asymmetric", shrink if a.scale < 1 else math.floor)
    return x


def _old_scales(op: Operator) -> list[Fraction]:
    value = op.attributes.get("scales")
    if not isinstance(value, tuple):
        raise Refused("attribute scales is missing")
    return [Fraction(float(v)) for v in value]  # type: ignore[arg-type]


def _fractions(x: Tensor, what: str) -> list[Fraction]:
    return [Fraction(float(v)) for v in contents(x, what).reshape(-1)]


def _declared(b: Builder, op: Operator, shape: list[int]) -> Sequence[int]:
    """The size that the model states: a product of float32 may have been rounded before it was cut."""
    declared = b.declared.get(op.outputs[0])
    return shape if declared is None else declared.shape


def _axes(
    b: Builder,
    op: Operator,
    x: Tensor,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
) -> list[Axis]:
    over = [a % x.rank for a in integers(op, "axes", range(x.rank))]
    if any(x.shape[a] == 0 for a in over):
        raise Refused("a dimension to be resized is empty")
    if sizes is not None and sizes.type.elements:
        wanted = listed(sizes, "sizes")
        factors = [Fraction(n, x.shape[a]) for n, a in zip(wanted, over, strict=True)]
        policy = text(op, "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
        if policy != "stretch":
            common = min(factors) if policy == "not_larger" else max(factors)
            factors = [common] * len(over)
            wanted = [math.floor(common * x.shape[a] + HALF) for a in over]
    elif scales is not None and scales.type.elements:
        factors = _fractions(scales, "scales")
        cut = [math.floor(f * x.shape[a]) for f, a in zip(factors, over, strict=True)]
        shape = list(x.shape)
        for a, n in zip(over, cut, strict=True):
            shape[a] = n
        declared = _declared(b, op, shape)
        wanted = [declared[a] for a in over]
    else:
        raise Refused("neither scales nor sizes are given")
    count = len(over)
    region = [Fraction(0)] * count + [Fraction(1)] * count
    if roi is not None and roi.type.elements and _crops(text(op, "coordinate_transformation_mode", "")):
        region = _fractions(roi, "roi")
    return [Axis(a, x.shape[a], wanted[i], factors[i], region[i], region[count + i]) for i, a in enumerate(over)]


def _crops(coordinates: str) -> bool:
    return coordinates == "tf_crop_and_resize"


def position(a: Axis, o: int, coordinates: str) -> Fraction:
    """Where output position o lies in the input."""
    last = a.size - 1
    match coordinates:
        case "asymmetric":
            return o / a.scale
        case "align_corners":
            return Fraction(0) if a.width == 1 else o * last / (a.width - 1)
        case "tf_half_pixel_for_nn":
            return (o + HALF) / a.scale
        case "pytorch_half_pixel":
            return (o + HALF) / a.scale - HALF if a.out > 1 else Fraction(0)
        case "half_pixel_symmetric":
            return Fraction(a.size, 2) * (1 - a.out / a.width) + (o + HALF) / a.scale - HALF
        case "tf_crop_and_resize":
            if a.width == 1:
                return (a.start + a.end) * last / 2
            return a.start * last + o * (a.end - a.start) * last / (a.width - 1)
        case _:
            return (o + HALF) / a.scale - HALF


def _nearest(x: Tensor, axes: Sequence[Axis], coordinates: str, rounding: Callable[[Fraction], int]) -> Tensor:
    for a in axes:
        if not a.is_kept:
            places = (rounding(position(a, o, coordinates)) for o in range(a.out))
            x = x.take(a.axis, [min(max(p, 0), a.size - 1) for p in places])
    return x


def _weighted(op: Operator, x: Tensor, axes: Sequence[Axis], mode: str, coordinates: str) -> Tensor:
    """The axes that shrink come first, which keeps the tensors between small. Integers round half to even."""
    y = wide(x) if x.dtype.is_float else x.cast(DType.FLOAT32 if x.dtype.size < 4 else DType.FLOAT64)
    for a in sorted(axes, key=lambda a: a.scale):
        if a.is_kept:
            continue
        taps = [_taps(op, a, position(a, o, coordinates), mode) for o in range(a.out)]
        count = max(map(len, taps), default=1)
        filled = [_filled(t, count) for t in taps]
        y = y.apply(
            "resample",
            axis=a.axis,
            indices=tuple(tuple(i for i, _ in t) for t in filled),
            weights=tuple(tuple(w for _, w in t) for t in filled),
        )
    return y.cast(x.dtype) if x.dtype.is_float else y.round().cast(x.dtype)


def linear(x: float) -> float:
    """The triangle filter."""
    return max(0.0, 1 - abs(x))


def cubic(x: float, a: float) -> float:
    """Keys' cubic convolution filter (1981), equation (4)."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _taps(op: Operator, a: Axis, x: Fraction, mode: str) -> list[tuple[int, float]]:
    """Positions and weights around x; positions outside lend their weight to the border, or lose it."""
    stretch = min(float(a.scale), 1.0) if integer(op, "antialias", 0) else 1.0
    reach = math.ceil((1 if mode == "linear" else 2) / stretch)
    coefficient = number(op, "cubic_coeff_a", -0.75)
    base = math.floor(x)
    places = range(base - reach, base + reach + 2)
    distances = [float(p - x) * stretch for p in places]
    weights = [linear(d) if mode == "linear" else cubic(d, coefficient) for d in distances]
    if integer(op, "exclude_outside", 0):
        weights = [w if 0 <= p < a.size else 0.0 for p, w in zip(places, weights, strict=True)]
    total = math.fsum(weights)
    merged: dict[int, float] = {}
    for p, w in zip(places, weights, strict=True):
        inside = min(max(p, 0), a.size - 1)
        merged[inside] = merged.get(inside, 0.0) + w / (total or 1.0)
    return [(p, w) for p, w in merged.items() if w] or [(0, 0.0)]


def _filled(taps: list[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    """`count` taps. The first is halved as often as needed: a tap of weight 0 would turn an infinity into NaN."""
    taps = list(taps)
    while len(taps) < count:
        p, w = taps[0]
        taps[:1] = [(p, w / 2), (p, w / 2)]
    return taps


def _extrapolated(y: Tensor, axes: Sequence[Axis], value: float) -> Tensor:
    """The given value wherever a coordinate leaves the input."""
    outside = np.zeros((1,) * y.rank, np.bool_)
    for a in axes:
        places = [position(a, o, "tf_crop_and_resize") for o in range(a.out)]
        shape = [a.out if d == a.axis else 1 for d in range(y.rank)]
        outside = outside | np.array([not 0 <= p <= a.size - 1 for p in places]).reshape(shape)
    return where(constant(y.builder, outside), value, y) if outside.any() else y
