"""The types of outputs of `com.microsoft` operators, for which onnx has no schemas.

One rule per operator, in an explicit table. A rule sees static types only; what it does not know stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, helper

from korch.errors import InvalidModel
from korch.importers.attributes import attribute_value, static_shape, type_text
from korch.importers.inference import find_schema, infer_outputs
from korch.importers.order import node_label

DOMAIN = "com.microsoft"

STANDARD_VERSION = 17
"""The operator set whose rules hold for what these operators share with the standard."""


@dataclass(frozen=True)
class Node:
    """A node with the element types and static shapes of its inputs; absent ones are (0, None)."""

    proto: NodeProto
    given: tuple[tuple[int, tuple[int, ...] | None], ...]
    attributes: Mapping[str, object]

    def elem(self, k: int) -> int:
        return self.given[k][0] if k < len(self.given) else 0

    def shape(self, k: int) -> tuple[int, ...]:
        found = self.given[k][1] if k < len(self.given) else None
        if found is None:
            raise LookupError
        return found

    def integer(self, name: str, default: int = 0) -> int:
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default


Output = tuple[int, Sequence[int]]


def contrib_outputs(node: NodeProto, types: Mapping[str, TypeProto]) -> dict[str, TypeProto] | None:
    """The types of the outputs that have names; None for an operator without a rule.

    InvalidModel when the inputs do not fit together.
    """
    rule = RULES.get(node.op_type)
    if rule is None:
        return None
    given = tuple((types[n].tensor_type.elem_type, static_shape(types[n])) if n else (0, None) for n in node.input)
    found: Sequence[Output] = ()
    try:
        found = rule(Node(node, given, {a.name: attribute_value(a) for a in node.attribute if not a.HasField("g")}))
    except LookupError:
        pass  # the shape of an input is not known, or an input is missing
    except ValueError as error:
        shapes = ", ".join(type_text(t) for t in types.values())
        raise InvalidModel(f"{node_label(node)} refuses its inputs ({shapes}): {error}") from error
    pairs = zip(node.output, found, strict=False)
    known = {o: helper.make_tensor_type_proto(elem, tuple(shape)) for o, (elem, shape) in pairs if o}
    return {o: known.get(o, TypeProto()) for o in node.output if o}


def _same(node: Node) -> list[Output]:
    return [(node.elem(0), node.shape(0))]


def _broadcast(first: int, second: int) -> Callable[[Node], list[Output]]:
    def rule(node: Node) -> list[Output]:
        return [(node.elem(first), np.broadcast_shapes(node.shape(first), node.shape(second)))]

    return rule


def _skip(node: Node) -> list[Output]:
    """The result, mean, inverse deviation, and the sum that was normalized."""
    shape = node.shape(0)
    statistics: Output = (TensorProto.FLOAT, (*shape[:-1], 1))
    return [(node.elem(0), shape), statistics, statistics, (node.elem(0), shape)]


def _normalized(node: Node) -> list[Output]:
    axis = node.integer("axis", -1) % len(node.shape(0))
    statistics: Output = (TensorProto.FLOAT, (*node.shape(0)[:axis], *[1] * (len(node.shape(0)) - axis)))
    return [(node.elem(0), node.shape(0)), statistics]


def _embedding(node: Node) -> list[Output]:
    batch, length = node.shape(0)
    result: Output = (node.elem(2), (batch, length, node.shape(2)[1]))
    return [result, (TensorProto.INT32, (batch,)), result]


def _attention(node: Node) -> list[Output]:
    sizes = node.attributes.get("qkv_hidden_sizes")
    width = int(sizes[2]) if isinstance(sizes, tuple) else node.shape(1)[1] // 3  # type: ignore[arg-type]
    return [(node.elem(0), (*node.shape(0)[:2], width))]


def _multi_head(node: Node) -> list[Output]:
    """Values come as [batch, length, width], or by heads as [batch, heads, length, size]; so do keys."""
    query, value = node.shape(0), node.shape(2)
    batch, heads = query[0], node.integer("num_heads")
    width = value[2] if len(value) == 3 else value[1] * value[3]
    length = node.shape(1)[1] if len(node.shape(1)) == 3 else node.shape(1)[2]
    past = node.shape(6)[2] if node.elem(6) else 0
    size = query[2] // heads
    return [
        (node.elem(0), (*query[:2], width)),
        (node.elem(0), (batch, heads, past + length, size)),
        (node.elem(0), (batch, heads, past + length, width // heads)),
    ]


def _product(first: int, second: int, elem: int | None = None) -> Callable[[Node], list[Output]]:
    """A matrix product of two inputs of rank 2 or more."""

    def rule(node: Node) -> list[Output]:
        a, b = list(node.shape(first)), list(node.shape(second))
        a = a[:-2] + a[:-3:-1] if node.integer("transA") else a
        b = b[:-2] + b[:-3:-1] if node.integer("transB") else b
        if a[-1] != b[-2]:
            raise ValueError(f"{a[-1]} columns meet {b[-2]} rows")
        batch = np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
        return [(node.elem(first) if elem is None else elem, (*batch, a[-2], b[-1]))]

    return rule


def _standard(op_type: str, *inputs: int) -> Callable[[Node], list[Output]]:
    """The rule of a standard operator of these inputs; what it does not know of attributes is left out."""

    def rule(node: Node) -> list[Output]:
        schema = find_schema(op_type, STANDARD_VERSION, "")
        assert schema is not None
        names = [f"x{k}" for k in inputs]
        # The inference wants floats where these operators have quantized ones.
        types = {
            n: helper.make_tensor_type_proto(TensorProto.FLOAT, node.shape(k))
            for n, k in zip(names, inputs, strict=True)
        }
        call = helper.make_node(op_type, names, ["y"])
        call.attribute.extend(a for a in node.proto.attribute if a.name in schema.attributes)
        shape = static_shape(infer_outputs(call, schema, {"": STANDARD_VERSION}, types, {})["y"])
        return [] if shape is None else [(node.elem(inputs[0]), shape)]

    return rule


def _quantized_pool(op_type: str) -> Callable[[Node], list[Output]]:
    """Pooling that may have its channels last."""
    inner = _standard(op_type, 0)

    def rule(node: Node) -> list[Output]:
        if not node.integer("channels_last"):
            return inner(node)
        shape = node.shape(0)
        moved = Node(node.proto, ((node.elem(0), (shape[0], shape[-1], *shape[1:-1])),), node.attributes)
        return [(elem, (found[0], *found[2:], found[1])) for elem, found in inner(moved)]

    return rule


def _quantized_concat(node: Node) -> list[Output]:
    shapes = [node.shape(k) for k in range(2, len(node.given), 3)]
    axis = node.integer("axis") % len(shapes[0])
    if any(s[:axis] + s[axis + 1 :] != shapes[0][:axis] + shapes[0][axis + 1 :] for s in shapes):
        raise ValueError(f"the shapes differ outside axis {axis}")
    return [(node.elem(2), (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :]))]


def _quantized(node: Node) -> list[Output]:
    return [(node.elem(2) or TensorProto.UINT8, node.shape(0))]


def _dequantized(node: Node) -> list[Output]:
    return [(node.elem(1), node.shape(0))]


RULES: dict[str, Callable[[Node], Sequence[Output]]] = {
    "Attention": _attention,
    "BiasGelu": _same,
    "DequantizeLinear": _dequantized,
    "DynamicQuantizeMatMul": _product(0, 1, TensorProto.FLOAT),
    "EmbedLayerNormalization": _embedding,
    "FastGelu": _same,
    "FusedConv": _standard("Conv", 0, 1),
    "FusedMatMul": _product(0, 1),
    "Gelu": _same,
    "MatMulIntegerToFloat": _product(0, 1, TensorProto.FLOAT),
    "MultiHeadAttention": _multi_head,
    "QLinearAdd": _broadcast(0, 3),
    "QLinearAveragePool": _quantized_pool("AveragePool"),
    "QLinearConcat": _quantized_concat,
    "QLinearGlobalAveragePool": _quantized_pool("GlobalAveragePool"),
    "QLinearLeakyRelu": _same,
    "QLinearMul": _broadcast(0, 3),
    "QLinearSigmoid": _same,
    "QuantizeLinear": _quantized,
    "QuickGelu": _same,
    "RotaryEmbedding": _same,
    "SimplifiedLayerNormalization": _normalized,
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip,
}
