"""Loop and Scan as their steps one after the other, where it is known how many there are.

Shapes may then change from step to step, and what is known in one step is folded like anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from onnx import GraphProto, NodeProto, TypeProto, helper

from korch.importers.attributes import attribute_value, read_only, standard_domain, static_shape
from korch.importers.operators import Operator
from korch.importers.order import live_nodes, output_names
from korch.importers.scope import Scope

UNROLL_LIMIT = 2000  # nodes


class Walk(Protocol):
    """What is needed of the walker."""

    types: dict[str, TypeProto]
    constants: dict[str, np.ndarray]

    def walk(self, nodes: Sequence[NodeProto], scope: Scope) -> list[Operator]: ...
    def initializers(self, graph: GraphProto, scope: Scope) -> None: ...
    def define_constant(self, name: str, scope: Scope, array: np.ndarray) -> None: ...


def unrolled(walk: Walk, node: NodeProto, scope: Scope) -> list[Operator] | None:
    """The operators of all steps, with the node's outputs put into the scope.

    None when it is no loop, when it is not known which steps happen, when they come to more than UNROLL_LIMIT
    nodes, and when there is none. What has been walked by then is dead, as nothing refers to it.
    """
    if standard_domain(node.domain) != "" or node.op_type not in ("Loop", "Scan"):
        return None
    if node.op_type == "Loop":
        return _loop(walk, node, scope)
    return _scan(walk, node, scope)


def _loop(walk: Walk, node: NodeProto, scope: Scope) -> list[Operator] | None:
    limit, going = (walk.constants.get(scope.value(n)) if n else np.array(True) for n in node.input[:2])
    if limit is None or going is None:
        return None
    steps = int(limit.reshape(-1)[0]) if node.input[0] else UNROLL_LIMIT
    body, shared, nodes = _body(walk, node, scope)
    counter, condition, *states = (i.name for i in body.input)
    carried = [scope.value(n) for n in node.input[2:]]
    operators: list[Operator] = []
    scanned: list[list[str]] = []
    while len(scanned) < steps and going.any():
        if (len(scanned) + 1) * len(nodes) > UNROLL_LIMIT:
            return None
        inner = replace(shared, names=dict(zip(states, carried, strict=True)), outer=shared)
        walk.define_constant(counter, inner, read_only(np.array(len(scanned))))
        walk.define_constant(condition, inner, read_only(np.array(True)))
        operators += walk.walk(nodes, inner)
        after, *results = (inner.value(n) for n in output_names(body))
        going = walk.constants.get(after)
        if going is None:
            return None
        carried = results[: len(carried)]
        scanned.append(results[len(carried) :])
    axes = [0] * (len(body.output) - 1 - len(carried))
    return _results(walk, node, scope, operators, carried, scanned, axes)


def _scan(walk: Walk, node: NodeProto, scope: Scope) -> list[Operator] | None:
    attributes = {a.name: attribute_value(a) for a in node.attribute if not a.HasField("g")}
    count = attributes["num_scan_inputs"]
    assert isinstance(count, int)
    body, shared, nodes = _body(walk, node, scope)
    states = len(node.input) - count
    outputs = len(body.output) - states
    in_axes, backward_in = (_ints(attributes, f"scan_input_{k}", count) for k in ("axes", "directions"))
    out_axes, backward_out = (_ints(attributes, f"scan_output_{k}", outputs) for k in ("axes", "directions"))
    names = [i.name for i in body.input]
    sources = [scope.value(n) for n in node.input]
    shape = static_shape(walk.types[sources[states]])
    length = shape[in_axes[0]] if shape is not None else UNROLL_LIMIT
    if length * (len(nodes) + count) > UNROLL_LIMIT:
        return None
    carried = sources[:states]
    operators: list[Operator] = []
    scanned: list[list[str]] = []
    for step in range(length):
        inner = replace(shared, names=dict(zip(names, carried, strict=False)), outer=shared)
        rows: list[NodeProto] = []
        for name, source, axis, backward in zip(names[states:], sources[states:], in_axes, backward_in, strict=True):
            inner.names[f"{name}/all"] = source
            walk.define_constant(f"{name}/step", inner, read_only(np.array(length - 1 - step if backward else step)))
            rows.append(helper.make_node("Gather", [f"{name}/all", f"{name}/step"], [name], axis=axis))
        operators += walk.walk([*rows, *nodes], inner)
        results = [inner.value(n) for n in output_names(body)]
        carried = results[:states]
        scanned.append(results[states:])
    return _results(walk, node, scope, operators, carried, scanned, out_axes, backward_out)


def _body(walk: Walk, node: NodeProto, scope: Scope) -> tuple[GraphProto, Scope, list[NodeProto]]:
    """The body, a scope with its initializers for all steps, and its nodes."""
    body = next(a.g for a in node.attribute if a.name == "body")
    shared = scope.inner(body)
    walk.initializers(body, shared)
    return body, shared, live_nodes(body)


def _ints(attributes: Mapping[str, object], name: str, count: int) -> Sequence[int]:
    value = attributes.get(name, (0,) * count)
    assert isinstance(value, tuple)
    return [int(v) for v in value]


def _results(
    walk: Walk,
    node: NodeProto,
    scope: Scope,
    operators: list[Operator],
    carried: Sequence[str],
    scanned: Sequence[Sequence[str]],
    axes: Sequence[int],
    backward: Sequence[int] | None = None,
) -> list[Operator] | None:
    """Names the carried values, and stacks what each step gives (`scanned`: by step, then by output)."""
    if not scanned and axes:
        return None  # of no rows, not even the type is known
    scope.names.update({o: v for o, v in zip(node.output, carried, strict=False) if o})
    for k, name in enumerate(node.output[len(carried) :]):
        values = [row[k] for row in scanned]
        if name:
            ordered = values[::-1] if backward and backward[k] else values
            operators += _stacked(walk, ordered, axes[k], name, scope)
    return operators


def _stacked(walk: Walk, values: Sequence[str], axis: int, name: str, scope: Scope) -> list[Operator]:
    """The values along a new axis, under a name of the scope."""
    parts = [f"{name}/{k}" for k in range(len(values))]
    inner = replace(scope, names=dict(zip(parts, values, strict=True)), outer=scope)
    walk.define_constant(f"{name}/axes", inner, read_only(np.array([axis])))
    nodes: list[NodeProto] = []
    for part in parts:
        if scope.opsets[""] >= 13:
            nodes.append(helper.make_node("Unsqueeze", [part, f"{name}/axes"], [f"{part}/row"]))
        else:
            nodes.append(helper.make_node("Unsqueeze", [part], [f"{part}/row"], axes=[axis]))
    nodes.append(helper.make_node("Concat", [f"{part}/row" for part in parts], [name], axis=axis))
    operators = walk.walk(nodes, inner)
    scope.names[name] = inner.value(name)
    return operators
