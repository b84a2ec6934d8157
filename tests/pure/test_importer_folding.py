"""What is known at import becomes a constant, with the right value, and costs no memory that it need not."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, parser
from onnx import numpy_helper as arrays

from korch.errors import InvalidModel
from korch.importers.folding import cast_array, softmax_array, storage
from korch.importers.onnx import import_onnx
from korch.importers.operators import OperatorGraph


def model(text: str, opset: int = 17, **initializers: np.ndarray) -> ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    proto.graph.initializer.extend(arrays.from_array(a, n) for n, a in initializers.items())
    return proto


def kinds(graph: OperatorGraph) -> list[str]:
    return [o.op_type for o in graph.operators]


def folded(text: str, opset: int = 17, **initializers: np.ndarray) -> np.ndarray:
    """The only output of a model that folds away."""
    graph = import_onnx(model(text, opset, **initializers))
    assert kinds(graph) == []
    [(_, value)] = graph.outputs
    assert str(graph.types[value].dtype) == graph.constants[value].dtype.name
    return graph.constants[value]


# --- casts


@pytest.mark.parametrize("source", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_float_to_integer_saturates_and_nan_gives_0(source: type, target: str) -> None:
    info = np.iinfo(target)
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.9, -0.9, 1.5, -1.5, 3e38, -3e38], np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # float16 cannot hold 3e38
        x = values.astype(source)
    low = -1 if info.min < 0 else 0
    expected = [0, info.max, info.min, 0, 0, 0, 1, low, info.max, info.min]
    np.testing.assert_array_equal(cast_array(x, np.dtype(target)), np.array(expected, target), strict=True)


@pytest.mark.parametrize("target", ["int32", "uint32", "int64", "uint64"])
def test_float64_to_integer_at_the_limits(target: str) -> None:
    info = np.iinfo(target)
    limit = float(info.max)  # rounds up for 64 bits
    below = np.nextafter(limit, 0)
    x = np.array([limit, below, float(info.min), np.nextafter(float(info.min), -np.inf)])
    expected = [info.max, int(below), info.min, info.min]
    np.testing.assert_array_equal(cast_array(x, np.dtype(target)), np.array(expected, target), strict=True)


@given(st.floats(width=32), st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"]))
def test_float_to_integer_by_python_integers(value: float, target: str) -> None:
    info = np.iinfo(target)
    exact = 0 if np.isnan(value) else max(info.min, min(info.max, int(np.clip(value, -1e30, 1e30))))
    assert int(cast_array(np.float32(value).reshape(()), np.dtype(target))) == exact


def test_other_casts_are_numpys() -> None:
    assert cast_array(np.array([300, -1]), np.dtype(np.uint8)).tolist() == [44, 255]
    assert cast_array(np.array([np.nan, 0.0, -0.0, 0.1]), np.dtype(bool)).tolist() == [True, False, False, True]
    assert cast_array(np.array([1e30], np.float32), np.dtype(np.float16)).tolist() == [np.inf]
    assert cast_array(np.array([True]), np.dtype(np.float32)).tolist() == [1.0]
    assert cast_array(np.array([2.5], ml_dtypes.bfloat16), np.dtype(bool)).tolist() == [True]


def test_a_cast_node_saturates() -> None:
    x = np.array([np.nan, 1e20, -1e20, np.inf, -7.9], np.float32)
    y = folded("g () => (int32[5] y) { y = Cast<to = 6>(x) }", x=x)
    assert y.tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -7]


def test_castlike_needs_only_the_type_of_its_second_input() -> None:
    text = "g (uint8[n] x) => (uint8[n] y) { c = Constant<value_float = 300.0>() d = CastLike(c, x) y = Max(d, x) }"
    graph = import_onnx(model(text), {"x": (4,)})
    assert kinds(graph) == ["Max"]
    assert [a.tolist() for a in graph.constants.values()] == [255]


def test_integer_power_with_a_fraction_saturates() -> None:
    y = folded(
        "g () => (int32[3] y) { y = Pow(x, e) }",
        x=np.array([10**5, -4, 9], np.int32),
        e=np.array([3.0, 0.5, 0.5], np.float32),
    )
    assert y.tolist() == [2**31 - 1, 0, 3]


# --- softmax


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("opset", [9, 11, 12])
def test_old_softmax_works_on_a_matrix(axis: int, opset: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    y = folded(f"g () => (float[2, 3, 4] y) {{ y = Softmax<axis = {axis % 3}>(x) }}", opset, x=x)
    flat = x.astype(np.float64).reshape(int(np.prod(x.shape[: axis % 3])), -1)
    expected = np.exp(flat) / np.exp(flat).sum(1, keepdims=True)
    np.testing.assert_allclose(y, expected.reshape(x.shape), rtol=1e-6)


@pytest.mark.parametrize("opset", [12, 13])
def test_default_axis_of_softmax(opset: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    y = folded("g () => (float[2, 3, 4] y) { y = Softmax(x) }", opset, x=x)
    axes = (1, 2) if opset < 13 else (2,)
    expected = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(axes, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_log_softmax_does_not_underflow() -> None:
    y = softmax_array("LogSoftmax", 13, np.array([[0, 1000]], np.float32), None)
    np.testing.assert_array_equal(y, [[-1000, 0]])


def test_softmax_of_large_numbers() -> None:
    y = softmax_array("Softmax", 13, np.array([[1000, 1000, -np.inf]], np.float32), -1)
    np.testing.assert_array_equal(y, [[0.5, 0.5, 0]])


def test_hardmax_takes_the_first_of_equals() -> None:
    x = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    np.testing.assert_array_equal(softmax_array("Hardmax", 13, x, -1), [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(softmax_array("Hardmax", 11, x, 0), [[0, 1, 0], [0, 0, 0]])


def test_softmax_of_nothing() -> None:
    assert softmax_array("Softmax", 11, np.zeros((0, 3), np.float32), 1).shape == (0, 3)


# --- constants in all forms


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value = float[2] {1.5, 2.5}", np.array([1.5, 2.5], np.float32)),
        ("value = int64 {7}", np.array(7)),
        ("value_float = 1.5", np.array(1.5, np.float32)),
        ("value_floats = [1.5, 2.0]", np.array([1.5, 2.0], np.float32)),
        ("value_int = 3", np.array(3)),
        ("value_ints = [3, 4]", np.array([3, 4])),
    ],
)
def test_constant_nodes(attribute: str, expected: np.ndarray) -> None:
    graph = import_onnx(model(f"g () => (float[] y) {{ y = Constant<{attribute}>() }}"))
    [(_, value)] = graph.outputs
    np.testing.assert_array_equal(graph.constants[value], expected, strict=True)


SPARSE = {"linear": np.array([1, 5]), "coordinates": np.array([[0, 1], [1, 2]])}


def sparse_tensor(indices: np.ndarray, name: str = "") -> onnx.SparseTensorProto:
    values = arrays.from_array(np.array([2, 3], np.float32), name)
    return helper.make_sparse_tensor(values, arrays.from_array(indices, name + "/indices"), (2, 3))


@pytest.mark.parametrize("form", SPARSE)
def test_sparse_constants_become_dense(form: str) -> None:
    proto = model("g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, c) }")
    node = helper.make_node("Constant", [], ["c"], sparse_value=sparse_tensor(SPARSE[form]))
    proto.graph.node.insert(0, node)
    np.testing.assert_array_equal(import_onnx(proto).constants["c"], [[0, 2, 0], [0, 0, 3]])


@pytest.mark.parametrize("form", SPARSE)
def test_sparse_initializers_become_dense(form: str) -> None:
    proto = model("g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }")
    proto.graph.sparse_initializer.append(sparse_tensor(SPARSE[form], "w"))
    np.testing.assert_array_equal(import_onnx(proto).constants["w"], [[0, 2, 0], [0, 0, 3]])


def test_bfloat16_and_read_only() -> None:
    w = np.array([1.5, -0.0], ml_dtypes.bfloat16)
    graph = import_onnx(model("g (bfloat16[2] x) => (bfloat16[2] y) { y = Add(x, w) }", w=w))
    assert graph.constants["w"].dtype == w.dtype and graph.constants["w"].tobytes() == w.tobytes()
    assert not graph.constants["w"].flags.writeable


def test_string_constants_that_nothing_uses_do_not_matter() -> None:
    text = 'g (float[2] x) => (float[2] y) { s = Constant<value_string = "dead">() y = Relu(x) }'
    assert import_onnx(model(text)).constants == {}


def test_exact_float_attributes() -> None:
    graph = import_onnx(model("g (float[2] x) => (float[2] y) { y = LeakyRelu<alpha = 0.1>(x) }"))
    assert graph.operators[0].attributes == {"alpha": float(np.float32(0.1))}


# --- arithmetic on shapes


def test_flatten_by_shape_gather_concat() -> None:
    text = """g (float[n, c, h, w] x) => (float[n, k] y) {
        s = Shape(x) zero = Constant<value_int = 0>() d = Gather(s, zero)
        axes = Constant<value_ints = [0]>() u = Unsqueeze(d, axes)
        rest = Constant<value_ints = [-1]>() t = Concat<axis = 0>(u, rest) y = Reshape(x, t) }"""
    graph = import_onnx(model(text), {"x": (2, 3, 4, 5)})
    assert kinds(graph) == ["Reshape"]
    assert str(graph.types["y"]) == "float32[2,60]"
    np.testing.assert_array_equal(graph.constants[graph.operators[0].inputs[1]], [2, -1], strict=True)


def test_resize_to_the_size_of_another() -> None:
    text = """g (float[1, 2, h, w] x, float[1, 2, p, q] z) => (float[1, 2, p, q] y) {
        s = Shape(z) two = Constant<value_ints = [2]>() four = Constant<value_ints = [4]>() size = Slice(s, two, four)
        t = Shape(x) zero = Constant<value_ints = [0]>() front = Slice(t, zero, two)
        sizes = Concat<axis = 0>(front, size) y = Resize<mode = "nearest">(x, , , sizes) }"""
    graph = import_onnx(model(text), {"x": (1, 2, 3, 4), "z": (1, 2, 6, 10)})
    assert kinds(graph) == ["Resize"]
    assert str(graph.types["y"]) == "float32[1,2,6,10]"
    assert graph.operators[0].inputs[1:3] == ("", "")
    assert graph.constants[graph.operators[0].inputs[3]].tolist() == [1, 2, 6, 10]


def test_expand_by_where_equal_constant_of_shape() -> None:
    text = """g (float[n, 3] x, float[1, 3] z) => (float[n, 3] y) {
        s = Shape(x) k = Shape(s) ones = ConstantOfShape<value = int64[1] {1}>(k) minus = Constant<value_int = -1>()
        m = Mul(ones, minus) e = Equal(s, m) t = Where(e, ones, s) y = Expand(z, t) }"""
    graph = import_onnx(model(text), {"x": (4, 3)})
    assert kinds(graph) == ["Expand"]
    assert graph.constants[graph.operators[0].inputs[1]].tolist() == [4, 3]


def test_range_and_nonzero_of_shapes() -> None:
    text = """g (float[n] x) => (int64[k] r, int64[1, m] z) {
        s = Size(x) zero = Constant<value_int = 0>() one = Constant<value_int = 1>() r = Range(zero, s, one)
        two = Constant<value_int = 2>() odd = Mod(r, two) z = NonZero(odd) }"""
    graph = import_onnx(model(text), {"x": (5,)})
    assert kinds(graph) == []
    assert graph.constants["r"].tolist() == [0, 1, 2, 3, 4]
    assert graph.constants["z"].tolist() == [[1, 3]]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("", [2, 3, 4]),
        ("<start = 1>", [3, 4]),
        ("<end = -1>", [2, 3]),
        ("<start = -2, end = 2>", [3]),
        ("<start = 5>", []),
    ],
)
def test_slices_of_shapes(attributes: str, expected: list[int]) -> None:
    graph = import_onnx(model(f"g (float[a, b, c] x) => (int64[k] y) {{ y = Shape{attributes}(x) }}"), {"x": (2, 3, 4)})
    np.testing.assert_array_equal(graph.constants["y"], np.array(expected, np.int64), strict=True)


def test_shape_of_a_scalar_and_of_nothing() -> None:
    text = "g (float s, float[n] x) => (int64[0] a, int64 b, int64 c) { a = Shape(s) b = Size(s) c = Size(x) }"
    graph = import_onnx(model(text), {"x": (0,)})
    assert [graph.constants[v].tolist() for _, v in graph.outputs] == [[], 1, 0]


def test_the_known_part_of_a_shape_that_depends_on_data() -> None:
    text = """g (float[n, 3] x) => (int64[1] y) {
        i = NonZero(x) t = Transpose(i) y = Shape<start = 1>(t) }"""
    graph = import_onnx(model(text), {"x": (4, 3)})
    assert kinds(graph) == []
    assert graph.constants["y"].tolist() == [2]


@pytest.mark.parametrize(
    ("opset", "nodes"),
    [
        (
            9,
            "u = Unsqueeze<axes = [0]>(s) v = Slice<starts = [0], ends = [1], axes = [1]>(u) "
            "y = Squeeze<axes = [0]>(v)",
        ),
        (9, "a, y = Split<axis = 0, split = [1, 1]>(s)"),
        (9, "y = Pad<pads = [0, 1]>(f) f = Cast<to = 1>(s)"),
        (9, "y = ReduceSum<axes = [0]>(f) f = Cast<to = 1>(s)"),
        (9, "y = Clip<min = 4.0, max = 5.0>(f) f = Cast<to = 1>(s)"),
        (9, "y, i = TopK<axis = 0, k = 1>(f) f = Cast<to = 1>(s)"),
        (10, "y, i = TopK<axis = 0>(f, k) f = Cast<to = 1>(s) k = Constant<value = int64[1] {1}>()"),
    ],
)
def test_older_forms_of_operators(opset: int, nodes: str) -> None:
    graph = import_onnx(model(f"g (float[3, 4] x) => (float[1] y) {{ s = Shape(x) {nodes} }}", opset))
    expected = {"Unsqueeze": [3], "Split": [4], "Pad": [3, 4, 0], "ReduceSum": [7], "Clip": [4, 4], "TopK": [4]}
    name = next(k for k in expected if k in nodes)
    assert kinds(graph) == []
    assert graph.constants[graph.outputs[0][1]].tolist() == expected[name]


# --- what is not folded


def test_random_numbers_stay() -> None:
    text = """g () => (float[2] a, float[2] b) {
        a = RandomNormal<shape = [2]>() c = Constant<value_floats = [1.0, 2.0]>() b = RandomUniformLike(c) }"""
    assert kinds(import_onnx(model(text))) == ["RandomNormal", "RandomUniformLike"]


@pytest.mark.parametrize(("training", "expected"), [(True, ["Dropout"]), (False, [])])
def test_dropout_of_constants(training: bool, expected: list[str]) -> None:
    proto = model("g () => (float[4] y) { y = Dropout(x, r, t) }", x=np.ones(4, np.float32))
    proto.graph.initializer.extend(
        [arrays.from_array(np.array(0.5, np.float32), "r"), arrays.from_array(np.array(training), "t")]
    )
    assert kinds(import_onnx(proto)) == expected


def test_slow_operators_stay_unless_small() -> None:
    text = 'g () => (float[1, 1, n, n] y) { y = Resize<mode = "linear">(x, , s) }'
    x = np.ones((1, 1, 20, 20), np.float32)
    large = import_onnx(model(text, x=x, s=np.array([1, 1, 2, 2], np.float32)))
    assert kinds(large) == ["Resize"] and str(large.types["y"]) == "float32[1,1,40,40]"
    assert kinds(import_onnx(model(text, x=x[:, :, :2, :2], s=np.array([1, 1, 2, 2], np.float32)))) == []


def test_resize_of_operator_set_10_stays() -> None:
    text = "g () => (float[4] y) { y = Resize(x, s) }"
    graph = import_onnx(model(text, 10, x=np.ones(2, np.float32), s=np.array([2], np.float32)))
    assert kinds(graph) == ["Resize"] and str(graph.types["y"]) == "float32[4]"


def test_a_large_result_of_small_inputs_stays() -> None:
    x = np.ones((1, 9000), np.float32)
    graph = import_onnx(model("g () => (float[9000, 9000] y) { t = Transpose(x) y = MatMul(t, x) }", x=x))
    assert kinds(graph) == ["MatMul"]


def test_a_large_result_that_is_no_larger_than_its_input_is_folded() -> None:
    x = np.zeros((4200, 4200), np.float32)
    x[0, 1] = 1
    y = folded("g () => (float[4200, 4200] y) { y = Transpose(x) }", x=x)
    assert y[1, 0] == 1 and y.nbytes > 64 << 20


def test_a_huge_constant_of_one_value_costs_nothing() -> None:
    text = """g () => (float[k] a, float[1, 100000, 100000] b, float16[100000, 100000] c) {
        w = ConstantOfShape<value = float[1] {-0.0}>(s) one = Constant<value_float = 1.0>() v = Sub(w, one)
        flat = Constant<value_ints = [-1]>() a = Reshape(v, flat) zero = Constant<value_ints = [0]>()
        b = Unsqueeze(w, zero) t = Transpose(v) c = Cast<to = 10>(t) }"""
    graph = import_onnx(model(text, s=np.array([100000, 100000])))
    assert kinds(graph) == []
    found = {name: graph.constants[v] for name, v in graph.outputs}
    assert [a.shape for a in found.values()] == [(10**10,), (1, 10**5, 10**5), (10**5, 10**5)]
    assert [storage(a) for a in found.values()] == [4, 4, 2]
    assert [float(a[(0,) * a.ndim]) for a in found.values()] == [-1, 0, -1]
    assert np.signbit(found["b"][0, 0, 0])


def test_rows_that_repeat_are_computed_once() -> None:
    row = np.arange(5, dtype=np.float32)
    text = "g () => (float[100000000, 5] y) { e = Expand(x, s) y = Exp(e) }"
    y = folded(text, x=row, s=np.array([10**8, 5]))
    assert y.shape == (10**8, 5) and storage(y) == 20
    np.testing.assert_allclose(y[12345], np.exp(row), rtol=1e-6)


def test_expand_and_tile_of_nothing() -> None:
    text = "g () => (float[0, 3] a, float[2, 0] b) { a = Expand(x, s) b = Tile(e, r) e = ConstantOfShape(z) }"
    graph = import_onnx(
        model(text, x=np.ones((1, 3), np.float32), s=np.array([0, 3]), r=np.array([2, 1]), z=np.array([1, 0]))
    )
    assert [graph.constants[v].shape for _, v in graph.outputs] == [(0, 3), (2, 0)]


def test_float8_weights_are_dequantized() -> None:
    proto = model("g (float[2] x) => (float[2] y) { w = DequantizeLinear(q, s) y = Mul(x, w) }", 19)
    q = helper.make_tensor("q", TensorProto.FLOAT8E4M3FN, [2], [1.5, -2.0])
    proto.graph.initializer.extend([q, arrays.from_array(np.array(2, np.float32), "s")])
    proto.ir_version = 9
    graph = import_onnx(proto)
    assert kinds(graph) == ["Mul"]
    assert [a.tolist() for a in graph.constants.values()] == [[3.0, -4.0]]


def test_a_known_node_that_breaks_its_rules_is_refused() -> None:
    text = "g (float[3] x) => (float[3] y) { c = Reshape(w, s) y = Add(x, c) }"
    with pytest.raises(InvalidModel, match="Reshape node 'c'"):
        import_onnx(model(text, w=np.ones(4, np.float32), s=np.array([3])))


def test_folding_is_silent() -> None:
    x = np.array([0, -1, np.inf, np.nan, 3e38], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = folded("g () => (float[5] y) { a = Log(x) b = Mul(x, x) c = Div(a, b) y = Sqrt(c) }", x=x)
    assert np.isnan(y[3])
