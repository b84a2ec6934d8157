"""Fission: every operator of a model becomes a few primitives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from korch.errors import InvalidModel, UnsupportedModel
from korch.fission.builder import Builder
from korch.fission.operators import OPERATORS
from korch.fission.reading import Refused
from korch.fission.tensor import Tensor, constant
from korch.importers.onnx import expand_function_operator
from korch.importers.operators import Operator, OperatorGraph
from korch.ir.graph import Graph

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

    UnsupportedModel names everything that stands against it at once. InvalidModel: an operator is ill-typed.
    """
    run = _Run(operators)
    refusals = run.refusals()
    if refusals:
        raise UnsupportedModel(
            f"the model has operators that are not supported: {'; '.join(map(str, refusals))} "
            "(replace them, or cut the model before them)"
        )
    return run.builder.finish((name, run.values[value].value) for name, value in operators.outputs)


def unsupported(operators: OperatorGraph) -> list[Refusal]:
    """What `fission` would refuse, in the model's order; empty when it would succeed."""
    return _Run(operators).refusals()


@dataclass(frozen=True)
class _Bind:
    """After the body of an expanded operator: its outputs are these values."""

    outputs: tuple[tuple[str, str], ...]


class _Run:
    """One pass over a model. What is refused leaves placeholders, so that everything after it is still looked at."""

    def __init__(self, operators: OperatorGraph) -> None:
        self.types = dict(operators.types)
        self.builder = Builder(self.types)
        self.values: dict[str, Tensor] = {}
        self._doubtful: set[str] = set()
        self._refused: dict[tuple[str, str, str], list[str]] = {}
        self._add_constants(operators)
        for name, value in operators.inputs:
            self.values[value] = Tensor(self.builder, self.builder.input(name, operators.types[value]))
        # A stack: an operator without a function of its own is replaced by the operators of its standard body.
        pending: list[Operator | _Bind] = list(reversed(operators.operators))
        while pending:
            step = pending.pop()
            if isinstance(step, _Bind):
                self.values.update({name: self.values[value] for name, value in step.outputs})
            elif (step.domain, step.op_type) in OPERATORS:
                self._apply(step)
            else:
                pending.extend(reversed(self._expanded(step)))

    def refusals(self) -> list[Refusal]:
        return [
            Refusal(op_type, domain, tuple(nodes), reason) for (op_type, domain, reason), nodes in self._refused.items()
        ]

    def _add_constants(self, operators: OperatorGraph) -> None:
        for value, array in operators.constants.items():
            self.values[value] = constant(self.builder, array)

    def _apply(self, op: Operator) -> None:
        self.builder.origin = op.name
        inputs = [self.values[v] if v else None for v in op.inputs]
        try:
            found = OPERATORS[op.domain, op.op_type](self.builder, op, *inputs)
            outputs = (found,) if isinstance(found, Tensor) else found
            self._check(op, outputs)
        except Refused as refused:
            self._refuse(op, str(refused))
        except ValueError as error:
            if self._doubtful.isdisjoint(op.inputs):
                raise InvalidModel(f"the operator {op.op_type} {op.name!r} does not fit its inputs: {error}") from error
            self._refuse(op, str(error))
        else:
            self.values.update({v: t for v, t in zip(op.outputs, outputs, strict=False) if v})

    def _check(self, op: Operator, outputs: tuple[Tensor, ...]) -> None:
        if len(outputs) < len(op.outputs):
            raise Refused(f"only {len(outputs)} of its outputs are supported, {len(op.outputs)} are used")
        for value, tensor in zip(op.outputs, outputs, strict=False):
            if value and self.types[value] != tensor.type:
                raise Refused(f"its output is {tensor.type} here, but the model says {self.types[value]}")

    def _refuse(self, op: Operator, reason: str, certain: bool = False) -> None:
        """Recorded, unless the cause may be a placeholder among the inputs."""
        if certain or self._doubtful.isdisjoint(op.inputs):
            self._refused.setdefault((op.op_type, op.domain, reason), []).append(op.name)
        for value in filter(None, op.outputs):
            self._doubtful.add(value)
            self.values[value] = Tensor(self.builder, self.builder.input(value, self.types[value]))

    def _expanded(self, op: Operator) -> Sequence[Operator | _Bind]:
        known = {v: a for v in op.inputs if v and (a := self.values[v].known) is not None}
        body = expand_function_operator(op, self.types, known)
        if body is None:
            self._refuse(op, "it has no decomposition", certain=True)
            return ()
        self.types.update(body.types)
        self._add_constants(body)
        self.values.update({name: self.values[value] for name, value in body.inputs})
        return (*body.operators, _Bind(body.outputs))
