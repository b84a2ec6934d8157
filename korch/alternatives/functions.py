"""Other formulas for a function."""

from __future__ import annotations

from korch.alternatives.rule import REASSOCIATES, Match, Replacement, Rule
from korch.ir.graph import Definition
from korch.ir.types import DType

# Where exp(x) squared still fits float32 and tanh(softplus(x)) is 1 to the last bit.
_SATURATED = 20.0


def tanh_of_softplus(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2), x clamped at 20 where both are 1."""
    x = _softplus_operand(match, d.inputs[0])
    if x is None:
        return ""
    if match.types[x].dtype is not DType.FLOAT32:
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


FUNCTIONS: tuple[Rule, ...] = (Rule(REASSOCIATES, ("tanh",), tanh_of_softplus),)
