"""PyTorch programs as ATen graphs: `torch.export`, core decompositions, and the reading of a traced graph.

This is the one importer that needs PyTorch; nothing imports it before a PyTorch model is given.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from korch.errors import InvalidInput, InvalidModel, UnsupportedModel
from korch.fission.aten.table import KEPT
from korch.importers.aten import Argument, AtenGraph, AtenNode, Ref
from korch.ir.types import DType, TensorType

DTYPES: dict[torch.dtype, DType] = {
    torch.float64: DType.FLOAT64,
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int64: DType.INT64,
    torch.int32: DType.INT32,
    torch.int16: DType.INT16,
    torch.int8: DType.INT8,
    torch.uint64: DType.UINT64,
    torch.uint32: DType.UINT32,
    torch.uint16: DType.UINT16,
    torch.uint8: DType.UINT8,
    torch.bool: DType.BOOL,
}

MEMORY_ARGUMENTS = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})
"""Keyword arguments that say where and how a tensor lies, not what it holds."""


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor's memory as an array, strides included; nothing is copied unless the tensor is lazily negated."""
    plain = tensor.detach().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(DType.BFLOAT16.numpy)
    return plain.numpy()


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A row-major, writable array as a tensor of the same memory."""
    if array.dtype == DType.BFLOAT16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def type_of(tensor: torch.Tensor) -> TensorType | None:
    """None for what Korch has no type for: complex and 8-bit floats, sparse tensors, other devices, open sizes."""
    shape = tuple(tensor.shape)
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or any(type(n) is not int for n in shape):
        return None
    dtype = DTYPES.get(tensor.dtype)
    return None if dtype is None else TensorType(dtype, shape)


def decompositions(table: dict[Any, Any]) -> dict[Any, Any]:
    """PyTorch's table of decompositions without what fission knows whole."""
    for name in KEPT:
        _, packet, overload = name.split(".")
        found = getattr(torch.ops.aten, packet, None)
        if found is not None and overload in found.overloads():
            table.pop(getattr(found, overload), None)
    return table


def import_module(module: Any, inputs: Any) -> AtenGraph:
    """A module (in evaluation mode) with example inputs, or an `ExportedProgram`, as an ATen graph.

    `inputs` are the arguments of `forward`: a tuple by position, a mapping by keyword, or one tensor. InvalidInput
    when they are missing or no tensor; InvalidModel when PyTorch cannot export the module; UnsupportedModel when it
    changes an input or a buffer.
    """
    exported = module if isinstance(module, torch.export.ExportedProgram) else _exported(module, inputs)
    if isinstance(module, torch.export.ExportedProgram) and inputs is not None:
        raise InvalidInput("an ExportedProgram has its inputs already; leave `inputs` out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own parts among each other
        exported = exported.run_decompositions(decompositions(torch.export.default_decompositions()))
    _check_pure(exported)
    return _program(exported)


def _exported(module: torch.nn.Module, inputs: Any) -> torch.export.ExportedProgram:
    if inputs is None:
        raise InvalidInput("a PyTorch module needs example inputs: korch.optimize(module, (x,))")
    if module.training:
        raise InvalidInput("the module is in training mode; call module.eval() first")
    args, kwargs = _arguments(inputs)
    if not any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves((args, kwargs))):
        raise InvalidInput("the example inputs hold no tensor; give the arguments of forward as a tuple or a mapping")
    try:
        with torch.no_grad():
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:  # whatever the module's own code raises comes through as well
        reason = str(error).strip().splitlines()
        raise InvalidModel(
            f"torch.export cannot trace the module ({type(error).__name__}: {reason[0] if reason else 'no reason'}); "
            "torch.compile(module, backend='korch') takes what cannot be traced whole"
        ) from error


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def _check_pure(exported: torch.export.ExportedProgram) -> None:
    signature = exported.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise UnsupportedModel(
            f"the module changes {', '.join(changed)} in place, which a .korch model cannot; return the new value as "
            "an output, or use torch.compile(module, backend='korch')"
        )


def _program(exported: torch.export.ExportedProgram) -> AtenGraph:
    signature = exported.graph_signature
    constants = cast(Mapping[str, Any], exported.constants)  # a stand-in for a tensor is held only while tracing
    held: dict[str, torch.Tensor] = {}
    inputs: list[tuple[str, str]] = []
    for spec in signature.input_specs:
        name = getattr(spec.arg, "name", "")
        match spec.kind:
            case torch.export.graph_signature.InputKind.USER_INPUT:
                inputs.append((name, name))
            case torch.export.graph_signature.InputKind.CONSTANT_TENSOR:
                held[name] = constants[spec.target or ""]
            case torch.export.graph_signature.InputKind.PARAMETER | torch.export.graph_signature.InputKind.BUFFER:
                stored = exported.state_dict.get(spec.target or "")
                held[name] = constants[spec.target or ""] if stored is None else stored
            case _:
                raise UnsupportedModel(f"the module holds {name}, a {spec.kind.name}; only tensors are supported")
    names = _output_names(exported)
    return read_graph(exported.graph_module, inputs, names, held, type(exported).__name__)


def _output_names(exported: torch.export.ExportedProgram) -> list[str]:
    """`output` for one; otherwise where each lies in what `forward` returns (`logits`, `past.0.1`, `output_1`)."""
    spec: Any = exported.call_spec.out_spec
    count = spec.num_leaves
    if count == 1:
        return ["output"]
    paths = [path for path, _ in pytree.tree_leaves_with_path(pytree.tree_unflatten(list(range(count)), spec))]
    names: list[str] = []
    for path in paths:
        keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path]
        name = ".".join(keys)
        names.append(f"output_{name}" if keys[0].isdigit() else name)
    return names


def read_graph(
    module: torch.fx.GraphModule,
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[str],
    held: Mapping[str, torch.Tensor],
    name: str,
) -> AtenGraph:
    """A traced graph whose nodes have their results in `meta["val"]`.

    `inputs` are the interface name and the placeholder of each input, `outputs` name the results, and `held` are the
    placeholders that are constants. UnsupportedModel when an input or output is no tensor that Korch has a type for.
    """
    reader = _Reader(held)
    for node in module.graph.nodes:
        reader.read(module, node)
    (last,) = (node for node in module.graph.nodes if node.op == "output")
    results = [x for x in pytree.tree_leaves(last.args[0], is_leaf=lambda x: x is None)]
    ends: list[tuple[str, str]] = []
    for title, result in zip(outputs, results, strict=True):
        if not isinstance(result, torch.fx.Node) or reader.values.get(result.name) not in reader.types:
            raise UnsupportedModel(f"output {title} is {_described(result)}; return tensors only")
        ends.append((title, reader.values[result.name]))
    kept: list[tuple[str, str]] = []
    for title, placeholder in inputs:
        if placeholder in reader.values:
            kept.append((title, reader.values[placeholder]))
        elif placeholder in reader.odd:
            raise UnsupportedModel(f"input {title} is {reader.odd[placeholder]}; give tensors of other dtypes")
    return AtenGraph(name, tuple(kept), tuple(ends), reader.types, tuple(reader.nodes), reader.constants)


def nodes_of(module: torch.fx.GraphModule) -> AtenGraph:
    """A traced graph without outputs, to ask which of its calls are supported."""
    reader = _Reader({})
    for node in module.graph.nodes:
        reader.read(module, node)
    made = {value for node in reader.nodes for value, _ in node.results} | reader.constants.keys()
    inputs = tuple((value, value) for value in reader.types if value not in made and "#" not in value)
    return AtenGraph("", inputs, (), reader.types, tuple(reader.nodes), reader.constants)


def _described(x: object) -> str:
    value = x.meta.get("val") if isinstance(x, torch.fx.Node) else x
    if isinstance(value, torch.Tensor):
        return _described_tensor(value)
    return "absent" if value is None else f"of type {type_name(value)}"


class _Reader:
    """A graph being read: `values` are the value of each node that is one tensor, `odd` describes the others."""

    def __init__(self, held: Mapping[str, torch.Tensor]) -> None:
        self.held = held
        self.values: dict[str, str] = {}
        self.odd: dict[str, str] = {}
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[AtenNode] = []
        self._shared: dict[object, str] = {}

    def read(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        match node.op:
            case "placeholder" if node.name in self.held:
                self._hold(node.name, self.held[node.name])
            case "placeholder":
                self._input(node)
            case "get_attr":
                self._hold(node.name, _attribute(module, str(node.target)))
            case "call_function" if node.target is operator.getitem:
                self._item(node)
            case "call_function":
                self._call(node)
            case _:
                pass

    def _hold(self, name: str, tensor: Any) -> None:
        type = type_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if type is None:
            self.odd[name] = "a constant that Korch has no type for"
            return
        key = (tensor.data_ptr(), tuple(tensor.stride()), str(type)) if tensor.numel() else None
        if key is not None and key in self._shared:
            self.values[name] = self._shared[key]
            return
        array = as_numpy(tensor)
        array.flags.writeable = False
        self.values[name], self.types[name], self.constants[name] = name, type, array
        if key is not None:
            self._shared[key] = name

    def _input(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        type = type_of(value) if isinstance(value, torch.Tensor) else None
        if type is not None:
            self.values[node.name], self.types[node.name] = node.name, type
        elif isinstance(value, torch.Tensor):
            self.odd[node.name] = _described(node)
        elif node.users:
            self.odd[node.name] = f"a number ({type_name(value)})"

    def _item(self, node: torch.fx.Node) -> None:
        source, index = node.args[0], node.args[1]
        assert isinstance(source, torch.fx.Node)
        value = f"{source.name}#{index}"
        if value in self.types:
            self.values[node.name] = value
        else:
            self.odd[node.name] = self.odd.get(source.name, _described(node))

    def _call(self, node: torch.fx.Node) -> None:
        target = str(node.target)
        stated = node.meta.get("val")
        several = isinstance(stated, list | tuple)
        results: list[tuple[str, TensorType]] = []
        refusal = ""
        used = [user.args[1] for user in node.users] if several else []
        for k, value in enumerate(stated if several else [stated]):
            type = type_of(value) if isinstance(value, torch.Tensor) else None
            name = f"{node.name}#{k}" if several else node.name
            if type is not None:
                self.types[name] = type
                results.append((name if not several or k in used else "", type))
            elif isinstance(value, torch.Tensor):
                refusal = f"its result is {_described_tensor(value)}"
            elif not several and value is not None:
                refusal = f"its result is a number ({type_name(value)}) that depends on the inputs"
        if not several and results:
            self.values[node.name] = node.name
        if refusal:
            self.odd[node.name] = refusal.removeprefix("its result is ")
        try:
            args = tuple(self._argument(a) for a in node.args)
            stated_kwargs = {k: v for k, v in node.kwargs.items() if k not in MEMORY_ARGUMENTS}
            kwargs = {k: self._argument(v) for k, v in stated_kwargs.items()}
        except _Unstated as reason:
            args, kwargs, refusal = (), {}, refusal or str(reason)
        if target == "aten.as_strided.default" and not refusal:
            refusal = _strided_refusal(node)
        self.nodes.append(AtenNode(target, node.name, args, kwargs, tuple(results), refusal))

    def _argument(self, x: Any) -> Argument:
        if isinstance(x, torch.fx.Node):
            if x.name not in self.values:
                raise _Unstated(f"an argument is {self.odd.get(x.name, _described(x))}")
            return Ref(self.values[x.name])
        if isinstance(x, torch.dtype):
            return DTYPES.get(x)
        if isinstance(x, list | tuple):
            return tuple(self._argument(y) for y in x)
        if x is None or isinstance(x, int | float | bool | str):
            return x
        if isinstance(x, torch.layout | torch.device | torch.memory_format):
            return None
        raise _Unstated(f"an argument is of type {type_name(x)}")


class _Unstated(Exception):
    """An argument that an ATen graph cannot hold; the message is a clause."""


def type_name(x: object) -> str:
    return type(x).__name__


def _described_tensor(x: torch.Tensor) -> str:
    if any(type(n) is not int for n in x.shape):
        return "a tensor whose size depends on the inputs"
    where = "" if x.device.type == "cpu" and x.layout is torch.strided else f" ({x.layout} on {x.device})"
    return f"a tensor of {str(x.dtype).removeprefix('torch.')}{where}"


def _strided_refusal(node: torch.fx.Node) -> str:
    source = node.args[0]
    value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    if isinstance(value, torch.Tensor) and value.is_contiguous() and value.storage_offset() == 0:
        return ""
    return "its tensor does not lie row-major in memory"


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found
