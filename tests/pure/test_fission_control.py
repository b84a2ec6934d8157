"""If, Loop and Scan, operators that the standard defines by others, and the driver's errors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from korch.errors import InvalidModel, UnsupportedModel
from korch.fission import fission, unsupported
from korch.fission.operators import FUNCTIONS, OPERATORS
from korch.importers.onnx import import_onnx
from korch.importers.operators import Operator, OperatorGraph
from korch.ir.evaluate import evaluate
from korch.ir.types import DType, TensorType
from tests.pure.fission_reference import check, compare, graph_of, model_of, normal

F = np.float32


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>' + text)


def test_if_computes_both_branches_and_chooses() -> None:
    model = parsed("""
        m (bool c, float[3] x) => (float[3] y) {
            y = If (c) <
                then_branch = t () => (float[3] a) { a = Exp(x) },
                else_branch = e () => (float[3] b) { b = Neg(x) }
            >
        }
    """)
    graph = fission(import_onnx(model))
    x = np.array([1, -2, np.nan], F)
    with np.errstate(invalid="ignore"):
        for condition, expected in ((True, np.exp(x)), (False, -x)):
            found = evaluate(graph, {"c": np.array(condition), "x": x})["y"]
            check(found, expected)


def test_if_with_a_known_condition_takes_one_branch() -> None:
    model = parsed("""
        m (float[3] x) => (float[3] y) {
            c = Constant <value = bool {0}> ()
            y = If (c) <
                then_branch = t () => (float[3] a) { a = RandomUniformLike(x) },
                else_branch = e () => (float[3] b) { b = Neg(x) }
            >
        }
    """)
    assert [d.primitive for d in fission(import_onnx(model))] == ["neg"]


LOOP = """
    m (float[2] x{more}) => (float[2] last, float[4, 2] all) {{
        n = Constant <value = int64 {{4}}> ()
        {prepare}
        last, all = Loop (n, go, x) <
            body = b (int64 i, bool g, float[2] s) => (bool h, float[2] t, float[2] u) {{
                h = Identity(g)
                f = Cast <to = 1> (i)
                t = Add(s, f)
                u = Mul(t, x)
            }}
        >
    }}
"""


def test_loop_of_a_known_length_is_unrolled() -> None:
    model = parsed(LOOP.format(more="", prepare="go = Constant <value = bool {1}> ()"))
    x = np.array([1, 2], F)
    found = evaluate(fission(import_onnx(model)), {"x": x})
    states = [x, x + 1, x + 3, x + 6]
    check(found["last"], states[-1])
    check(found["all"], np.stack([s * x for s in states]))


def test_loop_whose_length_depends_on_data_is_refused() -> None:
    text = """
        m (float[2] x, int64 n) => (float[2] last) {
            go = Constant <value = bool {1}> ()
            last = Loop (n, go, x) <
                body = b (int64 i, bool g, float[2] s) => (bool h, float[2] t) {
                    h = Identity(g)
                    t = Add(s, s)
                }
            >
        }
    """
    with pytest.raises(UnsupportedModel, match=r"Loop in 1 node .* trip count must be a constant"):
        fission(import_onnx(parsed(text)))


@pytest.mark.parametrize("backward", [0, 1])
def test_scan_is_unrolled(backward: int) -> None:
    model = parsed(f"""
        m (float[2] s, float[3, 2] x) => (float[2] last, float[3, 2] all) {{
            last, all = Scan (s, x) <
                num_scan_inputs = 1, scan_input_directions = [{backward}], scan_output_directions = [{backward}],
                body = b (float[2] a, float[2] p) => (float[2] c, float[2] d) {{
                    c = Add(a, p)
                    d = Identity(c)
                }}
            >
        }}
    """)
    s, x = normal(2), normal(3, 2)
    found = evaluate(fission(import_onnx(model)), {"s": s, "x": x})
    order = x[::-1] if backward else x
    sums = s + np.cumsum(order, 0)
    check(found["last"], sums[-1])
    check(found["all"], sums[::-1] if backward else sums)


def test_operators_without_a_function_use_the_standard_body() -> None:
    assert ("", "AffineGrid") not in OPERATORS
    compare("y = AffineGrid(t, s)", {"t": normal(2, 2, 3)}, {"s": np.array([2, 2, 3, 4])}, opset=20)
    graph = compare("y = NegativeLogLikelihoodLoss(x, t)", {"x": normal(3, 5), "t": np.array([1, 0, 4])}, opset=22)
    assert {d.origin.split("/")[0] for d in graph} == {"NegativeLogLikelihoodLoss_0"}


def test_origin_names_the_operator() -> None:
    graph = graph_of(model_of("a = Exp(x) y = Neg(a)", {"x": normal(2)}))
    assert [(d.primitive, d.origin) for d in graph] == [("exp", "Exp_0"), ("neg", "Neg_0")]


def test_every_unsupported_operator_is_named_at_once() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], [f"r{i}"], name=f"noise_{i}") for i in range(6)]
    nodes.append(helper.make_node("Trilu", ["x", "k"], ["t"], name="triangle"))
    nodes.append(helper.make_node("Sum", ["t", *(f"r{i}" for i in range(6))], ["y"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, (2, 2)), value("k", TensorProto.INT64, ())],
        [value("y", TensorProto.FLOAT, (2, 2))],
    )
    operators = import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    refusals = unsupported(operators)
    assert [(r.op_type, len(r.nodes)) for r in refusals] == [("RandomNormalLike", 6), ("Trilu", 1)]
    with pytest.raises(UnsupportedModel) as error:
        fission(operators)
    assert str(error.value) == (
        "operators that are not supported: "
        "RandomNormalLike in 6 nodes (noise_0, noise_1, noise_2, noise_3 and 2 more): it has no decomposition; "
        "Trilu in 1 node (triangle): its k must be a constant, here it depends on the "
        "model's inputs (replace them, or cut the model before them)"
    )


def test_nothing_is_refused_of_what_is_supported() -> None:
    assert unsupported(import_onnx(model_of("y = Exp(x)", {"x": normal(2)}))) == []


def handmade(op: Operator, x: TensorType, y: TensorType) -> OperatorGraph:
    return OperatorGraph("g", {"x": x, "y": y}, (("x", "x"),), (("y", "y"),), (op,))


def test_an_ill_typed_operator_is_invalid() -> None:
    wrong = handmade(
        Operator("Sqrt", "", 18, "root", ("x",), ("y",)),
        TensorType(DType.INT32, (2,)),
        TensorType(DType.INT32, (2,)),
    )
    with pytest.raises(InvalidModel, match=r"operator Sqrt 'root' does not fit its inputs: sqrt.*not supported"):
        fission(wrong)


def test_a_type_that_the_model_states_otherwise_is_refused() -> None:
    wrong = handmade(
        Operator("Exp", "", 18, "e", ("x",), ("y",)),
        TensorType(DType.FLOAT32, (2,)),
        TensorType(DType.FLOAT32, (3,)),
    )
    with pytest.raises(UnsupportedModel, match=r"output is float32\[2\] here, but the model says float32\[3\]"):
        fission(wrong)


def test_functions_are_named_as_their_operators() -> None:
    standard = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    assert {f.__name__ for f in FUNCTIONS} <= standard
    assert len({f.__name__ for f in FUNCTIONS}) == len(FUNCTIONS)
