"""What is known of each structure's cost: a lower bound, and a measurement where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from korch.selection.estimate import estimated
from korch.selection.program import Vector

Mask = NDArray[np.bool_]
# Microseconds for each structure key; None where no kernel could be made for it.
Measure = Callable[[list[str]], Mapping[str, float | None]]
# From all measured costs to better lower bounds, asked for when a kernel was faster than its bound.
Rebound = Callable[[Mapping[str, float]], Mapping[str, float]]


class Known:
    """Structures are numbered; aliases share one more, which is known and costs nothing. `of` has the structure of
    each column. `cost` is infinity where no kernel could be made; `faster` counts those faster than their bound."""

    def __init__(
        self,
        keys: Sequence[str],
        bounds: Mapping[str, float],
        families: Mapping[str, str],
        measure: Measure,
        rebound: Rebound | None,
    ) -> None:
        self.keys = tuple(keys)
        self.structures = tuple(dict.fromkeys(k for k in keys if k))
        number = {k: i for i, k in enumerate(self.structures)}
        self.of = np.array([number.get(k, len(number)) for k in keys], dtype=np.int64)
        self.bounds = np.array([*(bounds[k] for k in self.structures), 0.0])
        self.cost = np.zeros(len(number) + 1)
        self.measured = np.zeros(len(number) + 1, dtype=np.bool_)
        self.measured[-1] = True
        self.faster = 0
        labels = {name: i for i, name in enumerate(dict.fromkeys(families.values()))}
        self._family = np.array([*(labels.get(families.get(k, ""), -1) for k in self.structures), -1])
        self._measure, self._rebound = measure, rebound

    def of_structures(self, quantile: float = 0.0) -> Vector:
        """For each structure its measured cost; where there is none its estimate, or its lower bound (quantile 0)."""
        guessed = self.bounds
        if quantile > 0:
            guessed = estimated(self.bounds, self.cost, self.measured, self._family, quantile)
        return np.where(self.measured, self.cost, guessed)

    def costs(self, quantile: float = 0.0) -> Vector:
        """The same for each column."""
        return self.of_structures(quantile)[self.of]

    def measured_costs(self) -> Vector:
        """For each column its measured cost, infinity where there is none."""
        return np.where(self.measured, self.cost, np.inf)[self.of]

    def columns(self) -> Mask:
        """Which columns are measured."""
        return self.measured[self.of]

    def unmeasured(self, columns: Iterable[int]) -> list[int]:
        """The structures of the columns that are not measured, each once."""
        found = dict.fromkeys(int(self.of[c]) for c in columns)
        return [s for s in found if not self.measured[s]]

    def reveal(self, structures: Sequence[int]) -> bool:
        """Measures structures. Whether all kept their bounds; if not, there are new bounds for the others."""
        found = self._measure([self.structures[s] for s in structures])
        faster = 0
        for s in structures:
            cost = found[self.structures[s]]
            faster += cost is not None and cost < float(self.bounds[s])
            self.cost[s], self.measured[s] = np.inf if cost is None else cost, True
        self.faster += faster
        if faster and self._rebound is not None:
            good = np.flatnonzero(self.measured[:-1] & np.isfinite(self.cost[:-1]))
            bounds = self._rebound({self.structures[s]: float(self.cost[s]) for s in good})
            self.bounds[:-1] = [bounds[k] for k in self.structures]
        return not faster
