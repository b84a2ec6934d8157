"""Solving the program with HiGHS: the linear relaxation, kept warm between costs, and the integer program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from korch.errors import KorchError
from korch.selection.cuts import cutter_of
from korch.selection.order import needed_only, order_of
from korch.selection.program import Program, Row, Solution, Vector, loops

_FIRST_COLUMNS = 500  # at least so many columns are in the first integer program
_LATE = "no plan was found in time; allow more time for the search"
_NONE = "no plan is left: a value of the model has no kernel that could be made"

Mask = NDArray[np.bool_]
Clock = Callable[[], float]


class _Silent(highspy.Highs):
    """HiGHS announces itself on standard output when callbacks are enabled; standard output is not its own."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


class NoPlan(KorchError):
    """No choice of the columns that are left makes a plan that runs."""


@dataclass(frozen=True)
class Relaxed:
    """A solution of the relaxation: its objective bounds every plan's cost from below; `use` and `reduced` (the
    reduced cost: any plan with the column costs at least the objective plus it) have an entry for each column."""

    objective: float
    use: Vector
    reduced: Vector


class Relaxation:
    """The linear relaxation of a program. `solve` may be called again and again with other costs: each solve
    starts from the last one's basis, and cover rows once found stay (`rows`)."""

    def __init__(self, program: Program, extra: Iterable[Row] = ()) -> None:
        self.program = program
        self.rows: list[Row] = [*program.rows, *extra]
        self._cutter = cutter_of(program)
        self._highs = _model(program, self.rows)

    def solve(self, costs: Vector, time_limit: float = 600.0) -> Relaxed:
        """`costs` has one entry for each column; infinity drops the column. NoPlan when nothing is left."""
        program, highs = self.program, self._highs
        count = len(program.columns)
        numbers = np.arange(count, dtype=np.int32)
        finite = np.isfinite(costs)
        highs.changeColsCost(count, numbers, np.where(finite, costs, 0.0))
        highs.changeColsBounds(count, numbers, np.zeros(count), np.where(finite, 1.0, 0.0))
        highs.setOptionValue("time_limit", highs.getRunTime() + time_limit)
        while True:
            highs.run()
            status = highs.getModelStatus()
            if status == highspy.HighsModelStatus.kInfeasible:
                raise NoPlan(_NONE)
            if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty):
                raise TimeoutError(f"the relaxation was not solved ({highs.modelStatusToString(status)})")
            solution = highs.getSolution()
            values = np.asarray(solution.col_value, dtype=np.float64)
            broken = self._cutter.broken(values)
            if not broken:
                reduced = np.asarray(solution.col_dual, dtype=np.float64)[:count]
                return Relaxed(highs.getInfo().objective_function_value, values[:count], np.maximum(reduced, 0.0))
            self.add(broken)

    def add(self, rows: Sequence[Row]) -> None:
        """Further rows that hold for every plan that runs."""
        self.rows.extend(rows)
        starts, variables, coefficients, bounds = _packed(rows)
        self._highs.addRows(
            len(rows),
            bounds,
            np.full(len(rows), highspy.kHighsInf),
            len(variables),
            starts[:-1],
            variables,
            coefficients,
        )


def _packed(rows: Sequence[Row]) -> tuple[NDArray[np.int32], NDArray[np.int32], Vector, Vector]:
    starts = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(r.variables) for r in rows], out=starts[1:])
    variables = np.fromiter((v for r in rows for v in r.variables), dtype=np.int32, count=int(starts[-1]))
    coefficients = np.fromiter((k for r in rows for k in r.coefficients), dtype=np.float64, count=int(starts[-1]))
    return starts, variables, coefficients, np.array([r.bound for r in rows], dtype=np.float64)


def _model(program: Program, rows: Sequence[Row]) -> highspy.Highs:
    starts, variables, coefficients, bounds = _packed(rows)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.variables, len(rows)
    lp.col_cost_ = np.zeros(program.variables)
    lower = np.zeros(program.variables)
    lower[[program.exists(r) for r in sorted(program.required)]] = 1.0
    lp.col_lower_, lp.col_upper_ = lower, np.ones(program.variables)
    lp.row_lower_, lp.row_upper_ = bounds, np.full(len(rows), highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, variables, coefficients
    highs = _Silent()
    highs.passModel(lp)
    return highs


@dataclass(frozen=True)
class _Found:
    """What one run of the integer solver found, and what it proved: no plan over its columns costs less."""

    chosen: tuple[int, ...] | None
    bound: float


def _integer(
    program: Program,
    rows: Sequence[Row],
    costs: Vector,
    keep: Mask,
    incumbent: Sequence[int] | None,
    time_limit: float,
    gap: float,
    presolve: bool = True,
) -> _Found:
    """One run of the integer solver over the kept columns."""
    highs = _model(program, rows)
    count = len(program.columns)
    numbers = np.arange(count, dtype=np.int32)
    kinds = np.full(count, highspy.HighsVarType.kInteger.value, dtype=np.uint8)
    highs.changeColsCost(count, numbers, np.where(keep, costs, 0.0))
    highs.changeColsBounds(count, numbers, np.zeros(count), np.where(keep, 1.0, 0.0))
    highs.changeColsIntegrality(count, numbers, kinds)
    highs.setOptionValue("time_limit", max(time_limit, 0.1))
    highs.setOptionValue("mip_rel_gap", gap)
    highs.setOptionValue("mip_abs_gap", 1e-9)
    if not presolve:
        highs.setOptionValue("presolve", "off")
    if incumbent is not None:
        highs.setSolution(_start(program, incumbent))
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return _Found(None, np.inf)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return _Found(None, info.mip_dual_bound)
    use = np.asarray(highs.getSolution().col_value[:count])
    chosen = tuple(int(c) for c in np.flatnonzero(use > 0.5))
    cost = float(costs[list(chosen)].sum())
    solved = status == highspy.HighsModelStatus.kOptimal
    if presolve and solved and cost - info.mip_dual_bound > 2 * gap * cost + 1e-6 * (1 + cost):
        # HiGHS 1.16 may return the start as optimal, with another objective than its own, where its presolve
        # leaves nothing over.
        return _integer(program, rows, costs, keep, None, time_limit, gap, presolve=False)
    return _Found(chosen, info.mip_dual_bound)


def _start(program: Program, plan: Sequence[int]) -> highspy.HighsSolution:
    """A plan as the values of all variables."""
    values = np.zeros(program.variables)
    values[list(plan)] = 1.0
    values[[program.exists(r) for c in plan for r in program.writes[c]]] = 1.0
    start = highspy.HighsSolution()
    start.col_value = values.tolist()
    return start


def least_of_each_interface(program: Program, costs: Vector) -> Mask:
    """Which columns are the cheapest of those that read and write the same; of equal ones the first."""
    cheapest: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for c in np.lexsort((np.arange(len(costs)), costs)):
        cheapest.setdefault((program.reads[c], program.writes[c]), int(c))
    kept = np.zeros(len(costs), dtype=np.bool_)
    kept[list(cheapest.values())] = True
    return kept & np.isfinite(costs)


def solve(
    program: Program,
    costs: Vector,
    *,
    incumbent: Sequence[int] | None = None,
    relaxation: Relaxation | None = None,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    clock: Clock = time.monotonic,
) -> Solution:
    """The cheapest plan that runs, or the best one found in `time_limit` seconds.

    - `costs` has one entry for each column, infinity where it may not be used.
    - `incumbent` is a plan that runs, to start from.
    - `relaxation` is kept warm and collects the rows found on the way.

    Any plan with a column costs at least the relaxation's objective plus the column's reduced cost. So the integer
    solver first sees the columns of small reduced cost only; what it finds says which others could still matter.
    NoPlan when there is no plan, or none was found in time.
    """
    if not program.required:  # the outputs are inputs or constants
        return Solution((), 0.0, 0.0)
    deadline = clock() + time_limit
    relaxation = relaxation or Relaxation(program)

    def price(columns: Sequence[int] | None) -> float:
        return np.inf if columns is None else float(costs[list(columns)].sum())

    best = tuple(incumbent) if incumbent is not None and np.isfinite(price(incumbent)) else None
    try:
        relaxed = relaxation.solve(costs, time_limit)
    except TimeoutError:
        if best is None:
            raise NoPlan(_LATE) from None
        return Solution(tuple(sorted(best)), price(best), 0.0)
    kept = least_of_each_interface(program, costs)
    nearest = np.sort(relaxed.reduced[kept])[:_FIRST_COLUMNS]
    bound, reach = relaxed.objective, max(1e-4 * relaxed.objective, nearest.max(initial=0.0))
    while True:
        upper = price(best)
        near = kept & (relaxed.reduced <= reach + 1e-9)
        complete = reach >= upper - relaxed.objective or bool(near[kept].all())
        if best is not None:
            near[list(best)] = True
        found = _integer(program, relaxation.rows, costs, near, best, deadline - clock(), gap)
        if found.chosen is not None:
            order = order_of(program, found.chosen)
            if order.circles:
                relaxation.add(list(loops(program, order.circles)))
                if clock() < deadline:
                    continue
                break
            pruned = needed_only(program, found.chosen, lambda c: float(costs[c]))
            best = pruned if price(pruned) < upper else best
        bound = max(bound, found.bound if complete else min(found.bound, relaxed.objective + reach))
        upper = price(best)
        if complete or clock() >= deadline or (best is not None and upper - bound <= gap * upper):
            break
        reach = min(3 * reach + 1e-6, upper - relaxed.objective)
    if best is None:
        raise NoPlan(_NONE if np.isinf(bound) else _LATE)
    return Solution(tuple(sorted(best)), upper, min(bound, upper))
