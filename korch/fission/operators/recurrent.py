"""Recurrent networks, unrolled in time. What does not depend on the state is one matrix product over all steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from korch.fission.builder import Builder
from korch.fission.operators.activation import elu, sigmoid, softplus
from korch.fission.reading import Refused, has, integer, number, text, wide
from korch.fission.tensor import Tensor, concat, where
from korch.importers.operators import Operator
from korch.ir.types import DType

UNROLLED = 1024
"""The longest sequence that is unrolled."""

Function = Callable[[Tensor], Tensor]


def function(name: str, alpha: float | None, beta: float | None) -> Function:
    """An activation by its name in the `activations` attribute, with the standard's default parameters."""
    a, c = alpha, beta
    known: dict[str, Function] = {
        "sigmoid": sigmoid,
        "tanh": lambda x: x.tanh(),
        "relu": lambda x: x.maximum(0),
        "softplus": softplus,
        "softsign": lambda x: x / (1 + abs(x)),
        "affine": lambda x: x * (1.0 if a is None else a) + (0.0 if c is None else c),
        "leakyrelu": lambda x: where(x < 0, x * (0.01 if a is None else a), x),
        "thresholdedrelu": lambda x: where(x < (1.0 if a is None else a), 0, x),
        "scaledtanh": lambda x: (x * (1.0 if c is None else c)).tanh() * (1.0 if a is None else a),
        "hardsigmoid": lambda x: (x * (0.2 if a is None else a) + (0.5 if c is None else c)).minimum(1).maximum(0),
        "elu": lambda x: elu(x, 1.0 if a is None else a),
    }
    found = known.get(name.lower())
    if found is None:
        raise Refused(f"the activation {name} is not supported")
    return found


@dataclass(frozen=True)
class Cell:
    """One direction of a layer: x [T, N, I], weight [G*H, I], recurrence [G*H, H], biases [G*H], states [N, H]."""

    op: Operator
    hidden: int
    x: Tensor
    weight: Tensor
    recurrence: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None
    peephole: Tensor | None
    functions: tuple[Function, ...]

    def clipped(self, x: Tensor) -> Tensor:
        if not has(self.op, "clip"):
            return x
        limit = number(self.op, "clip", 0.0)
        return x.maximum(-limit).minimum(limit)

    def projected(self, bias: Tensor | None) -> Tensor:
        """The input's part of all gates at all steps: [T, N, G*H]."""
        product = self.x @ self.weight.transpose((1, 0))
        return product if bias is None else product + bias

    def gate(self, x: Tensor, k: int) -> Tensor:
        """Gate k of what holds all gates in its last dimension."""
        return x.narrow(x.rank - 1, k * self.hidden, self.hidden)


State = tuple[Tensor, ...]
Advance = Callable[[State, Tensor], State]
"""(state, the input's part [N, G*H] of one step) -> the next state; the first tensor of a state is its output."""


def rnn_cell(cell: Cell) -> tuple[Tensor, Advance]:
    """H = f(X W' + H R' + b)."""
    (f,) = cell.functions
    recurrence = cell.recurrence.transpose((1, 0))

    def advance(state: State, projected: Tensor) -> State:
        return (f(cell.clipped(projected + state[0] @ recurrence)),)

    return cell.projected(_sum(cell.input_bias, cell.state_bias)), advance


def gru_cell(cell: Cell) -> tuple[Tensor, Advance]:
    """Gates z, r, h: H = (1 - z) * h + z * H; the reset is applied before or after the recurrence."""
    f, g = cell.functions
    after = bool(integer(cell.op, "linear_before_reset", 0))
    recurrence = cell.recurrence.transpose((1, 0))

    def biased(x: Tensor, k: int) -> Tensor:
        return x if cell.state_bias is None else x + cell.gate(cell.state_bias, k)

    def advance(state: State, projected: Tensor) -> State:
        (h,) = state
        recurrent = h @ (recurrence if after else recurrence.narrow(1, 0, 2 * cell.hidden))
        z, r = (f(cell.clipped(cell.gate(projected, k) + biased(cell.gate(recurrent, k), k))) for k in (0, 1))
        reset = r * biased(cell.gate(recurrent, 2), 2) if after else biased((r * h) @ cell.gate(recurrence, 2), 2)
        new = g(cell.clipped(cell.gate(projected, 2) + reset))
        return ((1 - z) * new + z * h,)

    return cell.projected(cell.input_bias), advance


def lstm_cell(cell: Cell) -> tuple[Tensor, Advance]:
    """Gates i, o, f, c: C = f * C + i * c, H = o * h(C). Peepholes are in the order i, o, f."""
    f, g, h = cell.functions
    coupled = bool(integer(cell.op, "input_forget", 0))
    recurrence = cell.recurrence.transpose((1, 0))

    def peep(x: Tensor, c: Tensor, k: int) -> Tensor:
        return x if cell.peephole is None else x + c * cell.gate(cell.peephole, k)

    def advance(state: State, projected: Tensor) -> State:
        hidden, c = state
        gates = projected + hidden @ recurrence
        i = f(cell.clipped(peep(cell.gate(gates, 0), c, 0)))
        forget = 1 - i if coupled else f(cell.clipped(peep(cell.gate(gates, 2), c, 2)))
        c = forget * c + i * g(cell.clipped(cell.gate(gates, 3)))
        o = f(cell.clipped(peep(cell.gate(gates, 1), c, 1)))
        return (o * h(c), c)

    return cell.projected(_sum(cell.input_bias, cell.state_bias)), advance


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a + b


def RNN(b: Builder, op: Operator, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    return _layer(op, inputs, 1, 1, ("Tanh",), rnn_cell)


def GRU(b: Builder, op: Operator, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    return _layer(op, inputs, 3, 1, ("Sigmoid", "Tanh"), gru_cell)


def LSTM(b: Builder, op: Operator, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    return _layer(op, inputs, 4, 2, ("Sigmoid", "Tanh", "Tanh"), lstm_cell)


def _layer(
    op: Operator,
    inputs: Sequence[Tensor | None],
    gates: int,
    states: int,
    functions: tuple[str, ...],
    build: Callable[[Cell], tuple[Tensor, Advance]],
) -> tuple[Tensor, ...]:
    """All directions: the outputs Y [T, D, N, H], and each state after the last step [D, N, H]."""
    x, weight, recurrence, bias, lengths, *rest = (*inputs, *[None] * (8 - len(inputs)))
    assert x is not None and weight is not None and recurrence is not None
    batch_first = bool(integer(op, "layout", 0))
    dtype, x = x.dtype, wide(x.transpose((1, 0, 2)) if batch_first else x)
    direction = text(op, "direction", "forward", ("forward", "reverse", "bidirectional"))
    steps, batch, hidden = x.shape[0], x.shape[1], recurrence.shape[2]
    if steps > UNROLLED:
        raise Refused(f"a sequence of {steps} steps is longer than the {UNROLLED} that are unrolled")
    count = weight.shape[0]
    chosen = _functions(op, functions * count)
    outputs: list[Tensor] = []
    finals: list[State] = []
    for d in range(count):
        w, r, biases = (None if t is None else wide(t).narrow(0, d, 1) for t in (weight, recurrence, bias))
        assert w is not None and r is not None
        both = None if biases is None else biases.reshape((2, gates * hidden))
        cell = Cell(
            op,
            hidden,
            x,
            w.reshape(w.shape[1:]),
            r.reshape(r.shape[1:]),
            None if both is None else both.narrow(0, 0, 1).reshape((gates * hidden,)),
            None if both is None else both.narrow(0, 1, 1).reshape((gates * hidden,)),
            _row(rest[2], d),
            chosen[d * len(functions) : (d + 1) * len(functions)],
        )
        initial = tuple(_initial(rest[s], d, batch_first, cell, (batch, hidden)) for s in range(states))
        backward = direction == "reverse" or d == 1
        sequence, final = _run(*build(cell), initial, lengths, backward)
        outputs.append(sequence)
        finals.append(final)
    y = concat([t.unsqueeze(1) for t in outputs], 1)
    last = [concat([final[s].unsqueeze(0) for final in finals], 0) for s in range(states)]
    if batch_first:
        y, last = y.transpose((2, 0, 1, 3)), [t.transpose((1, 0, 2)) for t in last]
    return tuple(t.cast(dtype) for t in (y, *last))


def _run(
    projected: Tensor, advance: Advance, state: State, lengths: Tensor | None, backward: bool
) -> tuple[Tensor, State]:
    """All steps of one direction: the outputs [T, N, H] and the last state. Past its length a sequence rests."""
    steps = projected.shape[0]
    outputs: dict[int, Tensor] = {}
    ends = None if lengths is None else lengths.cast(DType.INT64).unsqueeze(1)
    for t in reversed(range(steps)) if backward else range(steps):
        part = projected.narrow(0, t, 1)
        new = advance(state, part.reshape(part.shape[1:]))
        outputs[t] = new[0]
        if ends is not None:
            runs = ends > t
            outputs[t] = where(runs, new[0], 0)
            new = tuple(where(runs, a, b) for a, b in zip(new, state, strict=True))
        state = new
    if not outputs:
        return projected.narrow(2, 0, state[0].shape[1]), state
    return concat([outputs[t].unsqueeze(0) for t in range(steps)], 0), state


def _row(x: Tensor | None, d: int) -> Tensor | None:
    return None if x is None else wide(x).narrow(0, d, 1).reshape(x.shape[1:])


def _initial(x: Tensor | None, d: int, batch_first: bool, cell: Cell, shape: tuple[int, int]) -> Tensor:
    if x is None:
        return cell.x.like(0.0).expand(shape)
    return wide(x).narrow(1 if batch_first else 0, d, 1).reshape(shape)


def _functions(op: Operator, default: tuple[str, ...]) -> tuple[Function, ...]:
    names = op.attributes.get("activations", default)
    alphas, betas = op.attributes.get("activation_alpha", ()), op.attributes.get("activation_beta", ())
    assert isinstance(names, tuple) and isinstance(alphas, tuple) and isinstance(betas, tuple)
    found: list[Function] = []
    for name in names:
        # Parameters are listed for those functions only that take one.
        takes = str(name).lower()
        alpha = alphas[0] if alphas and takes in _WITH_ALPHA else None
        beta = betas[0] if betas and takes in _WITH_BETA else None
        alphas = alphas[1:] if alpha is not None else alphas
        betas = betas[1:] if beta is not None else betas
        found.append(function(takes, alpha, beta))  # type: ignore[arg-type]
    return tuple(found)


_WITH_ALPHA = frozenset({"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"})
_WITH_BETA = frozenset({"affine", "scaledtanh", "hardsigmoid"})
