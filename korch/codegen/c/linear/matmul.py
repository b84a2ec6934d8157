"""Matrix products: the right operand packed at optimisation time, read in place, or packed at run time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from korch.codegen.c.index import Index, constant, to_c, unflatten, variable
from korch.codegen.c.linear.contraction import (
    Contraction,
    Phase,
    blocks_of,
    contraction_source,
    decode,
    panel_chunks,
)
from korch.codegen.c.linear.fuse import Plane, approach, epilogue, prologue
from korch.codegen.c.linear.operand import Place, no_table, place_of
from korch.codegen.c.linear.problem import Arguments, Constant, Problem, constant_value
from korch.codegen.c.linear.split import Balanced, Panels, tile_choices, use_half
from korch.codegen.c.linear.tile import Walk
from korch.codegen.c.nest_reads import Indices
from korch.codegen.kernel import Argument, Kernel, Packed

CHOICES = 3
# Threads share columns rather than rows below this many rows, where the right operand outweighs the rest.
FEW_ROWS = 400


@dataclass(frozen=True)
class Product:
    """[batch…, m, k] x [batch…, k, n]. With `joint`, the batch is part of m: the right operand has none."""

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    joint: tuple[int, ...] = ()

    @staticmethod
    def of(problem: Problem) -> Product:
        a, b = (problem.shape(v) for v in problem.linear.inputs)
        if len(b) == 2:
            return Product((), math.prod(a[:-1]), a[-1], b[-1], a[:-1])
        return Product(a[:-2], a[-2], a[-1], b[-1])

    @property
    def outer(self) -> tuple[Index, ...]:
        return tuple(variable(f"o{d}", 0, n - 1) for d, n in enumerate(self.batch))

    def rows(self, j: Index) -> Indices:
        """All but the last index of row j."""
        return unflatten(j, self.joint) if self.joint else (*self.outer, j)

    def left(self, j: str, k: str) -> Indices:
        """An element of the left operand; `j` and `k` name variables."""
        return (*self.rows(variable(j, 0, self.m - 1)), variable(k, 0, self.k - 1))

    def right(self, k: str, c: str) -> Indices:
        """An element of the right operand."""
        return (*self.outer, variable(k, 0, self.k - 1), variable(c, 0, self.n - 1))


def matmul_kernels(problem: Problem) -> tuple[Kernel, ...] | str:
    """Kernels for a matrix product: for each promising tile, and for each way to read the right operand."""
    f = Product.of(problem)
    left, right = problem.linear.inputs
    place = place_of(problem.fragment, left, f.left("j", "k"))
    if place is not None and (place.step("j") is None or place.step("k") is None):
        place = None
    row_step = (place.step("j") or 0) if place else f.k
    tiles = tile_choices(f.n, f.m, f.k, row_step, problem.target)
    weights = constant_value(problem.fragment, right)
    if weights is not None:
        return tuple(_kernel(problem, f, place, weights, tile) for tile in tiles[:CHOICES])
    there = place_of(problem.fragment, right, f.right("k", "c"))
    in_place = there is not None and (there.step("c") == 1 or f.n == 1) and bool(there.step("k") or f.k == 1)
    kernels = [_kernel(problem, f, place, None, tile) for tile in tiles[:2]]
    if in_place:
        kernels += [_kernel(problem, f, place, there, tile) for tile in tiles[:2]]
    return tuple(kernels)


def _kernel(
    problem: Problem, f: Product, left: Place | None, right: Constant | Place | None, tile: tuple[int, int]
) -> Kernel:
    """One implementation. The right operand is a constant to pack, in place, or (None) packed at run time."""
    rows, vectors = tile
    target, lanes = problem.target, problem.target.lanes()
    half = use_half(f.n, target) and (not isinstance(right, Place) or f.n % lanes == lanes // 2)
    panels = Panels(f.n, lanes, vectors, half)
    tiles = Balanced.of(f.m, rows)
    arguments = Arguments()
    phases: tuple[Phase, ...] = ()
    batches = math.prod(f.batch)
    shared, b_step, way = 0, 0, "packed"
    if isinstance(right, Constant):
        key = f"matmul {panels.key}: {right.text}"
        packed = arguments.pack(Packed(right.weights, key, partial(_pack, panels, right)))
        b = f"(const float *){packed}" + _flat(f.batch, panels.floats(f.k))
    elif right is not None:
        source = arguments.pointer(Argument("input", right.value))
        b = f"(const float *){source} + {to_c(right.at(k=0, c=0), no_table)}"
        b_step, way = right.step("k") or f.n, "in place"
    else:
        size = panels.floats(f.k)
        shared = batches * size * 4
        scratch = f"(float *){arguments.pointer(Argument('scratch'))}"
        b, phase = packed_at_run_time(problem, arguments, f, panels, scratch)
        phases, way = (phase,), "packed at run time"

    work = 2.0 * batches * f.m * f.n * f.k
    by_columns = batches * f.m < FEW_ROWS and f.k * f.n > 4 * f.m * (f.k + f.n)
    chunks = panel_chunks(panels, batches * f.k * f.n, work) if by_columns else 1
    blocks = Balanced(tiles.count, 1)
    if not by_columns:
        blocks = blocks_of(batches, tiles.count, tiles.largest * (f.k + f.n) * 4, work)
    fill, private = "", 0
    if left is not None:
        source = arguments.pointer(Argument("input", left.value))
        a = f"(const float *){source} + {to_c(left.at(j=0, k=0), no_table)}"
        walk = Walk(left.step("j") or 0, (), f.k, left.step("k") or 0, b_step)
    else:
        most = blocks.largest * tiles.largest
        private = most * f.k * 4
        plane = Plane(f.left("w", "q"), "lo", "hi", f.k, f"scratch - lo * {f.k}", f.k)
        fill = prologue(problem, arguments, problem.linear.inputs[0], plane)
        a, walk = "scratch", Walk(f.k, (), f.k, 1, b_step)

    def result(j: Index, c: Index) -> Indices:
        return (*f.rows(j), c)

    after = epilogue(problem, arguments, result, f.m, f.n)
    before = approach(after)
    contraction = Contraction(f.batch, 1, f.m, walk, a, b, after, rows, panels, blocks, chunks, fill, phases, before)
    source = contraction_source(contraction, target)
    parameters = (("mr", rows), ("nv", vectors))
    family = f"matmul, right operand {way}"
    return Kernel(family, source, tuple(arguments.arguments), parameters, tuple(arguments.packed), shared, private)


def _flat(batch: tuple[int, ...], size: int) -> str:
    """C text: the offset of a batch's matrix of `size` floats."""
    index = constant(0)
    for d, n in enumerate(batch):
        index = index * n + variable(f"o{d}", 0, n - 1)
    return f" + ({to_c(index * size, no_table)})"


def _pack(panels: Panels, weights: Constant, *arrays: np.ndarray) -> np.ndarray:
    return panels.pack(weights.evaluate(*arrays))


def packed_at_run_time(
    problem: Problem, arguments: Arguments, f: Product, panels: Panels, scratch: str
) -> tuple[str, Phase]:
    """Where the packed right operand of a batch lies in the memory at `scratch`, and what packs it."""
    at = f"{scratch}{_flat(f.batch, panels.floats(f.k))}"
    return at, _packing(problem, arguments, f, panels, at)


def _packing(problem: Problem, arguments: Arguments, f: Product, panels: Panels, scratch: str) -> Phase:
    """Copies the right operand to panels [k][width], padded with zeros; a task is one panel of one matrix."""
    extents = (*f.batch, panels.count)
    lines = [*decode(extents)]
    column, lanes, panel = 0, panels.lanes, f"o{len(f.batch)}"
    for first, count, columns in panels.runs():
        width, valid = columns.width(lanes), columns.valid(lanes)
        lines.append(f"if ({panel} >= {first} && {panel} < {first + count}) {{")
        lines.append(f"const int64_t c = {column} + ({panel} - {first}) * {valid};")
        lines.append(f"float *to = {scratch} + c * {f.k};")
        if width > valid:
            lines.append(f"__builtin_memset(to, 0, {f.k * width * 4});")
        plane = Plane(f.right("w", "q"), "0", str(f.k), valid, "to - c", width, "c")
        lines.append(prologue(problem, arguments, problem.linear.inputs[1], plane))
        lines.append("}")
        column += count * valid
    return Phase("pack", math.prod(extents), "\n".join(lines))
