"""Which definitions may share one generated C kernel: the predicate under which candidate sets grow.

It looks at primitives and sizes only, and takes microseconds. Where it says yes, the generators of this backend
make a kernel, rare cases apart in which values between loops do not fit into cache. It is hereditary: each rule
forbids something that a smaller set cannot gain, so every connected convex part of a fusible set is fusible; softmax
attention is the exception, whose parts are not, so growing does not find it: `attention_sets` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from korch.codegen.c.linear.attention import Attention
from korch.codegen.c.linear.separable import Separable
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE

_PLAIN = frozenset({"elementwise", "broadcast", "layout"})
_MOVES = frozenset({"broadcast", "layout"})
_SHAPING = frozenset({"reshape", "transpose"})
_MOST_STEPS = 4  # elementwise primitives between scores and their softmax


@dataclass(frozen=True)
class FusionRules:
    """What the backend fuses.

    - `definitions`: the largest set.
    - `prologue`: the classes of primitives that may compute a linear primitive's first operand, and stand beside
      its result; other operands are only moved.
    - `small_bytes`: reductions over unlike axes are fused when their operands are not larger than this.
    - `pair_bytes`: two convolutions are fused when the value between is at least as large as this.
    - `kept_bytes`: so much may be kept of a value that a later reduction combines over other axes.
    """

    definitions: int = 64
    prologue: frozenset[str] = _PLAIN
    small_bytes: int = 64 << 10
    kept_bytes: int = 128 << 10
    pair_bytes: int = 3 << 20


RULES = FusionRules()


def fusible(graph: Graph, definitions: Sequence[int], rules: FusionRules = RULES) -> str | None:
    """Why the definitions (ascending indices) cannot be one kernel; None when they can."""
    if len(definitions) > rules.definitions:
        return f"more than {rules.definitions} primitives"
    members = [graph.definitions[i] for i in definitions]
    linear: Definition | None = None
    reductions: list[Definition] = []
    gathers = False
    for d in members:
        kind = _kind(d)
        if kind == "opaque":
            if len(members) > 1:
                return "opaque primitives stand alone"
        elif kind == "linear":
            if linear is not None:
                return _pair(graph, members, linear, rules)
            linear = d
        elif kind == "reduce":
            reductions.append(d)
        gathers |= kind == "gather"
    if linear is not None:
        if reductions:
            return "a reduction beside a linear primitive"
        if gathers:
            return "a gather beside a linear primitive"
        return _around_linear(members, linear, rules)
    if reductions and gathers:
        return "a gather beside a reduction"
    return _reductions_agree(graph, reductions, rules) if len(reductions) > 1 else None


def attention_sets(graph: Graph) -> list[tuple[int, ...]]:
    """The sets of definitions (ascending indices) that are an attention, each also with what may follow it."""
    definers, users = graph.definers(), graph.users()

    def made_by(value: str, *primitives: str) -> list[int]:
        return [i for i in definers.get(value, ()) if graph.definitions[i].primitive in primitives]

    def moved(value: str, primitive: str) -> list[frozenset[int]]:
        """The ways to a reduction through broadcasts and reshapes."""
        ends = [frozenset((i,)) for i in made_by(value, primitive)]
        steps = made_by(value, "broadcast", "reshape")
        return ends + [w | {i} for i in steps for w in moved(graph.definitions[i].inputs[0], primitive)]

    def scored(value: str, steps: int) -> list[frozenset[int]]:
        """The ways to a matrix product through elementwise primitives."""
        ends = [frozenset((i,)) for i in made_by(value, "matmul")]
        near = [i for i in definers.get(value, ()) if steps and _kind(graph.definitions[i]) == "elementwise"]
        return ends + [w | {i} for i in near for v in graph.definitions[i].inputs for w in scored(v, steps - 1)]

    def exponentials(value: str) -> list[frozenset[int]]:
        """The ways to a matrix product from exponentials of scores less their maximum."""
        shifted = [(e, s) for e in made_by(value, "exp") for s in made_by(graph.definitions[e].inputs[0], "sub")]
        return [
            frozenset((e, s)) | most | scores
            for e, s in shifted
            for most in moved(graph.definitions[s].inputs[1], "reduce_max")
            for scores in scored(graph.definitions[s].inputs[0], _MOST_STEPS)
        ]

    def weights(value: str) -> list[frozenset[int]]:
        """The ways to a matrix product from what multiplies the values: exponentials, divided by their sum or not."""
        sums = [u for u in users[value] if graph.definitions[u].primitive == "reduce_sum"]
        found = [w | {z} for z in sums for w in exponentials(value)]
        for i in made_by(value, "div"):
            e, z = graph.definitions[i].inputs
            found += [w | total | {i} for total in moved(z, "reduce_sum") for w in exponentials(e)]
        return found

    sets: dict[tuple[int, ...], None] = {}
    for i, d in enumerate(graph.definitions):
        for way in weights(d.inputs[0]) if d.primitive == "matmul" else ():
            chosen, value = {*way, i}, d.outputs[0]
            while not isinstance(Attention.of(graph, [graph.definitions[m] for m in sorted(chosen)]), str):
                sets.setdefault(tuple(sorted(chosen)))
                after = [u for u in users[value] if _follows(graph.definitions[u])]
                if len(after) != 1 or len(chosen) >= RULES.definitions:
                    break
                chosen.add(after[0])
                value = graph.definitions[after[0]].outputs[0]
    return list(sets)


def _follows(d: Definition) -> bool:
    """Whether a primitive may be computed from a linear primitive's result, element by element."""
    return _kind(d) == "elementwise" or d.primitive in _SHAPING


def _kind(d: Definition) -> str:
    """The class of a primitive; a resampling combines a few neighbours, as windows do."""
    return "reduce" if d.primitive == "resample" else TABLE[d.primitive].kind


def _pair(graph: Graph, members: Sequence[Definition], one: Definition, rules: FusionRules) -> str | None:
    """Two linear primitives: those pairs that have a kernel, where what lies between is worth keeping in cache."""
    if one.primitive != "conv":
        attention = Attention.of(graph, members)
        return attention if isinstance(attention, str) else None
    pair = Separable.of(graph, members)
    if isinstance(pair, str):
        return pair
    small = graph.types[pair.first.outputs[0]].bytes < rules.pair_bytes
    return "two linear primitives with little between" if small else None


def _around_linear(members: Sequence[Definition], linear: Definition, rules: FusionRules) -> str | None:
    """Epilogues keep the result's elements; only the first operand is computed, others are only moved."""
    after = set(linear.outputs)
    makers: dict[str, Definition] = {}
    for d in members:
        kind = _kind(d)
        if d is linear:
            continue
        if not after.isdisjoint(d.inputs):
            if kind != "elementwise" and d.primitive not in _SHAPING:
                return f"{d.primitive} after a linear primitive"
            after.update(d.outputs)
            continue
        if kind not in rules.prologue:
            return f"{d.primitive} beside a linear primitive"
        for v in d.outputs:
            makers[v] = d
    pending = list(linear.inputs[1:])
    while pending:
        d = makers.get(pending.pop())
        if d is None:
            continue
        if _kind(d) not in _MOVES:
            return f"{d.primitive} on a linear primitive's weights"
        pending.extend(d.inputs)
    return None


def _reductions_agree(graph: Graph, reductions: Sequence[Definition], rules: FusionRules) -> str | None:
    """All pairs either share their rows, or what one keeps for the other is small."""
    for k, b in enumerate(reductions):
        for a in reductions[:k]:
            if not _pair_agrees(graph, a, b, rules):
                return f"{a.primitive} and {b.primitive} over unlike axes"
    return None


def _pair_agrees(graph: Graph, a: Definition, b: Definition, rules: FusionRules) -> bool:
    a_in, a_out = graph.types[a.inputs[0]], graph.types[a.outputs[0]]
    b_in, b_out = graph.types[b.inputs[0]], graph.types[b.outputs[0]]
    if max(a_in.bytes, b_in.bytes) <= rules.small_bytes:
        return True
    neighbours = _neighbours(a), _neighbours(b)
    if neighbours[0] is not None and neighbours[1] is not None and a_out.rank == b_in.rank:
        # Kept are lines (planes…) of the dimensions that the second one combines, of one vector of the others.
        return math.prod(a_out.shape[k] for k in neighbours[1]) * a_out.dtype.size * 16 <= rules.kept_bytes
    if any(n is not None for n in neighbours):
        return False
    if a_in.elements == b_in.elements and a_out.elements == b_out.elements:
        return a_in.shape != b_in.shape or _axes(a) == _axes(b)
    # What one reduction leaves, another may combine further.
    small, large = (b_in, a_out) if b_in.elements < a_in.elements else (a_in, b_out)
    return small.elements == large.elements and large.bytes <= rules.kept_bytes


def _neighbours(d: Definition) -> tuple[int, ...] | None:
    """The dimensions along which a window or a resampling combines neighbours; None for whole-axis reductions."""
    if d.primitive == "resample":
        return (d.int("axis"),)
    if not d.primitive.startswith("window"):
        return None
    sizes = zip(d.ints("window"), d.ints("strides"), strict=True)
    return tuple(k for k, (w, s) in enumerate(sizes) if w > 1 or s > 1)


def _axes(d: Definition) -> tuple[int, ...]:
    return (d.int("axis"),) if d.primitive.startswith("arg") else d.ints("axes")
