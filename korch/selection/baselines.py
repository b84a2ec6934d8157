"""Two plans that users know, cut out of the model as it came: one kernel per operator, and greedy fusion.

Both only say which definitions make one kernel; the first keeps the model's layout, the second may change it.
Conversions are chosen by the same program as for every other plan, over the columns of these kernels
(`korch.candidates.build.Candidates.partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from korch.candidates.build import Partition
from korch.candidates.groups import Fusible, Grouping, reads_of
from korch.ir.graph import Graph
from korch.ir.primitives import TABLE

Unit = tuple[int, ...]


def partitions_of(graph: Graph, grouping: Grouping, fusible: Fusible) -> dict[str, Partition]:
    """Both, by name: `per_operator` and `greedy`."""
    return {
        "per_operator": Partition(tuple(per_operator_partition(graph, grouping, fusible)), row_major=True),
        "greedy": Partition(tuple(greedy_partition(graph, grouping, fusible))),
    }


def per_operator_partition(graph: Graph, grouping: Grouping, fusible: Fusible) -> list[Unit]:
    """One kernel for each operator of the model (`Definition.origin`).

    Where the parts of an operator are not connected, or the backend cannot fuse all of them, it takes several.
    """
    by_operator: dict[str, list[int]] = {}
    for d in _standing(graph, grouping):
        name = graph.definitions[d].origin
        by_operator.setdefault(name or f"definition {d}", []).append(d)
    found: list[Unit] = []
    for members in by_operator.values():
        for part in _connected(graph, members):
            whole = fusible(graph, grouping.closed(part)) is None
            found.extend([part] if whole else _grow(graph, grouping, [(d,) for d in part], fusible, _always))
    return sorted(found, key=lambda part: part[-1])


def greedy_partition(graph: Graph, grouping: Grouping, fusible: Fusible) -> list[Unit]:
    """Greedy fusion: in the order of the graph, each group joins the kernel of one of the values that it reads,
    the last one first, where the backend can fuse them; linear and opaque primitives start a kernel of their own."""
    base = set(_standing(graph, grouping))
    units = [own for g in grouping.groups if (own := tuple(d for d in g.own if d in base))]

    def may_join(unit: Unit) -> bool:
        return all(TABLE[graph.definitions[d].primitive].kind not in ("linear", "opaque") for d in unit)

    return _grow(graph, grouping, units, fusible, may_join)


def _always(unit: Unit) -> bool:
    return True


def base_definitions(graph: Graph) -> frozenset[int]:
    """What computes the outputs by the first definition of each value: the model before alternatives."""
    definers = graph.definers()
    found: set[int] = set()
    waiting = [definers[v][0] for v in graph.output_values if v in definers]
    while waiting:
        d = waiting.pop()
        if d not in found:
            found.add(d)
            waiting.extend(definers[v][0] for v in graph.definitions[d].inputs if v in definers)
    return frozenset(found)


def _standing(graph: Graph, grouping: Grouping) -> list[int]:
    """The base definitions without those that all their users compute for themselves."""
    base, users, outputs = base_definitions(graph), graph.users(), set(graph.output_values)
    found: list[int] = []
    for d in sorted(base):
        made = graph.definitions[d].outputs
        takers = [u for v in made for u in users[v] if u in base]
        if not outputs.isdisjoint(made) or any(d not in grouping.absorbed[u] for u in takers):
            found.append(d)
    return found


def _connected(graph: Graph, members: Sequence[int]) -> list[Unit]:
    """The members, those together that are connected by the values they compute."""
    maker = {v: d for d in members for v in graph.definitions[d].outputs}
    part_of = {d: {d} for d in members}
    for d in members:
        for v in graph.definitions[d].inputs:
            if v in maker and part_of[maker[v]] is not part_of[d]:
                part_of[d] |= part_of[maker[v]]
                for other in part_of[maker[v]]:
                    part_of[other] = part_of[d]
    return [tuple(sorted(part)) for part in {id(part): part for part in part_of.values()}.values()]


def _grow(
    graph: Graph,
    grouping: Grouping,
    units: Sequence[Unit],
    fusible: Fusible,
    may_join: Callable[[Unit], bool],
    limit: int = 32,
) -> list[Unit]:
    """Kernels of up to `limit` units, each unit in turn added to a kernel that it reads from, where it may.

    A unit does not join a kernel on which another of its kernels depends: the two would wait for each other.
    """
    kernels: list[list[Unit]] = []
    after: list[set[int]] = []
    kernel_of: dict[str, int] = {}
    for unit in units:
        read = reads_of(graph, grouping.closed(unit))
        sources = sorted({kernel_of[v] for v in read if v in kernel_of}, reverse=True)
        home = len(kernels)
        for k in sources if may_join(unit) else ():
            if len(kernels[k]) >= limit or _leads(after, k, set(sources) - {k}):
                continue
            joined = [d for part in (*kernels[k], unit) for d in part]
            if fusible(graph, grouping.closed(joined)) is None:
                home = k
                break
        if home == len(kernels):
            kernels.append([])
            after.append(set())
        kernels[home].append(unit)
        for k in sources:
            if k != home:
                after[k].add(home)
        kernel_of.update((v, home) for d in unit for v in graph.definitions[d].outputs)
    return [tuple(sorted(d for unit in kernel for d in unit)) for kernel in kernels]


def _leads(after: Sequence[set[int]], start: int, targets: set[int]) -> bool:
    """Whether one of the targets comes after the start."""
    waiting, seen = list(after[start]) if targets else [], set[int]()
    while waiting:
        k = waiting.pop()
        if k in targets:
            return True
        if k not in seen:
            seen.add(k)
            waiting.extend(after[k])
    return False
