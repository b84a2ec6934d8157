"""Candidates: outputs, layouts, aliases, copies; and the fragments by which equal ones are known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from korch.candidates.build import Candidates, Partition, candidates_of
from korch.candidates.candidate import Candidate, fragment_of, structures_of
from korch.candidates.enumerate import Caps
from korch.candidates.groups import groups_of
from korch.ir.evaluate import evaluate_values
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout, Resource
from korch.ir.types import DType, TensorType
from tests.pure.random_graphs import IMAGE, Sketch, fuses_all, one_convolution, random_graph


def build(graph: Graph, **partitions: Partition) -> Candidates:
    return candidates_of(graph, groups_of(graph), one_convolution, Caps(groups=5), partitions)


def writes(found: Candidates, *definitions: int) -> set[tuple[str, ...]]:
    """The values that the kernels of those definitions write."""
    return {
        tuple(r.value for r in c.outputs) for c in found.columns if c.kind == "kernel" and c.definitions == definitions
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_text_form_is_inverted(seed: int) -> None:
    for candidate in build(random_graph(seed, 6, alternatives=True)).columns:
        assert Candidate.parse(str(candidate)) == candidate


@pytest.mark.parametrize("text", ["kernel", "kernel[1](x@01)", "thing[1](x@01) -> y@01"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a candidate"):
        Candidate.parse(text)


def test_an_offset_is_part_of_the_text() -> None:
    here, there = (Resource(v, Layout.row_major((4,))) for v in "xy")
    candidate = Candidate("alias", (3,), (here,), (), (there,), offset=8)
    assert str(candidate) == "alias[3](x@0) -> y@0 +8"
    assert Candidate.parse(str(candidate)) == candidate


@pytest.mark.parametrize("seed", range(25))
def test_columns_are_well_formed(seed: int) -> None:
    graph = random_graph(seed, 7, alternatives=True)
    found = build(graph)
    assert len(set(found.columns)) == len(found.columns)
    for c in found.columns:
        assert list(c.definitions) == sorted(set(c.definitions))
        for r in (*c.inputs, *c.outputs):
            assert sorted(r.layout.order) == list(range(graph.types[r.value].rank))
            assert r.value not in graph.constants
        for v in (*graph.input_values, *graph.output_values):
            at = [r.layout for r in (*c.inputs, *c.outputs) if r.value == v]
            assert all(layout.is_row_major(graph.types[v].shape) for layout in at)
        if c.kind == "copy":
            (here,), (there,) = c.inputs, c.outputs
            assert here.value == there.value and here.layout != there.layout and not c.definitions
            continue
        made = {v for d in c.definitions for v in graph.definitions[d].outputs}
        read = {v for d in c.definitions for v in graph.definitions[d].inputs}
        assert {r.value for r in c.inputs} == read - made - graph.constants.keys()
        assert {r.value for r in c.outputs} <= made
        assert set(c.weights) == {v for v in read if v in graph.constants and graph.constants[v].size != 1}


@pytest.mark.parametrize("seed", range(12))
def test_every_definition_has_a_row_major_kernel(seed: int) -> None:
    graph = random_graph(seed, 8)
    found = build(graph)
    held = {
        d
        for c in found.columns
        if c.kind == "kernel"
        and all(r.layout.is_row_major(graph.types[r.value].shape) for r in (*c.inputs, *c.outputs))
        for d in c.definitions
    }
    assert held == set(range(len(graph)))


def test_what_is_needed_outside_is_written_or_computed_again() -> None:
    s = Sketch(x=(4, 4))
    a = s.add("tanh", "x")
    b = s.add("transpose", a, perm=(1, 0))
    c = s.add("add", a, b)
    found = build(s.graph(c))
    assert writes(found, 0, 1) == {(a, b), (b,)}
    assert writes(found, 0, 1, 2) == {(c,)}


def test_what_only_an_alternative_reads_may_stay_inside() -> None:
    s = Sketch(x=(4, 4), z=(4, 4))
    a = s.add("tanh", "x")
    b = s.add("transpose", a, perm=(1, 0))
    c = s.add("add", b, "z")
    s.add("sub", b, s.add("neg", s.add("mul", "z", a)), value=c)
    d = s.add("transpose", c, perm=(1, 0))
    e = s.add("mul", a, d)
    found = build(s.graph(e))
    assert writes(found, 0, 1, 2) == {(c,), (a, c), (a, b, c)}


def test_an_opaque_primitive_writes_what_is_used() -> None:
    s = Sketch(x=(4, 4))
    s.types.update(t=TensorType(DType.FLOAT32, (4, 2)), i=TensorType(DType.INT64, (4, 2)))
    chosen = (("axis", 1), ("k", 2), ("largest", True), ("sorted", True))
    s.definitions.append(Definition("top_k", ("x",), ("t", "i"), chosen))
    y = s.add("neg", "t")
    assert writes(build(s.graph(y)), 0) == {("t",)}


def aliases(found: Candidates) -> set[str]:
    return {str(c) for c in found.columns if c.kind == "alias"}


def test_tokens_of_an_image_held_channels_last_are_an_alias() -> None:
    s = Sketch(x=(1, 3, 2, 2))
    c = s.conv("x", 8)
    f = s.add("reshape", c, shape=(1, 8, 4))
    t = s.add("transpose", f, perm=(0, 2, 1))
    y = s.add("matmul", t, s.constant(np.ones((8, 8))))
    found = build(s.graph(y))
    assert {f"alias[1]({c}@0231) -> {f}@021", f"alias[2]({f}@021) -> {t}@012"} <= aliases(found)
    kernels = [k for k in found.columns if k.kind == "kernel" and k.definitions == (1,)]
    assert all(str(k).replace("kernel", "alias") not in aliases(found) for k in kernels)


def test_callers_buffers_are_never_aliases_of_each_other() -> None:
    s = Sketch(x=(2, 3))
    y = s.add("reshape", "x", shape=(6,))
    assert aliases(build(s.graph(y))) == set()
    s = Sketch(x=(2, 3))
    a = s.add("reshape", "x", shape=(6,))
    y = s.add("reshape", a, shape=(3, 2))
    assert len(aliases(build(s.graph(y)))) == 1
    s = Sketch(x=(2, 3))
    a = s.add("neg", "x")
    y, z = s.add("reshape", a, shape=(6,)), s.add("reshape", a, shape=(3, 2))
    assert len(aliases(build(s.graph(y, z)))) == 1


def test_copies_join_the_layouts_that_are_made_and_read() -> None:
    s = Sketch(x=IMAGE)
    c = s.conv("x", 2)
    y = s.add("tanh", s.conv(c, 2))
    found = build(s.graph(y))
    copies = {str(k) for k in found.columns if k.kind == "copy" and k.inputs[0].value == c}
    assert copies == {f"copy[]({c}@0123) -> {c}@0231", f"copy[]({c}@0231) -> {c}@0123"}


def test_a_partition_brings_its_own_kernels() -> None:
    s = Sketch(x=IMAGE)
    a = s.add("tanh", s.add("neg", "x"))
    y = s.conv(a, 2)
    graph = s.graph(y)
    found = build(graph, each=Partition(((0,), (1,), (2,)), row_major=True), layouts=Partition(((0, 1, 2),)))
    each = [found.columns[c] for c in found.partitions["each"]]
    assert {c.definitions for c in each if c.kind == "kernel"} == {(0,), (1,), (2,)}
    assert all(r.layout.order == (0, 1, 2, 3) for c in each for r in (*c.inputs, *c.outputs))
    assert {found.columns[c].definitions for c in found.partitions["layouts"]} <= {(0, 1, 2), ()}


# Fragments


@pytest.mark.parametrize("seed", range(15))
def test_a_fragment_computes_what_its_candidate_does(seed: int) -> None:
    graph = random_graph(seed, 7, alternatives=True)
    rng = np.random.default_rng(seed)
    x = {v: rng.standard_normal(graph.types[v].shape).astype(np.float32) for v in graph.input_values}
    made = [v for d in graph.definitions for v in d.outputs]
    values = x | evaluate_values(graph, x, dict.fromkeys(made)) | dict(graph.constants)
    for candidate in build(graph).columns:
        if candidate.kind == "alias":
            continue
        fragment, names = fragment_of(graph, candidate)
        given = {v: values[names[v]] for v in fragment.graph.input_values}
        result = evaluate_values(fragment.graph, given, fragment.graph.output_values)
        for v, array in result.items():
            np.testing.assert_allclose(array, values[names[v]], rtol=1e-5, atol=1e-6)
        assert {names[v] for v in fragment.graph.output_values} == {r.value for r in candidate.outputs}
        assert {names[w] for w in fragment.weights} == set(candidate.weights)
        placed = {r.value: r.layout for r in (*candidate.inputs, *candidate.outputs)}
        if candidate.kind == "kernel":
            assert all(fragment.layouts[c] == placed[v] for c, v in names.items() if v in placed)


@pytest.mark.parametrize("seed", range(15))
def test_structures_are_the_keys_of_the_fragments(seed: int) -> None:
    graph = random_graph(seed, 7, alternatives=True)
    columns = build(graph).columns
    structures = structures_of(graph, columns)
    for candidate, key in zip(columns, structures.keys, strict=True):
        if candidate.kind == "alias":
            assert key == ""
            continue
        fragment, _ = fragment_of(graph, candidate)
        assert fragment.key == key == structures.fragments[key].key
        assert structures.fragments[key].text == fragment.text


def blocks(count: int, shuffled: bool = False) -> Graph:
    """The same block again and again, its two branches in one order or the other."""
    s, x = Sketch(x=IMAGE), "x"
    for k in range(count):
        branches = [("tanh", 1), ("exp", 3)]
        parts: dict[str, str] = {}
        for name, kernel in reversed(branches) if shuffled and k % 2 else branches:
            parts[name] = s.add(name, s.conv(x, 2, kernel=kernel))
        total = s.add("add", parts["tanh"], parts["exp"])
        x = s.add("sub", total, s.add("broadcast", s.add("reduce_max", total, axes=(2, 3)), shape=IMAGE, axes=(0, 1)))
    return s.graph(x)


@pytest.mark.parametrize("shuffled", [False, True])
def test_repeated_blocks_are_one_structure(shuffled: bool) -> None:
    distinct: list[int] = []
    for count in (4, 5, 6):
        graph = blocks(count, shuffled)
        found = candidates_of(graph, groups_of(graph), fuses_all, Caps(groups=4))
        distinct.append(len(structures_of(graph, found.columns).fragments))
    # Longer networks bring more columns and no new structure; shuffled, a block has two surroundings.
    growth = [b - a for a, b in pairwise(distinct)]
    assert growth[-1] == 0


def test_two_outputs_have_one_order() -> None:
    keys: set[str] = set()
    for first in ("exp", "tanh"):
        s = Sketch(x=(4,))
        a = s.add("neg", "x")
        second = "tanh" if first == "exp" else "exp"
        p = s.add(first, a)
        q = s.add(second, a)
        graph = s.graph(p, q)
        here = Layout.row_major((4,))
        candidate = Candidate("kernel", (0, 1, 2), (Resource("x", here),), (), (Resource(p, here), Resource(q, here)))
        keys.add(fragment_of(graph, candidate)[0].key)
    assert len(keys) == 1


def test_small_constants_are_part_of_the_structure_and_weights_are_not() -> None:
    def key(number: float, weight: float) -> str:
        s = Sketch(x=(2, 2))
        y = s.add("matmul", "x", s.constant(np.full((2, 2), weight)))
        y = s.add("mul", y, s.add("broadcast", s.constant(np.array(number)), shape=(2, 2), axes=()))
        graph = s.graph(y)
        here = Layout.row_major((2, 2))
        candidate = Candidate("kernel", (0, 1, 2), (Resource("x", here),), ("k0",), (Resource(y, here),))
        return fragment_of(graph, candidate)[0].key

    assert key(1.0, 1.0) == key(1.0, 2.0)
    assert key(1.0, 1.0) != key(2.0, 1.0)


def test_a_copy_is_a_reshape_between_layouts() -> None:
    s = Sketch(x=IMAGE)
    c = s.conv("x", 2)
    graph = s.graph(s.add("tanh", s.conv(c, 2)))
    copy = next(k for k in build(graph).columns if k.kind == "copy" and k.inputs[0].layout.order == (0, 2, 3, 1))
    fragment, names = fragment_of(graph, copy)
    assert names == {"i0": c, "t0": c}
    assert fragment.text == (
        "input i0: float32[1,2,3,2] @0231\nt0 = reshape(i0, shape=(1, 2, 3, 2)) : float32[1,2,3,2]\noutput t0 @0123\n"
    )
