"""Layouts: how a value lies in memory. A *resource* is a value in a layout.

One value may be held by several resources at once (row-major for one kernel, channels-last for another); the
program of `korch.selection` decides which of them exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """`order` lists all dimensions from the slowest to the fastest in memory.

    Dense unless `strides` (in elements, one per dimension) says otherwise: that is a slot of a larger buffer.
    Always made canonical for its shape (`Layout.canonical`), so layouts that place every element alike are equal.
    """

    order: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @staticmethod
    def row_major(shape: tuple[int, ...]) -> Layout:
        return Layout.canonical(shape, tuple(range(len(shape))))

    @staticmethod
    def channels_last(shape: tuple[int, ...]) -> Layout:
        """Dimension 1 moved to the end (NCHW held as NHWC)."""
        if len(shape) < 3:
            return Layout.row_major(shape)
        return Layout.canonical(shape, (0, *range(2, len(shape)), 1))

    @staticmethod
    def canonical(
        shape: tuple[int, ...], order: tuple[int, ...], strides: tuple[int, ...] | None = None
    ) -> Layout:
        """Dimensions of size 1 come first, in ascending order: their place in memory means nothing."""
        assert sorted(order) == list(range(len(shape))), (shape, order)
        unit = [d for d in range(len(shape)) if shape[d] == 1]
        result = Layout(tuple(unit + [d for d in order if shape[d] != 1]))
        if strides is None or strides == result.strides_of(shape):
            return result
        return Layout(result.order, strides)

    def strides_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Element strides, one per dimension; 0 for a dimension of size 1."""
        if self.strides is not None:
            return self.strides
        found, step = [0] * len(shape), 1
        for d in reversed(self.order):
            if shape[d] != 1:
                found[d] = step
                step *= max(shape[d], 1)
        return tuple(found)

    def is_row_major(self, shape: tuple[int, ...]) -> bool:
        return self == Layout.row_major(shape)

    def span(self, shape: tuple[int, ...]) -> int:
        """Elements from the first to one past the last."""
        if math.prod(shape) == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(shape, self.strides_of(shape), strict=True))

    def __str__(self) -> str:
        text = "".join(map(str, self.order)) if len(self.order) < 10 else ".".join(map(str, self.order))
        return f"@{text}" + (f":{'.'.join(map(str, self.strides))}" if self.strides is not None else "")

    @staticmethod
    def parse(text: str) -> Layout:
        """The inverse of `str`."""
        order, _, strides = text.removeprefix("@").partition(":")
        dims = order.split(".") if "." in order else list(order)
        return Layout(tuple(map(int, dims)), tuple(map(int, strides.split("."))) if strides else None)


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """A value in a layout."""

    value: str
    layout: Layout

    def __str__(self) -> str:
        return f"{self.value}{self.layout}"
