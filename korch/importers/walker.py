"""The one walk over a model's nodes that makes operators of them.

What is known is folded on the way, so that the inputs of a node are as exact as can be when the types of its
outputs are inferred: a Reshape sees the numbers that it reshapes to. Calls of functions, and branches whose
condition is known, are walked in place of the node. Nothing recurses along a chain of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto

from korch.errors import InvalidModel, UnsupportedModel
from korch.importers import contrib
from korch.importers.attributes import (
    attribute_value,
    constant_node_array,
    dimensions,
    element_dtype,
    opset_versions,
    proto_of_array,
    read_only,
    sparse_array,
    standard_domain,
    static_shape,
    tensor_array,
)
from korch.importers.control import body_input_types, check_bodies, control_output_types
from korch.importers.finish import prune
from korch.importers.folding import fold
from korch.importers.inference import find_schema, infer_outputs
from korch.importers.operators import Operator, OperatorGraph
from korch.importers.order import FunctionKey, function_key, live_nodes, node_label, output_names, reads
from korch.importers.scope import Scope
from korch.importers.unrolling import unrolled

CONTROL = {"If", "Loop", "Scan"}


@dataclass(frozen=True)
class Region:
    """Nodes that are being walked, and the names outside that their results get in the end."""

    nodes: Iterator[NodeProto]
    scope: Scope
    results: tuple[tuple[str, str], ...] = ()  # (name outside, name inside)
    outside: Scope | None = None

    def close(self) -> None:
        for name, inner in self.results:
            assert self.outside is not None
            self.outside.names[name] = self.scope.value(inner)


class Walker:
    """The state of one import: the types of all values and the known ones, by value.

    `functions` are the model's own. Values and operators get names that are not in `taken`.
    """

    def __init__(self, functions: Mapping[FunctionKey, FunctionProto], taken: Iterable[str] = ()) -> None:
        self.functions = functions
        self.types: dict[str, TypeProto] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._values = {"", *taken}
        self._operators = {""}
        self._counts: dict[str, int] = {}

    # --- graphs

    def graph(self, graph: GraphProto, scope: Scope, types: Mapping[str, TypeProto]) -> OperatorGraph:
        """A graph or body in its own scope; `types` are those of its inputs. The result has no types yet."""
        inputs = tuple((name, self._define(name, scope, type_)) for name, type_ in types.items())
        self.initializers(graph, scope)
        operators = self.walk(live_nodes(graph), scope)
        outputs = tuple((name, scope.value(name)) for name in output_names(graph))
        return OperatorGraph(graph.name, {}, inputs, outputs, prune(operators, outputs))

    def walk(self, nodes: Iterable[NodeProto], scope: Scope) -> list[Operator]:
        """The operators that the nodes come to; what they define is put into the scope."""
        operators: list[Operator] = []
        regions = [Region(iter(nodes), scope)]
        while regions:
            region = regions[-1]
            node = next(region.nodes, None)
            if node is None:
                regions.pop().close()
                continue
            node = _resolved(node, region.scope)
            inlined = self._inlined(node, region.scope)
            if inlined is not None:
                regions.append(inlined)
            elif (steps := unrolled(self, node, region.scope)) is not None:
                operators += steps
            elif (operator := self._operator(node, region.scope)) is not None:
                operators.append(operator)
        return operators

    def initializers(self, graph: GraphProto, scope: Scope) -> None:
        """Puts those that are in use into the scope, as constants."""
        needed = {name for node in live_nodes(graph) for name in reads(node)} | set(output_names(graph))
        for tensor in graph.initializer:
            if tensor.name in needed:
                self.define_constant(tensor.name, scope, tensor_array(tensor))
        for sparse in graph.sparse_initializer:
            if sparse.values.name in needed:
                self.define_constant(sparse.values.name, scope, sparse_array(sparse))

    # --- names

    def _define(self, name: str, scope: Scope, type_: TypeProto) -> str:
        value = self._fresh(scope.prefix + name, self._values)
        scope.names[name] = value
        self.types[value] = type_
        return value

    def define_constant(self, name: str, scope: Scope, array: np.ndarray) -> None:
        """A value that is known, under a name of the scope."""
        self.constants[self._define(name, scope, proto_of_array(array))] = array

    def _operator_name(self, node: NodeProto, scope: Scope) -> str:
        name = scope.prefix + (node.name or f"{node.op_type}_{self._counts.get(node.op_type, 0)}")
        self._counts[node.op_type] = self._counts.get(node.op_type, 0) + 1
        return self._fresh(name, self._operators)

    @staticmethod
    def _fresh(name: str, taken: set[str]) -> str:
        unique, count = name, 1
        while unique in taken:
            unique, count = f"{name}_{count}", count + 1
        taken.add(unique)
        return unique

    # --- nodes that others take the place of

    def _inlined(self, node: NodeProto, scope: Scope) -> Region | None:
        function = self.functions.get(function_key(node))
        if function is not None:
            return self._call(node, function, scope)
        if standard_domain(node.domain) == "" and node.op_type in CONTROL:
            version = scope.opsets[""]
            if node.op_type == "Scan" and version < 9:
                raise UnsupportedModel(f"{node_label(node)}: Scan of operator set {version} is not supported")
            check_bodies(node)
        if standard_domain(node.domain) == "" and node.op_type == "If":
            condition = self.constants.get(scope.value(node.input[0]))
            if condition is not None:
                return self._branch(node, "then_branch" if condition.any() else "else_branch", scope)
        return None

    def _call(self, node: NodeProto, function: FunctionProto, scope: Scope) -> Region:
        given = [scope.value(n) if n else "" for n in node.input]
        if len(given) > len(function.input) or len(node.output) > len(function.output):
            raise InvalidModel(f"{node_label(node)} has more inputs or outputs than its function")
        absent = [""] * (len(function.input) - len(given))
        inner = Scope(
            opsets=opset_versions(function),
            names=dict(zip(function.input, given + absent, strict=True)),
            arguments={a.name: a for a in [*function.attribute_proto, *node.attribute]},
            prefix=self._operator_name(node, scope) + "/",
            declared={v.name: v.type for v in function.value_info},
        )
        results = tuple((o, i) for o, i in zip(node.output, function.output, strict=False) if o)
        return Region(iter(live_nodes(function)), inner, results, scope)

    def _branch(self, node: NodeProto, name: str, scope: Scope) -> Region:
        graph = next(a.g for a in node.attribute if a.name == name)
        inner = scope.inner(graph)
        self.initializers(graph, inner)
        results = tuple((o, i) for o, i in zip(node.output, output_names(graph), strict=True) if o)
        return Region(iter(live_nodes(graph)), inner, results, scope)

    # --- one node

    def _operator(self, node: NodeProto, scope: Scope) -> Operator | None:
        """The node as an operator; None when its outputs became constants."""
        domain = standard_domain(node.domain)
        version = scope.opsets.get(domain, 0)
        if domain == "" and node.op_type == "Constant":
            self.define_constant(node.output[0], scope, constant_node_array(node))
            return None
        values = {n: scope.value(n) for n in reads(node)}
        types = {n: self.types[v] for n, v in values.items()}
        known = {n: self.constants[v] for n, v in values.items() if v in self.constants}
        control = domain == "" and node.op_type in CONTROL
        try:
            outputs = self._output_types(node, scope, domain, version, types, known)
        except InvalidModel:  # the evaluator is less strict about what is known anyway
            outputs = {o: TypeProto() for o in node.output if o}
            if domain or _folded(node, version, types, known, outputs) is None:
                raise
        if domain == "" and (folded := _folded(node, version, types, known, outputs)) is not None:
            for name, array in folded.items():
                self.define_constant(name, scope, array)
            return None
        attributes = {a.name: a.g if a.HasField("g") else attribute_value(a) for a in node.attribute}
        if control:
            bodies = self._bodies(node, scope, types)
            outputs = control_output_types(node, bodies, types, known, self.types, self.constants)
            attributes |= bodies
        inputs = [values[n] if n else "" for n in node.input]
        while inputs and not inputs[-1]:
            inputs.pop()
        return Operator(
            node.op_type,
            domain,
            version,
            self._operator_name(node, scope),
            tuple(inputs),
            tuple(self._define(o, scope, outputs[o]) if o else "" for o in node.output),
            attributes,
        )

    def _output_types(
        self,
        node: NodeProto,
        scope: Scope,
        domain: str,
        version: int,
        types: Mapping[str, TypeProto],
        known: Mapping[str, np.ndarray],
    ) -> dict[str, TypeProto]:
        named = [o for o in node.output if o]
        if domain == "" and node.op_type in CONTROL:
            return {o: TypeProto() for o in named}
        schema = find_schema(node.op_type, version, domain)
        if schema is None and (domain == contrib.DOMAIN or node.op_type == "SimplifiedLayerNormalization"):
            found = contrib.contrib_outputs(node, types)
            if found is not None:
                return found
        if schema is None:
            return {o: scope.declared.get(o, TypeProto()) for o in named}
        return infer_outputs(node, schema, scope.opsets, types, known)

    def _bodies(self, node: NodeProto, scope: Scope, types: Mapping[str, TypeProto]) -> dict[str, OperatorGraph]:
        found: dict[str, OperatorGraph] = {}
        for a in node.attribute:
            if a.HasField("g"):
                names = [i.name for i in a.g.input]
                given = body_input_types(node, types)
                found[a.name] = self.graph(a.g, scope.inner(a.g), dict(zip(names, given, strict=True)))
        return found


def _resolved(node: NodeProto, scope: Scope) -> NodeProto:
    """In a function: the node with the attributes of the call, and without the inputs that the call leaves out."""
    if scope.arguments is None:
        return node
    result = NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            result.attribute.append(a)
        elif a.ref_attr_name in scope.arguments:
            copy = AttributeProto()
            copy.CopyFrom(scope.arguments[a.ref_attr_name])
            copy.name = a.name
            result.attribute.append(copy)
    for k, name in enumerate(node.input):
        if name and not scope.value(name):
            result.input[k] = ""
    return result


def _folded(
    node: NodeProto,
    version: int,
    types: Mapping[str, TypeProto],
    known: Mapping[str, np.ndarray],
    outputs: Mapping[str, TypeProto],
) -> dict[str, np.ndarray] | None:
    """The outputs of a standard node, when they are known."""
    if node.op_type in ("Shape", "Size"):
        value = _shape_or_size(node, types[node.input[0]])
        return None if value is None else {node.output[0]: read_only(value)}
    if node.op_type == "OptionalHasElement":
        present = any(node.input)
        tensor = present and types[node.input[0]].HasField("tensor_type")
        return {node.output[0]: read_only(np.array(present))} if tensor or not present else None
    if node.op_type == "CastLike" and node.input[1] not in known:  # only the type of the second input counts
        dtype = element_dtype(types[node.input[1]].tensor_type.elem_type)
        known = known if dtype is None else {**known, node.input[1]: np.zeros((), dtype.numpy)}
    if not types or any(name not in known for name in types):
        return None
    return fold(node, version, known, outputs)


def _shape_or_size(node: NodeProto, type_: TypeProto) -> np.ndarray | None:
    if node.op_type == "Size":
        shape = static_shape(type_)
        return None if shape is None else np.array(np.prod(shape, dtype=np.int64))
    dims = dimensions(type_)
    if dims is None:
        return None
    bounds = {a.name: a.i for a in node.attribute}
    chosen = dims[slice(bounds.get("start"), bounds.get("end"))]
    if any(isinstance(d, str) for d in chosen):
        return None
    return np.array(chosen, np.int64)
