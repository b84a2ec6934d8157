"""Which input elements an output element of each primitive reads: its index semantics, as index expressions.

Elementwise primitives read all inputs at the output's own index. The others have one row in one of three
tables: `LAYOUT_READS` (one input element or a constant, by cases), `REDUCTIONS` (a combination over loops of
its own), `GATHERS` (an input element whose index is data). Opaque primitives have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from korch.codegen.c.index import Index, constant, flatten, lookup, unflatten
from korch.ir.graph import Definition
from korch.ir.types import TensorType

Indices = tuple[Index, ...]
Types = Sequence[TensorType]  # of a definition's inputs


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition: low <= index <= high."""

    index: Index
    low: int
    high: int

    @property
    def truth(self) -> bool | None:
        """What the range of the index decides; None when it leaves both open."""
        if self.high < self.low:
            return False
        if self.low <= self.index.low and self.index.high <= self.high:
            return True
        if self.index.high < self.low or self.index.low > self.high:
            return False
        return None


@dataclass(frozen=True, slots=True)
class Case:
    """Where all guards hold, the element `index` of input `operand` is read; no operand: the attribute `value`."""

    guards: tuple[Guard, ...]
    operand: int | None
    index: Indices = ()


@dataclass(frozen=True, slots=True)
class Term:
    """What a reduction adds at one point of its loops: the product of the operands read, where the guards hold.

    `weight` is the position in the attribute `weights` (flattened) of a further factor.
    """

    guards: tuple[Guard, ...]
    reads: tuple[tuple[int, Indices], ...]
    weight: Index | None = None


@dataclass(frozen=True)
class Reduction:
    """`extents(definition, types)` are the sizes of the loops; `term(definition, types, index, loops)` says what
    is combined at the output element `index`; `combine` is sum, prod, max, min, arg_max or arg_min."""

    combine: str
    extents: Callable[[Definition, Types], tuple[int, ...]]
    term: Callable[[Definition, Types, Indices, Indices], Term]


# Layout: the first case whose guards hold counts; the last case counts where none before it does.


def _broadcast(d: Definition, types: Types, index: Indices) -> tuple[Case, ...]:
    read = tuple(index[a] if n != 1 else constant(0) for a, n in zip(d.ints("axes"), types[0].shape, strict=True))
    return (Case((), 0, read),)


def _reshape(d: Definition, types: Types, index: Indices) -> tuple[Case, ...]:
    return (Case((), 0, unflatten(flatten(index, d.ints("shape")), types[0].shape)),)


def _transpose(d: Definition, types: Types, index: Indices) -> tuple[Case, ...]:
    read = [constant(0)] * len(index)
    for k, p in enumerate(d.ints("perm")):
        read[p] = index[k]
    return (Case((), 0, tuple(read)),)


def _slice(d: Definition, types: Types, index: Indices) -> tuple[Case, ...]:
    rows = zip(index, d.ints("starts"), d.ints("steps"), strict=True)
    return (Case((), 0, tuple(i * step + start for i, start, step in rows)),)


def _pad(d: Definition, types: Types, index: Indices) -> tuple[Case, ...]:
    read = tuple(i - b for i, b in zip(index, d.ints("before"), strict=True))
    guards = tuple(Guard(i, 0, n - 1) for i, n in zip(read, types[0].shape, strict=True))
    return (Case(guards, 0, read), Case((), None))


def _concat(d: Definition, types: Types, index: Indices) -> tuple[Case, ...]:
    axis, start = d.int("axis"), 0
    cases: list[Case] = []
    for k, t in enumerate(types):
        end = start + t.shape[axis]
        read = (*index[:axis], index[axis] - start, *index[axis + 1 :])
        cases.append(Case((Guard(index[axis], start, end - 1),), k, read))
        start = end
    return tuple(cases)


def _take(d: Definition, types: Types, index: Indices) -> tuple[Case, ...]:
    axis = d.int("axis")
    return (Case((), 0, (*index[:axis], lookup(d.ints("indices"), index[axis]), *index[axis + 1 :])),)


LAYOUT_READS: dict[str, Callable[[Definition, Types, Indices], tuple[Case, ...]]] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "take": _take,
}


# Reductions.


def _reduced_extents(d: Definition, types: Types) -> tuple[int, ...]:
    return tuple(types[0].shape[a] for a in d.ints("axes"))


def _reduced(d: Definition, types: Types, index: Indices, loops: Indices) -> Term:
    return Term((), ((0, _with_axes(d.ints("axes"), index, loops)),))


def _arg_extents(d: Definition, types: Types) -> tuple[int, ...]:
    return (types[0].shape[d.int("axis")],)


def _arg(d: Definition, types: Types, index: Indices, loops: Indices) -> Term:
    return Term((), ((0, _with_axes((d.int("axis"),), index, loops)),))


def _with_axes(axes: tuple[int, ...], index: Indices, loops: Indices) -> Indices:
    kept, inner = iter(index), iter(loops)
    return tuple(next(inner) if a in axes else next(kept) for a in range(len(index) + len(loops)))


def _window_extents(d: Definition, types: Types) -> tuple[int, ...]:
    return d.ints("window")


def _window(d: Definition, types: Types, index: Indices, loops: Indices) -> Term:
    columns = zip(index, loops, d.ints("strides"), d.ints("dilations"), d.ints("pads"), strict=True)
    read = tuple(o * stride + w * dilation - pad for o, w, stride, dilation, pad in columns)
    return Term(_inside(read, types[0].shape), ((0, read),))


def _inside(read: Indices, shape: tuple[int, ...]) -> tuple[Guard, ...]:
    guards = (Guard(i, 0, n - 1) for i, n in zip(read, shape, strict=True))
    return tuple(g for g in guards if g.truth is not True)


def _matmul_extents(d: Definition, types: Types) -> tuple[int, ...]:
    return (types[0].shape[-1],)


def _matmul(d: Definition, types: Types, index: Indices, loops: Indices) -> Term:
    *batch, m, n = index
    right = (*batch, loops[0], n) if types[1].rank == len(index) else (loops[0], n)
    return Term((), ((0, (*batch, m, loops[0])), (1, right)))


def _conv_extents(d: Definition, types: Types) -> tuple[int, ...]:
    return types[1].shape[1:]


def _conv(d: Definition, types: Types, index: Indices, loops: Indices) -> Term:
    x, w = types
    n, o, *spatial = index
    c, *taps = loops
    per_group = max(1, w.shape[0] // d.int("groups"))
    columns = zip(spatial, taps, d.ints("strides"), d.ints("dilations"), d.ints("pads"), strict=False)
    read = tuple(p * stride + k * dilation - pad for p, k, stride, dilation, pad in columns)
    channel = (o // per_group) * w.shape[1] + c
    return Term(_inside(read, x.shape[2:]), ((0, (n, channel, *read)), (1, (o, *loops))))


def _conv_transpose_extents(d: Definition, types: Types) -> tuple[int, ...]:
    x, w = types
    return (x.shape[1] // d.int("groups"), *w.shape[2:])


def _conv_transpose(d: Definition, types: Types, index: Indices, loops: Indices) -> Term:
    """Output position p gets x[i] * w[k] for every p = i*stride + k*dilation - pad."""
    x, w = types
    n, o, *spatial = index
    c, *taps = loops
    per_group = max(1, w.shape[1])
    columns = zip(spatial, taps, d.ints("strides"), d.ints("dilations"), d.ints("pads"), strict=True)
    guards: list[Guard] = []
    read: list[Index] = []
    for p, k, stride, dilation, pad in columns:
        sent = p - k * dilation + pad
        guards.append(Guard(sent % stride, 0, 0))
        read.append(sent // stride)
    channel = (o // per_group) * (x.shape[1] // d.int("groups")) + c
    inside = _inside(tuple(read), x.shape[2:])
    kept = tuple(g for g in guards if g.truth is not True)
    return Term((*kept, *inside), ((0, (n, channel, *read)), (1, (channel, o % per_group, *taps))))


def _resample_extents(d: Definition, types: Types) -> tuple[int, ...]:
    indices = d.attribute("indices")
    assert isinstance(indices, tuple)
    first = indices[0] if indices else ()
    assert isinstance(first, tuple)
    return (len(first),)


def _resample(d: Definition, types: Types, index: Indices, loops: Indices) -> Term:
    axis, (taps,) = d.int("axis"), _resample_extents(d, types)
    rows = d.attribute("indices")
    assert isinstance(rows, tuple)
    flat = tuple(int(i) for row in rows if isinstance(row, tuple) for i in row)  # type: ignore[arg-type]
    at = index[axis] * taps + loops[0]
    return Term((), ((0, (*index[:axis], lookup(flat, at), *index[axis + 1 :])),), at)


REDUCTIONS: dict[str, Reduction] = {
    "reduce_sum": Reduction("sum", _reduced_extents, _reduced),
    "reduce_prod": Reduction("prod", _reduced_extents, _reduced),
    "reduce_max": Reduction("max", _reduced_extents, _reduced),
    "reduce_min": Reduction("min", _reduced_extents, _reduced),
    "arg_max": Reduction("arg_max", _arg_extents, _arg),
    "arg_min": Reduction("arg_min", _arg_extents, _arg),
    "window_sum": Reduction("sum", _window_extents, _window),
    "window_max": Reduction("max", _window_extents, _window),
    "matmul": Reduction("sum", _matmul_extents, _matmul),
    "conv": Reduction("sum", _conv_extents, _conv),
    "conv_transpose": Reduction("sum", _conv_transpose_extents, _conv_transpose),
    "resample": Reduction("sum", _resample_extents, _resample),
}


# Gathers: `load(operand, index, size)` is the integer that an index operand holds, counted from the end when
# negative and clamped to a dimension of `size`.

Load = Callable[[int, Indices, int], Index]


def _gather(d: Definition, types: Types, index: Indices, load: Load) -> Indices:
    data, indices = types
    axis = d.int("axis")
    middle = index[axis : axis + indices.rank]
    chosen = load(1, middle, data.shape[axis])
    return (*index[:axis], chosen, *index[axis + indices.rank :])


def _gather_elements(d: Definition, types: Types, index: Indices, load: Load) -> Indices:
    axis = d.int("axis")
    return (*index[:axis], load(1, index, types[0].shape[axis]), *index[axis + 1 :])


def _gather_nd(d: Definition, types: Types, index: Indices, load: Load) -> Indices:
    data, indices = types
    batch, depth, lead = d.int("batch_dims"), indices.shape[-1], indices.rank - 1
    chosen = tuple(load(1, (*index[:lead], constant(k)), data.shape[batch + k]) for k in range(depth))
    return (*index[:batch], *chosen, *index[lead:])


GATHERS: dict[str, Callable[[Definition, Types, Indices, Load], Indices]] = {
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
}
