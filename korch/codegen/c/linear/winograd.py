"""Winograd's minimal filtering for 3x3 convolutions with stride 1: F(4x4, 3x3) and F(2x2, 3x3).

A tile of m x m outputs needs (m + 2)^2 products for each pair of channels instead of 9 m^2: 4 times fewer for
m = 4, 2.25 times fewer for m = 2. Each of the (m + 2)^2 *positions* of the transformed tiles is a matrix product of
its own, [tiles, C] x [C, O], on the register tile of the other families. Weights are transformed when they are
packed.

A task takes a block of tiles through the panels of output channels: the products of all positions with one panel,
then the way back with whatever is fused, so that products never leave the second-level cache. The block's
transformed tiles stay there too. Where all tiles are few and the weights many, the tiles are transformed first, and
tasks are panels instead, so that each weight is read once.

Rounding is not that of the direct sum (`is_exact` is false): F(2x2) is as accurate, F(4x4) some three times less.
An input element that is not finite makes every output that reads it not finite, as the direct sum does, and may do
so to the other outputs of its tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from korch.codegen.c.index import to_c
from korch.codegen.c.linear.fuse import Plane, epilogue, prologue
from korch.codegen.c.linear.geometry import Conv
from korch.codegen.c.linear.operand import Place, no_table, place_of
from korch.codegen.c.linear.problem import Arguments, Constant, Problem
from korch.codegen.c.linear.split import SMALL_WORK, TASKS, Balanced, Panels, tile_choices
from korch.codegen.c.linear.tile import Columns, Walk, accumulate, accumulator
from korch.codegen.c.linear.winograd_error import error_ratio
from korch.codegen.c.linear.winograd_transform import (
    SCALED,
    input_statements,
    output_statements,
    transformed_weights,
)
from korch.codegen.kernel import Argument, Kernel, Packed
from korch.codegen.target import Target

# Below these sizes the transforms outweigh the products that they save.
LEAST_CHANNELS, LEAST_LENGTH = 16, 4
# Transformed tiles in a block, times positions: fewer reload the weights too often, more leave no room for them.
FEWEST, MOST = 12 * 36, 32 * 36
# As many tiles at most are one block whose panels are tasks.
SHARED_TILES = 64
# What Winograd's kernels may lose against the direct sum on the model's own weights (usual are 2 to 4).
MOST_ERROR = 8.0
PANEL_TASKS = 8  # enough of them for several threads
# Of a copy of input rows: it should not displace much of what the second-level cache holds.
PATCH_BYTES = 96 << 10
LINE = 16  # floats of a cache line


def is_exact(kernel: Kernel) -> bool:
    """Whether a kernel adds up the products of its definition: for the numerics `strict`."""
    return dict(kernel.parameters).get("exact", 1) == 1


@dataclass(frozen=True)
class Plan:
    """The numbers of one kernel. `grid` counts the tiles of an image, `blocks` cuts the tiles of all images, `rows`
    cuts a block's tiles into register tiles. Where `shared`, all tiles are transformed before tasks take panels.
    Strides are in floats."""

    g: Conv
    m: int
    grid: tuple[int, int]
    panels: Panels
    blocks: Balanced
    rows: Balanced
    shared: bool

    @property
    def side(self) -> int:
        return self.m + 2

    @property
    def positions(self) -> int:
        return self.side * self.side

    @property
    def row(self) -> int:
        """From one transformed tile to the next."""
        return row_step(self.g.channels)

    @property
    def matrix(self) -> int:
        """From one position's transformed tiles to the next's."""
        return odd_lines(self.blocks.largest * self.row)

    @property
    def transformed(self) -> int:
        """A block's transformed tiles."""
        return self.positions * self.matrix

    def product(self, columns: Columns) -> int:
        """From one position's products with a panel to the next's."""
        return odd_lines(self.blocks.largest * columns.width(self.panels.lanes))

    @property
    def products(self) -> int:
        """A block's products with one panel."""
        return self.positions * max(self.product(columns) for _, _, columns in self.panels.runs())


def row_step(channels: int) -> int:
    """Rows of a multiple of 1 KB would crowd into few sets of the first-level cache."""
    return channels + LINE if channels % 256 == 0 else channels


def odd_lines(floats: int) -> int:
    """At least that many floats, in an odd number of cache lines: steps of them reach all sets of a cache."""
    return (-(-floats // LINE) | 1) * LINE


def winograd_kernels(problem: Problem, g: Conv, weights: Constant) -> tuple[Kernel, ...]:
    """Kernels for a 3x3 convolution of stride 1, the one with the fewest products first; none for other ones."""
    if g.kernel != (3, 3) or g.strides != (1, 1) or g.dilations != (1, 1) or g.groups != 1:
        return ()
    if min(g.channels, g.outputs) < LEAST_CHANNELS or min(g.rows, g.length) < LEAST_LENGTH:
        return ()
    return tuple(_kernel(problem, plan_of(g, m, problem.target), weights) for m in (4, 2))


def plan_of(g: Conv, m: int, target: Target) -> Plan:
    """The sizes that ran fastest where they were tried; they depend on shapes and the target only."""
    grid = (-(-g.rows // m), -(-g.length // m))
    tiles, positions = g.images * math.prod(grid), (m + 2) ** 2
    work = 2.0 * positions * tiles * g.channels * g.outputs
    weight_bytes = positions * g.channels * g.outputs * 4
    shared = tiles <= SHARED_TILES and weight_bytes > target.l2_bytes
    fitting = target.l2_bytes * 3 // 4 // (g.channels * 4)
    most = min(max(fitting, FEWEST), MOST) // positions
    count = 1
    if not shared and work >= SMALL_WORK:
        wanted = min(TASKS, int(2 * work / SMALL_WORK), tiles * positions // (MOST // 2))
        count = max(-(-tiles // most), wanted, 2)
        count += count % 2  # two threads share an even number better
    blocks = Balanced(tiles, min(count, tiles))
    lanes, step = target.lanes(), row_step(g.channels)
    choices = tile_choices(g.outputs, blocks.largest, g.channels, step, target)
    # Wide panels read the transformed tiles less often, but more than four vectors leave too few rows for each weight.
    choices = [c for c in choices if 2 <= c[1] <= 4] or choices
    if shared:
        counts = {v: Panels(g.outputs, lanes, v).count for _, v in choices}
        rows, vectors = min(choices, key=lambda c: (max(0, PANEL_TASKS - counts[c[1]]), counts[c[1]] % 2, -c[1]))
    else:
        rows, vectors = min(choices[:2], key=lambda c: -c[1])
    panels = Panels(g.outputs, lanes, vectors)
    return Plan(g, m, grid, panels, blocks, Balanced.of(blocks.largest, rows), shared)


def _kernel(problem: Problem, plan: Plan, weights: Constant) -> Kernel:
    m, panels, arguments = plan.m, plan.panels, Arguments()
    key = f"winograd {m}x{m} panels of {panels.vectors}x{panels.lanes}: {weights.text}"
    packed = arguments.pack(Packed(weights.weights, key, partial(_pack, plan, weights), partial(_guard, m, weights)))
    source = _source(problem, arguments, plan)
    parts = ["typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;", SCALED]
    parts += [_input(plan), _patch(plan, source), _fill(plan, source)]
    for columns in dict.fromkeys(columns for _, _, columns in panels.runs()):
        parts += [_tile(plan, rows, columns) for rows in plan.rows.sizes()]
        parts += [_multiply(plan, columns), _output(problem, arguments, plan, columns)]
    scratch, private = 0, plan.products + plan.side * source.line + (0 if plan.shared else plan.transformed)
    if plan.shared:
        scratch = plan.blocks.count * plan.transformed * 4
        phases = _shared(plan, source, packed, arguments.pointer(Argument("scratch")))
    else:
        phases = _private(plan, source, packed)
    for name, (_, lines) in phases.items():
        head = f"static void KERNEL_{name}(void *context, int64_t task, int64_t worker) {{"
        parts.append("\n".join([head, *lines, "}"]))
    calls = [f"korch_parallel(runtime, {tasks}, KERNEL_{name}, &context);" for name, (tasks, _) in phases.items()]
    head = "void KERNEL(const korch_runtime *runtime, char *const *p) {"
    parts.append("\n".join([head, "KERNEL_context context = {runtime, p};", *calls, "}"]))
    parameters = (
        ("exact", 0),
        ("tiles", plan.blocks.largest),
        ("mr", plan.rows.largest),
        ("nv", panels.vectors),
    )
    return Kernel(
        f"winograd{m}x{m}",
        "\n".join(parts) + "\n",
        tuple(arguments.arguments),
        parameters,
        tuple(arguments.packed),
        scratch,
        private * 4,
    )


def _pack(plan: Plan, weights: Constant, *arrays: np.ndarray) -> np.ndarray:
    """[O, C, 3, 3] as panels [panel][position][C][width]."""
    found = transformed_weights(plan.m, weights.evaluate(*arrays))
    return plan.panels.pack(found.reshape(-1, plan.g.outputs))


def _guard(m: int, weights: Constant, *arrays: np.ndarray) -> str | None:
    """Refuses weights whose responses the transforms would drown in rounding."""
    ratio = error_ratio(m, weights.evaluate(*arrays))
    return None if ratio <= MOST_ERROR else f"its error is {ratio:.1f} times that of the direct sum with these weights"


@dataclass(frozen=True)
class Source:
    """Where tiles are read.

    Those inside of the input are read in place, where it lies channels-last: at the C pointer `base`, by the steps
    of `place`. Others are copied with their padding, in runs of at most `run` neighbours, to a patch with rows of
    `line` floats; `copy` are C statements for one such row (h, from column `left` to `right`, to `row`).
    """

    place: Place | None
    base: str
    run: int
    line: int
    copy: str


def _source(problem: Problem, arguments: Arguments, plan: Plan) -> Source:
    g, value = plan.g, problem.linear.inputs[0]
    index = g.input_index(problem)
    place = place_of(problem.fragment, value, index)
    if place and (place.step("q") != 1 or place.step("h") is None or place.step("w") is None):
        place = None
    base, run = "", 1
    if place:
        base = f"(const float *){arguments.pointer(Argument('input', place.value))} + {to_c(place.offset, no_table)}"
    else:
        run = max(1, min(plan.grid[1], PATCH_BYTES // (4 * plan.side * plan.m * g.channels)))
    line = -(-(run * plan.m + 2) * g.channels // LINE) * LINE
    body = Plane(index, "from", "to", g.channels, f"row - left * {g.channels}", g.channels)
    return Source(place, base, run, line, prologue(problem, arguments, value, body))


def _input(plan: Plan) -> str:
    """A function that transforms one tile: `x` is its first element, `v` its row of the first position's matrix."""
    m, side, lanes, channels = plan.m, plan.side, plan.panels.lanes, plan.g.channels

    def step(valid: int) -> list[str]:
        partial, n = ("", "") if valid == lanes else ("_n", f", {valid}")
        load = f"korch_load{partial}_f32(x + {{row}} * row + {{column}} * column + q{n})"
        store = f"korch_store{partial}_f32(v + {{at}} * {plan.matrix} + q, {{value}}{n});"
        return input_statements(m, load, store)

    # The next tile of the row is four columns on: it is asked for early, once for each cache line.
    ahead = [
        f"__builtin_prefetch(x + {row} * row + {column + m} * column + q, 0, 2);"
        for row in range(side)
        for column in range(2, side)
    ]
    if lanes < LINE:
        ahead = [f"if (q % {LINE} == 0) {{", *ahead, "}"]
    whole, rest = channels // lanes * lanes, channels % lanes
    lines = [
        "static void KERNEL_input(const float *x, int64_t row, int64_t column, float *v) {",
        f"for (int64_t q = 0; q < {whole}; q += {lanes}) {{",
        *ahead,
        *step(lanes),
        "}",
    ]
    if rest:
        lines += [f"{{ const int64_t q = {whole};", *step(rest), "}"]
    return "\n".join([*lines, "}"])


def _patch(plan: Plan, source: Source) -> str:
    """A function that copies the input columns `left` to `right` of the tiles in row y, with their padding."""
    g, width = plan.g, plan.g.channels * 4
    lines = [
        "static void KERNEL_patch(char *const *p, int64_t o0, int64_t y, int64_t left, int64_t right, float *patch) {",
        "const int64_t o1 = 0;",
        f"const int64_t from = left < 0 ? 0 : left, to = right > {g.width} ? {g.width} : right;",
        f"for (int64_t r = 0; r < {plan.side}; ++r) {{",
        f"const int64_t h = y * {plan.m} - {g.pads[0]} + r;",
        f"float *row = patch + r * {source.line};",
        f"if (h < 0 || h >= {g.height} || from >= to) {{",
        f"__builtin_memset(row, 0, (size_t)(right - left) * {width});",
        "continue;",
        "}",
        f"__builtin_memset(row, 0, (size_t)(from - left) * {width});",
        f"__builtin_memset(row + (to - left) * {g.channels}, 0, (size_t)(right - to) * {width});",
        source.copy,
        "} }",
    ]
    return "\n".join(lines)


def _fill(plan: Plan, source: Source) -> str:
    """A function that transforms the tiles `first` to `last`; `v` is the first one's row."""
    g, m = plan.g, plan.m
    rows, columns = plan.grid
    lines = [
        "static void KERNEL_fill(char *const *p, int64_t first, int64_t last, float *v, float *patch) {",
        "for (int64_t t = first; t < last;) {",
        f"const int64_t x = t % {columns}, y = t / {columns} % {rows}, o0 = t / {rows * columns}, o1 = 0;",
    ]
    if source.place:
        sizes = zip(g.pads, (g.height, g.width), strict=True)
        (top, bottom), (left, right) = ((-(-pad // m), (size + pad - plan.side) // m) for pad, size in sizes)
        row, column = source.place.step("h"), source.place.step("w")
        lines += [
            f"if (y >= {top} && y <= {bottom} && x >= {left} && x <= {right}) {{",
            f"const int64_t h = y * {m} - {g.pads[0]}, w = x * {m} - {g.pads[1]}, q = 0;",
            f"KERNEL_input({source.base}, {row}, {column}, v);",
            f"++t, v += {plan.row};",
            "continue;",
            "}",
        ]
    lines += [
        f"int64_t run = {columns} - x < last - t ? {columns} - x : last - t;",
        f"if (run > {source.run}) run = {source.run};",
        f"const int64_t edge = x * {m} - {g.pads[1]};",
        f"KERNEL_patch(p, o0, y, edge, edge + run * {m} + 2, patch);",
        f"for (int64_t k = 0; k < run; ++k, v += {plan.row})",
        f"KERNEL_input(patch + k * {m * g.channels}, {source.line}, {g.channels}, v);",
        "t += run;",
        "} }",
    ]
    return "\n".join(lines)


def _tile(plan: Plan, rows: int, columns: Columns) -> str:
    """A register tile whose accumulators go to `to` [row][width]."""
    lanes = plan.panels.lanes
    width = columns.width(lanes)
    stores = [
        f"korch_store_f32(to + {r * width + v * lanes}, {accumulator(r, v)});"
        for r in range(rows)
        for v in range(columns.vectors)
    ]
    body = accumulate(rows, columns, Walk(plan.row, (), plan.g.channels), lanes)
    head = f"static __attribute__((noinline)) void KERNEL_tile_{rows}_{columns.name}"
    return "\n".join([f"{head}(const float *a, const float *b, float *to) {{", body, *stores, "}"])


def _multiply(plan: Plan, columns: Columns) -> str:
    """A function that multiplies all positions of a block by one panel."""
    rows, width = plan.rows, columns.width(plan.panels.lanes)
    call = f"_{columns.name}(a + t * {plan.row}, b, to + t * {width});"
    split = rows.big * (rows.size + 1)
    lines = [
        f"static void KERNEL_multiply_{columns.name}(const float *a, const float *b, float *to) {{",
        f"for (int64_t x = 0; x < {plan.positions}; ++x) {{",
    ]
    if rows.big:
        lines.append(f"for (int64_t t = 0; t < {split}; t += {rows.size + 1}) KERNEL_tile_{rows.size + 1}{call}")
    lines += [
        f"for (int64_t t = {split}; t < {rows.total}; t += {rows.size}) KERNEL_tile_{rows.size}{call}",
        f"a += {plan.matrix}; b += {plan.g.channels * width}; to += {plan.product(columns)};",
        "} }",
    ]
    return "\n".join(lines)


def _output(problem: Problem, arguments: Arguments, plan: Plan, columns: Columns) -> str:
    """A function that transforms one panel's products of the tiles `first` to `last` back, and stores the outputs."""
    g, m, lanes = plan.g, plan.m, plan.panels.lanes
    finish = epilogue(problem, arguments, lambda j, c: g.result_index(problem, j, c), g.length, g.outputs)
    rest = g.length % m

    def vector(valid: int) -> list[str]:
        load = f"korch_load_f32(from + {{at}} * {plan.product(columns)})"
        lines = output_statements(m, load, "outputs[{row}][{column}] = {value};")
        lines.append(f"for (int64_t r = 0; r < {m} && y * {m} + r < {g.rows}; ++r) {{")
        lines.append(f"const int64_t i = y * {m} + r, j = x * {m};")
        lines += [f"const vf32 {accumulator(k, 0)} = outputs[r][{k}];" for k in range(m)]
        if rest:
            lines += [f"if (x == {plan.grid[1] - 1}) {{", finish(rest, Columns(1, valid)), "} else"]
        return [*lines, "{", finish(m, Columns(1, valid)), "} }"]

    whole, width = columns.valid(lanes) // lanes, columns.width(lanes)
    lines = [
        f"static void KERNEL_output_{columns.name}(char *const *p, const float *products, "
        "int64_t first, int64_t last, int64_t column) {",
        f"vf32 outputs[{m}][{m}];",
        f"for (int64_t t = first; t < last; ++t, products += {width}) {{",
        f"const int64_t x = t % {plan.grid[1]}, y = t / {plan.grid[1]} % {plan.grid[0]};",
        f"const int64_t o0 = t / {math.prod(plan.grid)}, o1 = 0;",
        "const float *from = products;",
        "int64_t c = column;",
    ]
    if whole:
        lines.append(f"for (int64_t left = {whole}; left > 0; --left, c += {lanes}, from += {lanes}) {{")
        lines += [*vector(lanes), "}"]
    if columns.tail < lanes:
        lines += ["{", *vector(columns.tail), "}"]
    return "\n".join([*lines, "} }"])


# A phase: its number of tasks, and the C statements of one.
Phases = dict[str, tuple[int, list[str]]]


def _start(plan: Plan) -> list[str]:
    return [
        "char *const *p = ((KERNEL_context *)context)->p;",
        "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;",
        "float *products = (float *)(runtime->scratch + worker * runtime->scratch_stride);",
        f"float *patch = products + {plan.products};",
        f"const int64_t block = task % {plan.blocks.count};",
        f"const int64_t first = {plan.blocks.start('block')}, last = {plan.blocks.start('block + 1')};",
    ]


def _private(plan: Plan, source: Source, packed: str) -> Phases:
    """A task is a block of tiles; it transforms them itself."""
    largest = plan.blocks.largest
    body = [
        *_start(plan),
        f"float *tiles = patch + {plan.side * source.line};",
        # All blocks are multiplied as if they were the largest.
        f"if (last - first < {largest}) for (int64_t x = 0; x < {plan.positions}; ++x)",
        f"__builtin_memset(tiles + x * {plan.matrix} + {(largest - 1) * plan.row}, 0, {plan.g.channels * 4});",
        "KERNEL_fill(p, first, last, tiles, patch);",
        *_panels(plan, packed, "0", str(plan.panels.count)),
    ]
    return {"task": (plan.blocks.count, body)}


def _shared(plan: Plan, source: Source, packed: str, scratch: str) -> Phases:
    """Tasks transform some tiles each; when all are done, a task is a panel."""
    parts = Balanced(plan.blocks.total, min(TASKS, plan.blocks.total))
    tiles = f"float *tiles = (float *){scratch};"
    fill = [
        *_start(plan),
        tiles,
        f"const int64_t lo = {parts.start('task')}, hi = {parts.start('task + 1')};",
        f"KERNEL_fill(p, lo, hi, tiles + lo * {plan.row}, patch);",
    ]
    multiply = [*_start(plan), tiles, *_panels(plan, packed, "task", "task + 1")]
    return {"transform": (parts.count, fill), "task": (plan.panels.count, multiply)}


def _panels(plan: Plan, packed: str, low: str, high: str) -> list[str]:
    """C statements that multiply a block by panels `low` to `high`, and finish."""
    lanes, column = plan.panels.lanes, 0
    lines = [f"const int64_t from = {low}, to = {high};"]
    for start, count, columns in plan.panels.runs():
        end = start + count
        lines += [
            f"for (int64_t q = from > {start} ? from : {start}; q < (to < {end} ? to : {end}); ++q) {{",
            f"const int64_t c = {column} + (q - {start}) * {columns.vectors * lanes};",
            f"const float *b = (const float *){packed} + c * {plan.positions * plan.g.channels};",
            f"KERNEL_multiply_{columns.name}(tiles, b, products);",
            f"KERNEL_output_{columns.name}(p, products, first, last, c);",
            "}",
        ]
        column += count * columns.valid(lanes)
    return lines
