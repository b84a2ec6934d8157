"""Elementwise operators and activations against the reference evaluator, at adversarial values too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from korch.ir.evaluate import evaluate
from tests.pure.fission_reference import ADVERSARIAL, check, compare, graph_of, model_of, normal

F = np.float32
MIXED = np.concatenate([ADVERSARIAL, normal(46)])
LEFT, RIGHT = (a.reshape(-1) for a in np.meshgrid(ADVERSARIAL, ADVERSARIAL))

UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "IsNaN",
    "IsInf",
    "Log",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "HardSwish",
    "Elu",
    "Selu",
    "LeakyRelu",
    "HardSigmoid",
    "ThresholdedRelu",
    "Shrink",
    "Identity",
]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    # exp and its kin overflow a little earlier or later in float32 than in float64: the extremes are left to others.
    wild = name in ("Cosh", "Sinh", "Tan", "Sin", "Cos", "Softsign")
    x = MIXED[np.abs(MIXED) < 1e30] if wild else MIXED
    compare(f"y = {name}(x)", {"x": x}, opset=20)


@pytest.mark.parametrize("name", UNARY)
def test_unary_of_halves(name: str) -> None:
    x = normal(64).astype(np.float16)
    compare(f"y = {name}(x)", {"x": x}, opset=20, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(
    "name",
    ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"],
)
def test_binary(name: str) -> None:
    compare(f"y = {name}(a, b)", {"a": LEFT, "b": RIGHT}, opset=18)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Equal", "Less", "Greater"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_binary_of_integers(name: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, 64, dtype, endpoint=True)
    b = rng.integers(max(info.min, -5), 5, 64, dtype)
    b[b == 0] = 3
    a[:2] = info.min, info.max
    compare(f"y = {name}(a, b)", {"a": a, "b": b})


def test_integer_division_never_traps() -> None:
    a = np.array([5, -5, np.iinfo(np.int32).min], np.int32)
    b = np.array([0, 0, -1], np.int32)
    graph = graph_of(model_of("y = Div(a, b) z = Mod(a, b)", {"a": a, "b": b}, outputs=("y", "z")))
    found = evaluate(graph, {"a": a, "b": b})
    np.testing.assert_array_equal(found["y"], np.array([0, 0, np.iinfo(np.int32).min], np.int32))
    np.testing.assert_array_equal(found["z"], np.zeros(3, np.int32))


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod_of_floats(fmod: int) -> None:
    finite = (np.abs(LEFT) < 1e30) & (np.abs(RIGHT) < 1e30) & ~np.isnan(LEFT) & (RIGHT != 0)
    compare(f"y = Mod<fmod={fmod}>(a, b)", {"a": LEFT[finite], "b": RIGHT[finite]}, opset=28)


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, 0.5, 0.0, 1.0, 2.5])
def test_pow_of_a_constant(exponent: float) -> None:
    compare("y = Pow(x, e)", {"x": MIXED}, {"e": np.array(exponent, F)}, rtol=1e-5)


def test_pow_broadcasts_a_small_base() -> None:
    compare("y = Pow(x, e)", {"x": normal(3)}, {"e": np.full((2, 1), 2, F)})


def test_pow_of_mixed_types() -> None:
    compare("y = Pow(x, e)", {"x": np.arange(6, dtype=F), "e": np.arange(6, dtype=np.int64)})
    compare("y = Pow(x, e)", {"x": np.arange(6, dtype=np.int32), "e": np.arange(6, dtype=F) % 3})


@pytest.mark.parametrize("name", ["And", "Or", "Xor"])
def test_logic(name: str) -> None:
    a, b = np.array([[True], [False]]), np.array([True, False])
    compare(f"y = {name}(a, b)", {"a": a, "b": b})


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint64])
def test_bit_shift(direction: str, dtype: type) -> None:
    info = np.iinfo(dtype)
    a = np.array([1, 2, 77, info.max, info.min, 0, info.max // 3, info.min // 2], dtype)
    b = np.array([0, 1, 3, 7, 8, 2, 1, max(info.min, -1)], dtype)
    compare(f'y = BitShift<direction="{direction}">(a, b)', {"a": a, "b": b}, opset=28)


def test_broadcasts_of_several_inputs() -> None:
    inputs = {"a": normal(3, 4, 2), "b": normal(4, 1), "c": normal(2), "d": np.array(0.5, F)}
    for name in ("Max", "Min", "Sum", "Mean"):
        compare(f"y = {name}(a, b, c, d)", inputs)
    compare("y = Where(k, a, b)", {"k": np.array([True, False]), "a": normal(3, 1, 2), "b": normal(4, 1)})


def test_clip() -> None:
    for bounds in ("low, high", ", high", "low", ""):
        compare(
            f"y = Clip(x, {bounds})" if bounds else "y = Clip(x)",
            {"x": MIXED},
            {"low": np.array(-1, F), "high": np.array(0.75, F)},
        )
    compare("y = Clip<min=-1.0, max=0.75>(x)", {"x": MIXED}, opset=10)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_parametrized_activations(alpha: float) -> None:
    x = np.concatenate([MIXED, np.linspace(-1e-6, 1e-6, 9, dtype=F)])
    for name in ("Elu", "Celu", "LeakyRelu", "ThresholdedRelu"):
        compare(f"y = {name}<alpha={alpha}>(x)", {"x": x}, rtol=1e-5, atol=1e-7)


def test_prelu() -> None:
    compare("y = PRelu(x, s)", {"x": normal(2, 3, 4, 4)}, {"s": normal(3, 1, 1)})
    compare("y = PRelu(x, s)", {"x": MIXED}, {"s": np.array([0.25], F)})


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    x = np.concatenate([MIXED[np.abs(MIXED) < 1e10], [np.inf, np.nan]]).astype(F)
    compare(f'y = Gelu<approximate="{approximate}">(x)', {"x": x}, opset=20)


def test_mish_against_its_definition() -> None:
    """The formula needs neither tanh nor log, and no argument overflows it."""
    x = np.concatenate([np.linspace(-110, 110, 2001), [3e38, -3e38, 20, 20.0001, 0, -0.0]]).astype(F)
    graph = graph_of(model_of("y = Mish(x)", {"x": x}))
    wide = x.astype(np.float64)
    softplus = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
    check(evaluate(graph, {"x": x})["y"], (wide * np.tanh(softplus)).astype(F), rtol=3e-6, atol=1e-37)
    special = np.array([np.nan, np.inf, -np.inf], F)
    graph = graph_of(model_of("y = Mish(x)", {"x": special}))
    np.testing.assert_array_equal(evaluate(graph, {"x": special})["y"], np.array([np.nan, np.inf, np.nan], F))


@pytest.mark.parametrize("name", ["Sigmoid", "Softplus", "Mish", "Gelu", "HardSwish", "Elu", "Softmax", "LogSoftmax"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_rounded_once(name: str, dtype: type) -> None:
    x = np.concatenate([np.linspace(-30, 30, 301), [6e4, -6e4]]).astype(dtype)
    narrow = graph_of(model_of(f"y = {name}(x)", {"x": x}, opset=22))
    full = graph_of(model_of(f"y = {name}(x)", {"x": x.astype(F)}, opset=22))
    with np.errstate(over="ignore"):
        expected = evaluate(full, {"x": x.astype(F)})["y"].astype(dtype)
    np.testing.assert_array_equal(evaluate(narrow, {"x": x})["y"], expected)


def test_sigmoid_and_softplus_stay_in_range() -> None:
    x = np.array([-3e38, -1000, -100, 100, 1000, 3e38], F)
    graph = graph_of(model_of("y = Sigmoid(x) z = Softplus(x)", {"x": x}, outputs=("y", "z")))
    found = evaluate(graph, {"x": x})
    np.testing.assert_array_equal(found["y"], np.array([0, 0, 0, 1, 1, 1], F))
    np.testing.assert_allclose(found["z"], np.array([0, 0, 3.7835e-44, 100, 1000, 3e38], F), rtol=1e-2)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax(name: str, axis: int) -> None:
    x = normal(3, 4, 5) * F(30)
    x[0, 0, 0] = -np.inf
    compare(f"y = {name}<axis={axis}>(x)", {"x": x})


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_before_opset_13_is_flattened(name: str, axis: int) -> None:
    x = normal(2, 3, 4)
    graph = graph_of(model_of(f"y = {name}<axis={axis}>(x)", {"x": x}, opset=11))
    lead = int(np.prod(x.shape[: axis % 3]))
    rows = x.reshape(lead, -1)
    modern = graph_of(model_of(f"y = {name}<axis=-1>(x)", {"x": rows}, opset=13))
    expected = evaluate(modern, {"x": rows})["y"].reshape(x.shape)
    check(evaluate(graph, {"x": x})["y"], expected)


@pytest.mark.parametrize("to", [np.int8, np.uint8, np.int32, np.int64, np.float16, np.float64, np.bool_])
def test_cast(to: type) -> None:
    from onnx import helper

    number = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    x = np.array([0, 1.5, -1.5, 100.7, -100.7, 127], F)
    if to is np.uint8:
        x = np.abs(x)
    compare(f"y = Cast<to={number}>(x)", {"x": x})
    compare("y = CastLike(x, m)", {"x": x, "m": np.zeros(2, to)})
