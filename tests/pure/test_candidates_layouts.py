"""Layouts: carried through primitives as memory is, and spread where they serve."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from korch.candidates.layouts import assignments, carried, layouts_of, placements_of, returned
from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.layout import Layout
from tests.pure.random_graphs import IMAGE, Sketch


def memory(array: np.ndarray, layout: Layout) -> list[float]:
    """The elements in the order in which they lie."""
    return array.transpose(layout.order).ravel().tolist()


def factors(rng: random.Random, total: int) -> tuple[int, ...]:
    found: list[int] = []
    while total > 1:
        n = rng.choice([k for k in range(2, total + 1) if total % k == 0])
        found.append(n)
        total //= n
    for _ in range(rng.randrange(3)):
        found.insert(rng.randrange(len(found) + 1), 1)
    return tuple(found)


@pytest.mark.parametrize("seed", range(60))
def test_an_alias_moves_nothing(seed: int) -> None:
    rng = random.Random(seed)
    total = rng.choice((1, 6, 12, 24, 30))
    shape = factors(rng, total)
    array = np.arange(total, dtype=np.float32).reshape(shape)
    order = rng.sample(range(len(shape)), len(shape))
    layout = Layout.canonical(shape, tuple(order))
    s = Sketch(x=shape)
    target, perm = factors(rng, total), tuple(rng.sample(range(len(shape)), len(shape)))
    s.add("reshape", "x", shape=target)
    s.add("transpose", "x", perm=perm)
    graph = s.graph("v0", "v1")
    for d, result in zip(graph.definitions, (array.reshape(target), array.transpose(perm)), strict=True):
        there = carried(graph, d, 0, layout)
        assert there is not None or d.primitive == "reshape"
        if there is None:
            assert not reshape_moves_nothing(array, layout, result)
            continue
        assert memory(result, there) == memory(array, layout)
        assert returned(graph, d, 0, there) == layout


def reshape_moves_nothing(array: np.ndarray, layout: Layout, result: np.ndarray) -> bool:
    """Whether any order of the result's dimensions lies as the array does: tried all."""
    here = memory(array, layout)
    return any(result.transpose(p).ravel().tolist() == here for p in itertools.permutations(range(result.ndim)))


def test_row_major_stays_row_major_through_a_reshape() -> None:
    s = Sketch(x=(2, 6, 5))
    s.add("reshape", "x", shape=(4, 3, 5))
    graph = s.graph("v0")
    assert carried(graph, graph.definitions[0], 0, Layout((0, 1, 2))) == Layout((0, 1, 2))
    assert carried(graph, graph.definitions[0], 0, Layout((2, 0, 1))) == Layout((2, 0, 1))
    assert carried(graph, graph.definitions[0], 0, Layout((0, 2, 1))) is None


def one(primitive: str, operand: tuple[int, ...], **attributes: Attribute) -> tuple[Graph, Definition]:
    s = Sketch(x=operand)
    s.add(primitive, "x", **attributes)
    graph = s.graph("v0")
    return graph, graph.definitions[0]


def test_reductions_drop_dimensions_and_cannot_say_where_they_lay() -> None:
    graph, d = one("reduce_max", (2, 3, 4, 5), axes=(1,))
    assert carried(graph, d, 0, Layout((0, 2, 3, 1))) == Layout((0, 1, 2))
    assert carried(graph, d, 0, Layout((3, 1, 0, 2))) == Layout((2, 0, 1))
    assert returned(graph, d, 0, Layout((0, 1, 2))) is None
    graph, d = one("arg_max", (2, 3, 4), axis=0, last=False)
    assert carried(graph, d, 0, Layout((2, 0, 1))) == Layout((1, 0))


def test_broadcasts_are_the_other_way_round() -> None:
    graph, d = one("broadcast", (3, 5), shape=(2, 3, 4, 5), axes=(1, 3))
    assert carried(graph, d, 0, Layout((0, 1))) is None
    assert returned(graph, d, 0, Layout((0, 3, 2, 1))) == Layout((1, 0))


def image_network() -> tuple[Graph, dict[str, str]]:
    """An image, convolved, activated, made to tokens, multiplied, and back to an image."""
    s = Sketch(x=(1, 3, 4, 6))
    names = {"c": s.conv("x", 8)}
    names["a"] = s.add("tanh", names["c"])
    names["f"] = s.add("reshape", names["a"], shape=(1, 8, 24))
    names["t"] = s.add("transpose", names["f"], perm=(0, 2, 1))
    names["m"] = s.add("matmul", names["t"], s.constant(np.ones((8, 8))))
    names["b"] = s.add("transpose", names["m"], perm=(0, 2, 1))
    names["i"] = s.add("reshape", names["b"], shape=(1, 8, 4, 6))
    names["d"] = s.conv(names["i"], 8)
    names["y"] = s.add("exp", names["d"])
    return s.graph(names["y"]), names


def test_channels_last_spreads_to_tokens() -> None:
    graph, n = image_network()
    layouts = layouts_of(graph)
    last = Layout.channels_last((1, 8, 4, 6))
    assert layouts["x"] == (Layout.row_major((1, 3, 4, 6)),)
    assert layouts[n["y"]] == (Layout.row_major((1, 8, 4, 6)),)
    for v in ("c", "a", "i", "d"):
        assert layouts[n[v]] == (Layout.row_major((1, 8, 4, 6)), last)
    assert Layout((0, 2, 1)) in layouts[n["f"]]
    assert all(layouts[v][0].is_row_major(graph.types[v].shape) for v in graph.types)


def test_no_more_layouts_than_the_limit() -> None:
    graph, _ = image_network()
    assert max(map(len, layouts_of(graph, limit=1).values())) == 1
    assert max(map(len, layouts_of(graph, limit=2).values())) == 2


def kinds(graph: Graph, definitions: tuple[int, ...], inputs: list[str], outputs: list[str]) -> set[tuple[str, ...]]:
    places = placements_of(graph, layouts_of(graph))
    found = assignments(places, definitions, inputs, outputs)
    assert found[0] == tuple(places.nodes[v][0] for v in (*inputs, *outputs))
    assert len(set(found)) == len(found)
    return {tuple(str(places.layouts[n]) for n in nodes) for nodes in found}


def test_assignments_of_a_convolution() -> None:
    s = Sketch(x=IMAGE)
    a = s.add("neg", "x")
    c = s.conv(a, 4)
    graph = s.graph(s.add("tanh", c))
    assert kinds(graph, (1,), [a], [c]) == {
        ("@0123", "@0123"),
        ("@0231", "@0231"),
        ("@0123", "@0231"),
        ("@0231", "@0123"),
    }


def test_assignments_follow_reductions_and_broadcasts() -> None:
    s = Sketch(x=IMAGE)
    a = s.conv("x", 2)
    m = s.add("reduce_sum", a, axes=(1,))
    b = s.add("broadcast", m, shape=IMAGE, axes=(0, 2, 3))
    c = s.add("sub", a, b)
    graph = s.graph(s.add("tanh", s.conv(c, 2)))
    assert kinds(graph, (1, 2, 3), [a], [c]) == {
        ("@0123", "@0123"),
        ("@0231", "@0231"),
        ("@0123", "@0231"),
        ("@0231", "@0123"),
    }


def test_the_factors_of_a_matmul_are_free_of_each_other() -> None:
    s = Sketch(x=(2, 3, 4), y=(2, 3, 5))
    a, b = s.add("neg", "x"), s.add("neg", "y")
    p, q = s.add("transpose", a, perm=(0, 2, 1)), s.add("reshape", b, shape=(2, 3, 5))
    c = s.add("matmul", p, q)
    graph = s.graph(s.add("tanh", c))
    found = kinds(graph, (4,), [p, q], [c])
    assert ("@021", "@012", "@012") in found and ("@012", "@012", "@012") in found
