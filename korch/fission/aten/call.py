"""What the function of an ATen operator is given, and what its dtypes follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from korch.fission.builder import Builder
from korch.fission.reading import Refused
from korch.fission.tensor import Number, Tensor, constant
from korch.importers.aten import AtenNode
from korch.importers.operators import Operator
from korch.ir.types import DType, TensorType

OPSET = 24
"""The version of the ONNX operators whose functions are shared."""

HALF = frozenset({DType.FLOAT16, DType.BFLOAT16})


@dataclass(frozen=True)
class Call:
    """One call of an operator: where it is built, and what PyTorch says of its results."""

    builder: Builder
    node: AtenNode

    @property
    def type(self) -> TensorType:
        """The first result's type."""
        return self.node.results[0][1]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def wide(self) -> DType:
        """The dtype in which PyTorch computes: that of the result, or float32 for the narrower floats."""
        return DType.FLOAT32 if self.dtype in HALF else self.dtype

    def uses(self, result: int) -> bool:
        return bool(self.node.results[result][0])

    def constant(self, array: np.ndarray | np.generic) -> Tensor:
        return constant(self.builder, array)

    def tensor(self, x: Tensor | Number, dtype: DType) -> Tensor:
        """An operand in the given dtype; a number becomes a tensor of rank 0."""
        if isinstance(x, Tensor):
            return x.cast(dtype)
        try:
            with np.errstate(over="ignore"):
                return self.constant(np.asarray(x, dtype.numpy))
        except OverflowError:
            raise Refused(f"{x} does not fit {dtype.value}") from None

    def onnx(
        self,
        function: Callable[..., Tensor | tuple[Tensor, ...]],
        *inputs: Tensor | None,
        outputs: int = 1,
        **attributes: object,
    ) -> tuple[Tensor, ...]:
        """The first `outputs` results of the ONNX operator that means the same, by its function."""
        stated = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items() if v is not None}
        values = tuple(value for value, _ in self.node.results[:outputs])
        op = Operator(function.__name__, "", OPSET, self.node.name, (), values, stated)
        found = function(self.builder, op, *inputs)
        return (found,) if isinstance(found, Tensor) else found

    def integers(self, values: Sequence[int]) -> Tensor:
        """Known integers as ONNX takes them."""
        return self.constant(np.asarray(values, np.int64))


def promote(*operands: Tensor | Number) -> DType:
    """The dtype of arithmetic on these operands (torch.result_type).

    Tensors with dimensions come before those of rank 0, and these before Python's numbers: what comes later counts
    only if it is of a higher category (bool, integer, float).
    """
    found: DType | None = None
    for level in range(3):
        dtypes = [_dtype(x) for x in operands if _level(x) == level]
        if not dtypes:
            continue
        together = dtypes[0]
        for dtype in dtypes[1:]:
            together = _pair(together, dtype)
        if found is None:
            found = together
        elif _category(together) > _category(found):
            found = together if _category(found) else _pair(found, together)
    assert found is not None
    return found


def _level(x: Tensor | Number) -> int:
    if not isinstance(x, Tensor):
        return 2
    return 0 if x.rank else 1


def _dtype(x: Tensor | Number) -> DType:
    if isinstance(x, Tensor):
        return x.dtype
    if isinstance(x, bool):
        return DType.BOOL
    return DType.INT64 if isinstance(x, int) else DType.FLOAT32


def _category(dtype: DType) -> int:
    return 2 if dtype.is_float else int(dtype.is_integer)


def _pair(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if _category(a) != _category(b):
        return a if _category(a) > _category(b) else b
    if a.is_float:
        return DType.FLOAT32 if frozenset((a, b)) == HALF else max(a, b, key=lambda dtype: dtype.size)
    joined = DType.of(np.promote_types(a.numpy, b.numpy))
    if joined.is_float:
        raise Refused(f"{a.value} and {b.value} have no common dtype")
    return joined
