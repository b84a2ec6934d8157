"""The values of nodes whose inputs are all known.

Most are computed by the ONNX reference evaluator, one node at a time. It is not asked where it is wrong (softmax
before operator set 13, casts out of range), where it is so slow that a run-time kernel is the better place, nor
where the result would only fill memory.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator

from korch.importers.attributes import (
    attribute_value,
    element_dtype,
    element_type,
    graphs_of,
    read_only,
    static_shape,
)
from korch.importers.order import reads
from korch.ir.types import CODES, DType

FOLD_LIMIT = 64 << 20  # bytes of a result that is larger than what it is computed from
ADDRESS_LIMIT = 1 << 56  # elements that an array may have, even where one is repeated
SLOW_LIMIT = 1024  # elements of a result of a SLOW operator

RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}

# Python loops over elements in the reference evaluator. Their results are seldom shapes.
SLOW = {
    *("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DFT", "DeformConv", "GRU", "GridSample", "LRN"),
    *("LSTM", "Loop", "LpPool", "MaxPool", "MaxRoiPool", "MaxUnpool", "NonMaxSuppression", "QLinearConv"),
    *("RNN", "Resize", "RoiAlign", "STFT", "Scan", "SequenceMap"),
}

# Each output element is one element of the first input, so a uniform array stays uniform.
MOVEMENT = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Expand", "Tile"}

ELEMENTWISE = {
    *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Cos", "Div", "Equal", "Erf", "Exp", "Floor", "Greater"),
    *("GreaterOrEqual", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow"),
    *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor"),
}


def fold(
    node: NodeProto, version: int, constants: Mapping[str, np.ndarray], types: Mapping[str, TypeProto]
) -> dict[str, np.ndarray] | None:
    """The values of the node's outputs by their names in the node; None when it is better left as it is.

    `constants` has every value that the node, or a body of it, reads, under the node's names. `types` are the
    inferred types of the outputs: the values are sure to have them. The node is of the standard domain.
    """
    if _is_random(node, version, constants) or _is_beyond_reference(node, version):
        return None
    if node.op_type not in MOVEMENT and any(element_dtype(t.tensor_type.elem_type) in CODES for t in types.values()):
        return None  # fission knows how to round to eight bits or less
    shapes = [static_shape(t) for t in types.values()]
    if any(s is not None and math.prod(s) > ADDRESS_LIMIT for s in shapes):
        return None
    view = _repeated(node, constants, types)
    if view is not None:
        return _checked(view, types)
    if node.op_type in ELEMENTWISE:
        return _fold_elementwise(node, version, constants, types)
    sizes = [math.prod(s) for s in shapes if s is not None]
    if len(sizes) < len(shapes):  # unknown before it is computed: as large as the inputs, say
        sizes.append(sum(a.size for a in constants.values()))
    if node.op_type in SLOW and max(sizes) > SLOW_LIMIT:
        return None
    if sum(sizes) * _widest(types) > max(FOLD_LIMIT, sum(map(storage, constants.values()))):
        return None
    return _checked(_evaluate(node, version, constants), types)


def _fold_elementwise(
    node: NodeProto, version: int, constants: Mapping[str, np.ndarray], types: Mapping[str, TypeProto]
) -> dict[str, np.ndarray] | None:
    """Dimensions along which all inputs only repeat are computed once, and the result repeats along them too."""
    [(name, type_)] = types.items()
    shape = static_shape(type_)
    if shape is None:
        return None
    data = node.input[:1] if node.op_type == "CastLike" else node.input
    spread = {n: np.broadcast_to(constants[n], shape) for n in data}
    repeated = [n > 1 and all(a.strides[d] == 0 for a in spread.values()) for d, n in enumerate(shape)]
    once = tuple(slice(0, 1) if r else slice(None) for r in repeated)
    computed = math.prod(1 if r else n for r, n in zip(repeated, shape, strict=True))
    if computed * _widest(types) > max(FOLD_LIMIT, sum(map(storage, constants.values()))):
        return None
    results = _evaluate(node, version, {**constants, **{n: a[once] for n, a in spread.items()}})
    if results is None:
        return None
    return _checked({name: np.broadcast_to(results[name], shape)}, types)


def _widest(types: Mapping[str, TypeProto]) -> int:
    """Bytes of the largest element."""
    known = [element_dtype(t.tensor_type.elem_type) for t in types.values()]
    return max(d.size if d is not None else 8 for d in known)


def _is_random(node: NodeProto, version: int, constants: Mapping[str, np.ndarray]) -> bool:
    if node.op_type == "Dropout" and version >= 12 and len(node.input) > 2 and node.input[2]:
        return bool(constants[node.input[2]].any())
    pending = [node]
    while pending:
        node = pending.pop()
        if node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2):
            return True
        pending.extend(n for g in graphs_of(node) for n in g.node)
    return False


def _is_beyond_reference(node: NodeProto, version: int) -> bool:
    """Resizing before operator set 11 had another rule, which the evaluator does not know."""
    return node.op_type == "Upsample" or (node.op_type == "Resize" and version < 11)


def storage(array: np.ndarray) -> int:
    """Bytes that the elements take, repeated ones counted once."""
    return math.prod(n for n, s in zip(array.shape, array.strides, strict=True) if s) * array.itemsize


def _scalar(array: np.ndarray) -> np.ndarray:
    """The first element, as an array of rank 0."""
    return array[(slice(0, 1),) * array.ndim].reshape(())


def _repeated(
    node: NodeProto, constants: Mapping[str, np.ndarray], types: Mapping[str, TypeProto]
) -> dict[str, np.ndarray] | None:
    """The result as a view that repeats a smaller array, where it is one."""
    [(name, type_), *others] = types.items()
    shape = static_shape(type_)
    if shape is None or others:
        return None
    if node.op_type == "ConstantOfShape":
        value = next((attribute_value(a) for a in node.attribute if a.name == "value"), None)
        scalar = _scalar(value) if isinstance(value, np.ndarray) else np.zeros((), np.float32)
        return {name: np.broadcast_to(scalar, shape)}
    if node.op_type not in MOVEMENT:
        return None
    data = constants[node.input[0]]
    if node.op_type == "Expand":
        return {name: np.broadcast_to(data, shape)}
    if data.size > 1 and storage(data) == data.itemsize and math.prod(shape) > 0:
        return {name: np.broadcast_to(_scalar(data), shape)}
    return None


def _checked(results: Mapping[str, object] | None, types: Mapping[str, TypeProto]) -> dict[str, np.ndarray] | None:
    """The results when they are what shape inference promised."""
    if results is None:
        return None
    found: dict[str, np.ndarray] = {}
    for name, type_ in types.items():
        result = results[name]
        if not isinstance(result, np.ndarray | np.generic):
            return None
        array = np.asarray(result)
        elem, shape = type_.tensor_type.elem_type, static_shape(type_)
        if elem not in (0, element_type(array.dtype)) or shape not in (None, array.shape):
            return None
        found[name] = read_only(array)
    return found


# --- evaluation


def _evaluate(node: NodeProto, version: int, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    attributes = {a.name: a for a in node.attribute}
    inputs = [feeds[n] if n else None for n in node.input]
    first = inputs[0] if inputs else None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if first is not None and _known(first):
            if node.op_type == "Cast" and (to := element_dtype(attributes["to"].i)) is not None:
                return {node.output[0]: cast_array(first, to.numpy)}
            if node.op_type == "CastLike" and inputs[1] is not None and _known(inputs[1]):
                return {node.output[0]: cast_array(first, inputs[1].dtype)}
            if node.op_type == "Pow" and inputs[1] is not None and _known(inputs[1]):
                return {node.output[0]: cast_array(np.power(first, inputs[1]), first.dtype)}
            if node.op_type in ("Softmax", "LogSoftmax", "Hardmax"):
                axis = attributes["axis"].i if "axis" in attributes else None
                return {node.output[0]: softmax_array(node.op_type, version, first, axis)}
        try:
            return _reference(node, version, feeds)
        except Exception:  # the evaluator has gaps, and raises all kinds of errors in them
            return None


def _known(array: np.ndarray) -> bool:
    return element_dtype(element_type(array.dtype)) is not None


def _reference(node: NodeProto, version: int, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = [o for o in node.output if o]
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION, opset_import=[helper.make_opsetid("", version)])
    model.graph.name = "node"
    model.graph.node.append(node)
    model.graph.input.extend(onnx.ValueInfoProto(name=n) for n in reads(node))
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in outputs)
    results: Any = ReferenceEvaluator(model).run(None, {n: feeds[n] for n in reads(node)})
    return dict(zip(outputs, results, strict=True))


def cast_array(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in another dtype: float to integer truncates and saturates, NaN gives 0; the rest is NumPy's."""
    if DType.of(array.dtype) in CODES:
        array = array.astype(np.float32)
    if not DType.of(array.dtype).is_float or dtype.kind not in "iu":
        with np.errstate(all="ignore"):
            return array.astype(dtype)
    wide = array.astype(np.float64)  # holds every value of the other floats
    least, greatest = np.iinfo(dtype).min, np.iinfo(dtype).max
    # float(greatest) of 64 bits rounds up, to a number that does not fit: hence the strict comparison.
    inside = (wide > float(least)) & (wide < float(greatest))
    result = np.where(inside, wide, 0).astype(dtype)
    result[wide <= float(least)] = least
    result[wide >= float(greatest)] = greatest
    return result


def softmax_array(op_type: str, version: int, array: np.ndarray, axis: int | None) -> np.ndarray:
    """Softmax, LogSoftmax or Hardmax; before operator set 13, over the dimensions from `axis` on together.

    Float16 and bfloat16 are computed in float32.
    """
    if array.size == 0:
        return array
    axis = axis if axis is not None else (-1 if version >= 13 else 1)
    axis = axis + array.ndim if axis < 0 else axis
    x = array
    if version < 13:
        x, axis = array.reshape(math.prod(array.shape[:axis]), -1), 1
    if op_type == "Hardmax":
        result = np.zeros_like(x)
        np.put_along_axis(result, np.expand_dims(x.argmax(axis), axis), 1, axis)
        return result.reshape(array.shape)
    wide = x if x.dtype.name in ("float32", "float64") else x.astype(np.float32)
    shifted = wide - wide.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    result = np.exp(shifted) / total if op_type == "Softmax" else shifted - np.log(total)
    return result.astype(array.dtype).reshape(array.shape)
