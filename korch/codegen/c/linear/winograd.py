"""Winograd's minimal filtering for 3x3 convolutions with stride 1: F(2x2, 3x3) and F(4x4, 3x3).

    Y = A' [ (G g G') . (B' d B) ] A        (Lavin and Gray, 2016)

A tile of m x m outputs needs (m + 2)^2 products for each pair of channels instead of 9 m^2: 2.25 times fewer for
m = 2, 4 times fewer for m = 4. Each of the (m + 2)^2 positions of transformed tiles is one matrix product,
[tiles, C] x [C, O], on the register tile of the other families. Weights are transformed when they are packed.

Where the weights are small, a task takes some tiles through all three steps, in its cache. Where they are large and
the tiles few, the products are split over positions, so that all weights are read once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from korch.codegen.c.linear.contraction import decode
from korch.codegen.c.linear.fuse import epilogue
from korch.codegen.c.linear.geometry import Conv, padded_rows
from korch.codegen.c.linear.problem import Arguments, Constant, Problem
from korch.codegen.c.linear.split import Balanced, Panels, tile_choices
from korch.codegen.c.linear.tile import Columns, Walk, accumulator, stored_tile
from korch.codegen.kernel import Argument, Kernel, Packed, Packer

# Bytes of a task's transformed tiles; the second-level cache holds its products and a panel of weights too.
TILE_BYTES = 480 << 10
MOST_TILES = 64
# Where all tiles are fewer than this and the weights larger, tasks are positions rather than tiles.
FEW_TILES = 100
LARGE_WEIGHTS = 4 << 20

# F(4x4) interpolates at 0, -NEAR, NEAR, -FAR, FAR and infinity. These points, exact in binary, halve the error of the
# usual 1 and 2 (relative RMS 1.0e-6 instead of 1.9e-6 for 128 channels; direct convolution has 1.7e-7).
NEAR, FAR = 0.75, 1.5


def filters(m: int) -> np.ndarray:
    """G of the formula: (m + 2) x 3."""
    if m == 2:
        return np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    near, far = NEAR**2, FAR**2
    scales = [1 / (2 * near * (near - far))] * 2 + [1 / (2 * far * (far - near))] * 2
    points = [NEAR, -NEAR, FAR, -FAR]
    rows = [[k, k * p, k * p * p] for k, p in zip(scales, points, strict=True)]
    return np.array([[1 / (near * far), 0, 0], *rows, [0, 0, 1]])


@dataclass(frozen=True)
class Plan:
    """The numbers of one kernel. `grid` counts tiles; `tiles` cuts them (of one image) into tasks; `rows` cuts a
    task's tiles into register tiles. Strides are in floats: `position` between the matrices of transformed tiles,
    `product` between those of products (of a panel)."""

    g: Conv
    m: int
    grid: tuple[int, int]
    panels: Panels
    tiles: Balanced
    rows: Balanced
    split: bool

    @property
    def side(self) -> int:
        return self.m + 2

    @property
    def positions(self) -> int:
        return self.side * self.side

    @property
    def capacity(self) -> int:
        """Tiles for which there is room: a task may compute one that does not exist."""
        return self.tiles.largest

    @property
    def position(self) -> int:
        return self.capacity * self.g.channels + 16  # 64 bytes against aliasing at 4 KB

    @property
    def padded(self) -> Conv:
        """The convolution with all outputs of all tiles."""
        return replace(self.g, rows=self.grid[0] * self.m, length=self.grid[1] * self.m)

    @property
    def band(self) -> int:
        """The most padded input rows that a task's tiles read."""
        if self.split:
            return self.side
        crossed = min(self.grid[0], (self.capacity + self.grid[1] - 2) // self.grid[1] + 1)
        return crossed * self.m + 2

    @property
    def line(self) -> int:
        """Floats of a padded input row."""
        return self.padded.padded[1] * self.g.channels


def winograd_kernels(problem: Problem, g: Conv, weights: Constant) -> tuple[Kernel, ...]:
    """Kernels for a 3x3 convolution of stride 1, one for each m that its map is large enough for."""
    if g.kernel != (3, 3) or g.strides != (1, 1) or g.dilations != (1, 1) or g.groups != 1:
        return ()
    if min(g.channels, g.outputs) < 16 or min(g.rows, g.length) < 4:
        return ()
    return tuple(_kernel(problem, g, weights, m) for m in (4, 2))


def _plan(problem: Problem, g: Conv, m: int) -> Plan:
    grid = (-(-g.rows // m), -(-g.length // m))
    tiles, positions = math.prod(grid), (m + 2) ** 2
    split = g.images * tiles < FEW_TILES and positions * g.channels * g.outputs * 4 > LARGE_WEIGHTS
    most = max(8, min(MOST_TILES, TILE_BYTES // (positions * g.channels * 4)))
    cut = Balanced(tiles, 1) if split else Balanced.of(tiles, most)
    if not split and cut.count % 2 and cut.count > 1:
        cut = Balanced(tiles, cut.count + 1)
    rows, vectors = tile_choices(g.outputs, cut.largest, g.channels, g.channels, problem.target)[0]
    return Plan(
        g, m, grid, Panels(g.outputs, problem.target.lanes(), vectors), cut, Balanced.of(cut.largest, rows), split
    )


def _kernel(problem: Problem, g: Conv, weights: Constant, m: int) -> Kernel:
    plan = _plan(problem, g, m)
    arguments = Arguments()
    key = f"winograd {m} panels of {plan.panels.vectors}x{plan.panels.lanes}: {weights.text}"
    packed = arguments.pack(Packed(weights.weights, key, _packer(plan, weights)))
    parts = ["typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;", _input(plan)]
    walk = Walk(g.channels, (), g.channels)
    for columns in dict.fromkeys(columns for _, _, columns in plan.panels.runs()):
        parts += [stored_tile(rows, columns, walk, plan.panels.lanes) for rows in plan.rows.sizes()]
        parts.append(_multiply(plan, columns))
        parts.append(_output(problem, arguments, plan, columns))
    steps, shared, private = (_split if plan.split else _whole)(problem, arguments, plan, packed)
    parts += steps
    parameters = (("m", m), ("mr", plan.rows.largest), ("nv", plan.panels.vectors))
    return Kernel(
        "winograd",
        "\n".join(parts) + "\n",
        tuple(arguments.arguments),
        parameters,
        tuple(arguments.packed),
        shared,
        private,
    )


def _packer(plan: Plan, weights: Constant) -> Packer:
    def pack(*arrays: np.ndarray) -> np.ndarray:
        """[O, C, 3, 3] as panels [panel][position][C][width]."""
        w = weights.evaluate(*arrays).astype(np.float64)
        g = filters(plan.m)
        transformed = np.einsum("xa,ocab,yb->xyco", g, w, g, optimize=True)
        transformed = transformed.reshape(plan.positions * plan.g.channels, plan.g.outputs)
        return plan.panels.pack(transformed.astype(np.float32))

    return pack


def _scaled(k: float, a: str, b: str) -> str:
    """C text: k * a + b."""
    return f"KERNEL_scaled({k!r}f, {a}, {b})"


def forward_input(m: int, d: list[str]) -> list[str]:
    """B' d of m + 2 vectors, as C expressions."""
    if m == 2:
        return [f"{d[0]} - {d[2]}", f"{d[1]} + {d[2]}", f"{d[2]} - {d[1]}", f"{d[1]} - {d[3]}"]
    near, far = NEAR**2, FAR**2
    even, odd = _scaled(-far, d[2], d[4]), _scaled(-far, d[1], d[3])
    even2, odd2 = _scaled(-near, d[2], d[4]), _scaled(-near, d[1], d[3])
    return [
        _scaled(near * far, d[0], _scaled(-near - far, d[2], d[4])),
        _scaled(NEAR, odd, even),
        _scaled(-NEAR, odd, even),
        _scaled(FAR, odd2, even2),
        _scaled(-FAR, odd2, even2),
        _scaled(near * far, d[1], _scaled(-near - far, d[3], d[5])),
    ]


def forward_output(m: int, d: list[str]) -> list[str]:
    """A' d of m + 2 vectors, as C expressions."""
    if m == 2:
        return [f"{d[0]} + {d[1]} + {d[2]}", f"{d[1]} - {d[2]} - {d[3]}"]
    sum1, sum2 = f"({d[1]} + {d[2]})", f"({d[3]} + {d[4]})"
    odd1, odd2 = f"({d[1]} - {d[2]})", f"({d[3]} - {d[4]})"
    return [
        f"{d[0]} + {sum1} + {sum2}",
        _scaled(NEAR, odd1, f"{FAR!r}f * {odd2}"),
        _scaled(NEAR**2, sum1, f"{FAR**2!r}f * {sum2}"),
        _scaled(NEAR**3, odd1, _scaled(FAR**3, odd2, d[5])),
    ]


SCALED = (
    "static inline __attribute__((always_inline)) vf32 KERNEL_scaled(float k, vf32 a, vf32 b) "
    "{ return korch_fma_f32(korch_splat_f32(k), a, b); }"
)


def _input(plan: Plan) -> str:
    """A function that transforms one tile: `x` is its first element, `v` its row in the first position's matrix."""
    side, lanes, channels = plan.side, plan.panels.lanes, plan.g.channels

    def step(valid: int) -> list[str]:
        lines: list[str] = []
        for column in range(side):
            for row in range(side):
                at = f"x + {row * plan.line + column * channels} + q"
                load = f"korch_load_f32({at})" if valid == lanes else f"korch_load_n_f32({at}, {valid})"
                lines.append(f"const vf32 d{row}_{column} = {load};")
            found = forward_input(plan.m, [f"d{row}_{column}" for row in range(side)])
            lines += [f"const vf32 e{row}_{column} = {text};" for row, text in enumerate(found)]
        for row in range(side):
            found = forward_input(plan.m, [f"e{row}_{column}" for column in range(side)])
            for column, text in enumerate(found):
                at = f"v + {(row * side + column) * plan.position} + q"
                if valid == lanes:
                    lines.append(f"korch_store_f32({at}, {text});")
                else:
                    lines.append(f"korch_store_n_f32({at}, {text}, {valid});")
        return lines

    whole, rest = channels // lanes * lanes, channels % lanes
    return "\n".join(
        [
            SCALED,
            "static void KERNEL_input(const float *x, float *v) {",
            f"for (int64_t q = 0; q < {whole}; q += {lanes}) {{",
            *step(lanes),
            "}",
            *([f"{{ const int64_t q = {whole};", *step(rest), "}"] if rest else []),
            "}",
        ]
    )


def _multiply(plan: Plan, columns: Columns) -> str:
    """All tiles of one position for one panel: `to` [tile][width]."""
    rows, width = plan.rows, columns.width(plan.panels.lanes)
    call = f"_{columns.name}(a + t * {plan.g.channels}, b, to + t * {width});"
    lines = [f"static void KERNEL_multiply_{columns.name}(const float *a, const float *b, float *to) {{"]
    split = rows.big * (rows.size + 1)
    if rows.big:
        lines.append(f"for (int64_t t = 0; t < {split}; t += {rows.size + 1}) KERNEL_tile_{rows.size + 1}{call}")
    lines.append(f"for (int64_t t = {split}; t < {rows.total}; t += {rows.size}) KERNEL_tile_{rows.size}{call}")
    return "\n".join([*lines, "}"])


def _output(problem: Problem, arguments: Arguments, plan: Plan, columns: Columns) -> str:
    """A function that transforms one tile's products back and stores its outputs.

    `from` is the tile's row in the first position's products, `step` leads to the next position's.
    """
    g, m, side, lanes = plan.g, plan.m, plan.side, plan.panels.lanes
    finish = epilogue(problem, arguments, lambda j, c: g.result_index(problem, j, c), g.length, g.outputs)
    rest = g.length % m

    def vector(valid: int) -> list[str]:
        lines: list[str] = []
        for column in range(side):
            for row in range(side):
                lines.append(f"const vf32 d{row}_{column} = korch_load_f32(from + {row * side + column} * step);")
            found = forward_output(m, [f"d{row}_{column}" for row in range(side)])
            lines += [f"const vf32 e{row}_{column} = {text};" for row, text in enumerate(found)]
        for row in range(m):
            found = forward_output(m, [f"e{row}_{column}" for column in range(side)])
            lines += [f"outputs[{row}][{column}] = {text};" for column, text in enumerate(found)]
        lines.append(f"for (int64_t r = 0; r < {m} && y * {m} + r < {g.rows}; ++r) {{")
        lines.append(f"const int64_t i = y * {m} + r, j = x * {m};")
        lines += [f"const vf32 {accumulator(k, 0)} = outputs[r][{k}];" for k in range(m)]
        if rest:
            lines += [f"if (x == {plan.grid[1] - 1}) {{", finish(rest, Columns(1, valid)), "} else"]
        return [*lines, "{", finish(m, Columns(1, valid)), "} }"]

    whole = columns.valid(lanes) // lanes
    lines = [
        f"static void KERNEL_output_{columns.name}(char *const *p, const float *from, int64_t step, "
        "int64_t o0, int64_t y, int64_t x, int64_t c) {",
        f"const int64_t o1 = 0; vf32 outputs[{m}][{m}];",
    ]
    if whole:
        lines.append(f"for (int64_t left = {whole}; left > 0; --left, c += {lanes}, from += {lanes}) {{")
        lines += [*vector(lanes), "}"]
    if columns.tail < lanes:
        lines += ["{", *vector(columns.tail), "}"]
    return "\n".join([*lines, "}"])


def _panel_loops(plan: Plan, low: str, high: str, body: dict[str, list[str]]) -> list[str]:
    """Loops over the panels from `low` to `high`, with c (the first column) and width; a body by columns."""
    lines: list[str] = []
    column, lanes = 0, plan.panels.lanes
    for start, count, columns in plan.panels.runs():
        end, width = start + count, columns.width(lanes)
        lines += [
            f"for (int64_t q = {low} > {start} ? {low} : {start}; q < ({high} < {end} ? {high} : {end}); ++q) {{",
            f"const int64_t c = {column} + (q - {start}) * {columns.vectors * lanes}, width = {width};",
            *body[columns.name],
            "}",
        ]
        column += count * columns.valid(lanes)
    return lines


def _whole(problem: Problem, arguments: Arguments, plan: Plan, packed: str) -> tuple[list[str], int, int]:
    """A task takes some tiles through all steps. C text, shared and private bytes."""
    g, capacity, positions = plan.g, plan.capacity, plan.positions
    band = -(-plan.band * plan.line // 16) * 16
    transformed = positions * plan.position
    widest = max(columns.width(plan.panels.lanes) for _, _, columns in plan.panels.runs())
    body = {
        columns.name: [
            f"const float *b = (const float *){packed} + c * {positions * g.channels};",
            f"for (int64_t x = 0; x < {positions}; ++x)",
            f"KERNEL_multiply_{columns.name}(tiles + x * {plan.position}, b + x * {g.channels} * width, "
            f"products + x * {capacity} * width);",
            "for (int64_t t = first; t < last; ++t)",
            f"KERNEL_output_{columns.name}(p, products + (t - first) * width, {capacity} * width, "
            f"o0, t / {plan.grid[1]}, t % {plan.grid[1]}, c);",
        ]
        for _, _, columns in plan.panels.runs()
    }
    lines = [
        "static void KERNEL_task(void *context, int64_t task, int64_t worker) {",
        "char *const *p = ((KERNEL_context *)context)->p;",
        "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;",
        "float *rows = (float *)(runtime->scratch + worker * runtime->scratch_stride);",
        f"float *tiles = rows + {band}, *products = tiles + {transformed};",
        f"const int64_t block = task % {plan.tiles.count}, o0 = task / {plan.tiles.count}, o1 = 0;",
        f"const int64_t first = {plan.tiles.start('block')}, last = {plan.tiles.start('block + 1')};",
        f"const int64_t above = first / {plan.grid[1]}, below = (last - 1) / {plan.grid[1]};",
        "{",
        padded_rows(
            problem,
            arguments,
            plan.padded,
            problem.linear.inputs[0],
            f"above * {plan.m}",
            f"below * {plan.m} + {plan.side}",
            "rows",
        ),
        "}",
        f"if (last - first < {capacity}) for (int64_t x = 0; x < {positions}; ++x)",
        f"__builtin_memset(tiles + x * {plan.position} + (last - first) * {g.channels}, 0, {g.channels * 4});",
        "for (int64_t t = first; t < last; ++t)",
        f"KERNEL_input(rows + (t / {plan.grid[1]} - above) * {plan.m * plan.line} "
        f"+ t % {plan.grid[1]} * {plan.m * g.channels}, tiles + (t - first) * {g.channels});",
        *_panel_loops(plan, "0", str(plan.panels.count), body),
        "}",
        "void KERNEL(const korch_runtime *runtime, char *const *p) {",
        "KERNEL_context context = {runtime, p};",
        f"korch_parallel(runtime, {g.images * plan.tiles.count}, KERNEL_task, &context);",
        "}",
    ]
    return lines, 0, (band + transformed + positions * capacity * widest) * 4


def _split(problem: Problem, arguments: Arguments, plan: Plan, packed: str) -> tuple[list[str], int, int]:
    """Three steps, each over all tiles; the products are split over positions and panels."""
    g, capacity, positions, grid = plan.g, plan.capacity, plan.positions, plan.grid
    pointer = f"(float *){arguments.pointer(Argument('scratch'))}"
    transformed = positions * plan.position
    widths = plan.panels.floats(1)
    product = capacity * widths + 16
    chunks = min(plan.panels.count, 4)
    cut = Balanced(plan.panels.count, chunks)
    image = transformed + positions * product
    multiply = {
        columns.name: [
            f"KERNEL_multiply_{columns.name}(tiles + o1 * {plan.position}, "
            f"(const float *){packed} + c * {positions * g.channels} + o1 * {g.channels} * width, "
            f"products + o1 * {product} + c * {capacity});"
        ]
        for _, _, columns in plan.panels.runs()
    }
    output = {
        columns.name: [
            f"for (int64_t x = 0; x < {grid[1]}; ++x)",
            f"KERNEL_output_{columns.name}(p, products + c * {capacity} + (o1 * {grid[1]} + x) * width, {product}, "
            "o0, o1, x, c);",
        ]
        for _, _, columns in plan.panels.runs()
    }
    rows = padded_rows(
        problem,
        arguments,
        plan.padded,
        problem.linear.inputs[0],
        f"y * {plan.m}",
        f"y * {plan.m} + {plan.side}",
        "rows",
    )
    steps = {
        "transform": (
            (g.images, grid[0]),
            [
                "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;",
                "float *rows = (float *)(runtime->scratch + worker * runtime->scratch_stride);",
                "const int64_t y = o1; { const int64_t o1 = 0;",
                rows,
                "}",
                f"for (int64_t x = 0; x < {grid[1]}; ++x)",
                f"KERNEL_input(rows + x * {plan.m * g.channels}, tiles + (y * {grid[1]} + x) * {g.channels});",
            ],
        ),
        "multiply": (
            (g.images, positions, chunks),
            [
                f"const int64_t low = {cut.start('o2')}, high = {cut.start('o2 + 1')};",
                *_panel_loops(plan, "low", "high", multiply),
            ],
        ),
        "restore": ((g.images, grid[0]), _panel_loops(plan, "0", str(plan.panels.count), output)),
    }
    lines: list[str] = []
    calls: list[str] = []
    for name, (extents, body) in steps.items():
        lines += [
            f"static void KERNEL_{name}(void *context, int64_t task, int64_t worker) {{",
            "char *const *p = ((KERNEL_context *)context)->p;",
            *decode(extents),
            f"float *tiles = {pointer} + o0 * {image}, *products = tiles + {transformed};",
            *body,
            "}",
        ]
        calls.append(f"korch_parallel(runtime, {math.prod(extents)}, KERNEL_{name}, &context);")
    lines += [
        "void KERNEL(const korch_runtime *runtime, char *const *p) {",
        "KERNEL_context context = {runtime, p};",
        *calls,
        "}",
    ]
    return lines, g.images * image * 4, plan.band * plan.line * 4
