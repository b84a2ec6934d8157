"""Linear primitives merged: those that share an input, those that are summed, those that follow one another; sums as
products with ones."""

from __future__ import annotations

import numpy as np

from korch.alternatives.reading import Linear, linear_behind, linear_of, per_channel, rounded, step_of, with_bias
from korch.alternatives.rule import REASSOCIATES, Match, Replacement, Rule
from korch.ir.graph import Attribute, Definition

# Merging more results than this makes one result so wide that its slices are far apart.
_MOST_MERGED = 8

# Whose linear primitives are merged: the model's, and those that its normalisations were folded into.
_MERGEABLE = ("model", "affine_into_weights")


def sharing_input_merged(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """L(x, w1), L(x, w2), … = slices of L(x, concat(w1, w2, …)) along the output channels."""
    linear = linear_of(match, d)
    if match.rule_of(d) not in _MERGEABLE:
        return ""
    if not isinstance(linear, Linear):
        return "" if len(match.siblings(d)) < 2 else linear
    alike = [s for s in match.siblings(d) if s.attributes == d.attributes]
    if len(alike) < 2:
        return ""
    if linear.groups != 1:
        return "the convolutions have groups"
    parts = [p for p in (linear_of(match, s) for s in alike) if isinstance(p, Linear)]
    kernel = linear.weight.shape[2:]
    parts = [p for p in parts if p.weight.shape[2:] == kernel and p.weight.dtype == linear.weight.dtype]
    if len({p.weight.shape for p in parts}) == 1 and all(p.d.inputs[1] == d.inputs[1] for p in parts):
        return ""  # the same weight: one value, computed twice
    if len(parts) < 2:
        return "the weights of the others differ in shape or are no constants"
    if len(parts) > _MOST_MERGED:
        return f"more than {_MOST_MERGED} share the input"
    axis = 0 if d.primitive == "conv" else 1
    weight = new.constant(np.concatenate([p.weight for p in parts], axis=axis))
    total = sum(p.channels[1] for p in parts)
    changed: dict[str, Attribute] = {}
    if d.primitive == "conv_transpose":
        shape = d.ints("shape")
        changed["shape"] = (shape[0], total, *shape[2:])
    merged = new.again(d, d.inputs[0], weight, **changed)
    first = 0
    for p in parts:
        if p.d == d:
            break
        first += p.channels[1]
    shape = match.shape(d.outputs[0])
    starts = tuple(first if k == linear.axis else 0 for k in range(len(shape)))
    return new.end(d.outputs[0], "slice", merged, starts=starts, steps=(1,) * len(shape), shape=shape)


def sum_of_linear(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """L(x1, w1) + L(x2, w2) + … = L(concat(x1, x2, …), concat(w1, w2, …)) along the input channels, what else is summed
    being added after; of one x, the weights are added."""
    terms = _terms(match, d)
    found = [(t, linear_behind(match, t)) for t in terms]
    linears = [(t, x) for t, x in found if isinstance(x, Linear)]
    if len(linears) < 2:
        return ""
    head = linears[0][1]
    alike = [
        (t, x)
        for t, x in linears
        if x.d.attributes == head.d.attributes
        and x.d.primitive == head.d.primitive
        and x.weight.shape[2:] == head.weight.shape[2:]
        and x.weight.dtype == head.weight.dtype
        and match.shape(x.d.inputs[0])[2:] == match.shape(head.d.inputs[0])[2:]
    ]
    if len(alike) < 2:
        return "the summed convolutions differ in their kernels or inputs"
    if head.groups != 1:
        return "the convolutions have groups"
    if _goes_on(match, d):
        return "the sum goes on"
    if any(match.used_elsewhere(t, user) for t, _ in alike for user in match.users(t)[:1]):
        return "a part of the sum is used elsewhere"
    merged = _concatenated(match, new, [x for _, x in alike])
    if merged is None:
        return "a folded weight is not finite"
    used = {t for t, _ in alike}
    value = merged
    for t in terms:
        if t not in used:
            value = new.emit("add", value, t)
    return new.finish(d.outputs[0], value)


def _terms(match: Match, d: Definition) -> list[str]:
    """What a tree of additions adds up."""
    found: list[str] = []
    waiting = [(v, d) for v in d.inputs]
    while waiting and len(found) < 32:
        value, reader = waiting.pop(0)
        inner = match.definition(value, "add")
        alone = not match.used_elsewhere(value, reader)
        if inner is not None and alone and not isinstance(linear_behind(match, value), Linear):
            waiting[:0] = [(v, inner) for v in inner.inputs]
        else:
            found.append(value)
    return found


def _goes_on(match: Match, d: Definition) -> bool:
    users = match.users(d.outputs[0])
    return bool(users) and not match.is_output(d.outputs[0]) and all(u.primitive == "add" for u in users)


def _concatenated(match: Match, new: Replacement, parts: list[Linear]) -> str | None:
    """One linear primitive over the concatenated inputs; parts of one input have their weights added."""
    weights: dict[str, np.ndarray] = {}
    for p in parts:
        x = p.d.inputs[0]
        weights[x] = weights[x] + p.weight.astype(np.float64) if x in weights else p.weight.astype(np.float64)
    head = parts[0]
    axis = 1 if head.d.primitive == "conv" else 0
    weight = rounded(np.concatenate(list(weights.values()), axis=axis), head.weight)
    if isinstance(weight, str):
        return None
    inputs = list(weights)
    channel_axis = match.types[inputs[0]].rank - 1 if head.d.primitive == "matmul" else 1
    whole = inputs[0] if len(inputs) == 1 else new.emit("concat", *inputs, axis=channel_axis)
    return new.again(head.d, whole, new.constant(weight))


def pointwise_merged(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """P(M(L(x, w) + b), p) = M(L(x, w p) + b p) for a product or 1x1 convolution P over the channels, and M any chain
    of reshapes and transposes that keep the channels together: two linear primitives are one."""
    second = linear_of(match, d)
    if not isinstance(second, Linear) or not second.pointwise or second.groups != 1:
        return ""
    found = _linear_before(match, d, second.axis)
    if found is None:
        return ""
    first, chain, bias, path = found
    if first.groups != 1:
        return "the first convolution has groups"
    if first.weight.dtype != second.weight.dtype:
        return "the weights have different dtypes"
    taps = int(np.prod(first.weight.shape[2:], dtype=np.int64)) if first.d.primitive != "matmul" else 1
    (inner, middle), (_, outer) = first.channels, second.channels
    positions = match.types[d.outputs[0]].elements // max(1, outer)
    moved = match.types[first.d.outputs[0]].elements // max(1, middle)
    if inner * taps * outer * moved > inner * taps * middle * moved + middle * outer * positions:
        return "the merged weight needs more multiplications than the two"
    shared = any(match.used_elsewhere(value, reader) for value, reader in path)
    if shared and inner * taps * outer * moved > middle * outer * positions:
        return "the first result is used elsewhere, and merging would not save the second product's work"
    weight = rounded(_product(first, second), second.weight)
    if isinstance(weight, str):
        return weight
    value = new.again(first.d, first.d.inputs[0], new.constant(weight), **_wider(first.d, outer))
    for step, channel_axis in chain:
        changed: dict[str, Attribute] = {}
        if step.primitive == "reshape":
            shape = list(step.ints("shape"))
            shape[channel_axis] = outer
            changed["shape"] = tuple(shape)
        value = new.again(step, value, **changed)
    shift = second.of_constant(np.broadcast_to(bias, (middle,))) if bias.any() else bias
    return new.finish(d.outputs[0], with_bias(new, value, shift, second.axis))


def _wider(d: Definition, channels: int) -> dict[str, Attribute]:
    if d.primitive != "conv_transpose":
        return {}
    shape = d.ints("shape")
    return {"shape": (shape[0], channels, *shape[2:])}


def _linear_before(
    match: Match, d: Definition, axis: int
) -> tuple[Linear, list[tuple[Definition, int]], np.ndarray, list[tuple[str, Definition]]] | None:
    """The linear primitive whose channels are an axis of what `d` reads; the movements after it, each with the place
    of the channels in its output; the biases after it, per channel; and the values on the way with their readers."""
    chain: list[tuple[Definition, int]] = []
    bias = np.array(0.0)
    value, reader = d.inputs[0], d
    path: list[tuple[str, Definition]] = []
    while True:
        path.append((value, reader))
        linear = linear_behind(match, value)
        if isinstance(linear, Linear) and linear.axis == axis:
            return linear, chain, bias, path
        step = step_of(match, value)
        if step is not None and step.d.primitive == "add":
            constant = per_channel(step.constant, axis)
            if constant is None or not np.isfinite(constant).all():
                return None
            bias, value, reader = bias + constant, step.before, step.d
            continue
        move = next((x for x in match.definers(value) if x.primitive in ("reshape", "transpose")), None)
        before = None if move is None else _axis_before(match, move, axis)
        if move is None or before is None:
            return None
        chain.insert(0, (move, axis))
        value, axis, reader = move.inputs[0], before, move


def _axis_before(match: Match, move: Definition, axis: int) -> int | None:
    """Which axis of a movement's input its output's axis is; None when a reshape splits or merges it."""
    if move.primitive == "transpose":
        return move.ints("perm")[axis]
    before, after = match.shape(move.inputs[0]), move.ints("shape")
    lead = int(np.prod(after[:axis], dtype=np.int64))
    for k, n in enumerate(before):
        if n == after[axis] and int(np.prod(before[:k], dtype=np.int64)) == lead and (n != 1 or k == axis):
            return k
    return None


def _product(first: Linear, second: Linear) -> np.ndarray:
    """The weight of the second after the first, laid out as the first's."""
    p = second.weight.astype(np.float64)
    p = p if second.d.primitive == "matmul" else p.reshape(p.shape[:2]).T  # [middle, outer]
    w = first.weight.astype(np.float64)
    if first.d.primitive == "matmul":
        return w @ p
    if first.d.primitive == "conv":
        return np.tensordot(p, w, axes=(0, 0))
    return np.moveaxis(np.tensordot(w, p, axes=(1, 0)), -1, 1)


def sum_as_product(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """sum_k z[., k] = z @ 1, and with a product z @ v of the same z beside it both are slices of z @ [v, 1]: softmax's
    sum comes out of its second matrix product."""
    z = d.inputs[0]
    axis = match.types[z].rank - 1
    sums = [u for u in match.users(z) if u.primitive == "reduce_sum" and u.ints("axes") == (axis,)]
    products = [u for u in match.users(z) if u.primitive == "matmul" and u.inputs[0] == z and u.inputs[1] != z]
    if d.primitive == "reduce_sum" and d not in sums:
        return ""
    # What this rule itself added is no product of its own to sum beside.
    products = [u for u in products if match.rule_of(u) != "sum_as_product"]
    if not match.types[z].dtype.is_float or (d.primitive == "matmul" and (not sums or d not in products)):
        return ""
    if not products:
        return "no matrix product reads what is summed: a sum alone is cheaper as a sum"
    if len(match.shape(products[0].inputs[1])) < 2 or axis < 1:
        return ""
    v = products[0].inputs[1] if d.primitive == "reduce_sum" else d.inputs[1]
    shape = match.shape(v)
    one = np.ones((*shape[:-1], 1), match.types[v].dtype.numpy)
    if v in match.constants:
        wide = new.constant(np.concatenate([match.constants[v], one], axis=-1))
    else:
        ones = new.emit("broadcast", new.constant(np.array(1, one.dtype)), shape=one.shape, axes=())
        wide = new.emit("concat", v, ones, axis=len(shape) - 1)
    product = new.emit("matmul", z, wide)
    rows, columns = match.shape(z)[:-1], shape[-1]
    starts = (0,) * len(rows)
    if d.primitive == "matmul":
        whole = (*rows, columns)
        return new.end(
            d.outputs[0], "slice", product, starts=(*starts, 0), steps=(1,) * len(whole), shape=whole
        )
    last = new.emit("slice", product, starts=(*starts, columns), steps=(1,) * (len(rows) + 1), shape=(*rows, 1))
    return new.end(d.outputs[0], "reshape", last, shape=rows)


MERGING: tuple[Rule, ...] = (
    Rule(REASSOCIATES, ("matmul", "conv", "conv_transpose"), sharing_input_merged),
    Rule(REASSOCIATES, ("add",), sum_of_linear),
    Rule(REASSOCIATES, ("matmul", "conv"), pointwise_merged),
    Rule(REASSOCIATES, ("reduce_sum", "matmul"), sum_as_product),
)
