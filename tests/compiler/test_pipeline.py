"""Models through everything: optimize, save, load, run."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import korch
from korch.codegen.target import TARGETS, host_features
from korch.reference import reference_outputs
from korch.verify import compare
from tests.pure.cases import Case, F, I, build, case, cases, random

CASES = list(cases())
H, D, U = np.float16, np.float64, np.uint8


def check(results: dict[str, np.ndarray], case: Case) -> None:
    assert list(results) == list(case.expected)
    for name, expected in case.expected.items():
        found = results[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        if found.dtype.kind in "fV":
            found, expected = found.astype(D), expected.astype(D)
            np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=case.atol, err_msg=name)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_known_case(case: Case, through) -> None:
    check(through(case.model, case.inputs), case)


def awkward() -> Iterator[Case]:
    """Models of unusual form, with the values that NumPy gives in float64."""
    yield from no_work()
    yield from ranks()
    yield from empty()
    yield from dtypes()
    yield from structures()
    yield from opaque()


def no_work() -> Iterator[Case]:
    x = random(2, 3)
    yield case("no_inputs", "all is known beforehand", "y = Add(c, c)", {}, {"y": np.full(3, 4, F)}, c=np.full(3, 2, F))
    yield case(
        "outputs_of_every_origin",
        "an input, a constant, one value by three names, and a computed one beside them",
        """
        a = Identity(x) b = Identity(x) c = Identity(k) d = Identity(k)
        e = Neg(x) f = Identity(e) g = Identity(f)
        """,
        {"x": x},
        {"a": x, "b": x, "c": np.arange(4), "d": np.arange(4), "e": -x, "f": -x, "g": -x},
        k=np.arange(4),
    )
    yield case("unused_input", "it is asked for all the same", "y = Neg(x)", {"x": x, "z": x}, {"y": -x})
    yield case(
        "reshape_alone", "no arithmetic", "y = Reshape(x, s)", {"x": x}, {"y": x.reshape(3, 2)}, s=np.array([3, 2])
    )
    yield case("transpose_alone", "no arithmetic", "y = Transpose <perm = [1, 0]> (x)", {"x": x}, {"y": x.T.copy()})


def ranks() -> Iterator[Case]:
    s, v = np.array(1.5, F), random(5)
    yield case(
        "scalars",
        "rank 0 in, inside and out",
        "y = Mul(s, s) z = ReduceSum <keepdims = 0> (v) dot = MatMul(v, v) w = Add(z, v)",
        {"s": s, "v": v},
        {
            "y": np.array(2.25, F),
            "z": np.array(v.astype(D).sum(), F),
            "dot": np.array((v.astype(D) ** 2).sum(), F),
            "w": (v.astype(D).sum() + v).astype(F),
        },
    )
    x = random(2, 1, 3, 1, 2, 1, 2)
    total = x.astype(D).sum((1, 4), keepdims=True) * np.ones((1, 2, 1, 3, 1, 1, 1))
    yield case(
        "rank_seven",
        "more axes than loops have names for",
        "t = ReduceSum(x, axes) e = Expand(t, shape) y = Transpose <perm = [6, 2, 0, 4, 1, 3, 5]> (e)",
        {"x": x},
        {"y": total.transpose(6, 2, 0, 4, 1, 3, 5).astype(F)},
        axes=np.array([1, 4]),
        shape=np.array([2, 2, 3, 3, 1, 1, 2]),
    )


def empty() -> Iterator[Case]:
    nothing, x = np.zeros((0, 4), F), random(3, 4)
    yield case(
        "empty_elementwise",
        "no element, no work",
        "y = Exp(x) z = Concat <axis = 0> (x, y)",
        {"x": nothing},
        {"y": nothing, "z": nothing},
    )
    yield case(
        "empty_among_others",
        "an empty part of a concatenation, an empty slice",
        "y = Concat <axis = 0> (a, x, a) z = Slice(x, three, three)",
        {"a": nothing, "x": x},
        {"y": x, "z": nothing},
        three=np.array([3]),
    )
    yield case(
        "empty_batch",
        "a convolution and a product of no image",
        "c = Conv(x, w) f = Flatten(c) y = MatMul(f, m)",
        {"x": np.zeros((0, 2, 4, 4), F)},
        {"c": np.zeros((0, 3, 2, 2), F), "y": np.zeros((0, 5), F)},
        w=random(3, 2, 3, 3),
        m=random(12, 5),
    )


def dtypes() -> Iterator[Case]:
    least, most = np.iinfo(I).min, np.iinfo(I).max
    a, b = np.array([most, least, -7, 5, 0], I), np.array([1, -1, 2, -3, 9], I)
    with np.errstate(over="ignore"):
        yield case(
            "int64",
            "wraps around; nothing passes through a float",
            "s = Add(a, b) d = Sub(a, b) p = Mul(a, b) g = Greater(a, b) m = ReduceMax <keepdims = 0> (a)",
            {"a": a, "b": b},
            {"s": a + b, "d": a - b, "p": a * b, "g": a > b, "m": np.array(most, I)},
        )
    p, q = np.array([True, True, False, False]), np.array([True, False, True, False])
    yield case(
        "bool",
        "logic, and a choice by it",
        "n = Not(p) o = Or(p, q) x = Xor(p, q) w = Where(p, u, v) f = Cast <to = 1> (q)",
        {"p": p, "q": q, "u": np.arange(4, dtype=F), "v": np.full(4, -1, F)},
        {"n": ~p, "o": p | q, "x": p ^ q, "w": np.array([0, 1, -1, -1], F), "f": q.astype(F)},
    )
    u, v = np.array([250, 3, 0, 255], U), np.array([10, 5, 1, 255], U)
    yield case(
        "uint8",
        "wraps around at 256; widens where it is cast",
        "s = Add(u, v) d = Sub(u, v) m = Max(u, v) f = Cast <to = 1> (u)",
        {"u": u, "v": v},
        {"s": u + v, "d": u - v, "m": np.maximum(u, v), "f": u.astype(F)},
    )
    x = random(4, 32)
    centred = x.astype(H).astype(D)
    yield case(
        "float16",
        "a storage format: the arithmetic is float32",
        "y = Mul(x, x) z = Softmax <axis = -1> (x) s = ReduceMean <keepdims = 0> (x, axes)",
        {"x": x.astype(H)},
        {
            "y": (centred**2).astype(H),
            "z": (np.exp(centred) / np.exp(centred).sum(-1, keepdims=True)).astype(H),
            "s": centred.mean(1).astype(H),
        },
        rtol=2e-3,
        atol=1e-4,
        axes=np.array([1]),
    )
    yield case(
        "float16_overflow",
        "beyond 65504 is infinite, and a denormal stays one",
        "y = Mul(x, x)",
        {"x": np.array([300, -300, 255.9, 1e-3, 6e-8, np.nan], H)},
        {"y": np.array([np.inf, np.inf, 65472, 1e-6, 0, np.nan], H)},
        rtol=2e-3,
        atol=6e-8,
    )
    m, n = random(8, 16, seed=1), random(16, 8, seed=2)
    yield case(
        "float16_matmul",
        "sums in float32",
        "y = MatMul(m, n)",
        {"m": m.astype(H), "n": n.astype(H)},
        {"y": (m.astype(H).astype(D) @ n.astype(H).astype(D)).astype(H)},
        rtol=2e-3,
        atol=2e-3,
    )
    yield case(
        "bfloat16",
        "a storage format: the arithmetic is float32",
        "y = Add(x, x) z = Exp(x)",
        {"x": x.astype(ml_dtypes.bfloat16)},
        {
            "y": (2 * x.astype(ml_dtypes.bfloat16).astype(D)).astype(ml_dtypes.bfloat16),
            "z": np.exp(x.astype(ml_dtypes.bfloat16).astype(D)).astype(ml_dtypes.bfloat16),
        },
        rtol=1e-2,
    )
    wide = np.random.default_rng(5).standard_normal((6, 9))
    yield case(
        "float64",
        "nothing passes through float32",
        "e = Exp(x) t = Tanh(x) s = ReduceSum <keepdims = 0> (x) y = MatMul(x, w)",
        {"x": wide},
        {
            "e": np.exp(wide),
            "t": np.tanh(wide),
            "s": np.array(wide.sum()),
            "y": wide @ np.arange(18.0).reshape(9, 2),
        },
        rtol=1e-13,
        atol=1e-13,
        w=np.arange(18.0).reshape(9, 2),
    )
    i, j = np.array([[100, -128], [127, 5]], np.int8), np.array([[127, 1], [-128, 2]], np.int8)
    yield case(
        "int8_product",
        "sums in int32",
        "y = MatMulInteger(i, j)",
        {"i": i, "j": j},
        {"y": i.astype(np.int32) @ j.astype(np.int32)},
    )


def structures() -> Iterator[Case]:
    x = random(7, 7)
    square = x.astype(D) @ x.astype(D).T
    yield case(
        "one_input_twice",
        "both operands of a product, one transposed",
        "t = Transpose <perm = [1, 0]> (x) y = MatMul(x, t) z = Add(y, t)",
        {"x": x},
        {"t": x.T.copy(), "y": square.astype(F), "z": (square + x.T).astype(F)},
    )
    x = random(2, 3, 6, 5)
    w = random(4, 3, 3, 3)
    c = reference_outputs(build("c = Conv(x, w)", {"x": x}, {"c": np.zeros((2, 4, 4, 3), F)}, {"w": w}), {"x": x})["c"]
    yield case(
        "several_layouts_of_one_value",
        "a convolution's result as it is, transposed, flat and reduced",
        """
        c = Conv(x, w) last = Transpose <perm = [0, 2, 3, 1]> (c) flat = Flatten(c)
        mean = GlobalAveragePool(c) r = Relu(last)
        """,
        {"x": x},
        {
            "c": c,
            "last": c.transpose(0, 2, 3, 1).copy(),
            "flat": c.reshape(2, -1),
            "mean": c.astype(D).mean((2, 3), keepdims=True).astype(F),
            "r": np.maximum(c.transpose(0, 2, 3, 1), 0),
        },
        rtol=1e-4,
        w=w,
    )
    x = np.linspace(-3, 3, 1_000_003).astype(F)
    yield case(
        "long_vector",
        "shared among threads, with a remainder",
        "y = Tanh(x) s = ReduceMax <keepdims = 0> (y)",
        {"x": x},
        {"y": np.tanh(x.astype(D)).astype(F), "s": np.array(np.tanh(D(3)), F)},
    )
    x = random(3, 8)
    yield case(
        "split_and_joined",
        "parts that are written into one output",
        "a, b = Split <axis = 1, num_outputs = 2> (x) n = Neg(a) e = Abs(b) y = Concat <axis = 1> (e, n, x)",
        {"x": x},
        {"y": np.concatenate([abs(x[:, 4:]), -x[:, :4], x], 1), "n": -x[:, :4]},
    )
    names = 'an "odd" */ name\\', "π: 1/2;\t%s", "double"
    graph = helper.make_graph(
        [
            helper.make_node("Neg", [names[0]], [names[1]], name="*/ #error \n"),
            helper.make_node("Exp", [names[1]], [names[2]], name=""),
        ],
        "/* g",
        [helper.make_tensor_value_info(names[0], TensorProto.FLOAT, (3, 8))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, (3, 8)) for n in names[1:]],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    why = "names are data, in C as well"
    yield Case("odd_names", why, model, {names[0]: x}, {names[1]: -x, names[2]: np.exp(-x.astype(D)).astype(F)})
    lines, value = ["v0 = Mul(x, small)"], x.astype(D) * 0.999
    for k in range(1, 400):
        lines.append(f"v{k} = {('Add', 'Mul')[k % 2]}(v{k - 1}, {('small', 'x')[k % 3 == 0]})")
        operand = x.astype(D) if k % 3 == 0 else 0.999
        value = value * operand if k % 2 else value + operand
    yield case("long_chain", "no recursion runs out", "\n".join(lines), {"x": x}, {"v399": value.astype(F)}, rtol=1e-4,
               small=F(0.999))  # fmt: skip


def opaque() -> Iterator[Case]:
    x = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], F)
    yield case(
        "top_k",
        "two outputs of one kernel, and users of both",
        "v, i = TopK <axis = 1> (x, k) y = Neg(v) g = GatherElements <axis = 1> (x, i)",
        {"x": x},
        {
            "v": np.array([[5, 4], [9, 6]], F),
            "i": np.array([[4, 2], [0, 2]]),
            "y": -np.array([[5, 4], [9, 6]], F),
            "g": np.array([[5, 4], [9, 6]], F),
        },
        k=np.array([2]),
    )
    yield case(
        "one_output_of_two",
        "the other is nobody's",
        "v, i = TopK <axis = 1> (x, k) y = Cast <to = 1> (i)",
        {"x": x},
        {"y": np.array([[4], [0]], F)},
        k=np.array([1]),
    )
    yield case(
        "cumulative_and_scattered",
        "between elementwise work",
        "n = Neg(x) c = CumSum(n, one) y = Abs(c) s = ScatterElements <axis = 1> (y, i, u) z = Neg(s)",
        {"x": x, "i": np.array([[0], [-1]]), "u": np.array([[100], [200]], F)},
        {
            "y": x.cumsum(1),
            "z": -np.array([[100, 4, 8, 9, 14], [9, 11, 17, 22, 200]], F),
        },
        one=np.array(1),
    )


AWKWARD = list(awkward())


@pytest.mark.parametrize("case", AWKWARD, ids=[c.name for c in AWKWARD])
def test_awkward_model(case: Case, through) -> None:
    check(through(case.model, case.inputs), case)


def small_network() -> onnx.ModelProto:
    """Convolution, normalization, pooling, attention and resizing, at sizes that no vector divides."""
    w = {
        "w": random(10, 3, 3, 3) / 3, "g": random(10, 1, 3, 3) / 3, "p": random(13, 10, 1, 1) / 3, "b": random(13),
        "q": random(13, 13, seed=1) / 3, "k": random(13, 13, seed=2) / 3, "v": random(13, 13, seed=3) / 3,
        "scale": random(13), "bias": random(13), "rows": np.array([1, 13, -1]), "half": F(13**-0.5),
        "images": np.array([1, 13, 9, 7]), "sizes": np.array([1, 1, 1.5, 2], F),
    }  # fmt: skip
    body = """
        c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
        s = Sigmoid(c) silu = Mul(c, s)
        d = Conv <group = 10, pads = [1, 1, 1, 1]> (silu, g)
        r = Relu(d) e = Conv(r, p, b) m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (e)
        sum = Add(e, m) f = Reshape(sum, rows) t = Transpose <perm = [0, 2, 1]> (f)
        n = LayerNormalization(t, scale, bias)
        queries = MatMul(n, q) keys = MatMul(n, k) values = MatMul(n, v)
        kt = Transpose <perm = [0, 2, 1]> (keys) scores = MatMul(queries, kt) scaled = Mul(scores, half)
        weights = Softmax <axis = -1> (scaled) mixed = MatMul(weights, values)
        res = Add(mixed, t) back = Transpose <perm = [0, 2, 1]> (res) image = Reshape(back, images)
        y = Resize <mode = "linear"> (image, , sizes)
    """
    return build(body, {"x": np.zeros((1, 3, 17, 13), F)}, {"y": np.zeros((1, 13, 13, 14), F)}, w)


RUNNABLE = [t.name for t in TARGETS if host_features().issuperset(t.features)]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_small_network(target: str, numerics: str, through) -> None:
    model = small_network()
    inputs = {"x": random(1, 3, 17, 13, seed=4)}
    got = through(model, inputs, target=target, numerics=numerics)
    verified = compare(got, reference_outputs(model, inputs))
    assert verified.ok, verified


def test_measuring_more_does_not_change_the_result(through) -> None:
    """The best plan of a few seconds of search, in place of the first good one."""
    model = small_network()
    inputs = {"x": random(1, 3, 17, 13, seed=4)}
    verified = compare(through(model, inputs, budget=15), reference_outputs(model, inputs))
    assert verified.ok, verified


def test_results_do_not_depend_on_the_number_of_threads(cache, tmp_path) -> None:
    model = korch.optimize(small_network(), budget=0, threads=2)
    inputs = {"x": random(1, 3, 17, 13, seed=4)}
    results = [model.run(inputs, threads=n)["y"] for n in (1, 2, 3, 7)]
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_what_is_optimized_twice_is_measured_once(cache, tmp_path) -> None:
    """The second time everything comes from the cache, and gives the same plan and the same file."""
    files = [tmp_path / "a.korch", tmp_path / "b.korch"]
    for file in files:
        korch.optimize(small_network(), budget=0).save(file)
    assert files[0].read_bytes() == files[1].read_bytes()
