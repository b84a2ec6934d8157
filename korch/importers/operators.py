"""What an importer hands to fission: the model's operators with every shape, dtype and constant known.

An `OperatorGraph` is a model after import. Symbolic dimensions are bound, functions inlined, shape arithmetic
folded, dead operators gone. Value names are the model's own wherever it has one. They are unique over a graph
and its subgraphs, so a subgraph refers to values of the graphs around it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from korch.ir.types import TensorType


@dataclass(frozen=True)
class Operator:
    """One ONNX node: `outputs = op_type(inputs, **attributes)`.

    - `domain` is "" for the standard operators; `version` is the version of its operator set in force.
    - `name` is the node's name, or one made up from its type (`Relu_3`). It is unique in the model.
    - `inputs` has "" for an absent optional input. Trailing absent ones are cut off.
    - `outputs` is as long as the node states, with "" for an output that nothing uses.
    - `attributes` holds only what the node states; defaults are not filled in. Values are int, float, str, a
      tuple of one of these, np.ndarray (a tensor), or OperatorGraph (a body of If, Loop or Scan).
    """

    op_type: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True)
class OperatorGraph:
    """A model's operators in an order in which every value comes before its users.

    - `types` has the type of every input, every constant and every output of an operator; in a subgraph also
      that of every outer value which it, or a subgraph of it, reads.
    - `inputs` and `outputs` pair interface names with values. Several outputs may name one value; an output
      may be an input, a constant or, in a subgraph, an outer value.
    - `constants` holds what is known at import: initializers, Constant nodes, everything folded; only what is
      in use. A subgraph has none of its own: those it reads are among the outermost graph's. Arrays are
      read-only, and may be views with strides of 0 (a huge constant of one repeated value).
    """

    name: str
    types: Mapping[str, TensorType]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    operators: tuple[Operator, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
