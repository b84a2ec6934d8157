"""The end of an import: what is dead goes, what cannot be supported is refused, types become static."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import GraphProto, TypeProto

from korch.errors import UnsupportedModel
from korch.importers.attributes import element_dtype, static_shape, tensor_type, type_text
from korch.importers.inference import find_schema
from korch.importers.operators import Operator, OperatorGraph
from korch.ir.types import TensorType


def prune(operators: Sequence[Operator], outputs: Sequence[tuple[str, str]]) -> tuple[Operator, ...]:
    """The operators that the outputs need; their own outputs that nothing uses become ""."""
    needed = {v for _, v in outputs}
    kept: list[Operator] = []
    for operator in reversed(operators):
        used = tuple(v if v in needed else "" for v in operator.outputs)
        if any(used):
            kept.append(operator if used == operator.outputs else replace(operator, outputs=used))
            needed.update(operator_reads(operator))
    return tuple(reversed(kept))


def bodies(operator: Operator) -> list[OperatorGraph]:
    return [a for a in operator.attributes.values() if isinstance(a, OperatorGraph)]


def operator_reads(operator: Operator) -> list[str]:
    """The values that an operator reads, those that its bodies take from outside included; each once."""
    found = dict.fromkeys(v for v in operator.inputs if v)
    for body in bodies(operator):
        found.update(dict.fromkeys(outer_values(body)))
    return list(found)


def outer_values(body: OperatorGraph) -> list[str]:
    """The values that a body reads from the graphs around it; constants count as such."""
    own = {v for _, v in body.inputs} | {v for op in body.operators for v in op.outputs}
    found = dict.fromkeys(v for op in body.operators for v in operator_reads(op))
    found.update(dict.fromkeys(v for _, v in body.outputs))
    return [v for v in found if v not in own]


def finish(graph: OperatorGraph, types: Mapping[str, TypeProto], constants: Mapping[str, np.ndarray]) -> OperatorGraph:
    """The graph with static types and its constants. UnsupportedModel when a value has none, naming all."""
    problems = [
        f"input {name!r} is of type {type_text(types[value])}"
        for name, value in graph.inputs
        if tensor_type(types[value]) is None
    ]
    problems += _problems(graph, types, constants)
    if problems:
        raise UnsupportedModel("; ".join(problems) + "; cut the model before what is not supported")
    used = [v for v in _values(graph) if v in constants]
    return replace(_typed(graph, types), constants={v: constants[v] for v in used})


def _values(graph: OperatorGraph) -> list[str]:
    """Every value that the graph mentions, those that its bodies take from outside included; each once."""
    found = dict.fromkeys(v for _, v in graph.inputs)
    for operator in graph.operators:
        found.update(dict.fromkeys(operator_reads(operator)))
        found.update(dict.fromkeys(v for v in operator.outputs if v))
    found.update(dict.fromkeys(v for _, v in graph.outputs))
    return list(found)


def _typed(graph: OperatorGraph, types: Mapping[str, TypeProto]) -> OperatorGraph:
    static: dict[str, TensorType] = {}
    for value in _values(graph):
        type_ = tensor_type(types[value])
        assert type_ is not None, value
        static[value] = type_
    return replace(graph, types=static, operators=tuple(_with_typed_bodies(op, types) for op in graph.operators))


def _with_typed_bodies(operator: Operator, types: Mapping[str, TypeProto]) -> Operator:
    if not bodies(operator):
        return operator
    attributes = {k: _typed(a, types) if isinstance(a, OperatorGraph) else a for k, a in operator.attributes.items()}
    return replace(operator, attributes=attributes)


# --- what is refused


def _problems(
    graph: OperatorGraph, types: Mapping[str, TypeProto], constants: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Each once, at the operator where it begins."""
    for value in _values(graph):
        if value in constants and _no_dtype(types[value]):
            yield f"constant {value!r} is of type {type_text(types[value])}"
    for operator in graph.operators:
        yield from _operator_problems(operator, types)
        for body in bodies(operator):
            yield from _problems(body, types, {})


def _operator_problems(operator: Operator, types: Mapping[str, TypeProto]) -> Iterator[str]:
    label = f"{operator.op_type} operator {operator.name!r}"
    if any(isinstance(a, GraphProto) for a in operator.attributes.values()):
        yield f"{label} has a body, which only If, Loop and Scan may have"
    outputs = [v for v in operator.outputs if v]
    for value in outputs:
        if _no_dtype(types[value]):
            yield f"output {value!r} of {label} is of type {type_text(types[value])}"
    unknown = [v for v in outputs if static_shape(types[v]) is None and not _no_dtype(types[v])]
    follows = any(tensor_type(types[v]) is None for v in operator_reads(operator))
    if not unknown or follows:
        return
    if find_schema(operator.op_type, operator.version, operator.domain) is None:
        yield f"{label} of domain {operator.domain!r} is not known"
    else:
        values = ", ".join(map(repr, unknown))
        yield f"the shape of {values}, computed by {label}, depends on what is computed at run time"


def _no_dtype(type_: TypeProto) -> bool:
    """Whether it is known to be something other than a tensor of a DType."""
    if type_.WhichOneof("value") == "tensor_type":
        elem = type_.tensor_type.elem_type
        return elem != 0 and element_dtype(elem) is None
    return type_.WhichOneof("value") is not None
