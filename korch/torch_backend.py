"""`torch.compile(module, backend="korch")`.

PyTorch traces and splits a program (Dynamo), and makes each part functional (AOTAutograd), so that mutation and
aliasing are its own. What arrives here is a graph of ATen operators. It is made anew for the concrete shapes of a
call, cut where an operator is not supported, and each piece is optimized; the rest runs as before.

Parameters and buffers are constants of an optimized piece as long as they do not change: their version counters are
compared at every call, and those that have changed become inputs. A write that bypasses the counters
(`parameter.data`, NumPy views) is not seen; the option `freeze=False` makes all of them inputs.
"""

from __future__ import annotations

import operator
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from korch.errors import InvalidInput, KorchError
from korch.fission.aten.fission import refused_nodes
from korch.fission.aten.table import LAYOUT
from korch.importers.torch import as_numpy, as_tensor, decompositions, nodes_of, read_graph
from korch.model import Model
from korch.pipeline import Options, optimize_model

Function = Callable[..., Any]

VIEWS = frozenset({*(f"aten.{name}" for name in LAYOUT), str(operator.getitem), "aten.alias.default"})
"""Operators that alone are not worth a kernel: PyTorch mostly does them without touching memory."""


@dataclass(frozen=True)
class Settings:
    """What `torch.compile(..., options=...)` may say.

    - `budget`: seconds for measuring and selection of each optimized piece, None for no limit;
    - `threads`: 0 is all that the process may use; `numerics` is `strict` or `default`;
    - `freeze`: whether parameters that do not change become constants;
    - `variants`: how many shapes and sets of parameters a graph is optimized for; further shapes run in PyTorch.
    """

    budget: float | None = 60.0
    threads: int = 0
    numerics: str = "default"
    freeze: bool = True
    variants: int = 16


def korch_backend(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Function:
    """A backend of torch.compile; PyTorch finds it by its entry point, under the name `korch`."""
    settings = _settings(options or {})
    if torch.is_grad_enabled() and any(_needs_gradient(x) for x in (*inputs, *module.parameters())):
        warnings.warn(
            "korch optimizes inference, and this graph records gradients: it runs in PyTorch. Call the module under "
            "torch.no_grad() or torch.inference_mode()",
            stacklevel=2,
        )
        return module

    def compile(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Function:
        return boxed(Compiled(graph, _static_inputs() if settings.freeze else frozenset(), settings))

    backend = aot_autograd(fw_compiler=compile, decompositions=decompositions(core_aten_decompositions()))
    return backend(module, inputs)


def _settings(options: Mapping[str, Any]) -> Settings:
    known = Settings.__dataclass_fields__
    if unknown := [name for name in options if name not in known]:
        raise InvalidInput(f"korch has no option {', '.join(unknown)}; there are: {', '.join(known)}")
    return Settings(**options)


def _needs_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _static_inputs() -> frozenset[int]:
    """The positions of parameters and buffers which the graph itself does not change."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return frozenset()
    changed = {k for k, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
    return frozenset(metadata.static_input_indices or ()) - changed


def boxed(compiled: Compiled) -> Function:
    """In the form that AOTAutograd calls: one list, which is emptied so that inputs can be freed."""

    def run(arguments: list[Any]) -> Any:
        inputs = list(arguments)
        arguments.clear()
        return compiled(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class Frozen:
    """A parameter in the state in which it became a constant."""

    tensor: weakref.ref[torch.Tensor]
    version: int

    def matches(self, tensor: torch.Tensor) -> bool:
        return self.tensor() is tensor and self.version == tensor._version


@dataclass(frozen=True)
class Variant:
    """A graph for one set of shapes and one state of the parameters among its inputs."""

    frozen: Mapping[int, Frozen]
    run: Function

    def matches(self, inputs: Sequence[Any]) -> bool:
        return all(frozen.matches(inputs[k]) for k, frozen in self.frozen.items())


@dataclass
class Compiled:
    """One functional graph; it is specialized when it is called."""

    graph: torch.fx.GraphModule
    static: frozenset[int]
    settings: Settings
    variants: dict[object, list[Variant]] = field(default_factory=dict[object, list[Variant]])
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __call__(self, inputs: list[Any]) -> Any:
        key = self._key(inputs)
        for variant in self.variants.get(key, ()):
            if variant.matches(inputs):
                return variant.run(*inputs)
        with self.lock:
            run = self._variant(inputs)
        return run(*inputs)

    def _key(self, inputs: Sequence[Any]) -> object:
        """What the traced graph depends on: shapes and strides of tensors that are no constants, and numbers."""
        return tuple(
            (x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x
            for k, x in enumerate(inputs)
            if k not in self.static
        )

    def _variant(self, inputs: Sequence[Any]) -> Function:
        self._thaw(inputs)
        key = self._key(inputs)
        for variant in self.variants.get(key, ()):  # another thread was first
            if variant.matches(inputs):
                return variant.run
        if sum(map(len, self.variants.values())) >= self.settings.variants:
            warnings.warn(
                f"a graph has been optimized for {self.settings.variants} shapes; further ones run in PyTorch (option "
                "`variants` raises the number)",
                stacklevel=2,
            )
            return self.graph
        frozen = {k: Frozen(weakref.ref(inputs[k]), inputs[k]._version) for k in self.static}
        run = specialize(self.graph, inputs, self.static, self.settings)
        self.variants.setdefault(key, []).append(Variant(frozen, run))
        return run

    def _thaw(self, inputs: Sequence[Any]) -> None:
        """Parameters that have no version, have changed, or differ from call to call too often become inputs."""
        known = [v for variants in self.variants.values() for v in variants]
        changed = {k for k in self.static if not _has_version(inputs[k])}
        for k in self.static - changed:
            seen = [v.frozen[k] for v in known]
            if any(f.tensor() is inputs[k] and not f.matches(inputs[k]) for f in seen):
                changed.add(k)
        if known and sum(map(len, self.variants.values())) >= self.settings.variants:
            changed |= {k for k in self.static if any(v.frozen[k].tensor() is not inputs[k] for v in known)}
        if changed:
            self.static -= changed
            self.variants.clear()


def _has_version(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_inference()


def specialize(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], static: frozenset[int], settings: Settings
) -> Function:
    """The graph for inputs of exactly these shapes, its supported parts optimized; `static` ones are constants."""
    with torch.no_grad(), torch.inference_mode(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
        traced = make_fx(graph, tracing_mode="fake")(*plain)
    traced.graph.eliminate_dead_code()
    shared = separate_shared_views(traced)
    supported = supported_nodes(traced) - shared
    partitioner = CapabilityBasedPartitioner(traced, _Support(supported), allows_single_node_partition=True)
    partitions = [p for p in partitioner.propose_partitions() if any(str(n.target) not in VIEWS for n in p.nodes)]
    fused = partitioner.fuse_partitions(partitions)
    placeholders = [node for node in fused.graph.nodes if node.op == "placeholder"]
    held = {placeholders[k]: inputs[k] for k in static}
    for node in list(fused.graph.nodes):
        if node.op == "call_module":
            part = getattr(fused, node.target)
            setattr(fused, node.target, optimized(part, node, held, settings))
    fused.recompile()
    return fused


class _Support(OperatorSupportBase):
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return node.name in self.names


def separate_shared_views(traced: torch.fx.GraphModule) -> frozenset[str]:
    """Outputs that are views of one tensor get view calls of their own, which PyTorch makes, so that they share memory.

    Returns the names of those calls. What else uses the views is left as it is.
    """
    (end,) = (node for node in traced.graph.nodes if node.op == "output")
    results = [x for x in end.args[0] if isinstance(x, torch.fx.Node)]
    bases = [_base(node) for node in dict.fromkeys(results)]
    made: dict[torch.fx.Node, torch.fx.Node] = {}

    def copied(node: torch.fx.Node) -> torch.fx.Node:
        if not _is_view(node) or bases.count(_base(node)) < 2:
            return node
        if node not in made:
            source = copied(node.args[0])  # type: ignore[arg-type]
            with traced.graph.inserting_before(end):
                made[node] = traced.graph.node_copy(node, lambda x: source if x is node.args[0] else x)
        return made[node]

    end.args = (tuple(copied(x) if isinstance(x, torch.fx.Node) else x for x in end.args[0]),)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return frozenset(node.name for node in made.values())


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor whose memory a chain of views shows."""
    while _is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_view(node: torch.fx.Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.args[0])  # type: ignore[arg-type]
    return isinstance(node.target, OpOverload) and node.target.is_view


def supported_nodes(traced: torch.fx.GraphModule) -> frozenset[str]:
    """The calls that fission takes, and the selections of their results."""
    program = nodes_of(traced)
    refused = refused_nodes(program)
    found = {node.name for node in program.nodes if node.name not in refused and node.results}
    for node in traced.graph.nodes:
        if node.target is operator.getitem and node.args[0].name in found:
            found.add(node.name)
    return frozenset(found)


def optimized(
    part: torch.fx.GraphModule, call: torch.fx.Node, held: Mapping[torch.fx.Node, torch.Tensor], settings: Settings
) -> torch.nn.Module:
    """A part of a graph as an optimized model; the part itself, with a warning, where that fails."""
    placeholders = [node for node in part.graph.nodes if node.op == "placeholder"]
    (end,) = (node for node in part.graph.nodes if node.op == "output")
    results = end.args[0] if isinstance(end.args[0], tuple | list) else (end.args[0],)
    constants: dict[str, torch.Tensor] = {}
    live: list[int] = []
    for k, (inner, outer) in enumerate(zip(placeholders, call.args, strict=True)):
        constant = _constant(call.graph.owning_module, outer, held)
        if constant is None:
            live.append(k)
        else:
            constants[inner.name] = constant
    names = [placeholders[k].name for k in live]
    options = Options(threads=settings.threads, numerics=settings.numerics, budget=settings.budget)
    try:
        inputs = [(name, name) for name in names]
        program = read_graph(part, inputs, [f"output_{k}" for k in range(len(results))], constants, "torch.compile")
        model = optimize_model(program, options)
    except KorchError as error:
        warnings.warn(f"a part of the graph runs in PyTorch, because it could not be optimized: {error}", stacklevel=2)
        return part
    types = [node.meta["val"] for node in results]
    strides = tuple(tuple(t.stride()) for t in types)
    return Part(model, tuple(live), strides, single=not isinstance(end.args[0], tuple | list))


def _constant(
    module: torch.nn.Module | None, node: Any, held: Mapping[torch.fx.Node, torch.Tensor]
) -> torch.Tensor | None:
    if node in held:
        return held[node]
    found = getattr(module, str(node.target)) if node.op == "get_attr" else None
    return found if isinstance(found, torch.Tensor) else None


class Part(torch.nn.Module):
    """An optimized part of a graph: tensors in, fresh tensors out, in the strides that PyTorch expects."""

    def __init__(self, model: Model, live: tuple[int, ...], strides: tuple[tuple[int, ...], ...], single: bool) -> None:
        super().__init__()
        self.model = model
        self.live = tuple(zip(model.inputs, live, strict=True))
        self.strides = strides
        self.single = single

    def forward(self, *inputs: torch.Tensor) -> Any:
        arrays = {name: as_numpy(inputs[k]) for name, k in self.live}
        found = self.model.run(arrays).values()
        results = [_strided(as_tensor(array), stride) for array, stride in zip(found, self.strides, strict=True)]
        return results[0] if self.single else tuple(results)


def _strided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    sizes = zip(tensor.shape, tensor.stride(), stride, strict=True)
    if all(n == 1 or have == want for n, have, want in sizes):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
