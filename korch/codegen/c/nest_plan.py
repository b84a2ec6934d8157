"""Which loops compute a fragment: families of values, their axes, and the passes that share loops.

A *root* is a value that loops store or accumulate: every output, every reduction, and a few elementwise values
worth keeping (`kept_values`). All else is computed where it is read. A *family* is one root, or several over the
same points. Its axes are split until no index divides by a constant, linked with the axes of the families whose
values it reads at the same point, and merged where all memory is contiguous across them. Linked axes have one
name. A *pass* is a sequence of families over the same kept axes, computed in the same loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from korch.codegen.c.index import Index, Quotient, Remainder, Variable, variable
from korch.codegen.c.nest_domain import WHOLE, Domain, Image
from korch.codegen.c.nest_reads import REDUCTIONS, Guard, Indices, Term
from korch.codegen.c.nest_values import Apply, Memory, Read, Source, Stage, TableRead, Values
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE

# Vector operations that one elementwise primitive takes, roughly; 1 where not listed.
_OPERATIONS = {
    "exp": 10, "log": 12, "log1p": 20, "expm1": 20, "erf": 20, "tanh": 16, "sin": 24, "cos": 24, "tan": 30,
    "asin": 24, "acos": 24, "atan": 20, "sinh": 24, "cosh": 24, "asinh": 30, "acosh": 30, "atanh": 24,
    "atan2": 30, "pow": 40, "mod": 12, "fmod": 12, "div": 4, "sqrt": 4,
}  # fmt: skip
_MOST_PARTS = 32  # of an output that is concatenated
MOST_TAPS = 9  # loops of reductions of so few iterations are unrolled
_HEAVY = 8  # operations from which recomputing costs more than a store and a load in the nearest cache


def operations(definition: Definition) -> int:
    """A rough count of the vector operations of an elementwise primitive."""
    return _OPERATIONS.get(definition.primitive, 1)


@dataclass
class Family:
    """Values computed at the same points. `definitions` are their reductions, over the loops `loops` (of one
    element for values without); `names` and `loop_names` name the axes. `kept` are the points of the values, or
    of a part of one output, whose elements have the `image` as index in the whole."""

    values: tuple[str, ...]
    definitions: tuple[Definition, ...]
    kept: Domain
    loops: Domain
    names: list[str]
    loop_names: list[str]
    image: Image = WHOLE

    def index(self, variables: Indices) -> Indices:
        """The element of the values at a point."""
        return self.image(self.kept.index(variables))

    def extents(self) -> dict[str, int]:
        """The size of each axis."""
        kept = zip(self.names, self.kept.extents, strict=True)
        return dict(itertools.chain(kept, zip(self.loop_names, self.loops.extents, strict=True)))


@dataclass
class Look:
    """What the expressions of a family touch, as seen from its axes."""

    reads: list[Read] = field(default_factory=list[Read])
    stores: list[tuple[Index, int]] = field(default_factory=list[tuple[Index, int]])
    stages: list[tuple[str, Indices]] = field(default_factory=list[tuple[str, Indices]])
    guards: list[Guard] = field(default_factory=list[Guard])
    tables: list[Index] = field(default_factory=list[Index])
    applied: list[Apply] = field(default_factory=list[Apply])

    def memory(self) -> Iterable[Index]:
        """All index expressions but the coordinates of other families' values."""
        yield from (r.offset for r in self.reads)
        yield from (o for o, _ in self.stores)
        yield from (g.index for g in self.guards)
        yield from self.tables

    def indices(self) -> Iterable[Index]:
        """All index expressions."""
        yield from self.memory()
        yield from (i for _, at in self.stages for i in at)


@dataclass
class Pass:
    """Families computed in the same loops over the axes `names`."""

    families: list[Family]
    names: frozenset[str]

    def values(self) -> Iterable[str]:
        return (v for f in self.families for v in f.values)


@dataclass
class Plan:
    """All passes in an order in which values come before their readers. Of the roots, those in `stages` are read
    by other families where they lie; outputs that are merely elementwise are computed again."""

    graph: Graph
    layouts: Mapping[str, Layout]
    stages: frozenset[str]
    families: list[Family]
    passes: list[Pass]
    extents: dict[str, int]

    def look(self, family: Family, unrolled: bool = False) -> Look:
        """`unrolled` looks at the first iteration of the family's loops only."""
        roots = {v: f for f in self.families for v in f.values if v in self.stages}
        return look(self.graph, self.layouts, family, roots, unrolled)

    @property
    def roots(self) -> dict[str, Family]:
        return {v: f for f in self.families for v in f.values}


def output_memory(graph: Graph, layouts: Mapping[str, Layout], value: str, pointer: str) -> Memory:
    """A value in its layout."""
    return Memory(pointer, layouts[value].strides_of(graph.types[value].shape))


def reduction_term(graph: Graph, d: Definition, index: Indices, loops: Indices) -> Term:
    types = [graph.types[v] for v in d.inputs]
    return REDUCTIONS[d.primitive].term(d, types, index, loops)


def look(
    graph: Graph, layouts: Mapping[str, Layout], family: Family, roots: Mapping[str, Family], unrolled: bool = False
) -> Look:
    """Expands a family's values over its axes; it reads `roots` where they lie."""
    sources: dict[str, Source] = {v: Stage() for v in roots}
    for v in graph.input_values:
        sources.setdefault(v, output_memory(graph, layouts, v, f"in_{v}"))
    values = Values(graph, sources)
    index = family.index(axis_variables(family.names, family.kept.extents))
    sizes = tuple(1 for _ in family.loops.extents) if unrolled else family.loops.extents
    loops = family.loops.index(axis_variables(family.loop_names, sizes))
    found = Look()
    for d in family.definitions:
        term = reduction_term(graph, d, index, loops)
        remaining = values.decide(term.guards)
        if remaining is None:
            continue
        for operand, at in term.reads:
            values.at(d.inputs[operand], at, remaining)
        if term.weight is not None:
            found.tables.append(term.weight)
    for v in family.values:
        if not family.definitions:
            values.define(v, index)
        if v in graph.output_values:
            memory = output_memory(graph, layouts, v, "")
            found.stores.append((memory.offset(index), graph.types[v].dtype.size))
    for node in values.nodes:
        if isinstance(node, Read):
            found.reads.append(node)
        elif isinstance(node, Apply):
            found.applied.append(node)
        elif isinstance(node, TableRead):
            found.tables.append(node.at)
    found.guards = list(values.open_guards)
    found.stages = [(v, roots[v].kept.coordinates(at)) for v, at in values.stage_reads]
    return found


def axis_variables(names: Sequence[str], extents: Sequence[int]) -> Indices:
    return tuple(variable(name, 0, n - 1) for name, n in zip(names, extents, strict=True))


def make_plan(graph: Graph, layouts: Mapping[str, Layout], kept: frozenset[str]) -> Plan:
    """Families, axes and passes of a graph whose reductions have no empty loops; `kept` are further roots."""
    counter = itertools.count()
    families = _families(graph, layouts, kept, counter)
    reductions = {v for d in graph.definitions if d.primitive in REDUCTIONS for v in d.outputs}
    plan = Plan(graph, layouts, kept | reductions, families, [], {})
    _split(plan, counter)
    _link(plan)
    _merge(plan)
    plan.extents = {name: n for f in families for name, n in f.extents().items()}
    plan.passes = _passes(plan)
    return plan


def kept_values(graph: Graph, layouts: Mapping[str, Layout]) -> frozenset[str]:
    """Elementwise values that are better stored than computed again where they are read.

    These are what a broadcast spreads, when it took arithmetic on a reduction (or much arithmetic) to make, and
    heavy values that a reduction and something else read.
    """
    definitions = {v: d for d in graph.definitions for v in d.outputs}
    reductions = {v for v, d in definitions.items() if d.primitive in REDUCTIONS}
    kept: set[str] = set()
    for d in graph.definitions:
        if d.primitive != "broadcast" or graph.types[d.outputs[0]].elements < 4 * graph.types[d.inputs[0]].elements:
            continue
        value = d.inputs[0]
        while value in definitions and TABLE[definitions[value].primitive].kind == "layout":
            value = definitions[value].inputs[0]
        if value not in definitions or TABLE[definitions[value].primitive].kind != "elementwise":
            continue
        work, reduced = _effort(value, definitions, reductions | kept)
        if reduced or work >= _HEAVY:
            kept.add(value)
    sinks: dict[str, frozenset[object]] = {}
    users = graph.users()
    for d in reversed(graph.definitions):
        v = d.outputs[0]
        found: set[object] = {("out", graph.types[v].shape, layouts[v])} if v in graph.output_values else set()
        for u in (graph.definitions[i] for i in users[v]):
            w = u.outputs[0]
            if w in reductions or w in kept:
                found.add(w)
                if w in reductions and _reads_often(graph, u):
                    found.add((w, "again"))
            else:
                found |= sinks.get(w, frozenset())
        sinks[v] = frozenset(found)
        if v in reductions or v in kept or len(found) < 2 or TABLE[d.primitive].kind != "elementwise":
            continue
        inner = [graph.definitions[i] for i in users[v]]
        frontier = not any(sinks.get(u.outputs[0]) == sinks[v] and u.outputs[0] not in reductions for u in inner)
        into_reduction = any(isinstance(s, str) and s in reductions for s in found)
        if frontier and into_reduction and _effort(v, definitions, reductions | kept)[0] >= _HEAVY:
            kept.add(v)
    return frozenset(kept)


def _reads_often(graph: Graph, d: Definition) -> bool:
    """Whether a reduction reads an element more than once."""
    if TABLE[d.primitive].kind == "linear":
        return True
    return d.primitive.startswith("window") and math.prod(d.ints("window")) > 2 * math.prod(d.ints("strides"))


def _effort(value: str, definitions: Mapping[str, Definition], roots: set[str]) -> tuple[int, bool]:
    """Operations to compute one element from roots and inputs, and whether a root is read."""
    seen: set[str] = set()
    work, reduced, pending = 0, False, [value]
    while pending:
        v = pending.pop()
        if v in seen or v not in definitions:
            continue
        seen.add(v)
        if v in roots and v != value:
            reduced = True
            continue
        d = definitions[v]
        if TABLE[d.primitive].kind == "elementwise":
            work += operations(d)
        pending.extend(d.inputs)
    return work, reduced


# Families.


def _families(
    graph: Graph, layouts: Mapping[str, Layout], kept: frozenset[str], counter: itertools.count[int]
) -> list[Family]:
    """The families in an order in which values come before their readers."""
    definitions = {v: d for d in graph.definitions for v in d.outputs}
    depends = _root_dependencies(graph, kept)
    groups: dict[object, list[list[str]]] = {}
    made: list[Family] = []
    stages = kept | {v for v, d in definitions.items() if d.primitive in REDUCTIONS}
    parts = _parts(graph, stages)
    for v in depends:
        d = definitions.get(v)
        shape = graph.types[v].shape
        if v in parts:
            made += _part_families(v, parts[v], shape, counter)
            continue
        if d is not None and d.primitive in REDUCTIONS:
            types = [graph.types[u] for u in d.inputs]
            extents = REDUCTIONS[d.primitive].extents(d, types)
            same = d.attributes if TABLE[d.primitive].kind == "reduce" else v
            key: object = (shape, extents, types[0].shape, same, d.primitive.startswith("arg"))
        else:
            key = (shape, layouts[v] if v in graph.output_values else v)
        lists = groups.setdefault(key, [])
        # Independent of all that is there already, in both directions.
        home = next((g for g in lists if all(v not in depends[w] and w not in depends[v] for w in g)), None)
        if home is None:
            lists.append([v])
        else:
            home.append(v)
    for lists in groups.values():
        for members in lists:
            first = definitions.get(members[0])
            extents: tuple[int, ...] = ()
            reducing: tuple[Definition, ...] = ()
            if first is not None and first.primitive in REDUCTIONS:
                extents = REDUCTIONS[first.primitive].extents(first, [graph.types[u] for u in first.inputs])
                reducing = tuple(definitions[v] for v in members)
            domain, loops = Domain.of(graph.types[members[0]].shape), Domain.of(extents)
            names = [f"a{next(counter)}" for _ in domain.axes]
            loop_names = [f"r{next(counter)}" for _ in loops.axes]
            made.append(Family(tuple(members), reducing, domain, loops, names, loop_names))
    return _ordered(made, depends)


_Part = tuple[tuple[int, ...], Image]


def _part_families(
    value: str,
    parts: Sequence[_Part],
    shape: tuple[int, ...],
    counter: itertools.count[int],
) -> list[Family]:
    """One family for each part. Slices of the whole share the axes along which they are as long as the whole."""
    slices = all(kind == "shift" for _, image in parts for kind, _, _ in image.moves)
    common = {
        d: f"a{next(counter)}" for d in range(len(shape)) if all(part[d:][:1] == shape[d:][:1] for part, _ in parts)
    }
    made: list[Family] = []
    for part, image in parts:
        domain = Domain.of(part)
        dims = [d for ((d, _),) in domain.axes]
        names = [common[d] if slices and d in common else f"a{next(counter)}" for d in dims]
        made.append(Family((value,), (), domain, Domain.of(()), names, [], image))
    return made


def _parts(graph: Graph, stages: frozenset[str]) -> dict[str, list[_Part]]:
    """Each value cut along the concats that it comes from, through elementwise primitives, reshapes and
    transposes: the shape of each part and its place in the whole. Within a part it is known which input is read."""
    found: dict[str, list[_Part]] = {}

    def of(value: str) -> list[_Part]:
        return found.get(value, [(graph.types[value].shape, WHOLE)])

    for d in graph.definitions:
        value = d.outputs[0]
        if value in stages:
            continue
        if d.primitive == "concat":
            start, axis = 0, d.int("axis")
            parts: list[_Part] = []
            for v in d.inputs:
                if graph.types[v].elements:
                    parts += _moved(of(v), ("shift", (axis,), (start,)))
                start += graph.types[v].shape[axis]
            found[value] = parts
        elif TABLE[d.primitive].kind == "elementwise":
            cut = next((v for v in d.inputs if len(of(v)) > 1), None)
            if cut is not None:
                found[value] = of(cut)
        elif d.primitive == "reshape":
            found[value] = _moved(of(d.inputs[0]), ("reshape", graph.types[d.inputs[0]].shape, d.ints("shape")))
        elif d.primitive == "transpose":
            found[value] = _moved(of(d.inputs[0]), ("transpose", d.ints("perm"), ()))
    return {v: parts for v, parts in found.items() if 1 < len(parts) <= _MOST_PARTS}


def _moved(parts: Sequence[_Part], move: tuple[str, tuple[int, ...], tuple[int, ...]]) -> list[_Part]:
    return [(shape, Image((*image.moves, move))) for shape, image in parts]


def _root_dependencies(graph: Graph, kept: frozenset[str]) -> dict[str, frozenset[str]]:
    """For each root, all roots that it depends on; roots in an order that respects it."""
    reach: dict[str, frozenset[str]] = {v: frozenset() for v in graph.types}
    roots: dict[str, frozenset[str]] = {}
    outputs = set(graph.output_values)
    live = _live(graph)
    for d in graph.definitions:
        v = d.outputs[0]
        if v not in live:
            continue
        below = frozenset[str]().union(*(reach[u] for u in d.inputs))
        if d.primitive in REDUCTIONS or v in kept:
            roots[v] = below
            reach[v] = below | {v}
        else:
            reach[v] = below
            if v in outputs:
                roots[v] = below
    for v in graph.output_values:
        roots.setdefault(v, reach[v])
    return {v: roots[v] for v in roots if graph.types[v].elements}


def _live(graph: Graph) -> set[str]:
    live = {v for v in graph.output_values if graph.types[v].elements}
    for d in reversed(graph.definitions):
        if live.intersection(d.outputs):
            live.update(d.inputs)
    return live


def _ordered(families: list[Family], depends: Mapping[str, frozenset[str]]) -> list[Family]:
    """Values before their readers; in conflict-free order otherwise."""
    home = {v: f for f in families for v in f.values}
    result: list[Family] = []
    state: dict[int, int] = {}

    def visit(f: Family) -> None:
        if state.get(id(f)):
            return
        state[id(f)] = 1
        for v in f.values:
            for u in sorted(depends[v]):
                if home[u] is not f:
                    visit(home[u])
        result.append(f)

    for f in families:
        visit(f)
    return result


# Axes.


def _split(plan: Plan, counter: itertools.count[int]) -> None:
    """Splits axes at the divisors that indices divide them by."""
    for _ in range(32):
        changed = False
        for family in plan.families:
            seen = plan.look(family)
            changed |= _split_own(family, seen, counter) or _split_read(plan, seen, counter)
        if not changed:
            return


def _split_own(family: Family, seen: Look, counter: itertools.count[int]) -> bool:
    extents = family.extents()
    divided = [a for i in seen.indices() for a in i.atoms() if isinstance(a, Quotient | Remainder)]
    # Where entries are merely repeated, lanes are repeated too (`lane_pattern`): no reason to split.
    split = {a.base for a in divided if isinstance(a, Remainder)}
    for atom in divided:
        if isinstance(atom, Quotient) and atom.divisor in (2, 4) and atom.base not in split and _plain(atom.base):
            continue
        for inner, k in atom.base.terms:
            if not isinstance(inner, Variable) or k <= 0 or atom.divisor % k:
                continue
            size, n = atom.divisor // k, extents[inner.text]
            if size > 1 and n > size and n % size == 0:
                _split_axis(family, inner.text, (n // size, size), counter)
                return True
    return False


def _plain(index: Index) -> bool:
    """Whether an index is one variable plus a constant."""
    return len(index.terms) == 1 and isinstance(index.terms[0][0], Variable) and index.terms[0][1] == 1


def _split_axis(family: Family, name: str, sizes: tuple[int, ...], counter: itertools.count[int]) -> None:
    if name in family.names:
        at = family.names.index(name)
        family.kept = family.kept.split(at, sizes)
        family.names[at : at + 1] = [f"a{next(counter)}" for _ in sizes]
    else:
        at = family.loop_names.index(name)
        family.loops = family.loops.split(at, sizes)
        family.loop_names[at : at + 1] = [f"r{next(counter)}" for _ in sizes]


def _split_read(plan: Plan, seen: Look, counter: itertools.count[int]) -> bool:
    """Splits the axes of a value that is read at digits of a reader's axes."""
    for value, at in seen.stages:
        owner = plan.roots[value]
        for name, n, index in zip(owner.names, owner.kept.extents, at, strict=True):
            sizes = _digits(index)
            if sizes is not None and len(sizes) > 1 and math.prod(sizes) == n:
                _split_axis(owner, name, sizes, counter)
                return True
    return False


def _digits(index: Index) -> tuple[int, ...] | None:
    """The sizes of the variables when an index counts row-major through them, slowest first."""
    step, sizes = 1, list[int]()
    for atom, k in sorted(index.terms, key=lambda t: t[1]):
        if not isinstance(atom, Variable) or k != step or atom.low != 0:
            return None
        sizes.append(atom.high + 1)
        step *= atom.high + 1
    return tuple(reversed(sizes)) if index.constant == 0 else None


def _link(plan: Plan) -> None:
    """Gives axes one name when every reader reads one at exactly the other's position."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.get(name, name) != name:
            name = parent[name]
        return name

    broken: set[str] = set()
    members: dict[str, list[Family]] = {}
    extents: dict[str, int] = {}
    for family in plan.families:
        extents.update(family.extents())
    for family in plan.families:
        for value, at in plan.look(family).stages:
            owner = plan.roots[value]
            for name, index in zip(owner.names, at, strict=True):
                atom = index.terms[0][0] if len(index.terms) == 1 else None
                exact = isinstance(atom, Variable) and index.text == atom.text
                if exact and atom is not None and atom.text in family.names and extents[atom.text] == extents[name]:
                    parent[find(name)] = find(atom.text)
                else:
                    broken.add(name)
    for family in plan.families:
        for name in family.names:
            members.setdefault(find(name), []).append(family)
    invalid = {find(name) for name in broken}
    for root, owners in members.items():
        if len({id(f) for f in owners}) < len(owners):
            invalid.add(root)
    for family in plan.families:
        family.names = [n if find(n) in invalid else find(n) for n in family.names]


def _merge(plan: Plan) -> None:
    """Joins axes that lie next to each other in all memory."""
    while True:
        looks = [plan.look(f) for f in plan.families]
        pair = _mergeable(plan, looks)
        if pair is None:
            return
        slow, fast = pair
        for family in plan.families:
            if slow in family.names:
                a, b = family.names.index(slow), family.names.index(fast)
                family.kept = family.kept.merge(a, b)
                del family.names[b]
            elif slow in family.loop_names:
                a, b = family.loop_names.index(slow), family.loop_names.index(fast)
                family.loops = family.loops.merge(a, b)
                del family.loop_names[b]


def _mergeable(plan: Plan, looks: Sequence[Look]) -> tuple[str, str] | None:
    for family in plan.families:
        for names in (family.names, family.loop_names):
            for slow, fast in itertools.permutations(names, 2):
                if _pair_merges(plan, looks, slow, fast):
                    return slow, fast
    return None


def _pair_merges(plan: Plan, looks: Sequence[Look], slow: str, fast: str) -> bool:
    for family, seen in zip(plan.families, looks, strict=True):
        in_kept = slow in family.names, fast in family.names
        in_loops = slow in family.loop_names, fast in family.loop_names
        if not any(in_kept + in_loops):
            continue
        if not (all(in_kept) or all(in_loops)):
            return False
        n = family.extents()[fast]
        for index in seen.memory():
            a, b = index.stride(slow), index.stride(fast)
            if a is None or b is None or a != b * n:
                return False
        for value, at in seen.stages:
            both = slow in plan.roots[value].names
            for index in at:
                if not index.variables.isdisjoint((slow, fast)) and not (both and index.text in (slow, fast)):
                    return False
    return True


# Passes.


def _passes(plan: Plan) -> list[Pass]:
    """Families in order; one that reads a family of the same axes joins its pass."""
    passes: list[Pass] = []
    place: dict[str, int] = {}
    for family in plan.families:
        read = {value for value, _ in plan.look(family).stages}
        earliest = max((place[v] for v in read), default=-1)
        names = frozenset(family.names)
        at = earliest if earliest >= 0 and passes[earliest].names == names else len(passes)
        if at == len(passes):
            passes.append(Pass([], names))
        passes[at].families.append(family)
        place.update(dict.fromkeys(family.values, at))
    return passes
