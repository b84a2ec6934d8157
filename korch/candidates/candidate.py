"""Candidates: what one kernel of a plan might compute, and the fragments by which equal ones are known."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout, Resource

Kind = Literal["kernel", "copy", "alias"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One column of the selection program.

    - `kernel` computes the definitions (ascending; fewer than all their values may be outputs);
    - `copy` has no definitions: it brings one value into another layout;
    - `alias` is one definition that costs nothing: its output lies where its input lies, `offset` elements on.

    `inputs` and `outputs` are the resources read and written; `weights` the constants read that have more than
    one element. Constants are not resources: they are always there, row-major.
    """

    kind: Kind
    definitions: tuple[int, ...]
    inputs: tuple[Resource, ...]
    weights: tuple[str, ...]
    outputs: tuple[Resource, ...]
    offset: int = 0

    def __str__(self) -> str:
        text = f"{self.kind}[{' '.join(map(str, self.definitions))}]({', '.join(map(str, self.inputs))}"
        text += f"; {', '.join(self.weights)}" if self.weights else ""
        text += f") -> {', '.join(map(str, self.outputs))}"
        return text + (f" +{self.offset}" if self.offset else "")

    @staticmethod
    def parse(text: str) -> Candidate:
        """The inverse of `str`, for value names without spaces, commas, semicolons, brackets and '@'; ValueError
        on anything else."""
        kind, _, rest = text.strip().partition("[")
        definitions, bracket, rest = rest.partition("](")
        read, arrow, written = rest.partition(") -> ")
        if kind not in ("kernel", "copy", "alias") or not bracket or not arrow:
            raise ValueError(f"not a candidate: {text!r} (expected for example kernel[3 4](x@01; w) -> y@01)")
        inputs, _, weights = read.partition("; ")
        written, _, offset = written.partition(" +")
        return Candidate(
            kind,
            tuple(map(int, definitions.split())),
            tuple(_resource(r) for r in inputs.split(", ") if r),
            tuple(w for w in weights.split(", ") if w),
            tuple(_resource(r) for r in written.split(", ")),
            int(offset or 0),
        )


def _resource(text: str) -> Resource:
    value, _, layout = text.rpartition("@")
    return Resource(value, Layout.parse("@" + layout))


@dataclass(frozen=True)
class Canonical:
    """The names of a fragment cut out of a graph: `order` lists its definitions as the fragment has them, `names`
    maps each canonical name to the graph's value, `inputs` (weights included), `literals` and `outputs` are
    canonical names. `shape` is equal for structurally equal fragments of one graph, layouts aside."""

    order: tuple[int, ...]
    names: Mapping[str, str]
    inputs: tuple[str, ...]
    literals: tuple[str, ...]
    outputs: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Labels:
    """Numbers that say what the definitions and the leaves of a graph are, whatever they are called: the same in
    every process, so that the order that they give to outputs is canonical."""

    graph: Graph
    definitions: tuple[int, ...]
    leaves: Mapping[str, int]


def labels_of(graph: Graph) -> Labels:
    """The labels of a graph: computed once, read for every candidate."""
    definitions = tuple(
        _digest(f"{d.primitive} {d.attributes} {' '.join(str(graph.types[v]) for v in d.outputs)}")
        for d in graph.definitions
    )
    leaves: dict[str, int] = {}
    for v, t in graph.types.items():
        array = graph.constants.get(v)
        text = "input" if array is None else "weight" if array.size != 1 else f"literal {array.tobytes().hex()}"
        leaves[v] = _digest(f"{text} {t}")
    return Labels(graph, definitions, leaves)


def canonical(labels: Labels, definitions: Sequence[int], outputs: Sequence[str]) -> Canonical:
    """The canonical form of definitions with those outputs.

    Definitions come in the order in which a walk from the outputs leaves them; outputs in the order of what
    computes them (a hash over it), so that neither depends on where the definitions stand in the graph.
    """
    graph = labels.graph
    maker = {v: d for d in definitions for v in graph.definitions[d].outputs}
    if len(outputs) > 1:
        meaning = _meanings(labels, maker, outputs)
        outputs = sorted(outputs, key=lambda v: meaning[v])
    order = _walk(graph, maker, outputs)
    short: dict[str, str] = {}
    inputs: list[str] = []
    literals: list[str] = []
    shape: list[int] = []
    number: dict[str, int] = {}
    for d in order:
        definition = graph.definitions[d]
        shape.append(labels.definitions[d])
        for v in definition.inputs:
            if v not in number:
                number[v] = len(number)
                literal = v in graph.constants and graph.constants[v].size == 1
                kind = literals if literal else inputs
                short[v] = f"{'c' if literal else 'i'}{len(kind)}"
                kind.append(short[v])
                shape.append(labels.leaves[v])
            shape.append(number[v])
        for v in definition.outputs:
            number[v] = len(number)
    made = (v for d in order for v in graph.definitions[d].outputs)
    short.update((v, f"t{i}") for i, v in enumerate(made))
    shape.extend((-1, *(number[v] for v in outputs)))
    return Canonical(
        order,
        {c: v for v, c in short.items()},
        tuple(inputs),
        tuple(literals),
        tuple(short[v] for v in outputs),
        tuple(shape),
    )


def _walk(graph: Graph, maker: Mapping[str, int], outputs: Sequence[str]) -> tuple[int, ...]:
    """The definitions behind the outputs, each after those that it reads, depth first."""
    order: list[int] = []
    seen: set[int] = set()
    stack = [(maker[v], False) for v in reversed(outputs)]
    while stack:
        d, done = stack.pop()
        if done:
            order.append(d)
        elif d not in seen:
            seen.add(d)
            stack.append((d, True))
            stack.extend((maker[v], False) for v in reversed(graph.definitions[d].inputs) if v in maker)
    return tuple(order)


def _meanings(labels: Labels, maker: Mapping[str, int], outputs: Sequence[str]) -> dict[str, int]:
    """For each value computed, a hash over everything that goes into it."""
    found: dict[str, int] = {}
    for d in _walk(labels.graph, maker, outputs):
        definition = labels.graph.definitions[d]
        whole = _mixed([labels.definitions[d], *(found.get(v) or labels.leaves[v] for v in definition.inputs)])
        found.update((v, _mixed([whole, k])) for k, v in enumerate(definition.outputs))
    return found


def fragment_of(graph: Graph, candidate: Candidate, labels: Labels | None = None) -> tuple[Fragment, dict[str, str]]:
    """The canonical fragment of a kernel or a copy, and for each canonical name the graph's value.

    A copy is written as a reshape to the shape that the value has, from one layout to the other. `labels` are the
    graph's, made here when not given (which takes a while on a large graph).
    """
    if candidate.kind == "copy":
        value = candidate.inputs[0].value
        return _copy_fragment(graph, candidate), {"i0": value, "t0": value}
    outputs = [r.value for r in candidate.outputs]
    form = canonical(labels or labels_of(graph), candidate.definitions, outputs)
    return _placed(graph, candidate, form, _cut(graph, form)), dict(form.names)


def _copy_fragment(graph: Graph, candidate: Candidate) -> Fragment:
    (source,), (target,) = candidate.inputs, candidate.outputs
    kind = graph.types[source.value]
    copied = Definition("reshape", ("i0",), ("t0",), (("shape", kind.shape),))
    cut = Graph({"i0": kind, "t0": kind}, (("i0", "i0"),), (("t0", "t0"),), (copied,))
    return Fragment(cut, frozenset(), {"i0": source.layout, "t0": target.layout})


def _cut(graph: Graph, form: Canonical) -> Graph:
    """The fragment's graph."""
    short = {v: c for c, v in form.names.items()}
    parts = (graph.definitions[d] for d in form.order)
    return Graph(
        types={c: graph.types[v] for c, v in form.names.items()},
        inputs=tuple((c, c) for c in form.inputs),
        outputs=tuple((c, c) for c in form.outputs),
        definitions=tuple(
            Definition(
                d.primitive,
                tuple(short[v] for v in d.inputs),
                tuple(short[v] for v in d.outputs),
                d.attributes,
            )
            for d in parts
        ),
        constants={c: graph.constants[form.names[c]] for c in form.literals},
    )


def _placed(graph: Graph, candidate: Candidate, form: Canonical, cut: Graph) -> Fragment:
    """The fragment with the candidate's layouts; `cut` is its graph, or that of a structurally equal one."""
    given = {r.value: r.layout for r in (*candidate.inputs, *candidate.outputs)}
    layouts = {
        c: given.get(v) or Layout.row_major(graph.types[v].shape)
        for c, v in ((c, form.names[c]) for c in (*form.inputs, *form.outputs))
    }
    weights = frozenset(c for c in form.inputs if form.names[c] in graph.constants)
    return Fragment(cut, weights, layouts)


@dataclass(frozen=True)
class Structures:
    """Which candidates are one for costing. `keys[k]` is the `Fragment.key` of candidate k, empty for an alias;
    `fragments` has the fragment of every key."""

    keys: tuple[str, ...]
    fragments: Mapping[str, Fragment]


def structures_of(graph: Graph, candidates: Sequence[Candidate]) -> Structures:
    """The structures of a graph's candidates. A fragment is made once for each structure, not for each candidate."""
    labels = labels_of(graph)
    forms: dict[tuple[tuple[int, ...], tuple[str, ...]], Canonical] = {}
    cuts: dict[tuple[int, ...], Graph] = {}
    known: dict[object, str] = {}
    fragments: dict[str, Fragment] = {}

    def key_of(candidate: Candidate) -> str:
        at = (candidate.definitions, tuple(r.value for r in candidate.outputs))
        form = forms.get(at) or forms.setdefault(at, canonical(labels, *at))
        layout = {r.value: r.layout for r in (*candidate.inputs, *candidate.outputs)}
        signature = (form.shape, tuple(layout.get(form.names[c]) for c in (*form.inputs, *form.outputs)))
        if signature not in known:
            cut = cuts.get(form.shape) or cuts.setdefault(form.shape, _cut(graph, form))
            known[signature] = remember(_placed(graph, candidate, form, cut))
        return known[signature]

    def copy_key_of(candidate: Candidate) -> str:
        (source,), (target,) = candidate.inputs, candidate.outputs
        signature = (graph.types[source.value], source.layout, target.layout)
        if signature not in known:
            known[signature] = remember(_copy_fragment(graph, candidate))
        return known[signature]

    def remember(fragment: Fragment) -> str:
        key = fragment.key
        fragments.setdefault(key, fragment)
        return key

    def any_key_of(candidate: Candidate) -> str:
        if candidate.kind == "alias":
            return ""
        return copy_key_of(candidate) if candidate.kind == "copy" else key_of(candidate)

    return Structures(tuple(map(any_key_of, candidates)), fragments)


_MASK = (1 << 61) - 1


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


def _mixed(parts: Sequence[int]) -> int:
    """A hash of numbers that is the same in every process."""
    found = 17
    for part in parts:
        found = (found * 0x9E3779B97F4A7C15 + part + 1) & _MASK
        found ^= found >> 29
    return found
