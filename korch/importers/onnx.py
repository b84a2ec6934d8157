"""ONNX models as operator graphs: what the rest of Korch calls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from korch.importers.attributes import opset_versions, proto_of
from korch.importers.binding import bind_inputs, bind_symbols
from korch.importers.finish import finish, prune
from korch.importers.functions import operator_node, standard_function
from korch.importers.inference import find_schema
from korch.importers.model import Source, load_model
from korch.importers.operators import Operator, OperatorGraph
from korch.importers.order import function_key
from korch.importers.scope import Scope
from korch.importers.summary import ModelSummary, describe_onnx
from korch.importers.walker import Walker
from korch.ir.types import TensorType

__all__ = ["ModelSummary", "Source", "describe_onnx", "expand_function_operator", "import_onnx", "load_model"]


def import_onnx(source: Source, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OperatorGraph:
    """The model as operators with static types; see `OperatorGraph` for what holds of it.

    `source` is a path, the bytes of a model or a ModelProto (which is not changed). `shapes` binds the symbolic
    dimensions of inputs, by name and each in full; a symbol bound once is bound everywhere. An initializer is a
    constant, also where it is an input too.

    InvalidModel: it is no valid ONNX model, or its shapes do not fit together. InvalidInput: `shapes` does not fit
    the model. UnsupportedModel: a dimension is unbound or depends on data, or a value has no DType; the message
    names all of them.
    """
    model = load_model(source)
    types, symbols = bind_inputs(model.graph, shapes or {})
    declared = {v.name: bind_symbols(v.type, symbols) for v in [*model.graph.value_info, *model.graph.output]}
    walker = Walker({function_key(f): f for f in model.functions})
    graph = walker.graph(model.graph, Scope(opsets=opset_versions(model), declared=declared), types)
    return finish(graph, walker.types, walker.constants)


def expand_function_operator(
    operator: Operator, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray] | None = None
) -> OperatorGraph | None:
    """The operator as the standard itself defines it by other operators; None when it does not.

    `types` has the types of the graph's values, the operator's inputs at least, and `constants` what is known of
    them. The result's inputs are the operator's (each once), its outputs pair the operator's outputs with values;
    new values and nodes are named after the operator. It may use operators that have bodies in their turn. The
    standard writes for brevity: GroupNormalization's variance, for one, is E[x²] - E[x]², which cancels.
    """
    schema = find_schema(operator.op_type, operator.version, operator.domain)
    function = None if schema is None else standard_function(operator, schema, types)
    if schema is None or function is None:
        return None
    call = operator_node(operator, schema)
    values = tuple(dict.fromkeys(v for v in operator.inputs if v))
    walker = Walker({function_key(call): function}, taken=types)
    walker.types.update({v: proto_of(types[v]) for v in values})
    walker.constants.update({v: a for v, a in (constants or {}).items() if v in values})
    scope = Scope(opsets={}, names={v: v for v in values})
    operators = walker.walk([call], scope)
    outputs = tuple((v, scope.value(v)) for v in operator.outputs if v)
    inputs = tuple((v, v) for v in values)
    graph = OperatorGraph(operator.name, {}, inputs, outputs, prune(operators, outputs))
    return finish(graph, walker.types, walker.constants)
