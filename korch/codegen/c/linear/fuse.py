"""What is fused around a linear primitive: its result's way to the outputs, and its operand's way from the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from korch.codegen.c.emit import (
    Memory,
    NestError,
    Registers,
    Source,
    Values,
    Writer,
    forward_indices,
    rounded,
    storage_tag,
)
from korch.codegen.c.index import Index, variable
from korch.codegen.c.linear.problem import Arguments, Problem
from korch.codegen.c.linear.tile import Columns, accumulator
from korch.codegen.c.nest_reads import Indices
from korch.codegen.c.nest_values import Node, Read
from korch.ir.primitives import TABLE
from korch.ir.types import DType

# Vector operations of one tile's epilogue up to which it is written out for every accumulator; beyond, the
# accumulators go through memory and a loop over rows, which keeps the code small.
UNROLLED = 120
# Vector operations for each vector of the result from which on many rows are finished in one go.
HEAVY = 10
_HEAVY = ("exp", "log", "log1p", "expm1", "erf", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a linear primitive's result: a `Finish` of tiles, and of rows of sums in memory.

    `place(j, c)` is the element of the result in row j (of `length`) and column c (of `n`). Where `heavy`, many sums
    should be finished in one go: one vector's operations depend on each other, so it takes several at once to keep
    the processor busy.
    """

    problem: Problem
    place: Callable[[Index, Index], Indices]
    length: int
    n: int
    sources: Mapping[str, Memory]
    outputs: Mapping[str, Memory]
    weight: int

    @property
    def heavy(self) -> bool:
        return self.weight > HEAVY

    def __call__(self, rows: int, columns: Columns) -> str:
        """Finishes a tile from its accumulators."""
        if rows * columns.vectors * self.weight <= UNROLLED:
            return self._unrolled(rows, columns)
        width = columns.vectors * self.problem.target.lanes()
        lines = [f"float stage[{rows * width}] __attribute__((aligned(64)));"]
        lines += staged(rows, columns, self.problem.target.lanes(), "stage", width)
        return "\n".join([*lines, self.rows(columns, str(rows), "stage", str(width))])

    def rows(self, columns: Columns, count: str, stage: str, step: str) -> str:
        """Finishes `count` rows of sums that lie at the C pointer `stage`, `step` floats apart, from row j on."""
        lanes = self.problem.target.lanes()
        out, cs = self._start(columns)
        out.open(f"for (int64_t r = 0; r < {count}; ++r)", ("j0", "tile"))
        out.add("const int64_t j0 = j + r;")
        for v in range(columns.vectors):
            out.add(f"const vf32 u{v} = korch_load_f32({stage} + r * {step} + {v * lanes});")
        self._row(out, variable("j0", 0, self.length - 1), columns, lambda v: f"u{v}", cs)
        out.close()
        return f"{out.tables}\n{out.text}"

    def _unrolled(self, rows: int, columns: Columns) -> str:
        out, cs = self._start(columns)
        narrow = columns.vectors - 1 if columns.half else -1
        for r in range(rows):
            out.add(f"const int64_t j{r} = j + {r};")
            if columns.half:
                out.add(f"vf32 u{r} = KERNEL_widen({accumulator(r, narrow)});")

            def held(v: int, r: int = r) -> str:
                return f"u{r}" if v == narrow else accumulator(r, v)

            self._row(out, variable(f"j{r}", 0, self.length - 1), columns, held, cs)
        return f"{out.tables}\n{out.text}"

    def _start(self, columns: Columns) -> tuple[Writer, list[Index]]:
        out = Writer(self.problem.target)
        for v in range(columns.vectors):
            out.add(f"const int64_t c{v} = c + {v * self.problem.target.lanes()};")
        return out, [variable(f"c{v}", 0, self.n - 1) for v in range(columns.vectors)]

    def _row(self, out: Writer, j: Index, columns: Columns, held: Callable[[int], str], cs: list[Index]) -> None:
        graph, lanes = self.problem.fragment.graph, self.problem.target.lanes()
        dtype = graph.types[self.problem.result].dtype
        at = {self.place(j, c): held(v) for v, c in enumerate(cs)}
        if dtype is not DType.FLOAT32:
            at = {element: out.declare("f32", rounded(text, dtype)) for element, text in at.items()}
        registers = Registers(at, frozenset(("tile",)))
        values = Values(graph, {**self.sources, self.problem.result: registers})
        for v, element in enumerate(at):
            last = v == columns.vectors - 1 and columns.tail < lanes
            reached = forward_indices(graph, self.problem.result, element)
            for name, memory in self.outputs.items():
                if name not in reached:
                    raise NestError(f"the output {name} is not an element for each of {self.problem.result}")
                node = values.at(name, reached[name])
                out.store(node, memory, reached[name], f"c{v}", columns.tail if last else None)


def staged(rows: int, columns: Columns, lanes: int, stage: str, step: int) -> list[str]:
    """C statements that store a tile's accumulators to `stage`, rows `step` floats apart."""
    narrow = columns.vectors - 1 if columns.half else -1
    lines: list[str] = []
    for r in range(rows):
        for v in range(columns.vectors):
            t = f"KERNEL_widen({accumulator(r, v)})" if v == narrow else accumulator(r, v)
            lines.append(f"korch_store_f32({stage} + {r * step + v * lanes}, {t});")
    return lines


def epilogue(
    problem: Problem, arguments: Arguments, place: Callable[[Index, Index], Indices], length: int, n: int
) -> Epilogue:
    """What turns sums into the fragment's outputs; see `Epilogue`."""
    graph = problem.fragment.graph
    sources = arguments.sources(problem, graph.output_values)
    outputs = {v: arguments.memory(problem, v, "output") for v in graph.output_values}
    element = place(variable("j", 0, length - 1), variable("c", 0, n - 1))
    reached = forward_indices(graph, problem.result, element)
    contiguous = all(v in reached and m.offset(reached[v]).stride("c") in (0, 1) for v, m in outputs.items())
    return Epilogue(problem, place, length, n, sources, outputs, weight(problem, contiguous))


def approach(epilogue: Epilogue) -> Callable[[int, Columns], str]:
    """Statements that ask for the memory which the epilogue of a tile will read and write.

    Before the tile's products are summed: it then arrives meanwhile. Only what lies contiguous along the columns,
    at steps along the rows.
    """
    problem = epilogue.problem
    graph, lanes = problem.fragment.graph, problem.target.lanes()
    element = epilogue.place(variable("j", 0, epilogue.length - 1), variable("c", 0, epilogue.n - 1))
    held: dict[str, Source] = {problem.result: Registers({element: ""})}
    values = Values(graph, {**epilogue.sources, **held})
    out = Writer(problem.target)
    starts: dict[str, tuple[int, int]] = {}
    for name, index in forward_indices(graph, problem.result, element).items():
        memory = epilogue.outputs[name]
        reads = [m for m in reads_of(values.at(name, index)) if "j" in m.offset.variables and not m.guards]
        places = [(memory, memory.offset(index), graph.types[name].dtype, 1)]
        for found, offset, dtype, write in [*places, *((m.memory, m.offset, m.dtype, 0) for m in reads)]:
            step = offset.stride("j")
            if offset.stride("c") == 1 and step is not None:
                at = f"({storage_tag(dtype)} *)({found.pointer}) + ({out.index(offset)})"
                starts[at] = (step, write)
    if out.text:  # indices of loaded integers: what they need is the epilogue's
        starts = {}

    def ask(rows: int, columns: Columns) -> str:
        lines = [
            f"__builtin_prefetch({at} + {r * step + v * lanes}, {write});"
            for at, (step, write) in starts.items()
            for r in range(rows)
            for v in range(columns.vectors)
        ]
        return "\n".join(["{", out.tables, *lines, "}"]) if lines else ""

    return ask


def weight(problem: Problem, contiguous: bool) -> int:
    """Vector operations for each vector of the result, roughly; `contiguous`: whether the outputs' lanes are."""
    graph = problem.fragment.graph
    sums = sum(
        20 if d.primitive in _HEAVY else 1
        for d in graph.definitions
        if d is not problem.linear
        and not problem.after.isdisjoint(d.outputs)
        and TABLE[d.primitive].kind == "elementwise"
    )
    return 1 + sums + (0 if contiguous else 20)


@dataclass(frozen=True)
class Plane:
    """A block of a value, copied to floats [w][q] at `pointer` (C text), `step` floats from one w to the next.

    `index` is the element at the variables w and q. w runs from `first` to `last` (C text), q over `count` from the
    C variable `start` on (from 0 where that is empty); the pointer is where w = q = 0 would go.
    """

    index: Indices
    first: str
    last: str
    count: int
    pointer: str
    step: int
    start: str = ""


def prologue(problem: Problem, arguments: Arguments, value: str, plane: Plane) -> str:
    """Statements that compute a block of a value (whatever is fused before it) into memory.

    The vector runs along w or q, whichever is contiguous in more of what is read.
    """
    sources = arguments.sources(problem, (value,))
    node = Values(problem.fragment.graph, sources).at(value, plane.index)
    reads = set(reads_of(node))
    along_w, along_q = (sum(r.offset.stride(name) == 1 for r in reads) for name in ("w", "q"))
    try:
        return _copied(problem, plane, node, "w" if along_w > along_q else "q")
    except NestError:
        return _copied(problem, plane, node, "q")


def _copied(problem: Problem, plane: Plane, node: Node, axis: str) -> str:
    lanes = problem.target.lanes()
    out = Writer(problem.target)
    w_loop = ("w", plane.first, plane.last)
    q_loop = ("q", plane.start or "0", f"{plane.start} + {plane.count}" if plane.start else str(plane.count))
    outer, inner = (w_loop, q_loop) if axis == "q" else (q_loop, w_loop)
    w, q = variable("w", 0, 1 << 40), variable("q", 0, 1 << 40)
    memory = Memory(f"(char *)({plane.pointer})", (plane.step, 1))
    name, first, last = inner
    out.open(f"for (int64_t {outer[0]} = {outer[1]}; {outer[0]} < {outer[2]}; ++{outer[0]})", (outer[0],))
    out.add(f"int64_t {name} = {first};")
    out.open(f"for (; {name} + {lanes} <= {last}; {name} += {lanes})", (name,))
    out.store_register(out.value(node, axis), DType.FLOAT32, memory, (w, q), axis)
    out.close()
    if axis == "w" or plane.count % lanes:
        out.open(f"if ({name} < {last})", (name,))
        tail = plane.count % lanes if axis == "q" else "tail"
        if axis == "w":
            out.add(f"const int64_t tail = {last} - {name};")
        out.store_register(out.value(node, axis, tail), DType.FLOAT32, memory, (w, q), axis, tail)
        out.close()
    out.close()
    return f"{out.tables}\n{out.text}"


def reads_of(node: Node) -> Iterator[Read]:
    """All reads that a node depends on."""
    if isinstance(node, Read):
        yield node
    for a in node.args:
        yield from reads_of(a)
