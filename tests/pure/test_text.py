"""The text form of graphs: it reads back, one definition a line, and says what is wrong with a bad line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from korch.ir.graph import Definition, Graph
from korch.ir.text import constant_hash, parse_attribute, parse_graph, print_attribute, print_graph
from korch.ir.types import DType, TensorType


def t(text: str) -> TensorType:
    return TensorType.parse(text)


LARGE = np.arange(30, dtype=np.float32).reshape(5, 6)
CONSTANTS = {
    "c0": np.array(0.1, np.float32),
    "c1": np.array([1, -2], np.int64),
    "c2": LARGE,
    "c3": np.array([math.inf, -math.inf, -0.0, 1e-45], np.float32),
    "c4": np.array([True]),
    "c5": np.zeros((0, 3), np.int8),
    "c6": np.array([0.1, 65504], DType.BFLOAT16.numpy),
    "c7": np.array([[2**64 - 1]], np.uint64),
}
TEXT = """\
input x = v0 : float32[2,5]
input "image 1" = v1 : float32[]
constant c0 : float32[] = 0.10000000149011612
constant c1 : int64[2] = (1, -2)
constant c2 : float32[5,6] = sha256:HASH
constant c3 : float32[4] = (inf, -inf, -0.0, 1.401298464324817e-45)
constant c4 : bool[1] = (True,)
constant c5 : int8[0,3] = ()
constant c6 : bfloat16[2] = (0.10009765625, 65536.0)
constant c7 : uint64[1,1] = (18446744073709551615,)
v2 = matmul(v0, c2) : float32[2,6]
v3 = reduce_sum(v2; axes=(1,)) : float32[2]  # Sum_3 (head)
v4, v5 = top_k(v3; axis=0, k=1, largest=True, sorted=False) : float32[1], int64[1]
v6 = pad(v3; before=(1,), shape=(4,), value=-inf) : float32[4]
v6 = concat(c3; axis=0) : float32[4]
output y = v4
output "a = b" = v5
output z = v6
"""


def sample() -> Graph:
    types = {name: TensorType.of(array) for name, array in CONSTANTS.items()}
    types |= {"v0": t("float32[2,5]"), "v1": t("float32[]"), "v2": t("float32[2,6]"), "v3": t("float32[2]")}
    types |= {"v4": t("float32[1]"), "v5": t("int64[1]"), "v6": t("float32[4]")}
    definitions = (
        Definition("matmul", ("v0", "c2"), ("v2",)),
        Definition("reduce_sum", ("v2",), ("v3",), (("axes", (1,)),), "Sum_3\n(head)"),
        Definition("top_k", ("v3",), ("v4", "v5"), (("axis", 0), ("k", 1), ("largest", True), ("sorted", False))),
        Definition("pad", ("v3",), ("v6",), (("before", (1,)), ("shape", (4,)), ("value", -math.inf))),
        Definition("concat", ("c3",), ("v6",), (("axis", 0),)),
    )
    inputs, outputs = (("x", "v0"), ("image 1", "v1")), (("y", "v4"), ("a = b", "v5"), ("z", "v6"))
    return Graph(types, inputs, outputs, definitions, CONSTANTS)


def test_a_graph_prints_one_definition_a_line():
    lines = print_graph(sample()).replace(constant_hash(LARGE), "HASH").splitlines()
    # Quotes may be either sort: Python's repr chooses.
    assert [line.replace("'", '"') for line in lines] == TEXT.splitlines()


def test_a_graph_reads_back():
    graph = sample()
    parsed = parse_graph(print_graph(graph), {"c2": LARGE})
    assert parsed.types == graph.types and parsed.inputs == graph.inputs and parsed.outputs == graph.outputs
    assert parsed.definitions == graph.definitions
    assert [d.origin for d in parsed.definitions] == ["", "Sum_3 (head)", "", "", ""]
    assert list(parsed.constants) == list(graph.constants)
    for name, array in graph.constants.items():
        assert parsed.constants[name].dtype == array.dtype and parsed.constants[name].shape == array.shape
        assert parsed.constants[name].tobytes() == array.tobytes()
    assert print_graph(parsed) == print_graph(graph)


@pytest.mark.parametrize(
    "value",
    [0, -5, 2.5, -0.0, 1e300, math.inf, -math.inf, True, "a'b\"c", (), (1,), ((1, 2), (0.5, -math.inf), ("x",))],
)
def test_attributes_read_back(value):
    assert repr(parse_attribute(print_attribute(value))) == repr(value)


def test_nan_reads_back():
    value = parse_attribute(print_attribute((math.nan, 1)))
    assert isinstance(value, tuple) and isinstance(value[0], float) and math.isnan(value[0])


def test_values_may_be_named_as_keywords():
    types = {"input": t("float32[1]"), "output": t("float32[1]")}
    graph = Graph(types, (("x", "input"),), (("y", "output"),), (Definition("neg", ("input",), ("output",)),))
    parsed = parse_graph(print_graph(graph))
    assert parsed.definitions == graph.definitions and parsed.outputs == graph.outputs


BAD = [
    ("nonsense", "line 1: not understood"),
    ("v1 = neg(v0) : float32[1]", "line 1: v0 is used before"),
    ("input x = v0 : float32[1\n", "line 1: not a tensor type"),
    ("input x = v0 : float33[1]", "line 1: 'float33'"),
    ("input x = v0 : float32[1]\nv1 = neg(v0) : float32[1], float32[1]", "line 2: 1 outputs, but 2 types"),
    ("input x = v0 : float32[1]\nv0 = neg(v0) : float32[2]", "line 2: v0 has the type"),
    ("input x = v0 : float32[1]\nv1 = f(v0; axis=print()) : float32[1]", "line 2: not a literal"),
    ("input x = v0 : float32[1]\nv1 = f(v0; axis) : float32[1]", "line 2: the attributes are not"),
    ("input x = v0 : float32[1]\nv1 = f(v0; axis=() : float32[1]", "line 2:"),
    ("constant c : float32[2] = (1.0,)", "line 1:"),
    ("constant c : float32[20] = sha256:00", "line 1: the constant c is not given"),
    ("output y = v", "line 1: v is used before"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_line_is_named(text: str, message: str):
    with pytest.raises(ValueError) as caught:
        parse_graph(text)
    assert str(caught.value).startswith(message)


def test_a_large_constant_must_have_its_hash():
    graph = sample()
    with pytest.raises(ValueError, match="another hash"):
        parse_graph(print_graph(graph), {"c2": LARGE + 1})
    assert constant_hash(LARGE) != constant_hash(LARGE.reshape(6, 5))
    assert constant_hash(LARGE.T) == constant_hash(np.ascontiguousarray(LARGE.T))
