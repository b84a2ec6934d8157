"""Models of the first operator sets, as models of one that the rest of the importer knows."""

from __future__ import annotations

import onnx.shape_inference
import onnx.version_converter
from onnx import ModelProto, NodeProto, helper

from korch.errors import InvalidModel
from korch.importers.attributes import dimensions, one_line, opset_versions

OLDEST_OPSET = 7  # the first with today's broadcasting
CONVERTED_OPSET = 8


def converted(model: ModelProto) -> ModelProto:
    """The model itself, or where its operator set is older than OLDEST_OPSET, its conversion by onnx.

    InvalidModel when the converter does not know an operator of the model.
    """
    version = opset_versions(model).get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET or model.functions:
        return model
    try:
        result = onnx.version_converter.convert_version(model, CONVERTED_OPSET)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InvalidModel(
            f"the model uses operator set {version}, which onnx does not convert to a newer one ({one_line(error)}); "
            "export it again"
        ) from error
    _place_slopes(result)
    return result


def _place_slopes(model: ModelProto) -> None:
    """A PRelu's slopes for channels get the trailing dimensions that they need now and that the converter forgets."""
    if not any(node.op_type == "PRelu" for node in model.graph.node):
        return
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {v.name: dimensions(v.type) for v in [*graph.input, *graph.value_info, *graph.output]}
    shapes |= {t.name: tuple(t.dims) for t in graph.initializer}
    nodes: list[NodeProto] = []
    for k, node in enumerate(model.graph.node):
        x, slope = (shapes.get(n) for n in node.input[:2]) if node.op_type == "PRelu" else (None, None)
        if x is not None and slope is not None and len(slope) == 1 and slope != (1,) and len(x) > 2:
            name = f"{node.input[1]}/channels{k}"
            nodes.append(helper.make_node("Unsqueeze", [node.input[1]], [name], axes=list(range(1, len(x) - 1))))
            node.input[1] = name
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
