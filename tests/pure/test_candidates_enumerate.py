"""Enumeration against the paper's definition, its caps, and its growth with the size of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from korch.candidates.dependence import bits, dependence_of
from korch.candidates.enumerate import Caps, by_execution_states, enumerate_sets
from korch.candidates.groups import groups_of
from korch.ir.graph import Graph
from tests.pure.random_graphs import Sketch, fuses_all, one_by_one, one_convolution, random_graph

NO_CAPS = Caps(groups=10**6, per_seed=10**9, total=10**9)


def connected(graph: Graph, members: frozenset[int]) -> bool:
    start = min(members)
    seen, waiting = {start}, [start]
    while waiting:
        d = graph.definitions[waiting.pop()]
        for other in members - seen:
            e = graph.definitions[other]
            if set(d.outputs) & set(e.inputs) or set(e.outputs) & set(d.inputs):
                seen.add(other)
                waiting.append(other)
    return seen == members


@pytest.mark.parametrize("seed", range(30))
def test_all_connected_differences_of_execution_states(seed: int) -> None:
    graph = random_graph(seed, 8)
    expected = {s for s in by_execution_states(graph) if connected(graph, s)}
    found = enumerate_sets(graph, one_by_one(graph), fuses_all, NO_CAPS)
    assert len(found.sets) == len(set(found.sets))
    assert {frozenset(bits(s)) for s in found.sets} == expected
    assert found.caps == NO_CAPS and found.crowded == 0 and found.grown == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_predicate_is_obeyed(seed: int) -> None:
    graph = random_graph(seed, 9)
    groups = one_by_one(graph)
    everything = enumerate_sets(graph, groups, fuses_all, NO_CAPS)
    found = enumerate_sets(graph, groups, one_convolution, NO_CAPS)
    allowed = {s for s in everything.sets if one_convolution(graph, tuple(bits(s))) is None}
    assert set(found.sets) == allowed
    assert bool(found.refused) == (allowed != set(everything.sets))


@pytest.mark.parametrize("seed", range(20))
def test_never_two_definitions_of_one_value(seed: int) -> None:
    graph = random_graph(seed, 9, alternatives=True)
    groups = one_by_one(graph)
    found = enumerate_sets(graph, groups, fuses_all, NO_CAPS)
    for s in found.sets:
        made = [v for g in bits(s) for v in groups[g].values]
        assert len(made) == len(set(made))
    assert {1 << g for g in range(len(groups))} <= set(found.sets)


def test_an_alternative_takes_no_set_away() -> None:
    s = Sketch(x=(4,), y=(4,))
    total = s.add("add", s.add("tanh", "x"), "y")
    last = s.add("exp", total)
    plain = s.graph(last)
    s.add("sub", s.definitions[0].outputs[0], s.add("neg", "y"), value=total)
    more = s.graph(last)
    before = enumerate_sets(plain, one_by_one(plain), fuses_all, NO_CAPS).sets
    after = enumerate_sets(more, one_by_one(more), fuses_all, NO_CAPS).sets
    assert set(before) < set(after)


def chain(length: int) -> Graph:
    """Definitions one after the other, too unlike to be contracted."""
    s, value = Sketch(x=(4, 6)), "x"
    for k in range(length):
        value = s.add("tanh", value) if k % 2 else s.add("transpose", value, perm=(1, 0))
    return s.graph(value)


def dense_block(layers: int) -> Graph:
    """Every layer reads the concatenation of all before it, as in DenseNet."""
    s = Sketch(x=(1, 4, 3, 3))
    parts = ["x"]
    for _ in range(layers):
        joined = s.add("concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        parts.append(s.add("tanh", s.conv(joined, 2)))
    return s.graph(s.add("concat", *parts, axis=1))


class Counting:
    """A predicate that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, graph: Graph, definitions: Sequence[int]) -> str | None:
        self.asked += 1
        return one_convolution(graph, definitions)


def test_a_chain_costs_a_constant_per_definition() -> None:
    asked: dict[int, int] = {}
    for length in (400, 800):
        graph, predicate = chain(length), Counting()
        found = enumerate_sets(graph, groups_of(graph).groups, predicate, Caps(total=10**9))
        assert len(found.sets) == sum(length - size + 1 for size in range(1, 17))
        asked[length] = predicate.asked
    assert asked[800] < 2.1 * asked[400]


def test_five_thousand_definitions() -> None:
    graph = chain(5000)
    found = enumerate_sets(graph, groups_of(graph).groups, fuses_all, Caps(groups=4))
    assert len(found.sets) == 5000 + 4999 + 4998 + 4997


def test_a_dense_block_grows_slowly() -> None:
    asked: list[int] = []
    for layers in (12, 24):
        graph, predicate = dense_block(layers), Counting()
        found = enumerate_sets(graph, groups_of(graph).groups, predicate)
        assert len(found.sets) <= found.caps.total
        asked.append(predicate.asked)
    assert asked[1] < 10 * asked[0]


def wide(consumers: int) -> Graph:
    """One value read by many, each of which is an output."""
    s = Sketch(x=(4, 4))
    shared = s.add("tanh", "x")
    made = [s.add("transpose", s.add("mul", shared, shared), perm=(1, 0)) for _ in range(consumers)]
    return s.graph(*made)


def test_a_crowd_is_cut_and_said_so() -> None:
    graph = wide(30)
    caps = Caps(per_seed=100)
    found = enumerate_sets(graph, groups_of(graph).groups, fuses_all, caps)
    assert found.crowded > 0 and found.grown > 0 and found.caps == caps
    assert max(s.bit_count() for s in found.sets) == caps.groups
    first = [s for s in found.sets if s & 1]
    assert 100 <= len(first) <= 100 + caps.groups * len(groups_of(graph).groups)


def test_the_total_cap_shrinks_the_sets() -> None:
    graph = chain(100)
    found = enumerate_sets(graph, groups_of(graph).groups, fuses_all, Caps(total=450))
    assert found.caps == Caps(groups=4, total=450)
    small = [s for s in found.sets if s.bit_count() <= 4]
    assert len(small) == 100 + 99 + 98 + 97
    assert found.grown == len(found.sets) - len(small)


def test_no_set_defines_a_value_by_itself() -> None:
    """-a and --a: each of two values defined by the other, one of them also by what comes from outside."""
    s = Sketch(x=(4,))
    a = s.add("tanh", "x")
    b = s.add("neg", a)
    s.add("neg", b, value=a)
    graph = s.graph(s.add("exp", b))
    groups = one_by_one(graph)
    dependence = dependence_of(graph, groups)
    assert dependence.circular and not dependence_of(graph, groups[:2]).circular
    found = enumerate_sets(graph, groups, fuses_all, NO_CAPS)
    assert 0b0110 not in found.sets and 0b1110 not in found.sets
    assert {0b0011, 0b1010, 0b1011} <= set(found.sets)


def test_needs_follow_every_alternative() -> None:
    s = Sketch(x=(4,))
    a, b = s.add("neg", "x"), s.add("tanh", "x")
    c = s.add("exp", a)
    s.add("sqrt", b, value=c)
    d = s.add("floor", c)
    graph = s.graph(d)
    found = dependence_of(graph, one_by_one(graph))
    names = list(found.number)

    def needs(value: str) -> set[str]:
        return {names[v] for v in bits(found.needs[found.number[value]])}

    assert needs(d) == {d, c}
    assert needs(c) == {c}
    assert needs(a) == {a}
    assert {names[v] for v in bits(found.certain)} == {c, d}
