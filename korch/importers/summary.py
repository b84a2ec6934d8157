"""What a model asks for, at a glance; nothing is bound, inferred or built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto, SparseTensorProto, TensorProto

from korch.importers.attributes import element_dtype, graphs_of, opset_versions, standard_domain, type_text
from korch.importers.binding import free_inputs, unbound_dimensions
from korch.importers.model import Source, load_model
from korch.importers.order import function_key
from korch.ir.types import DType


@dataclass(frozen=True)
class ModelSummary:
    """What `describe_onnx` finds.

    - `opsets` maps domains ("" is the standard's) to versions.
    - `inputs` and `outputs` map names to types as text (`float[1,3,height,?]`).
    - `dtypes` maps inputs to their dtypes, None where Korch has none for it.
    - `unbound` maps each input that has some to its dimensions that are symbols ("?" without a name), or to None
      when not even its rank is known.
    - `operators` counts nodes by type (`Conv`, `com.example.Fancy`), those of bodies included, calls of the model's
      own functions counted as what they call.
    - `parameters` and `parameter_bytes` count the elements and bytes of initializers and Constant nodes.
    """

    opsets: Mapping[str, int]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    dtypes: Mapping[str, DType | None]
    unbound: Mapping[str, tuple[str, ...] | None]
    operators: Mapping[str, int]
    parameters: int
    parameter_bytes: int


def describe_onnx(source: Source) -> ModelSummary:
    """What the model asks for. InvalidModel as `load_model`."""
    model = load_model(source)
    functions = {function_key(f): f for f in model.functions}
    operators: Counter[str] = Counter()
    tensors: list[TensorProto | SparseTensorProto] = []
    graphs, pending = [model.graph], list[NodeProto]()
    while graphs or pending:
        if graphs:
            graph = graphs.pop()
            tensors += [*graph.initializer, *graph.sparse_initializer]
            pending.extend(graph.node)
            continue
        node = pending.pop()
        if function_key(node) in functions:
            pending.extend(functions[function_key(node)].node)
            continue
        graphs.extend(graphs_of(node))
        domain = standard_domain(node.domain)
        operators[f"{domain}.{node.op_type}" if domain else node.op_type] += 1
        tensors += [a.t for a in node.attribute if node.op_type == "Constant" and a.HasField("t")]
    inputs = free_inputs(model.graph)
    unbound = {i.name: unbound_dimensions(i.type) for i in inputs}
    return ModelSummary(
        opsets=opset_versions(model),
        inputs={i.name: type_text(i.type) for i in inputs},
        outputs={o.name: type_text(o.type) for o in model.graph.output},
        dtypes={i.name: element_dtype(i.type.tensor_type.elem_type) for i in inputs},
        unbound={name: dims for name, dims in unbound.items() if dims != ()},
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        parameters=sum(math.prod(t.dims) for t in tensors),
        parameter_bytes=sum(_bytes(t) for t in tensors),
    )


def _bytes(tensor: TensorProto | SparseTensorProto) -> int:
    elem = tensor.data_type if isinstance(tensor, TensorProto) else tensor.values.data_type
    dtype = element_dtype(elem)
    return math.prod(tensor.dims) * (dtype.size if dtype is not None else 1)
