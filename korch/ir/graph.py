"""The primitive graph.

A graph is a set of *values* and of *definitions*. A definition says how one primitive computes its outputs
from its inputs. A value may have several equivalent definitions (alternatives add them, never replace); what
has none is a graph input or a constant. Values are named by short strings, which are only names: `types` gives
each its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from korch.ir.types import TensorType

Scalar = int | float | bool | str
Attribute = Scalar | tuple["Attribute", ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """`outputs = primitive(inputs, **attributes)`.

    `attributes` are sorted by name, so equal definitions compare equal. `origin` names the model's operator
    that this came from; it is for reports and takes no part in comparison.
    """

    primitive: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    origin: str = field(default="", compare=False)

    def attribute(self, name: str) -> Attribute:
        """The attribute's value; KeyError when the definition has none of that name."""
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(f"{self.primitive} has no attribute {name!r}")

    def ints(self, name: str) -> tuple[int, ...]:
        """An attribute that is a tuple of integers."""
        value = self.attribute(name)
        assert isinstance(value, tuple)
        return tuple(int(v) for v in value)  # type: ignore[arg-type]

    def int(self, name: str) -> int:
        """An attribute that is one integer."""
        value = self.attribute(name)
        assert isinstance(value, int)
        return value


@dataclass(frozen=True)
class Graph:
    """Values, and the definitions that compute them, in an order in which inputs come before their users.

    `inputs` and `outputs` pair the model's interface names with values; several outputs may name one value, and
    an output may be an input or a constant. `constants` hold what is known at optimisation time.
    """

    types: Mapping[str, TensorType]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    definitions: tuple[Definition, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], compare=False)

    @property
    def input_values(self) -> tuple[str, ...]:
        return tuple(value for _, value in self.inputs)

    @property
    def output_values(self) -> tuple[str, ...]:
        return tuple(value for _, value in self.outputs)

    @cached_property
    def body(self) -> tuple[str, ...]:
        """The scalar constants and the definitions as lines of a fragment's text; many fragments share a graph."""
        constants = (
            f"constant {v}: {self.types[v]} = {array.reshape(-1)[0].tobytes().hex()}"
            for v, array in self.constants.items()
        )
        definitions = (
            f"{', '.join(d.outputs)} = {d.primitive}({', '.join(d.inputs)}"
            f"{''.join(f', {k}={a!r}' for k, a in d.attributes)}) : "
            f"{', '.join(str(self.types[v]) for v in d.outputs)}"
            for d in self.definitions
        )
        return (*constants, *definitions)

    def definers(self) -> dict[str, tuple[int, ...]]:
        """For each computed value, the indices of its definitions."""
        found: dict[str, list[int]] = {}
        for i, d in enumerate(self.definitions):
            for v in d.outputs:
                found.setdefault(v, []).append(i)
        return {v: tuple(ids) for v, ids in found.items()}

    def users(self) -> dict[str, tuple[int, ...]]:
        """For each value, the indices of the definitions that read it (each once)."""
        found: dict[str, list[int]] = {v: [] for v in self.types}
        for i, d in enumerate(self.definitions):
            for v in dict.fromkeys(d.inputs):
                found[v].append(i)
        return {v: tuple(ids) for v, ids in found.items()}

    def __iter__(self) -> Iterator[Definition]:
        return iter(self.definitions)

    def __len__(self) -> int:
        return len(self.definitions)
