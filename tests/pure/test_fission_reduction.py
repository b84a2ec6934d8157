"""Reductions, normalizations and pooling against the reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from korch.ir.evaluate import evaluate
from tests.pure.fission_reference import check, compare, graph_of, model_of, normal

F = np.float32
REDUCTIONS = [
    "ReduceSum",
    "ReduceProd",
    "ReduceMax",
    "ReduceMin",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [0, -1], [-2], []])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str, axes: list[int], keepdims: int) -> None:
    x = np.abs(normal(3, 4, 5)) + F(0.1)
    given = np.array(axes, np.int64)
    compare(f"y = {name}<keepdims={keepdims}>(x, axes)", {"x": x}, {"axes": given})
    if name != "ReduceSum" and axes:
        compare(f"y = {name}<keepdims={keepdims}, axes={axes}>(x)", {"x": x}, opset=13)
    if not axes:
        body = f"y = {name}<keepdims={keepdims}, noop_with_empty_axes=1>(x, axes)"
        compare(body, {"x": x}, {"axes": given})


@pytest.mark.parametrize("name", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1"])
def test_reduction_of_integers(name: str) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, 5), np.int32)
    compare(f"y = {name}(x, axes)", {"x": x}, {"axes": np.array([1], np.int64)})


def test_sum_of_squares_of_integers() -> None:
    x = np.array([[1, -2, 3], [100, 100, 100]], np.int8)
    graph = graph_of(model_of("y = ReduceSumSquare<keepdims=0>(x, a)", {"x": x.astype(np.int32)}, {"a": np.array([1])}))
    check(evaluate(graph, {"x": x.astype(np.int32)})["y"], np.array([14, 30000], np.int32))


def test_reduction_of_booleans() -> None:
    x = np.array([[True, False], [True, True]])
    for name in ("ReduceMax", "ReduceMin"):
        compare(f"y = {name}<keepdims=0>(x, axes)", {"x": x}, {"axes": np.array([1], np.int64)}, opset=20)


def test_sum_of_halves_is_taken_in_float32() -> None:
    x = np.full((1, 4096), 1000, np.float16)
    body = "y = ReduceMean<keepdims=0>(x, axes) z = ReduceL2<keepdims=0>(x, axes)"
    graph = graph_of(model_of(body, {"x": x}, {"axes": np.array([1], np.int64)}, ("y", "z")))
    found = evaluate(graph, {"x": x})
    assert found["y"] == np.float16(1000)
    assert found["z"] == np.float16(64000)


def test_log_sum_exp_is_shifted() -> None:
    x = np.array([[1000, 1000], [-1000, -1001], [-np.inf, -np.inf], [np.inf, 0], [np.nan, 0], [-np.inf, 3]], F)
    graph = graph_of(model_of("y = ReduceLogSumExp<keepdims=0>(x, a)", {"x": x}, {"a": np.array([1], np.int64)}))
    expected = [1000 + np.log(2), -1000 + np.log1p(np.exp(-1)), -np.inf, np.inf, np.nan, 3]
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], np.array(expected, F), rtol=1e-6)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_arg_reduction(name: str, axis: int, keepdims: int, last: int) -> None:
    x = np.random.default_rng(0).integers(0, 3, (3, 4, 5)).astype(F)
    compare(f"y = {name}<axis={axis}, keepdims={keepdims}, select_last_index={last}>(x)", {"x": x})


def channels(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {name: rng.uniform(0.5, 2, count).astype(F) for name in ("scale", "bias", "mean", "variance")}


def test_batch_normalization_folds_to_one_product_and_sum() -> None:
    body = "y = BatchNormalization<epsilon=1e-3>(x, scale, bias, mean, variance)"
    graph = compare(body, {"x": normal(2, 3, 4, 4)}, channels(3))
    assert [d.primitive for d in graph if d.primitive != "broadcast"] == ["mul", "add"]


def test_batch_normalization_with_statistics_from_the_model() -> None:
    body = "y = BatchNormalization(x, scale, bias, mean, variance)"
    compare(body, {"x": normal(2, 3, 4), **channels(3)})
    compare(body, {"x": normal(2, 3).astype(np.float64), **{n: a.astype(float) for n, a in channels(3).items()}})


def test_batch_normalization_constants_are_rounded_once() -> None:
    constants = channels(8)
    constants["mean"] *= F(1e4)
    graph = graph_of(model_of("y = BatchNormalization(x, scale, bias, mean, variance)", {"x": normal(2, 8)}, constants))
    wide = {n: a.astype(np.float64) for n, a in constants.items()}
    factor = wide["scale"] / np.sqrt(wide["variance"] + np.float64(F(1e-5)))
    stored = [a for a in graph.constants.values() if a.shape == (8,)]
    assert any(np.array_equal(a, factor.astype(F)) for a in stored)
    assert any(np.array_equal(a, (wide["bias"] - wide["mean"] * factor).astype(F)) for a in stored)


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_layer_normalization(axis: int) -> None:
    shape = (2, 3, 4, 5)[axis % 4 :]
    constants = {"s": normal(*shape, seed=1), "b": normal(*shape, seed=2)}
    x = normal(2, 3, 4, 5) * F(3) + F(1)
    compare(f"y, m, i = LayerNormalization<axis={axis}>(x, s, b)", {"x": x}, constants, ("y", "m", "i"))
    compare(f"y = LayerNormalization<axis={axis}, epsilon=0.1>(x, s)", {"x": x}, constants)


def test_other_normalizations() -> None:
    x = normal(2, 6, 4, 3) * F(2) - F(1)
    six = channels(6)
    compare("y = InstanceNormalization(x, scale, bias)", {"x": x}, six, atol=1e-5)
    compare("y = InstanceNormalization(x, scale, bias)", {"x": normal(2, 6, 9)}, six, atol=1e-5)
    compare("y = GroupNormalization<num_groups=2>(x, scale, bias)", {"x": x}, six, opset=21, atol=1e-5)
    compare("y = MeanVarianceNormalization<axes=[0, 2, 3]>(x)", {"x": x}, atol=1e-5)
    compare("y = MeanVarianceNormalization<axes=[1]>(x)", {"x": x}, atol=1e-5)
    compare("y = RMSNormalization<axis=-2>(x, s)", {"x": x}, {"s": normal(4, 3)}, opset=23)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_lrn(size: int) -> None:
    """Against a loop: the reference evaluator takes the batch size for the number of channels."""
    x = normal(2, 6, 3)
    graph = graph_of(model_of(f"y = LRN<size={size}, alpha=0.3, beta=0.5, bias=2.0>(x)", {"x": x}))
    squares = x.astype(np.float64) ** 2
    sums = [squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1) for c in range(6)]
    expected = x / (2 + 0.3 / size * np.stack(sums, 1)) ** 0.5
    check(evaluate(graph, {"x": x})["y"], expected.astype(F))


def test_lp_normalization() -> None:
    x = normal(3, 4)
    x[1] = 0
    compare("y = LpNormalization<p=2, axis=1>(x)", {"x": x}, opset=22)
    # For p = 1 the reference evaluator forgets the absolute value.
    graph = graph_of(model_of("y = LpNormalization<p=1, axis=1>(x)", {"x": x}, opset=22))
    norm = np.abs(x).sum(1, keepdims=True)
    check(evaluate(graph, {"x": x})["y"], x / np.where(norm == 0, F(1), norm))


def test_statistics_do_not_cancel() -> None:
    """A mean of 1e4 beside a deviation of 1: E[x²] - E[x]² would keep no digit of the variance."""
    x = normal(2, 4, 64) + F(1e4)
    constants = {"s": np.ones(64, F), "c": np.ones(4, F), "z": np.zeros(4, F)}
    body = """
        a = LayerNormalization(x, s)
        b = InstanceNormalization(x, c, z)
        d = GroupNormalization<num_groups=4>(x, c, z)
    """
    found = evaluate(graph_of(model_of(body, {"x": x}, constants, ("a", "b", "d"), opset=21)), {"x": x})
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    for name in ("a", "b", "d"):
        np.testing.assert_allclose(found[name], expected, atol=2e-3)


POOLS = [
    "kernel_shape=[3]",
    "kernel_shape=[3], strides=[2]",
    "kernel_shape=[3], strides=[2], pads=[1, 1]",
    "kernel_shape=[3], strides=[2], pads=[1, 0], ceil_mode=1",
    "kernel_shape=[2], strides=[3], pads=[0, 1], ceil_mode=1",
    "kernel_shape=[3], dilations=[2], pads=[2, 1]",
    "kernel_shape=[3], dilations=[2], strides=[2], pads=[1, 2], ceil_mode=1",
    'kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"',
    'kernel_shape=[4], strides=[3], auto_pad="SAME_LOWER"',
    'kernel_shape=[4], strides=[3], auto_pad="VALID"',
]


@pytest.mark.parametrize("opset", [12, 22])
@pytest.mark.parametrize("size", [7, 8, 10])
@pytest.mark.parametrize("attributes", POOLS)
def test_pool_of_one_dimension(attributes: str, size: int, opset: int) -> None:
    """Against a loop over windows."""
    x = normal(2, 3, size)
    if opset < 19 and "dilations" in attributes:
        pytest.skip("averages have had dilations since operator set 19")
    for include in (0, 1):
        body = f"y = AveragePool<{attributes}, count_include_pad={include}>(x) z = MaxPool<{attributes}>(x)"
        graph = graph_of(model_of(body, {"x": x}, outputs=("y", "z"), opset=opset))
        found = evaluate(graph, {"x": x})
        averages, maxima = pooled(x.astype(np.float64), attributes, bool(include))
        check(found["y"], averages.astype(F))
        check(found["z"], maxima.astype(F))


def pooled(x: np.ndarray, attributes: str, include: bool) -> tuple[np.ndarray, np.ndarray]:
    stated = dict(part.split("=") for part in attributes.replace(" ", "").split(",") if "=" in part)
    lists = {n: [int(v) for v in t.strip("[]").split(",")] for n, t in stated.items() if t.startswith("[")}
    if "pads" in stated:
        lists["pads"] = [int(v) for v in attributes.split("pads=[")[1].split("]")[0].split(",")]
    size, k = x.shape[2], lists["kernel_shape"][0]
    stride, dilation = lists.get("strides", [1])[0], lists.get("dilations", [1])[0]
    first, last = lists.get("pads", [0, 0])
    reach = (k - 1) * dilation + 1
    auto = stated.get("auto_pad", "").strip('"')
    if auto.startswith("SAME"):
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + reach - size)
        first = total // 2 if auto == "SAME_UPPER" else total - total // 2
        last = total - first
    starts = range(-first, size + last - reach + 1, stride)
    if "ceil_mode" in stated and starts[-1] + reach < size + last and starts[-1] + stride < size:
        starts = range(-first, starts[-1] + stride + 1, stride)
    averages, maxima = [], []
    for start in starts:
        taps = [start + t * dilation for t in range(k)]
        inside = [t for t in taps if 0 <= t < size]
        counted = [t for t in taps if -first <= t < size + last] if include else inside
        averages.append(x[:, :, inside].sum(2) / len(counted))
        maxima.append(x[:, :, inside].max(2))
    return np.stack(averages, 2), np.stack(maxima, 2)


@pytest.mark.parametrize("name", ["MaxPool", "AveragePool"])
def test_last_window_that_would_begin_in_the_padding(name: str) -> None:
    """It is left out in every operator set; PyTorch does the same. The inference keeps it before operator set 22."""
    x = normal(1, 3, 10, 11)
    attributes = "kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 1, 1], ceil_mode=1"
    old, new = (graph_of(model_of(f"y = {name}<{attributes}>(x)", {"x": x}, opset=k)) for k in (17, 22))
    assert old == new
    assert evaluate(old, {"x": x})["y"].shape == (1, 3, 6, 4)


def test_pool_of_two_dimensions() -> None:
    x = normal(1, 2, 7, 9)
    for attributes in (
        "kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1]",
        'kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"',
        "kernel_shape=[2, 3], dilations=[2, 1]",
    ):
        compare(f"y = MaxPool<{attributes}>(x)", {"x": x})
        compare(f"y = AveragePool<{attributes}>(x)", {"x": x}, opset=19)
        compare(f"y = LpPool<{attributes}, p=2>(x)", {"x": x})
        compare(f"y = LpPool<{attributes}, p=3>(x)", {"x": x})
    for name in ("GlobalAveragePool", "GlobalMaxPool"):
        compare(f"y = {name}(x)", {"x": x})


@pytest.mark.parametrize("order", [0, 1])
def test_positions_of_maxima(order: int) -> None:
    x = np.random.default_rng(0).integers(-3, 3, (2, 2, 5, 6)).astype(F)
    body = f"y, i = MaxPool<kernel_shape=[2, 3], strides=[1, 2], pads=[1, 0, 0, 1], storage_order={order}>(x)"
    graph = graph_of(model_of(body, {"x": x}, outputs=("y", "i"), opset=12))
    found = evaluate(graph, {"x": x})
    places = found["i"]
    if order:
        image, rest = places // 30, places % 30
        places = image * 30 + rest % 5 * 6 + rest // 5
    np.testing.assert_array_equal(x.reshape(-1)[places], found["y"])
    image = np.arange(4).reshape(2, 2, 1, 1)
    np.testing.assert_array_equal(places // 30, np.broadcast_to(image, places.shape))


def test_pool_of_integers_and_nan() -> None:
    x = np.array([[[-5, -100, -7, 3, 2, -128]]], np.int8)
    graph = graph_of(model_of("y = MaxPool<kernel_shape=[2], pads=[1, 1]>(x)", {"x": x}))
    check(evaluate(graph, {"x": x})["y"], np.array([[[-5, -5, -7, 3, 3, 2, -128]]], np.int8))
    broken = np.array([[[1, np.nan, -np.inf, -np.inf, 2]]], F)
    graph = graph_of(model_of("y = MaxPool<kernel_shape=[2]>(x)", {"x": broken}))
    np.testing.assert_array_equal(evaluate(graph, {"x": broken})["y"], np.array([[[np.nan, np.nan, -np.inf, 2]]], F))
