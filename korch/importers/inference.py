"""The types of a node's outputs, from the types of its inputs and the values of those that are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx
import onnx.shape_inference
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, defs, helper
from onnx import numpy_helper as arrays

from korch.errors import InvalidModel
from korch.importers.attributes import element_type, one_line, static_shape, type_text
from korch.importers.order import node_label

SHAPE_LIMIT = 4096  # elements: no constant that decides a shape is larger


@cache
def find_schema(op_type: str, version: int, domain: str) -> defs.OpSchema | None:
    """The standard's description of an operator; None for one that it does not have at that version."""
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def infer_outputs(
    node: NodeProto,
    schema: defs.OpSchema,
    opsets: Mapping[str, int],
    types: Mapping[str, TypeProto],
    constants: Mapping[str, np.ndarray],
) -> dict[str, TypeProto]:
    """The types of the outputs that have names, as far as the standard's own rules find them.

    `types` and `constants` go by the node's names. A type without an element type is one that is not known:
    then nothing is inferred. InvalidModel when the node breaks its operator's rules.
    """
    named = [o for o in node.output if o]
    if any(t.WhichOneof("value") is None for t in types.values()):
        return {o: TypeProto() for o in named}
    if node.op_type == "STFT" and all(a.name != "onesided" for a in node.attribute):
        node = _with_attribute(node, "onesided", 1)  # the inference takes the default to be 0
    data: dict[str, TensorProto] = {
        n: arrays.from_array(np.ascontiguousarray(a).reshape(a.shape), n)
        for n, a in constants.items()
        if a.size <= SHAPE_LIMIT and element_type(a.dtype) != TensorProto.STRING
    }
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, node, dict(types), data, None, imports)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        shapes = ", ".join(type_text(t) for t in types.values())
        raise InvalidModel(f"{node_label(node)} refuses its inputs ({shapes}): {one_line(error)}") from error
    for name, type_ in found.items():
        if any(d.dim_value < 0 for d in type_.tensor_type.shape.dim):
            shapes = ", ".join(type_text(t) for t in types.values())
            raise InvalidModel(f"{node_label(node)} gives {name!r} a negative dimension for its inputs ({shapes})")
    _refuse_reshape(node, types, found)
    _refuse_window(node, types)
    found.update(_pooled_shape(node, types, found))
    found.update(_own_rules(node, types, constants, found))
    return {o: found.get(o, TypeProto()) for o in named}


def _refuse_reshape(node: NodeProto, types: Mapping[str, TypeProto], found: Mapping[str, TypeProto]) -> None:
    """A shape that the model fixes, as of an image or a batch, and that another input does not fill."""
    if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx"):
        return
    before, after = static_shape(types[node.input[0]]), static_shape(found[node.output[0]])
    if before is not None and after is not None and math.prod(before) != math.prod(after):
        raise InvalidModel(
            f"{node_label(node)} cannot give its input of shape {list(before)} the shape {list(after)}, "
            "which the model fixes: bind other shapes"
        )


def _refuse_window(node: NodeProto, types: Mapping[str, TypeProto]) -> None:
    """A window that is larger than what it moves over: the inference rounds the number of its places up to 1."""
    if node.op_type not in ("Conv", "ConvInteger", "MaxPool", "AveragePool", "LpPool", "QLinearConv"):
        return
    attributes = {a.name: a for a in node.attribute}
    shape = static_shape(types[node.input[0]])
    if shape is None or attributes.get("ceil_mode", AttributeProto()).i:
        return
    if attributes.get("auto_pad", AttributeProto()).s.startswith(b"SAME"):
        return
    if "kernel_shape" in attributes:
        window = list(attributes["kernel_shape"].ints)
    else:
        weight = static_shape(types[node.input[3 if node.op_type == "QLinearConv" else 1]])
        window = [] if weight is None else list(weight[2:])
    pads = list(attributes["pads"].ints) if "pads" in attributes else [0] * (2 * len(window))
    dilations = list(attributes["dilations"].ints) if "dilations" in attributes else [1] * len(window)
    for size, extent, dilation, before, after in zip(
        shape[2:], window, dilations, pads[: len(window)], pads[len(window) :], strict=False
    ):
        if size + before + after < (extent - 1) * dilation + 1:
            raise InvalidModel(
                f"{node_label(node)} has a window of {window}, which is larger than its input of shape {list(shape)}: "
                "bind larger shapes"
            )


def _pooled_shape(
    node: NodeProto, types: Mapping[str, TypeProto], found: Mapping[str, TypeProto]
) -> dict[str, TypeProto]:
    """The outputs of a pooling with ceil_mode, without windows that begin in the padding at the end.

    The standard leaves these windows out, as all frameworks do; the inference does so from operator set 22 on only.
    """
    attributes = {a.name: a for a in node.attribute}
    if node.op_type not in ("MaxPool", "AveragePool", "LpPool") or not attributes.get("ceil_mode", AttributeProto()).i:
        return {}
    if attributes.get("auto_pad", AttributeProto()).s not in (b"", b"NOTSET"):
        return {}
    before, after = static_shape(types[node.input[0]]), static_shape(found[node.output[0]])
    if before is None or after is None:
        return {}
    rank = len(before) - 2
    pads = list(attributes["pads"].ints) if "pads" in attributes else [0] * (2 * rank)
    strides = list(attributes["strides"].ints) if "strides" in attributes else [1] * rank
    shape = [
        count - ((count - 1) * stride >= size + pad)
        for count, stride, size, pad in zip(after[2:], strides, before[2:], pads, strict=False)
    ]
    return {
        name: helper.make_tensor_type_proto(type_.tensor_type.elem_type, [*after[:2], *shape])
        for name, type_ in found.items()
    }


def _with_attribute(node: NodeProto, name: str, value: int) -> NodeProto:
    result = NodeProto()
    result.CopyFrom(node)
    result.attribute.append(helper.make_attribute(name, value))
    return result


def _own_rules(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    constants: Mapping[str, np.ndarray],
    found: Mapping[str, TypeProto],
) -> dict[str, TypeProto]:
    """Shapes that the standard's rules leave open although they are known."""
    name = node.output[0]
    if not node.input or name not in found or static_shape(found[name]) is not None:
        return {}
    data = types[node.input[0]]
    shape = static_shape(data)
    attributes = {a.name: a.i for a in node.attribute}
    if node.op_type in ("GroupNormalization", "MeanVarianceNormalization"):
        return {name: data}
    if node.op_type == "Compress" and shape is not None and node.input[1] in constants:
        kept = int(constants[node.input[1]].sum())
        axis = attributes.get("axis")
        dims = [kept] if axis is None else [kept if d == axis % len(shape) else n for d, n in enumerate(shape)]
        return {name: helper.make_tensor_type_proto(data.tensor_type.elem_type, dims)}
    if node.op_type == "MaxUnpool" and len(node.input) > 2 and node.input[2] in constants:
        dims = [int(n) for n in constants[node.input[2]]]
        return {name: helper.make_tensor_type_proto(data.tensor_type.elem_type, dims)}
    return {}
