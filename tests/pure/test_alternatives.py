"""Each rule fires where it should, refuses with its reason elsewhere, and keeps the value."""

from __future__ import annotations

import numpy as np
import pytest

from korch.alternatives.rule import Firing, add_alternatives
from korch.alternatives.rules import RULES, rules_for
from korch.ir.evaluate import evaluate_values
from korch.ir.graph import Definition, Graph
from korch.ir.types import DType, TensorType


def softplus_tanh(dtype: str = "float32", magnitude: str = "abs") -> Graph:
    t = TensorType(DType(dtype), (2, 3, 4, 4))
    names = ["x", "z", "hi", "m", "n", "e", "l", "s", "y"]
    definitions = (
        Definition("broadcast", ("zero",), ("z",), (("axes", ()), ("shape", t.shape))),
        Definition("max", ("x", "z"), ("hi",)),
        Definition(magnitude, ("x",), ("m",)),
        Definition("neg", ("m",), ("n",)),
        Definition("exp", ("n",), ("e",)),
        Definition("log1p", ("e",), ("l",)),
        Definition("add", ("hi", "l"), ("s",)),
        Definition("tanh", ("s",), ("y",)),
    )
    types = {**dict.fromkeys(names, t), "zero": TensorType(t.dtype, ())}
    return Graph(types, (("x", "x"),), (("y", "y"),), definitions, {"zero": np.zeros((), t.dtype.numpy)})


def conv_scaled(per_channel: bool = True) -> Graph:
    rng = np.random.default_rng(0)
    f = DType.FLOAT32
    out = TensorType(f, (1, 4, 5, 5))
    attributes = (("dilations", (1, 1)), ("groups", 1), ("pads", (1, 1, 1, 1)), ("strides", (1, 1)))
    axes, shape = ((1,), (4,)) if per_channel else ((3,), (5,))
    definitions = (
        Definition("conv", ("x", "w"), ("c",), attributes),
        Definition("broadcast", ("k",), ("s",), (("axes", axes), ("shape", out.shape))),
        Definition("mul", ("c", "s"), ("y",)),
    )
    types = {
        "x": TensorType(f, (1, 3, 5, 5)), "w": TensorType(f, (4, 3, 3, 3)), "k": TensorType(f, shape),
        "c": out, "s": out, "y": out,
    }  # fmt: skip
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "k": rng.standard_normal(shape).astype(np.float32),
    }
    return Graph(types, (("x", "x"),), (("y", "y"),), definitions, constants)


def conv_of_resampled(kernel: int = 1, parts: int = 2, pads: int = 0) -> Graph:
    """A convolution over the concatenation of a tensor and of others stretched twofold along both axes."""
    rng = np.random.default_rng(0)
    f = DType.FLOAT32
    indices = tuple((min(i // 2, 2), min((i + 1) // 2, 2)) for i in range(6))
    weights = tuple((0.75, 0.25) for _ in range(6))
    definitions: list[Definition] = []
    types: dict[str, TensorType] = {}
    names: list[str] = []
    for k in range(parts):
        if k == 1:
            types["x1"] = TensorType(f, (1, 3, 6, 6))
            names.append("x1")
            continue
        types[f"x{k}"] = TensorType(f, (1, 2, 3, 3))
        types[f"h{k}"], types[f"r{k}"] = TensorType(f, (1, 2, 6, 3)), TensorType(f, (1, 2, 6, 6))
        for axis, source, target in ((2, f"x{k}", f"h{k}"), (3, f"h{k}", f"r{k}")):
            attributes = (("axis", axis), ("indices", indices), ("weights", weights))
            definitions.append(Definition("resample", (source,), (target,), attributes))
        names.append(f"r{k}")
    channels = sum(types[n].shape[1] for n in names)
    types["c"] = TensorType(f, (1, channels, 6, 6))
    whole = "c"
    if parts > 1:
        definitions.append(Definition("concat", tuple(names), ("c",), (("axis", 1),)))
    else:
        whole = names[0]
    out = 6 - kernel + 1 + 2 * pads
    types["w"], types["y"] = TensorType(f, (4, channels, kernel, kernel)), TensorType(f, (1, 4, out, out))
    attributes = (("dilations", (1, 1)), ("groups", 1), ("pads", (pads,) * 4), ("strides", (1, 1)))
    definitions.append(Definition("conv", (whole, "w"), ("y",), attributes))
    constants = {"w": rng.standard_normal(types["w"].shape).astype(np.float32)}
    inputs = tuple((f"x{k}", f"x{k}") for k in range(parts))
    return Graph(types, inputs, (("y", "y"),), tuple(definitions), constants)


def only_last(graph: Graph, value: str) -> Graph:
    """The graph in which the value has only the definition that was added last."""
    keep = max(i for i, d in enumerate(graph.definitions) if value in d.outputs)
    definitions = tuple(d for i, d in enumerate(graph.definitions) if value not in d.outputs or i == keep)
    return Graph(graph.types, graph.inputs, graph.outputs, definitions, graph.constants)


@pytest.mark.parametrize(
    ("rule", "graph"),
    [
        (RULES[0], softplus_tanh()),
        (RULES[1], conv_scaled()),
        (RULES[2], conv_of_resampled(parts=1)),
        (RULES[2], conv_of_resampled(parts=2)),
        (RULES[2], conv_of_resampled(parts=4)),
    ],
)
def test_a_rule_adds_an_equal_definition(rule, graph):
    more, firings = add_alternatives(graph, [rule])
    assert [f.reason for f in firings] == [None]
    assert set(graph.definitions) <= set(more.definitions)
    rng = np.random.default_rng(1)
    inputs = {v: (4 * rng.standard_normal(graph.types[v].shape)).astype(np.float32) for v in graph.input_values}
    before = evaluate_values(graph, inputs, ["y"], double=True)["y"]
    after = evaluate_values(only_last(more, "y"), inputs, ["y"])["y"]
    np.testing.assert_allclose(after, before, rtol=2e-5, atol=5e-5)


def test_tanh_of_softplus_keeps_the_class_of_every_element():
    graph = softplus_tanh()
    more, _ = add_alternatives(graph, [RULES[0]])
    x = np.zeros(graph.types["x"].shape, np.float32)
    x.reshape(-1)[:9] = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 88, -88, 3e38, -3e38]
    before = evaluate_values(graph, {"x": x}, ["y"])["y"]
    after = evaluate_values(only_last(more, "y"), {"x": x}, ["y"])["y"]
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(
    ("rule", "graph", "reason"),
    [
        (
            RULES[0],
            softplus_tanh("float16"),
            "only for float32, whose exp(20) squared is finite and whose tanh is 1 beyond",
        ),
        (RULES[1], conv_scaled(per_channel=False), "the factor differs within a channel"),
        (RULES[2], conv_of_resampled(kernel=3), "the convolution reads more than one position"),
        (RULES[2], conv_of_resampled(pads=1), "the convolution reads more than one position"),
    ],
)
def test_a_guard_gives_its_reason(rule, graph, reason):
    more, firings = add_alternatives(graph, [rule])
    assert firings == (Firing(rule.name, "y", "", reason),)
    assert more == graph


def test_a_pattern_that_is_not_there_is_no_refusal():
    graph = softplus_tanh(magnitude="neg")
    assert add_alternatives(graph, [RULES[0]]) == (graph, ())


def test_strict_numerics_takes_exact_rules_only():
    assert all(r.label == "exact" for r in rules_for("strict"))
    assert rules_for("default") == RULES


def test_every_rule_states_its_equation():
    assert all("=" in r.equation for r in RULES)
