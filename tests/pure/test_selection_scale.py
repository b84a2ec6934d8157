"""Whole graphs without cuts made by hand: work about linear in size, and no recursion limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from korch.candidates.build import candidates_of
from korch.candidates.enumerate import Caps
from korch.candidates.groups import groups_of
from korch.ir.graph import Graph
from korch.selection.order import order_of
from korch.selection.program import Program, program_of
from korch.selection.solver import Solution, solve
from tests.pure.random_graphs import Sketch, one_convolution


def chain(size: int) -> Graph:
    """Elementwise steps and transposes, one after the other."""
    s, v = Sketch(x=(4, 4)), "x"
    for k in range(size):
        v = s.add("transpose", v, perm=(1, 0)) if k % 4 == 3 else s.add(("neg", "tanh", "exp")[k % 4], v)
    return s.graph(v)


def shared(size: int, ways: int = 30) -> Graph:
    """A value read by 30 others, which are added up two by two; again and again."""
    s, v = Sketch(x=(4, 4)), "x"
    while len(s.definitions) < size:
        made = s.add("tanh", v)
        parts = [s.add(("neg", "exp", "abs")[k % 3], made) for k in range(ways)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [s.add("add", a, b) for a, b in pairs] + (parts[-1:] if len(parts) % 2 else [])
        v = parts[0]
    return s.graph(v)


def dense(size: int, layers: int = 8) -> Graph:
    """Blocks in which each convolution reads what all before it in the block made."""
    s = Sketch(x=(1, 4, 3, 3))
    v = s.conv("x", 4)
    while len(s.definitions) < size:
        made = [v]
        for _ in range(layers):
            joined = s.add("concat", *made, axis=1) if len(made) > 1 else v
            made.append(s.conv(s.add("tanh", s.conv(s.add("tanh", joined), 8)), 2, kernel=3))
        v = s.conv(s.add("concat", *made, axis=1), 4)
    return s.graph(v)


def planned(graph: Graph, groups: int = 6, spread: float = 0.0) -> tuple[Program, Solution]:
    """Synthetic costs: a launch, convolutions, what is read and written; times a random factor, as kernels differ."""
    program = program_of(candidates_of(graph, groups_of(graph), one_convolution, Caps(groups=groups)))
    size = {v: t.elements for v, t in graph.types.items()}
    heavy = [sum(graph.definitions[d].primitive == "conv" for d in c.definitions) for c in program.columns]
    costs = np.array(
        [
            0.0 if c.kind == "alias" else 10.0 + 50.0 * n + 0.1 * sum(size[r.value] for r in (*c.inputs, *c.outputs))
            for c, n in zip(program.columns, heavy, strict=True)
        ]
    )
    costs *= np.random.default_rng(0).uniform(1.0, 1.0 + spread, len(costs))
    return program, solve(program, costs, gap=1e-2, time_limit=600.0)


@contextmanager
def shallow(frames: int = 120) -> Iterator[None]:
    """Few more frames than are on the stack already: a recursion along the graph would not fit."""
    depth, frame = 0, sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("network", [chain, shared, dense])
def test_twice_the_graph_is_about_twice_the_program(network: Callable[[int], Graph]) -> None:
    with shallow():
        (small, first), (large, second) = planned(network(300)), planned(network(600))
    assert order_of(small, first.chosen).runs and order_of(large, second.chosen).runs
    assert len(large.columns) <= 2.6 * len(small.columns)
    terms = [sum(len(r.variables) for r in p.rows) for p in (small, large)]
    assert terms[1] <= 2.8 * terms[0]


@pytest.mark.parametrize("network", [chain, shared])
def test_five_thousand_definitions_have_a_plan(network: Callable[[int], Graph]) -> None:
    graph = network(5000)
    with shallow():
        program, solution = planned(graph, groups=3, spread=1.0)
    assert len(graph) >= 5000 and order_of(program, solution.chosen).runs and solution.gap <= 1e-2
