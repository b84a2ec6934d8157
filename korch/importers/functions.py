"""The standard's own bodies of operators that are defined by other operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import FunctionProto, NodeProto, TypeProto, defs, helper

from korch.importers.attributes import make_attribute, opset_versions, proto_of
from korch.importers.operators import Operator, OperatorGraph
from korch.ir.types import TensorType


def standard_function(
    operator: Operator, schema: defs.OpSchema, types: Mapping[str, TensorType]
) -> FunctionProto | None:
    """The body that the standard gives the operator, for these types of its inputs; None when it gives none.

    Of several bodies, written for different operator sets, the newest not after the operator's version, or else
    the oldest. Attributes that the operator leaves out get their defaults.
    """
    if any(isinstance(v, OperatorGraph) for v in operator.attributes.values()):
        return None
    content = _body(schema, operator, types)
    if not content:
        return None
    function = FunctionProto.FromString(content)
    if "" not in opset_versions(function):
        newest = defs.onnx_opset_version()
        function.opset_import.append(helper.make_opsetid("", newest if operator.domain else operator.version))
    stated = {a.name for a in function.attribute_proto}
    for name in function.attribute:
        default = schema.attributes[name].default_value
        if default.name and name not in stated:
            function.attribute_proto.append(default)
    return function


def _body(schema: Any, operator: Operator, types: Mapping[str, TensorType]) -> bytes:
    if versions := schema.function_opset_versions:
        return schema.get_function_with_opset_version(_nearest(versions, operator.version))
    if versions := schema.context_dependent_function_opset_versions:
        inputs = [proto_of(types[v]) if v else TypeProto() for v in operator.inputs]
        return schema.get_context_dependent_function_with_opset_version(
            _nearest(versions, operator.version),
            operator_node(operator, schema).SerializeToString(),
            [t.SerializeToString() for t in inputs],
        )
    return b""


def _nearest(versions: list[int], version: int) -> int:
    return max((v for v in versions if v <= version), default=min(versions))


def operator_node(operator: Operator, schema: defs.OpSchema) -> NodeProto:
    """The operator as a node of a model."""
    node = onnx.NodeProto(op_type=operator.op_type, domain=operator.domain, name=operator.name)
    node.input.extend(operator.inputs)
    node.output.extend(operator.outputs)
    node.attribute.extend(make_attribute(name, value, schema) for name, value in operator.attributes.items())
    return node
