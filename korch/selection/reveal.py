"""Which structures to measure next: those whose costs would move the relaxation most.

A structure's *promise* is how much dearer the relaxed solution would become if the structure cost what similar ones
took: its use times the distance from its lower bound to its estimate. Where a bound is near the estimate, or the
structure is cheap, there is little to learn. After the most promising ones are chosen, the relaxation is solved again
as if their estimates were measured, which shows what it would turn to; so one batch holds several steps of the
search, and is compiled together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from korch.selection.known import Known
from korch.selection.program import Vector
from korch.selection.solver import Relaxation, Relaxed


@dataclass(frozen=True)
class Batching:
    """Each look takes structures that make up `share` of the promise, but at least `least`, until there are `size`
    or `looks` are over. `likely` is the quantile of similar structures' costs that counts as what one would take."""

    share: float = 0.8
    least: int = 8
    size: int = 24
    looks: int = 4
    likely: float = 0.5


def promising(
    relaxation: Relaxation, known: Known, relaxed: Relaxed, quantile: float, enough: float, batching: Batching
) -> list[int]:
    """What to measure next, the most promising first; empty when the relaxed solution uses nothing unmeasured.

    `relaxed` is the solution with unmeasured structures at that quantile of their estimates. It looks no further
    once the relaxation would come to `enough`.
    """
    low, high = known.of_structures(), known.of_structures(batching.likely)
    guess = known.of_structures(quantile)
    chosen: list[int] = []
    for look in range(batching.looks):
        if look:
            relaxed = relaxation.solve(guess[known.of])
        if look and relaxed.objective >= enough:
            break
        fresh = _most_promising(_promise(known, relaxed, low, high, chosen), batching)
        chosen.extend(fresh)
        if not fresh or len(chosen) >= batching.size:
            break
        guess[chosen] = np.maximum(guess, high)[chosen]
    return chosen


def _promise(known: Known, relaxed: Relaxed, low: Vector, high: Vector, chosen: list[int]) -> Vector:
    """How much each structure promises; a thousandth of its cost at least, where it is used at all."""
    learned = np.zeros(len(low))
    unknown = ~known.measured
    learned[unknown] = high[unknown] - low[unknown] + 1e-3 * low[unknown] + 1e-9
    learned[chosen] = 0.0
    used = np.where(relaxed.use > 1e-6, relaxed.use, 0.0)
    found = np.zeros(len(low))
    np.add.at(found, known.of, used * learned[known.of])
    return found


def _most_promising(promise: Vector, batching: Batching) -> list[int]:
    order = np.argsort(-promise, kind="stable")
    total = np.cumsum(promise[order])
    count = int(np.searchsorted(total, batching.share * total[-1])) + 1
    return [int(s) for s in order[: max(count, batching.least)] if promise[s] > 0]
