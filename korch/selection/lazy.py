"""Lazy measuring: the best plan with a certificate, although most candidates are never built.

Every structure has a lower bound on its cost. The program is solved with measured costs where they are known and
lower bounds where not; what the solution uses is measured; this is repeated until it uses nothing unmeasured.
Whatever was never measured could then not have made a better plan. The linear relaxation is solved first, until
its solution is measured throughout, because it is a thousand times cheaper than the integer program.

Lower bounds are optimistic, and following them alone means measuring thousands of structures before the first good
plan. So the search first believes estimates (`korch.selection.estimate`): the median of what similar structures took,
and the bounds afterwards. The best plan is known early; the rest of the time is spent on the certificate, and on the
structures that matter most to it (`korch.selection.reveal`). It ends as soon as the certified gap is small enough.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from korch.candidates.build import Candidates
from korch.candidates.candidate import Candidate
from korch.candidates.dependence import bits
from korch.selection.known import Known, Mask, Measure, Rebound
from korch.selection.order import needed_only
from korch.selection.program import Solution, Vector, program_of, relative_gap
from korch.selection.reveal import Batching, promising
from korch.selection.solver import Clock, NoPlan, Relaxation, Relaxed, solve

_PLAN_GAP = 1e-3  # integer solves may leave so much, or a quarter of the gap asked for
_WORTH_A_SOLVE = 1e-2  # a better plan is looked for when it promises so much
NO_GAP = 1e-9  # relative gaps below this are the solver's arithmetic
_LAST_SECONDS = 5.0  # for each of the last solves, over what is measured, when the budget is spent


@dataclass(frozen=True)
class Plan:
    """The chosen candidates in a legal order, with their structure keys (empty for an alias) and costs in
    microseconds; `columns` are their numbers in the program."""

    kernels: tuple[Candidate, ...]
    keys: tuple[str, ...]
    costs: tuple[float, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Certificate:
    """What is known about a plan.

    Its cost, and a lower bound on the cost of every plan over the same candidates; `gap` is their relative
    difference. `candidates` counts the columns, `distinct` their structures, `measured` those measured, `failed`
    those of them without a working kernel, `faster` those that were faster than their lower bound. The baselines'
    costs are None when one of their kernels could not be made. `complete` is false when the budget ended the
    search. All costs in microseconds.
    """

    objective_us: float
    bound_us: float
    gap: float
    candidates: int
    distinct: int
    measured: int
    failed: int
    faster: int
    greedy_us: float | None
    per_operator_us: float | None
    rounds: int
    complete: bool
    caps: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Progress:
    """Where a search stands: `phase` is `baselines`, `estimates`, `relaxation`, `integer` or `done`; the best
    measured plan's cost (infinity before the first) and the lower bound on every plan's."""

    phase: str
    rounds: int
    measured: int
    distinct: int
    best_us: float
    bound_us: float


@dataclass(frozen=True)
class Limits:
    """`gap`: the relative gap at which a plan is good enough; 0 asks for the best one. `batching`: how many structures
    are measured at once, so that compiling is shared. `integer_seconds`: one integer solve. `quantiles`: which
    estimates are believed in turn, and `rounds` how often each is asked."""

    gap: float = 1e-2
    batching: Batching = field(default_factory=Batching)
    integer_seconds: float = 30.0
    quantiles: tuple[float, ...] = (0.5,)
    rounds: int = 8


def orchestrate(
    candidates: Candidates,
    keys: Sequence[str],
    bounds: Mapping[str, float],
    measure: Measure,
    *,
    families: Mapping[str, str] | None = None,
    budget: float = float("inf"),
    limits: Limits | None = None,
    rebound: Rebound | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    clock: Clock = time.monotonic,
) -> tuple[Plan, Certificate]:
    """The cheapest plan over the candidates, and its certificate.

    - `keys` has the structure of each candidate (`korch.candidates.candidate.structures_of`), empty for aliases,
      which cost nothing; `bounds` the lower bound on each structure's cost, in microseconds.
    - `measure` is called with structures whose costs are wanted, each at most once.
    - `families` names for each structure those that are alike (`korch.selection.estimate.family_of`).
    - After `budget` seconds (measuring included) the best plan so far is returned, with its gap.

    NoPlan when the kernels that could be made do not compute the model.
    """
    known = Known(keys, bounds, families or {}, measure, rebound)
    search = _Search(candidates, known, limits or Limits(), progress, clock, clock() + budget)
    try:
        baselines = search.run()
        return search.plan(), search.certificate(baselines)
    except NoPlan as error:
        raise NoPlan(search.missing() or str(error)) from error


@dataclass
class _Search:
    """One search: the best measured plan and the lower bound on every plan's cost, and how they come closer."""

    candidates: Candidates
    known: Known
    limits: Limits
    progress: Callable[[Progress], None]
    clock: Clock
    deadline: float

    def __post_init__(self) -> None:
        self.program = program_of(self.candidates)
        self.relaxation = Relaxation(self.program)
        self._best: tuple[int, ...] | None = None
        self._bound = 0.0
        self._rounds = 0

    def run(self) -> dict[str, float | None]:
        """The whole search; the baselines' costs by name."""
        baselines = self._baselines()
        with contextlib.suppress(TimeoutError):  # a relaxation met the deadline: the best plan so far stands
            for quantile in self.limits.quantiles:
                self._relaxed()  # for the bound
                self._relaxations("estimates", quantile, self.limits.rounds)
                self._improve(self.limits.integer_seconds / 4)
            self._relaxations("relaxation", 0.0, None)
            self._integers()
        if self.time_left() <= 0:
            self._improve(_LAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                self._relaxed()
        self._report("done")
        return baselines

    def time_left(self) -> float:
        return self.deadline - self.clock()

    def best_us(self) -> float:
        return np.inf if self._best is None else float(self.known.costs()[list(self._best)].sum())

    def _good_enough(self) -> bool:
        best = self.best_us()
        return bool(np.isfinite(best)) and best - self._bound <= max(self.limits.gap, NO_GAP) * best

    def _reveal(self, phase: str, structures: Sequence[int]) -> None:
        if not self.known.reveal(structures):
            self._bound = 0.0
        self._rounds += 1
        self._report(phase)

    def _report(self, phase: str) -> None:
        measured, distinct = int(self.known.measured[:-1].sum()), len(self.known.structures)
        self.progress(Progress(phase, self._rounds, measured, distinct, self.best_us(), self._bound))

    def _baselines(self) -> dict[str, float | None]:
        """Measures the baselines' columns that bounds, then estimates choose; their plans over what is measured.
        Afterwards there is a plan."""
        masks: dict[str, Mask] = {}
        for name, columns in self.candidates.partitions.items():
            masks[name] = np.zeros(len(self.program.columns), dtype=np.bool_)
            masks[name][list(columns)] = True
        for quantile in (0.0, 0.5, 0.5):
            plans = [self._restricted(mask, quantile) for mask in masks.values()]
            wanted = self.known.unmeasured(c for plan in plans if plan is not None for c in plan.chosen)
            if not wanted or (self._rounds and self.time_left() <= 0):
                break
            self._reveal("baselines", wanted)
        found: dict[str, float | None] = {}
        for name, mask in masks.items():
            plan = self._restricted(mask & self.known.columns(), 0.0)
            found[name] = None if plan is None else plan.objective
            if plan is not None and plan.objective < self.best_us():
                self._best = plan.chosen
        while self._best is None:  # their kernels failed: any plan at all
            plan = self._solve(self.known.costs(0.5), self.limits.integer_seconds)
            wanted = self.known.unmeasured(plan.chosen)
            if wanted:
                self._reveal("baselines", wanted)
            else:
                self._best = plan.chosen
        return found

    def _restricted(self, allowed: Mask, quantile: float) -> Solution | None:
        """The best plan over the allowed columns, None when there is none."""
        try:
            return self._solve(np.where(allowed, self.known.costs(quantile), np.inf), self.limits.integer_seconds)
        except NoPlan:
            return None

    def _relaxations(self, phase: str, quantile: float, rounds: int | None) -> None:
        """Measures what relaxed solutions use, the most promising first, until one uses nothing unmeasured or the
        best plan is good enough."""
        while self.time_left() > 0 and rounds != 0:
            relaxed = self._relaxed(quantile)
            if self._good_enough():
                return
            wanted = self._promising(relaxed, quantile)
            if not wanted:
                return
            self._reveal(phase, wanted)
            if quantile == 0.0:
                self._improve_if_it_pays()
            rounds = None if rounds is None else rounds - 1

    def _promising(self, relaxed: Relaxed, quantile: float) -> list[int]:
        enough = (1 - self.limits.gap) * self.best_us()
        return promising(self.relaxation, self.known, relaxed, quantile, enough, self.limits.batching)

    def _improve_if_it_pays(self) -> None:
        """Looks for a better plan over what is measured, when the relaxation over that promises enough."""
        with contextlib.suppress(NoPlan, TimeoutError):
            hoped, best = self.relaxation.solve(self.known.measured_costs(), _LAST_SECONDS).objective, self.best_us()
            much = hoped < (1 - max(_WORTH_A_SOLVE, self.limits.gap)) * best
            last = hoped < (1 - self.limits.gap / 4) * best and self._bound >= (1 - self.limits.gap) * hoped
            if much or last:
                self._improve(self.limits.integer_seconds / 15)

    def _relaxed(self, quantile: float = 0.0) -> Relaxed:
        relaxed = self.relaxation.solve(self.known.costs(quantile), max(self.time_left(), _LAST_SECONDS))
        if quantile == 0.0:
            self._bound = max(self._bound, relaxed.objective)
        return relaxed

    def _integers(self) -> None:
        """Solves the integer program and measures what it uses, until that is measured or good enough."""
        while self.time_left() > 0:
            self._improve()
            self._relaxed()
            if self._good_enough():
                return
            solution = self._solve(self.known.costs(), min(self.limits.integer_seconds, self.time_left()))
            self._bound = max(self._bound, solution.bound)
            wanted = self.known.unmeasured(solution.chosen)
            if not wanted:
                self._best = solution.chosen
            if not wanted or self._good_enough():
                return
            self._reveal("integer", wanted)

    def _improve(self, seconds: float | None = None) -> None:
        """The best plan over what is measured."""
        seconds = min(self.limits.integer_seconds, self.time_left()) if seconds is None else seconds
        with contextlib.suppress(NoPlan, TimeoutError):
            self._best = self._solve(self.known.measured_costs(), seconds).chosen

    def _solve(self, costs: Vector, seconds: float) -> Solution:
        return solve(
            self.program,
            costs,
            incumbent=self._best,
            relaxation=self.relaxation,
            time_limit=seconds,
            gap=min(self.limits.gap / 4, _PLAN_GAP),
            clock=self.clock,
        )

    def plan(self) -> Plan:
        """The best plan; NoPlan when there is none."""
        costs = self.known.costs()
        if self._best is None:
            raise NoPlan("no plan could be measured: the kernels that could be made do not compute the model")
        columns = needed_only(self.program, self._best, lambda c: float(costs[c]))
        return Plan(
            tuple(self.program.columns[c] for c in columns),
            tuple(self.known.keys[c] for c in columns),
            tuple(float(costs[c]) for c in columns),
            columns,
        )

    def missing(self) -> str | None:
        """Names an operator for which no kernel could be made, when there is one that every plan needs."""
        d, costs = self.program.dependence, self.known.costs()
        graph, groups = self.candidates.graph, self.candidates.grouping.groups
        for v in bits(d.certain):
            makers = list(bits(d.makers[v]))
            if all(np.isinf(costs[list(self.program.holds[g])]).all() for g in makers):
                definition = graph.definitions[groups[makers[0]].own[-1]]
                return (
                    f"no kernel could be made for {definition.primitive} of the operator {definition.origin!r} "
                    f"({graph.types[definition.outputs[0]]}); see the dropped kernels for the reasons"
                )
        return None

    def certificate(self, baselines: Mapping[str, float | None]) -> Certificate:
        measured, cost = self.known.measured[:-1], self.known.cost[:-1]
        best, enumeration = self.best_us(), self.candidates.enumeration
        bound = min(float(self._bound), best)
        return Certificate(
            objective_us=best,
            bound_us=bound,
            gap=relative_gap(best, bound),
            candidates=len(self.known.keys),
            distinct=len(self.known.structures),
            measured=int(measured.sum()),
            failed=int((measured & np.isinf(cost)).sum()),
            faster=self.known.faster,
            greedy_us=baselines.get("greedy"),
            per_operator_us=baselines.get("per_operator"),
            rounds=self._rounds,
            complete=self._good_enough(),
            caps=asdict(enumeration.caps) | {"crowded": enumeration.crowded},
        )
