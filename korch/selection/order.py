"""In which order the chosen columns can run, or which of them wait for each other in a circle."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from korch.selection.program import Program


@dataclass(frozen=True)
class Order:
    """`columns` in a legal order; those that cannot run at all are left out. `circles` are the sets of resources
    that wait for one another: nothing chosen writes into one of them without reading from it. `missing` are the
    resources that nothing chosen writes and something chosen, or the model's outputs, need."""

    columns: tuple[int, ...]
    circles: tuple[frozenset[int], ...]
    missing: frozenset[int]

    @property
    def runs(self) -> bool:
        return not self.circles and not self.missing


def order_of(program: Program, chosen: Iterable[int]) -> Order:
    """A legal order of the chosen columns, earlier definitions first where there is a choice."""
    columns = sorted(set(chosen))
    rank = {c: (max(program.columns[c].definitions, default=-1), c) for c in columns}
    readers: dict[int, list[int]] = {}
    for c in columns:
        for r in program.reads[c]:
            readers.setdefault(r, []).append(c)
    waiting = {c: len(program.reads[c]) for c in columns}
    ready = [rank[c] for c in columns if not waiting[c]]
    heapq.heapify(ready)
    order: list[int] = []
    there: set[int] = set()
    while ready:
        _, c = heapq.heappop(ready)
        order.append(c)
        for r in program.writes[c]:
            if r in there:
                continue
            there.add(r)
            for reader in readers.get(r, ()):
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, rank[reader])
    stuck = [c for c in columns if waiting[c]]
    written = {r for c in columns for r in program.writes[c]}
    needed = {r for c in columns for r in program.reads[c]} | program.required
    return Order(tuple(order), _circles(program, stuck, there), frozenset(needed - written))


def _circles(program: Program, stuck: list[int], there: set[int]) -> tuple[frozenset[int], ...]:
    """The strongly connected sets of resources that are not there, where one waits for another when a stuck
    column reads the other and writes it."""
    after: dict[int, set[int]] = {}
    for c in stuck:
        absent = [r for r in program.reads[c] if r not in there]
        for w in program.writes[c]:
            if w not in there:
                after.setdefault(w, set()).update(absent)
    components = components_of(sorted(after), lambda r: sorted(after.get(r, ())))
    return tuple(frozenset(found) for found in components if len(found) > 1 or found[0] in after.get(found[0], ()))


def components_of(nodes: Iterable[int], following: Callable[[int], Iterable[int]]) -> list[list[int]]:
    """The strongly connected components of a graph (Tarjan 1972), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[list[int]] = []
    for start in nodes:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        path.append(start)
        on_path.add(start)
        stack = [(start, iter(following(start)))]
        while stack:
            node, rest = stack[-1]
            below = next(rest, None)
            if below is None:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = path.index(node)
                    found.append(path[cut:])
                    on_path.difference_update(path[cut:])
                    del path[cut:]
            elif below not in index:
                index[below] = low[below] = len(index)
                path.append(below)
                on_path.add(below)
                stack.append((below, iter(following(below))))
            elif below in on_path:
                low[node] = min(low[node], index[below])
    return found


def needed_only(program: Program, chosen: Iterable[int], costs: Callable[[int], float]) -> tuple[int, ...]:
    """The columns without useless ones, in a legal order: the dearest first, each is dropped when the others
    still run without it. The chosen ones must run."""
    order = order_of(program, chosen).columns
    readers = Counter(r for c in order for r in program.reads[c])
    writers = Counter(r for c in order for r in program.writes[c])

    def may_go(c: int) -> bool:
        """Whether every resource that the column writes is needed by nobody else or written by another as well."""
        own = program.reads[c]
        return all(
            writers[r] > 1 or (r not in program.required and readers[r] == (r in own)) for r in program.writes[c]
        )

    place = {c: k for k, c in enumerate(order)}
    for c in sorted(order, key=lambda c: (-costs(c), -place[c])):
        if not may_go(c):
            continue
        rest = order_of(program, (k for k in order if k != c))
        if rest.runs:
            order = rest.columns
            readers.subtract(program.reads[c])
            writers.subtract(program.writes[c])
    return order
