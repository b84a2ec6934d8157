"""Where a linear primitive's operands lie: an element's place as a sum of loop variables times strides."""

from __future__ import annotations

from dataclasses import dataclass

from korch.codegen.c.index import Index, constant, dot
from korch.codegen.c.nest_reads import LAYOUT_READS, Indices
from korch.ir.fragment import Fragment
from korch.ir.types import DType


@dataclass(frozen=True)
class Place:
    """An element of a fragment's input, and its offset in the input's buffer, in elements."""

    value: str
    offset: Index

    def step(self, name: str) -> int | None:
        """What one step of a loop variable adds to the offset; None when that varies."""
        return self.offset.stride(name)

    def at(self, **values: int) -> Index:
        """The offset with some variables fixed."""
        return self.offset.substitute({name: constant(v) for name, v in values.items()})


def place_of(fragment: Fragment, value: str, index: Indices) -> Place | None:
    """The input element that `value[index]` is, when only layout primitives lie between, whatever the variables.

    None also where the input is not float32: the kernels read nothing else in place.
    """
    graph = fragment.graph
    if graph.types[value].dtype is not DType.FLOAT32:
        return None
    definers = graph.definers()
    while value in definers:
        definition = graph.definitions[definers[value][0]]
        if definition.primitive not in LAYOUT_READS:
            return None
        types = [graph.types[v] for v in definition.inputs]
        cases = LAYOUT_READS[definition.primitive](definition, types, index)
        case = next((c for c in cases if all(g.truth is not False for g in c.guards)), None)
        if case is None or case.operand is None or any(g.truth is None for g in case.guards):
            return None
        value, index = definition.inputs[case.operand], case.index
    if value not in fragment.layouts:
        return None
    shape = graph.types[value].shape
    return Place(value, dot(index, fragment.layouts[value].strides_of(shape)))


def no_table(values: tuple[int, ...]) -> str:
    """For `to_c` of offsets that are sums of strides."""
    raise AssertionError("an offset that needs a table")
