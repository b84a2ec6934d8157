"""Reading models: what is refused, in one readable line, and what is put right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, parser
from onnx import numpy_helper as arrays

from korch.errors import InvalidModel
from korch.importers.onnx import describe_onnx, import_onnx, load_model

HEADER = '<ir_version: 8, opset_import: ["": 17]> '
RELU = HEADER + "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def model(text: str) -> ModelProto:
    return parser.parse_model(text)


def refusal(source: object) -> str:
    with pytest.raises(InvalidModel) as caught:
        load_model(source)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_path_bytes_and_proto_give_the_same(tmp_path: Path) -> None:
    proto = model(RELU)
    path = tmp_path / "relu.onnx"
    onnx.save(proto, path)
    assert load_model(path) == load_model(str(path)) == load_model(proto.SerializeToString()) == proto
    assert load_model(proto) is proto


def test_missing_file(tmp_path: Path) -> None:
    assert "none.onnx: no such file" in refusal(tmp_path / "none.onnx")


def test_directory(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path)


def test_not_a_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("this is no model\n" * 10)
    assert "text.onnx is not an ONNX model" in refusal(path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    assert "holds no graph" in refusal(path)


def test_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "short.onnx"
    path.write_bytes(model(RELU).SerializeToString()[:-9])
    assert "short.onnx is not an ONNX model" in refusal(path)


def test_old_operator_set() -> None:
    graph = import_onnx(model(RELU.replace("17", "6")))
    assert [(op.op_type, op.version) for op in graph.operators] == [("Relu", 8)]


def test_slopes_for_channels_of_an_old_operator_set() -> None:
    """They used to belong to the second dimension, as broadcasting was named by an axis."""
    old = '<ir_version: 3, opset_import: ["": 6]> g (float[2,3,4,5] x, float[3] s) => (float[2,3,4,5] y) '
    graph = import_onnx(model(old + "{ y = PRelu(x, s) }"))
    unsqueeze, prelu = graph.operators
    assert graph.types[unsqueeze.outputs[0]].shape == (3, 1, 1) and prelu.inputs == ("x", unsqueeze.outputs[0])


def test_old_operators_that_onnx_does_not_convert() -> None:
    old = '<ir_version: 3, opset_import: ["": 1]> g (float[2] x) => (float[2] y) { y = ParametricSoftplus(x) }'
    text = refusal(model(old))
    assert "operator set 1" in text


def test_new_operator_set() -> None:
    text = refusal(model(RELU.replace("17", "1000")))
    assert "operator set 1000" in text and "pip install -U onnx" in text


def test_no_operator_set() -> None:
    proto = model(RELU)
    del proto.opset_import[:]
    assert "opset_import is empty" in refusal(proto)


def test_unknown_operator_is_named() -> None:
    assert "Fancy" in refusal(model(RELU.replace("Relu", "Fancy")))


def test_undefined_name() -> None:
    text = refusal(model(HEADER + "g (float[2] x) => (float[2] y) { y = Add(x, w) }"))
    assert text == "Add node 'y' reads 'w', which nothing defines"


def test_undefined_name_in_a_body() -> None:
    body = "then_branch = t () => (float[2] a) { a = Neg(w) }, else_branch = e () => (float[2] b) { b = Abs(x) }"
    text = refusal(model(HEADER + f"g (bool c, float[2] x) => (float[2] y) {{ y = If(c) <{body}> }}"))
    assert text == "If node 'y' reads 'w', which nothing defines"


def test_undefined_output() -> None:
    proto = model(RELU)
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    proto.graph.output[1].name = "z"
    assert "output 'z'" in refusal(proto)


def test_defined_twice() -> None:
    assert "defined already" in refusal(model(HEADER + "g (float[2] x) => (float[2] x) { x = Relu(x) }"))


def test_initializer_defined_twice() -> None:
    proto = model(RELU)
    for _ in range(2):
        proto.graph.initializer.append(arrays.from_array(np.zeros(2, np.float32), "w"))
    assert "initializer 'w' is defined twice" in refusal(proto)


def test_cycle_is_named() -> None:
    text = refusal(
        model(HEADER + "g (float[2] x) => (float[2] y) { b = Relu(x) a = Add(b, d) c = Neg(a) d = Abs(c) y = Neg(d) }")
    )
    assert "circle" in text and "Add node 'a' -> Neg node 'c' -> Abs node 'd' -> Add node 'a'" in text


def test_recursive_functions() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "f": 1]>
    g (float[2] x) => (float[2] y) { y = f.one(x) }
    <domain: "f", opset_import: ["": 17, "f": 1]> one (x) => (y) { y = f.two(x) }
    <domain: "f", opset_import: ["": 17, "f": 1]> two (x) => (y) { y = f.one(x) }"""
    assert "functions call themselves" in refusal(model(text))


def test_nodes_out_of_order_are_sorted_and_the_source_is_kept() -> None:
    proto = model(HEADER + "g (float[2] x) => (float[2] y) { y = Neg(b) b = Relu(a) a = Abs(x) }")
    before = proto.SerializeToString()
    assert [n.op_type for n in load_model(proto).graph.node] == ["Abs", "Relu", "Neg"]
    assert proto.SerializeToString() == before


def test_a_body_that_reads_a_later_value_is_sorted_too() -> None:
    then, other = "t () => (float[2] a) { a = Neg(k) k = Abs(w) }", "e () => (float[2] b) { b = Abs(x) }"
    body = f"then_branch = {then}, else_branch = {other}"
    proto = model(HEADER + f"g (bool c, float[2] x) => (float[2] y) {{ y = If(c) <{body}> w = Exp(x) }}")
    assert [n.op_type for n in load_model(proto).graph.node] == ["Exp", "If"]
    branch = next(a.g for a in load_model(proto).graph.node[1].attribute if a.name == "then_branch")
    assert [n.op_type for n in branch.node] == ["Abs", "Neg"]


def test_outputs_without_shape_or_type_are_accepted() -> None:
    proto = model(RELU)
    proto.graph.output[0].ClearField("type")
    graph = import_onnx(proto)
    assert str(graph.types[graph.outputs[0][1]]) == "float32[2]"


# --- external data


def external_model(path: Path, array: np.ndarray) -> None:
    proto = model(HEADER + "g (float[64] x) => (float[64] y) { y = Add(x, w) }")
    proto.graph.initializer.append(arrays.from_array(array, "w"))
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)


def test_external_data_are_read(tmp_path: Path) -> None:
    array = np.arange(64, dtype=np.float32)
    external_model(tmp_path / "m.onnx", array)
    np.testing.assert_array_equal(import_onnx(tmp_path / "m.onnx").constants["w"], array)
    assert load_model(tmp_path / "m.onnx").graph.initializer[0].data_location == onnx.TensorProto.DEFAULT


def test_external_data_missing_names_the_file(tmp_path: Path) -> None:
    external_model(tmp_path / "m.onnx", np.zeros(64, np.float32))
    (tmp_path / "w.bin").unlink()
    text = refusal(tmp_path / "m.onnx")
    assert "w.bin is missing" in text and "'w'" in text


def test_external_data_cut_short(tmp_path: Path) -> None:
    external_model(tmp_path / "m.onnx", np.zeros(64, np.float32))
    (tmp_path / "w.bin").write_bytes(b"\0" * 100)
    assert "cut short" in refusal(tmp_path / "m.onnx")


def test_external_data_outside_the_directory(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    external_model(tmp_path / "inner" / "m.onnx", np.zeros(64, np.float32))
    proto = onnx.load(tmp_path / "inner" / "m.onnx", load_external_data=False)
    next(e for e in proto.graph.initializer[0].external_data if e.key == "location").value = "../w.bin"
    (tmp_path / "w.bin").write_bytes(b"\0" * 256)
    onnx.save(proto, tmp_path / "inner" / "m.onnx")
    assert "lies outside" in refusal(tmp_path / "inner" / "m.onnx")


def test_external_data_of_a_proto_that_has_no_place(tmp_path: Path) -> None:
    external_model(tmp_path / "m.onnx", np.zeros(64, np.float32))
    assert "pass the model's path" in refusal(onnx.load(tmp_path / "m.onnx", load_external_data=False))


def test_initializer_whose_data_do_not_fit() -> None:
    proto = model(HEADER + "g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    tensor = arrays.from_array(np.zeros(4, np.float32), "w")
    tensor.raw_data = tensor.raw_data[:7]
    proto.graph.initializer.append(tensor)
    with pytest.raises(InvalidModel, match="tensor 'w' cannot be read"):
        import_onnx(proto)


# --- describe


def test_describe() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "f": 1, "com.example": 1]>
    g (float[1, 3, height, width] x, float s, bool c) => (float[1, 3, height, width] y)
    <float[3, 1, 1] w = {1, 2, 3}> {
        k = Constant<value = int64[2] {1, 2}>()
        a = f.twice(x)
        b = f.twice(a)
        d = com.example.Fancy(b)
        e = If(c) <then_branch = t () => (float[1, 3, height, width] p) { p = Neg(d) },
                   else_branch = n () => (float[1, 3, height, width] q) { q = Abs(d) }>
        y = Mul(e, w)
    }
    <domain: "f", opset_import: ["": 17]> twice (x) => (y) { z = Relu(x) y = Relu(z) }"""
    summary = describe_onnx(model(text))
    assert summary.opsets == {"": 17, "f": 1, "com.example": 1}
    assert summary.inputs == {"x": "float[1,3,height,width]", "s": "float[]", "c": "bool[]"}
    assert summary.outputs == {"y": "float[1,3,height,width]"}
    assert summary.unbound == {"x": ("height", "width")}
    expected = {"Relu": 4, "Abs": 1, "Constant": 1, "If": 1, "Mul": 1, "Neg": 1, "com.example.Fancy": 1}
    assert summary.operators == expected
    assert summary.parameters == 3 + 2
    assert summary.parameter_bytes == 3 * 4 + 2 * 8


def test_describe_names_unnamed_dimensions_and_unknown_ranks() -> None:
    proto = model(HEADER + "g (float[?, 3] x, float[] z) => (float[] y) { y = Add(x, z) }")
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    assert describe_onnx(proto).unbound == {"x": ("?",), "z": None}
    assert describe_onnx(proto).inputs["z"] == "float[…]"


def test_describe_counts_an_initializer_that_is_an_input_as_a_parameter() -> None:
    proto = model(HEADER + "g (float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }")
    proto.graph.initializer.append(arrays.from_array(np.zeros(4, np.float32), "w"))
    assert list(describe_onnx(proto).inputs) == ["x"]
    assert describe_onnx(proto).parameters == 4
