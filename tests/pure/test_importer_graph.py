"""The operator graph: order, names, what is dead, control flow, functions, what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper, parser
from onnx import numpy_helper as arrays

from korch.errors import InvalidModel, KorchError, UnsupportedModel
from korch.importers.onnx import import_onnx
from korch.importers.operators import OperatorGraph

OPSET = 17


def model(text: str, functions: str = "", opset: int = OPSET, **initializers: np.ndarray) -> ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "f": 1]> {text} {functions}')
    proto.graph.initializer.extend(arrays.from_array(a, n) for n, a in initializers.items())
    return proto


def kinds(graph: OperatorGraph) -> list[str]:
    return [o.op_type for o in graph.operators]


def refusal(proto: ModelProto) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        import_onnx(proto)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what an operator says


def test_an_operator() -> None:
    text = "g (float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y) { y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) }"
    [conv] = import_onnx(model(text, w=np.zeros((4, 3, 3, 3), np.float32))).operators
    assert (conv.op_type, conv.domain, conv.version, conv.name) == ("Conv", "", OPSET, "Conv_0")
    assert (conv.inputs, conv.outputs) == (("x", "w"), ("y",))
    assert conv.attributes == {"strides": (2, 2), "pads": (1, 1, 1, 1)}


def test_names_are_kept_and_unique() -> None:
    proto = model("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = Relu(b) }")
    proto.graph.node[0].name = proto.graph.node[1].name = "same"
    assert [o.name for o in import_onnx(proto).operators] == ["same", "same_1", "Relu_2"]


def test_absent_inputs() -> None:
    text = "g (float[2] x, float m) => (float[2] y, float[2] z) { y = Clip(x, , m) z = Clip(x, m, ) }"
    assert [o.inputs for o in import_onnx(model(text)).operators] == [("x", "", "m"), ("x", "m")]


def test_unused_outputs_are_blank_and_keep_their_place() -> None:
    text = "g (float[6] x) => (float[2] y, float[2] v) { a, y, b = Split<axis = 0>(x) v, i = TopK(x, k) }"
    graph = import_onnx(model(text, opset=13, k=np.array([2])))
    assert [o.outputs for o in graph.operators] == [("", "y", ""), ("v", "")]
    assert set(graph.types) == {"x", "y", "v", "k"}


def test_tensor_attributes() -> None:
    text = "g (int64[1] s) => (float[k] y) { y = RandomUniform<shape = [2], low = 1.0, dtype = 1>() }"
    [random] = import_onnx(model(text)).operators
    assert random.attributes == {"shape": (2,), "low": 1.0, "dtype": 1}


def test_string_attributes() -> None:
    text = 'g (float[2, 3] x) => (float[3, 2] y) { y = Einsum<equation = "ij->ji">(x) }'
    assert import_onnx(model(text)).operators[0].attributes == {"equation": "ij->ji"}


# --- outputs, the dead


def test_dead_operators_and_constants_go() -> None:
    text = "g (float[2] x, float[2] z) => (float[2] y) { a = Exp(x) b = Add(a, w) y = Relu(x) }"
    graph = import_onnx(model(text, w=np.ones(2, np.float32)))
    assert kinds(graph) == ["Relu"]
    assert graph.constants == {}
    assert graph.inputs == (("x", "x"), ("z", "z"))
    assert set(graph.types) == {"x", "y", "z"}


def test_dead_operators_may_be_unsupported() -> None:
    text = "g (float[2] x) => (float[2] y) { s = Cast<to = 8>(x) n = NonZero(x) y = Relu(x) }"
    assert kinds(import_onnx(model(text))) == ["Relu"]


def test_outputs_that_are_inputs_or_constants_or_the_same() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }", w=np.ones(2, np.float32))
    for name in ("x", "w", "y"):
        proto.graph.output.append(helper.make_tensor_value_info(name, 1, [2]))
    graph = import_onnx(proto)
    assert graph.outputs == (("y", "y"), ("x", "x"), ("w", "w"), ("y", "y"))
    assert graph.constants["w"].tolist() == [1, 1]


def test_a_graph_without_operators() -> None:
    proto = model("g (float[2] x) => (float[2] x) { }")
    graph = import_onnx(proto)
    assert (graph.inputs, graph.outputs, graph.operators) == ((("x", "x"),), (("x", "x"),), ())


def test_identity_stays() -> None:
    assert kinds(import_onnx(model("g (float[2] x) => (float[2] y) { y = Identity(x) }"))) == ["Identity"]


# --- if


def if_text(condition: str) -> str:
    return f"""g (float[2] x, bool c) => (float[2] y) {{ a = Exp(x)
        b = If({condition}) <then_branch = t () => (float[2] r) {{ k = Neg(a) r = Relu(k) }},
                             else_branch = e () => (float[2] r) {{ k = Abs(x) r = Mul(k, w) }}>
        y = Sqrt(b) }}"""


@pytest.mark.parametrize(
    ("value", "expected"), [(True, ["Exp", "Neg", "Relu", "Sqrt"]), (False, ["Abs", "Mul", "Sqrt"])]
)
def test_a_known_if_is_its_branch(value: bool, expected: list[str]) -> None:
    graph = import_onnx(model(if_text("k0"), k0=np.array(value), w=np.ones(2, np.float32)))
    assert kinds(graph) == expected
    assert graph.operators[-1].inputs == graph.operators[-2].outputs


def test_an_if_on_shapes_is_known() -> None:
    text = if_text("k0").replace("a = Exp(x)", "a = Exp(x) s = Size(x) k0 = Equal(s, two)")
    graph = import_onnx(model(text, two=np.array(2), w=np.ones(2, np.float32)))
    assert kinds(graph) == ["Exp", "Neg", "Relu", "Sqrt"]


def test_a_branch_that_gives_an_outer_value_or_a_constant() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) {
        y = If(t) <then_branch = t1 () => (float[2] r) { r = f.same(x) },
                   else_branch = e1 () => (float[2] r) { r = Neg(x) }>
        z = If(t) <then_branch = t2 () => (float[2] r) { r = Constant<value_floats = [1.0, 2.0]>() },
                   else_branch = e2 () => (float[2] r) { r = Neg(x) }> }"""
    proto = model(text, '<domain: "f", opset_import: ["": 17]> same (x) => (y) { y = Neg(x) }', t=np.array(True))
    del proto.functions[0].node[:]
    proto.functions[0].output[0] = "x"
    graph = import_onnx(proto)
    assert kinds(graph) == []
    assert graph.outputs[0] == ("y", "x")
    assert graph.constants[graph.outputs[1][1]].tolist() == [1, 2]


def test_a_run_time_if_keeps_its_bodies() -> None:
    graph = import_onnx(model(if_text("c"), w=np.ones(2, np.float32)))
    assert kinds(graph) == ["Exp", "If", "Sqrt"]
    then, other = (graph.operators[1].attributes[k] for k in ("then_branch", "else_branch"))
    assert isinstance(then, OperatorGraph) and isinstance(other, OperatorGraph)
    assert (kinds(then), kinds(other)) == (["Neg", "Relu"], ["Abs", "Mul"])
    assert then.operators[0].inputs == ("a",)
    assert "a" in then.types and "x" in other.types and "w" in other.types
    assert then.constants == other.constants == {} and set(graph.constants) == {"w"}
    inner = [v for g in (then, other) for o in g.operators for v in o.outputs]
    assert len(set(inner)) == len(inner) and not set(inner) & set(graph.types)
    assert str(graph.types[graph.operators[1].outputs[0]]) == "float32[2]"


def test_what_only_a_body_reads_is_alive() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) { a = Exp(x)
        y = If(c) <then_branch = t () => (float[2] r) {
            r = If(c) <then_branch = tt () => (float[2] q) { q = Neg(a) },
                       else_branch = te () => (float[2] q) { q = Abs(w) }> },
            else_branch = e () => (float[2] r) { r = Neg(x) }> }"""
    graph = import_onnx(model(text, w=np.ones(2, np.float32)))
    assert kinds(graph) == ["Exp", "If"]
    then = graph.operators[1].attributes["then_branch"]
    assert isinstance(then, OperatorGraph) and {"a", "c"} <= set(then.types)


def test_branches_of_different_shapes_are_refused() -> None:
    text = """g (float[2] x, bool c) => (float[n] y) {
        y = If(c) <then_branch = t () => (float[2] r) { r = Neg(x) },
                   else_branch = e () => (float[4] r) { r = Concat<axis = 0>(x, x) }> }"""
    assert "the shape of 'y', computed by If operator 'If_0', depends on what is computed" in refusal(model(text))


# --- loops


def loop_text(limit: str, condition: str, body: str) -> str:
    return f"""g (float[2] x, int64 m, bool c) => (float[2] y, float[n, 2] z) {{
        y, z = Loop({limit}, {condition}, x)
            <body = b (int64 i, bool k, float[2] s) => (bool k1, float[2] s1, float[2] r) {{ {body} }}> }}"""


STEP = "k1 = Identity(k) s1 = Mul(s, w) f = Cast<to = 1>(i) r = Add(s1, f)"
W = np.array([2, 3], np.float32)


def test_a_known_loop_is_its_steps() -> None:
    graph = import_onnx(model(loop_text("three", "", STEP), three=np.array(3), w=W))
    assert kinds(graph).count("Mul") == 3 and "Loop" not in kinds(graph) and "Cast" not in kinds(graph)
    assert str(graph.types[graph.outputs[1][1]]) == "float32[3,2]"


@pytest.mark.parametrize("opset", [11, OPSET])
def test_a_loop_of_constants_is_constant(opset: int) -> None:
    text = loop_text("three", "yes", STEP).replace("float[2] x, ", "")
    proto = model(text, opset=opset, three=np.array(3), yes=np.array(True), w=W, x=np.ones(2, np.float32))
    graph = import_onnx(proto)
    assert kinds(graph) == []
    y, z = (graph.constants[v] for _, v in graph.outputs)
    np.testing.assert_array_equal(y, [8, 27])
    np.testing.assert_array_equal(z, [[2, 3], [5, 10], [10, 29]])


def test_a_loop_that_ends_by_a_known_condition() -> None:
    body = "two = Constant<value_int = 2>() k1 = Less(i, two) s1 = Neg(s) r = Neg(s)"
    graph = import_onnx(model(loop_text("", "yes", body), yes=np.array(True)))
    assert str(graph.types[graph.outputs[1][1]]) == "float32[3,2]"
    assert kinds(graph).count("Neg") == 6


def test_a_loop_whose_state_grows() -> None:
    text = """g (float[2] x) => (float[n] y) {
        y = Loop(three, , x) <body = b (int64 i, bool k, float[p] s) => (bool k1, float[q] s1) {
            k1 = Identity(k) s1 = Concat<axis = 0>(s, x) }> }"""
    graph = import_onnx(model(text, three=np.array(3)))
    assert kinds(graph) == ["Concat"] * 3 and str(graph.types[graph.outputs[0][1]]) == "float32[8]"


def test_a_loop_with_no_steps_is_its_state() -> None:
    text = """g (float[2] x) => (float[2] y) {
        y = Loop(none, , x) <body = b (int64 i, bool k, float[2] s) => (bool k1, float[2] s1) {
            k1 = Identity(k) s1 = Neg(s) }> }"""
    assert import_onnx(model(text, none=np.array(0))).outputs == (("y", "x"),)


def test_a_long_loop_stays() -> None:
    graph = import_onnx(model(loop_text("many", "", STEP), many=np.array(10**6), w=W))
    assert kinds(graph) == ["Loop"]
    assert str(graph.types["z"]) == "float32[1000000,2]"
    body = graph.operators[0].attributes["body"]
    assert isinstance(body, OperatorGraph)
    assert [name for name, _ in body.inputs] == ["i", "k", "s"]
    assert [str(body.types[v]) for _, v in body.inputs] == ["int64[]", "bool[]", "float32[2]"]
    assert kinds(body) == ["Identity", "Mul", "Cast", "Add"]


def test_a_loop_of_unknown_length_stays_unless_its_length_matters() -> None:
    proto = model(loop_text("m", "", STEP), w=W)
    assert "the shape of 'z', computed by Loop operator" in refusal(proto)
    del proto.graph.output[1]
    graph = import_onnx(proto)
    assert kinds(graph) == ["Loop"] and graph.operators[0].outputs == ("y", "")


def test_a_loop_that_may_end_early_stays() -> None:
    body = STEP.replace(
        "k1 = Identity(k)", "t = ReduceMax<keepdims = 0>(s) k1 = Less(t, u) u = Constant<value_float = 9.0>()"
    )
    proto = model(loop_text("three", "", body), three=np.array(3), w=W)
    del proto.graph.output[1]
    assert kinds(import_onnx(proto)) == ["Loop"]


def test_a_long_loop_whose_state_grows_is_refused() -> None:
    text = """g (float[2] x) => (float[n] y) {
        y = Loop(many, , x) <body = b (int64 i, bool k, float[p] s) => (bool k1, float[q] s1) {
            k1 = Identity(k) s1 = Concat<axis = 0>(s, x) }> }"""
    assert "the shape of 'y', computed by Loop operator" in refusal(model(text, many=np.array(10**6)))


SCAN = """g (float[2] s, float[{n}, 2] x) => (float[2] y, float[{n}, 2] z) {{
    y, z = Scan<num_scan_inputs = 1 {attributes}, body = b (float[2] p, float[2] e) => (float[2] p1, float[2] r) {{
        p1 = Add(p, e) r = Mul(p1, e) }}>(s, x) }}"""


@pytest.mark.parametrize("backward", [False, True])
def test_a_scan_of_constants(backward: bool) -> None:
    attributes = ", scan_input_directions = [1], scan_output_directions = [1]" if backward else ""
    text = SCAN.format(n=3, attributes=attributes).replace("float[2] s, float[3, 2] x", "")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    graph = import_onnx(model(text, s=np.ones(2, np.float32), x=x))
    state, rows = np.ones(2, np.float32), []
    for e in x[::-1] if backward else x:
        state = state + e
        rows.append(state * e)
    assert kinds(graph) == []
    np.testing.assert_array_equal(graph.constants[graph.outputs[0][1]], state)
    np.testing.assert_array_equal(graph.constants[graph.outputs[1][1]], rows[::-1] if backward else rows)


def test_a_scan_along_other_axes() -> None:
    text = """g (float[2, 3] x) => (float[2, 3] z) {
        z = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
                 body = b (float[2] e) => (float[2] r) { r = Neg(e) }>(x) }"""
    graph = import_onnx(model(text))
    assert kinds(graph).count("Neg") == 3 and kinds(graph)[-1] == "Concat"
    assert str(graph.types[graph.outputs[0][1]]) == "float32[2,3]"


def test_a_long_scan_stays() -> None:
    graph = import_onnx(model(SCAN.format(n=5000, attributes="")))
    assert kinds(graph) == ["Scan"]
    assert [str(graph.types[v]) for _, v in graph.outputs] == ["float32[2]", "float32[5000,2]"]


# --- functions

TWICE = """<domain: "f", opset_import: ["": 13]> twice <alpha> (x, w) => (y) {
    a = LeakyRelu<alpha: float = @alpha>(x) y = Clip(a, w) }"""


def test_functions_are_inlined_with_their_own_operator_set() -> None:
    text = "g (float[2] x) => (float[2] y) { a = f.twice<alpha = 0.5>(x, l) y = f.twice<alpha = 0.25>(a, l) }"
    graph = import_onnx(model(text, TWICE, 15, l=np.array(0, np.float32)))
    assert kinds(graph) == ["LeakyRelu", "Clip"] * 2
    assert [o.version for o in graph.operators] == [13] * 4
    assert [o.attributes for o in graph.operators[::2]] == [{"alpha": 0.5}, {"alpha": 0.25}]
    assert [o.name for o in graph.operators] == [
        "twice_0/LeakyRelu_0",
        "twice_0/Clip_0",
        "twice_1/LeakyRelu_1",
        "twice_1/Clip_1",
    ]


def test_inputs_and_attributes_that_a_call_leaves_out() -> None:
    graph = import_onnx(model("g (float[2] x) => (float[2] y) { y = f.twice(x) }", TWICE, 15))
    assert [o.attributes for o in graph.operators] == [{}, {}]
    assert len(graph.operators[1].inputs) == 1


def test_default_attributes_of_functions() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = f.twice(x) }", TWICE, 15)
    del proto.functions[0].attribute[:]
    proto.functions[0].attribute_proto.append(helper.make_attribute("alpha", 0.125))
    assert import_onnx(proto).operators[0].attributes == {"alpha": 0.125}


def test_nested_functions_that_give_back_their_input() -> None:
    functions = """<domain: "f", opset_import: ["": 17, "f": 1]> outer (x) => (p, q) { p = Neg(x) q = f.same(x) }
        <domain: "f", opset_import: ["": 17]> same (x) => (y) { y = Identity(x) }"""
    proto = model("g (float[2] x) => (float[2] y, float[2] z) { y, z = f.outer(x) }", functions)
    same = proto.functions[1]
    del same.node[:]
    same.output[0] = "x"
    graph = import_onnx(proto)
    assert kinds(graph) == ["Neg"] and graph.outputs[1] == ("z", "x")


def test_a_function_with_an_if_on_its_arguments() -> None:
    functions = """<domain: "f", opset_import: ["": 17]> pick (c, x) => (y) {
        y = If(c) <then_branch = t () => (r) { r = Neg(x) }, else_branch = e () => (r) { r = Abs(x) }> }"""
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = f.pick(yes, x) z = f.pick(no, x) }"
    graph = import_onnx(model(text, functions, yes=np.array(True), no=np.array(False)))
    assert kinds(graph) == ["Neg", "Abs"]


# --- what is refused


def test_shapes_that_depend_on_data_are_named_at_once() -> None:
    text = """g (float[4] x) => (int64[1, n] i, float[m] u, float[k] v) {
        i = NonZero(x) u = Unique(x) b = Cast<to = 9>(x) c = Compress<axis = 0>(x, b) v = Relu(c) }"""
    found = refusal(model(text))
    for part in ("'i', computed by NonZero operator 'NonZero_0'", "Unique operator 'Unique_0'", "Compress operator"):
        assert part in found
    assert "Relu" not in found


def test_types_that_are_not_supported_are_named_at_once() -> None:
    text = """g (string[2] s, float[4] x) => (string[2] t, complex64[4] c, seq(float[2]) q) {
        t = Identity(s) c = f.none(x) q = SplitToSequence(x) }"""
    found = refusal(
        model(text.replace("c = f.none(x)", "c = Constant<value = complex64[4] {1, 2, 3, 4, 5, 6, 7, 8}>()"))
    )
    for part in ("input 's' is of type string[2]", "output 't' of Identity", "constant 'c'", "SplitToSequence"):
        assert part in found


def test_unknown_operators_are_named_at_once() -> None:
    found = refusal(model("g (float[4] x) => (float[n] y, float[n] z) { y = f.Fancy(x) a = f.Other(x) z = Relu(a) }"))
    assert "Fancy operator 'Fancy_0' of domain 'f' is not known" in found
    assert "Other operator" in found and "Relu" not in found


def test_compress_with_a_known_condition() -> None:
    text = "g (float[2, 3] x) => (float[2, 2] y, float[n] z) { y = Compress<axis = -1>(x, c) z = Compress(x, d) }"
    graph = import_onnx(model(text, c=np.array([True, False, True]), d=np.array([True, True, False, True])))
    assert [str(graph.types[v]) for _, v in graph.outputs] == ["float32[2,2]", "float32[3]"]


def test_group_normalization_has_the_type_of_its_input() -> None:
    text = "g (float[2, 4, 5] x, float[n] s) => (float[2, 4, 5] y) { y = GroupNormalization<num_groups = 2>(x, s, s) }"
    graph = import_onnx(model(text, opset=21), {"s": (4,)})
    assert str(graph.types["y"]) == "float32[2,4,5]"


def test_a_reshape_that_the_bound_shape_does_not_fill() -> None:
    proto = model("g (float[n, 4] x) => (float[2, 4] y) { y = Reshape(x, s) }", s=np.array([2, 4]))
    assert str(import_onnx(proto, {"x": (2, 4)}).types["y"]) == "float32[2,4]"
    with pytest.raises(InvalidModel, match=r"of shape \[3, 4\] the shape \[2, 4\]"):
        import_onnx(proto, {"x": (3, 4)})


# --- size


def chain(count: int) -> ModelProto:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    ends = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def test_a_chain_of_10000_nodes_even_backwards() -> None:
    proto = chain(10_000)
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    graph = import_onnx(proto, {"v0": (2, 4)})
    assert len(graph.operators) == 10_000
    assert graph.operators[-1].outputs == ("v10000",)


def test_a_cycle_of_10000_nodes() -> None:
    proto = chain(10_000)
    proto.graph.node[0].input[0] = "v10000"
    with pytest.raises(InvalidModel, match="circle"):
        import_onnx(proto, {"v0": (2, 4)})


def test_a_thousand_nodes_take_a_moment() -> None:
    proto = chain(1_000)
    start = time.process_time()
    import_onnx(proto, {"v0": (2, 4)})
    assert time.process_time() - start < 3


# --- damage


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        (if_text("c"), lambda node: node.attribute[0].g.output.pop()),
        (if_text("c"), lambda node: node.attribute.pop()),
        (loop_text("m", "", STEP), lambda node: node.attribute[0].g.input.pop()),
        (loop_text("m", "", STEP), lambda node: node.attribute[0].g.output.pop()),
        (SCAN.format(n=3, attributes=""), lambda node: node.attribute[1].g.output.pop()),
        (SCAN.format(n=3, attributes=", scan_input_axes = [0, 1]"), lambda node: None),
        (SCAN.format(n=3, attributes="").replace("num_scan_inputs = 1", "num_scan_inputs = 3"), lambda node: None),
    ],
)
def test_bodies_that_do_not_fit_their_node(text: str, damage: Callable[[NodeProto], object]) -> None:
    proto = model(text, w=W)
    damage(next(n for n in proto.graph.node if n.op_type in ("If", "Loop", "Scan")))
    with pytest.raises(InvalidModel):
        import_onnx(proto)


def test_a_name_that_is_not_utf8() -> None:
    content = model("g (float[2] x) => (float[2] y) { name_of_it = Exp(x) y = Relu(name_of_it) }").SerializeToString()
    with pytest.raises(InvalidModel, match="not UTF-8"):
        import_onnx(content.replace(b"name_of_it", b"name\xff\xfef_it"))


def test_a_call_with_too_many_inputs() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = f.twice(x, x, x) }", TWICE, 15)
    with pytest.raises(InvalidModel, match="more inputs or outputs than its function"):
        import_onnx(proto)


def test_damaged_files_give_errors_of_korch_only() -> None:
    """Random bytes changed: the model imports, or the error names a cause in one line."""
    generator = np.random.default_rng(0)
    texts = [(if_text("c"), ""), (loop_text("m", "", STEP), ""), (SCAN.format(n=3, attributes=""), "")]
    texts += [("g (float[2] x) => (float[2] y) { y = f.twice<alpha = 0.5>(x) }", TWICE)]
    contents = [model(t, f, 15, w=W).SerializeToString() for t, f in texts]
    refused = 0
    for k in range(200):
        content = bytearray(contents[k % len(contents)])
        for _ in range(1 + k % 3):
            content[generator.integers(len(content))] = generator.integers(256)
        try:
            import_onnx(bytes(content))
        except KorchError as error:
            assert str(error) and "\n" not in str(error)
            refused += 1
    assert 50 < refused < 200
