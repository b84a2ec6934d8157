"""Reading an ONNX model: the file, its external data, and whether it keeps the rules of its format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import google.protobuf.message
import onnx
from onnx import GraphProto, ModelProto, TensorProto, defs, helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from korch.errors import InvalidModel
from korch.importers.aged import OLDEST_OPSET, converted
from korch.importers.attributes import graphs_of, one_line, opset_versions
from korch.importers.order import order_model

Source = str | Path | ModelProto | bytes


def load_model(source: Source) -> ModelProto:
    """The model with its external data read in and its nodes in an order in which they can be computed.

    A model of an operator set before 7 is converted to a newer one.
    A ModelProto that needs none of this is returned as it is, and is never changed. InvalidModel, in one line, when the
    source is no ONNX model or breaks the rules of the format: a missing file or external data file, an operator
    set that is too old or too new, a cycle, an undefined name, whatever `onnx.checker` finds.
    """
    model = _read(source)
    directory = Path(source).resolve().parent if isinstance(source, str | Path) else None
    external = [t for t in _tensors(model) if uses_external_data(t)]
    if external and directory is None:
        raise InvalidModel(
            f"tensor {external[0].name!r} is in an external file that is not loaded; "
            "pass the model's path, or call onnx.load_external_data_for_model first"
        )
    for tensor in external:
        assert directory is not None
        _load_external(tensor, directory)
    _check_names(model)
    model = converted(model)
    _check_versions(model)
    outline = _outline(model)
    in_order = order_model(outline)
    _place_contributed(outline)
    try:
        onnx.checker.check_model(outline)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise InvalidModel(f"not a valid ONNX model: {one_line(error)}") from error
    return model if in_order else _with_nodes_of(model, outline)


# --- reading


def _read(source: Source) -> ModelProto:
    if isinstance(source, ModelProto):
        model, name = source, "the model"
    elif isinstance(source, bytes):
        model, name = _parse(source, "the model"), "the model"
    else:
        path, name = Path(source), str(source)
        if not path.exists():
            raise InvalidModel(f"{name}: no such file")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidModel(f"{name}: cannot be read ({error.strerror})") from error
        model = _parse(content, name)
    if not model.HasField("graph"):
        raise InvalidModel(f"{name} is not an ONNX model (it holds no graph)")
    return model


def _parse(content: bytes, name: str) -> ModelProto:
    try:
        return ModelProto.FromString(content)
    except google.protobuf.message.DecodeError as error:
        raise InvalidModel(f"{name} is not an ONNX model (not a protobuf, or cut short)") from error


def _check_names(model: ModelProto) -> None:
    """Protobuf gives a string that is not UTF-8 as bytes, which nothing else expects."""
    graphs, nodes = [model.graph], [n for f in model.functions for n in f.node]
    names: list[object] = [o.domain for o in model.opset_import]
    for f in model.functions:
        names += [f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute, *(v.name for v in f.value_info)]
        names += [o.domain for o in f.opset_import] + [a.name for a in f.attribute_proto]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes.extend(graph.node)
            values = [*graph.input, *graph.output, *graph.value_info]
            names += [graph.name, *(v.name for v in values)]
            names += [d.dim_param for v in values for d in v.type.tensor_type.shape.dim]
            names += [name for name, _, _ in _initializers(graph)]
            continue
        node = nodes.pop()
        graphs.extend(graphs_of(node))
        names += [node.op_type, node.domain, node.name, node.overload, *node.input, *node.output]
        names += [name for a in node.attribute for name in (a.name, a.ref_attr_name)]
    for name in names:
        if isinstance(name, bytes):
            raise InvalidModel(f"the name {name!r} in the model is not UTF-8: the file is damaged")


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every dense tensor of the model, those in attributes, subgraphs and functions included."""
    graphs, nodes = [model.graph], [n for f in model.functions for n in f.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            nodes.extend(graph.node)
            continue
        node = nodes.pop()
        graphs.extend(graphs_of(node))
        for a in node.attribute:
            if a.HasField("t"):
                yield a.t
            yield from a.tensors


def _load_external(tensor: TensorProto, directory: Path) -> None:
    """Reads the tensor's bytes from its file, which must lie in the model's directory or below."""
    info = ExternalDataInfo(tensor)
    path = (directory / info.location).resolve()
    if not path.is_relative_to(directory):
        raise InvalidModel(f"tensor {tensor.name!r}: external data {info.location!r} lies outside {directory}")
    if not path.is_file():
        raise InvalidModel(f"tensor {tensor.name!r}: the external data file {path} is missing")
    with path.open("rb") as file:
        file.seek(info.offset or 0)
        content = file.read(info.length) if info.length else file.read()
    if info.length and len(content) != info.length:
        raise InvalidModel(f"tensor {tensor.name!r}: the external data file {path} is cut short")
    tensor.raw_data = content
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _check_versions(model: ModelProto) -> None:
    newest = defs.onnx_opset_version()
    versions = opset_versions(model)
    for where, version in [("the model", versions.get("", OLDEST_OPSET))] + [
        (f"function {f.name!r}", opset_versions(f).get("", OLDEST_OPSET)) for f in model.functions
    ]:
        if version < OLDEST_OPSET:
            raise InvalidModel(
                f"{where} uses operator set {version}; the oldest supported is {OLDEST_OPSET}: "
                f"convert it with onnx.version_converter"
            )
        if version > newest:
            raise InvalidModel(
                f"{where} uses operator set {version}; the newest that onnx {onnx.__version__} knows is "
                f"{newest}: upgrade with `pip install -U onnx`"
            )
    if not versions:
        raise InvalidModel("the model states no operator set (opset_import is empty)")


def _place_contributed(outline: ModelProto) -> None:
    """ONNX Runtime's optimizer writes an operator of its own into the standard domain, which the checker refuses."""
    for node in outline.graph.node:
        if node.op_type == "SimplifiedLayerNormalization" and not node.domain:
            node.domain = "com.microsoft"
    if all(o.domain != "com.microsoft" for o in outline.opset_import):
        outline.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _outline(model: ModelProto) -> ModelProto:
    """The model without the contents of its initializers, which become inputs: small enough to be checked."""
    outline = ModelProto(ir_version=model.ir_version)
    outline.opset_import.extend(model.opset_import)
    outline.functions.extend(model.functions)
    graph = outline.graph
    graph.name = model.graph.name or "graph"
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.node.extend(model.graph.node)
    for value in [*graph.input, *graph.output]:  # the checker wants a shape; many exporters leave it out
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    for value in graph.output:  # and a type, which is inferred anyway
        if not value.type.tensor_type.elem_type and value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    names = {i.name for i in graph.input}
    seen: set[str] = set()
    for name, elem, dims in _initializers(model.graph):
        if name in seen:
            raise InvalidModel(f"initializer {name!r} is defined twice")
        seen.add(name)
        if name not in names:
            graph.input.append(helper.make_tensor_value_info(name, elem, dims))
    return outline


def _initializers(graph: GraphProto) -> Iterator[tuple[str, int, Sequence[int]]]:
    for t in graph.initializer:
        yield t.name, t.data_type, t.dims
    for s in graph.sparse_initializer:
        yield s.values.name, s.values.data_type, s.dims


def _with_nodes_of(model: ModelProto, outline: ModelProto) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.functions[:]
    result.graph.node.extend(outline.graph.node)
    result.functions.extend(outline.functions)
    return result
