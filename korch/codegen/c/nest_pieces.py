"""Where the loops of a nest are cut, so that inside the pieces no condition and no table is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from korch.codegen.c.index import MOST_PROGRESSIONS, Entry, Index, cuts_of, variable
from korch.codegen.c.nest_reads import Guard
from korch.codegen.c.nest_values import Node, Read


@dataclass(frozen=True)
class Range:
    """A loop: static bounds `low..high - 1`, of which a task may do only the part between C expressions."""

    low: int
    high: int
    from_text: str | None = None
    to_text: str | None = None

    @property
    def static(self) -> bool:
        return self.from_text is None

    @property
    def first(self) -> str:
        if self.from_text is None:
            return str(self.low)
        return self.from_text if self.low == 0 else f"({self.from_text} > {self.low} ? {self.from_text} : {self.low})"

    def last(self, size: int) -> str:
        """One past the last; `size` is that of the whole axis."""
        if self.to_text is None:
            return str(self.high)
        return self.to_text if self.high == size else f"({self.to_text} < {self.high} ? {self.to_text} : {self.high})"


def has_table(index: Index) -> bool:
    """Whether a constant table is looked up in an index."""
    return any(isinstance(a, Entry) for a in index.atoms())


def table_points(nodes: Iterable[Node], name: str, low: int, high: int) -> set[int]:
    """Where in low..high-1 tables that this variable indexes change from one arithmetic progression to another;
    nothing when that is so often that little is gained."""
    points: set[int] = set()
    for node in nodes:
        if not isinstance(node, Read):
            continue
        for atom in node.offset.atoms():
            step = atom.at.stride(name) if isinstance(atom, Entry) else None
            if not isinstance(atom, Entry) or step != 1 or len(atom.at.variables) != 1:
                continue
            points.update(s - atom.at.constant for s in cuts_of(atom.values))
    if len(points) > 2 * MOST_PROGRESSIONS:
        return set()
    return {p for p in points if low < p < high}


def split_points(guards: Mapping[Guard, None], name: str, low: int, high: int) -> list[int]:
    """Where in low..high-1 a condition on this variable becomes, or ceases to be, always true."""
    points: set[int] = set()
    for g in guards:
        step = g.index.stride(name)
        if not step:
            continue
        rest = g.index - variable(name, low, high - 1) * step if high - low > 1 else g.index
        if name in rest.variables:
            continue
        if step > 0:
            start, end = -((rest.low - g.low) // step), (g.high - rest.high) // step
        else:
            start, end = -((g.high - rest.high) // -step), (rest.low - g.low) // -step
        if start <= end:
            points.update((start, end + 1))
    return sorted(p for p in points if low < p < high)
