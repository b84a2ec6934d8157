"""Contraction: what moves as one, what is computed again wherever it is needed, and what is not touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from korch.candidates.groups import groups_of, live_definitions, reads_of
from korch.ir.graph import Graph
from tests.pure.random_graphs import Sketch


def owns(graph: Graph) -> list[tuple[str, ...]]:
    return [tuple(graph.definitions[d].primitive for d in g.own) for g in groups_of(graph).groups]


def test_a_chain_is_one_group() -> None:
    s = Sketch(x=(4,))
    y = s.add("exp", s.add("tanh", s.add("neg", "x")))
    assert owns(s.graph(y)) == [("neg", "tanh", "exp")]


def test_a_gate_reads_its_input_twice_and_is_one_group() -> None:
    s = Sketch(x=(4,))
    y = s.add("mul", "x", s.add("tanh", s.add("neg", "x")))
    assert owns(s.graph(y)) == [("neg", "tanh", "mul")]


def test_branches_that_meet_again_are_one_group() -> None:
    s = Sketch(x=(4,))
    e = s.add("exp", "x")
    n = s.add("mul", e, s.add("neg", e))
    y = s.add("where", s.add("lt", "x", n), s.add("div", n, s.add("tanh", n)), "x")
    assert len(owns(s.graph(y))) == 1


def test_a_second_operand_stops_a_chain() -> None:
    s = Sketch(x=(4,), z=(4,))
    total = s.add("add", s.add("neg", "x"), "z")
    y = s.add("tanh", total)
    assert owns(s.graph(y)) == [("neg",), ("add", "tanh")]


def test_a_value_with_two_readers_stays_alone() -> None:
    s = Sketch(x=(4,))
    a = s.add("neg", "x")
    y, z = s.add("tanh", a), s.add("exp", a)
    assert owns(s.graph(y, z)) == [("neg",), ("tanh",), ("exp",)]


def test_an_output_stays_alone() -> None:
    s = Sketch(x=(4,))
    a = s.add("neg", "x")
    y = s.add("tanh", a)
    assert owns(s.graph(a, y)) == [("neg",), ("tanh",)]


def test_a_value_with_alternatives_stays_alone() -> None:
    s = Sketch(x=(4,))
    a = s.add("neg", "x")
    s.add("tanh", "x", value=a)
    y = s.add("exp", a)
    assert owns(s.graph(y)) == [("neg",), ("tanh",), ("exp",)]


def test_no_more_definitions_than_the_limit() -> None:
    s, y = Sketch(x=(4,)), "x"
    for _ in range(10):
        y = s.add("neg", y)
    assert [len(g.own) for g in groups_of(s.graph(y), limit=4).groups] == [4, 4, 2]


def test_a_repeated_constant_belongs_to_each_reader() -> None:
    s = Sketch(x=(4, 3), y=(4, 3))
    b = s.add("broadcast", s.constant(np.ones(3)), shape=(4, 3), axes=(1,))
    p, q = s.add("add", "x", b), s.add("mul", "y", b)
    groups = groups_of(s.graph(p, q)).groups
    assert [g.own for g in groups] == [(1,), (2,)]
    assert [g.definitions for g in groups] == [(0, 1), (0, 2)]
    assert [g.reads for g in groups] == [("x",), ("y",)]


def test_a_repeated_value_belongs_to_its_elementwise_readers_only() -> None:
    s = Sketch(x=(4, 3), m=(4,))
    b = s.add("broadcast", s.add("neg", "m"), shape=(4, 3), axes=(0,))
    p, q = s.add("sub", "x", b), s.add("transpose", b, perm=(1, 0))
    groups = {g.values[0]: g for g in groups_of(s.graph(p, q)).groups}
    assert groups[p].definitions == (1, 2)
    assert groups[p].reads == ("v0", "x")
    assert groups[b].definitions == (1,)
    assert groups[q].definitions == (3,) and groups[q].reads == (b,)


def test_a_constant_output_has_a_group() -> None:
    s = Sketch(x=(2,))
    b = s.add("broadcast", s.constant(np.array(2.0)), shape=(2,), axes=())
    y = s.add("add", "x", b)
    groups = {g.values[0]: g for g in groups_of(s.graph(b, y)).groups}
    assert groups[b].reads == () and groups[y].definitions == (0, 1)


def test_the_backend_may_refuse_a_free_operand() -> None:
    s = Sketch(x=(2, 3))
    w = s.add("broadcast", s.constant(np.ones(3)), shape=(3, 3), axes=(1,))
    y = s.add("matmul", "x", w)
    graph = s.graph(y)

    def alone(_: Graph, definitions: Sequence[int]) -> str | None:
        return "no" if len(definitions) > 1 else None

    assert [g.definitions for g in groups_of(graph).groups] == [(0, 1)]
    assert [g.definitions for g in groups_of(graph, alone).groups] == [(0,), (1,)]


def test_what_no_output_needs_is_left_out() -> None:
    s = Sketch(x=(2,))
    y = s.add("neg", "x")
    s.add("tanh", y)
    graph = s.graph(y)
    assert live_definitions(graph) == {0}
    assert owns(graph) == [("neg",)]


def test_reads_leave_out_constants_and_what_is_inside() -> None:
    s = Sketch(x=(2, 3))
    w = s.constant(np.ones((3, 3)))
    s.add("tanh", s.add("matmul", "x", w))
    assert reads_of(s.graph("v1"), (0, 1)) == ("x",)
    assert reads_of(s.graph("v1"), (1,)) == ("v0",)
