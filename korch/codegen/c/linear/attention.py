"""Softmax attention in one kernel: the scores of a block of queries never leave the cache.

    S = Q K,  X = f(S),  E = exp(X - max X),  Y = (E / sum E) V,  outputs = g(Y)

A task takes a block of rows of Q: it multiplies them by all of K, applies f (scale, mask) and softmax to the rows of
scores in its scratch, and multiplies them by V. The rows are divided by their sums after the second product, where
they are short. K and V are packed first, each by tasks of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from korch.codegen.c.emit import Memory, NestError, Writer
from korch.codegen.c.index import to_c, variable
from korch.codegen.c.linear.contraction import decode
from korch.codegen.c.linear.fuse import Plane, epilogue, prologue
from korch.codegen.c.linear.matmul import Product, packed_at_run_time
from korch.codegen.c.linear.operand import no_table, place_of
from korch.codegen.c.linear.problem import Arguments, Problem, part_of
from korch.codegen.c.linear.split import TASKS, Balanced, Panels, tile_choices, use_half
from korch.codegen.c.linear.tile import Columns, Walk, accumulate, accumulator, half_vectors, stored_tile
from korch.codegen.c.nest_values import Values
from korch.codegen.kernel import Argument, Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE

# For a block's scores.
SCORE_BYTES = 96 << 10
MOST_ROWS = 96
LINE = 16  # floats of a cache line
UNROLL = 4  # vectors of a row at a time
_MOVES = frozenset({"broadcast", "reshape", "transpose"})


@dataclass(frozen=True)
class Attention:
    """The parts of an attention: `scores` and `result` are matrix products, `logits` is X, `sums` the row sums of the
    exponentials; `divided` where the second product's operand is divided by them."""

    scores: Definition
    result: Definition
    logits: str
    sums: str
    divided: bool

    @staticmethod
    def of(graph: Graph, definitions: Sequence[Definition]) -> Attention | str:
        """The parts, or why these definitions are no attention."""
        makers = {v: d for d in definitions for v in d.outputs}
        products = [d for d in definitions if d.primitive == "matmul"]
        if len(products) != 2:
            return "not two matrix products"
        second = products[1] if _depends(makers, products[1].inputs[0], products[0]) else products[0]
        first = products[0] if second is products[1] else products[1]
        if _depends(makers, second.inputs[1], first):
            return "both operands of a matrix product depend on another one"
        weights = makers.get(second.inputs[0])
        divided = weights is not None and weights.primitive == "div"
        e = makers.get(weights.inputs[0]) if divided and weights else weights
        if e is None or e.primitive != "exp":
            return "two linear primitives without a softmax between"
        shifted = makers.get(e.inputs[0])
        if shifted is None or shifted.primitive != "sub":
            return "an exponential of no difference"
        logits = shifted.inputs[0]
        axes = (graph.types[logits].rank - 1,)
        largest = _moved_from(makers, shifted.inputs[1])
        if largest is None or (largest.primitive, largest.inputs[0]) != ("reduce_max", logits):
            return "an exponential without the maximum subtracted"
        sums = [d for d in definitions if d.primitive == "reduce_sum" and d.inputs[0] == e.outputs[0]]
        if len(sums) != 1 or any(d.ints("axes") != axes for d in (largest, sums[0])):
            return "a softmax over other axes than the last"
        if divided and weights and _moved_from(makers, weights.inputs[1]) is not sums[0]:
            return "a division by something else than the sum"
        if graph.types[logits].shape != graph.types[first.outputs[0]].shape:
            return "scores of another shape than the product's"
        found = Attention(first, second, logits, sums[0].outputs[0], divided)
        return found._stray(graph, definitions, makers) or found

    def _stray(self, graph: Graph, definitions: Sequence[Definition], makers: dict[str, Definition]) -> str:
        """Why a definition has no place in the kernel; empty when all have one."""
        inner = {self.scores.outputs[0]}
        after = {self.result.outputs[0]}
        softmax = _between(makers, self.result.inputs[0], self.logits) | {self.sums}
        for d in definitions:
            kind, out = TABLE[d.primitive].kind, d.outputs[0]
            if d in (self.scores, self.result) or out in softmax:
                continue
            if not after.isdisjoint(d.inputs):
                if kind != "elementwise" and d.primitive not in ("reshape", "transpose"):
                    return f"{d.primitive} after attention"
                after.add(out)
            elif not inner.isdisjoint(d.inputs):
                if kind != "elementwise":
                    return f"{d.primitive} of scores"
                inner.add(out)
            elif kind not in ("elementwise", "broadcast", "layout"):
                return f"{d.primitive} beside attention"
        shown = [v for v in graph.output_values if v in inner | softmax]
        return f"the output {shown[0]} of the middle" if shown else ""


def _depends(makers: dict[str, Definition], value: str, on: Definition) -> bool:
    d = makers.get(value)
    return d is not None and (d is on or any(_depends(makers, v, on) for v in d.inputs))


def _moved_from(makers: dict[str, Definition], value: str) -> Definition | None:
    """What a value is made by, before it is broadcast or reshaped."""
    d = makers.get(value)
    while d is not None and d.primitive in _MOVES:
        d = makers.get(d.inputs[0])
    return d


def _between(makers: dict[str, Definition], value: str, stop: str) -> set[str]:
    """The values that `value` is computed from, itself included, down to `stop`."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        v = waiting.pop()
        if v != stop and v in makers and v not in found:
            found.add(v)
            waiting.extend(makers[v].inputs)
    return found


def attention_kernels(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """Kernels for a fragment that is an attention, or why there are none."""
    parts = Attention.of(fragment.graph, fragment.graph.definitions)
    if isinstance(parts, str):
        return parts
    graph = fragment.graph
    s, w = parts.scores.outputs[0], parts.result.inputs[0]
    first = part_of(fragment, (s,), ())
    inner = (w, parts.sums)
    second = part_of(fragment, graph.output_values, inner)
    problems = Problem.of(first, target), Problem.of(second, target)
    if isinstance(problems[0], str) or isinstance(problems[1], str):
        return next(p for p in problems if isinstance(p, str))
    f, h = Product.of(problems[0]), Product.of(problems[1])
    if (f.batch, f.m, f.joint) != (h.batch, h.m, h.joint):
        return "two matrix products over unlike batches"
    try:
        return (_kernel(fragment, parts, problems[0], problems[1], f, h),)
    except NestError as error:
        return str(error)


@dataclass(frozen=True)
class _Shape:
    """A matrix product of the kernel: its register tiles for a block of rows, and its right operand's panels."""

    product: Product
    panels: Panels
    tiles: tuple[Balanced, ...]  # for each size of a block

    @staticmethod
    def of(product: Product, blocks: Balanced, row_step: int, target: Target) -> _Shape:
        rows, vectors = tile_choices(product.n, blocks.largest, product.k, row_step, target)[0]
        panels = Panels(product.n, target.lanes(), vectors, use_half(product.n, target))
        return _Shape(product, panels, tuple(Balanced.of(n, rows) for n in blocks.sizes()))

    def kinds(self) -> list[Columns]:
        return list(dict.fromkeys(columns for _, _, columns in self.panels.runs()))

    def rows(self) -> list[int]:
        return list(dict.fromkeys(n for tiles in self.tiles for n in tiles.sizes()))

    def calls(self, blocks: Balanced, b: str, name: str, arguments: str) -> list[str]:
        """C statements that apply the tiles to all of a block's rows x and all panels, which begin at column c."""
        lines: list[str] = []
        column = 0
        for _, count, columns in self.panels.runs():
            lines.append(f"for (int64_t panel = 0; panel < {count}; ++panel) {{")
            lines.append(f"const int64_t c = {column} + panel * {columns.vectors * self.panels.lanes};")
            lines.append(f"const float *b = {b} + c * {self.product.k};")
            for n, tiles in zip(blocks.sizes(), self.tiles, strict=True):
                split = tiles.big * (tiles.size + 1)
                loops = ((0, split, tiles.size + 1), (split, n, tiles.size))
                lines.append(f"if (hi - lo == {n}) {{")
                lines += [
                    f"for (int64_t x = {first}; x < {last}; x += {size}) {name}_{size}_{columns.name}({arguments});"
                    for first, last, size in loops
                    if last > first
                ]
                lines.append("}")
            lines.append("}")
            column += count * columns.valid(self.panels.lanes)
        return lines


def _kernel(fragment: Fragment, parts: Attention, one: Problem, two: Problem, f: Product, h: Product) -> Kernel:
    target, lanes, batches = one.target, one.target.lanes(), math.prod(f.batch)
    stride = _whole(f.n, lanes)
    stride += LINE if stride % 256 == 0 else 0  # rows must not fall into the same sets of the first-level cache
    most = max(8, min(MOST_ROWS, SCORE_BYTES // (4 * stride)))
    blocks = Balanced(f.m, min(f.m, max(Balanced.of(f.m, most).count, -(-TASKS // batches))))
    size = blocks.largest
    first, second = _Shape.of(f, blocks, f.k, target), _Shape.of(h, blocks, stride, target)
    arguments = Arguments()
    scratch = f"(float *){arguments.pointer(Argument('scratch'))}"
    start = _whole(batches * first.panels.floats(f.k), LINE)
    keys, pack_keys = packed_at_run_time(one, arguments, f, first.panels, scratch)
    values, pack_values = packed_at_run_time(two, arguments, h, second.panels, f"{scratch} + {start}")
    walk, a, fill = _queries(one, arguments, f)

    rows = f.joint or (f.m,)
    steps = (0,) * len(f.batch) + tuple(math.prod(rows[d + 1 :]) for d in range(len(rows)))
    scores = Memory(f"(char *)(scores - lo * {stride})", (*(step * stride for step in steps), 1))
    kept = fragment.graph.types[parts.sums].rank > len(steps)
    arguments.inner[parts.sums] = Memory("(char *)(totals - lo)", (*steps, 0) if kept else steps)
    finish = epilogue(two, arguments, lambda j, c: (*h.rows(j), c), h.m, h.n)
    softmax = _softmax(fragment, arguments, parts, f, scores, stride, target)

    position = "".join(f", int64_t o{d}" for d in range(len(f.batch)))
    passed = "".join(f", o{d}" for d in range(len(f.batch)))
    texts = ["typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;"]
    if any(columns.half for shape in (first, second) for columns in shape.kinds()):
        texts.append(half_vectors(lanes, target.has_fma))
    texts += [stored_tile(n, columns, walk, lanes, stride) for columns in first.kinds() for n in first.rows()]
    for columns, n in ((columns, n) for columns in second.kinds() for n in second.rows()):
        texts += [
            f"static __attribute__((noinline)) void KERNEL_values_{n}_{columns.name}(char *const *p, const float *a, "
            f"const float *b, const float *totals, int64_t lo{position}, int64_t j, int64_t c) {{",
            accumulate(n, columns, Walk(stride, (), h.k, 1), lanes),
            *(_divided(n, columns) if parts.divided else []),
            finish(n, columns),
            "}",
        ]
    head = "static void KERNEL_softmax(char *const *p, float *scores, float *totals, int64_t lo, int64_t hi"
    texts += [f"{head}{position}) {{", softmax, "}"]
    for name, phase in (("keys", pack_keys), ("values", pack_values)):
        head = f"static void KERNEL_{name}(void *context, int64_t task, int64_t worker) {{"
        texts += [head, "char *const *p = ((KERNEL_context *)context)->p;", phase.body, "}"]
    texts += [
        "static void KERNEL_task(void *context, int64_t task, int64_t worker) {",
        "char *const *p = ((KERNEL_context *)context)->p;",
        "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;",
        f"const int64_t block = task % {blocks.count}; task /= {blocks.count};",
        *decode(f.batch),
        f"const int64_t lo = {blocks.start('block')}, hi = {blocks.start('block + 1')};",
        "float *scores = (float *)(runtime->scratch + worker * runtime->scratch_stride);",
        f"float *totals = scores + {size * stride}, *copied = totals + {_whole(size, LINE)}; (void)copied;",
        fill,
        f"const float *a = {a}, *keys = {keys}, *values = {values};",
        *first.calls(blocks, "keys", "KERNEL_tile", f"a + x * {walk.row_step}, b, scores + x * {stride} + c"),
        f"KERNEL_softmax(p, scores, totals, lo, hi{passed});",
        *second.calls(
            blocks, "values", "KERNEL_values", f"p, scores + x * {stride}, b, totals, lo{passed}, lo + x, c"
        ),
        "}",
        "void KERNEL(const korch_runtime *runtime, char *const *p) {",
        "KERNEL_context context = {runtime, p};",
        f"korch_parallel(runtime, {pack_keys.tasks}, KERNEL_keys, &context);",
        f"korch_parallel(runtime, {pack_values.tasks}, KERNEL_values, &context);",
        f"korch_parallel(runtime, {batches * blocks.count}, KERNEL_task, &context);",
        "}",
    ]
    parameters = (("rows", size), *((("exact", 0),) if parts.divided else ()))
    shared = start + batches * second.panels.floats(h.k)
    private = size * stride + _whole(size, LINE) + (size * f.k if fill else 0)
    source = "\n".join(texts) + "\n"
    return Kernel("attention", source, tuple(arguments.arguments), parameters, (), shared * 4, private * 4)


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _queries(problem: Problem, arguments: Arguments, f: Product) -> tuple[Walk, str, str]:
    """How tiles read the left operand, where the block's first row is, and C statements that copy it if they must."""
    value = problem.linear.inputs[0]
    place = place_of(problem.fragment, value, f.left("j", "k"))
    if place is None or place.step("j") is None or place.step("k") is None:
        plane = Plane(f.left("w", "q"), "lo", "hi", f.k, f"copied - lo * {f.k}", f.k)
        return Walk(f.k, (), f.k, 1), "copied", prologue(problem, arguments, value, plane)
    step = place.step("j") or 0
    source = arguments.pointer(Argument("input", place.value))
    start = f"(const float *){source} + {to_c(place.at(j=0, k=0), no_table)} + lo * {step}"
    return Walk(step, (), f.k, place.step("k") or 0), start, ""


def _divided(rows: int, columns: Columns) -> list[str]:
    """Divides a tile's accumulators by the sums of their rows."""
    return [
        f"{accumulator(r, v)} /= totals[j - lo + {r}];" for r in range(rows) for v in range(columns.vectors)
    ]


def _softmax(
    fragment: Fragment, arguments: Arguments, parts: Attention, f: Product, scores: Memory, stride: int, target: Target
) -> str:
    """Statements that turn rows of scores into exponentials, and write their sums."""
    problem = Problem(fragment, target, parts.scores, frozenset())
    sources = arguments.sources(problem, (parts.logits,))
    values = Values(fragment.graph, {**sources, parts.scores.outputs[0]: scores})
    lanes, n = target.lanes(), f.n
    step = UNROLL * lanes if n >= UNROLL * lanes else lanes
    out = Writer(target)
    j = variable("j", 0, f.m - 1)

    def logits(k: str, valid: int | None = None) -> str:
        return out.value(values.at(parts.logits, (*f.rows(j), variable(k, 0, n - 1))), k, valid)

    def over_row(whole: Callable[[int, str], None], part: Callable[[str, int], None]) -> None:
        """Loops over a row: several vectors at once (number and variable), vector by vector, and the rest."""
        end = 0
        for width in dict.fromkeys((step, lanes)):
            first, end = end, n // width * width
            if end > first:
                out.open(f"for (int64_t at = {first}; at < {end}; at += {width})", ("at", *_names(width // lanes)))
                for u, name in enumerate(_names(width // lanes)):
                    out.add(f"const int64_t {name} = at + {u * lanes};")
                for u, name in enumerate(_names(width // lanes)):
                    whole(u, name)
                out.close()
        if n > end:
            out.open("", ("k0",))
            out.add(f"const int64_t k0 = {end};")
            part("k0", n - end)
            out.close()

    def largest(u: int, k: str) -> None:
        x = logits(k)
        out.add(f"korch_store_f32(row + {k}, {x}); most{u} = korch_max_f32(most{u}, {x});")

    def largest_of_rest(k: str, valid: int) -> None:
        x = logits(k, valid)
        least = "korch_splat_f32(-__builtin_inff())"
        out.add(f"korch_store_n_f32(row + {k}, {x}, {valid});")
        out.add(f"most0 = korch_max_f32(most0, korch_where_f32(korch_first({valid}), {x}, {least}));")

    def exponential(u: int, k: str) -> None:
        out.add(f"const vf32 e{u} = korch_exp_f32(korch_load_f32(row + {k}) - most);")
        out.add(f"korch_store_f32(row + {k}, e{u}); sum{u} += e{u};")

    def exponential_of_rest(k: str, valid: int) -> None:
        out.add(f"const vf32 e = korch_exp_f32(korch_load_n_f32(row + {k}, {valid}) - most);")
        out.add(f"korch_store_n_f32(row + {k}, e, {valid});")
        out.add(f"sum0 += korch_where_f32(korch_first({valid}), e, korch_splat_f32(0));")

    count = step // lanes
    out.open("for (int64_t j = lo; j < hi; ++j)", ("j",))
    out.add(f"float *row = scores + (j - lo) * {stride};")
    out.add(f"vf32 {', '.join(f'most{u} = korch_splat_f32(-__builtin_inff())' for u in range(count))};")
    over_row(largest, largest_of_rest)
    out.add("".join(f"most0 = korch_max_f32(most0, most{u});" for u in range(1, count)))
    out.add("const vf32 most = korch_splat_f32(korch_reduce_max_f32(most0));")
    out.add(f"vf32 {', '.join(f'sum{u} = {{0}}' for u in range(count))};")
    over_row(exponential, exponential_of_rest)
    out.add("".join(f"sum0 += sum{u};" for u in range(1, count)))
    out.add("totals[j - lo] = korch_reduce_sum_f32(sum0);")
    out.close()
    return f"{out.tables}\n{out.text}"


def _names(count: int) -> list[str]:
    return [f"k{u}" for u in range(count)]
