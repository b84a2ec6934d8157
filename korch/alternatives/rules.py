"""The rules, in the order in which they are tried."""

from __future__ import annotations

import numpy as np

from korch.alternatives.rule import EXACT, REASSOCIATES, Match, Replacement, Rule
from korch.ir.graph import Definition
from korch.ir.types import DType

# Where exp(x) squared still fits float32 and tanh(softplus(x)) is 1 to the last bit.
_SATURATED = 20.0


def tanh_of_softplus(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2), x clamped at 20 where both are 1."""
    x = _softplus_operand(match, d.inputs[0])
    if x is None:
        return ""
    if match.graph.types[x].dtype is not DType.FLOAT32:
        return "only for float32, whose exp(20) squared is finite and whose tanh is 1 beyond"
    t = new.emit("exp", new.emit("min", x, new.filled(_SATURATED, x)))
    two = new.filled(2.0, x)
    n = new.emit("mul", t, new.emit("add", t, two))
    return new.end(d.outputs[0], "div", n, new.emit("add", n, two))


def _softplus_operand(match: Match, value: str) -> str | None:
    """x, when the value is max(x, 0) + log1p(exp(-abs(x)))."""
    total = match.definition(value, "add")
    if total is None:
        return None
    for top, tail in (total.inputs, total.inputs[::-1]):
        log, highest = match.definition(tail, "log1p"), match.definition(top, "max")
        if log is None or highest is None:
            continue
        x = next((v for v in highest.inputs if match.scalar(v) != 0.0), None)
        exp = match.definition(log.inputs[0], "exp")
        negated = exp and match.definition(exp.inputs[0], "neg")
        magnitude = negated and match.definition(negated.inputs[0], "abs")
        if magnitude and magnitude.inputs[0] == x and any(match.scalar(v) == 0.0 for v in highest.inputs):
            return x
    return None


def scale_into_convolution(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """conv(x, w) * s = conv(x, w * s) for a constant s of one number per output channel."""
    for product, factor in (d.inputs, d.inputs[::-1]):
        conv, scale = match.definition(product, "conv"), match.constant(factor)
        if conv is None or scale is None:
            continue
        weight = match.graph.constants.get(conv.inputs[1])
        if weight is None:
            return "the weight is not a constant"
        if any(
            stride and size > 1
            for k, (size, stride) in enumerate(zip(scale.shape, scale.strides, strict=True))
            if k != 1
        ):
            return "the factor differs within a channel"
        per_channel = scale[(0, slice(None)) + (0,) * (scale.ndim - 2)].astype(np.float64)
        folded = weight.astype(np.float64) * per_channel.reshape(-1, *[1] * (weight.ndim - 1))
        if not np.all(np.isfinite(folded.astype(weight.dtype))):
            return "the scaled weight is not finite"
        w = new.constant(folded.astype(weight.dtype))
        return new.end(d.outputs[0], "conv", conv.inputs[0], w, **dict(conv.attributes))
    return ""


def pointwise_before_resampling(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """conv(concat_i(R_i(x_i)), w) = sum_i R_i(conv(x_i, w_i)) for a 1x1 convolution, whose channels and the axes that
    R_i resamples are different ones; w_i are the weight's input channels of part i."""
    concat = match.definition(d.inputs[0], "concat")
    parts = concat.inputs if concat is not None and concat.int("axis") == 1 else d.inputs[:1]
    chains = [_resampling(match, part) for part in parts]
    if not any(chain for chain, _ in chains):
        return ""
    weight = match.graph.constants.get(d.inputs[1])
    if weight is None:
        return "the weight is not a constant"
    if weight.shape[2:] != (1,) * (weight.ndim - 2) or any(s != 1 for s in d.ints("strides")) or any(d.ints("pads")):
        return "the convolution reads more than one position"
    if d.int("groups") != 1:
        return "the convolution has groups"
    total, first = "", 0
    for position, (part, (chain, source)) in enumerate(zip(parts, chains, strict=True)):
        channels = match.graph.types[part].shape[1]
        w = new.constant(np.ascontiguousarray(weight[:, first : first + channels]))
        first += channels
        value = new.emit("conv", source, w, **dict(d.attributes))
        for k, step in enumerate(chain):
            if len(parts) == 1 and k == len(chain) - 1:
                return new.end(d.outputs[0], "resample", value, **dict(step.attributes))
            value = new.emit("resample", value, **dict(step.attributes))
        if position == len(parts) - 1:
            return new.end(d.outputs[0], "add", total, value)
        total = new.emit("add", total, value) if total else value
    return ""


def _resampling(match: Match, value: str) -> tuple[list[Definition], str]:
    """The resamplings of spatial axes that a value went through last, in their order, and what they began with."""
    chain: list[Definition] = []
    while (d := match.definition(value, "resample")) is not None and d.int("axis") >= 2:
        chain.insert(0, d)
        value = d.inputs[0]
    return chain, value


RULES: tuple[Rule, ...] = (
    Rule("tanh_of_softplus", REASSOCIATES, "tanh", tanh_of_softplus),
    Rule("scale_into_convolution", REASSOCIATES, "mul", scale_into_convolution),
    Rule("pointwise_before_resampling", REASSOCIATES, "conv", pointwise_before_resampling),
)


def rules_for(numerics: str) -> tuple[Rule, ...]:
    """`strict` takes only exact rules."""
    return tuple(r for r in RULES if numerics != "strict" or r.label == EXACT)
