"""What several rules ask: linear primitives with constant weights, factors and biases that are one per channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from korch.alternatives.rule import Match, Replacement
from korch.ir.graph import Definition
from korch.ir.types import DType

LINEAR = ("matmul", "conv", "conv_transpose")

# Weights are folded where a rounding of the weight is not coarser than one of the result.
_FOLDABLE = frozenset({DType.FLOAT32, DType.FLOAT64})


@dataclass(frozen=True)
class Linear:
    """A linear primitive with a constant weight. `axis` are the channels, in its first input and in its output."""

    d: Definition
    weight: np.ndarray
    axis: int

    @property
    def groups(self) -> int:
        return 1 if self.d.primitive == "matmul" else self.d.int("groups")

    @property
    def pointwise(self) -> bool:
        """Whether an output position reads only the input position at the same place."""
        if self.d.primitive == "matmul":
            return True
        plain = all(s == 1 for s in self.d.ints("strides")) and not any(self.d.ints("pads"))
        return self.d.primitive == "conv" and plain and all(n == 1 for n in self.weight.shape[2:])

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels."""
        w = self.weight
        if self.d.primitive == "matmul":
            return w.shape[0], w.shape[1]
        if self.d.primitive == "conv":
            return w.shape[1] * self.groups, w.shape[0]
        return w.shape[0], w.shape[1] * self.groups

    def scaled_after(self, factor: np.ndarray) -> np.ndarray:
        """The weight in float64 with each output channel scaled; `factor` is one number or one per channel."""
        w = self.weight.astype(np.float64)
        f = np.broadcast_to(factor.astype(np.float64), (self.channels[1],))
        if self.d.primitive == "matmul":
            return w * f
        tail = (1,) * (w.ndim - 2)
        if self.d.primitive == "conv":
            return w * f.reshape(-1, 1, *tail)
        # Group g of the input's channels makes the output channels g * O/groups and on.
        per_input = np.repeat(f.reshape(self.groups, -1), w.shape[0] // self.groups, axis=0)
        return w * per_input.reshape(*w.shape[:2], *tail)

    def scaled_before(self, factor: np.ndarray) -> np.ndarray:
        """The weight in float64 with each input channel scaled."""
        w = self.weight.astype(np.float64)
        f = np.broadcast_to(factor.astype(np.float64), (self.channels[0],))
        if self.d.primitive == "matmul":
            return w * f[:, None]
        tail = (1,) * (w.ndim - 2)
        if self.d.primitive == "conv_transpose":
            return w * f.reshape(-1, 1, *tail)
        per_output = np.repeat(f.reshape(self.groups, -1), w.shape[0] // self.groups, axis=0)
        return w * per_output.reshape(*w.shape[:2], *tail)

    def of_constant(self, bias: np.ndarray) -> np.ndarray:
        """What an input that is constant within its channels gives per output channel (no padding), in float64.
        Not for transposed convolutions."""
        w = self.scaled_before(bias)
        return w.sum(axis=0) if self.d.primitive == "matmul" else w.reshape(w.shape[0], -1).sum(axis=1)


def linear_of(match: Match, d: Definition | None) -> Linear | str:
    """The linear primitive, or why it is none that constants fold into; empty when it is not linear."""
    if d is None or d.primitive not in LINEAR:
        return ""
    weight = match.constants.get(d.inputs[1])
    if weight is None:
        return "the weight is not a constant"
    if match.types[d.inputs[0]].dtype not in _FOLDABLE or match.types[d.outputs[0]].dtype not in _FOLDABLE:
        return "constants are folded into weights of float32 and float64 only"
    if d.primitive == "matmul" and weight.ndim != 2:
        return "the weight has batch dimensions"
    return Linear(d, weight, match.types[d.outputs[0]].rank - 1 if d.primitive == "matmul" else 1)


def linear_behind(match: Match, value: str) -> Linear | str:
    """The linear primitive that computes a value."""
    found: Linear | str = ""
    for d in match.definers(value):
        found = linear_of(match, d)
        if isinstance(found, Linear):
            return found
    return found


def rounded(folded: np.ndarray, like: np.ndarray) -> np.ndarray | str:
    """A folded weight in its dtype; a reason where it is no longer finite."""
    with np.errstate(over="ignore"):
        found = folded.astype(like.dtype)
    return found if bool(np.isfinite(found).all()) else "a folded weight is not finite"


def per_channel(array: np.ndarray, axis: int) -> np.ndarray | None:
    """The numbers of a constant that varies along one axis only, in float64; None when it varies along others."""
    sizes = zip(array.shape, array.strides, strict=True)
    if any(stride and size > 1 for k, (size, stride) in enumerate(sizes) if k != axis) or array.size == 0:
        return None
    return np.array(array[tuple(slice(None) if k == axis else 0 for k in range(array.ndim))], np.float64)


@dataclass(frozen=True)
class Step:
    """`value` = `before` (+, - or * as `d` says) a constant; `constant_first` where the constant is the left one."""

    d: Definition
    before: str
    constant: np.ndarray
    constant_first: bool


def step_of(match: Match, value: str) -> Step | None:
    """How a value comes from another one by adding, subtracting, multiplying or dividing by a constant."""
    for d in match.definers(value):
        if d.primitive not in ("add", "sub", "mul", "div"):
            continue
        for k in (1, 0):
            constant = match.constant(d.inputs[k])
            if constant is not None and match.constant(d.inputs[1 - k]) is None:
                if d.primitive == "div" and k == 0:
                    break
                return Step(d, d.inputs[1 - k], constant, k == 0)
    return None


def steps_behind(match: Match, value: str) -> tuple[list[Step], str]:
    """The steps by constants that end in a value, in their order, and the value in which they begin."""
    steps: list[Step] = []
    while (step := step_of(match, value)) is not None:
        steps.insert(0, step)
        value = step.before
    return steps, value


def affine(steps: Sequence[Step], axis: int) -> tuple[np.ndarray, np.ndarray] | str:
    """Factor and bias, per channel or one number, of all steps together; or why they are not one per channel."""
    factor, bias = np.array(1.0), np.array(0.0)
    with np.errstate(all="ignore"):
        for step in steps:
            constant = per_channel(step.constant, axis)
            if constant is None:
                return "a constant differs within a channel"
            match step.d.primitive:
                case "mul":
                    factor, bias = factor * constant, bias * constant
                case "div":
                    factor, bias = factor / constant, bias / constant
                case "add":
                    bias = bias + constant
                case _ if step.constant_first:
                    factor, bias = -factor, constant - bias
                case _:
                    bias = bias - constant
    if not (np.isfinite(factor).all() and np.isfinite(bias).all()):
        return "a factor or bias is not finite"
    return factor, bias


def with_bias(new: Replacement, value: str, bias: np.ndarray, axis: int) -> str:
    """The value plus a bias per channel, where there is any."""
    if not bias.any():
        return value
    channels = new.shape(value)[axis]
    return new.emit("add", value, new.along(np.broadcast_to(bias, (channels,)), axis, value))
