"""Tensor handles: fission functions are written as formulas over them.

    m = x.max(axes, keepdims=True)
    e = (x - m).exp()
    return e / e.sum(axes, keepdims=True)

Inputs are broadcast as in NumPy. A Python number or bool becomes a constant of the tensor's dtype. `==` compares
handles; use `equal` for elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from korch.fission import simplify
from korch.fission.builder import Builder
from korch.ir.graph import Attribute
from korch.ir.types import DType, TensorType

Number = int | float | bool
Axes = int | Sequence[int] | None
"""Axes of a reduction: negative ones count from the end, None means all."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of a graph under construction."""

    builder: Builder
    value: str

    @property
    def type(self) -> TensorType:
        return self.builder.types[self.value]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def known(self) -> np.ndarray | None:
        """The contents, when they are known now (read-only)."""
        return self.builder.known(self.value)

    def like(self, number: Number | np.ndarray | np.generic) -> Tensor:
        """A constant of this tensor's dtype; OverflowError when an integer does not fit."""
        with np.errstate(over="ignore"):
            return constant(self.builder, np.asarray(number, self.dtype.numpy))

    def map(self, primitive: str, *others: Tensor | Number, **attributes: Attribute) -> Tensor:
        """An elementwise primitive of this tensor and others."""
        operands = [self.value, *(self._operand(o) for o in others)]
        return Tensor(self.builder, simplify.elementwise(self.builder, primitive, operands, attributes))

    def _operand(self, other: Tensor | Number) -> str:
        return other.value if isinstance(other, Tensor) else self.like(other).value

    def _from(self, number: Number, primitive: str) -> Tensor:
        return self.like(number).map(primitive, self)

    # Arithmetic

    def __add__(self, other: Tensor | Number) -> Tensor:
        return self.map("add", other)

    def __radd__(self, other: Number) -> Tensor:
        return self.map("add", other)

    def __sub__(self, other: Tensor | Number) -> Tensor:
        return self.map("sub", other)

    def __rsub__(self, other: Number) -> Tensor:
        return self._from(other, "sub")

    def __mul__(self, other: Tensor | Number) -> Tensor:
        return self.map("mul", other)

    def __rmul__(self, other: Number) -> Tensor:
        return self.map("mul", other)

    def __truediv__(self, other: Tensor | Number) -> Tensor:
        """Integers truncate toward zero."""
        return self.map("div", other)

    def __rtruediv__(self, other: Number) -> Tensor:
        return self._from(other, "div")

    def __mod__(self, other: Tensor | Number) -> Tensor:
        """The sign of the divisor."""
        return self.map("mod", other)

    def __neg__(self) -> Tensor:
        return self.map("neg")

    def __abs__(self) -> Tensor:
        return self.map("abs")

    def __and__(self, other: Tensor | Number) -> Tensor:
        return self.map("and", other)

    def __or__(self, other: Tensor | Number) -> Tensor:
        return self.map("or", other)

    def __xor__(self, other: Tensor | Number) -> Tensor:
        return self.map("xor", other)

    def __invert__(self) -> Tensor:
        return self.map("not")

    def __lt__(self, other: Tensor | Number) -> Tensor:
        return self.map("lt", other)

    def __le__(self, other: Tensor | Number) -> Tensor:
        return self.map("le", other)

    def __gt__(self, other: Tensor | Number) -> Tensor:
        return Tensor(self.builder, self._operand(other)).map("lt", self)

    def __ge__(self, other: Tensor | Number) -> Tensor:
        return Tensor(self.builder, self._operand(other)).map("le", self)

    def equal(self, other: Tensor | Number) -> Tensor:
        return self.map("eq", other)

    def power(self, exponent: Tensor | Number) -> Tensor:
        """The exponent may have another dtype."""
        return self.map("pow", exponent)

    def maximum(self, other: Tensor | Number) -> Tensor:
        """NaN where either is NaN."""
        return self.map("max", other)

    def minimum(self, other: Tensor | Number) -> Tensor:
        """NaN where either is NaN."""
        return self.map("min", other)

    def exp(self) -> Tensor:
        return self.map("exp")

    def log(self) -> Tensor:
        return self.map("log")

    def log1p(self) -> Tensor:
        return self.map("log1p")

    def expm1(self) -> Tensor:
        return self.map("expm1")

    def sqrt(self) -> Tensor:
        return self.map("sqrt")

    def tanh(self) -> Tensor:
        return self.map("tanh")

    def erf(self) -> Tensor:
        return self.map("erf")

    def round(self) -> Tensor:
        """Half to even."""
        return self.map("round")

    def floor(self) -> Tensor:
        return self.map("floor")

    def cast(self, to: DType) -> Tensor:
        return Tensor(self.builder, simplify.cast(self.builder, self.value, to))

    # Reductions

    def axes(self, axes: Axes = None) -> tuple[int, ...]:
        """Axes counted from the front, ascending; ValueError outside the rank."""
        if axes is None:
            return tuple(range(self.rank))
        given = (axes,) if isinstance(axes, int) else tuple(axes)
        if any(not -self.rank <= a < self.rank for a in given):
            raise ValueError(f"axes {given} do not exist in a tensor of rank {self.rank}")
        return tuple(sorted({int(a) % self.rank for a in given}))

    def axis(self, axis: int) -> int:
        """One axis counted from the front."""
        return self.axes(axis)[0]

    def reduce(self, primitive: str, axes: Axes, keepdims: bool) -> Tensor:
        dropped = self.axes(axes)
        result = Tensor(self.builder, simplify.reduce(self.builder, primitive, self.value, dropped))
        return result.reshape(1 if d in dropped else n for d, n in enumerate(self.shape)) if keepdims else result

    def sum(self, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return self.reduce("reduce_sum", axes, keepdims)

    def prod(self, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return self.reduce("reduce_prod", axes, keepdims)

    def max(self, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return self.reduce("reduce_max", axes, keepdims)

    def min(self, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return self.reduce("reduce_min", axes, keepdims)

    def mean(self, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return self.sum(axes, keepdims) / math.prod(self.shape[a] for a in self.axes(axes))

    # Layout

    def reshape(self, shape: Iterable[int]) -> Tensor:
        return Tensor(self.builder, simplify.reshape(self.builder, self.value, tuple(shape)))

    def transpose(self, perm: Sequence[int]) -> Tensor:
        return Tensor(self.builder, simplify.transpose(self.builder, self.value, perm))

    def unsqueeze(self, *axes: int) -> Tensor:
        """Dimensions of size 1 at these places of the result, counted from the front."""
        rest = iter(self.shape)
        return self.reshape(1 if d in axes else next(rest) for d in range(self.rank + len(axes)))

    def narrow(self, axis: int, start: int, size: int, step: int = 1) -> Tensor:
        """`size` positions of one axis, from `start` on."""
        starts, steps, shape = [0] * self.rank, [1] * self.rank, list(self.shape)
        starts[axis], steps[axis], shape[axis] = start, step, size
        return self.slice(starts, steps, shape)

    def slice(self, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Tensor:
        return Tensor(self.builder, simplify.slice_(self.builder, self.value, starts, steps, shape))

    def pad(self, before: Sequence[int], after: Sequence[int], fill: Number = 0) -> Tensor:
        """Cells added (or, where negative, cut off) at the beginning and end of each dimension."""
        cut = [max(-p, 0) for p in before]
        kept = [n + min(p, 0) + min(q, 0) for n, p, q in zip(self.shape, before, after, strict=True)]
        inner = self.slice(cut, [1] * self.rank, kept)
        front = [max(p, 0) for p in before]
        shape = [n + p + max(q, 0) for n, p, q in zip(kept, front, after, strict=True)]
        value: Number = bool(fill) if self.dtype is DType.BOOL else int(fill) if self.dtype.is_integer else float(fill)
        return Tensor(self.builder, simplify.pad(self.builder, inner.value, front, shape, value))

    def take(self, axis: int, indices: Sequence[int]) -> Tensor:
        """Known positions of one axis, counted from the front."""
        return Tensor(self.builder, simplify.take(self.builder, self.value, axis, tuple(indices)))

    def expand(self, shape: Sequence[int]) -> Tensor:
        """NumPy's broadcast to `shape`."""
        return Tensor(self.builder, simplify.expand(self.builder, self.value, tuple(shape)))

    def along(self, axes: Sequence[int], rank: int) -> Tensor:
        """Dimension k becomes dimension `axes[k]` of `rank`; the others have size 1."""
        sizes = dict(zip(axes, self.shape, strict=True))
        return self.reshape(sizes.get(d, 1) for d in range(rank))

    # Linear

    def __matmul__(self, other: Tensor) -> Tensor:
        """numpy.matmul, one-dimensional operands included."""
        a = self.reshape((1, *self.shape)) if self.rank == 1 else self
        b = other.reshape((*other.shape, 1)) if other.rank == 1 else other
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a = a.expand((*batch, *a.shape[-2:]))
        b = b.reshape(b.shape[-2:]) if math.prod(b.shape[:-2]) == 1 else b.expand((*batch, *b.shape[-2:]))
        product = a.apply("matmul", b)
        rows = () if self.rank == 1 else product.shape[-2:-1]
        columns = () if other.rank == 1 else product.shape[-1:]
        return product.reshape((*batch, *rows, *columns))

    # Anything else

    def apply(self, primitive: str, *others: Tensor, **attributes: Attribute) -> Tensor:
        """Any primitive with one output, as it is."""
        return self.apply_all(primitive, *others, **attributes)[0]

    def apply_all(self, primitive: str, *others: Tensor, **attributes: Attribute) -> tuple[Tensor, ...]:
        """Any primitive, all its outputs."""
        inputs = (self.value, *(o.value for o in others))
        return tuple(Tensor(self.builder, v) for v in self.builder.emit(primitive, inputs, attributes))


def constant(builder: Builder, array: np.ndarray | np.generic) -> Tensor:
    """A constant of the array's dtype and shape."""
    return Tensor(builder, builder.constant(np.asarray(array)))


def where(condition: Tensor, a: Tensor | Number, b: Tensor | Number) -> Tensor:
    """a where the condition holds, else b; one of them is a tensor and gives the dtype."""
    model = a if isinstance(a, Tensor) else b
    assert isinstance(model, Tensor)
    first = a if isinstance(a, Tensor) else model.like(a)
    second = b if isinstance(b, Tensor) else model.like(b)
    return condition.map("where", first, second)


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """One after another along `axis` (counted from the front)."""
    builder = parts[0].builder
    return Tensor(builder, simplify.concat(builder, [p.value for p in parts], axis))
