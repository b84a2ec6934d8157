"""How a linear kernel's outputs are cut into tiles, panels and tasks. All of it depends on shapes only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from korch.codegen.c.linear.tile import Columns
from korch.codegen.target import Target

# A task should be worth the 0.3 us that handing it out costs; below some 20 us in all, one thread is faster.
SMALL_WORK = 2_000_000
TASKS = 16
# Tiles with a higher estimate than the best one's are left out: the estimate is good to some 20 %.
WORTH_TRYING = 1.25


@dataclass(frozen=True)
class Balanced:
    """`total` cut into pieces whose sizes differ by at most one: `big` of `size + 1`, then `count - big` of `size`."""

    total: int
    count: int

    @staticmethod
    def of(total: int, most: int) -> Balanced:
        """The fewest pieces of at most `most`."""
        return Balanced(total, max(1, math.ceil(total / max(most, 1))))

    @property
    def size(self) -> int:
        return self.total // self.count

    @property
    def big(self) -> int:
        return self.total % self.count

    @property
    def largest(self) -> int:
        return self.size + (1 if self.big else 0)

    def sizes(self) -> list[int]:
        """The distinct sizes, larger first."""
        return [self.size + 1, self.size] if self.big else [self.size]

    def start(self, piece: str) -> str:
        """C text: where a piece starts."""
        if not self.big:
            return f"({piece}) * {self.size}"
        return f"(({piece}) * {self.size} + (({piece}) < {self.big} ? ({piece}) : {self.big}))"


@dataclass(frozen=True)
class Panels:
    """`n` columns cut into panels of at most `vectors` vectors of `lanes`, balanced; see `Columns` for the last."""

    n: int
    lanes: int
    vectors: int
    half: bool = False

    @property
    def key(self) -> str:
        """Names the packed form."""
        return f"panels of {self.vectors}x{self.lanes}{'h' if self.half else ''}"

    @property
    def pieces(self) -> Balanced:
        return Balanced.of(math.ceil(self.n / self.lanes), self.vectors)

    @property
    def count(self) -> int:
        return self.pieces.count

    def runs(self) -> list[tuple[int, int, Columns]]:
        """Runs of equal panels: the first panel's number, how many, and their columns."""
        p = self.pieces
        rest = self.n % self.lanes or self.lanes
        found = [(0, p.big, Columns(p.size + 1, self.lanes))] if p.big else []
        found.append((p.big, p.count - p.big, Columns(p.size, self.lanes)))
        if rest == self.lanes:
            return found
        first, count, last = found.pop()
        narrow = self.half and rest <= self.lanes // 2
        if count > 1:
            found.append((first, count - 1, last))
        return [*found, (first + count - 1, 1, Columns(last.vectors, rest, narrow))]

    def pack(self, rows: np.ndarray) -> np.ndarray:
        """[…, depth, n] as panels [depth][width], padded with zeros: […, floats]."""
        depth = rows.shape[-2]
        parts: list[np.ndarray] = []
        column = 0
        for _, count, columns in self.runs():
            width, valid = columns.width(self.lanes), columns.valid(self.lanes)
            part = rows[..., column : column + count * valid]
            part = part.reshape(*rows.shape[:-1], count, valid)
            if width > valid:
                part = np.concatenate([part, np.zeros((*part.shape[:-1], width - valid), part.dtype)], axis=-1)
            parts.append(np.moveaxis(part, -2, -3).reshape(*rows.shape[:-2], count * depth * width))
            column += count * valid
        return np.concatenate(parts, axis=-1)

    def floats(self, depth: int) -> int:
        """Elements of one packed matrix."""
        return sum(count * depth * columns.width(self.lanes) for _, count, columns in self.runs())


def use_half(n: int, target: Target) -> bool:
    """Whether the last vector is worth half: only where a half-wide operation takes half the time."""
    lanes = target.lanes()
    return target.vector_bytes == 64 and 0 < n % lanes <= lanes // 2


def tile_choices(n: int, rows: int, depth: int, row_step: int, target: Target) -> list[tuple[int, int]]:
    """Register tiles (rows, vectors) for `n` columns, the most promising first.

    The estimate counts cycles of the arithmetic ports, the load ports and of the way from the second-level cache.
    """
    lanes = target.lanes()
    found: dict[int, tuple[float, tuple[int, int]]] = {}
    for vectors in range(1, min(8, math.ceil(n / lanes)) + 1):
        most = (target.vector_registers - vectors - 1) // vectors
        if most < min(4, rows):
            continue  # B would be loaded for too few rows
        if row_step * 4 % 4096 == 0:
            most = min(most, 8)  # more rows than a first-level cache has ways would evict each other
        most = min(most, rows, 16)
        cost = _cycles(Panels(n, lanes, vectors, use_half(n, target)), Balanced.of(rows, most), depth, target)
        found[vectors] = (cost, (Balanced.of(rows, most).largest, vectors))
    ranked = sorted(found.values())
    return [tile for cost, tile in ranked if cost <= WORTH_TRYING * ranked[0][0]]


def _cycles(panels: Panels, tiles: Balanced, depth: int, target: Target) -> float:
    """Estimated cycles of all tiles."""
    wide = target.vector_bytes == 64
    issue = 1.0 if wide else 0.5
    total = 0.0
    for _, count, columns in panels.runs():
        vectors = columns.vectors - (0.5 if columns.half else 0.0)
        loads = vectors * issue
        if columns.width(panels.lanes) * depth * 4 > target.l1_bytes:
            loads = vectors * target.vector_bytes / 24
        for rows, pieces in ((tiles.size + 1, tiles.big), (tiles.size, tiles.count - tiles.big)):
            step = max(rows * vectors * issue, loads + rows * (0.3 if wide else 0.5), 4.0)
            if rows * columns.vectors + columns.vectors + 1 >= target.vector_registers:
                step *= 1.2  # the compiler finds a use for another register
            read = rows * depth * 4 / 32  # A comes from the second-level cache for each panel
            total += count * pieces * (depth * step + read + 20 + 3 * rows * columns.vectors)
    return total
