"""Fission: every operator of a model becomes a few primitives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from korch.errors import InvalidModel, UnsupportedModel
from korch.fission.builder import Builder
from korch.fission.control import CONTROL, Step, Then
from korch.fission.operators import OPERATORS
from korch.fission.reading import Refused
from korch.fission.tensor import Tensor, constant
from korch.importers.onnx import expand_function_operator
from korch.importers.operators import Operator, OperatorGraph
from korch.ir.graph import Graph
from korch.ir.types import TensorType

NAMED_NODES = 4
"""Nodes that an error names for each unsupported operator; `unsupported` has all."""


@dataclass(frozen=True)
class Refusal:
    """One kind of use that is not supported: an operator, why, and the nodes."""

    op_type: str
    domain: str
    nodes: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        operator = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        named = ", ".join(self.nodes[:NAMED_NODES])
        more = len(self.nodes) - NAMED_NODES
        rest = f" and {more} more" if more > 0 else ""
        return f"{operator} in {len(self.nodes)} node{'s' * (len(self.nodes) > 1)} ({named}{rest}): {self.reason}"


def fission(operators: OperatorGraph) -> Graph:
    """The model as a graph of primitives, with constants evaluated and equal parts shared.

    UnsupportedModel names everything that stands against it at once. InvalidModel: an operator does not fit its
    inputs.
    """
    state = _decompose(operators)
    if state.refused:
        raise UnsupportedModel(
            f"operators that are not supported: {'; '.join(map(str, state.refusals()))} "
            "(replace them, or cut the model before them)"
        )
    return state.builder.finish((name, state.values[value].value) for name, value in operators.outputs)


def unsupported(operators: OperatorGraph) -> list[Refusal]:
    """What `fission` would refuse, in the model's order; empty when it would succeed."""
    return _decompose(operators).refusals()


@dataclass(frozen=True)
class _State:
    """A model under decomposition.

    - `types` is what the model says of its values, `values` the tensors that they have become.
    - `doubtful` are the graph's values that stand for what refused operators would give, and what was made of
      these: everything after a refusal is looked at too, and what fails because of it is no refusal of its own.
    """

    builder: Builder
    types: dict[str, TensorType]
    values: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    doubtful: set[str] = field(default_factory=set[str])
    refused: dict[tuple[str, str, str], list[str]] = field(default_factory=dict[tuple[str, str, str], list[str]])

    def refusals(self) -> list[Refusal]:
        found = self.refused.items()
        return [Refusal(op_type, domain, tuple(nodes), reason) for (op_type, domain, reason), nodes in found]


def _decompose(operators: OperatorGraph) -> _State:
    """One pass, with a stack of what is still to do: bodies of operators are put in the place of these."""
    types = dict(operators.types)
    state = _State(Builder(types), types)
    _add_constants(state, operators)
    for name, value in operators.inputs:
        state.values[value] = Tensor(state.builder, state.builder.input(name, types[value]))
    pending: list[Step] = list(reversed(operators.operators))
    while pending:
        step = pending.pop()
        op = step.op if isinstance(step, Then) else step
        state.builder.origin = op.name
        try:
            following = _do(state, step)
            if not following:
                _check(state, op)
        except Refused as refused:
            _refuse(state, op, str(refused), refused.certain)
        except ValueError as error:
            if not _doubts(state, op):
                message = f"the operator {op.op_type} {op.name!r} does not fit its inputs: {error}"
                raise InvalidModel(message) from error
            _refuse(state, op, str(error))
        else:
            if not following and _doubts(state, op):
                state.doubtful.update(state.values[v].value for v in op.outputs if v)
            pending.extend(reversed(following))
    return state


def _add_constants(state: _State, operators: OperatorGraph) -> None:
    for value, array in operators.constants.items():
        state.values[value] = constant(state.builder, array)


def _do(state: _State, step: Step) -> Sequence[Step]:
    """One step; it binds the operator's outputs, or gives the steps that will."""
    if isinstance(step, Then):
        return step.next()
    key = (step.domain, step.op_type)
    if key in OPERATORS:
        inputs = [state.values[v] if v else None for v in step.inputs]
        found = OPERATORS[key](state.builder, step, *inputs)
        _bind(state, step, (found,) if isinstance(found, Tensor) else found)
        return ()
    if key in CONTROL:
        for body in step.attributes.values():
            if isinstance(body, OperatorGraph):
                state.types.update(body.types)
        return CONTROL[key](step, state.values)
    return _standard_body(state, step)


def _bind(state: _State, op: Operator, outputs: Sequence[Tensor]) -> None:
    if len(outputs) < len(op.outputs):
        raise Refused(f"only {len(outputs)} of its outputs are supported, {len(op.outputs)} are used")
    state.values.update({v: t for v, t in zip(op.outputs, outputs, strict=False) if v})


def _standard_body(state: _State, op: Operator) -> Sequence[Step]:
    """The operators by which the standard defines this one."""
    known = {v: a for v in op.inputs if v and (a := state.values[v].known) is not None}
    body = expand_function_operator(op, state.types, known)
    if body is None:
        raise Refused("it has no decomposition", certain=True)
    state.types.update(body.types)
    _add_constants(state, body)
    state.values.update({name: state.values[value] for name, value in body.inputs})

    def bind() -> Sequence[Step]:
        state.values.update({name: state.values[value] for name, value in body.outputs})
        return ()

    return (*body.operators, Then(op, bind))


def _check(state: _State, op: Operator) -> None:
    for value in filter(None, op.outputs):
        found, declared = state.values[value].type, state.types[value]
        if found != declared:
            raise Refused(f"its output is {found} here, but the model says {declared}")


def _refuse(state: _State, op: Operator, reason: str, certain: bool = False) -> None:
    """Recorded, unless the cause may be a placeholder among the inputs."""
    if certain or not _doubts(state, op):
        state.refused.setdefault((op.op_type, op.domain, reason), []).append(op.name)
    for value in filter(None, op.outputs):
        placeholder = state.builder.input(value, state.types[value])
        state.doubtful.add(placeholder)
        state.values[value] = Tensor(state.builder, placeholder)


def _doubts(state: _State, op: Operator) -> bool:
    return any(state.values[v].value in state.doubtful for v in op.inputs if v)
