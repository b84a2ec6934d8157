"""The points of a value as axes of loops: dimensions split into digits, digits joined into axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from korch.codegen.c.index import flatten, unflatten
from korch.codegen.c.nest_reads import Indices

Digit = tuple[int, int]  # a dimension, and the position among its digits


@dataclass(frozen=True)
class Domain:
    """`sizes` are the digits of each dimension, slowest first (a dimension of size 1 has none); each of `axes` is
    a sequence of digits, slowest first, and every digit is in one axis. Axis variables count row-major."""

    sizes: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[Digit, ...], ...]

    @staticmethod
    def of(shape: tuple[int, ...]) -> Domain:
        """One axis for each dimension that is not 1."""
        sizes = tuple((n,) if n != 1 else () for n in shape)
        return Domain(sizes, tuple(((d, 0),) for d, n in enumerate(shape) if n != 1))

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(math.prod(self._sizes(axis)) for axis in self.axes)

    def index(self, variables: Indices) -> Indices:
        """The element of the value at a point."""
        digits = {
            digit: value
            for axis, variable in zip(self.axes, variables, strict=True)
            for digit, value in zip(axis, unflatten(variable, self._sizes(axis)), strict=True)
        }
        return tuple(
            flatten(tuple(digits[(d, k)] for k in range(len(sizes))), sizes) for d, sizes in enumerate(self.sizes)
        )

    def coordinates(self, index: Indices) -> Indices:
        """The point of an element: the inverse of `index`."""
        digits = {
            (d, k): value
            for d, sizes in enumerate(self.sizes)
            if sizes
            for k, value in enumerate(unflatten(index[d], sizes))
        }
        return tuple(flatten(tuple(digits[g] for g in axis), self._sizes(axis)) for axis in self.axes)

    def split(self, axis: int, sizes: tuple[int, ...]) -> Domain:
        """An axis of one digit as several axes of these sizes, slowest first."""
        ((dim, position),) = self.axes[axis]
        old, more = self.sizes[dim], len(sizes) - 1
        assert old[position] == math.prod(sizes), (old, sizes)
        new = (*old[:position], *sizes, *old[position + 1 :])

        def moved(digit: Digit) -> Digit:
            d, k = digit
            return (d, k + more) if d == dim and k > position else digit

        axes = [tuple(map(moved, a)) for a in self.axes]
        axes[axis : axis + 1] = [((dim, position + i),) for i in range(len(sizes))]
        return Domain((*self.sizes[:dim], new, *self.sizes[dim + 1 :]), tuple(axes))

    def merge(self, slow: int, fast: int) -> Domain:
        """Two axes as one, in the place of the slow one."""
        axes = list(self.axes)
        axes[slow] = axes[slow] + axes[fast]
        del axes[fast]
        return Domain(self.sizes, tuple(axes))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(sizes) for sizes in self.sizes)

    def _sizes(self, axis: tuple[Digit, ...]) -> tuple[int, ...]:
        return tuple(self.sizes[d][k] for d, k in axis)


@dataclass(frozen=True)
class Image:
    """Where the elements of a part of a value lie in the whole: moves applied one after the other.

    A move is ("shift", axis, by), ("reshape", from shape, to shape) or ("transpose", perm).
    """

    moves: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()

    def __call__(self, index: Indices) -> Indices:
        for kind, first, second in self.moves:
            if kind == "shift":
                (axis,), (by,) = first, second
                index = (*index[:axis], index[axis] + by, *index[axis + 1 :])
            elif kind == "reshape":
                index = unflatten(flatten(index, first), second)
            else:
                index = tuple(index[p] for p in first)
        return index


WHOLE = Image()
