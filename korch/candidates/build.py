"""From sets of groups to candidates: which values a set writes, and in which layouts it reads and writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from korch.candidates.candidate import Candidate
from korch.candidates.dependence import Dependence, bits, dependence_of
from korch.candidates.enumerate import Caps, Enumeration, enumerate_sets
from korch.candidates.groups import Fusible, Grouping, reads_of
from korch.candidates.layouts import MOVES, Placements, assignments, carried, layouts_of, placements_of
from korch.ir.graph import Graph
from korch.ir.layout import Layout, Resource


@dataclass(frozen=True)
class Partition:
    """One way to cut the whole graph into kernels: the definitions of each (what they absorb may be left out), in
    the model's own layout or in all layouts."""

    kernels: tuple[tuple[int, ...], ...]
    row_major: bool = False


@dataclass(frozen=True)
class Candidates:
    """All columns of the selection program: `columns` are kernels, then copies, then aliases.

    `partitions` has, for each named partition, the columns that it may use: its own kernels, copies and aliases.
    With `once`, no plan may compute a definition twice.
    """

    graph: Graph
    grouping: Grouping
    enumeration: Enumeration
    columns: tuple[Candidate, ...]
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    once: bool = False

    def only(self, keep: Callable[[int], bool]) -> Candidates:
        """Those columns whose numbers are kept, without partitions."""
        return replace(self, columns=tuple(c for k, c in enumerate(self.columns) if keep(k)), partitions={})


def candidates_of(
    graph: Graph,
    grouping: Grouping,
    fusible: Fusible,
    caps: Caps | None = None,
    partitions: Mapping[str, Partition] | None = None,
    proposed: Iterable[tuple[int, ...]] = (),
) -> Candidates:
    """Enumerates the sets of a graph's groups and gives them outputs and layouts.

    `proposed` are sets of definitions that growing does not find; they write what none of them reads. A partition that
    may change layouts may use them too, instead of its own kernels.
    """
    dependence = dependence_of(graph, grouping.groups)
    enumeration = enumerate_sets(graph, grouping.groups, fusible, caps, dependence)
    places = placements_of(graph, layouts_of(graph))
    aliases = _aliases(graph, places)
    free = {(a.definitions, a.inputs, a.outputs) for a in aliases}
    kernels: dict[Candidate, int] = {}

    def add(definitions: tuple[int, ...], outputs: Sequence[str]) -> list[int]:
        made = _kernels(graph, places, definitions, outputs)
        kept = [k for k in made if (k.definitions, k.inputs, k.outputs) not in free]
        return [kernels.setdefault(k, len(kernels)) for k in kept]

    for chosen in enumeration.sets:
        definitions = {d for g in bits(chosen) for d in grouping.groups[g].definitions}
        for outputs in _output_choices(dependence, chosen):
            add(tuple(sorted(definitions)), outputs)
    whole: dict[tuple[int, ...], list[int]] = {}
    for part in map(grouping.closed, proposed):
        read = {v for d in part for v in graph.definitions[d].inputs}
        made = [v for d in part for v in graph.definitions[d].outputs]
        whole[part] = add(part, tuple(v for v in made if v not in read))
    own: dict[str, list[int]] = {}
    for name, partition in (partitions or {}).items():
        closed = [grouping.closed(part) for part in partition.kernels]
        wanted = {v for part in closed for v in reads_of(graph, part)} | set(graph.output_values)
        own[name] = []
        for part in closed:
            outputs = [v for d in part for v in graph.definitions[d].outputs if v in wanted]
            own[name].extend(add(part, tuple(dict.fromkeys(outputs))))
        members = {d for part in closed for d in part}
        if not partition.row_major:
            own[name].extend(c for part, added in whole.items() if members.issuperset(part) for c in added)
    moves = [*_copies(graph, places, [*kernels, *aliases]), *aliases]
    columns = (*kernels, *moves)
    everywhere = range(len(kernels), len(columns))

    def usable(partition: Partition, column: int) -> bool:
        resources = (*columns[column].inputs, *columns[column].outputs)
        return not partition.row_major or all(r.layout.is_row_major(graph.types[r.value].shape) for r in resources)

    return Candidates(
        graph,
        grouping,
        enumeration,
        columns,
        {
            name: tuple(c for c in (*sorted(set(own[name])), *everywhere) if usable(partition, c))
            for name, partition in (partitions or {}).items()
        },
    )


def _output_choices(dependence: Dependence, chosen: int) -> Iterator[tuple[str, ...]]:
    """What a set of groups may write.

    The values that nothing inside reads are always written. Those that are read inside and outside are written
    all, or none: then the others compute them again. Where only alternatives read a value outside, which may
    not run, both choices are offered for it.
    """
    names = list(dependence.number)
    made = 0
    for g in bits(chosen):
        made |= dependence.makes[g]
    last, certain, possible = list[int](), list[int](), list[int]()
    for v in bits(made):
        outside = dependence.takers[v] & ~chosen
        exported = dependence.outputs >> v & 1
        if not outside and not exported:
            continue
        if not dependence.takers[v] & chosen:
            last.append(v)
        elif exported or any(_always_runs(dependence, g) for g in bits(outside)):
            certain.append(v)
        else:
            possible.append(v)
    if not last and not certain:
        return
    choices = [last] if last else []
    choices.extend([*last, *certain, *some] for some in _subsets(possible))
    for choice in dict.fromkeys(tuple(sorted(c)) for c in choices):
        yield tuple(names[v] for v in choice)


def _always_runs(dependence: Dependence, group: int) -> bool:
    """Whether every plan computes this group: the only one for a value that the outputs need."""
    return any(
        dependence.certain >> v & 1 and dependence.makers[v] == 1 << group for v in bits(dependence.makes[group])
    )


def _subsets(of: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """All subsets of up to three; of more, the empty and the whole one and each alone."""
    if len(of) <= 3:
        return itertools.chain.from_iterable(itertools.combinations(of, n) for n in range(len(of) + 1))
    return [(), tuple(of), *((v,) for v in of)]


def _kernels(
    graph: Graph, places: Placements, definitions: tuple[int, ...], outputs: Sequence[str]
) -> Iterator[Candidate]:
    """The kernel in each assignment of layouts. Definitions that no output needs are left out."""
    kept = _behind(graph, definitions, outputs)
    inputs = reads_of(graph, kept)
    read = dict.fromkeys(v for d in kept for v in graph.definitions[d].inputs)
    weights = tuple(v for v in read if v in graph.constants and graph.constants[v].size != 1)
    for nodes in assignments(places, kept, inputs, outputs):
        resources = [Resource(places.values[n], places.layouts[n]) for n in nodes]
        yield Candidate("kernel", kept, tuple(resources[: len(inputs)]), weights, tuple(resources[len(inputs) :]))


def _behind(graph: Graph, definitions: tuple[int, ...], outputs: Sequence[str]) -> tuple[int, ...]:
    """Those of the definitions that the outputs depend on."""
    maker = {v: d for d in definitions for v in graph.definitions[d].outputs}
    waiting = [maker[v] for v in outputs]
    found = set(waiting)
    while waiting:
        for v in graph.definitions[waiting.pop()].inputs:
            if v in maker and maker[v] not in found:
                found.add(maker[v])
                waiting.append(maker[v])
    return tuple(d for d in definitions if d in found)


def _aliases(graph: Graph, places: Placements) -> list[Candidate]:
    """Reshapes and transposes whose output occupies its input's bytes.

    What aliases one another is one buffer, and a caller's buffer (a model's input or output) is one buffer only:
    an alias that would make two of them one is left out.
    """
    owned = {*graph.input_values, *graph.output_values}
    buffer: dict[Resource, Resource] = {}
    owners: dict[Resource, bool] = {}

    def root(of: Resource) -> Resource:
        while buffer.get(of, of) != of:
            of = buffer[of]
        return of

    found: list[Candidate] = []
    for i, d in enumerate(graph.definitions):
        if d.primitive not in MOVES or d.inputs[0] in graph.constants:
            continue
        (x,), (y,) = d.inputs, d.outputs
        for n in places.nodes[x]:
            layout = carried(graph, d, 0, places.layouts[n])
            if layout is None or layout not in (places.layouts[m] for m in places.nodes[y]):
                continue
            source, target = Resource(x, places.layouts[n]), Resource(y, layout)
            a, b = root(source), root(target)
            if a != b:
                has = [owners.get(r, r.value in owned) for r in (a, b)]
                if all(has):
                    continue
                buffer[b], owners[a] = a, any(has)
            found.append(Candidate("alias", (i,), (source,), (), (target,)))
    return found


def _copies(graph: Graph, places: Placements, others: Iterable[Candidate]) -> Iterator[Candidate]:
    """From every layout in which a value may be made to every other in which it may be read."""
    made = {Resource(v, Layout.row_major(graph.types[v].shape)) for v in graph.input_values}
    read = {Resource(v, Layout.row_major(graph.types[v].shape)) for v in graph.output_values}
    for candidate in others:
        made.update(candidate.outputs)
        read.update(candidate.inputs)
    for v, nodes in places.nodes.items():
        for n, m in itertools.permutations(nodes, 2):
            source, target = Resource(v, places.layouts[n]), Resource(v, places.layouts[m])
            if source in made and target in read:
                yield Candidate("copy", (), (source,), (), (target,))
