"""Small models on which tensor compilers are known to have gone wrong, with the values that are right.

`cases()` yields each as a `Case`. The expected values follow from the definitions of the ONNX operators, computed
here in float64; where the standard leaves a result open, `why` names the rule that Korch follows. Each case stands
for its kind: when one fails, look for the others of the kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

F = np.float32
I = np.int64


@dataclass(frozen=True)
class Case:
    """One model of a few operators; `expected` has the right value of each output."""

    name: str
    why: str
    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    rtol: float = 1e-5
    atol: float = 1e-6


def build(
    body: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    constants: Mapping[str, object] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """A model of one graph: `body` is in ONNX's textual form, types come from the arrays."""

    def declare(arrays: Mapping[str, np.ndarray]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in arrays.items()
        ]

    graph = parser.parse_graph("case () => () {" + body + "}")
    graph.input.extend(declare(inputs))
    graph.output.extend(declare(outputs))
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def case(
    name: str,
    why: str,
    body: str,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    opset: int = 18,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **constants: object,
) -> Case:
    return Case(name, why, build(body, inputs, expected, constants, opset), inputs, expected, rtol, atol)


def cases() -> Iterator[Case]:
    """All cases, in an order from arithmetic to whole graphs."""
    for family in (
        algebra,
        extremes,
        integers,
        conversions,
        softmax,
        normalization,
        emptiness,
        pooling,
        resizing,
        transposed_convolution,
        slicing,
        graph_structure,
    ):
        yield from family()


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(F)


def algebra() -> Iterator[Case]:
    """Identities that hold for finite numbers only."""
    x = np.array([np.nan, np.inf, -np.inf, 1], F)
    undefined = np.array([np.nan, np.nan, np.nan, 0], F)
    yield case(
        "times_zero", "NaN and infinities times 0 are NaN", "y = Mul(x, zero)", {"x": x}, {"y": undefined}, zero=F(0)
    )
    yield case("minus_itself", "infinity minus infinity is NaN", "y = Sub(x, x)", {"x": x}, {"y": undefined})
    yield case(
        "divided_by_itself",
        "0 / 0 and infinity / infinity are NaN",
        "y = Div(x, x)",
        {"x": np.array([np.nan, np.inf, 0, 2], F)},
        {"y": np.array([np.nan, np.nan, np.nan, 1], F)},
    )


def extremes() -> Iterator[Case]:
    """NaN comes through maxima and minima at any position and any vector length."""
    body = """
        greatest = Max(a, b)
        least = Min(a, b)
        positive = Relu(a)
        clipped = Clip(b, zero, six)
        over_all = ReduceMax <keepdims = 0> (a)
    """
    for size in (1, 2, 7, 8, 9, 17):
        a, b = random(size, seed=1), random(size, seed=2)
        a[size // 2] = b[-1] = np.nan
        expected = {
            "greatest": np.where(np.isnan(a) | np.isnan(b), F(np.nan), np.where(a > b, a, b)),
            "least": np.where(np.isnan(a) | np.isnan(b), F(np.nan), np.where(a < b, a, b)),
            "positive": np.where(a < 0, F(0), a),
            "clipped": np.where(b < 0, F(0), np.where(b > 6, F(6), b)),
            "over_all": np.array(np.nan, F),
        }
        why = "the maximum of x86 returns its second operand when one is NaN"
        yield case(f"extremes_of_nan_{size}", why, body, {"a": a, "b": b}, expected, zero=F(0), six=F(6))
    yield case(
        "clip_crossed",
        "a lower bound above the upper one makes everything the upper one",
        "y = Clip(x, low, high)",
        {"x": np.array([-3, 0, 1.5, 9], F)},
        {"y": np.full(4, 1, F)},
        low=F(2),
        high=F(1),
    )


def integers() -> Iterator[Case]:
    """Integer division truncates; the remainder's sign is the divisor's or, with fmod, the dividend's."""
    yield case(
        "division_truncates",
        "integers divide toward zero, neither down nor through floats",
        "y = Div(a, b)",
        {"a": np.array([8, -8, 7, -7], I), "b": np.array([-3, 3, -2, 2], I)},
        {"y": np.array([-2, -2, -3, -3], I)},
    )
    yield case(
        "remainder_signs",
        "Mod follows the divisor, with fmod=1 the dividend",
        "y = Mod(a, b) z = Mod <fmod = 1> (p, q)",
        {"a": np.array([-5, 5], I), "b": np.array([3, -3], I), "p": np.array([-5.5], F), "q": np.array([3], F)},
        {"y": np.array([1, -1], I), "z": np.array([-2.5], F)},
    )


def conversions() -> Iterator[Case]:
    """A float that an integer cannot hold: open in ONNX; here it saturates, and NaN is 0."""
    x = np.array([300, -200, 1e10, np.nan, np.inf, -np.inf, -1.5, 1.5], F)
    dtypes = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "u32": np.uint32, "i64": np.int64}
    expected: dict[str, np.ndarray] = {}
    for name, dtype in dtypes.items():
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        exact = [300, -200, 10**10, 0, high, low, -1, 1]
        expected[name] = np.array([min(max(v, low), high) for v in exact], dtype)
    numbers = {n: helper.np_dtype_to_tensor_dtype(np.dtype(d)) for n, d in dtypes.items()}
    body = "".join(f"{n} = Cast <to = {number}> (x) " for n, number in numbers.items())
    yield case("cast_saturates", "out of range saturates and NaN is 0, on every path alike", body, {"x": x}, expected)


def stable_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        powers = np.exp(wide - wide.max(axis, keepdims=True))
        return (powers / powers.sum(axis, keepdims=True)).astype(F)


def softmax() -> Iterator[Case]:
    x, factor = random(4, 16), F(-1.7197e14)
    yield case(
        "softmax_of_huge_scores",
        "scores recomputed with a fused multiply-add exceed the maximum taken before, and exp overflows",
        "scores = Mul(x, factor) y = Softmax <axis = -1> (scores)",
        {"x": x},
        {"y": stable_softmax(x * factor)},
        factor=factor,
    )
    x = np.array([[1, np.inf, 2], [-np.inf, 0, 1], [-np.inf, -np.inf, -np.inf]], F)
    yield case(
        "softmax_of_infinities",
        "a row with +inf, or of -inf alone, is NaN; one with some -inf is finite",
        "y = Softmax <axis = -1> (x)",
        {"x": x},
        {"y": stable_softmax(x)},
    )
    x = random(2, 3, 4)
    yield case(
        "softmax_before_opset_13",
        "the input is flattened to a matrix at `axis`, which is 1 unless stated",
        "y = Softmax(x)",
        {"x": x},
        {"y": stable_softmax(x.reshape(2, 12)).reshape(2, 3, 4)},
        opset=11,
    )


def normalization() -> Iterator[Case]:
    """The variance as E[x²] - E[x]² loses everything when the mean is large."""
    body = "y = LayerNormalization <axis = -1, epsilon = 1e-5> (x, scale, bias)"
    yield case(
        "layer_norm_of_large_mean",
        "E[x²] - E[x]² cancels",
        body,
        {"x": np.array([[40000, 40001, 40002, 40003]], F)},
        {"y": np.array([[-1.5, -0.5, 0.5, 1.5]], F) / F(np.sqrt(1.25 + 1e-5))},
        rtol=1e-4,
        scale=np.ones(4, F),
        bias=np.zeros(4, F),
    )
    yield case(
        "layer_norm_of_constant",
        "a row of one value gives zeros, never NaN",
        body,
        {"x": np.full((2, 256), 1234, F)},
        {"y": np.zeros((2, 256), F)},
        atol=1e-2,
        scale=np.ones(256, F),
        bias=np.zeros(256, F),
    )
    x = random(1, 3, 8, 8) + F(2000)
    wide = x.astype(np.float64)
    mean, variance = wide.mean((2, 3), keepdims=True), wide.var((2, 3), keepdims=True)
    yield case(
        "instance_norm_of_large_mean",
        "E[x²] - E[x]² cancels",
        "y = InstanceNormalization <epsilon = 1e-5> (x, scale, bias)",
        {"x": x},
        {"y": ((wide - mean) / np.sqrt(variance + 1e-5)).astype(F)},
        rtol=2e-3,
        atol=2e-3,
        scale=np.ones(3, F),
        bias=np.zeros(3, F),
    )


def emptiness() -> Iterator[Case]:
    """Sizes of zero."""
    yield case(
        "matmul_over_nothing",
        "an inner dimension of 0 sums to 0",
        "y = MatMul(a, b)",
        {"a": np.zeros((16, 0), F), "b": np.zeros((0, 16), F)},
        {"y": np.zeros((16, 16), F)},
    )
    yield case(
        "reduction_over_nothing",
        "the sum of nothing is 0, its product 1, its maximum -inf",
        """
        sum = ReduceSum <keepdims = 0> (x, axes)
        product = ReduceProd <keepdims = 0> (x, axes)
        greatest = ReduceMax <keepdims = 0> (x, axes)
        """,
        {"x": np.zeros((0, 4), F)},
        {"sum": np.zeros(4, F), "product": np.ones(4, F), "greatest": np.full(4, -np.inf, F)},
        axes=np.array([0], I),
    )


def pooling() -> Iterator[Case]:
    """Window borders and divisors."""
    yield case(
        "max_pool_dilated_and_padded",
        "dilated taps count from the padding in front",
        "y = MaxPool <kernel_shape = [2], strides = [1], pads = [1, 1], dilations = [2]> (x)",
        {"x": np.array([[[1, 9, 2, 8, 3, 7, 4, 6, 5]]], F)},
        {"y": np.array([[[9, 2, 9, 3, 8, 4, 7, 5, 6]]], F)},
    )
    means = [[1 + 5 / 9, 3 + 1 / 3, 2], [6 + 1 / 3, 11, 6], [4.5, 7.5, 4]]
    yield case(
        "average_pool_beyond_padding",
        "with ceil_mode a window may leave the padding; those cells are not counted",
        """
        y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1,
                         count_include_pad = 1> (x)
        """,
        {"x": np.arange(1, 17, dtype=F).reshape(1, 1, 4, 4)},
        {"y": np.array(means, F).reshape(1, 1, 3, 3)},
        opset=19,
    )
    yield case(
        "average_pool_end_padding",
        "padding at the end alone is counted",
        "y = AveragePool <kernel_shape = [2, 2], pads = [0, 0, 1, 1], count_include_pad = 1> (x)",
        {"x": np.ones((1, 1, 2, 2), F)},
        {"y": np.array([[[[1, 0.5], [0.5, 0.25]]]], F)},
    )


def resizing() -> Iterator[Case]:
    """The scale is the given one, not the ratio of the sizes it leads to."""
    x = np.arange(9, dtype=F).reshape(1, 1, 3, 3)
    body = """
        y = Resize <mode = "nearest", coordinate_transformation_mode = "half_pixel",
                    nearest_mode = "round_prefer_floor"> (x, , scales)
    """
    for scale, places in ((1.5, [0, 0, 1, 2]), (2.5, [0, 0, 0, 1, 1, 2, 2])):
        yield case(
            f"nearest_by_{scale}",
            "coordinates follow from the scale as given",
            body,
            {"x": x},
            {"y": x[:, :, places][..., places]},
            scales=np.array([1, 1, scale, scale], F),
        )


def transposed_convolution() -> Iterator[Case]:
    """How large the output is, and where padding is cut off."""
    x, w = random(1, 1, 4, 4), random(1, 1, 3, 3)
    full = np.zeros((9, 9))
    for i, j in np.ndindex(4, 4):
        full[2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += x[0, 0, i, j].astype(np.float64) * w[0, 0]
    yield case(
        "transposed_same_upper",
        "the output is input * stride; the odd cell is cut off at the end",
        'y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w)',
        {"x": x},
        {"y": full[None, None, :8, :8].astype(F)},
        w=w,
    )
    yield case(
        "transposed_output_padding",
        "the added cells get what falls on them, not zeros",
        "y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (x, w)",
        {"x": x},
        {"y": full[None, None, 1:9, 1:9].astype(F)},
        w=w,
    )


def slicing() -> Iterator[Case]:
    """Backward slices, and bounds far outside."""
    x, limits = np.arange(10, dtype=F), np.iinfo(I)
    for name, start, end, expected in (
        ("backward", 9, 0, x[9:0:-1]),
        ("backward_empty", 0, 5, x[:0]),
        ("backward_to_the_front", -1, limits.min, x[::-1]),
        ("backward_from_the_end", -1, limits.max, x[:0]),
    ):
        yield case(
            f"slice_{name}",
            "bounds are clamped as in Python",
            "y = Slice(x, starts, ends, axes, steps)",
            {"x": x},
            {"y": expected.copy()},
            starts=np.array([start], I),
            ends=np.array([end], I),
            axes=np.array([0], I),
            steps=np.array([-1], I),
        )


def graph_structure() -> Iterator[Case]:
    """Shared weights, outputs in odd places, and chains of shared values."""
    w, x = random(4, 3, 1, 1), random(1, 3, 2, 2)
    scale, bias, mean, variance = (np.random.default_rng(seed).uniform(0.5, 2, 4).astype(F) for seed in range(4))
    product = np.einsum("oi,nihw->nohw", w[:, :, 0, 0].astype(np.float64), x.astype(np.float64))
    s, t, m, v = (p.astype(np.float64).reshape(1, 4, 1, 1) for p in (scale, bias, mean, variance))
    yield case(
        "weight_of_two_users",
        "a normalization folded into the weight must not reach the weight's other user",
        """
        p = Conv(x, w)
        normalized = BatchNormalization(p, scale, bias, mean, variance)
        plain = Conv(x, w)
        """,
        {"x": x},
        {
            "normalized": ((product - m) / np.sqrt(v + 1e-5) * s + t).astype(F),
            "plain": product.astype(F),
        },
        w=w,
        scale=scale,
        bias=bias,
        mean=mean,
        variance=variance,
    )
    x = np.array([2.3], F)
    yield case(
        "input_is_output",
        "an input that is an output, beside one that is constant",
        "y = Identity(x) k = Constant <value = float[1] {0.0}> ()",
        {"x": x},
        {"y": x, "k": np.zeros(1, F)},
    )
    x = random(2, 5)
    doubled = 2 * x.astype(np.float64)
    gate = 1 / (1 + np.exp(-doubled))
    yield case(
        "inner_values_are_outputs",
        "what is fused away for one output may be another output",
        "doubled = Mul(x, two) gate = Sigmoid(doubled) y = Mul(doubled, gate)",
        {"x": x},
        {"doubled": doubled.astype(F), "gate": gate.astype(F), "y": (doubled * gate).astype(F)},
        two=F(2),
    )
    yield shared_chain(30)


def shared_chain(length: int) -> Case:
    """Each value is made of the two before it: Fibonacci-many paths lead through the chain."""
    x = np.array([0.1, 0.2, 0.3], F)
    values = [x.astype(np.float64), x * np.float64(0.5)]
    lines = ["x1 = Mul(x, half)"]
    names = ["x", "x1"]
    for i in range(length):
        older, newer = values[-2:]
        values.append(older + newer if i % 2 else older * newer)
        lines.append(f"v{i} = {'Add' if i % 2 else 'Mul'}({names[-2]}, {names[-1]})")
        names.append(f"v{i}")
    return case(
        f"shared_chain_{length}",
        "inlining shared values takes exponential time",
        "\n".join(lines),
        {"x": x},
        {names[-1]: values[-1].astype(F)},
        rtol=1e-4,
        half=F(0.5),
    )
