"""Symbolic dimensions: bound by shapes, everywhere at once, or refused with all that is missing."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper, parser
from onnx import numpy_helper as arrays

from korch.errors import InvalidInput, InvalidModel, UnsupportedModel
from korch.importers.onnx import import_onnx

HEADER = '<ir_version: 8, opset_import: ["": 17]> '


def model(text: str) -> ModelProto:
    return parser.parse_model(HEADER + text)


ADD = "g (float[batch, 3] x, float[batch, 1] z) => (float[batch, 3] y) { y = Add(x, z) }"


def test_a_symbol_bound_once_is_bound_everywhere() -> None:
    graph = import_onnx(model(ADD), {"x": (5, 3)})
    assert {v: str(t) for v, t in graph.types.items()} == {
        "x": "float32[5,3]",
        "z": "float32[5,1]",
        "y": "float32[5,3]",
    }


def test_a_shape_of_its_own_goes_before_the_symbol() -> None:
    graph = import_onnx(model(ADD), {"x": (5, 3), "z": (1, 1)})
    assert str(graph.types["z"]) == "float32[1,1]"


def test_nothing_to_bind_needs_no_shapes() -> None:
    assert str(import_onnx(model("g (float[2] x) => (float[2] y) { y = Relu(x) }")).types["y"]) == "float32[2]"


def test_empty_and_scalar_shapes() -> None:
    text = "g (float[n] x, float s) => (float[n] y) { y = Add(x, s) }"
    graph = import_onnx(model(text), {"x": (0,), "s": ()})
    assert (str(graph.types["y"]), str(graph.types["s"])) == ("float32[0]", "float32[]")


def test_all_unbound_dimensions_are_named_at_once_with_an_example() -> None:
    proto = model("g (float[b, 3, h, ?] x, float[k] z, float s) => (float[] y) { y = Add(x, z) }")
    with pytest.raises(UnsupportedModel) as caught:
        import_onnx(proto)
    text = str(caught.value)
    assert "'x': b (dimension 0), h (dimension 2), ? (dimension 3)" in text
    assert "'z': k (dimension 0)" in text
    assert "'s'" not in text
    assert "--shape x=1x3x224x224 --shape z=1" in text
    assert "\n" not in text


def test_the_example_keeps_fixed_dimensions() -> None:
    with pytest.raises(UnsupportedModel, match="--shape x=1x1x32x224"):
        import_onnx(model("g (float[b, 1, 32, w] x) => (float[b, 1, 32, w] y) { y = Relu(x) }"))


def test_a_partly_bound_model_names_the_rest() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        import_onnx(
            model("g (float[b, n] x, float[b, m] z) => (float[b, k] y) { y = Concat<axis = 1>(x, z) }"), {"x": (1, 2)}
        )
    assert "'z': m (dimension 1)" in str(caught.value) and "'x'" not in str(caught.value)


def test_unknown_rank_is_bound_by_a_shape() -> None:
    proto = model("g (float[] x) => (float[] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModel, match="the rank is not known"):
        import_onnx(proto)
    assert str(import_onnx(proto, {"x": (2, 3)}).types["y"]) == "float32[2,3]"


def test_minus_one_is_an_unknown_dimension() -> None:
    proto = model("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    with pytest.raises(UnsupportedModel, match=r"\? \(dimension 0\)"):
        import_onnx(proto)
    assert str(import_onnx(proto, {"x": (4,)}).types["y"]) == "float32[4]"


def test_unknown_name_lists_the_inputs() -> None:
    with pytest.raises(InvalidInput) as caught:
        import_onnx(model(ADD), {"input": (1, 3)})
    text = str(caught.value)
    assert "'input'" in text and "x (float[batch,3])" in text and "z (float[batch,1])" in text


def test_wrong_rank() -> None:
    with pytest.raises(InvalidInput, match="input 'x' has rank 2"):
        import_onnx(model(ADD), {"x": (1, 3, 1)})


def test_fixed_dimension_differs() -> None:
    with pytest.raises(InvalidInput, match="dimension 1 is 3 in the model"):
        import_onnx(model(ADD), {"x": (1, 4)})


def test_negative_dimension() -> None:
    with pytest.raises(InvalidInput, match="negative"):
        import_onnx(model(ADD), {"x": (-1, 3)})


def test_shapes_that_do_not_fit_together() -> None:
    proto = model("g (float[n, 4] x, float[m, 4] z) => (float[k, 4] y) { y = Add(x, z) }")
    with pytest.raises(InvalidModel, match=r"Add node 'y' refuses its inputs \(float\[2,4\], float\[3,4\]\)"):
        import_onnx(proto, {"x": (2, 4), "z": (3, 4)})


def test_a_kernel_larger_than_its_input() -> None:
    proto = model(
        "g (float[1, 1, h, h] x) => (float[1, 1, a, b] y) { y = MaxPool<kernel_shape = [5, 5], strides = [4, 4]>(x) }"
    )
    for size in (3, 4):
        with pytest.raises(InvalidModel, match=r"MaxPool node 'y' .*larger"):
            import_onnx(proto, {"x": (1, 1, size, size)})
    assert str(import_onnx(proto, {"x": (1, 1, 5, 5)}).types["y"]) == "float32[1,1,1,1]"


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initializers_that_are_inputs_are_constants(ir_version: int) -> None:
    proto = model("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    proto.ir_version = ir_version
    proto.graph.initializer.append(arrays.from_array(np.array([1, 2], np.float32), "w"))
    graph = import_onnx(proto)
    assert graph.inputs == (("x", "x"),)
    np.testing.assert_array_equal(graph.constants["w"], [1, 2])
    with pytest.raises(InvalidInput, match="no input is named 'w'"):
        import_onnx(proto, {"w": (2,)})


def test_declared_types_stand_for_operators_that_the_standard_does_not_know() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]>
    g (float[n, 4] x) => (float[n, 8] y) <float[n, 8] a> { a = com.example.Fancy<k = 2>(x) y = Relu(a) }"""
    graph = import_onnx(parser.parse_model(text), {"x": (3, 4)})
    fancy = graph.operators[0]
    assert (fancy.op_type, fancy.domain, fancy.version, fancy.attributes) == ("Fancy", "com.example", 1, {"k": 2})
    assert str(graph.types["a"]) == str(graph.types["y"]) == "float32[3,8]"


def test_a_sequence_input_has_no_shape() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", 1, None)
    output = helper.make_tensor_value_info("y", 7, ())
    graph = helper.make_graph([helper.make_node("SequenceLength", ["x"], ["y"])], "g", [sequence], [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(InvalidInput, match="is a sequence and has no shape"):
        import_onnx(proto, {"x": (1,)})
    with pytest.raises(UnsupportedModel, match="input 'x' is of type sequence"):
        import_onnx(proto)
