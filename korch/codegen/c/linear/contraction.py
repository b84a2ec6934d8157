"""The loops around a register tile: tasks, panels and rows of one contraction.

    out[o…, i, j, c] = sum over k of A[o…, i, j, k] * B[o…, k, c]

A matmul has its batch in `o…`, one row `i` and its rows in `j`; a convolution has image and group in `o…`, the
output row in `i` and the output column in `j`. A task is a block of rows of one `o…` (of `i`, or of tiles along
`j` where there is but one `i`) times a run of panels of columns. In a task each panel of B is applied to all
rows, so that it stays in cache; the block's share of A does too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from korch.codegen.c.linear.fuse import Epilogue, staged
from korch.codegen.c.linear.split import SMALL_WORK, TASKS, Balanced, Panels
from korch.codegen.c.linear.tile import Columns, Walk, accumulate, half_vectors
from korch.codegen.target import Target

# Of the second-level cache, for a block's share of A and of the output.
BLOCK_BYTES = 256 << 10

# Of the first-level cache, for sums that wait to be finished together.
STAGE_BYTES = 4 << 10

# C statements for a tile of rows and columns. In scope are o0…, i, the tile's first row j and first column c (all
# int64_t), and the kernel's pointers p.
Finish = Callable[[int, Columns], str]


@dataclass(frozen=True)
class Phase:
    """Work done before the contraction: `body` are C statements for `int64_t task` (and `char *const *p`)."""

    name: str
    tasks: int
    body: str


@dataclass(frozen=True)
class Contraction:
    """`a` and `b` are C expressions of type `const float *`: where the operands start.

    - `a` is for j = 0. It may use o0…, i, and where the task has a `fill`, `scratch` and the block's bounds.
    - `b` is the first panel (or the first column, where `walk.b_step` says that B is in place); it may use o0….
    - `fill` are C statements that copy what the block reads to `float *scratch`; the block's bounds are `lo` and
      `hi`: of i, or where there is but one i, of j.
    - `approach(rows, columns)` are statements before a tile's sums, in the same scope as those of `finish`.
    - `blocks` cuts the rows i (or the tiles along j), `chunks` the panels.
    """

    outer: tuple[int, ...]
    rows: int
    length: int
    walk: Walk
    a: str
    b: str
    finish: Epilogue
    tile_rows: int
    panels: Panels
    blocks: Balanced
    chunks: int = 1
    fill: str = ""
    phases: tuple[Phase, ...] = ()
    approach: Finish | None = None

    @property
    def by_row(self) -> bool:
        """Whether blocks consist of rows i, rather than of tiles along j."""
        return self.rows > 1

    @property
    def tiles(self) -> Balanced:
        return Balanced.of(self.length, self.tile_rows)

    @property
    def indices(self) -> list[str]:
        return [f"o{d}" for d in range(len(self.outer))]


def blocks_of(outer: int, units: int, unit_bytes: int, work: float) -> Balanced:
    """Cuts `units` of one of `outer` parts; each touches `unit_bytes`, all do `work` operations together."""
    pieces = Balanced.of(units, max(1, BLOCK_BYTES // max(unit_bytes, 1))).count
    if work >= SMALL_WORK:
        wanted = min(TASKS, max(2, int(2 * work / SMALL_WORK)))
        pieces = max(pieces, math.ceil(wanted / outer))
        if outer * pieces % 2:
            pieces += 1  # two threads share an even number better
    return Balanced(units, min(pieces, units))


def panel_chunks(panels: Panels, weights: int, work: float) -> int:
    """Into how many tasks to split the panels where `weights` (elements) outweigh everything else."""
    worth = work >= SMALL_WORK or weights * 8 >= SMALL_WORK  # reading a float takes as long as some 8 operations
    return min(panels.count, 2 * TASKS) if worth else 1


def contraction_source(c: Contraction, target: Target) -> str:
    """The C text of a kernel, `KERNEL` included."""
    lanes = target.lanes()
    parts = ["typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;"]
    if any(columns.half for _, _, columns in c.panels.runs()):
        parts.append(half_vectors(lanes, target.has_fma))
    for columns in dict.fromkeys(columns for _, _, columns in c.panels.runs()):
        parts += [_tile(c, rows, columns, lanes) for rows in c.tiles.sizes()]
        if c.finish.heavy:
            parts.append(_finish(c, columns, lanes))
        parts.append(_panel(c, columns, lanes))
    parts.append(_task(c))
    calls: list[str] = []
    for phase in c.phases:
        head = f"static void KERNEL_{phase.name}(void *context, int64_t task, int64_t worker) {{"
        parts.append("\n".join([head, "char *const *p = ((KERNEL_context *)context)->p;", phase.body, "}"]))
        calls.append(f"korch_parallel(runtime, {phase.tasks}, KERNEL_{phase.name}, &context);")
    tasks = math.prod(c.outer) * c.blocks.count * c.chunks
    calls.append(f"korch_parallel(runtime, {tasks}, KERNEL_task, &context);")
    entry = [
        "void KERNEL(const korch_runtime *runtime, char *const *p) {",
        "KERNEL_context context = {runtime, p};",
        *calls,
        "}",
    ]
    return "\n".join([*parts, *entry]) + "\n"


def decode(extents: tuple[int, ...]) -> list[str]:
    """C statements that split `task` into o0, o1… of these extents."""
    lines = [
        f"const int64_t o{d} = task % {n}; task /= {n};" if n > 1 else f"const int64_t o{d} = 0;"
        for d, n in reversed(list(enumerate(extents)))
    ]
    return lines


def _tile(c: Contraction, rows: int, columns: Columns, lanes: int) -> str:
    """One tile; where the epilogue is heavy, its sums go to the panel's stage."""
    position = "".join(f", int64_t {o}" for o in c.indices)
    stage = ", float *stage" if c.finish.heavy else ""
    if c.finish.heavy:
        end = staged(rows, columns, lanes, "stage", columns.vectors * lanes)
    else:
        end = [c.finish(rows, columns)]
    return "\n".join(
        [
            f"static __attribute__((noinline)) void KERNEL_tile_{rows}_{columns.name}(char *const *p, "
            f"const float *a, const float *b{stage}{position}, int64_t i, int64_t j, int64_t c) {{",
            c.approach(rows, columns) if c.approach else "",
            accumulate(rows, columns, c.walk, lanes),
            *end,
            "}",
        ]
    )


def _finish(c: Contraction, columns: Columns, lanes: int) -> str:
    """Turns rows of a panel's sums into outputs."""
    position = "".join(f", int64_t {o}" for o in c.indices)
    return "\n".join(
        [
            f"static __attribute__((noinline)) void KERNEL_finish_{columns.name}(char *const *p, "
            f"const float *stage, int64_t rows{position}, int64_t i, int64_t j, int64_t c) {{",
            c.finish.rows(columns, "rows", "stage", str(columns.vectors * lanes)),
            "}",
        ]
    )


def _panel(c: Contraction, columns: Columns, lanes: int) -> str:
    """All rows of a block for one panel."""
    tiles, heavy = c.tiles, c.finish.heavy
    position = "".join(f", int64_t {o}" for o in c.indices)
    arguments = "".join(f", {o}" for o in c.indices)
    width = columns.vectors * lanes
    capacity = max(tiles.largest, STAGE_BYTES // (4 * width))
    stage = f", stage + held * {width}" if heavy else ""
    call = f"_{columns.name}(p, a + (j - base) * {c.walk.row_step}, b{stage}{arguments}, i, j, c);"
    if tiles.big:
        body = [f"if (t < {tiles.big}) KERNEL_tile_{tiles.size + 1}{call}", f"else KERNEL_tile_{tiles.size}{call}"]
    else:
        body = [f"KERNEL_tile_{tiles.size}{call}"]
    end = str(tiles.count) if c.by_row else "last"
    if heavy:
        body += [
            f"held += t < {tiles.big} ? {tiles.size + 1} : {tiles.size};",
            f"if (held > {capacity - tiles.largest} || t + 1 == {end}) {{",
            f"const int64_t from = {tiles.start('t + 1')} - held;",
            f"KERNEL_finish_{columns.name}(p, stage, held{arguments}, i, from, c);",
            "held = 0;",
            "}",
        ]
    # A filled scratch holds a block of j from its first row on.
    base = tiles.start("first") if c.fill and not c.by_row else "0"
    return "\n".join(
        [
            f"static void KERNEL_panel_{columns.name}(char *const *p, const float *scratch, const float *b{position}, "
            "int64_t first, int64_t last, int64_t c) {",
            "const int64_t lo = first;",
            f"const int64_t base = {base};",
            *([f"float stage[{capacity * width}] __attribute__((aligned(64)));", "int64_t held = 0;"] if heavy else []),
            "for (int64_t i = first; i < last; ++i) {" if c.by_row else "{ const int64_t i = 0;",
            f"const float *a = {c.a};",
            f"for (int64_t t = {'0' if c.by_row else 'first'}; t < {end}; ++t) {{",
            f"const int64_t j = {tiles.start('t')};",
            *body,
            "} } }",
        ]
    )


def _task(c: Contraction) -> str:
    """Decodes a task, fills the scratch, applies the panels."""
    panels = c.panels
    cut = Balanced(panels.count, c.chunks)
    lines = [
        "static void KERNEL_task(void *context, int64_t task, int64_t worker) {",
        "char *const *p = ((KERNEL_context *)context)->p;",
        "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;",
        f"const int64_t chunk = task % {c.chunks}; task /= {c.chunks};",
        f"const int64_t block = task % {c.blocks.count}; task /= {c.blocks.count};",
        *decode(c.outer),
        f"const int64_t first = {c.blocks.start('block')}, last = {c.blocks.start('block + 1')};",
        f"const int64_t from = {cut.start('chunk')}, to = {cut.start('chunk + 1')};",
        "float *scratch = 0;",
    ]
    if c.fill:
        bounds = ("first", "last") if c.by_row else (c.tiles.start("first"), c.tiles.start("last"))
        lines += [
            "scratch = (float *)(runtime->scratch + worker * runtime->scratch_stride);",
            f"{{ const int64_t lo = {bounds[0]}, hi = {bounds[1]};",
            c.fill,
            "}",
        ]
    lines.append(f"const float *b = {c.b};")
    column = 0
    arguments = "".join(f", {o}" for o in c.indices)
    for start, count, columns in panels.runs():
        end = start + count
        offset = "c" if c.walk.b_step else f"c * {c.walk.depth}"
        lines += [
            f"for (int64_t q = from > {start} ? from : {start}; q < (to < {end} ? to : {end}); ++q) {{",
            f"const int64_t c = {column} + (q - {start}) * {columns.vectors * panels.lanes};",
            f"KERNEL_panel_{columns.name}(p, scratch, b + {offset}{arguments}, first, last, c);",
            "}",
        ]
        column += count * columns.valid(panels.lanes)
    return "\n".join([*lines, "}"])
