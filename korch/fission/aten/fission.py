"""Fission of a traced PyTorch program: every call of an ATen operator becomes a few primitives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from korch.errors import UnsupportedModel
from korch.fission.aten.call import Call
from korch.fission.aten.table import IGNORED, OPERATORS
from korch.fission.builder import Builder
from korch.fission.fission import Refusal
from korch.fission.reading import Refused
from korch.fission.tensor import Tensor, constant
from korch.importers.aten import Argument, AtenGraph, AtenNode, Ref
from korch.ir.graph import Graph


def fission(program: AtenGraph) -> Graph:
    """The program as a graph of primitives, with constants evaluated and equal parts shared.

    UnsupportedModel names every operator that stands against it.
    """
    state = _decompose(program)
    if state.refused:
        found = "; ".join(map(str, refusals(state.refused)))
        raise UnsupportedModel(
            f"operators that are not supported: {found} (replace them, or use torch.compile(backend='korch'), which "
            "leaves them to PyTorch)"
        )
    return state.builder.finish((name, state.values[value].value) for name, value in program.outputs)


def refused_nodes(program: AtenGraph) -> dict[str, str]:
    """The calls that `fission` would refuse, by name, each with the reason as a clause."""
    return {node.name: reason for node, reason in _decompose(program).refused}


def refusals(refused: Sequence[tuple[AtenNode, str]]) -> list[Refusal]:
    """The refused calls gathered by operator and reason."""
    together: dict[tuple[str, str], list[str]] = {}
    for node, reason in refused:
        together.setdefault((node.target, reason), []).append(node.name)
    return [Refusal(target, "", tuple(nodes), reason) for (target, reason), nodes in together.items()]


@dataclass(frozen=True)
class _State:
    builder: Builder
    values: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    refused: list[tuple[AtenNode, str]] = field(default_factory=list[tuple[AtenNode, str]])


def _decompose(program: AtenGraph) -> _State:
    state = _State(Builder(program.types))
    for value, array in program.constants.items():
        state.values[value] = constant(state.builder, array)
    for name, value in program.inputs:
        state.values[value] = Tensor(state.builder, state.builder.input(name, program.types[value]))
    for node in program.nodes:
        state.builder.origin = node.name
        try:
            _do(state, node)
        except Refused as refused:
            _refuse(state, node, str(refused))
        except ValueError as error:
            _refuse(state, node, f"it does not fit its inputs: {error}")
    return state


def _do(state: _State, node: AtenNode) -> None:
    if node.target in IGNORED:
        return
    if node.refusal:
        raise Refused(node.refusal)
    function = OPERATORS.get(node.target)
    if function is None:
        raise Refused("it has no decomposition")
    if not node.results:
        raise Refused("it returns no tensor")
    args = [_argument(state, a) for a in node.args]
    kwargs = {name: _argument(state, a) for name, a in node.kwargs.items()}
    found = function(Call(state.builder, node), *args, **kwargs)
    results = (found,) if isinstance(found, Tensor) else found
    for k, (value, type) in enumerate(node.results):
        if not value:
            continue
        if k >= len(results):
            raise Refused(f"its result {k} is not supported")
        if results[k].shape != type.shape:
            raise Refused(f"result {k} is {results[k].type} here, but PyTorch says {type}")
        # What is computed in a wider dtype is rounded here, once.
        state.values[value] = results[k].cast(type.dtype)


def _argument(state: _State, argument: Argument) -> object:
    if isinstance(argument, Ref):
        return state.values[argument.value]
    if isinstance(argument, tuple):
        return tuple(_argument(state, a) for a in argument)
    return argument


def _refuse(state: _State, node: AtenNode, reason: str) -> None:
    """Recorded; what follows is looked at too, with placeholders for the results."""
    state.refused.append((node, reason))
    for value, type in node.results:
        if value:
            state.values[value] = Tensor(state.builder, state.builder.input(value, type))
