"""The meaning of a graph: its primitives' NumPy meanings, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from korch.errors import InvalidInput
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.primitives.elementwise import convert
from korch.ir.primitives.primitive import NARROW
from korch.ir.types import CODES, DType, TensorType


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> dict[str, np.ndarray]:
    """The graph's outputs by interface name.

    `inputs` maps interface names to arrays of the declared dtypes and shapes (InvalidInput otherwise). With
    `double`, every float value is computed and returned in float64, inputs and constants included: an oracle
    that is free of the model's own rounding. Casts to float16 and bfloat16 still round.
    """
    values = {value: _input(graph, name, value, inputs) for name, value in graph.inputs}
    found = evaluate_values(graph, values, graph.output_values, double=double)
    return {name: found[value] for name, value in graph.outputs}


def evaluate_values(
    graph: Graph, inputs: Mapping[str, np.ndarray], values: Iterable[str], *, double: bool = False
) -> dict[str, np.ndarray]:
    """Chosen values, inner ones too. Here `inputs` is keyed by value, and any value given is not computed.

    Of several definitions of one value the first is used. Every other value is freed after its last use.
    Results are contiguous.
    """
    wanted = tuple(dict.fromkeys(values))
    given = {**graph.constants, **inputs}
    steps = _steps(graph, wanted, given)
    last_use = {v: i for i, d in enumerate(steps) for v in (*d.outputs, *d.inputs)}
    held: dict[str, np.ndarray] = {}

    def read(value: str) -> np.ndarray:
        if value not in held:
            held[value] = _promote(given[value]) if double else given[value]
        return held[value]

    with np.errstate(all="ignore"):
        for i, d in enumerate(steps):
            operands = [read(v) for v in d.inputs]
            held.update(zip(d.outputs, _compute(graph, d, operands, double), strict=True))
            for v in (*d.inputs, *d.outputs):
                if last_use[v] == i and v not in wanted:
                    held.pop(v, None)
        return {v: np.ascontiguousarray(read(v)).reshape(read(v).shape) for v in wanted}


def _input(graph: Graph, name: str, value: str, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in inputs:
        raise InvalidInput(f"input {name!r} is missing; given are: {', '.join(inputs) or 'none'}")
    array, declared = np.asarray(inputs[name]), graph.types[value]
    if TensorType(DType.of(array.dtype), array.shape) != declared:
        raise InvalidInput(f"input {name!r} is {TensorType.of(array)}; the model takes {declared}")
    return array


def _steps(graph: Graph, wanted: Iterable[str], given: Mapping[str, np.ndarray]) -> list[Definition]:
    """The definitions that are needed, in the graph's order."""
    needed, chosen = {v for v in wanted if v not in given}, list[Definition]()
    first = {v: ids[0] for v, ids in graph.definers().items()}
    for i in range(len(graph.definitions) - 1, -1, -1):
        d = graph.definitions[i]
        if any(v in needed and first[v] == i for v in d.outputs):
            chosen.append(d)
            needed.update(v for v in d.inputs if v not in given)
    computed = {v for d in chosen for v in d.outputs}
    missing = sorted(needed - computed)
    if missing:
        raise InvalidInput(f"values without a definition, not given either: {', '.join(missing)}")
    return chosen[::-1]


def _promote(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if DType.of(array.dtype).is_float else array


def _compute(graph: Graph, d: Definition, operands: list[np.ndarray], double: bool) -> tuple[np.ndarray, ...]:
    attributes = dict(d.attributes)
    if not double:
        return TABLE[d.primitive].numpy(operands, attributes)
    if d.primitive == "cast":
        return (_cast_double(operands[0], DType(str(attributes["to"]))),)
    if d.primitive == "bitcast":
        declared = graph.types[d.inputs[0]].dtype
        operands = operands if declared in CODES else [convert(operands[0], declared)]
    return tuple(map(_promote, TABLE[d.primitive].numpy(operands, attributes)))


def _cast_double(x: np.ndarray, to: DType) -> np.ndarray:
    """To float32 without rounding; to the narrower floats with it, for there it is meant."""
    if not to.is_float:
        return convert(x, to)
    return _promote(convert(x, to) if to in NARROW else x.astype(np.float64))
