"""The program: its plan against exhaustive search, and that no row forbids a plan that runs."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace

import numpy as np
import pytest

from korch.candidates.build import Candidates, candidates_of
from korch.candidates.candidate import Candidate
from korch.candidates.dependence import bits
from korch.candidates.enumerate import Caps
from korch.candidates.groups import groups_of
from korch.ir.evaluate import evaluate_values
from korch.ir.graph import Graph
from korch.ir.layout import Layout, Resource
from korch.selection.cuts import cutter_of
from korch.selection.order import needed_only, order_of
from korch.selection.program import Program, Row, loops, program_of
from korch.selection.solver import (
    NoPlan,
    Relaxation,
    _integer,  # pyright: ignore[reportPrivateUsage]
    least_of_each_interface,
    solve,
)
from tests.pure.random_graphs import Sketch, cheapest, one_convolution, random_graph, random_plan

SEEDS = range(40)


def small(seed: int) -> Candidates:
    """Candidates with layouts and alternatives, few enough to search exhaustively."""
    graph = random_graph(seed, 4 + seed % 3, alternatives=seed % 2 == 0)
    return candidates_of(graph, groups_of(graph), one_convolution, Caps(groups=4))


def random_costs(program: Program, seed: int) -> np.ndarray:
    rng = random.Random(seed)
    return np.array([0.0 if c.kind == "alias" else float(rng.randrange(10, 60)) for c in program.columns])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_plan_is_the_cheapest_that_runs(seed: int) -> None:
    program = program_of(small(seed))
    costs = random_costs(program, seed)
    solution = solve(program, costs, gap=0.0)
    assert solution.objective == pytest.approx(cheapest(program, list(costs)))
    assert solution.bound == pytest.approx(solution.objective) and solution.gap < 1e-9
    assert costs[list(solution.chosen)].sum() == pytest.approx(solution.objective)
    assert order_of(program, solution.chosen).runs


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_may_be_missing(seed: int) -> None:
    program = program_of(small(seed))
    costs = random_costs(program, seed)
    rng = random.Random(seed)
    costs = np.where([rng.random() < 0.6 for _ in costs], costs, np.inf)
    expected = cheapest(program, list(costs))
    if expected is None:
        with pytest.raises(NoPlan):
            solve(program, costs, gap=0.0)
    else:
        assert solve(program, costs, gap=0.0).objective == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_nothing_is_computed_twice_when_so_asked(seed: int) -> None:
    candidates = replace(small(seed), once=True)
    program = program_of(candidates)
    costs = random_costs(program, seed)
    held = held_groups(candidates, program)
    expected = cheapest_once(program, costs, held)
    if expected is None:
        with pytest.raises(NoPlan):
            solve(program, costs, gap=0.0)
        return
    solution = solve(program, costs, gap=0.0)
    assert solution.objective == pytest.approx(expected)
    groups = [g for c in solution.chosen for g in bits(held[c])]
    assert len(groups) == len(set(groups))


def held_groups(candidates: Candidates, program: Program) -> list[int]:
    """For each column the bits of the groups that it computes, those left out that every user computes."""
    grouping = candidates.grouping
    absorbed = {d for some in grouping.absorbed for d in some}
    last = {g.own[-1]: k for k, g in enumerate(grouping.groups) if g.own[-1] not in absorbed}
    return [sum(1 << last[d] for d in c.definitions if d in last) for c in program.columns]


def cheapest_once(program: Program, costs: np.ndarray, held: list[int]) -> float | None:
    """As `cheapest`, over the plans in which no two columns hold the same group."""
    goal = sum(1 << r for r in program.required)
    reads = [sum(1 << r for r in some) for some in program.reads]
    writes = [sum(1 << r for r in some) for some in program.writes]
    best, heap = {(0, 0): 0.0}, [(0.0, 0, 0)]
    while heap:
        cost, there, computed = heapq.heappop(heap)
        if there & goal == goal:
            return cost
        for c in range(len(program.columns)):
            after = (there | writes[c], computed | held[c])
            if reads[c] & ~there or computed & held[c] or after[0] == there:
                continue
            if cost + costs[c] < best.get(after, np.inf):
                best[after] = cost + costs[c]
                heapq.heappush(heap, (best[after], *after))
    return None


@pytest.mark.parametrize("seed", range(12))
def test_circles_are_found_without_the_rows_against_them(seed: int) -> None:
    """Copies made cheap invite plans in which two layouts of a value are made from each other."""
    program = program_of(small(seed))
    costs = random_costs(program, seed)
    costs[[c.kind == "copy" for c in program.columns]] = 0.5
    bare = replace(program, rows=tuple(r for r in program.rows if r not in set(_loop_rows(program))))
    assert solve(bare, costs, gap=0.0).objective == pytest.approx(cheapest(program, list(costs)))


def _loop_rows(program: Program) -> list[Row]:
    from korch.selection.program import _layout_loops  # pyright: ignore[reportPrivateUsage]

    return list(_layout_loops(program))


def values_of(program: Program, plan: tuple[int, ...]) -> np.ndarray:
    """The variables of a plan."""
    values = np.zeros(program.variables)
    values[list(plan)] = 1.0
    values[[program.exists(r) for c in plan for r in program.writes[c]]] = 1.0
    return values


def met(row: Row, values: np.ndarray) -> bool:
    return bool(values[list(row.variables)] @ np.array(row.coefficients) >= row.bound - 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_plan_that_runs_satisfies_every_row(seed: int) -> None:
    program = program_of(small(seed))
    rng = random.Random(seed)
    relaxation = Relaxation(program)
    cutter = cutter_of(program)
    rows = list(program.rows)
    for k in range(3):
        relaxation.solve(random_costs(program, 100 * seed + k))
        noise = np.random.default_rng(k).random(program.variables)
        rows.extend(cutter.broken(noise * (noise < 0.2), slack=0.0))
    rows.extend(relaxation.rows[len(program.rows) :])
    sets = [frozenset(rng.sample(range(len(program.resources)), min(3, len(program.resources)))) for _ in range(5)]
    rows.extend(loops(program, sets))
    for _ in range(10):
        plan = needed_only(program, random_plan(program, rng), lambda c: float(c % 7))
        values = values_of(program, plan)
        assert [r for r in rows if not met(r, values)] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_the_relaxation_bounds_from_below_and_prices_columns(seed: int) -> None:
    program = program_of(small(seed))
    costs = random_costs(program, seed)
    relaxed = Relaxation(program).solve(costs)
    best = cheapest(program, list(costs))
    assert best is not None and relaxed.objective <= best + 1e-6
    rng = random.Random(seed)
    for _ in range(30):
        plan = needed_only(program, random_plan(program, rng), lambda c: float(costs[c]))
        assert relaxed.objective + relaxed.reduced[list(plan)].max() <= costs[list(plan)].sum() + 1e-6


def test_cover_and_edge_rows_raise_the_relaxation() -> None:
    """Without them many columns share one fraction of what they read."""
    covers = edges = 0.0
    for seed in range(6):
        graph = random_graph(seed, 16)
        program = program_of(candidates_of(graph, groups_of(graph), one_convolution, Caps(groups=5)))
        costs = random_costs(program, seed)
        bare = replace(program, rows=tuple(r for r in program.rows if r.bound == 0.0))
        least, middle, most = _uncut(bare, costs), _uncut(program, costs), Relaxation(program).solve(costs).objective
        assert least <= middle + 1e-6 and middle <= most + 1e-6
        covers += middle - least
        edges += most - middle
    assert covers > 0 and edges > 0


def _uncut(program: Program, costs: np.ndarray) -> float:
    relaxation = Relaxation(program)
    relaxation._cutter = replace(relaxation._cutter, pairs=(), targets=())  # pyright: ignore[reportPrivateUsage]
    return relaxation.solve(costs).objective


def test_values_defined_by_each_other_are_computed_from_the_inputs() -> None:
    s = Sketch(x=(4, 4))
    a = s.add("tanh", "x")
    b = s.add("transpose", a, perm=(1, 0))
    s.add("transpose", b, perm=(1, 0), value=a)
    graph = s.graph(s.add("exp", b))
    program = program_of(candidates_of(graph, groups_of(graph), one_convolution))
    for seed in range(5):
        costs = random_costs(program, seed)
        solution = solve(program, costs, gap=0.0)
        assert solution.objective == pytest.approx(cheapest(program, list(costs)))
        assert order_of(program, solution.chosen).runs


# Two kernels that wait for each other


def deadlock() -> tuple[Candidates, dict[str, int]]:
    """Two chains; two cheap kernels that each take the first half of one and the second half of the other."""
    s = Sketch(x=(4,), z=(4,))
    a = s.add("neg", "x")
    b = s.add("tanh", a)
    c = s.add("neg", "z")
    d = s.add("tanh", c)
    graph = s.graph(b, d)
    at = {v: Resource(v, Layout.row_major((4,))) for v in ("x", "z", a, b, c, d)}
    columns = {
        "ad": Candidate("kernel", (0, 3), (at["x"], at[c]), (), (at[a], at[d])),
        "bc": Candidate("kernel", (1, 2), (at["z"], at[a]), (), (at[b], at[c])),
        "a": Candidate("kernel", (0,), (at["x"],), (), (at[a],)),
        "b": Candidate("kernel", (1,), (at[a],), (), (at[b],)),
        "c": Candidate("kernel", (2,), (at["z"],), (), (at[c],)),
        "d": Candidate("kernel", (3,), (at[c],), (), (at[d],)),
    }
    found = candidates_of(graph, groups_of(graph, limit=1), one_convolution)
    return replace(found, columns=tuple(columns.values())), {name: k for k, name in enumerate(columns)}


def test_two_kernels_that_wait_for_each_other_are_not_a_plan() -> None:
    candidates, number = deadlock()
    program = program_of(candidates)
    both = order_of(program, [number["ad"], number["bc"]])
    assert not both.runs and not both.columns and not both.missing
    assert [{program.resources[r].value for r in circle} for circle in both.circles] == [{"v0", "v2"}]
    costs = np.array([1.0, 1.0, 10.0, 10.0, 10.0, 10.0])
    # One of the two with what breaks the circle: a runs first, then bc, then d or ad.
    solution = solve(program, costs, gap=0.0)
    assert solution.objective == pytest.approx(cheapest(program, list(costs))) == 12.0
    assert order_of(program, solution.chosen).runs


def test_the_plain_program_picks_the_deadlock_and_the_cut_one_does_not() -> None:
    """Every value has a kernel that makes it, and still nothing can start: only the loop rows of {a, c} see it."""
    candidates, number = deadlock()
    program = program_of(candidates)
    costs, everything = np.array([1.0, 1.0, 10.0, 10.0, 10.0, 10.0]), np.ones(6, dtype=np.bool_)
    plain = _integer(program, program.rows, costs, everything, None, 10.0, 0.0)
    assert plain.chosen == (number["ad"], number["bc"]) and plain.bound == pytest.approx(2.0)
    order = order_of(program, plain.chosen)
    assert not order.runs
    cut = _integer(program, [*program.rows, *loops(program, order.circles)], costs, everything, None, 10.0, 0.0)
    assert cut.chosen is not None and order_of(program, cut.chosen).runs
    assert cut.bound == pytest.approx(12.0) == cheapest(program, list(costs))


def test_what_nothing_writes_is_missing() -> None:
    candidates, number = deadlock()
    program = program_of(candidates)
    order = order_of(program, [number["b"]])
    assert {program.resources[r].value for r in order.missing} == {"v0", "v3"}
    assert not order.runs and not order.circles


# Order and pruning


@pytest.mark.parametrize("seed", SEEDS)
def test_useless_columns_go_and_the_rest_runs(seed: int) -> None:
    program = program_of(small(seed))
    plan = random_plan(program, random.Random(seed))
    kept = needed_only(program, plan, lambda c: 1.0)
    assert set(kept) <= set(plan)
    there: set[int] = set()
    for c in kept:
        assert there.issuperset(program.reads[c])
        there.update(program.writes[c])
    assert program.required <= there
    for c in kept:
        assert not order_of(program, [k for k in kept if k != c]).runs


def test_of_columns_with_one_interface_the_cheapest_stays() -> None:
    program = program_of(small(2))
    costs = random_costs(program, 2)
    kept = least_of_each_interface(program, costs)
    faces = [(program.reads[c], program.writes[c]) for c in range(len(costs))]
    for face in set(faces):
        alike = [c for c in range(len(costs)) if faces[c] == face]
        assert [c for c in alike if kept[c]] == [min(alike, key=lambda c: (costs[c], c))]


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_computes_the_model(seed: int) -> None:
    """The chosen kernels in their order, each computed by its definitions, give the model's outputs."""
    graph: Graph = random_graph(seed, 9, alternatives=True)
    candidates = candidates_of(graph, groups_of(graph), one_convolution)
    program = program_of(candidates)
    solution = solve(program, random_costs(program, seed))
    rng = np.random.default_rng(seed)
    inputs = {v: rng.standard_normal(graph.types[v].shape).astype(np.float32) for v in graph.input_values}
    held = {Resource(v, Layout.row_major(array.shape)): array for v, array in inputs.items()}
    for c in order_of(program, solution.chosen).columns:
        column = program.columns[c]
        given = {r.value: held[r] for r in column.inputs}
        part = replace(graph, definitions=tuple(graph.definitions[d] for d in column.definitions))
        result = evaluate_values(part, given, [r.value for r in column.outputs])
        held.update((r, result[r.value]) for r in column.outputs)
    expected = evaluate_values(graph, inputs, graph.output_values)
    for v, array in expected.items():
        got = held[Resource(v, Layout.row_major(array.shape))]
        np.testing.assert_allclose(got, array, rtol=1e-4, atol=1e-5)


def test_an_incumbent_is_never_made_worse() -> None:
    program = program_of(small(5))
    costs = random_costs(program, 5)
    plan = needed_only(program, random_plan(program, random.Random(0)), lambda c: float(costs[c]))
    solution = solve(program, costs, incumbent=plan, time_limit=0.0)
    assert solution.objective <= costs[list(plan)].sum() + 1e-9
    assert solution.bound <= solution.objective


def test_nothing_is_written_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    program = program_of(small(1))
    solve(program, random_costs(program, 1))
    assert capfd.readouterr().out == ""
