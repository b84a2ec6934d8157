"""If, Loop and Scan: branches are both computed and chosen between, loops of a known length are unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from korch.fission.reading import Refused, integer, integers, single
from korch.fission.tensor import Tensor, concat, constant, where
from korch.importers.operators import Operator, OperatorGraph

UNROLLED = 1024
"""The greatest number of iterations that are unrolled."""

Values = dict[str, Tensor]
"""The tensors of the model's values; a body of a loop sets its own again in each iteration."""


@dataclass(frozen=True)
class Then:
    """Something to do for an operator after the steps before it; it gives the steps to do next."""

    op: Operator
    next: Callable[[], Sequence[Step]]


Step = Operator | Then


def If(op: Operator, values: Values) -> Sequence[Step]:
    """The branch that is taken, when that is known; else both, which must give the same types."""
    condition = values[op.inputs[0]].reshape(())
    branches = [_body(op, "then_branch"), _body(op, "else_branch")]
    if condition.known is not None:
        branch = branches[0] if condition.known else branches[1]
        return (*branch.operators, Then(op, lambda: _bind(op, values, [values[v] for _, v in branch.outputs])))

    def choose() -> Sequence[Step]:
        taken, other = ([values[v] for _, v in branch.outputs] for branch in branches)
        for name, a, b in zip(op.outputs, taken, other, strict=False):
            if name and a.type != b.type:
                raise Refused(f"its branches give {a.type} and {b.type}")
        return _bind(op, values, [where(condition, a, b) for a, b in zip(taken, other, strict=True)])

    return (*branches[0].operators, *branches[1].operators, Then(op, choose))


def Loop(op: Operator, values: Values) -> Sequence[Step]:
    """Unrolled: the number of iterations, and whether to go on after each, must be known."""
    body = _body(op, "body")
    given = [values[v] if v else None for v in op.inputs]
    limit = UNROLLED + 1 if given[0] is None else single(given[0], "trip count")
    carried = [t for t in given[2:] if t is not None]
    first = given[1] if len(given) > 1 else None
    return _iterate(_Loop(op, values, body, limit, carried, first), 0, carried, [])


@dataclass(frozen=True)
class _Loop:
    op: Operator
    values: Values
    body: OperatorGraph
    limit: int
    initial: list[Tensor]
    condition: Tensor | None


def _iterate(
    loop: _Loop, i: int, carried: list[Tensor], collected: list[list[Tensor]], going: Tensor | None = None
) -> Sequence[Step]:
    """Iteration i, or what follows the last one; `collected` has the scan outputs of each iteration so far."""
    going = going or loop.condition
    goes_on = i < loop.limit and (going is None or _truth(going))
    if not goes_on:
        results = carried + [_stacked(list(parts), 0, False) for parts in zip(*collected, strict=True)]
        if len(results) < len(loop.op.outputs):
            raise Refused("it does not run, and what it would collect is empty")
        return _bind(loop.op, loop.values, results)
    if i >= UNROLLED:
        raise Refused(f"more than {UNROLLED} iterations are not unrolled")
    builder = next(iter(loop.values.values())).builder
    counter = constant(builder, np.array(i, np.int64))
    inputs = [counter, going or constant(builder, np.array(True)), *carried]
    loop.values.update({v: t for (_, v), t in zip(loop.body.inputs, inputs, strict=True)})

    def leave() -> Sequence[Step]:
        results = [loop.values[v] for _, v in loop.body.outputs]
        count = len(loop.initial)
        return _iterate(loop, i + 1, results[1 : 1 + count], [*collected, results[1 + count :]], results[0])

    return (*loop.body.operators, Then(loop.op, leave))


def _truth(condition: Tensor) -> bool:
    if condition.known is None:
        raise Refused("how often it runs depends on the model's inputs")
    return bool(condition.known.all())


def Scan(op: Operator, values: Values) -> Sequence[Step]:
    """Unrolled along the scanned axis."""
    body = _body(op, "body")
    count = integer(op, "num_scan_inputs")
    given = [values[v] for v in op.inputs]
    states, sequences = given[: len(given) - count], given[len(given) - count :]
    axes = [t.axis(a) for t, a in zip(sequences, integers(op, "scan_input_axes", (0,) * count), strict=True)]
    directions = integers(op, "scan_input_directions", (0,) * count)
    length = sequences[0].shape[axes[0]]
    if length > UNROLLED:
        raise Refused(f"more than {UNROLLED} iterations are not unrolled")
    outputs = len(body.outputs) - len(states)
    out_axes = integers(op, "scan_output_axes", (0,) * outputs)
    out_directions = integers(op, "scan_output_directions", (0,) * outputs)

    def enter(i: int, states: list[Tensor], collected: list[list[Tensor]]) -> Sequence[Step]:
        if i == length:
            columns = zip(zip(*collected, strict=True), out_axes, out_directions, strict=True)
            stacked = [_stacked(list(parts), axis, bool(back)) for parts, axis, back in columns]
            return _bind(op, values, [*states, *stacked])
        parts = [
            t.take(axis, [length - 1 - i if back else i]).reshape(n for d, n in enumerate(t.shape) if d != axis)
            for t, axis, back in zip(sequences, axes, directions, strict=True)
        ]
        values.update({v: t for (_, v), t in zip(body.inputs, [*states, *parts], strict=True)})

        def leave() -> Sequence[Step]:
            results = [values[v] for _, v in body.outputs]
            return enter(i + 1, results[: len(states)], [*collected, results[len(states) :]])

        return (*body.operators, Then(op, leave))

    return enter(0, states, [])


def _stacked(parts: list[Tensor], axis: int, backward: bool) -> Tensor:
    """Parts of one type along a new axis."""
    axis %= parts[0].rank + 1
    ordered = parts[::-1] if backward else parts
    return concat([t.unsqueeze(axis) for t in ordered], axis)


def _body(op: Operator, name: str) -> OperatorGraph:
    body = op.attributes.get(name)
    if not isinstance(body, OperatorGraph):
        raise Refused(f"attribute {name} is no graph")
    return body


def _bind(op: Operator, values: Values, results: Sequence[Tensor]) -> Sequence[Step]:
    values.update({name: tensor for name, tensor in zip(op.outputs, results, strict=False) if name})
    return ()


CONTROL: dict[tuple[str, str], Callable[[Operator, Values], Sequence[Step]]] = {
    ("", "If"): If,
    ("", "Loop"): Loop,
    ("", "Scan"): Scan,
}
