"""The types of If, Loop and Scan: of what goes into their bodies, and of what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, helper

from korch.errors import InvalidModel
from korch.importers.attributes import static_shape
from korch.importers.operators import OperatorGraph
from korch.importers.order import node_label

Types = Mapping[str, TypeProto]


def check_bodies(node: NodeProto) -> None:
    """InvalidModel when the node and its bodies disagree about how many inputs and outputs there are."""
    bodies = {a.name: a.g for a in node.attribute if a.HasField("g")}
    given, taken = len(node.input), len(node.output)
    if node.op_type == "If":
        branches = [bodies.get("then_branch"), bodies.get("else_branch")]
        fits = given == 1 and all(b is not None and len(b.output) == taken for b in branches)
    else:
        body = bodies.get("body")
        fits = body is not None and len(body.input) == given and len(bodies) == 1
        if body is not None and node.op_type == "Loop":
            fits = fits and given >= 2 and max(taken, given - 2) <= len(body.output) - 1
        if body is not None and node.op_type == "Scan":
            count = _scan_inputs(node)
            scanned = len(body.output) - (given - count)
            fits = fits and 0 < count <= given and taken <= len(body.output) and scanned >= 0
            sizes = {"input": count, "output": scanned}
            fits = fits and all(
                len(a.ints) == sizes[a.name.split("_")[1]] for a in node.attribute if a.name.startswith("scan_")
            )
    if not fits:
        raise InvalidModel(f"{node_label(node)} and its body have different numbers of inputs or outputs")


def body_input_types(node: NodeProto, types: Types) -> list[TypeProto]:
    """The types of a body's inputs; `types` go by the node's names."""
    if node.op_type == "If":
        return []
    given = [types[n] if n else TypeProto() for n in node.input]
    if node.op_type == "Loop":
        counter = helper.make_tensor_type_proto(TensorProto.INT64, ())
        condition = helper.make_tensor_type_proto(TensorProto.BOOL, ())
        return [counter, condition, *given[2:]]
    scanned = len(given) - _scan_inputs(node)
    axes = _ints(node, "scan_input_axes", len(given) - scanned)
    return given[:scanned] + [_without(t, axis) for t, axis in zip(given[scanned:], axes, strict=True)]


def control_output_types(
    node: NodeProto,
    bodies: Mapping[str, OperatorGraph],
    types: Types,
    known: Mapping[str, np.ndarray],
    values: Types,
    constants: Mapping[str, np.ndarray],
) -> dict[str, TypeProto]:
    """The types of the node's outputs, without a shape where it depends on what is computed.

    `types` and `known` go by the node's names, `values` and `constants` by the names in the bodies.
    """
    results = [[values[v] for _, v in body.outputs] for body in bodies.values()]
    if node.op_type == "If":
        found = [a if a == b else _unknown_shape(a) for a, b in zip(*results, strict=True)]
    elif node.op_type == "Loop":
        found = _loop_outputs(node, bodies["body"], results[0], types, known, constants)
    else:
        found = _scan_outputs(node, results[0], types)
    return {o: t for o, t in zip(node.output, found, strict=False) if o}


def _loop_outputs(
    node: NodeProto,
    body: OperatorGraph,
    results: Sequence[TypeProto],
    types: Types,
    known: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
) -> list[TypeProto]:
    carried = [types[n] for n in node.input[2:]]
    if list(results[1 : 1 + len(carried)]) != carried:  # the body was walked with types that do not last
        return [TypeProto() for _ in results[1:]]
    trips = _trips(node, body, known, constants)
    return carried + [_with(t, 0, trips) for t in results[1 + len(carried) :]]


def _trips(
    node: NodeProto, body: OperatorGraph, known: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
) -> int | None:
    """How often the loop runs, when that is known: its condition never changes."""
    limit = known.get(node.input[0]) if node.input[0] else None
    start = np.array(True) if not node.input[1] else known.get(node.input[1])
    if start is not None and not start.any():
        return 0
    after = body.outputs[0][1]
    copies = {op.outputs[0]: op.inputs[0] for op in body.operators if op.op_type == "Identity"}
    while after in copies:
        after = copies[after]
    lasting = constants[after].all() if after in constants else after == body.inputs[1][1]
    if limit is None or start is None or not lasting:
        return None
    return max(0, int(limit.reshape(-1)[0]))


def _scan_outputs(node: NodeProto, results: Sequence[TypeProto], types: Types) -> list[TypeProto]:
    given = [types[n] for n in node.input]
    states = len(given) - _scan_inputs(node)
    if list(results[:states]) != given[:states]:
        return [TypeProto() for _ in results]
    axis = _ints(node, "scan_input_axes", len(given) - states)[0]
    shape = static_shape(given[states])
    trips = None if shape is None else shape[axis]
    axes = _ints(node, "scan_output_axes", len(results) - states)
    return given[:states] + [_with(t, a, trips) for t, a in zip(results[states:], axes, strict=True)]


def _scan_inputs(node: NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)


def _ints(node: NodeProto, name: str, count: int) -> Sequence[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), [0] * count)


def _unknown_shape(type_: TypeProto) -> TypeProto:
    if not type_.HasField("tensor_type"):
        return type_
    return helper.make_tensor_type_proto(type_.tensor_type.elem_type, None)


def _without(type_: TypeProto, axis: int) -> TypeProto:
    """A tensor's type without one dimension."""
    shape = static_shape(type_)
    if shape is None:
        return _unknown_shape(type_)
    axis %= len(shape)
    return helper.make_tensor_type_proto(type_.tensor_type.elem_type, shape[:axis] + shape[axis + 1 :])


def _with(type_: TypeProto, axis: int, size: int | None) -> TypeProto:
    """A tensor's type with one more dimension."""
    shape = static_shape(type_)
    if shape is None or size is None:
        return _unknown_shape(type_)
    axis %= len(shape) + 1
    return helper.make_tensor_type_proto(type_.tensor_type.elem_type, (*shape[:axis], size, *shape[axis:]))
