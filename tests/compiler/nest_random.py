"""Random fragments over the primitive table, with random layouts, odd sizes and several outputs."""

from __future__ import annotations

import math
import random

import numpy as np

from korch.ir.fragment import Fragment
from korch.ir.layout import Layout
from korch.ir.types import DType
from tests.compiler.nest_cases import Make

FLOAT_UNARY = ("neg", "abs", "tanh", "floor", "sin", "erf", "sign", "round")
INTEGER_UNARY = ("neg", "abs", "sign", "not")
FLOAT_BINARY = ("add", "sub", "mul", "max", "min")
INTEGER_BINARY = ("add", "sub", "mul", "max", "min", "div", "mod", "and", "xor")


def random_fragment(seed: int) -> Fragment:
    """A fragment with 2 to 9 primitives, at most one of them linear."""
    rng = random.Random(seed)
    m = Make()
    dtype = rng.choice([DType.FLOAT32] * 6 + [DType.INT32, DType.INT64, DType.FLOAT16, DType.BFLOAT16, DType.INT8])
    values = [m.input(*_shape(rng), dtype=dtype) for _ in range(rng.randint(1, 2))]
    linear = False
    for _ in range(rng.randint(2, 9)):
        grow = rng.choice(GROWTH)
        if grow is _linear and linear:
            continue
        found = grow(rng, m, values)
        if found is None or m.types[found].elements > 6000:
            continue
        linear |= grow is _linear
        values.append(found)
    computed = [v for v in values if v not in m.inputs]
    if not computed:
        computed = [m("abs", values[0])]
    outputs = [computed[-1], *rng.sample(computed, min(len(computed), rng.choice([0, 0, 1, 2])))]
    outputs = list(dict.fromkeys(outputs))
    layouts = {v: _layout(rng, m.types[v].shape) for v in (*m.inputs, *outputs)}
    return m.fragment(*outputs, layouts=layouts)


def random_inputs(fragment: Fragment, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for v in fragment.graph.input_values:
        t = fragment.graph.types[v]
        if t.dtype.is_float:
            found[v] = rng.standard_normal(t.shape).astype(np.float32).astype(t.dtype.numpy)
        elif t.dtype is DType.BOOL:
            found[v] = rng.integers(0, 2, t.shape).astype(bool)
        else:
            found[v] = rng.integers(-9, 10, t.shape).astype(t.dtype.numpy)
    return found


def _shape(rng: random.Random) -> tuple[int, ...]:
    rank = rng.choice([0, 1, 2, 3, 3, 4, 4])
    most = {0: 1, 1: 200, 2: 40, 3: 19, 4: 11}[rank]
    return tuple(rng.choice([1, 2, 3, rng.randint(1, most), rng.randint(1, most)]) for _ in range(rank))


def _layout(rng: random.Random, shape: tuple[int, ...]) -> Layout:
    kind = rng.random()
    if kind < 0.4 or len(shape) < 2:
        return Layout.row_major(shape)
    if kind < 0.6:
        return Layout.channels_last(shape)
    order = list(range(len(shape)))
    rng.shuffle(order)
    dense = Layout.canonical(shape, tuple(order))
    if kind < 0.9:
        return dense
    outer = next((d for d in dense.order if shape[d] > 1), None)
    if outer is None:
        return dense
    strides = list(dense.strides_of(shape))
    strides[outer] += rng.randint(1, 9)
    return Layout.canonical(shape, tuple(order), tuple(strides))


def _pick(rng: random.Random, values: list[str]) -> str:
    return values[-1] if rng.random() < 0.6 else rng.choice(values)


def _unary(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    dtype = m.types[x].dtype
    if dtype is DType.BOOL:
        return m("not", x)
    return m(rng.choice(FLOAT_UNARY if dtype.is_float else INTEGER_UNARY), x)


def _binary(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.dtype is DType.BOOL:
        return None
    same = [v for v in values if m.types[v] == t]
    smaller = [v for v in values if m.types[v].dtype is t.dtype and _fits(m.types[v].shape, t.shape)]
    y = rng.choice(same)
    if rng.random() < 0.5:
        small = rng.choice(smaller)
        rank = len(m.types[small].shape)
        axes = tuple(range(len(t.shape) - rank, len(t.shape)))
        y = m("broadcast", small, shape=t.shape, axes=axes)
    elif rng.random() < 0.3:
        y = m.full(rng.choice([0.5, 2, 3]) if t.dtype.is_float else 3, x)
    if rng.random() < 0.15:
        c = m(rng.choice(["lt", "le", "eq"]), x, y)
        return m("where", c, x, y)
    return m(rng.choice(FLOAT_BINARY if t.dtype.is_float else INTEGER_BINARY), x, y)


def _fits(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    if len(small) > len(large):
        return False
    tail = large[len(large) - len(small) :]
    return all(a in (1, b) for a, b in zip(small, tail, strict=True))


def _cast(rng: random.Random, m: Make, values: list[str]) -> str | None:
    return m("cast", _pick(rng, values), to=rng.choice(["float32", "int64", "bool", "float16", "uint8"]))


def _reduce(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.rank == 0:
        return None
    axes = tuple(sorted(rng.sample(range(t.rank), rng.randint(1, t.rank))))
    if rng.random() < 0.2:
        return m(rng.choice(["arg_max", "arg_min"]), x, axis=axes[0], last=rng.random() < 0.5)
    kinds = ["reduce_max", "reduce_min"] + ([] if t.dtype is DType.BOOL else ["reduce_sum"] * 2)
    return m(rng.choice(kinds), x, axes=axes)


def _normalise(rng: random.Random, m: Make, values: list[str]) -> str | None:
    """x minus or divided by what a reduction gives: reads its input twice."""
    x = _pick(rng, values)
    t = m.types[x]
    if t.rank == 0 or t.dtype is DType.BOOL:
        return None
    axes = tuple(sorted(rng.sample(range(t.rank), rng.randint(1, t.rank))))
    kept = tuple(d for d in range(t.rank) if d not in axes)
    s = m(rng.choice(["reduce_sum", "reduce_max"]), x, axes=axes)
    if t.dtype.is_float and rng.random() < 0.7:
        s = m("tanh", m("mul", s, m.full(0.25, s)))
    return m(rng.choice(["sub", "mul"]), x, m("broadcast", s, shape=t.shape, axes=kept))


def _window(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.rank < 2 or t.dtype is DType.BOOL:
        return None
    window, strides, dilations, pads, shape = [], [], [], [], []
    for d, n in enumerate(t.shape):
        plain = d < t.rank - 2
        w = 1 if plain else rng.randint(1, 4)
        s = 1 if plain else rng.randint(1, 3)
        k = 1 if plain else rng.randint(1, 2)
        p = 0 if plain else rng.randint(-1, 2)
        window.append(w), strides.append(s), dilations.append(k), pads.append(p)
        shape.append(n if plain else max(1, (n + 2 * max(p, 0) - (w - 1) * k - 1) // s + rng.randint(0, 2)))
    kind = rng.choice(["window_max", "window_sum"])
    fields = (window, strides, dilations, pads, shape)
    names = ("window", "strides", "dilations", "pads", "shape")
    return m(kind, x, **{n: tuple(f) for n, f in zip(names, fields, strict=True)})


def _reshape(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    left = m.types[x].elements
    shape: list[int] = []
    while left > 1 and len(shape) < 4:
        n = rng.choice([d for d in range(1, left + 1) if left % d == 0])
        shape.append(n)
        left //= n
    return m("reshape", x, shape=(*shape, left))


def _transpose(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    perm = list(range(m.types[x].rank))
    rng.shuffle(perm)
    return m("transpose", x, perm=tuple(perm))


def _slice(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    starts, steps, shape = [], [], []
    for n in m.types[x].shape:
        if rng.random() < 0.5:
            starts.append(0), steps.append(1), shape.append(n)
            continue
        start, step = rng.randrange(n), rng.choice([1, 1, 2, -1, -2, 3])
        room = (n - 1 - start) // step + 1 if step > 0 else start // -step + 1
        starts.append(start), steps.append(step), shape.append(rng.randint(1, room))
    return m("slice", x, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape))


def _pad(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    before = [rng.choice([0, 0, 1, 2, -1]) for _ in t.shape]
    shape = [max(1, n + b + rng.choice([0, 0, 1, 3, -1])) for n, b in zip(t.shape, before, strict=True)]
    value: object = rng.random() < 0.5 if t.dtype is DType.BOOL else 1.5 if t.dtype.is_float else 3
    return m("pad", x, before=tuple(before), shape=tuple(shape), value=value)


def _concat(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.rank == 0:
        return None
    axis = rng.randrange(t.rank)

    def like(v: str) -> bool:
        u = m.types[v]
        rest = all(a == b for d, (a, b) in enumerate(zip(u.shape, t.shape, strict=False)) if d != axis)
        return u.dtype is t.dtype and u.rank == t.rank and rest

    others = [v for v in values if like(v)]
    return m("concat", x, *(rng.choice(others) for _ in range(rng.randint(0, 2))), axis=axis)


def _take(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.rank == 0:
        return None
    axis = rng.randrange(t.rank)
    n, k = t.shape[axis], rng.randint(2, 3)
    indices = rng.choice(
        [
            tuple(i // k for i in range(n * k)),
            tuple(min(max(i - 1, 0), n - 1) for i in range(n + 2)),
            tuple(rng.randrange(n) for _ in range(rng.randint(1, 9))),
            tuple(reversed(range(n))),
        ]
    )
    return m("take", x, axis=axis, indices=indices)


def _gather(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.rank == 0:
        return None
    axis = rng.randrange(t.rank)
    integers = [v for v in values if m.types[v].dtype.is_integer]
    if integers and rng.random() < 0.5:
        at = rng.choice(integers)
    else:
        at = m.input(*_shape(rng)[:2], dtype=rng.choice([DType.INT64, DType.INT32]))
    u = m.types[at]
    if u.elements * t.elements // t.shape[axis] > 6000:
        return None
    kind = rng.random()
    if kind < 0.5:
        return m("gather", x, at, axis=axis)
    if kind < 0.75:
        shape = tuple(rng.randint(1, n) for n in t.shape)
        at = m.input(*shape, dtype=DType.INT64)
        return m("gather_elements", x, at, axis=axis)
    batch = rng.randrange(t.rank)
    depth = rng.randint(1, t.rank - batch)
    at = m.input(*t.shape[:batch], rng.randint(1, 4), depth, dtype=DType.INT32)
    return m("gather_nd", x, at, batch_dims=batch)


def _resample(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.rank == 0 or not t.dtype.is_float:
        return None
    axis = rng.randrange(t.rank)
    n, taps = t.shape[axis], rng.randint(1, 3)
    if rng.random() < 0.5:
        indices = [tuple(min(i // 2 + k, n - 1) for k in range(taps)) for i in range(2 * n)]
    else:
        indices = [tuple(rng.randrange(n) for _ in range(taps)) for _ in range(rng.randint(1, 9))]
    weights = tuple(tuple(rng.choice([0.0, 0.25, -0.5, 1.0]) for _ in range(taps)) for _ in indices)
    return m("resample", x, axis=axis, indices=tuple(indices), weights=weights)


def _linear(rng: random.Random, m: Make, values: list[str]) -> str | None:
    x = _pick(rng, values)
    t = m.types[x]
    if t.dtype is DType.BOOL or t.rank < 2:
        return None
    kind = rng.choice(["matmul", "conv", "conv_transpose"])
    if kind == "matmul":
        batch = t.shape[:-2] if rng.random() < 0.5 else ()
        return m("matmul", x, m.input(*batch, t.shape[-1], rng.randint(1, 20), dtype=t.dtype))
    if t.rank < 3:
        return None
    n = t.rank - 2
    groups = rng.choice([g for g in range(1, t.shape[1] + 1) if t.shape[1] % g == 0])
    kernel = tuple(rng.randint(1, 3) for _ in range(n))
    strides, dilations = (tuple(rng.randint(1, 2) for _ in range(n)) for _ in range(2))
    per = rng.randint(1, 3)
    if kind == "conv":
        pads = tuple(rng.randint(0, 2) for _ in range(2 * n))
        sizes = [t.shape[2 + d] + pads[d] + pads[n + d] - (kernel[d] - 1) * dilations[d] for d in range(n)]
        if min(sizes) < 1:
            return None
        w = m.input(groups * per, t.shape[1] // groups, *kernel, dtype=t.dtype)
        return m("conv", x, w, strides=strides, dilations=dilations, pads=pads, groups=groups)
    pads = tuple(rng.randint(0, 1) for _ in range(n))
    out = tuple(
        max(1, (t.shape[2 + d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - pads[d] - rng.randint(0, 1))
        for d in range(n)
    )
    w = m.input(t.shape[1], per, *kernel, dtype=t.dtype)
    shape = (t.shape[0], groups * per, *out)
    return m("conv_transpose", x, w, strides=strides, dilations=dilations, pads=pads, groups=groups, shape=shape)


GROWTH = (
    _unary, _unary, _binary, _binary, _binary, _cast, _reduce, _normalise, _normalise, _window, _reshape,
    _reshape, _transpose, _slice, _pad, _concat, _take, _gather, _linear, _resample,
)  # fmt: skip


def size(fragment: Fragment) -> int:
    """Elements in all inputs and outputs."""
    g = fragment.graph
    return sum(math.prod(g.types[v].shape) for v in (*g.input_values, *g.output_values))
