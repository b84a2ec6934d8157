"""C statements that compute a fragment's values at given indices, one vector at a time.

What other kernel families use to fuse what stands before and after their inner loops:

    values = Values(graph, {"i0": Memory("p[0]", strides), "t0": Registers({(n, c0): "acc0", (n, c1): "acc1"})})
    out = Writer(target)
    out.open("for (int64_t n = 0; n < 8; ++n)", ("n",))     # text of the caller's loops, and their variables
    out.store(values.at("t3", (n, c0)), Memory("p[1]", strides), (n, c0), axis="c0")
    out.store(values.at("t3", (n, c1)), Memory("p[1]", strides), (n, c1), axis="c1", lanes=5)
    out.close()
    out.text, out.tables                                     # statements; constant arrays for file scope

- Indices are `korch.codegen.c.index` expressions of variables that are int64_t variables in C. Their ranges must
  be those of the elements themselves (0 to size - 1), so that reshapes cancel: give each vector of a register
  tile a variable of its own (`c0`, `c1`…), declared in C, rather than one variable with offsets.
- `axis` is the variable along which the W lanes of a vector run: lane l is the point with axis + l. `lanes` is the
  number of valid lanes (an int or C text), None for all W. With no axis all lanes hold the one point.
- `Writer.value` gives the C variable (a register, of type v<tag>) that holds a node, emitting what it needs once,
  at the outermost level where all that it depends on is known: loop-invariant values land outside the loop,
  common ones are shared. `forward_indices` leads from a linear primitive's element to the outputs' elements.
- A value of float16 or bfloat16 is held in a float32 register and rounded after each primitive, so fusing never
  changes a result. `Registers` must hold rounded values too (`rounded`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from korch.codegen.c.index import Index, Loaded, flatten, lane_pattern, to_c, unflatten
from korch.codegen.c.nest_reads import Guard, Indices
from korch.codegen.c.nest_values import (
    Apply,
    Choose,
    Held,
    Literal,
    Memory,
    NestError,
    Node,
    Read,
    Registers,
    Source,
    TableRead,
    Values,
)
from korch.codegen.c.prelude import expression, literal, register_tag, storage_tag
from korch.codegen.target import Target
from korch.ir.graph import Graph
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType

__all__ = [
    "Memory",
    "NestError",
    "Registers",
    "Source",
    "Values",
    "Writer",
    "forward_indices",
    "register_tag",
    "rounded",
    "storage_tag",
]

_NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})
_ZEROS = re.compile(r"\.?0+p")  # at the end of a hexadecimal mantissa
# What gives a float16 from float16s without rounding.
_EXACT = frozenset({"neg", "abs", "sign", "floor", "ceil", "round", "max", "min", "where", "cast", "bitcast"})


def rounded(text: str, dtype: DType) -> str:
    """A float32 register rounded to what the dtype can hold; other registers as they are."""
    if dtype not in _NARROW:
        return text
    return f"korch_cast_f32_{storage_tag(dtype)}({text})"


def _register(storage: str) -> str:
    """The register tag of a storage tag."""
    return "f32" if storage in ("f16", "bf16") else storage


@dataclass
class Level:
    """The statements of one loop body so far, the variables that it sets, and what it has computed. Nothing in it
    moves out of a `barrier`."""

    variables: frozenset[str]
    header: str
    barrier: bool = False
    lines: list[str] = field(default_factory=list[str])
    known: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])


class Writer:
    """Writes nested loops; see the module's text."""

    def __init__(self, target: Target, prefix: str = "v") -> None:
        self.lanes = target.lanes()
        self.levels = [Level(frozenset(), "")]
        self.residues: dict[str, int] = {}  # of vector axes: where their vectors start, modulo the lanes
        self._prefix = prefix
        self._names = 0
        self._tables: dict[tuple[object, ...], str] = {}
        self._table_texts: list[str] = []

    # Text.

    def open(self, header: str, variables: Iterable[str] = (), barrier: bool = False) -> None:
        """Opens `header { `; `variables` get new values in it. Nothing moves out of a `barrier`."""
        self.levels.append(Level(frozenset(variables), header, barrier))

    def close(self) -> None:
        """Closes the innermost level."""
        level = self.levels.pop()
        self.levels[-1].lines.append("\n".join([f"{level.header} {{", *level.lines, "}"]))

    def add(self, line: str) -> None:
        """A statement at the innermost level."""
        self.levels[-1].lines.append(line)

    def name(self, prefix: str = "") -> str:
        """A new C name."""
        self._names += 1
        return f"{prefix or self._prefix}{self._names}"

    @property
    def text(self) -> str:
        """All statements; every level but the outermost is closed."""
        assert len(self.levels) == 1
        return "\n".join(self.levels[0].lines)

    @property
    def tables(self) -> str:
        """The constant arrays that the statements use, for file scope."""
        return "\n".join(self._table_texts)

    # Indices.

    def index(self, index: Index, names: Mapping[str, str] | None = None) -> str:
        """C text of an index expression; loaded integers in it must be known at this level."""
        replaced = dict(names or {})
        for atom in index.atoms():
            if isinstance(atom, Loaded) and atom.text not in replaced:
                replaced[atom.text] = self._loaded_scalar(atom)
        return to_c(index, self._integers, replaced)

    def positions(self, index: Index, axis: str | None) -> str:
        """A register (i64) with the index of each lane."""
        stride = 0 if axis is None else index.stride(axis)
        if stride is not None:
            text = f"korch_splat_i64({self.index(index)})"
            return self.declare("i64", f"{text} + korch_iota_i64() * {stride}" if stride else text)
        array, at = self.name(), self.index(index, {axis or "": f"({axis}+l)"})
        self.add(f"i64 {array}[{self.lanes}];")
        self.add(f"for (int64_t l = 0; l < {self.lanes}; ++l) {array}[l] = {at};")
        return self.declare("i64", f"korch_load_i64({array})")

    def condition(self, guards: Iterable[Guard]) -> str:
        """C text that is true where the guards hold."""
        parts: list[str] = []
        for g in guards:
            text = self.index(g.index)
            low, high = g.index.low >= g.low, g.index.high <= g.high
            if not low:
                parts.append(f"({text}) >= {g.low}")
            if not high:
                parts.append(f"({text}) <= {g.high}")
        return " && ".join(parts) or "1"

    def _integers(self, values: tuple[int, ...]) -> str:
        kind = "int32_t" if min(values) >= -(1 << 31) and max(values) < 1 << 31 else "int64_t"
        return self._table(("integers", values), kind, map(str, values))

    def _table(self, key: tuple[object, ...], kind: str, entries: Iterable[str]) -> str:
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = f"KERNEL_{self._prefix}table{len(self._tables)}"
            self._table_texts.append(f"static const {kind} {found}[] = {{{','.join(entries)}}};")
        return found

    # Values.

    def value(self, node: Node, axis: str | None, lanes: int | str | None = None) -> str:
        """The C variable that holds a node's vector."""
        varies = axis in node.variables
        key = (node, axis if varies else None, lanes if varies else None)
        for level in reversed(self.levels):
            if key in level.known:
                return level.known[key]
        if isinstance(node, Held):
            return node.text
        args = [self.value(a, axis, lanes) for a in node.args]
        level = self._level_of(node.variables)
        outer = self.levels[level + 1 :]
        del self.levels[level + 1 :]  # what the node needs beside its arguments is emitted at its level too
        try:
            name = self._emit(node, args, axis if varies else None, lanes if varies else None)
        finally:
            self.levels.extend(outer)
        self.levels[level].known[key] = name
        return name

    def store(
        self, node: Node, memory: Memory, index: Indices, axis: str | None, lanes: int | str | None = None
    ) -> None:
        """Writes a node to memory at the innermost level; lanes that are not valid are left alone."""
        text = self.value(node, axis, lanes)
        self.store_register(text, node.dtype, memory, index, axis, lanes)

    def store_register(
        self,
        text: str,
        dtype: DType,
        memory: Memory,
        index: Indices,
        axis: str | None,
        lanes: int | str | None = None,
    ) -> None:
        """Writes a register."""
        kind, offset = storage_tag(dtype), memory.offset(index)
        place = f"({kind} *)({memory.pointer})"
        if axis is None or lanes == 1:
            # Not as a masked store of one lane: clang makes four bytes of two there.
            text = f"korch_narrow_{kind}({text})" if kind in ("f16", "bf16", "b8") else text
            self.add(f"({place})[{self.index(offset)}] = {text}[0];")
            return
        stride = offset.stride(axis)
        if stride == 1:
            at = self.index(offset)
            if lanes is None:
                self.add(f"korch_store_{kind}({place} + ({at}), {text});")
            else:
                self.add(f"korch_store_n_{kind}({place} + ({at}), {text}, {lanes});")
            return
        if stride is not None:
            at, count = self.index(offset), "" if lanes is None else f", {lanes}"
            form = "" if lanes is None else "n_"
            self.add(f"korch_scatter_{form}{kind}({place} + ({at}), {stride}, {text}{count});")
            return
        array = self.name()
        at = self.index(offset, {axis: f"({axis}+l)"})
        self.add(f"{kind} {array}[{self.lanes}]; korch_store_{kind}({array}, {text});")
        self.add(f"for (int64_t l = 0; l < {self._count(lanes)}; ++l) ({place})[{at}] = {array}[l];")

    def declare(self, dtype_tag: str, text: str, name: str = "") -> str:
        """A new register variable at the innermost level."""
        name = name or self.name()
        self.add(f"v{dtype_tag} {name} = {text};")
        return name

    def _level_of(self, variables: frozenset[str]) -> int:
        for k in range(len(self.levels) - 1, 0, -1):
            if self.levels[k].barrier or not self.levels[k].variables.isdisjoint(variables):
                return k
        return 0

    def _count(self, lanes: int | str | None) -> str:
        return str(self.lanes if lanes is None else lanes)

    def _emit(self, node: Node, args: list[str], axis: str | None, lanes: int | str | None) -> str:
        tag = register_tag(node.dtype)
        if isinstance(node, Literal):
            return self.declare(tag, f"korch_splat_{tag}({literal(node.value)})")
        if isinstance(node, Read):
            return self._read(node, axis, lanes)
        if isinstance(node, Apply):
            return self.declare(tag, self._apply(node, args))
        if isinstance(node, Choose):
            self._forbid_axis(node.guards, axis)
            return self.declare(tag, f"{self.condition(node.guards)} ? {args[0]} : {args[1]}")
        assert isinstance(node, TableRead)
        numbers = [_ZEROS.sub("p", literal(node.dtype.numpy.type(v))) for v in node.values]
        table = self._table(("numbers", node.dtype, node.values), storage_tag(node.dtype), numbers)
        return self.declare(tag, self._load(table, node.dtype, node.at, axis, lanes))

    def _apply(self, node: Apply, args: list[str]) -> str:
        if node.function:
            return f"{node.function}({', '.join(args)})"
        types = [TensorType(a.dtype, ()) for a in node.args]
        text = expression(node.definition, args, types, TensorType(node.dtype, ()))
        return text if node.definition.primitive in _EXACT else rounded(text, node.dtype)

    def _forbid_axis(self, guards: Iterable[Guard], axis: str | None) -> None:
        if axis is not None and any(axis in g.index.variables for g in guards):
            raise NestError("the lanes of a vector differ in a condition")

    def _read(self, node: Read, axis: str | None, lanes: int | str | None) -> str:
        tag, memory = register_tag(node.dtype), node.memory
        if not node.guards:
            return self.declare(tag, self._load(memory.pointer, node.dtype, node.offset, axis, lanes))
        self._forbid_axis(node.guards, axis)
        name = self.declare(tag, f"korch_splat_{tag}(0)")
        self.open(f"if ({self.condition(node.guards)})")
        self.add(f"{name} = {self._load(memory.pointer, node.dtype, node.offset, axis, lanes)};")
        self.close()
        return name

    def _load(self, pointer: str, dtype: DType, offset: Index, axis: str | None, lanes: int | str | None) -> str:
        """C text of a vector loaded from memory; statements that prepare it are added."""
        kind = storage_tag(dtype)
        place = f"(const {kind} *)({pointer})"
        stride = offset.stride(axis) if axis is not None and lanes != 1 else 0
        if stride == 0:
            return f"korch_broadcast_{kind}({place} + ({self.index(offset)}))"
        if stride == 1:
            at = self.index(offset)
            if lanes is None:
                return f"korch_load_{kind}({place} + ({at}))"
            return f"korch_load_n_{kind}({place} + ({at}), {lanes})"
        if lanes is None and stride in (-1, 2):
            return self._shuffled(place, kind, offset, stride)
        if stride is not None:
            at, count = self.index(offset), "" if lanes is None else f", {lanes}"
            form = "" if lanes is None else "n_"
            return f"korch_gather_{form}{kind}({place} + ({at}), {stride}{count})"
        assert axis is not None
        repeated = self._repeated(place, kind, offset, axis, lanes)
        if repeated is not None:
            return repeated
        names = {axis: f"({axis}+l)"}
        for atom in offset.atoms():
            if isinstance(atom, Loaded) and axis in atom.variables:
                names[atom.text] = f"{self._loaded_lanes(atom, axis, lanes)}[l]"
        array, at, count = self.name(), self.index(offset, names), self._count(lanes)
        self.add(f"{kind} {array}[{self.lanes}];")
        self.add(f"for (int64_t l = 0; l < {count}; ++l) {array}[l] = ({place})[{at}];")
        return f"korch_load_{kind}({array})" if lanes is None else f"korch_load_n_{kind}({array}, {lanes})"

    def _shuffled(self, place: str, kind: str, offset: Index, stride: int) -> str:
        """Elements backwards, or every other one: whole vectors, rearranged."""
        width, register = self.lanes, _register(kind)
        if stride < 0:
            at = self.index(offset - (width - 1))
            name = self.declare(register, f"korch_load_{kind}({place} + ({at}))")
            order = ",".join(map(str, reversed(range(width))))
            return f"__builtin_shufflevector({name}, {name}, {order})"
        low = self.declare(register, f"korch_load_{kind}({place} + ({self.index(offset)}))")
        rest = f"korch_load_n_{kind}({place} + ({self.index(offset + width)}), {width - 1})"
        high = self.declare(register, rest)
        order = ",".join(map(str, range(0, 2 * width, 2)))
        return f"__builtin_shufflevector({low}, {high}, {order})"

    def _repeated(self, place: str, kind: str, offset: Index, axis: str, lanes: int | str | None) -> str | None:
        """A load in which lanes repeat: of as many elements as there are, then spread."""
        if axis not in self.residues or isinstance(lanes, str):
            return None
        pattern = lane_pattern(offset, axis, self.residues[axis], self.lanes)
        if pattern is None or sorted(pattern) != list(pattern) or pattern[-1] >= self.lanes:
            return None
        count = pattern[(self.lanes if lanes is None else lanes) - 1] + 1
        name = self.declare(_register(kind), f"korch_load_n_{kind}({place} + ({self.index(offset)}), {count})")
        order = ",".join(map(str, pattern))
        return f"__builtin_shufflevector({name}, {name}, {order})"

    # Indices that are data.

    def _loaded_scalar(self, atom: Loaded) -> str:
        node, size = self._loaded_source(atom)
        key = ("loaded", node, size)
        for level in reversed(self.levels):
            if key in level.known:
                return level.known[key]
        name = self.name()
        text = self._as_int64(node, self.value(node, None))
        self.add(f"int64_t {name} = ({text})[0];")
        self._clamp(name, size)
        self.levels[-1].known[key] = name
        return name

    def _loaded_lanes(self, atom: Loaded, axis: str, lanes: int | str | None) -> str:
        node, size = self._loaded_source(atom)
        key = ("loaded", node, size, axis, lanes)
        for level in reversed(self.levels):
            if key in level.known:
                return level.known[key]
        name = self.name()
        text = self._as_int64(node, self.value(node, axis, lanes))
        self.add(f"int64_t {name}[{self.lanes}]; korch_store_i64({name}, {text});")
        self.open(f"for (int64_t l = 0; l < {self._count(lanes)}; ++l)")
        self._clamp(f"{name}[l]", size)
        self.close()
        self.levels[-1].known[key] = name
        return name

    def _loaded_source(self, atom: Loaded) -> tuple[Node, int]:
        source = atom.source
        assert isinstance(source, tuple)
        node, size = source
        assert isinstance(node, Node) and isinstance(size, int)
        return node, size

    def _as_int64(self, node: Node, text: str) -> str:
        if node.dtype is DType.INT64:
            return text
        return f"korch_cast_{register_tag(node.dtype)}_i64({text})"

    def _clamp(self, place: str, size: int) -> None:
        """Counted from the end when negative, then moved inside."""
        self.add(f"{place} = {place} < 0 ? {place} + {size} : {place};")
        self.add(f"{place} = {place} < 0 ? 0 : {place} > {size - 1} ? {size - 1} : {place};")


def forward_indices(graph: Graph, value: str, index: Indices) -> dict[str, Indices]:
    """Where the element of `value` goes: its index in each output that depends on it.

    The way leads through elementwise primitives, reshapes and transposes; outputs on other ways are left out.
    """
    found: dict[str, Indices] = {value: index}
    moves: dict[str, Callable[[Indices, tuple[int, ...], tuple[int, ...]], Indices]] = {
        "reshape": lambda i, before, after: unflatten(flatten(i, before), after)
    }
    for d in graph.definitions:
        source = next((v for v in d.inputs if v in found), None)
        if source is None or d.outputs[0] in found:
            continue
        at, before = found[source], graph.types[source].shape
        if TABLE[d.primitive].kind == "elementwise":
            found[d.outputs[0]] = at
        elif d.primitive == "transpose":
            found[d.outputs[0]] = tuple(at[p] for p in d.ints("perm"))
        elif d.primitive in moves:
            found[d.outputs[0]] = moves[d.primitive](at, before, graph.types[d.outputs[0]].shape)
    return {v: found[v] for v in graph.output_values if v in found}
