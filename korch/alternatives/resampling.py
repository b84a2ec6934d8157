"""Linear primitives on different axes commuted; convolutions of spread inputs made dense ones on the small input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from korch.alternatives.reading import Linear, linear_of, rounded
from korch.alternatives.rule import EXACT, REASSOCIATES, Match, Replacement, Rule
from korch.ir.graph import Definition


def pointwise_before_enlarging(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """P(concat_i(R_i(x_i)), p) = sum_i R_i(P(x_i, p_i)) for a product or 1x1 convolution P over the channels, R_i being
    resamplings, repetitions and reshapes of other axes; p_i are the weight's rows for the channels of part i."""
    linear = linear_of(match, d)
    if linear == "":
        return ""
    axis = match.types[d.inputs[0]].rank - 1 if d.primitive == "matmul" else 1
    concat = match.definition(d.inputs[0], "concat")
    parts = concat.inputs if concat is not None and concat.int("axis") == axis else d.inputs[:1]
    chains = [_enlarging(match, part, axis) for part in parts]
    if not any(chain for chain, _ in chains):
        return ""
    if not isinstance(linear, Linear):
        return linear
    if not linear.pointwise:
        return "the convolution reads more than one position"
    if linear.groups != 1:
        return "the convolution has groups"
    if len(parts) > 8:
        return "more than 8 parts"
    if len(parts) > 1 and not _pays(match, parts, chains, axis, linear.channels[1]):
        return "adding up the parts costs more than the convolution saves"
    total, first = "", 0
    value = ""
    for part, (chain, source) in zip(parts, chains, strict=True):
        channels = match.shape(part)[axis]
        rows = slice(first, first + channels)
        first += channels
        weight = linear.weight[rows] if d.primitive == "matmul" else linear.weight[:, rows]
        value = new.again(d, source, new.constant(np.ascontiguousarray(weight)))
        for step in chain:
            value = _replay(match, new, step, value, axis, linear.channels[1])
        total = new.emit("add", total, value) if total else value
    return new.finish(d.outputs[0], total)


def _pays(
    match: Match, parts: Sequence[str], chains: Sequence[tuple[list[Definition], str]], axis: int, outer: int
) -> bool:
    """Whether the multiplications saved outnumber the additions of the parts by far."""
    pairs = zip(parts, chains, strict=True)
    saved = outer * sum(match.types[part].elements - match.types[source].elements for part, (_, source) in pairs)
    rows = match.types[parts[0]].elements // max(1, match.shape(parts[0])[axis])
    return saved > 8 * (len(parts) - 1) * rows * outer


def _enlarging(match: Match, value: str, axis: int) -> tuple[list[Definition], str]:
    """What a value went through last that enlarges it beside the channels, in its order, and what it began with. The
    shortest such chain that ends in the smallest value; empty where none is smaller."""
    chain: list[Definition] = []
    best: tuple[list[Definition], str] = ([], value)
    smallest = match.types[value].elements
    while True:
        d = next((x for x in match.definers(value) if _keeps_channels(match, x, axis)), None)
        if d is None:
            return best
        chain.insert(0, d)
        value = d.inputs[0]
        if match.types[value].elements < smallest:
            smallest, best = match.types[value].elements, (list(chain), value)


def _keeps_channels(match: Match, d: Definition, axis: int) -> bool:
    """Whether a definition leaves the channels where they are and treats them alike."""
    if d.primitive in ("resample", "take"):
        return d.int("axis") != axis
    if d.primitive == "broadcast":
        x, axes = match.shape(d.inputs[0]), d.ints("axes")
        return axes == tuple(range(len(d.ints("shape")))) and x[axis] == d.ints("shape")[axis]
    return False


def _replay(match: Match, new: Replacement, step: Definition, value: str, axis: int, channels: int) -> str:
    if step.primitive != "broadcast":
        return new.again(step, value)
    shape = list(step.ints("shape"))
    shape[axis] = channels
    return new.again(step, value, shape=tuple(shape))


def sum_before_resampling(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """R(x) + R(y) = R(x + y) for a resampling R that enlarges: one resampling, and fewer additions."""
    for primitive in ("resample", "take"):
        a, b = (match.definition(v, primitive) for v in d.inputs)
        if a is None or b is None or a.attributes != b.attributes or d.inputs[0] == d.inputs[1]:
            continue
        if match.shape(a.inputs[0]) != match.shape(b.inputs[0]):
            continue
        if match.types[a.inputs[0]].elements > match.types[d.outputs[0]].elements:
            return "the resampling makes its input smaller"
        return new.end(d.outputs[0], primitive, new.emit("add", a.inputs[0], b.inputs[0]), **dict(a.attributes))
    return ""


# --- Sub-pixel convolutions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phases:
    """How a spread convolution reads its small input along one axis.

    Output o = count * q + phase - shift reads the small input's elements q * stride + first + j for j in `taps[phase]`,
    which lists for each j the taps of the original kernel that fall there (their weights are added).
    """

    count: int
    shift: int
    stride: int
    first: int
    taps: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def width(self) -> int:
        return len(self.taps[0])


def phases_of(reads: dict[int, list[tuple[int, int]]], count: int, step: int) -> Phases:
    """The phases with the narrowest kernel. `reads[o]` for o in 0..2*count-1 lists (tap, element of the small input);
    output o + count reads `step` elements further on."""
    best: Phases | None = None
    for shift in range(count):
        found: list[list[tuple[int, int]]] = []
        for phase in range(count):
            o = phase - shift
            source = reads[o] if o >= 0 else [(k, e - step) for k, e in reads[o + count]]
            found.append(source)
        elements = [e for phase in found for _, e in phase]
        low, high = min(elements), max(elements)
        taps = tuple(
            tuple(tuple(k for k, e in phase if e == low + j) for j in range(high - low + 1)) for phase in found
        )
        if best is None or len(taps[0]) < best.width:
            best = Phases(count, shift, step, low, taps)
    assert best is not None
    return best


def _phased(
    new: Replacement, value: str, x: str, weight: np.ndarray, axes: Sequence[Phases], like: np.dtype
) -> Replacement | str:
    """One dense convolution whose output channels hold all phases, and the phases brought side by side.

    `weight` is [O, C, kernel…] in float64, `axes` the phases of each spatial dimension.
    """
    shape = new.match.shape(value)
    counts = [p.count for p in axes]
    dense = np.zeros((*counts, *weight.shape[:2], *(p.width for p in axes)))
    for phase in itertools.product(*map(range, counts)):
        for place in itertools.product(*(range(p.width) for p in axes)):
            groups = [p.taps[phase[k]][place[k]] for k, p in enumerate(axes)]
            for tap in itertools.product(*groups):
                dense[(*phase, slice(None), slice(None), *place)] += weight[(slice(None), slice(None), *tap)]
    dense = dense.reshape(math.prod(counts) * weight.shape[0], weight.shape[1], *(p.width for p in axes))
    narrow = np.zeros(0, like)
    folded = rounded(dense, narrow)
    if isinstance(folded, str):
        return folded
    size = [-(-(n + p.shift) // p.count) for n, p in zip(shape[2:], axes, strict=True)]
    inputs = new.shape(x)[2:]
    before = [-p.first for p in axes]
    after = [(m - 1) * p.stride + p.first + p.width - n for m, p, n in zip(size, axes, inputs, strict=True)]
    if any(b < 0 for b in before) or any(a < 0 for a in after):
        x, before, after = _cut(new, x, before, after)
    dims = len(axes)
    result = new.emit(
        "conv",
        x,
        new.constant(folded),
        strides=tuple(p.stride for p in axes),
        dilations=(1,) * dims,
        pads=(*before, *after),
        groups=1,
    )
    # [N, phases… , O, size…] -> [N, O, size0, phase0, size1, phase1, …]
    result = new.emit("reshape", result, shape=(shape[0], *counts, shape[1], *size))
    perm = (0, 1 + dims, *(a for k in range(dims) for a in (2 + dims + k, 1 + k)))
    result = new.emit("transpose", result, perm=perm)
    whole = (*shape[:2], *(m * p.count for m, p in zip(size, axes, strict=True)))
    starts = (0, 0, *(p.shift for p in axes))
    if whole == shape and not any(starts):
        return new.end(value, "reshape", result, shape=shape)
    result = new.emit("reshape", result, shape=whole)
    return new.end(value, "slice", result, starts=starts, steps=(1,) * len(shape), shape=shape)


def _cut(new: Replacement, x: str, before: list[int], after: list[int]) -> tuple[str, list[int], list[int]]:
    """Negative pads as a slice of the input."""
    shape = new.shape(x)
    starts = (0, 0, *(max(0, -b) for b in before))
    kept = tuple(n - max(0, -b) - max(0, -a) for n, b, a in zip(shape[2:], before, after, strict=True))
    x = new.emit("slice", x, starts=starts, steps=(1,) * len(shape), shape=(*shape[:2], *kept))
    return x, [max(0, b) for b in before], [max(0, a) for a in after]


def repeated_then_convolved(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """conv(up(x), w) = phases side by side of conv(x, w'), where up repeats every element r times (nearest upsampling,
    then any border of zeros or repeated elements that repeats in the same blocks); w' adds up the taps of w that read
    one element. Of a 3x3 kernel after doubling, 4 taps are left of 9."""
    linear = linear_of(match, d)
    if linear == "":
        return ""
    dims = len(match.shape(d.outputs[0])) - 2
    source, maps, moved = spatial_maps(match, d.inputs[0], d.ints("pads"))
    if not moved:
        return ""
    spread = [_repeats(m) for m in maps]
    if all(r == 1 for r, _, _ in spread):
        again = any(len(set(m)) < len(m) - m.count(-1) for m in maps)
        return "elements are repeated, but not in blocks of one size" if again else ""
    if not isinstance(linear, Linear):
        return linear
    if linear.groups != 1:
        return "the convolution has groups"
    picks = [_without_zeros(small) for _, _, small in spread]
    if any(-1 in picked or not picked for _, picked in picks):
        return "there are zeros between the elements"
    kernel, outputs = linear.weight.shape[2:], match.shape(d.outputs[0])[2:]
    axes: list[Phases] = []
    for k in range(dims):
        (r, offset, _), (zeros, _) = spread[k], picks[k]
        stride, dilation = d.ints("strides")[k], d.ints("dilations")[k]
        count = r // math.gcd(r, stride)
        reads = {
            o: [(t, (o * stride + t * dilation + offset) // r - zeros) for t in range(kernel[k])]
            for o in range(2 * count)
        }
        axes.append(phases_of(reads, count, count * stride // r))
    if math.prod(p.width * p.count for p in axes) * math.prod(
        -(-n // p.count) for n, p in zip(outputs, axes, strict=True)
    ) >= math.prod(kernel) * math.prod(outputs):
        return "as many multiplications as before"
    small = source
    for k, (_, picked) in enumerate(picks):
        if picked != tuple(range(new.shape(small)[2 + k])):
            small = new.emit("take", small, axis=2 + k, indices=picked)
    return _phased(new, d.outputs[0], small, linear.weight.astype(np.float64), axes, linear.weight.dtype)


def spatial_maps(match: Match, value: str, pads: Sequence[int]) -> tuple[str, list[tuple[int, ...]], bool]:
    """What a value is made of by taking and padding with zeros along its axes from 2 on, together with the pads around
    it: the source, per axis the element read at each position (-1 is zero), and whether anything was taken."""
    dims = match.types[value].rank - 2
    maps = [
        (-1,) * pads[k] + tuple(range(match.shape(value)[2 + k])) + (-1,) * pads[dims + k] for k in range(dims)
    ]
    moved = False
    while True:
        step = next((x for x in match.definers(value) if _is_spatial_move(match, x)), None)
        if step is None:
            return value, maps, moved
        inner = axis_maps(match, step)[2:]
        maps = [tuple(-1 if i < 0 else m[i] for i in outer) for outer, m in zip(maps, inner, strict=True)]
        value, moved = step.inputs[0], True


def _is_spatial_move(match: Match, d: Definition) -> bool:
    if d.primitive == "pad" and (d.attribute("value") != 0 or np.signbit(float(str(d.attribute("value"))))):
        return False
    if d.primitive not in ("take", "pad", "slice"):
        return False
    if d.primitive == "take":
        return d.int("axis") >= 2
    maps, shape = axis_maps(match, d), match.shape(d.inputs[0])
    return all(maps[k] == tuple(range(shape[k])) for k in (0, 1))


def axis_maps(match: Match, d: Definition) -> list[tuple[int, ...]]:
    """Per axis, the element that a take, slice or pad reads at each output position; -1 where it fills."""
    x = match.shape(d.inputs[0])
    if d.primitive == "take":
        return [d.ints("indices") if k == d.int("axis") else tuple(range(n)) for k, n in enumerate(x)]
    if d.primitive == "slice":
        columns = zip(d.ints("starts"), d.ints("steps"), d.ints("shape"), strict=True)
        return [tuple(range(a, a + s * n, s)) if n else () for a, s, n in columns]
    columns = zip(x, d.ints("before"), d.ints("shape"), strict=True)
    return [tuple(o - b if 0 <= o - b < n else -1 for o in range(m)) for n, b, m in columns]


def _repeats(reads: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    """(r, offset, small): position j reads small[(j + offset) // r], for the greatest such r."""
    if len(reads) < 2:
        return 1, 0, reads
    runs = [len(list(group)) for _, group in itertools.groupby(reads)]
    if all(n == 1 for n in runs):
        return 1, 0, reads
    for r in range(max(runs), 1, -1):
        for offset in range(r):
            blocks = [reads[max(0, a) : a + r] for a in range(-offset, len(reads), r)]
            if all(len(set(b)) == 1 for b in blocks):
                return r, offset, tuple(b[0] for b in blocks)
    return 1, 0, reads


def _without_zeros(reads: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """How many zeros come first, and what is left between the first ones and the last ones."""
    inside = [j for j, i in enumerate(reads) if i >= 0]
    return (inside[0], reads[inside[0] : inside[-1] + 1]) if inside else (0, ())


def transposed_as_convolution(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """conv_transpose(x, w) with strides s = s phases side by side of conv(x, w'), where w' holds, reversed, the taps of
    w that reach an output of that phase; with strides 1 one convolution with the kernel reversed."""
    linear = linear_of(match, d)
    if not isinstance(linear, Linear):
        return linear
    if linear.groups != 1:
        return "the transposed convolution has groups"
    kernel = linear.weight.shape[2:]
    axes: list[Phases] = []
    for k, size in enumerate(kernel):
        stride, dilation, pad = d.ints("strides")[k], d.ints("dilations")[k], d.ints("pads")[k]
        reads = {
            o: [
                (t, (o + pad - t * dilation) // stride)
                for t in range(size)
                if (o + pad - t * dilation) % stride == 0
            ]
            for o in range(2 * stride)
        }
        axes.append(phases_of(reads, stride, 1))
    weight = linear.weight.astype(np.float64).swapaxes(0, 1)
    return _phased(new, d.outputs[0], d.inputs[0], weight, axes, linear.weight.dtype)


def dilated_in_phases(match: Match, d: Definition, new: Replacement) -> Replacement | str:
    """conv(x, w) with dilations d = conv over the d interleaved parts of x as a batch, without dilations, its results
    interleaved again."""
    if match.types[d.outputs[0]].rank < 3 or all(v == 1 for v in d.ints("dilations")):
        return ""
    shape, x, w = match.shape(d.outputs[0]), d.inputs[0], d.inputs[1]
    dims = len(shape) - 2
    strides, dilations, pads = d.ints("strides"), d.ints("dilations"), d.ints("pads")
    kernel = match.shape(w)[2:]
    steps = [n if k > 1 else 1 for n, k in zip(dilations, kernel, strict=True)]
    if all(n == 1 for n in steps):
        return "the dilated axes have one tap"
    if any(n > 1 and s > 1 for n, s in zip(steps, strides, strict=True)):
        return "a strided axis is dilated"
    if min(shape) == 0 or any(-(-n // m) < 2 for n, m in zip(shape[2:], steps, strict=True)):
        return "an interleaved part has one position only"
    # Along a dilated axis, parts of equal length: output o is position o // n of part o % n, and reads from there on.
    lengths = [-(-n // m) + k - 1 for n, m, k in zip(shape[2:], steps, kernel, strict=True)]
    inner = match.shape(x)
    whole = [
        length * m if m > 1 else n + pads[k] + pads[dims + k]
        for k, (length, m, n) in enumerate(zip(lengths, steps, inner[2:], strict=True))
    ]
    before = [pads[k] for k in range(dims)]
    padded = (*inner[:2], *whole)
    if padded != inner or any(before):
        x = new.emit("pad", x, before=(0, 0, *before), shape=padded, value=0.0)
    split = [v for length, m in zip(whole, steps, strict=True) for v in (length // m, m)]
    x = new.emit("reshape", x, shape=(*inner[:2], *split))
    parts, places = [3 + 2 * k for k in range(dims)], [2 + 2 * k for k in range(dims)]
    x = new.emit("transpose", x, perm=(0, *parts, 1, *places))
    batch = inner[0] * math.prod(steps)
    x = new.emit("reshape", x, shape=(batch, inner[1], *(n // m for n, m in zip(whole, steps, strict=True))))
    y = new.again(d, x, w, dilations=(1,) * dims, pads=(0,) * (2 * dims))
    size = new.shape(y)[2:]
    y = new.emit("reshape", y, shape=(inner[0], *steps, shape[1], *size))
    y = new.emit("transpose", y, perm=(0, 1 + dims, *(a for k in range(dims) for a in (2 + dims + k, 1 + k))))
    joined = (*shape[:2], *(n * m for n, m in zip(size, steps, strict=True)))
    if joined == shape:
        return new.end(d.outputs[0], "reshape", y, shape=shape)
    y = new.emit("reshape", y, shape=joined)
    return new.end(d.outputs[0], "slice", y, starts=(0,) * len(shape), steps=(1,) * len(shape), shape=shape)


RESAMPLING: tuple[Rule, ...] = (
    Rule(REASSOCIATES, ("conv", "matmul"), pointwise_before_enlarging),
    Rule(REASSOCIATES, ("add",), sum_before_resampling),
    Rule(REASSOCIATES, ("conv",), repeated_then_convolved),
    Rule(REASSOCIATES, ("conv_transpose",), transposed_as_convolution),
    Rule(EXACT, ("conv",), dilated_in_phases),
)
