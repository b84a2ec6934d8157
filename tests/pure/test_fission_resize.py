"""Resize, Upsample and sampling at data-dependent positions against the reference evaluator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from korch.ir.evaluate import evaluate
from tests.pure.fission_reference import check, compare, graph_of, model_of, normal

F = np.float32
X = normal(1, 2, 5, 6)
COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
SCALES = [(2.0, 3.0), (0.6, 0.5), (1.5, 2.5), (0.4, 1.0), (2.6, 0.8)]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_resize_by_scales(coordinates: str, scales: tuple[float, float]) -> None:
    given = {"s": np.array([1, 1, *scales], F)}
    for mode in ("linear", "cubic"):
        for more in ("", ", exclude_outside=1", ", antialias=1", ", cubic_coeff_a=-0.5"):
            attributes = f'mode="{mode}", coordinate_transformation_mode="{coordinates}"{more}'
            compare(f"y = Resize<{attributes}>(x, , s)", {"x": X}, given, opset=19, rtol=1e-4, atol=2e-5)
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        attributes = f'coordinate_transformation_mode="{coordinates}", nearest_mode="{rounding}"'
        compare(f'y = Resize<mode="nearest", {attributes}>(x, , s)', {"x": X}, given, opset=19)


@pytest.mark.parametrize("sizes", [(10, 12), (7, 9), (3, 4), (2, 7), (1, 1)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
def test_resize_to_sizes(coordinates: str, sizes: tuple[int, int]) -> None:
    given = {"n": np.array([1, 2, *sizes])}
    for mode in ("nearest", "linear", "cubic"):
        body = f'y = Resize<mode="{mode}", coordinate_transformation_mode="{coordinates}">(x, , , n)'
        compare(body, {"x": X}, given, opset=19, rtol=1e-4, atol=2e-5)


def test_halves_of_an_exact_ratio_round_as_the_mode_says() -> None:
    """5 positions to 3: the middle of each third is a half way for some; floats would blur it."""
    x = np.arange(6, dtype=F).reshape(1, 1, 6)
    for rounding, places in (("round_prefer_floor", [0, 2, 4]), ("round_prefer_ceil", [1, 3, 5])):
        body = f'y = Resize<nearest_mode="{rounding}">(x, , , n)'
        graph = graph_of(model_of(body, {"x": x}, {"n": np.array([1, 1, 3])}, opset=19))
        check(evaluate(graph, {"x": x})["y"], x[..., places])


def test_axes_and_aspect_ratio() -> None:
    for policy in ("stretch", "not_larger", "not_smaller"):
        body = f'y = Resize<mode="linear", axes=[2, 3], keep_aspect_ratio_policy="{policy}">(x, , , n)'
        compare(body, {"x": X}, {"n": np.array([8, 7])}, opset=19, rtol=1e-4, atol=2e-5)
    compare("y = Resize<axes=[3, 2]>(x, , s)", {"x": X}, {"s": np.array([2, 3], F)}, opset=19)


def test_crop_and_resize() -> None:
    given = {"r": np.array([0, 0, 0.2, -0.1, 1, 1, 0.7, 1.2], F), "n": np.array([1, 2, 4, 5])}
    for mode in ("nearest", "linear", "cubic"):
        attributes = f'mode="{mode}", coordinate_transformation_mode="tf_crop_and_resize"'
        body = f"y = Resize<{attributes}, extrapolation_value=9.0>(x, r, , n)"
        compare(body, {"x": X}, given, opset=19, rtol=1e-4, atol=2e-5)


def test_resize_before_opset_13() -> None:
    constants = {"r": np.zeros(0, F), "s": np.array([1, 1, 2, 1.5], F), "n": np.array([1, 2, 7, 4])}
    modern = ReferenceEvaluator(model_of('y = Resize<mode="linear">(x, , s)', {"x": X}, constants, opset=19))
    graph = graph_of(model_of('y = Resize<mode="linear">(x, r, s)', {"x": X}, constants, opset=11))
    check(evaluate(graph, {"x": X})["y"], modern.run(None, {"x": X})[0], rtol=1e-4, atol=1e-5)
    modern = ReferenceEvaluator(model_of("y = Resize(x, , , n)", {"x": X}, constants, opset=19))
    graph = graph_of(model_of("y = Resize(x, r, e, n)", {"x": X}, constants | {"e": np.zeros(0, F)}, opset=11))
    check(evaluate(graph, {"x": X})["y"], modern.run(None, {"x": X})[0])
    body = 'y = Resize<coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor">(x, r, s)'
    graph = graph_of(model_of(body, {"x": X}, constants, opset=11))
    places = [int((i + 0.5) / 1.5) for i in range(9)]
    check(evaluate(graph, {"x": X})["y"], np.repeat(X, 2, 2)[..., places])


def test_upsample_and_the_first_resize() -> None:
    constants = {"s": np.array([1, 1, 2, 1.5], F)}
    expected = np.repeat(X, 2, 2)[..., [int(i / 1.5) for i in range(9)]]
    for body, opset in (("y = Upsample(x, s)", 9), ("y = Resize(x, s)", 10)):
        graph = graph_of(model_of(body, {"x": X}, constants, opset=opset))
        check(evaluate(graph, {"x": X})["y"], expected)
    graph = graph_of(model_of("y = Upsample<scales=[1.0, 1.0, 2.0, 1.5]>(x)", {"x": X}, opset=7))
    check(evaluate(graph, {"x": X})["y"], expected)
    graph = graph_of(model_of("y = Resize(x, s)", {"x": X}, {"s": np.array([1, 1, 0.6, 0.6], F)}, opset=10))
    check(evaluate(graph, {"x": X})["y"], X[:, :, [0, 2, 4]][..., [0, 2, 4]])


def test_whole_numbers_are_interpolated_and_rounded() -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 1, 4, 4), np.uint8)
    compare('y = Resize<mode="linear">(x, , s)', {"x": x}, {"s": np.array([1, 1, 2, 2], F)}, opset=19)


def test_infinities_reach_only_what_they_weigh_on() -> None:
    """Borders have fewer neighbours than the middle: filling up with weights of 0 would make NaN of infinity."""
    x = np.array([[[np.inf, 1, 2, 3]]], F)
    graph = graph_of(model_of('y = Resize<mode="linear">(x, , s)', {"x": x}, {"s": np.array([1, 1, 2], F)}))
    found = evaluate(graph, {"x": x})["y"][0, 0]
    np.testing.assert_array_equal(found[:3], np.inf)
    np.testing.assert_allclose(found[3:], [1.25, 1.75, 2.25, 2.75, 3])


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    x, grid = normal(2, 2, 4, 5), normal(2, 3, 3, 2, seed=5) * F(0.9)
    body = f'y = GridSample<mode="{mode}", padding_mode="{padding}", align_corners={align}>(x, g)'
    compare(body, {"x": x, "g": grid}, opset=20, rtol=1e-4, atol=1e-5)


def test_grid_sample_in_three_dimensions() -> None:
    compare("y = GridSample(x, g)", {"x": normal(1, 2, 3, 4, 3), "g": normal(1, 2, 2, 2, 3)}, opset=20, atol=1e-5)


def test_roi_align() -> None:
    rois = np.array([[0, 0, 3, 4], [1, 1.5, 9, 3], [-2, -2, 1, 1]], F)
    inputs = {"x": normal(2, 3, 5, 6), "r": rois, "b": np.array([0, 1, 1])}
    for mode, kind in itertools.product(("avg", "max"), ("half_pixel", "output_half_pixel")):
        attributes = f'mode="{mode}", coordinate_transformation_mode="{kind}", output_height=2, output_width=3'
        body = f"y = RoiAlign<{attributes}, sampling_ratio=2, spatial_scale=0.8>(x, r, b)"
        compare(body, inputs, atol=1e-5)


def test_pool_and_unpool() -> None:
    x = normal(1, 2, 4, 6)
    attributes = "kernel_shape=[2, 2], strides=[2, 2]"
    body = f"v, i = MaxPool<{attributes}>(x) y = MaxUnpool<{attributes}>(v, i)"
    found = evaluate(graph_of(model_of(body, {"x": x}, outputs=("v", "y"), opset=12)), {"x": x})
    kept = np.isin(x, found["v"])
    check(found["y"], np.where(kept, x, F(0)))


def test_columns_to_image() -> None:
    constants = {"s": np.array([5, 6]), "k": np.array([2, 3])}
    x = normal(2, 12, 12)
    body = "y = Col2Im<strides=[2, 1], pads=[1, 0, 0, 0]>(x, s, k)"
    compare(body, {"x": x}, constants, atol=1e-5)


def test_deformed_convolution() -> None:
    """Offsets of zero give the plain convolution; the mask scales the taps."""
    x, w = normal(1, 4, 5, 5), normal(6, 2, 3, 3)
    offset, mask = np.zeros((1, 36, 5, 5), F), np.full((1, 18, 5, 5), 0.5, F)
    body = """
        y = DeformConv<group=2, offset_group=2, pads=[1, 1, 1, 1]>(x, w, o, , m)
        z = Conv<group=2, pads=[1, 1, 1, 1]>(x, w)
    """
    inputs = {"x": x, "o": offset, "m": mask}
    found = evaluate(graph_of(model_of(body, inputs, {"w": w}, ("y", "z"), opset=22)), inputs)
    check(found["y"], found["z"] * F(0.5), atol=1e-5)
    moved = {"x": x, "o": normal(1, 36, 5, 5) * F(2)}
    body = "y = DeformConv<group=2, offset_group=2, pads=[1, 1, 1, 1]>(x, w, o)"
    compare(body, moved, {"w": w}, opset=22, rtol=1e-4, atol=1e-4)
