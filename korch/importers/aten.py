"""What the PyTorch importer hands to fission: calls of ATen operators with all shapes, dtypes and constants known.

This is plain data: nothing here needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from korch.ir.types import DType, TensorType


@dataclass(frozen=True)
class Ref:
    """A tensor among an operator's arguments, by the name of its value."""

    value: str


Argument = Ref | DType | int | float | bool | str | None | tuple["Argument", ...]


@dataclass(frozen=True)
class AtenNode:
    """One call: `results = target(*args, **kwargs)`.

    - `target` is the operator with its overload, as in `aten.add.Tensor`.
    - `name` is the call's name in the traced program, unique there.
    - `kwargs` holds only what the call states, without what concerns memory (layout, device, memory format).
    - `results` are the value and type of each tensor that the operator returns; the value is "" where nothing uses it.
    - `refusal` says why the importer cannot state the call (a clause), and is "" otherwise; then `results` are only
      those that have a type.
    """

    target: str
    name: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    results: tuple[tuple[str, TensorType], ...]
    refusal: str = ""


@dataclass(frozen=True)
class AtenGraph:
    """A traced program whose values are unique by name; `inputs` and `outputs` pair interface names with values.

    `constants` are parameters, buffers and literal tensors: read-only views of PyTorch's memory wherever that is
    row-major, and one array for what two names share.
    """

    name: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    types: Mapping[str, TensorType]
    nodes: tuple[AtenNode, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    @property
    def operators(self) -> tuple[AtenNode, ...]:
        """The calls, as an `OperatorGraph` names its operators."""
        return self.nodes
