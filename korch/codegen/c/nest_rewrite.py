"""A fragment's graph, put into the form that its loops compute best. The values of its outputs stay the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from korch.codegen.c.nest_reads import REDUCTIONS
from korch.codegen.c.nest_reduce import neutral
from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.layout import Layout
from korch.ir.types import DType, TensorType

_FIELDS = ("window", "strides", "dilations", "pads", "shape")
_BORDER = 0.15  # of a line; where windows leave it more often, it is worth padding


def without_empty_reductions(graph: Graph) -> Graph:
    """Reductions over nothing are constants."""
    constants = dict(graph.constants)
    definitions = list(graph.definitions)
    for d in graph.definitions:
        if d.primitive not in REDUCTIONS:
            continue
        row = REDUCTIONS[d.primitive]
        extents = row.extents(d, [graph.types[v] for v in d.inputs])
        t = graph.types[d.outputs[0]]
        if math.prod(extents) == 0 and t.elements:
            constants[d.outputs[0]] = np.asarray(neutral(row.combine, t.dtype))
            definitions.remove(d)
    if len(definitions) == len(graph.definitions):
        return graph
    return replace(graph, definitions=tuple(definitions), constants=constants)


def with_lines(graph: Graph, layouts: Mapping[str, Layout]) -> tuple[Graph, frozenset[str]]:
    """Windows line by line: over one dimension after the other, where that saves at least half of the work, and
    over lines that are padded first, where vectors would often reach over their ends. Also returns the padded
    values, which are to be kept in memory."""
    types = dict(graph.types)
    definitions: list[Definition] = []
    kept: set[str] = set()
    for d in graph.definitions:
        if not d.primitive.startswith("window"):
            definitions.append(d)
            continue
        value, last = d.inputs[0], d.outputs[0]
        steps = _steps(d, types[value])
        for number, step in enumerate(steps):
            result = last if number == len(steps) - 1 else f"{last}_w{number}"
            if _worth_padding(step, types[value], layouts):
                value, step = _padded(step, value, f"{result}_p", types, definitions)
                kept.add(value)
            types[result] = TensorType(types[last].dtype, step.columns[4])
            definitions.append(step.definition(value, result))
            value = result
    if len(definitions) == len(graph.definitions):
        return graph, frozenset()
    return replace(graph, types=types, definitions=tuple(definitions)), frozenset(kept)


@dataclass(frozen=True)
class _Window:
    """A window primitive: `columns` are its attributes in the order of `_FIELDS`, one entry per dimension."""

    primitive: str
    columns: tuple[tuple[int, ...], ...]

    def definition(self, value: str, result: str) -> Definition:
        attributes: dict[str, Attribute] = dict(zip(_FIELDS, self.columns, strict=True))
        return Definition(self.primitive, (value,), (result,), tuple(sorted(attributes.items())))

    def with_dimension(self, k: int, entries: tuple[int, ...]) -> _Window:
        columns = tuple((*c[:k], e, *c[k + 1 :]) for c, e in zip(self.columns, entries, strict=True))
        return replace(self, columns=columns)


def _steps(d: Definition, t: TensorType) -> list[_Window]:
    """The window as windows over one dimension each, those that shrink most first; or as it is."""
    columns = tuple(d.ints(name) for name in _FIELDS)
    window, strides = columns[0], columns[1]
    whole = _Window(d.primitive, columns)
    rounds = d.primitive == "window_sum" and t.dtype in (DType.FLOAT16, DType.BFLOAT16)
    wide = [k for k, w in enumerate(window) if w > 1]
    if rounds or len(wide) < 2 or math.prod(window) < 2 * sum(window[k] for k in wide):
        return [whole]
    ones = (1,) * t.rank
    steps: list[_Window] = []
    shape = t.shape
    wide.sort(key=lambda k: (-strides[k], -k))
    for k in wide:
        step = _Window(d.primitive, (ones, ones, ones, (0,) * t.rank, shape))
        if k == wide[-1]:  # together with all that is not a line of its own
            for other in range(t.rank):
                if other not in wide:
                    step = step.with_dimension(other, tuple(c[other] for c in columns))
        step = step.with_dimension(k, tuple(c[k] for c in columns))
        steps.append(step)
        shape = step.columns[4]
    return steps


def _worth_padding(step: _Window, t: TensorType, layouts: Mapping[str, Layout]) -> bool:
    window, _, dilations, pads, shape = (c[-1] if c else 0 for c in step.columns)
    if not t.rank or not shape or pads <= 0:
        return False
    rows = any(len(o.order) == t.rank and o.order[-1] == t.rank - 1 for o in layouts.values())
    return rows and (window - 1) * dilations > _BORDER * shape


def _padded(
    step: _Window, value: str, name: str, types: dict[str, TensorType], definitions: list[Definition]
) -> tuple[str, _Window]:
    """Pads lines with what takes no part, and lets the window start inside."""
    t, k = types[value], types[value].rank - 1
    window, stride, dilation, pad, size = (c[k] for c in step.columns)
    length = (size - 1) * stride + (window - 1) * dilation + 1
    shape = (*t.shape[:k], length)
    fill = neutral(REDUCTIONS[step.primitive].combine, t.dtype).item()
    attributes = (("before", (0,) * k + (pad,)), ("shape", shape), ("value", fill))
    types[name] = TensorType(t.dtype, shape)
    definitions.append(Definition("pad", (value,), (name,), attributes))
    return name, step.with_dimension(k, (window, stride, dilation, 0, size))
