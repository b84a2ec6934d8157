"""Constants folded into weights, and scaling moved past matrix products."""

from __future__ import annotations

import numpy as np

from korch.alternatives.reading import (
    LINEAR,
    Linear,
    affine,
    linear_behind,
    linear_of,
    per_channel,
    rounded,
    step_of,
    steps_behind,
    with_bias,
)
from korch.alternatives.rule import REASSOCIATES, Match, Replacement, Rule
from korch.ir.graph import Definition
from korch.ir.primitives import TABLE


def affine_into_weights(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """L(x, w) * s + b = L(x, w * s) + b for constants s and b of one number per output channel, L being linear; any
    number of scales and biases after one another (a normalisation) become one of each."""
    steps, base = steps_behind(match, d.outputs[0])
    if not steps or (len(steps) == 1 and d.primitive in ("add", "sub") and not steps[0].constant_first):
        return ""
    linear = linear_behind(match, base)
    if not isinstance(linear, Linear):
        return linear
    if _goes_on(match, d, linear.axis):
        return "the next constant is folded with this one"
    if any(match.used_elsewhere(step.before, step.d) for step in steps):
        return "the value before the constant is used elsewhere"
    folded = affine(steps, linear.axis)
    if isinstance(folded, str):
        return folded
    factor, bias = folded
    weight = rounded(linear.scaled_after(factor), linear.weight)
    if isinstance(weight, str):
        return weight
    scaled = new.again(linear.d, linear.d.inputs[0], new.constant(weight))
    return new.finish(d.outputs[0], with_bias(new, scaled, bias, linear.axis))


def _goes_on(match: Match, d: Definition, axis: int) -> bool:
    """Whether all that read the value add or multiply one more constant per channel."""
    users = match.users(d.outputs[0])
    if match.is_output(d.outputs[0]) or not users:
        return False
    steps = [step_of(match, u.outputs[0]) for u in users]
    return all(s is not None and s.before == d.outputs[0] and per_channel(s.constant, axis) is not None for s in steps)


def affine_before_weights(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """L(x * s + b, w) = L(x, w * s) + L(b, w) for constants s and b of one number per input channel; a bias only where
    L does not pad (a padded border sees no bias)."""
    steps, base = steps_behind(match, d.inputs[0])
    if not steps:
        return ""
    linear = linear_of(match, d)
    if not isinstance(linear, Linear):
        return linear
    folded = affine(steps, linear.axis)
    if isinstance(folded, str):
        return folded
    factor, bias = folded
    if bias.any() and (d.primitive == "conv_transpose" or (d.primitive == "conv" and any(d.ints("pads")))):
        return "a bias does not reach over the padded border"
    if any(not isinstance(linear_of(match, u), Linear) for u in match.users(d.inputs[0])):
        return "the scaled value is used elsewhere too"
    if _computed_in_passing(match, base, steps[0].d):
        return "what makes the operand scales it in passing"
    weight = rounded(linear.scaled_before(factor), linear.weight)
    if isinstance(weight, str):
        return weight
    result = new.again(d, base, new.constant(weight))
    shift = linear.of_constant(bias) if bias.any() else bias
    return new.finish(d.outputs[0], with_bias(new, result, shift, linear.axis))


def _computed_in_passing(match: Match, base: str, reader: Definition) -> bool:
    """Whether an elementwise primitive makes the value for this reader alone: a kernel then does both at no cost."""
    makers = match.definers(base)
    return any(TABLE[m.primitive].kind == "elementwise" for m in makers) and not match.used_elsewhere(base, reader)


def scalar_into_weights(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """M(L(x, w) + b) * c = M(L(x, w * c) + b * c) for one constant number c, M being any chain of reshapes, transposes
    and slices."""
    step = step_of(match, d.outputs[0])
    if step is None or step.d != d or d.primitive not in ("mul", "div"):
        return ""
    c = match.scalar(d.inputs[0 if step.constant_first else 1])
    if c is None:
        return ""
    c = 1 / c if d.primitive == "div" and c else c
    chain, base = _movements(match, step.before)
    if not any(x.primitive in _MOVES for x in chain):
        return ""
    linear = linear_behind(match, base)
    if not isinstance(linear, Linear):
        return linear
    readers = [*chain, d]
    if match.rule_of(d) == "model" and any(match.used_elsewhere(_read(match, x), x) for x in readers):
        return "the unscaled value is used elsewhere"
    weight = rounded(linear.scaled_after(np.array(c)), linear.weight)
    if isinstance(weight, str):
        return weight
    value = new.again(linear.d, linear.d.inputs[0], new.constant(weight))
    for x in chain:
        if x.primitive in _MOVES:
            value = new.again(x, value)
            continue
        k = 1 if match.constant(x.inputs[1]) is not None else 0
        value = new.emit("add", value, _scaled_constant(match, new, x.inputs[k], c))
    return new.finish(d.outputs[0], value)


_MOVES = ("reshape", "transpose", "slice")


def _movements(match: Match, value: str) -> tuple[list[Definition], str]:
    """The movements and constant additions that end in a value, in their order, and where they begin."""
    chain: list[Definition] = []
    while not isinstance(linear_behind(match, value), Linear):
        step = step_of(match, value)
        move = next((x for x in match.definers(value) if x.primitive in _MOVES), None)
        if step is not None and step.d.primitive == "add":
            chain.insert(0, step.d)
            value = step.before
        elif move is not None:
            chain.insert(0, move)
            value = move.inputs[0]
        else:
            break
    return chain, value


def _read(match: Match, d: Definition) -> str:
    """What a movement or a step by a constant reads."""
    first, *others = d.inputs
    return others[0] if others and match.constant(first) is not None else first


def _scaled_constant(match: Match, new: Replacement, value: str, factor: float) -> str:
    """A constant (or broadcast of one) times a number."""
    spread = match.definition(value, "broadcast")
    array = match.constants[spread.inputs[0] if spread else value]
    name = new.constant((array.astype(np.float64) * factor).astype(array.dtype))
    return new.again(spread, name) if spread else name


def scale_past_matmul(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """(a / s) b = (a b) / s and (a * s) b = (a b) * s where s is the same along the summed dimension; likewise for b.
    Softmax's division comes after the second product, where there is less to divide."""
    rank = match.types[d.inputs[0]].rank
    reason = ""
    for k, summed in ((0, rank - 1), (1, match.types[d.inputs[1]].rank - 2)):
        for scaling in match.definers(d.inputs[k]):
            if scaling.primitive not in ("mul", "div") or not match.types[d.outputs[0]].dtype.is_float:
                continue
            found = _move_scale(match, d, new, k, summed, scaling)
            if isinstance(found, Replacement):
                return found
            reason = found or reason
    return reason


def _move_scale(
    match: Match, d: Definition, new: Replacement, k: int, summed: int, scaling: Definition
) -> Replacement | str:
    sides = (1, 0) if scaling.primitive == "mul" else (1,)
    for f in sides:
        spread = match.definition(scaling.inputs[f], "broadcast")
        if spread is None or not _uniform_along(match, spread, summed):
            continue
        if len(match.shape(scaling.outputs[0])) != len(match.shape(d.outputs[0])):
            return "the operands have different ranks"
        if match.types[d.outputs[0]].elements * 2 > match.types[scaling.outputs[0]].elements:
            return "the product is not smaller than half the operand that is scaled"
        operands = list(d.inputs)
        operands[k] = scaling.inputs[1 - f]
        product = new.emit("matmul", *operands)
        factor = new.emit("broadcast", spread.inputs[0], shape=match.shape(d.outputs[0]), axes=spread.ints("axes"))
        return new.end(d.outputs[0], scaling.primitive, product, factor)
    return ""


def _uniform_along(match: Match, spread: Definition, axis: int) -> bool:
    """Whether a broadcast repeats one number along an axis."""
    axes = spread.ints("axes")
    return axis not in axes or match.shape(spread.inputs[0])[axes.index(axis)] == 1


def scale_before_matmul(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """(a b) * c = (a * c) b for one constant number c and the smaller of a and b: attention's scale on the queries, not
    on the scores."""
    step = step_of(match, d.outputs[0])
    if step is None or step.d != d or d.primitive not in ("mul", "div"):
        return ""
    matmul = match.definition(step.before, "matmul")
    c = match.scalar(d.inputs[0 if step.constant_first else 1])
    if matmul is None or c is None or not match.types[d.outputs[0]].dtype.is_float:
        return ""
    if any(v in match.constants for v in matmul.inputs):
        return ""  # that scale is folded into the weight
    k = min((0, 1), key=lambda k: match.types[matmul.inputs[k]].elements)
    if match.types[matmul.inputs[k]].elements * 2 > match.types[d.outputs[0]].elements:
        return "neither operand is smaller than half the product"
    if match.used_elsewhere(step.before, d):
        return "the unscaled product is used elsewhere"
    users = match.users(d.outputs[0])
    if users and all(TABLE[u.primitive].kind in ("elementwise", "reduce") for u in users):
        return "what reads the product scales it in passing"
    operands = list(matmul.inputs)
    operands[k] = new.emit(d.primitive, operands[k], new.filled(c, operands[k]))
    return new.end(d.outputs[0], "matmul", *operands)


FOLDING: tuple[Rule, ...] = (
    Rule(REASSOCIATES, ("add", "sub", "mul", "div"), affine_into_weights),
    Rule(REASSOCIATES, LINEAR, affine_before_weights),
    Rule(REASSOCIATES, ("matmul",), scale_past_matmul),
    Rule(REASSOCIATES, ("mul", "div"), scale_before_matmul),
    Rule(REASSOCIATES, ("mul", "div"), scalar_into_weights),
)
