"""ONNX tensors, attributes and types as plain Python and NumPy values, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto, defs, helper
from onnx import numpy_helper as arrays

from korch.errors import InvalidModel
from korch.ir.types import DType, TensorType


def tensor_array(tensor: TensorProto) -> np.ndarray:
    """The tensor as a read-only array; strings as an array of objects. InvalidModel when its data do not fit."""
    try:
        array = np.asarray(arrays.to_array(tensor))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidModel(f"tensor {tensor.name!r} cannot be read: {one_line(error)}") from error
    return read_only(array)


def sparse_array(sparse: SparseTensorProto) -> np.ndarray:
    """A sparse tensor in full. Indices are linear ([k]) or one row of coordinates for each value ([k, rank])."""
    values, indices = tensor_array(sparse.values), tensor_array(sparse.indices).astype(np.int64)
    shape = tuple(sparse.dims)
    dense = np.zeros(shape, values.dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise InvalidModel(f"sparse tensor {sparse.values.name!r} has indices outside {shape}") from error
    return read_only(dense)


def read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def constant_node_array(node: NodeProto) -> np.ndarray:
    """What a Constant node gives, in any of its forms."""
    value = {a.name: a for a in node.attribute}
    if "value" in value:
        return tensor_array(value["value"].t)
    if "sparse_value" in value:
        return sparse_array(value["sparse_value"].sparse_tensor)
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64), ("value_string", object)):
        for form in (name, name + "s"):
            if form in value:
                return read_only(np.array(attribute_value(value[form]), dtype))
    raise InvalidModel(f"Constant node {node.name!r} ({', '.join(node.output)}) has no value")


def attribute_value(a: AttributeProto) -> object:
    """The attribute as int, float, str, np.ndarray or a tuple of them. Graphs are the driver's."""
    kind = AttributeProto
    match a.type:
        case kind.INT:
            return a.i
        case kind.FLOAT:
            return a.f
        case kind.STRING:
            return text(a.s)
        case kind.TENSOR:
            return tensor_array(a.t)
        case kind.SPARSE_TENSOR:
            return sparse_array(a.sparse_tensor)
        case kind.INTS:
            return tuple(a.ints)
        case kind.FLOATS:
            return tuple(a.floats)
        case kind.STRINGS:
            return tuple(map(text, a.strings))
        case kind.TENSORS:
            return tuple(map(tensor_array, a.tensors))
        case kind.SPARSE_TENSORS:
            return tuple(map(sparse_array, a.sparse_tensors))
        case _:  # a type: only operators on sequences and optionals have one, and those are refused by their types
            return str(a.type)


def make_attribute(name: str, value: object, schema: defs.OpSchema) -> AttributeProto:
    """The inverse of `attribute_value`, for an attribute of a standard operator."""
    kind = int(getattr(schema.attributes[name].type, "value", 0))
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, arrays.from_array(value))
    if isinstance(value, tuple) and all(isinstance(v, np.ndarray) for v in value) and value:
        return helper.make_attribute(name, [arrays.from_array(v) for v in value])
    return helper.make_attribute(name, value, attr_type=kind)


def text(value: bytes) -> str:
    return value.decode("utf-8", errors="surrogateescape")


def one_line(error: object) -> str:
    return " ".join(str(error).split())


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of a control-flow node."""
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            yield a.g
        yield from a.graphs


# --- types


def element_type(dtype: np.dtype) -> int:
    """The TensorProto data type of a NumPy dtype."""
    if dtype.kind in "OUS":
        return TensorProto.STRING
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def element_name(elem: int) -> str:
    return TensorProto.DataType.Name(elem).lower() if elem in TensorProto.DataType.values() else f"type {elem}"


def element_dtype(elem: int) -> DType | None:
    """The DType of a TensorProto data type; None when Korch has none for it."""
    return ELEMENTS.get(elem)


ELEMENTS: Mapping[int, DType] = {element_type(d.numpy): d for d in DType}


def proto_of(type_: TensorType) -> TypeProto:
    return helper.make_tensor_type_proto(element_type(type_.dtype.numpy), type_.shape)


def proto_of_array(array: np.ndarray) -> TypeProto:
    return helper.make_tensor_type_proto(element_type(array.dtype), array.shape)


def dimensions(proto: TypeProto) -> tuple[int | str, ...] | None:
    """The dimensions of a tensor type: a number, a symbol's name, or "" for one that is not known.

    None when not even the rank is known, or when it is no tensor.
    """
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    found: list[int | str] = []
    for d in proto.tensor_type.shape.dim:
        if d.HasField("dim_value") and d.dim_value >= 0:  # some exporters write -1 for an unknown dimension
            found.append(d.dim_value)
        else:
            found.append(d.dim_param)
    return tuple(found)


def static_shape(proto: TypeProto) -> tuple[int, ...] | None:
    """The shape, when all of it is known."""
    dims = dimensions(proto)
    if dims is None or any(isinstance(d, str) for d in dims):
        return None
    return tuple(int(d) for d in dims)


def tensor_type(proto: TypeProto) -> TensorType | None:
    """The static type; None when it is no tensor, of another element type, or not known in full."""
    shape, dtype = static_shape(proto), element_dtype(proto.tensor_type.elem_type)
    return None if shape is None or dtype is None else TensorType(dtype, shape)


def type_text(proto: TypeProto) -> str:
    """For messages: `float[1,?,n]`, `sequence`, `unknown`."""
    kind = proto.WhichOneof("value")
    if kind is None or (kind == "tensor_type" and not proto.tensor_type.elem_type):
        return "unknown"
    if kind != "tensor_type":
        return kind.removesuffix("_type").replace("_", " ")
    dims = dimensions(proto)
    shape = "[…]" if dims is None else f"[{','.join(str(d) if d != '' else '?' for d in dims)}]"
    return element_name(proto.tensor_type.elem_type) + shape


def standard_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def opset_versions(imports: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {standard_domain(o.domain): o.version for o in imports.opset_import}
