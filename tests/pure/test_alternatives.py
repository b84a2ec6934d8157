"""Each rule fires where it should, refuses with its reason elsewhere, and keeps the value; growth is bounded."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from korch.alternatives.rule import Caps, Firing, Match, Replacement, Rule, add_alternatives
from korch.alternatives.rules import RULES, rules_for
from korch.alternatives.summary import summary_of
from korch.ir.evaluate import evaluate_values
from korch.ir.graph import Definition, Graph
from korch.report.rules import rules_text
from tests.pure.rule_graphs import Sketch, check, choices, conv, fire, refused, rule_named


def softplus_tanh(dtype: str = "float32", magnitude: str = "abs") -> Graph:
    s = Sketch(dtype)
    x = s.input(2, 3, 4, 4)
    high = s("max", x, s.filled(0.0, x))
    tail = s("log1p", s("exp", s("neg", s(magnitude, x))))
    s("tanh", s("add", high, tail))
    return s.graph()


def normalised(axis: int = 1, *, shared: bool = False, groups: int = 1, fixed: bool = True) -> Graph:
    s = Sketch()
    x = s.input(1, 4, 5, 5)
    y = conv(s, x, s.weight(4, 4 // groups, 3, 3) if fixed else s.input(4, 4, 3, 3), pads=(1,) * 4, groups=groups)
    z = s("mul", s("sub", y, s.along(axis, y)), s.along(axis, y))
    z = s("add", z, s.along(axis, z))
    return s.graph(z, s("neg", y)) if shared else s.graph(z)


def scaled_input(pads: int = 0, axis: int = 1) -> Graph:
    s = Sketch()
    x = s.input(1, 2, 5, 5)
    y = s("add", s("mul", x, s.along(axis, x)), s.along(axis, x))
    conv(s, y, s.weight(3, 2, 3, 3), pads=(pads,) * 4)
    return s.graph()


def scaled_in_passing() -> Graph:
    s = Sketch()
    x = s("exp", s.input(2, 4))
    s("matmul", s("mul", x, s.along(1, x)), s.weight(4, 3))
    return s.graph()


def heads(shared: bool = False) -> Graph:
    s = Sketch()
    y = s("matmul", s.input(2, 3, 4), s.weight(4, 6))
    y = s("add", y, s.along(2, y))
    z = s("transpose", s("reshape", y, shape=(2, 3, 2, 3)), perm=(0, 2, 1, 3))
    z = s("mul", z, s.filled(0.5, z))
    return s.graph(z, y) if shared else s.graph(z)


def attention(rows: int = 8, keys: int = 8, depth: int = 2) -> Graph:
    s = Sketch()
    scores, v = s.input(1, rows, keys), s.input(1, keys, depth)
    e = s("exp", s("min", scores, s.filled(4.0, scores)))
    total = s("reduce_sum", e, axes=(2,))
    p = s("div", e, s("broadcast", total, shape=(1, rows, keys), axes=(0, 1)))
    s("matmul", p, v)
    return s.graph()


def scores(last: str = "", depth: int = 2) -> Graph:
    s = Sketch()
    y = s("matmul", s.input(2, 8, depth), s.input(2, depth, 8))
    y = s("div", y, s.filled(4.0, y))
    return s.graph(s(last, y) if last else y)


def projections(groups: int = 1, fixed: bool = True) -> Graph:
    s = Sketch()
    x = s.input(1, 4, 3, 3)
    weights = [s.weight(n, 4 // groups, 1, 1) if fixed else s.input(n, 4, 1, 1) for n in (2, 4)]
    return s.graph(*(conv(s, x, w, groups=groups) for w in weights))


def summed(kernel: int = 1, shared: bool = False) -> Graph:
    s = Sketch()
    a, b = s.input(1, 2, 4, 4), s.input(1, 3, 4, 4)
    y = conv(s, a, s.weight(2, 2, 1, 1))
    z = conv(s, b, s.weight(2, 3, kernel, kernel), pads=(kernel // 2,) * 4)
    t = s("add", s("add", y, s.along(1, y)), z)
    return s.graph(t, s("neg", y)) if shared else s.graph(t)


def two_linear(middle: int = 4, groups: int = 1) -> Graph:
    s = Sketch()
    y = conv(s, s.input(1, 2, 4, 4), s.weight(middle, 2 // groups, 3, 3), groups=groups)
    conv(s, s("add", y, s.along(1, y)), s.weight(2, middle, 1, 1))
    return s.graph()


def stretched(s: Sketch, x: str, factor: int = 2) -> str:
    for axis in (2, 3):
        n = s.types[x].shape[axis]
        pairs = tuple((i // factor, min(n - 1, i // factor + 1)) for i in range(factor * n))
        x = s("resample", x, axis=axis, indices=pairs, weights=((0.75, 0.25),) * (factor * n))
    return x


def head(kernel: int = 1, groups: int = 1) -> Graph:
    """Branches of several resolutions brought to one, concatenated, and convolved: SegFormer's decoder."""
    s = Sketch()
    parts = [s.input(1, 2, 8, 8), stretched(s, s.input(1, 12, 4, 4)), stretched(s, s.input(1, 16, 2, 2), 4)]
    whole = s("concat", *parts, axis=1)
    conv(s, whole, s.weight(2 * groups, 30 // groups, kernel, kernel), groups=groups)
    return s.graph()


def thin_branch() -> Graph:
    s = Sketch()
    parts = [s.input(1, 8, 8, 8), stretched(s, s.input(1, 1, 4, 4))]
    conv(s, s("concat", *parts, axis=1), s.weight(2, 9, 1, 1))
    return s.graph()


def two_stretched(factor: int = 2, other: int = 2) -> Graph:
    s = Sketch()
    a, b = s.input(1, 2, 4, 4), s.input(1, 2, 8 // other, 8 // other)
    s("add", stretched(s, a, factor), stretched(s, b, other))
    return s.graph()


def shrunk_sum() -> Graph:
    s = Sketch()
    parts = [s("take", s.input(1, 2, 6), axis=2, indices=(0, 3, 5)) for _ in range(2)]
    s("add", *parts)
    return s.graph()


def upsampled(border: str = "zeros", groups: int = 1) -> Graph:
    s = Sketch()
    x = s.input(1, 2, 4, 4)
    for axis in (2, 3):
        x = s("take", x, axis=axis, indices=tuple(i // 2 for i in range(8)))
    if border == "reflect":
        for axis in (2, 3):
            x = s("take", x, axis=axis, indices=(1, *range(8), 6))
    if border == "reflect by 2":
        for axis in (2, 3):
            x = s("take", x, axis=axis, indices=(2, 1, *range(8), 6, 5))
    conv(s, x, s.weight(2, 2 // groups, 3, 3), pads=(1,) * 4 if border == "zeros" else (0,) * 4, groups=groups)
    return s.graph()


def transposed_conv(groups: int = 1) -> Graph:
    s = Sketch()
    s(
        "conv_transpose", s.input(1, 2, 4, 4), s.weight(2, 3, 4, 4),
        strides=(2, 2), dilations=(1, 1), pads=(1, 1), groups=groups, shape=(1, 3 * groups, 8, 8),
    )  # fmt: skip
    return s.graph()


def dilated(stride: int = 1) -> Graph:
    s = Sketch()
    conv(s, s.input(1, 2, 9, 9), s.weight(2, 2, 3, 3), stride, 2, (2,) * 4)
    return s.graph()


def padded(value: float = 0.0) -> Graph:
    s = Sketch()
    x = s("pad", s.input(1, 2, 4, 4), before=(0, 0, 0, 1), shape=(1, 2, 5, 5), value=value)
    conv(s, x, s.weight(2, 2, 2, 2))
    return s.graph()


def pad_and_slice(whole: bool = True) -> Graph:
    s = Sketch()
    x = s("pad", s.input(3, 4), before=(1, 1), shape=(5, 6), value=0.5)
    if whole:
        s("slice", x, starts=(1, 1), steps=(1, 1), shape=(3, 4))
    else:
        s("slice", x, starts=(0, 2), steps=(1, 1), shape=(4, 3))
    return s.graph()


def slice_of_parts(start: int = 3) -> Graph:
    s = Sketch()
    x = s("concat", s.input(2, 3), s.input(2, 4), axis=1)
    s("slice", x, starts=(0, start), steps=(1, 1), shape=(2, 4))
    return s.graph()


def chunks(shared: bool = False) -> Graph:
    s = Sketch()
    y = s("matmul", s.input(3, 4), s.weight(4, 6))
    parts = [s("slice", y, starts=(0, k), steps=(1, 1), shape=(3, 3)) for k in (0, 3)]
    return s.graph(*parts, *([y] if shared else []))


def reordered(perm: tuple[int, ...] = (0, 2, 1), split: bool = False) -> Graph:
    s = Sketch()
    x = s("transpose", s("reshape", s.input(2, 3, 4, 1), shape=(2, 3, 4)), perm=(0, 2, 1))
    x = s("reshape", x, shape=(8, 3)) if split else x
    s("transpose", x, perm=perm)
    return s.graph()


def around_elementwise(perm: tuple[int, ...] = (0, 2, 1), shared: bool = False) -> Graph:
    s = Sketch()
    x = s("transpose", s.input(2, 3, 4), perm=(0, 2, 1))
    y = s("add", s("exp", s("neg", s("abs", x))), s.along(2, x))
    z = s("transpose", y, perm=perm)
    return s.graph(z, y) if shared else s.graph(z)


def own_operand() -> Graph:
    s = Sketch()
    x = s("transpose", s.input(2, 3, 4), perm=(0, 2, 1))
    s("transpose", s("add", x, s.input(2, 4, 3)), perm=(0, 2, 1))
    return s.graph()


def reduced(primitive: str, shared: bool = False) -> Graph:
    s = Sketch()
    x = s("transpose", s.input(2, 3, 4), perm=(2, 0, 1))
    y = s(primitive, x, axes=(0,))
    return s.graph(y, x) if shared else s.graph(y)


def product_transposed(left: bool = True) -> Graph:
    s = Sketch()
    a = s("transpose", s.input(2, 4, 3), perm=(0, 2, 1)) if left else s.input(2, 3, 4)
    s("transpose", s("matmul", a, s.input(2, 4, 5)), perm=(0, 2, 1))
    return s.graph()


FIRES: dict[str, list[Graph]] = {
    "pad_into_window": [padded()],
    "picks_merged": [pad_and_slice()],
    "slice_of_concat": [slice_of_parts()],
    "slice_into_weights": [chunks()],
    "orders_merged": [reordered(), reordered((1, 2, 0))],
    "order_around_elementwise": [around_elementwise()],
    "order_before_extreme": [reduced("reduce_max")],
    "order_before_sum": [reduced("reduce_sum")],
    "transposed_product": [product_transposed()],
    "affine_into_weights": [normalised(), normalised(groups=2)],
    "affine_before_weights": [scaled_input()],
    "scale_past_matmul": [attention()],
    "scale_before_matmul": [scores()],
    "scalar_into_weights": [heads()],
    "pointwise_before_enlarging": [head()],
    "sum_before_resampling": [two_stretched()],
    "repeated_then_convolved": [upsampled(), upsampled("reflect")],
    "transposed_as_convolution": [transposed_conv()],
    "dilated_in_phases": [dilated()],
    "sharing_input_merged": [projections()],
    "sum_of_linear": [summed()],
    "pointwise_merged": [two_linear()],
}


@pytest.mark.parametrize(("rule", "graph"), [(rule, graph) for rule, graphs in FIRES.items() for graph in graphs])
def test_a_rule_adds_an_equal_definition(rule: str, graph: Graph) -> None:
    check(graph, rule, exact=rule != "scale_past_matmul" and rule != "sum_before_resampling")


FLOAT32_ONLY = "only for float32, whose exp(20) squared is finite and whose tanh is 1 beyond"

REFUSES: list[tuple[str, Graph, str]] = [
    ("tanh_of_softplus", softplus_tanh("float16"), FLOAT32_ONLY),
    ("pad_into_window", padded(1.0), "the padding is not what the window leaves out"),
    ("picks_merged", pad_and_slice(whole=False), "more than one movement is left"),
    ("slice_of_concat", slice_of_parts(2), "the slice reads more than one part"),
    ("slice_into_weights", chunks(shared=True), "the whole result is used too"),
    ("orders_merged", reordered((1, 0), split=True), "no transpose is saved"),
    ("order_around_elementwise", around_elementwise(shared=True), "the value is needed in this order too"),
    ("order_around_elementwise", own_operand(), "an operand does not come out of a movement that is undone"),
    ("order_before_extreme", reduced("reduce_min", shared=True), "the transposed value is needed too"),
    ("order_before_sum", reduced("reduce_prod", shared=True), "the transposed value is needed too"),
    ("transposed_product", product_transposed(left=False), "neither operand is transposed"),
    ("affine_into_weights", normalised(axis=3), "a constant differs within a channel"),
    ("affine_into_weights", normalised(shared=True), "the value before the constant is used elsewhere"),
    ("affine_into_weights", normalised(fixed=False), "the weight is not a constant"),
    ("affine_before_weights", scaled_input(pads=1), "a bias does not reach over the padded border"),
    ("affine_before_weights", scaled_in_passing(), "what makes the operand scales it in passing"),
    ("scale_past_matmul", attention(depth=8), "the product is not smaller than half the operand that is scaled"),
    ("scale_before_matmul", scores("exp"), "what reads the product scales it in passing"),
    ("scale_before_matmul", scores(depth=6), "neither operand is smaller than half the product"),
    ("scalar_into_weights", heads(shared=True), "the unscaled value is used elsewhere"),
    ("pointwise_before_enlarging", head(kernel=3), "the convolution reads more than one position"),
    ("pointwise_before_enlarging", head(groups=2), "the convolution has groups"),
    ("pointwise_before_enlarging", thin_branch(), "adding up the parts costs more than the convolution saves"),
    ("sum_before_resampling", shrunk_sum(), "the resampling makes its input smaller"),
    ("repeated_then_convolved", upsampled("reflect by 2"), "elements are repeated, but not in blocks of one size"),
    ("repeated_then_convolved", upsampled(groups=2), "the convolution has groups"),
    ("transposed_as_convolution", transposed_conv(groups=2), "the transposed convolution has groups"),
    ("dilated_in_phases", dilated(stride=2), "a strided axis is dilated"),
    ("sharing_input_merged", projections(groups=2), "the convolutions have groups"),
    ("sharing_input_merged", projections(fixed=False), "the weight is not a constant"),
    ("sum_of_linear", summed(kernel=3), "the summed convolutions differ in their kernels or inputs"),
    ("sum_of_linear", summed(shared=True), "a part of the sum is used elsewhere"),
    ("pointwise_merged", two_linear(middle=1), "the merged weight needs more multiplications than the two"),
    ("pointwise_merged", two_linear(groups=2), "the first convolution has groups"),
    ("sum_as_product", attention(), "no matrix product reads what is summed: a sum alone is cheaper as a sum"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "graph", "reason"), REFUSES)
def test_a_guard_gives_its_reason(rule: str, graph: Graph, reason: str) -> None:
    assert reason in refused(graph, rule)


def test_every_rule_has_both_tests_and_states_its_equation() -> None:
    names = {r.name for r in RULES}
    assert len(names) == len(RULES)
    assert names == set(FIRES) | {"tanh_of_softplus", "sum_as_product"}
    assert names == {name for name, _, _ in REFUSES}
    assert all("=" in r.equation for r in RULES)


def test_softmax_division_and_sum_come_out_of_one_product() -> None:
    """Round by round: the division moves past the product, then the sum becomes a column of it."""
    graph = attention()
    check(graph, "scale_past_matmul", "sum_as_product", exact=False)
    more, firings = fire(graph, "scale_past_matmul", "sum_as_product")
    assert [f.rule for f in firings if f.reason is None].count("sum_as_product") == 2
    wide = [d for d in more.definitions if d.primitive == "matmul" and more.types[d.outputs[0]].shape[-1] == 3]
    assert len(wide) == 1, "both slices are of the same product"


def test_the_head_is_one_small_product_per_branch() -> None:
    """A linear layer before the resampling merges with the convolution behind it, across resampling and concat."""
    s = Sketch()
    parts = []
    for size, factor in ((8, 1), (4, 2)):
        y = s("matmul", s.input(1, size * size, 3), s.weight(3, 16))
        y = s("transpose", s("add", y, s.along(2, y)), perm=(0, 2, 1))
        y = s("reshape", y, shape=(1, 16, size, size))
        parts.append(stretched(s, y, factor) if factor > 1 else y)
    y = conv(s, s("concat", *parts, axis=1), s.weight(4, 32, 1, 1))
    s("mul", y, s.along(1, y))
    graph = s.graph()
    rules = ("affine_into_weights", "pointwise_before_enlarging", "pointwise_merged")
    check(graph, *rules, exact=False)
    more, firings = fire(graph, *rules)
    assert {f.rule for f in firings if f.reason is None} == set(rules)
    products = [d for d in more.definitions if d not in graph.definitions and d.primitive == "matmul"]
    assert len(products) >= 2


def test_tanh_of_softplus_keeps_the_class_of_every_element() -> None:
    graph = softplus_tanh()
    more, firings = fire(graph, "tanh_of_softplus")
    assert [f.reason for f in firings] == [None]
    x = np.random.default_rng(0).standard_normal(graph.types["x0"].shape).astype(np.float32) * 8
    x.reshape(-1)[:9] = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 88, -88, 3e38, -3e38]
    y = graph.output_values[0]
    before = evaluate_values(graph, {"x0": x}, [y])[y]
    after = evaluate_values(choices(graph, more)[-1], {"x0": x}, [y])[y]
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("rule", [r.name for r in RULES if r.label == "exact"])
def test_an_exact_rule_keeps_every_bit_of_odd_values(rule: str) -> None:
    """NaN, infinities, -0.0 and denormals anywhere in the inputs: class and sign of every element stay, and for what
    only moves elements also their bits."""
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, -5e-324, 1.0, -1.5, 1e308])
    for graph in FIRES[rule]:
        more, _ = fire(graph, rule)
        for seed in range(30):
            rng = np.random.default_rng(seed)
            inputs = {v: rng.choice(odd, graph.types[v].shape) for v in graph.input_values}
            if seed % 2:  # mostly finite, so that sums have a class and a sign
                inputs = {
                    v: np.where(rng.random(a.shape) < 0.9, rng.standard_normal(a.shape), a) for v, a in inputs.items()
                }
            wanted = evaluate_values(graph, inputs, graph.output_values)
            for other in choices(graph, more):
                got = evaluate_values(other, inputs, graph.output_values)
                for v in graph.output_values:
                    np.testing.assert_array_equal(np.isnan(got[v]), np.isnan(wanted[v]))
                    np.testing.assert_array_equal(np.isinf(got[v]), np.isinf(wanted[v]))
                    shown = ~np.isnan(wanted[v])
                    np.testing.assert_array_equal(np.signbit(got[v])[shown], np.signbit(wanted[v])[shown])
                    np.testing.assert_allclose(got[v], wanted[v], rtol=1e-12)


def test_weights_that_would_not_be_finite_are_not_folded() -> None:
    s = Sketch("float32")
    y = conv(s, s.input(1, 1, 3), s.constant(np.full((1, 1, 1), 1e38)))
    s("mul", y, s.filled(100.0, y))
    assert refused(s.graph(), "affine_into_weights") == {"a folded weight is not finite"}


def test_constants_are_folded_in_float64_and_rounded_once() -> None:
    s = Sketch("float32")
    w, a, b = (np.float32(v) for v in (1.1, 1.3, 1.7))
    y = conv(s, s.input(1, 1, 3), s.constant(np.full((1, 1, 1), w)))
    y = s("mul", y, s.filled(float(a), y))
    s("mul", y, s.filled(float(b), y))
    more, _ = fire(s.graph(), "affine_into_weights")
    added = [array for name, array in more.constants.items() if name not in s.constants]
    folded = next(array for array in added if array.shape == (1, 1, 1))
    assert folded.item() == np.float32(np.float64(w) * np.float64(a) * np.float64(b))


def test_narrow_weights_are_not_folded() -> None:
    s = Sketch("float16")
    y = conv(s, s.input(1, 1, 3), s.weight(1, 1, 1))
    s("mul", y, s.filled(2.0, y))
    assert refused(s.graph(), "affine_into_weights") == {
        "constants are folded into weights of float32 and float64 only"
    }


def test_a_pattern_that_is_not_there_is_no_refusal() -> None:
    graph = softplus_tanh(magnitude="neg")
    assert fire(graph, "tanh_of_softplus") == (graph, ())


def test_strict_numerics_takes_exact_rules_only() -> None:
    strict = rules_for("strict")
    assert strict
    assert all(r.label == "exact" for r in strict)
    assert rules_for("default") == RULES


def endless(name: str) -> Rule:
    """A rule that finds something new to add, however often it is tried."""

    def apply(match: Match, d: Definition, new: Replacement) -> Replacement | str:
        """-x = (c - c) - x, of another c each time."""
        c = new.constant(np.full(match.shape(d.inputs[0]), float(len(match.definitions))))
        return new.end(d.outputs[0], "sub", new.emit("neg", new.emit("sub", c, c)), d.inputs[-1])

    apply.__name__ = name
    return Rule("exact", ("neg", "sub"), apply)


def test_growth_is_bounded_and_the_caps_are_reported() -> None:
    s = Sketch()
    x = s.input(2)
    for _ in range(3):
        x = s("neg", x)
    graph = s.graph()
    rules = [endless("one"), endless("two"), endless("three")]
    for caps, cap in (
        (Caps(rounds=6, per_value=2, least=1000), "cap: the value has 2 alternatives already"),
        (Caps(rounds=6, per_value=100, share=4.0, least=0), "cap: the graph has grown by as much as it may"),
    ):
        more, firings = add_alternatives(graph, rules, caps)
        assert len(graph) < len(more) <= len(graph) + max(caps.least, caps.share * len(graph))
        assert all(len(ids) <= 1 + caps.per_value for v, ids in more.definers().items() if v in graph.types)
        assert cap in {f.reason for f in firings}
    once, _ = add_alternatives(graph, rules, Caps(rounds=1, per_value=100))
    twice, _ = add_alternatives(graph, rules, Caps(rounds=2, per_value=100))
    assert len(once) < len(twice)


def test_what_exists_is_not_made_twice() -> None:
    def more_than_once(match: Match, d: Definition, new: Replacement) -> Replacement | str:
        """x + y = -(-y - x)."""
        x, y = d.inputs
        return new.end(d.outputs[0], "neg", new.emit("sub", new.emit("neg", y), x))

    s = Sketch()
    x, y = s.input(2), s.input(2)
    s.graph(s("add", x, y), s("sub", s("neg", y), x))
    more, _ = add_alternatives(s.graph(), [Rule("exact", ("add",), more_than_once)])
    assert [d.primitive for d in more.definitions] == ["add", "neg", "sub", "neg"]


def test_a_value_is_never_defined_by_itself() -> None:
    def circular(match: Match, d: Definition, new: Replacement) -> Replacement | str:
        """-x = a - of what comes after it."""
        (user,) = match.users(d.outputs[0]) or [d]
        return new.end(d.outputs[0], "neg", user.outputs[0])

    s = Sketch()
    s("neg", s("exp", s("neg", s.input(2))))
    more, firings = add_alternatives(s.graph(), [Rule("exact", ("neg",), circular)])
    assert more == s.graph()
    assert {f.reason for f in firings} == {"the value would be defined by itself"}


def test_alternatives_stand_behind_the_models_definition_and_before_its_users() -> None:
    for graphs in FIRES.values():
        for graph in graphs:
            more, _ = add_alternatives(graph, RULES)
            definers = more.definers()
            for i, d in enumerate(more.definitions):
                assert all(j < i for v in d.inputs for j in definers.get(v, ()))
            assert all(more.definitions[ids[0]] in graph.definitions for v, ids in definers.items() if v in graph.types)


def test_all_rules_together_keep_every_value() -> None:
    for graphs in FIRES.values():
        for graph in graphs:
            check(graph, *(r.name for r in RULES), fires=None, exact=False)


def test_a_rule_is_known_by_its_functions_name() -> None:
    assert rule_named("scale_past_matmul").name == "scale_past_matmul"


def test_the_documentation_lists_all_rules_in_their_order() -> None:
    page = Path(__file__).parents[2] / "docs" / "alternatives.md"
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(r.name, r.label) for r in RULES]


def test_the_summary_counts_equal_reasons() -> None:
    graph = attention()
    rules = [rule_named("scale_past_matmul"), rule_named("sum_as_product"), rule_named("picks_merged")]
    _, firings = add_alternatives(graph, rules)
    found = {entry["rule"]: entry for entry in summary_of(rules, firings)}
    assert found["scale_past_matmul"]["fired"] == {"count": 1, "where": ["node"]}
    assert found["picks_merged"]["fired"]["count"] == 0
    assert found["picks_merged"]["refused"] == []
    refusals = summary_of(rules, [*firings, *(Firing("picks_merged", f"v{k}", f"n{k}", "why") for k in range(9))])
    assert refusals[2]["refused"] == [{"reason": "why", "count": 9, "where": ["n0", "n1", "n2", "n3"]}]
    text = rules_text("model", refusals)
    assert "refused 9 times, why: n0, n1, n2, n3, ..." in text
    assert "did not fire" in text
