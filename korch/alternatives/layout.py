"""Movements merged, cancelled, and taken through what computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from korch.alternatives.reading import Linear, linear_behind
from korch.alternatives.resampling import axis_maps
from korch.alternatives.rule import EXACT, REASSOCIATES, Match, Replacement, Rule
from korch.ir.graph import Attribute, Definition
from korch.ir.primitives import TABLE
from korch.ir.primitives.reduce import lowest

_PICKS = ("take", "slice", "pad")
_ORDERS = ("reshape", "transpose")


def pad_into_window(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """W(pad(x, 0), pads p) = W(x, pads p + padding) for a convolution or a window sum, and for a window maximum over
    what was padded with the least value."""
    pad = match.definition(d.inputs[0], "pad")
    if pad is None:
        return ""
    x, before, padded = match.shape(pad.inputs[0]), pad.ints("before"), pad.ints("shape")
    neutral = lowest(match.types[pad.inputs[0]].dtype.numpy) if d.primitive == "window_max" else 0
    if pad.attribute("value") != neutral or (neutral == 0 and math.copysign(1, float(str(neutral))) < 0):
        return "the padding is not what the window leaves out"
    after = [m - n - b for m, n, b in zip(padded, x, before, strict=True)]
    if any(v < 0 for v in (*before, *after)):
        return "the padding cuts elements off"
    if d.primitive != "conv":
        pads = tuple(p + b for p, b in zip(d.ints("pads"), before, strict=True))
        return new.end(d.outputs[0], d.primitive, pad.inputs[0], **{**dict(d.attributes), "pads": pads})
    if any(before[:2]) or any(after[:2]):
        return "the padding adds channels or batch entries"
    around = (*before[2:], *after[2:])
    pads = tuple(p + b for p, b in zip(d.ints("pads"), around, strict=True))
    return new.end(d.outputs[0], "conv", pad.inputs[0], d.inputs[1], **{**dict(d.attributes), "pads": pads})


def picks_merged(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """take, slice and pad after one another, on whatever axes = one of them, or nothing where they undo each other.

    Where more than one is left nothing is gained: a kernel that holds them all moves each element once anyway.
    """
    fill: float | int | bool | None = d.attribute("value") if d.primitive == "pad" else None  # type: ignore[assignment]
    maps, value, steps = axis_maps(match, d), d.inputs[0], 1
    while (step := next((x for x in match.definers(value) if x.primitive in _PICKS), None)) is not None:
        if step.primitive == "pad":
            if fill is not None and not _same_number(step.attribute("value"), fill):
                break
            fill = step.attribute("value")  # type: ignore[assignment]
        pairs = zip(maps, axis_maps(match, step), strict=True)
        maps = [tuple(-1 if i < 0 else inner[i] for i in m) for m, inner in pairs]
        value, steps = step.inputs[0], steps + 1
    if steps == 1:
        return ""
    users = match.users(d.outputs[0])
    if users and not match.is_output(d.outputs[0]) and all(u.primitive in _PICKS for u in users):
        return "the movements go on"
    result, count = value, 0
    shape = match.shape(value)
    if any(_between_zeros(m) for m in maps):
        return "zeros stand between elements"
    for axis, reads in enumerate(maps):
        inside = [i for i in reads if i >= 0]
        if tuple(inside) != tuple(range(shape[axis])) and inside:
            result, count = _picked(new, result, axis, inside), count + 1
        elif not inside and shape[axis]:
            return "nothing is left of an axis"
    padded = tuple(map(len, maps))
    if padded != new.shape(result):
        if fill is None:
            return "an empty axis is read"
        before = tuple(next((j for j, i in enumerate(m) if i >= 0), 0) for m in maps)
        result, count = new.emit("pad", result, before=before, shape=padded, value=fill), count + 1
    if count > 1:
        return "more than one movement is left"
    return new.finish(d.outputs[0], result) if count else new.equal(d.outputs[0], result)


def _same_number(a: Attribute, b: Attribute) -> bool:
    """Whether two fills are the same, NaN and the sign of zero included."""
    one, other = (repr(v if isinstance(v, bool) else float(str(v))) for v in (a, b))
    return one == other


def _between_zeros(reads: tuple[int, ...]) -> bool:
    inside = [j for j, i in enumerate(reads) if i >= 0]
    return bool(inside) and len(inside) != inside[-1] - inside[0] + 1


def _picked(new: Replacement, value: str, axis: int, indices: Sequence[int]) -> str:
    """Evenly spaced elements are a slice, others a take."""
    shape = list(new.shape(value))
    steps = {q - p for p, q in pairwise(indices)} or {1}
    if len(steps) > 1 or 0 in steps:
        return new.emit("take", value, axis=axis, indices=tuple(indices))
    starts, strides = [0] * len(shape), [1] * len(shape)
    starts[axis], strides[axis], shape[axis] = indices[0], steps.pop(), len(indices)
    return new.emit("slice", value, starts=tuple(starts), steps=tuple(strides), shape=tuple(shape))


def slice_of_concat(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """slice(concat(x_1, x_2, …)) = a slice of the x_i alone that it reads."""
    concat = match.definition(d.inputs[0], "concat")
    if concat is None:
        return ""
    axis, starts, steps, shape = concat.int("axis"), d.ints("starts"), d.ints("steps"), d.ints("shape")
    if shape[axis] == 0:
        return "the slice is empty"
    ends = sorted((starts[axis], starts[axis] + (shape[axis] - 1) * steps[axis]))
    first = 0
    for part in concat.inputs:
        size = match.shape(part)[axis]
        if first <= ends[0] and ends[1] < first + size:
            inner = tuple(s - first if k == axis else s for k, s in enumerate(starts))
            if shape == match.shape(part) and not any(inner):
                return new.equal(d.outputs[0], part)
            return new.end(d.outputs[0], "slice", part, starts=inner, steps=steps, shape=shape)
        first += size
    return "the slice reads more than one part"


def slice_into_weights(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """slice(L(x, w)) = L(x, slice(w)) along the output channels, where only slices read the linear result."""
    linear = linear_behind(match, d.inputs[0])
    if not isinstance(linear, Linear):
        return linear
    if match.rule_of(d) != "model":
        return ""  # that would undo a merge
    shape, whole = match.shape(d.outputs[0]), match.shape(d.inputs[0])
    starts, steps = d.ints("starts"), d.ints("steps")
    others = (k for k in range(len(shape)) if k != linear.axis)
    if any(shape[k] != whole[k] or starts[k] or steps[k] != 1 for k in others):
        return "the slice is not along the channels"
    if linear.groups != 1:
        return "the convolution has groups"
    if match.is_output(d.inputs[0]) or any(u.primitive != "slice" for u in match.users(d.inputs[0])):
        return "the whole result is used too"
    index = starts[linear.axis] + steps[linear.axis] * np.arange(shape[linear.axis])
    weight = new.constant(np.take(linear.weight, index, axis=0 if linear.d.primitive == "conv" else 1))
    changed: dict[str, Attribute] = {"shape": shape} if linear.d.primitive == "conv_transpose" else {}
    return new.finish(d.outputs[0], new.again(linear.d, linear.d.inputs[0], weight, **changed))


def orders_merged(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """reshapes and transposes after one another = one reshape, or one transpose, where that moves the elements alike.

    A reshape alone costs nothing, so only what saves a transpose is of use.
    """
    value, steps = d.inputs[0], [d]
    best: tuple[str, list[Definition]] | None = None
    while (step := next((x for x in match.definers(value) if x.primitive in _ORDERS), None)) is not None:
        steps.insert(0, step)
        value = step.inputs[0]
        perm = _order_of(match, steps)
        if perm is not None and _transposes(steps) > bool(perm):
            best = value, list(steps)
    if best is None:
        return "no transpose is saved" if _transposes(steps) > 1 else ""
    users = match.users(d.outputs[0])
    if users and not match.is_output(d.outputs[0]) and all(u.primitive in _ORDERS for u in users):
        return "the movements go on"
    source, steps = best
    if any(match.used_elsewhere(step.inputs[0], step) for step in steps[1:]):
        return "a value between is needed anyway, and lies in memory as it may be read"
    perm = _order_of(match, steps)
    assert perm is not None
    if perm:
        return new.end(d.outputs[0], "transpose", source, perm=perm)
    return new.end(d.outputs[0], "reshape", source, shape=match.shape(d.outputs[0]))


def _transposes(steps: Sequence[Definition]) -> int:
    return sum(step.primitive == "transpose" for step in steps)


def _order_of(match: Match, steps: Sequence[Definition]) -> tuple[int, ...] | None:
    """The permutation that the steps are in all; () for a reshape; None for neither.

    Decided on strides: each step's value is the source in mixed radix, so what matters is which source stride every
    dimension (of a size other than 1) steps by. A reshape that merges dimensions which do not lie in order is refused.
    """
    shape = match.shape(steps[0].inputs[0])
    dims = _row_major(shape)
    for step in steps:
        if step.primitive == "transpose":
            dims = [dims[p] for p in step.ints("perm")]
            continue
        regrouped = _regrouped(dims, step.ints("shape"))
        if regrouped is None:
            return None
        dims = regrouped
    target = [n for n, _ in dims]
    if [s for n, s in dims if n != 1] == [s for n, s in _row_major(target) if n != 1]:
        return ()
    source = _row_major(shape)
    if sorted(d for d in dims if d[0] != 1) != sorted(d for d in source if d[0] != 1) or len(dims) != len(shape):
        return None
    left = list(range(len(shape)))
    perm: list[int] = []
    for n, s in dims:
        k = next(k for k in left if shape[k] == n and (n == 1 or source[k][1] == s))
        left.remove(k)
        perm.append(k)
    return tuple(perm)


def _row_major(shape: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    stride = 1
    for n in reversed(shape):
        found.insert(0, (n, stride))
        stride *= n
    return found


def _regrouped(dims: Sequence[tuple[int, int]], shape: Sequence[int]) -> list[tuple[int, int]] | None:
    """(size, stride) of each dimension after a reshape, or None where a new dimension has no one stride."""
    if any(n == 0 for n in shape):
        return None
    found: list[tuple[int, int]] = []
    left = [d for d in dims if d[0] != 1]
    for wanted in reversed(shape):
        if wanted == 1:
            found.insert(0, (1, 0))
            continue
        size, stride = left.pop()
        while size < wanted:
            if not left or left[-1][1] != stride * size:
                return None
            size, (more, _) = size * left[-1][0], left.pop()
            del more
        if size % wanted:
            return None
        if size > wanted:
            left.append((size // wanted, stride * wanted))
        found.insert(0, (wanted, stride))
    return found


def order_around_elementwise(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """M(f(N(x), N(y), …)) = f(x, y, …) for movements M and N (transposes, reshapes) that undo each other, and
    f(MN(x), MN(y), …) where MN is one movement."""
    inner = next((x for x in match.definers(d.inputs[0]) if TABLE[x.primitive].kind == "elementwise"), None)
    if inner is None:
        return ""
    if match.used_elsewhere(d.inputs[0], d):
        return "the value is needed in this order too"
    plan = _Reordered(match, new, d)
    value = plan.value(d.inputs[0], 8)
    if value is None:
        return plan.reason
    if not plan.cancelled:
        return ""
    return new.finish(d.outputs[0], value)


class _Reordered:
    """Computes values in the order that a movement would give them, without it."""

    def __init__(self, match: Match, new: Replacement, move: Definition) -> None:
        self.match, self.new, self.move = match, new, move
        self.cancelled = 0
        self.reason = ""
        self._done: dict[str, str | None] = {}

    def value(self, of: str, depth: int) -> str | None:
        """The moved value, or None: `reason` says why."""
        if of not in self._done:
            self._done[of] = self._compute(of, depth)
        return self._done[of]

    def _compute(self, of: str, depth: int) -> str | None:
        match, new, move = self.match, self.new, self.move
        if match.constant(of) is not None:
            return self._constant(of)
        for d in match.definers(of):
            if d.primitive in _ORDERS:
                perm = _order_of(match, [d, move])
                if perm is not None and (not perm or move.primitive == "transpose"):
                    self.cancelled += 1
                    return self._moved(d.inputs[0], perm)
            if TABLE[d.primitive].kind == "elementwise" and depth:
                inputs = [self.value(v, depth - 1) for v in d.inputs]
                if any(v is None for v in inputs):
                    return None
                return new.again(d, *(v for v in inputs if v is not None))
        self.reason = "an operand does not come out of a movement that is undone"
        return None

    def _moved(self, source: str, perm: tuple[int, ...]) -> str:
        shape = self.match.shape(self.move.outputs[0])
        if perm:
            return self.new.emit("transpose", source, perm=perm)
        return source if self.match.shape(source) == shape else self.new.emit("reshape", source, shape=shape)

    def _constant(self, of: str) -> str | None:
        """A constant in the new order: a broadcast whose axes move along."""
        new, move = self.new, self.move
        target = self.match.shape(move.outputs[0])
        spread = self.match.definition(of, "broadcast")
        if spread is not None and not spread.ints("axes"):
            return new.emit("broadcast", spread.inputs[0], shape=target, axes=())
        array = self.match.constant(of)
        assert array is not None
        moved = array.transpose(move.ints("perm")) if move.primitive == "transpose" else array.reshape(target)
        kept = [k for k, (n, s) in enumerate(zip(moved.shape, moved.strides, strict=True)) if n != 1 and s]
        if len(kept) == moved.ndim:
            return new.constant(moved)
        small = moved[tuple(slice(None) if k in kept else 0 for k in range(moved.ndim))]
        return new.emit("broadcast", new.constant(small), shape=target, axes=tuple(kept))


def _order_before_reduce(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    move = match.definition(d.inputs[0], "transpose")
    if move is None:
        return ""
    if match.used_elsewhere(d.inputs[0], d):
        return "the transposed value is needed too"
    perm, axes = move.ints("perm"), d.ints("axes")
    kept = [p for k, p in enumerate(perm) if k not in axes]
    inner = tuple(sorted(perm[a] for a in axes))
    order = tuple(sorted(kept).index(p) for p in kept)
    result = new.emit(d.primitive, move.inputs[0], axes=inner)
    if order == tuple(range(len(order))):
        return new.finish(d.outputs[0], result) if new.definitions else new.equal(d.outputs[0], result)
    return new.end(d.outputs[0], "transpose", result, perm=order)


def order_before_extreme(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """max(transpose(x)) = transpose(max(x)) over the moved axes; likewise min."""
    return _order_before_reduce(match, d, new)


def order_before_sum(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """sum(transpose(x)) = transpose(sum(x)) over the moved axes; likewise products."""
    return _order_before_reduce(match, d, new)


def transposed_product(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """(a b)^T = b^T a^T, where a or b is a transpose or a constant, which takes the transposition in."""
    product = match.definition(d.inputs[0], "matmul")
    rank = match.types[d.inputs[0]].rank
    swap = (*range(rank - 2), rank - 1, rank - 2)
    if product is None:
        return ""
    if d.ints("perm") != swap:
        return "the transpose moves other dimensions than the product's two"
    if match.used_elsewhere(d.inputs[0], d):
        return "the product is needed in this order too"
    a, b = product.inputs
    if match.types[b].rank != rank:
        return "the second operand has no batch dimensions to go first with"
    ta, tb = (match.definition(v, "transpose") for v in (a, b))
    undone = [t is not None and t.ints("perm") == swap for t in (ta, tb)]
    if not any(undone):
        return "neither operand is transposed"
    left = tb.inputs[0] if tb is not None and undone[1] else new.emit("transpose", b, perm=swap)
    right = ta.inputs[0] if ta is not None and undone[0] else new.emit("transpose", a, perm=swap)
    return new.end(d.outputs[0], "matmul", left, right)


LAYOUT: tuple[Rule, ...] = (
    Rule(EXACT, ("conv", "window_sum", "window_max"), pad_into_window),
    Rule(EXACT, ("take", "slice", "pad"), picks_merged),
    Rule(EXACT, ("slice",), slice_of_concat),
    Rule(EXACT, ("slice",), slice_into_weights),
    Rule(EXACT, ("reshape", "transpose"), orders_merged),
    Rule(EXACT, ("reshape", "transpose"), order_around_elementwise),
    Rule(EXACT, ("reduce_max", "reduce_min"), order_before_extreme),
    Rule(REASSOCIATES, ("reduce_sum", "reduce_prod"), order_before_sum),
    Rule(EXACT, ("transpose",), transposed_product),
)
