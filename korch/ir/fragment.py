"""A fragment is what one kernel computes: a small graph on its own, with the layouts of its inputs and outputs.

It is cut out of a model's graph and renamed canonically, so that the repeated blocks of a network give equal
fragments. Its text is the key under which costs are stored, and all that a code generator sees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from korch.ir.graph import Graph
from korch.ir.layout import Layout


@dataclass(frozen=True)
class Fragment:
    """`graph` has canonical value names: inputs `i0, i1…`, everything computed `t0, t1…`, scalar constants `c0, c1…`.

    - `graph.inputs` are the values read from memory, those in `weights` included.
    - `weights` are the inputs whose contents are known at optimisation time: a generator may have them packed
      into another form (`korch.codegen.kernel.Packed`). They are row-major.
    - `graph.constants` are constants of one element, printed in the text and in the code as literals.
    - `layouts` has an entry for each input and each output.
    """

    graph: Graph
    weights: frozenset[str]
    layouts: Mapping[str, Layout] = field(hash=False)

    @cached_property
    def text(self) -> str:
        g = self.graph
        lines: list[str] = []
        for v in g.input_values:
            lines.append(f"{'weight' if v in self.weights else 'input'} {v}: {g.types[v]} {self.layouts[v]}")
        lines.extend(g.body)
        lines.extend(f"output {v} {self.layouts[v]}" for v in g.output_values)
        return "\n".join(lines) + "\n"

    @cached_property
    def key(self) -> str:
        """A hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]
