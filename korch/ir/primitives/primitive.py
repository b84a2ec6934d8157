"""What a row of the primitive table holds, and helpers to read attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from korch.ir.graph import Attribute
from korch.ir.types import DType, TensorType

Types = Sequence[TensorType]
Arrays = Sequence[np.ndarray]
Attributes = Mapping[str, Attribute]

FLOAT = frozenset(d for d in DType if d.is_float)
INTEGER = frozenset(d for d in DType if d.is_integer)
UNSIGNED = frozenset({DType.UINT64, DType.UINT32, DType.UINT16, DType.UINT8})
SIGNED = INTEGER - UNSIGNED
BOOL = frozenset({DType.BOOL})
NUMBER = FLOAT | INTEGER
ANY = NUMBER | BOOL

# The float64 that a narrower float is computed in: float16 and bfloat16 are storage formats.
NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})


@dataclass(frozen=True)
class Domain:
    """Where tests draw random operands: one (low, high) per operand; the last one holds for the rest.

    Adversarial values (NaN, infinities, zeros, denormals, extremes) are tried beside them in every domain.
    """

    ranges: tuple[tuple[float, float], ...] = ((-8.0, 8.0),)

    def of(self, operand: int) -> tuple[float, float]:
        return self.ranges[min(operand, len(self.ranges) - 1)]


@dataclass(frozen=True)
class Primitive:
    """One row of the table.

    - `kind` is the class: elementwise, broadcast, reduce, layout, linear, gather or opaque.
    - `arity` is the least and the greatest number of inputs (None: no limit).
    - `attributes` names all attributes; each is required.
    - `dtypes` are the dtypes of the data operands.
    - `rule(types, attributes)` gives the output types; `infer` is the checked form of it.
    - `numpy(arrays, attributes)` is the meaning: fresh arrays or views of the inputs. It computes float64
      arrays in float64 wherever the graph says float32.
    - `c` is the C text over vector operands `{0} {1} {2}`: what an elementwise primitive computes; how a
      reduce primitive combines two elements, how a linear one adds `{0} * {1}` to `{2}`; `{0}` for what only
      moves elements; empty for opaque primitives, which are whole loops. `{T}` is the register tag of the first
      data operand, `{U}` of the last, `{R}` of the result; `{Q}` and `{S}` are the storage tags of the first
      data operand and of the result (docs/kernels.md); `{name}` is the attribute of that name.
    - `triton` is the same in Triton, over blocks. `libdevice` is triton.language.extra.libdevice; what differs by
      dtype is left to the helper functions `korch_div korch_mod korch_fmod korch_pow korch_cast` of the backend,
      and `tl.bool` stands for `tl.int1`.
    - `tolerance` is the largest error: of an elementwise C text in units in the last place of the result's dtype
      (the exact value being known; 0 means identical), of a sum or product of many terms in roundings of float32
      (2^-24) of the sum of the terms' magnitudes.
    """

    name: str
    kind: str
    arity: tuple[int, int | None]
    dtypes: frozenset[DType]
    rule: Callable[[Types, Attributes], tuple[TensorType, ...]]
    numpy: Callable[[Arrays, Attributes], tuple[np.ndarray, ...]]
    c: str
    triton: str
    attributes: tuple[str, ...] = ()
    domain: Domain = Domain()
    tolerance: float = 0.0

    def infer(self, types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        """The output types; ValueError says why a use is ill-typed."""
        least, greatest = self.arity
        if len(types) < least or (greatest is not None and len(types) > greatest):
            wanted = str(least) if least == greatest else f"{least} to {greatest if greatest else 'any number'}"
            raise ValueError(f"{self.name} takes {wanted} inputs, not {len(types)}")
        if set(attributes) != set(self.attributes):
            wanted, given = ", ".join(self.attributes), ", ".join(attributes)
            raise ValueError(f"{self.name} has the attributes ({wanted}), not ({given})")
        try:
            return self.rule(types, attributes)
        except ValueError as error:
            operands = ", ".join(map(str, types))
            raise ValueError(f"{self.name}({operands}): {error}") from None


def require(condition: bool, message: str) -> None:
    """ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def integer(attributes: Attributes, name: str) -> int:
    """An attribute that is one integer."""
    value = attributes[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"attribute {name} must be an integer, not {value!r}")
    return value


def integers(attributes: Attributes, name: str, count: int | None = None) -> tuple[int, ...]:
    """An attribute that is a tuple of integers, `count` of them when given."""
    value = attributes[name]
    if not isinstance(value, tuple) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise ValueError(f"attribute {name} must be a tuple of integers, not {value!r}")
    found = tuple(v for v in value if isinstance(v, int))
    require(count is None or len(found) == count, f"attribute {name} must have {count} entries, not {value!r}")
    return found


def flag(attributes: Attributes, name: str) -> bool:
    """An attribute that is a boolean."""
    value = attributes[name]
    if not isinstance(value, bool):
        raise ValueError(f"attribute {name} must be true or false, not {value!r}")
    return value


def word(attributes: Attributes, name: str, choices: tuple[str, ...]) -> str:
    """An attribute that is one of the given strings."""
    value = attributes[name]
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"attribute {name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def axis_of(attributes: Attributes, rank: int, name: str = "axis") -> int:
    """An attribute that names one dimension, counted from the front."""
    value = integer(attributes, name)
    require(0 <= value < rank, f"attribute {name} is {value}; the input has {rank} dimensions")
    return value


def shape_of(attributes: Attributes, rank: int | None = None) -> tuple[int, ...]:
    """The attribute `shape`, with `rank` entries when given."""
    shape = integers(attributes, "shape", rank)
    require(all(n >= 0 for n in shape), f"attribute shape has a negative entry: {shape}")
    return shape


def one_dtype(types: Types, allowed: frozenset[DType]) -> DType:
    """The dtype that all have; ValueError when they differ or it is not allowed."""
    found = types[0].dtype
    require(all(t.dtype is found for t in types), "the dtypes of the inputs differ")
    require(found in allowed, f"the dtype {found.value} is not supported")
    return found


def one_shape(types: Types) -> tuple[int, ...]:
    """The shape that all have; ValueError when they differ."""
    require(all(t.shape == types[0].shape for t in types), "the shapes differ (broadcast first)")
    return types[0].shape


def is_narrow(array: np.ndarray) -> bool:
    """Whether the array holds float16 or bfloat16, which are computed in float32."""
    return DType.of(array.dtype) in NARROW


def widen(array: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 as float32; everything else as it is."""
    return array.astype(np.float32) if is_narrow(array) else array
