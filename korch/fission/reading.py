"""Reading an operator's attributes and the inputs whose contents fission must know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from korch.fission.tensor import Tensor
from korch.importers.operators import Operator
from korch.ir.types import DType


class Refused(Exception):
    """This use of an operator is not supported; the message says why, as a clause without a full stop.

    `certain` says that the reason lies in the operator itself, whatever its inputs hold.
    """

    def __init__(self, reason: str, certain: bool = False) -> None:
        super().__init__(reason)
        self.certain = certain


def has(op: Operator, name: str) -> bool:
    """Whether the node states the attribute."""
    return name in op.attributes


def integer(op: Operator, name: str, default: int | None = None) -> int:
    """An integer attribute; without a default it is required."""
    value = op.attributes.get(name, default)
    if not isinstance(value, int):
        raise Refused(f"attribute {name} must be an integer, not {value!r}")
    return value


def number(op: Operator, name: str, default: float) -> float:
    """A float attribute, which is a float32, the default too."""
    value = op.attributes.get(name, float(np.float32(default)))
    if not isinstance(value, int | float):
        raise Refused(f"attribute {name} must be a number, not {value!r}")
    return float(value)


def text(op: Operator, name: str, default: str, choices: Sequence[str] = ()) -> str:
    """A string attribute; `choices` are those supported."""
    value = op.attributes.get(name, default)
    if not isinstance(value, str) or (choices and value not in choices):
        raise Refused(f"attribute {name} is {value!r}, supported are {', '.join(choices)}")
    return value


def integers(op: Operator, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
    """An attribute that is a list of integers; without a default it is required."""
    value = op.attributes.get(name, default)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise Refused(f"attribute {name} must be a list of integers, not {value!r}")
    return tuple(int(v) for v in value)


def contents(x: Tensor, what: str) -> np.ndarray:
    """What a tensor holds; Refused unless that is known before the model runs."""
    if x.known is None:
        raise Refused(f"its {what} must be a constant, here it depends on the model's inputs")
    return x.known


def listed(x: Tensor, what: str) -> tuple[int, ...]:
    """The integers that a tensor holds, in row-major order; Refused unless they are known."""
    return tuple(int(v) for v in contents(x, what).reshape(-1))


def single(x: Tensor, what: str) -> int:
    """The one integer that a tensor holds; Refused unless it is known."""
    values = listed(x, what)
    if len(values) != 1:
        raise Refused(f"its {what} must hold one number, not {len(values)}")
    return values[0]


def wide(x: Tensor) -> Tensor:
    """float32 for the narrower floats: formulas and statistics of those are rounded once, at the end."""
    return x.cast(DType.FLOAT32) if x.dtype in (DType.FLOAT16, DType.BFLOAT16) else x
