"""Convolutions with few output channels: the kernel's columns become output channels, then are shifted and added.

    Z[i, x, (v, o)] = sum over u, q of X[i*s + u*d, x, q] * W[o, q, u, v]
    Y[i, j, o]      = sum over v of Z[i, j + v*d, (v, o)]

Few channels would leave most lanes of a vector empty; KW times as many fill them.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from korch.codegen.c.index import to_c
from korch.codegen.c.linear.contraction import blocks_of
from korch.codegen.c.linear.fuse import epilogue
from korch.codegen.c.linear.geometry import Conv, padded_rows
from korch.codegen.c.linear.operand import Place, no_table
from korch.codegen.c.linear.problem import Arguments, Constant, Problem
from korch.codegen.c.linear.split import Balanced, Panels, tile_choices, use_half
from korch.codegen.c.linear.tile import Columns, Walk, accumulator, half_vectors, stored_tile
from korch.codegen.kernel import Argument, Kernel, Packed

# Outputs added at once.
STEP = 4


def pays(g: Conv, lanes: int) -> bool:
    """Whether fewer vectors are multiplied than in direct convolution."""
    if g.groups > 1 or g.strides[1] > 1 or g.kernel[1] == 1 or g.outputs > lanes // 2:
        return False
    half = max(lanes // 2, 1)
    shifted = g.padded[1] * -(-g.outputs * g.kernel[1] // half)
    return shifted < 0.8 * g.length * g.kernel[1] * -(-g.outputs // half)


def shifted_kernel(problem: Problem, g: Conv, weights: Constant, place: Place | None) -> Kernel:
    """`place` says where the input lies when it is read in place."""
    target, lanes = problem.target, problem.target.lanes()
    wide, n = g.padded[1], g.outputs * g.kernel[1]
    walk = _one_column(g, place)
    rows, vectors = tile_choices(n, wide, walk.depth, walk.row_step, target)[0]
    panels, tiles = Panels(n, lanes, vectors, use_half(n, target)), Balanced.of(wide, rows)
    arguments = Arguments()
    key = f"shifted {panels.key}: {weights.text}"
    packed = arguments.pack(Packed(weights.weights, key, partial(_pack, panels, weights)))
    work = 2.0 * g.images * g.rows * wide * n * walk.depth
    blocks = blocks_of(g.images, g.rows, (g.strides[0] * wide * g.channels + wide * n) * 4, work)
    stride = panels.floats(1)
    sums = -(-(wide * stride + lanes) // 16) * 16
    line = wide * g.channels
    fill, band = "", 0
    if place is not None:
        source = arguments.pointer(Argument("input", place.value))
        a = f"(const float *){source} + {to_c(place.at(j=0, u=0, v=0, q=0), no_table)}"
    else:
        band = ((blocks.largest - 1) * g.strides[0] + g.reach[0]) * line
        first, last = f"lo * {g.strides[0]}", f"(hi - 1) * {g.strides[0]} + {g.reach[0]}"
        fill = padded_rows(problem, arguments, g, problem.linear.inputs[0], first, last, "input")
        a = f"input + (i - lo) * {g.strides[0] * line}"

    finish = epilogue(problem, arguments, lambda j, c: g.result_index(problem, j, c), g.length, g.outputs)

    def added(count: int) -> list[str]:
        lines = [f"vf32 {', '.join(f'{accumulator(k, 0)} = {{0}}' for k in range(count))};"]
        lines.append(f"for (int64_t v = 0; v < {g.kernel[1]}; ++v) {{")
        lines.append(f"const float *z = sums + (j + v * {g.dilations[1]}) * {stride} + v * {g.outputs};")
        lines += [f"{accumulator(k, 0)} += korch_load_f32(z + {k * stride});" for k in range(count)]
        return [*lines, "}", finish(count, Columns(1, g.outputs))]

    parts = ["typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;"]
    if panels.half:
        parts.append(half_vectors(lanes, target.has_fma))
    multiply: list[str] = []
    column = 0
    for _, count, columns in panels.runs():
        parts += [stored_tile(size, columns, walk, lanes, stride) for size in tiles.sizes()]
        split = tiles.big * (tiles.size + 1)
        call = (
            f"_{columns.name}(a + x * {walk.row_step}, (const float *){packed} + c * {walk.depth}, "
            f"sums + x * {stride} + c);"
        )
        multiply.append(f"for (int64_t k = 0; k < {count}; ++k) {{")
        multiply.append(f"const int64_t c = {column} + k * {columns.vectors * lanes};")
        if tiles.big:
            multiply.append(
                f"for (int64_t x = 0; x < {split}; x += {tiles.size + 1}) KERNEL_tile_{tiles.size + 1}{call}"
            )
        multiply.append(f"for (int64_t x = {split}; x < {wide}; x += {tiles.size}) KERNEL_tile_{tiles.size}{call}")
        multiply.append("}")
        column += count * columns.valid(lanes)
    whole, rest = g.length // STEP * STEP, g.length % STEP
    parts += [
        "static void KERNEL_task(void *context, int64_t task, int64_t worker) {",
        "char *const *p = ((KERNEL_context *)context)->p;",
        "const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;",
        "float *sums = (float *)(runtime->scratch + worker * runtime->scratch_stride);",
        f"float *input = sums + {sums}; (void)input;",
        f"const int64_t block = task % {blocks.count}, o0 = task / {blocks.count}, o1 = 0;",
        f"const int64_t lo = {blocks.start('block')}, hi = {blocks.start('block + 1')};",
        f"__builtin_memset(sums + {wide * stride}, 0, {lanes * 4});",
        fill,
        "for (int64_t i = lo; i < hi; ++i) {",
        "const int64_t c = 0;",
        f"{{ const float *a = {a};",
        *multiply,
        "}",
        f"for (int64_t j = 0; j < {whole}; j += {STEP}) {{",
        *added(STEP),
        "}",
        *([f"{{ const int64_t j = {whole};", *added(rest), "}"] if rest else []),
        "} }",
        "void KERNEL(const korch_runtime *runtime, char *const *p) {",
        "KERNEL_context context = {runtime, p};",
        f"korch_parallel(runtime, {g.images * blocks.count}, KERNEL_task, &context);",
        "}",
    ]
    return Kernel(
        "conv, columns shifted",
        "\n".join(parts) + "\n",
        tuple(arguments.arguments),
        (("mr", rows), ("nv", vectors)),
        tuple(arguments.packed),
        0,
        (sums + band) * 4,
    )


def _one_column(g: Conv, place: Place | None) -> Walk:
    """How a tile reads the kernel's first column, at every input column."""
    if place is None:
        return Walk(g.channels, ((g.kernel[0], g.dilations[0] * g.padded[1] * g.channels),), g.channels)
    u, v, q = (place.step(name) or 0 for name in ("u", "v", "q"))
    return Walk(v // g.dilations[1], ((g.kernel[0], u),), g.channels, q)


def _pack(panels: Panels, weights: Constant, *arrays: np.ndarray) -> np.ndarray:
    """[O, C, KH, KW] (or [O, C, KW]) as panels [panel][u, q][columns (v, o)]."""
    w = weights.evaluate(*arrays)
    w = w.reshape(w.shape[0], w.shape[1], -1, w.shape[-1])
    rows = np.transpose(w, (2, 1, 3, 0)).reshape(w.shape[2] * w.shape[1], -1)
    return panels.pack(rows)
