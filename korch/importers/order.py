"""Which node reads what: free names of bodies, sorting, cycles, undefined names, what is dead."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from korch.errors import InvalidModel
from korch.importers.attributes import graphs_of, standard_domain

FunctionKey = tuple[str, str, str]


def function_key(of: NodeProto | FunctionProto) -> FunctionKey:
    """What a node calls, or a function is called by: domain, name, overload."""
    name = of.op_type if isinstance(of, NodeProto) else of.name
    return standard_domain(of.domain), name, of.overload


def node_label(node: NodeProto) -> str:
    """For messages."""
    name = node.name or ", ".join(o for o in node.output if o) or "without a name"
    return f"{node.op_type} node {name!r}"


def declared_names(region: GraphProto | FunctionProto) -> list[str]:
    """The names that hold before the first node: inputs and initializers."""
    if isinstance(region, FunctionProto):
        return list(region.input)
    inputs = [i.name for i in region.input]
    initializers = [t.name for t in region.initializer] + [s.values.name for s in region.sparse_initializer]
    return inputs + initializers


def output_names(region: GraphProto | FunctionProto) -> list[str]:
    if isinstance(region, FunctionProto):
        return list(region.output)
    return [o.name for o in region.output]


def reads(node: NodeProto) -> list[str]:
    """The names a node reads, those that its bodies take from outside included; each once."""
    found = dict.fromkeys(n for n in node.input if n)
    for graph in graphs_of(node):
        found.update(dict.fromkeys(free_names(graph)))
    return list(found)


def free_names(graph: GraphProto) -> list[str]:
    """The names that a body reads from the graphs around it."""
    own = set(declared_names(graph))
    own.update(o for node in graph.node for o in node.output)
    found: dict[str, None] = {}
    for node in graph.node:
        found.update(dict.fromkeys(reads(node)))
    found.update(dict.fromkeys(output_names(graph)))
    return [n for n in found if n not in own]


def live_nodes(region: GraphProto | FunctionProto) -> list[NodeProto]:
    """The nodes that some output needs, in their order."""
    needed = set(output_names(region))
    live: list[NodeProto] = []
    for node in reversed(region.node):
        if any(o in needed for o in node.output if o):
            needed.update(reads(node))
            live.append(node)
    return live[::-1]


# --- sorting


def order_model(model: ModelProto) -> bool:
    """Sorts the nodes of every graph and function in place so that each comes after what it reads; stable.

    True when nothing had to move. InvalidModel on a cycle, on an undefined name and on one defined twice.
    """
    _refuse_recursion(model.functions)
    in_order = True
    regions: list[tuple[GraphProto | FunctionProto, bool]] = [(model.graph, True)]
    regions += [(f, True) for f in model.functions]
    while regions:
        region, outermost = regions.pop()
        if outermost:
            _refuse_undefined(region)
        order = _order(region)
        if order != list(range(len(order))):
            in_order = False
            copies = [NodeProto.FromString(region.node[i].SerializeToString()) for i in order]
            del region.node[:]
            region.node.extend(copies)
        regions.extend((g, False) for node in region.node for g in graphs_of(node))
    return in_order


def _definers(region: GraphProto | FunctionProto) -> dict[str, int]:
    """Which node defines a name."""
    declared, found = set(declared_names(region)), dict[str, int]()
    for i, node in enumerate(region.node):
        for name in node.output:
            if name and (name in found or name in declared):
                raise InvalidModel(f"{node_label(node)} defines {name!r}, which is defined already")
            found[name] = i
    found.pop("", None)
    return found


def _refuse_undefined(region: GraphProto | FunctionProto) -> None:
    known = _definers(region).keys() | set(declared_names(region))
    for node in region.node:
        for name in reads(node):
            if name not in known:
                raise InvalidModel(f"{node_label(node)} reads {name!r}, which nothing defines")
    for name in output_names(region):
        if name not in known:
            raise InvalidModel(f"the output {name!r} of {region.name!r} is defined by nothing")


def _order(region: GraphProto | FunctionProto) -> list[int]:
    definer = _definers(region)
    needs = [{definer[n] for n in reads(node) if n in definer} for node in region.node]
    users: list[list[int]] = [[] for _ in needs]
    for i, needed in enumerate(needs):
        for j in needed:
            users[j].append(i)
    waiting = [len(needed) for needed in needs]
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for user in users[i]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(needs):
        stuck = set(range(len(needs))) - set(order)
        circle = find_circle(min(stuck), lambda i: (j for j in sorted(needs[i]) if j in stuck))
        labels = " -> ".join(node_label(region.node[i]) for i in reversed(circle))
        raise InvalidModel(f"nodes depend on each other in a circle: {labels}")
    return order


def find_circle(start: int, needs: Callable[[int], Iterable[int]]) -> list[int]:
    """A circle reached from `start` when everything reached needs something; its first node closes it."""
    path, place = [start], {start: 0}
    while True:
        step = next(iter(needs(path[-1])))
        if step in place:
            return [*path[place[step] :], step]
        place[step] = len(path)
        path.append(step)


def _calls(nodes: Sequence[NodeProto], functions: Mapping[FunctionKey, FunctionProto]) -> list[FunctionKey]:
    found: dict[FunctionKey, None] = {}
    pending = [*nodes]
    while pending:
        node = pending.pop()
        if function_key(node) in functions:
            found[function_key(node)] = None
        pending.extend(n for g in graphs_of(node) for n in g.node)
    return list(found)


def _refuse_recursion(functions: Sequence[FunctionProto]) -> None:
    table = {function_key(f): f for f in functions}
    remaining = {key: _calls(f.node, table) for key, f in table.items()}
    while remaining:
        leaves = [key for key, calls in remaining.items() if not any(c in remaining for c in calls)]
        if not leaves:
            names = ", ".join(repr(name) for _, name, _ in remaining)
            raise InvalidModel(f"functions call themselves, directly or not: {names}")
        for key in leaves:
            del remaining[key]
