"""Lazy measuring: the same plan as measuring everything, honest certificates, budgets and failures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from korch.candidates.build import Partition, candidates_of
from korch.candidates.candidate import structures_of
from korch.candidates.enumerate import Caps
from korch.candidates.groups import groups_of
from korch.ir.fragment import Fragment
from korch.selection.baselines import partitions_of
from korch.selection.estimate import estimated, family_of
from korch.selection.known import Known
from korch.selection.lazy import Certificate, Limits, Plan, Progress, orchestrate
from korch.selection.program import program_of
from korch.selection.reveal import Batching, promising
from korch.selection.solver import NoPlan, Relaxed, solve
from tests.pure.random_graphs import Sketch, one_convolution, random_graph

EXACT = Limits(gap=0.0, batching=Batching(least=2, size=4))


class World:
    """Structures with true costs, of which only lower bounds are known until they are measured."""

    def __init__(self, seed: int, size: int = 8, *, alternatives: bool = True) -> None:
        graph = random_graph(seed, size, alternatives=alternatives)
        grouping = groups_of(graph)
        partitions = partitions_of(graph, grouping, one_convolution)
        self.candidates = candidates_of(graph, grouping, one_convolution, Caps(groups=5), partitions)
        structures = structures_of(graph, self.candidates.columns)
        self.keys, self.fragments = structures.keys, structures.fragments
        rng = random.Random(seed)
        self.costs: dict[str, float | None] = {k: rng.uniform(5, 20) for k in self.fragments}
        self.bounds = {k: float(c or 0.0) * rng.uniform(0.4, 1.0) for k, c in self.costs.items()}
        self.asked: list[str] = []

    def measure(self, keys: list[str]) -> Mapping[str, float | None]:
        self.asked.extend(keys)
        return {k: self.costs[k] for k in keys}

    def best(self) -> float:
        costs = [0.0 if not k else self.costs[k] for k in self.keys]
        known = np.array([np.inf if c is None else c for c in costs])
        return solve(program_of(self.candidates), known, gap=0.0).objective

    def search(self, **options: object) -> tuple[Plan, Certificate]:
        options.setdefault("limits", EXACT)
        return orchestrate(self.candidates, self.keys, self.bounds, self.measure, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(16))
def test_lazy_equals_measuring_everything(seed: int) -> None:
    world = World(seed)
    plan, certificate = world.search()
    best = world.best()
    assert certificate.objective_us == pytest.approx(best)
    assert certificate.bound_us <= best + 1e-6 and certificate.gap < 1e-6 and certificate.complete
    assert sum(plan.costs) == pytest.approx(certificate.objective_us)
    assert [world.costs[k] if k else 0.0 for k in plan.keys] == list(plan.costs)
    assert len(world.asked) == len(set(world.asked)) == certificate.measured
    plain = {int, float, bool, dict}  # what JSON can hold
    assert {type(value) for value in vars(certificate).values()} <= plain
    assert certificate.distinct == len(world.fragments) and certificate.candidates == len(world.keys)


def test_much_is_never_measured() -> None:
    world = World(3, 14)
    world.bounds = {k: 0.95 * float(c or 0.0) for k, c in world.costs.items()}
    _, certificate = world.search(limits=replace(EXACT, batching=Batching(least=1, size=1)))
    assert certificate.measured < certificate.distinct / 2


@pytest.mark.parametrize("gap", [0.05, 0.1])
def test_the_search_ends_at_the_gap_asked_for(gap: float) -> None:
    measured, exactly = 0, 0
    for seed in range(3):
        world = World(seed, 10)
        _, certificate = world.search(limits=replace(EXACT, gap=gap))
        assert certificate.complete and certificate.gap <= gap
        assert certificate.bound_us <= world.best() + 1e-6
        assert certificate.objective_us <= world.best() / (1 - gap) + 1e-6
        measured += certificate.measured
        exactly += World(seed, 10).search()[1].measured
    assert measured < exactly


class Looks:
    """A relaxation that turns to other columns with each look: a tenth of them dearer each time."""

    def __init__(self, *uses: list[float]) -> None:
        self.uses, self.costs = list(uses), list[np.ndarray]()

    def solve(self, costs: np.ndarray) -> Relaxed:
        self.costs.append(costs)
        use = np.array(self.uses.pop(0))
        return Relaxed(float(use @ costs), use, np.zeros(len(use)))


def test_what_matters_most_is_measured_first() -> None:
    known = Known(
        "mabcd", dict(zip("mabcd", (5.0, 1.0, 10.0, 3.9, 7.0), strict=True)), {}, lambda keys: {"m": 10.0}, None
    )
    known.reveal([0])  # twice its bound: so are the estimates of the others
    first = Relaxed(0.0, np.array([1.0, 1.0, 0.2, 0.5, 0.0]), np.zeros(5))

    def asked(*uses: list[float], enough: float = np.inf, **how: float) -> tuple[list[str], list[np.ndarray]]:
        looks = Looks(*uses)
        found = promising(looks, known, first, 0.0, enough, Batching(**how))  # type: ignore[arg-type]
        return [known.structures[s] for s in found], looks.costs

    # Promised are 1 by a, 2 by b and 1.95 by c, all other things (a thousandth of the bound) apart.
    assert asked(share=0.7, least=1, size=1)[0] == ["b", "c"]
    assert asked(share=0.9, least=1, size=1)[0] == ["b", "c", "a"]
    assert asked(share=0.1, least=2, size=1)[0] == ["b", "c"]
    then = [1.0, 0.0, 0.0, 0.0, 1.0]
    names, costs = asked(then, share=0.7, least=1, size=3)
    assert names == ["b", "c", "d"] and costs[0].tolist() == [10.0, 1.0, 20.0, 7.8, 7.0]
    assert asked(then, share=0.7, least=1, size=3, enough=10.0)[0] == ["b", "c"]  # it comes to 17
    assert asked([1.0, 0.0, 0.0, 0.0, 0.0], share=1.0, least=1, size=9)[0] == ["b", "c", "a"]


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_runs_in_its_order(seed: int) -> None:
    world = World(seed)
    plan, _ = world.search()
    graph = world.candidates.graph
    there = {v for v in graph.input_values}
    held = {(v, tuple(range(graph.types[v].rank))) for v in there}
    for kernel, column in zip(plan.kernels, plan.columns, strict=True):
        assert kernel == world.candidates.columns[column]
        assert all((r.value, r.layout.order) in held for r in kernel.inputs)
        held.update((r.value, r.layout.order) for r in kernel.outputs)
    assert all((v, tuple(range(graph.types[v].rank))) in held for v in graph.output_values)


@pytest.mark.parametrize("seed", range(8))
def test_baselines_are_costed_and_not_better(seed: int) -> None:
    world = World(seed, alternatives=False)
    _, certificate = world.search()
    for cost in (certificate.greedy_us, certificate.per_operator_us):
        assert cost is not None and certificate.objective_us <= cost + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_structures_that_fail_are_left_out(seed: int) -> None:
    world = World(seed)
    rng = random.Random(seed)
    singles = {k for k, f in world.fragments.items() if len(f.graph) <= 2}
    for key in world.costs:
        if key not in singles and rng.random() < 0.4:
            world.costs[key] = None
    plan, certificate = world.search()
    assert certificate.objective_us == pytest.approx(world.best())
    assert certificate.failed == sum(world.costs[k] is None for k in world.asked)
    assert all(world.costs[k] is not None for k in plan.keys if k)


def test_when_nothing_can_be_made_there_is_no_plan() -> None:
    world = World(1)
    world.costs = dict.fromkeys(world.costs)
    with pytest.raises(NoPlan, match="no kernel could be made for neg of the operator"):
        world.search()


class Clock:
    """Time passes when structures are measured."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(6))
def test_a_budget_gives_the_best_so_far_and_its_gap(seed: int) -> None:
    world, clock = World(seed, 10), Clock()
    measure: Callable[[list[str]], Mapping[str, float | None]] = world.measure

    def slowly(keys: list[str]) -> Mapping[str, float | None]:
        clock.now += 1.0
        return measure(keys)

    world.measure = slowly  # type: ignore[method-assign]
    plan, certificate = world.search(budget=4.0, clock=clock, limits=replace(EXACT, gap=1e-3))
    best = world.best()
    assert certificate.rounds <= 6
    assert certificate.bound_us <= best + 1e-6 <= certificate.objective_us + 2e-6
    assert certificate.objective_us == pytest.approx(sum(plan.costs))
    assert certificate.objective_us <= min(c for c in (certificate.greedy_us, certificate.per_operator_us) if c) + 1e-6


def test_no_budget_at_all_still_gives_a_plan() -> None:
    world, clock = World(2), Clock()
    plan, certificate = world.search(budget=0.0, clock=clock)
    assert plan.kernels and certificate.objective_us == pytest.approx(sum(plan.costs))
    assert not certificate.complete and certificate.gap > 0


def test_a_kernel_faster_than_its_bound_is_counted_and_bounds_fall() -> None:
    world = World(4)
    world.bounds = {k: 1.5 * float(c or 0.0) for k, c in world.costs.items()}
    calls: list[int] = []

    def rebound(measured: Mapping[str, float]) -> Mapping[str, float]:
        calls.append(len(measured))
        return {k: 0.5 * float(c or 0.0) for k, c in world.costs.items()}

    _, certificate = world.search(rebound=rebound)
    assert certificate.faster > 0 and calls[0] > 0
    assert certificate.objective_us == pytest.approx(world.best())
    assert certificate.bound_us <= certificate.objective_us


def test_progress_tells_where_the_search_stands() -> None:
    world = World(6)
    seen: list[Progress] = []
    _, certificate = world.search(progress=seen.append)
    assert seen[-1].phase == "done" and seen[-1].best_us == pytest.approx(certificate.objective_us)
    assert [p.rounds for p in seen] == sorted(p.rounds for p in seen)
    best = world.best()
    assert all(p.bound_us <= best + 1e-6 for p in seen)
    assert all(p.best_us >= best - 1e-6 for p in seen)


def test_a_model_without_work_has_an_empty_plan() -> None:
    graph = Sketch(x=(2,)).graph("x")
    grouping = groups_of(graph)
    partitions = partitions_of(graph, grouping, one_convolution)
    candidates = candidates_of(graph, grouping, one_convolution, partitions=partitions)
    plan, certificate = orchestrate(candidates, (), {}, lambda keys: {})
    assert plan.kernels == () and certificate.objective_us == certificate.bound_us == 0.0


# Baselines


def test_one_kernel_for_each_operator_in_the_models_layout() -> None:
    s = Sketch(x=(1, 2, 3, 3))
    c = s.conv("x", 2, origin="conv")
    neg = s.add("neg", c, origin="silu")
    y = s.add("mul", c, s.add("exp", neg, origin="silu"), origin="silu")
    d = s.conv(y, 2, origin="other")
    graph = s.graph(d)
    partitions = partitions_of(graph, groups_of(graph), one_convolution)
    assert partitions["per_operator"] == Partition(((0,), (1, 2, 3), (4,)), row_major=True)
    assert partitions["greedy"] == Partition(((0, 1, 2, 3), (4,)))


def test_parts_of_an_operator_that_do_not_meet_are_kernels_of_their_own() -> None:
    s = Sketch(x=(4, 2))
    half = {"steps": (1, 1), "shape": (2, 2), "origin": "split"}
    a = s.add("slice", "x", starts=(0, 0), **half)  # type: ignore[arg-type]
    b = s.add("slice", "x", starts=(2, 0), **half)  # type: ignore[arg-type]
    graph = s.graph(s.add("add", a, b, origin="add"))
    assert partitions_of(graph, groups_of(graph), one_convolution)["per_operator"].kernels == ((0,), (1,), (2,))


def test_an_operator_that_cannot_be_fused_is_several_kernels() -> None:
    s = Sketch(x=(1, 2, 3, 3))
    y = s.add("neg", s.conv(s.conv("x", 2, origin="block"), 2, origin="block"), origin="block")
    graph = s.graph(y)
    assert partitions_of(graph, groups_of(graph), one_convolution)["per_operator"].kernels == ((0,), (1, 2))


def test_alternatives_take_no_part_in_the_baselines() -> None:
    s = Sketch(x=(4,), z=(4,))
    t = s.add("add", "x", "z", origin="add")
    s.add("sub", "x", s.add("neg", "z", origin="add"), value=t, origin="add")
    graph = s.graph(s.add("tanh", t, origin="tanh"))
    partitions = partitions_of(graph, groups_of(graph), one_convolution)
    assert partitions["per_operator"].kernels == ((0,), (3,))
    assert partitions["greedy"].kernels == ((0, 3),)


@pytest.mark.parametrize("seed", range(30))
def test_baselines_always_run(seed: int) -> None:
    graph = random_graph(seed, 14, alternatives=seed % 2 == 0)
    grouping = groups_of(graph)
    partitions = partitions_of(graph, grouping, one_convolution)
    candidates = candidates_of(graph, grouping, one_convolution, Caps(groups=3), partitions)
    program = program_of(candidates)
    for name, partition in partitions.items():
        allowed = np.full(len(candidates.columns), np.inf)
        allowed[list(candidates.partitions[name])] = 1.0
        chosen = solve(program, allowed).chosen
        kernels = {candidates.columns[c].definitions for c in chosen if candidates.columns[c].kind == "kernel"}
        assert kernels <= {grouping.closed(part) for part in partition.kernels}


# Estimates


def test_estimates_follow_the_family_where_it_is_known() -> None:
    bounds = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0])
    costs = np.array([2.0, 3.0, 4.0, 5.0, 20.0, 0.0, 0.0])
    measured = np.array([True, True, True, True, True, False, False])
    family = np.array([0, 0, 0, 0, 1, 0, 1])
    found = estimated(bounds, costs, measured, family, 0.5)
    assert found[5] == pytest.approx(2.0 * 3.5)  # the median of its own four
    assert found[6] == pytest.approx(4.0 * 4.0)  # too few of its own: the median of all
    assert (estimated(bounds, costs, measured, family, 0.0)[5:] <= found[5:]).all()
    none = np.zeros(7, dtype=np.bool_)
    assert (estimated(bounds, costs, none, family, 0.5) == bounds).all()


def test_estimates_are_never_below_the_bounds_and_ignore_failures() -> None:
    bounds, costs = np.array([1.0, 1.0, 3.0]), np.array([np.inf, 0.5, 0.0])
    measured = np.array([True, True, False])
    assert (estimated(bounds, costs, measured, np.zeros(3, dtype=np.int64), 0.5) >= bounds).all()


def test_families_tell_linear_primitives_and_layouts_apart() -> None:
    world = World(9, 12)
    families: dict[str, list[Fragment]] = {}
    for fragment in world.fragments.values():
        families.setdefault(family_of(fragment), []).append(fragment)
    assert {"conv mixed", "conv other", "row-major"} <= set(families)
    for name, fragments in families.items():
        with_conv = {any(d.primitive == "conv" for d in f.graph.definitions) for f in fragments}
        assert with_conv == {"conv" in name.split()}
