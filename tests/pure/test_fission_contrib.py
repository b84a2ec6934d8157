"""The `com.microsoft` operators against formulas in float64, and against ONNX Runtime where it is installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from korch.errors import InvalidModel, UnsupportedModel
from korch.fission import fission
from korch.fission.operators.contrib import CONTRIB
from korch.importers.contrib import RULES
from korch.importers.onnx import import_onnx
from korch.ir.evaluate import evaluate

Arrays = dict[str, np.ndarray]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def whole(*shape: int, dtype: type = np.uint8, seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng((seed, *shape)).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def f32(*values: float) -> np.ndarray:
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def layer_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def rms_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(x / scale) + float(zero), limits.min, limits.max).astype(zero.dtype)


def heads_of(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
    """Over [batch, heads, length, size]; the result has the heads beside each other."""
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3]) + bias
    e = np.exp(scores - scores.max(-1, keepdims=True))
    out = (e / e.sum(-1, keepdims=True)) @ v
    return out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)


@dataclass(frozen=True)
class Case:
    """A graph in ONNX's text, its inputs, and the outputs in float64 (integers: exact)."""

    body: str
    inputs: Mapping[str, np.ndarray]
    expected: Callable[[Arrays], Arrays]
    off_by_one: bool = False  # of quantized results that round a float32 function
    runtime: bool = True  # whether ONNX Runtime has it on the CPU
    initializers: tuple[str, ...] = field(default=())


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def self_attention(a: Arrays, bias: np.ndarray | float = 0.0, heads: int = 2) -> Arrays:
    q, k, v = np.split(a["x"] @ a["w"] + a["b"], 3, 2)
    return {"y": attention(*(heads_of(t, heads) for t in (q, k, v)), bias)}


def causal(n: int) -> np.ndarray:
    return np.where(np.tril(np.ones((n, n))) > 0, 0.0, -1e30)


def rotated(a: Arrays, heads: int, interleaved: bool) -> Arrays:
    x = a["x"].reshape(*a["x"].shape[:2], heads, -1)
    c, s = (a[n][a["p"]][:, :, None] for n in ("c", "s"))
    half = x.shape[3] // 2
    one, two = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    ahead, aside = one * c - two * s, one * s + two * c
    y = np.stack([ahead, aside], -1).reshape(x.shape) if interleaved else np.concatenate([ahead, aside], -1)
    return {"y": y.reshape(a["x"].shape)}


def embedded(a: Arrays) -> Arrays:
    length = a["ids"].shape[1]
    total = a["words"][a["ids"]] + a["places"][np.arange(length)] + a["kinds"][a["segments"]]
    y = layer_norm(total, 1e-12) * a["g"] + a["b"]
    return {"y": y, "count": a["mask"].sum(1).astype(np.int32)}


def qlinear(a: Arrays, name: str) -> np.ndarray:
    return (a[name].astype(np.float64) - float(a[f"{name}_zero"])) * a[f"{name}_scale"]


def conv_of_ones(a: Arrays) -> np.ndarray:
    """A 1x1 convolution."""
    return np.einsum("nchw,oc->nohw", a["x"], a["w"][:, :, 0, 0]) + a["b"][:, None, None]


def dynamic_product(a: Arrays) -> Arrays:
    x = a["x"].astype(np.float32)
    low, high = min(np.float32(0), x.min()), max(np.float32(0), x.max())
    scale = np.float32((high - low) / np.float32(255))
    zero = np.rint(np.clip(-low / scale, 0, 255))
    levels = np.clip(np.rint(x / scale) + zero, 0, 255)
    return {"y": (levels - zero) @ (a["w"].astype(np.float64) - float(a["w_zero"])) * float(scale) * a["w_scale"]}


SKIP = {"x": normal(2, 3, 8), "s": normal(2, 3, 8, seed=1), "g": normal(8), "b": normal(8, seed=2)}
HEADS = {"x": normal(2, 5, 8), "w": normal(8, 24) * 0.4, "b": normal(24)}
MULTI = {"q": normal(2, 3, 8), "k": normal(2, 5, 8, seed=1), "v": normal(2, 5, 12, seed=2)}
LINEAR = {
    "x": whole(2, 3, 4, 4),
    "x_scale": f32(0.03),
    "x_zero": np.array(120, np.uint8),
    "y_scale": f32(0.0517),
    "y_zero": np.array(10, np.uint8),
}
TWO = {**LINEAR, "z": whole(1, 3, 1, 4, seed=3), "z_scale": f32(0.02), "z_zero": np.array(7, np.uint8)}
TURNED = {
    "x": normal(2, 3, 16),
    "p": np.array([[0, 1, 2], [4, 3, 0]], np.int64),
    "c": np.cos(normal(6, 4)),
    "s": np.sin(normal(6, 4)),
}


def multi(a: Arrays, bias: np.ndarray | float = 0.0) -> Arrays:
    return {"y": attention(*(heads_of(a[n], 2) for n in "qkv"), bias)}


CASES = {
    "Gelu": Case("y = com.microsoft.Gelu(x)", {"x": normal(3, 5)}, lambda a: {"y": gelu(a["x"])}),
    "BiasGelu": Case(
        "y = com.microsoft.BiasGelu(x, b)", {"x": normal(3, 5), "b": normal(5)}, lambda a: {"y": gelu(a["x"] + a["b"])}
    ),
    "FastGelu": Case(
        "y = com.microsoft.FastGelu(x, b)",
        {"x": normal(3, 5), "b": normal(5)},
        lambda a: {"y": (x := a["x"] + a["b"]) * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))},
    ),
    "QuickGelu": Case(
        "y = com.microsoft.QuickGelu <alpha = 1.5> (x)",
        {"x": normal(3, 5)},
        lambda a: {"y": a["x"] * sigmoid(1.5 * a["x"])},
    ),
    "SkipLayerNormalization": Case(
        "y, , , t = com.microsoft.SkipLayerNormalization <epsilon = 1e-5> (x, s, g, b)",
        SKIP,
        lambda a: {"y": layer_norm(a["x"] + a["s"], 1e-5) * a["g"] + a["b"], "t": a["x"] + a["s"]},
    ),
    "SkipSimplifiedLayerNormalization": Case(
        "y, , , t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (x, s, g, b)",
        SKIP,
        lambda a: {"y": rms_norm(a["x"] + a["s"] + a["b"], 1e-5) * a["g"], "t": a["x"] + a["s"] + a["b"]},
    ),
    "SimplifiedLayerNormalization": Case(
        "y = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-5> (x, g)",
        {n: SKIP[n] for n in "xg"},
        lambda a: {"y": rms_norm(a["x"], 1e-5) * a["g"]},
    ),
    "EmbedLayerNormalization": Case(
        "y, count = com.microsoft.EmbedLayerNormalization (ids, segments, words, places, kinds, g, b, mask)",
        {
            "ids": np.array([[1, 3, 0], [2, 2, 4]], np.int32),
            "segments": np.array([[0, 0, 1], [1, 0, 0]], np.int32),
            "words": normal(5, 8),
            "places": normal(4, 8),
            "kinds": normal(2, 8),
            "g": normal(8),
            "b": normal(8, seed=2),
            "mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32),
        },
        embedded,
    ),
    "Attention": Case("y = com.microsoft.Attention <num_heads = 2> (x, w, b)", HEADS, self_attention),
    "Attention, causal": Case(
        "y = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, w, b)",
        HEADS,
        lambda a: self_attention(a, causal(5)),
    ),
    "Attention, masked": Case(
        "y = com.microsoft.Attention <num_heads = 2> (x, w, b, m)",
        {**HEADS, "m": np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32)},
        lambda a: self_attention(a, (1 - a["m"][:, None, None]) * -10000.0),
    ),
    "Attention, ends": Case(
        "y = com.microsoft.Attention <num_heads = 2> (x, w, b, m)",
        {**HEADS, "m": np.array([3, 5], np.int32)},
        lambda a: self_attention(a, (np.arange(5) >= a["m"][:, None, None, None]) * -10000.0),
    ),
    "Attention, biased": Case(
        "y = com.microsoft.Attention <num_heads = 2> (x, w, b, , , r)",
        {**HEADS, "r": normal(2, 2, 5, 5)},
        lambda a: self_attention(a, a["r"]),
    ),
    "MultiHeadAttention": Case("y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)", MULTI, multi),
    "MultiHeadAttention, padded": Case(
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , m)",
        {**MULTI, "m": np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32)},
        lambda a: multi(a, (1 - a["m"][:, None, None]) * -10000.0),
    ),
    "MultiHeadAttention, past": Case(
        "y, pk, pv = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , , past, past)",
        {**MULTI, "v": normal(2, 5, 8, seed=2), "past": normal(2, 2, 4, 4)},
        lambda a: {
            "pk": (k := np.concatenate([a["past"], heads_of(a["k"], 2)], 2)),
            "pv": (v := np.concatenate([a["past"], heads_of(a["v"], 2)], 2)),
            "y": attention(heads_of(a["q"], 2), k, v),
        },
    ),
    "RotaryEmbedding": Case(
        "y = com.microsoft.RotaryEmbedding (x, p, c, s)", TURNED, lambda a: rotated(a, 2, interleaved=False)
    ),
    "RotaryEmbedding, interleaved": Case(
        "y = com.microsoft.RotaryEmbedding <interleaved = 1> (x, p, c, s)",
        TURNED,
        lambda a: rotated(a, 2, interleaved=True),
    ),
    "FusedMatMul": Case(
        "y = com.microsoft.FusedMatMul <alpha = 0.5, transA = 1, transB = 1> (x, w)",
        {"x": normal(2, 4, 3), "w": normal(2, 5, 4)},
        lambda a: {"y": 0.5 * a["x"].swapaxes(1, 2) @ a["w"].swapaxes(1, 2)},
    ),
    "FusedConv": Case(
        'y = com.microsoft.FusedConv <activation = "LeakyRelu", activation_params = [0.1]> (x, w, b)',
        {"x": normal(1, 3, 4, 4), "w": normal(2, 3, 1, 1), "b": normal(2)},
        lambda a: {"y": np.where((y := conv_of_ones(a)) < 0, 0.1 * y, y)},
    ),
    "FusedConv, added": Case(
        'y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b, z)',
        {"x": normal(1, 3, 4, 4), "w": normal(2, 3, 1, 1), "b": normal(2), "z": normal(1, 2, 4, 4)},
        lambda a: {"y": np.maximum(conv_of_ones(a) + a["z"], 0)},
    ),
    "QLinearAdd": Case(
        "y = com.microsoft.QLinearAdd (x, x_scale, x_zero, z, z_scale, z_zero, y_scale, y_zero)",
        TWO,
        lambda a: {"y": quantized(qlinear(a, "x") + qlinear(a, "z"), a["y_scale"], a["y_zero"])},
        off_by_one=True,
    ),
    "QLinearMul": Case(
        "y = com.microsoft.QLinearMul (x, x_scale, x_zero, z, z_scale, z_zero, y_scale, y_zero)",
        TWO,
        lambda a: {"y": quantized(qlinear(a, "x") * qlinear(a, "z"), a["y_scale"], a["y_zero"])},
        off_by_one=True,
    ),
    "QLinearSigmoid": Case(
        "y = com.microsoft.QLinearSigmoid (x, x_scale, x_zero, y_scale, y_zero)",
        LINEAR,
        lambda a: {"y": quantized(sigmoid(qlinear(a, "x")), a["y_scale"], a["y_zero"])},
        off_by_one=True,
        initializers=("x_scale", "x_zero", "y_scale", "y_zero"),
    ),
    "QLinearLeakyRelu": Case(
        "y = com.microsoft.QLinearLeakyRelu <alpha = 0.1> (x, x_scale, x_zero, y_scale, y_zero)",
        LINEAR,
        lambda a: {
            "y": quantized(np.where((x := qlinear(a, "x")) < 0, 0.1 * x, x), a["y_scale"], a["y_zero"]),
        },
        off_by_one=True,
        initializers=("x_scale", "x_zero", "y_scale", "y_zero"),
    ),
    "QLinearGlobalAveragePool": Case(
        "y = com.microsoft.QLinearGlobalAveragePool (x, x_scale, x_zero, y_scale, y_zero)",
        LINEAR,
        lambda a: {"y": quantized(qlinear(a, "x").mean((2, 3), keepdims=True), a["y_scale"], a["y_zero"])},
        off_by_one=True,
    ),
    "QLinearAveragePool": Case(
        "y = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2], strides = [2, 2]> "
        "(x, x_scale, x_zero, y_scale, y_zero)",
        LINEAR,
        lambda a: {
            "y": quantized(qlinear(a, "x").reshape(2, 3, 2, 2, 2, 2).mean((3, 5)), a["y_scale"], a["y_zero"]),
        },
        off_by_one=True,
    ),
    "QLinearConcat": Case(
        "y = com.microsoft.QLinearConcat <axis = 1> (y_scale, y_zero, x, x_scale, x_zero, w, z_scale, z_zero)",
        {**TWO, "w": whole(2, 1, 4, 4, seed=9)},
        lambda a: {
            "y": quantized(
                np.concatenate([qlinear(a, "x"), qlinear({**a, "z": a["w"]}, "z")], 1), a["y_scale"], a["y_zero"]
            ),
        },
        off_by_one=True,
        initializers=("x_scale", "x_zero", "y_scale", "y_zero", "z_scale", "z_zero"),
    ),
    "QuantizeLinear": Case(
        "y = com.microsoft.QuantizeLinear (x, y_scale, y_zero)",
        {"x": normal(3, 5), "y_scale": LINEAR["y_scale"], "y_zero": LINEAR["y_zero"]},
        lambda a: {"y": quantized(a["x"], a["y_scale"], a["y_zero"])},
        off_by_one=True,
    ),
    "DequantizeLinear": Case(
        "y = com.microsoft.DequantizeLinear (x, x_scale, x_zero)",
        {n: LINEAR[n] for n in ("x", "x_scale", "x_zero")},
        lambda a: {"y": qlinear(a, "x")},
    ),
    "MatMulIntegerToFloat": Case(
        "y = com.microsoft.MatMulIntegerToFloat (x, w, x_scale, w_scale, x_zero, w_zero, b)",
        {
            "x": whole(3, 4),
            "w": whole(4, 5, dtype=np.int8) // 4,  # ONNX Runtime saturates sums of two products at 16 bits
            "x_scale": f32(0.1),
            "w_scale": f32(0.2),
            "x_zero": np.array(100, np.uint8),
            "w_zero": np.array(-3, np.int8),
            "b": normal(5),
        },
        lambda a: {"y": qlinear(a, "x") @ qlinear(a, "w") + a["b"]},
    ),
    "DynamicQuantizeMatMul": Case(
        "y = com.microsoft.DynamicQuantizeMatMul (x, w, w_scale, w_zero)",
        {"x": normal(3, 4), "w": whole(4, 5, dtype=np.int8), "w_scale": f32(0.2), "w_zero": np.array(0, np.int8)},
        dynamic_product,
    ),
}


def model_of(case: Case) -> onnx.ModelProto:
    graph = parser.parse_graph("g () => () {" + case.body + "}")
    for name, array in case.inputs.items():
        if f"{name}" in {n for node in graph.node for n in node.input}:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            if name in case.initializers:
                graph.initializer.append(numpy_helper.from_array(array, name))
            else:
                graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
    graph.output.extend(onnx.ValueInfoProto(name=n) for node in graph.node for n in node.output if n)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds_of(case: Case) -> Arrays:
    wanted = {i.name for i in model_of(case).graph.input}
    return {n: a for n, a in case.inputs.items() if n in wanted}


def wide(case: Case) -> Arrays:
    """The inputs for the formula."""
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in case.inputs.items()}


def check(found: np.ndarray, expected: np.ndarray, case: Case) -> None:
    assert found.shape == expected.shape
    if case.off_by_one:
        assert found.dtype == expected.dtype
        distance = np.abs(found.astype(int) - expected.astype(int))
        assert distance.max() <= 1 and (distance > 0).mean() < 0.02
        return
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_against_a_formula(name: str) -> None:
    case = CASES[name]
    found = evaluate(fission(import_onnx(model_of(case))), feeds_of(case))
    for output, expected in case.expected(wide(case)).items():
        check(found[output], expected, case)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.runtime])
def test_against_onnx_runtime(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="compares with ONNX Runtime")
    case = CASES[name]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model_of(case).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    found = evaluate(fission(import_onnx(model_of(case))), feeds_of(case))
    for output, expected in zip(names, session.run(names, feeds_of(case)), strict=True):
        check(found[output], expected, case)


def test_every_operator_has_a_rule_and_a_case() -> None:
    names = {function.__name__ for function in CONTRIB}
    assert names == set(RULES) == {name.split(",")[0] for name in CASES}


def test_refusals() -> None:
    def refused(body: str, inputs: Arrays) -> str:
        with pytest.raises(UnsupportedModel) as caught:
            fission(import_onnx(model_of(Case(body, inputs, lambda a: a))))
        return str(caught.value)

    text = refused("y = com.microsoft.NGramRepeatBlock(x)", {"x": normal(2, 3)})
    assert "NGramRepeatBlock operator 'NGramRepeatBlock_0' of domain 'com.microsoft' is not known" in text
    text = refused("y = com.microsoft.Attention <num_heads = 2> (x, w, b, , p)", {**HEADS, "p": normal(2, 2, 2, 5, 4)})
    assert "com.microsoft.Attention in 1 node (Attention_0): past keys" in text


def test_inputs_that_do_not_fit() -> None:
    case = Case("y = com.microsoft.FusedMatMul (x, w)", {"x": normal(2, 3), "w": normal(4, 5)}, lambda a: a)
    with pytest.raises(InvalidModel, match="3 columns meet 4 rows"):
        import_onnx(model_of(case))
