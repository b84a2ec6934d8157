"""Register tiles: the inner loop of every packed linear kernel.

A tile computes `rows` outputs by `vectors` vectors of columns: for each k, it loads the vectors of B's row once
and multiplies them with one broadcast element of A per row. Each accumulator is a scalar variable of its own
(an array of them spills), every address is a base plus a constant, and K is unrolled, so the loop holds nothing
but loads and fused multiply-adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

UNROLL = 4
BLOCK = 256  # terms that are summed in one go, where there are more: errors grow with the length of a sum


@dataclass(frozen=True)
class Columns:
    """The columns of a tile: `vectors` vectors, the last of which holds `tail` valid lanes.

    Where `half`, the last vector is computed at half width (few valid lanes on a machine with wide vectors).
    """

    vectors: int
    tail: int
    half: bool = False

    def width(self, lanes: int) -> int:
        """Floats of one packed row."""
        return (self.vectors - 1) * lanes + (lanes // 2 if self.half else lanes)

    def valid(self, lanes: int) -> int:
        """Columns that exist."""
        return (self.vectors - 1) * lanes + self.tail

    @property
    def name(self) -> str:
        return f"{self.vectors}{'h' if self.half else 'v'}{self.tail}"


@dataclass(frozen=True)
class Walk:
    """How a tile reads its operands, in elements.

    Row r of A starts at `a + r * row_step`; then come loops over `taps` (pairs of count and step in A, outermost
    first), and in the innermost `run` elements at distance `run_step`. B is read in the same order, one row for
    each element of A; its rows are `b_step` apart, or packed (as wide as the tile) where that is 0.
    """

    row_step: int
    taps: tuple[tuple[int, int], ...]
    run: int
    run_step: int = 1
    b_step: int = 0

    @property
    def depth(self) -> int:
        """Multiplications for each output."""
        return self.run * math.prod(count for count, _ in self.taps)


def accumulator(row: int, vector: int) -> str:
    """The name of an accumulator."""
    return f"t{row}_{vector}"


def accumulate(rows: int, columns: Columns, walk: Walk, lanes: int) -> str:
    """C statements that declare the accumulators and compute them from `const float *a` and `const float *b`.

    Packed rows of B are padded to whole vectors; B in place is read only where it is valid. Long sums are made in
    blocks, whose sums are added up in memory.
    """
    narrow = columns.vectors - 1 if columns.half else -1
    lines: list[str] = []
    for v in range(columns.vectors):
        kind = "KERNEL_half" if v == narrow else "vf32"
        names = ", ".join(f"{accumulator(r, v)} = {{0}}" for r in range(rows))
        lines.append(f"{kind} {names};")
    in_blocks = walk.depth > 2 * BLOCK
    flush = _flush(rows, columns, lanes) if in_blocks else ""
    if in_blocks:
        # The compiler must not know what `sums` points to, or it would keep the sums in registers.
        size = rows * columns.vectors * lanes
        lines.append(f'float memory[{size}] = {{0}}, *sums = memory; __asm__ volatile("" : "+r"(sums) : : "memory");')
    lines.append("{ const float *x = a;")
    loops = [tap for tap in walk.taps if tap[0] > 1]
    for i, (count, step) in enumerate(loops):
        outer = f"x{i - 1}" if i else "x"
        lines.append(f"for (int64_t s{i} = 0; s{i} < {count}; ++s{i}) {{ const float *x{i} = {outer} + s{i} * {step};")
    lines.append(f"const float *y = {f'x{len(loops) - 1}' if loops else 'x'};")
    b_step = walk.b_step or columns.width(lanes)
    body = [_step(rows, columns, walk, b_step, lanes, u) for u in range(UNROLL)]
    trips, rest = divmod(walk.run, UNROLL)
    split = in_blocks and walk.run > BLOCK
    if trips:
        lines += [f"for (int64_t k = 0; k < {trips}; ++k) {{", *_prefetch(rows, walk), *body]
        lines.append(f"y += {UNROLL * walk.run_step}; b += {UNROLL * b_step};")
        lines.append(f"if (k % {BLOCK // UNROLL} == {BLOCK // UNROLL - 1}) {{ {flush} }} }}" if split else "}")
    lines += body[:rest]
    if rest:
        lines.append(f"b += {rest * b_step};")
    sizes = [walk.run * math.prod(count for count, _ in loops[i + 1 :]) for i in range(len(loops))]
    at = next((i for i, size in enumerate(sizes) if size <= BLOCK), -1)
    for i in reversed(range(len(loops))):
        if in_blocks and i == at:
            every = BLOCK // sizes[i]
            lines.append(f"if (s{i} % {every} == {every - 1}) {{ {flush} }}")
        lines.append("}")
    lines.append("}")
    if in_blocks:
        lines.append(_flush(rows, columns, lanes, last=True))
    return "\n".join(lines)


def _flush(rows: int, columns: Columns, lanes: int, *, last: bool = False) -> str:
    """Adds the accumulators to the sums in memory and clears them; the last time, the other way round."""
    lines: list[str] = []
    for r in range(rows):
        for v in range(columns.vectors):
            t, at = accumulator(r, v), f"(sums + {(r * columns.vectors + v) * lanes})"
            if columns.half and v == columns.vectors - 1:
                sum_ = f"*(KERNEL_half_u *){at}"
                lines.append(f"{t} += {sum_};" if last else f"{sum_} += {t}; {t} = (KERNEL_half){{0}};")
            elif last:
                lines.append(f"{t} += korch_load_f32({at});")
            else:
                lines.append(f"korch_store_f32({at}, korch_load_f32({at}) + {t}); {t} = (vf32){{0}};")
    return " ".join(lines)


def _prefetch(rows: int, walk: Walk) -> list[str]:
    """Asks for the next tile's rows of A, a part with each step, where they follow this one's in memory.

    A tile reads many rows at once, which hardware prefetching does not see as one stream: where A comes from the
    third-level cache this doubles the speed. Past the end of A it asks for what nobody reads, which is harmless.
    """
    if walk.taps or walk.run_step != 1 or walk.row_step != walk.run:
        return []
    start, step = rows * walk.run, rows * UNROLL
    return [f"__builtin_prefetch(a + {start} + k * {step} + {16 * i});" for i in range(-(-step // 16))]


def _step(rows: int, columns: Columns, walk: Walk, b_step: int, lanes: int, u: int) -> str:
    """The multiplications of one k."""
    last = columns.vectors - 1
    parts: list[str] = []
    for v in range(columns.vectors):
        at = f"b + {u * b_step + v * lanes}"
        if v == last and columns.half:
            parts.append(f"KERNEL_half w{v} = *(const KERNEL_half_u *)({at});")
        elif v == last and walk.b_step and columns.tail < lanes:
            parts.append(f"vf32 w{v} = korch_load_n_f32({at}, {columns.tail});")
        else:
            parts.append(f"vf32 w{v} = korch_load_f32({at});")
    for r in range(rows):
        at = f"y[{r * walk.row_step + u * walk.run_step}]"
        if not (columns.half and columns.vectors == 1):
            parts.append(f"vf32 m{r} = korch_splat_f32({at});")
        for v in range(columns.vectors):
            t = accumulator(r, v)
            if v == last and columns.half:
                m = f"KERNEL_half_splat({at})" if columns.vectors == 1 else f"KERNEL_low(m{r})"
                parts.append(f"{t} = KERNEL_half_fma({m}, w{v}, {t});")
            else:
                parts.append(f"{t} = korch_fma_f32(m{r}, w{v}, {t});")
    return "{ " + " ".join(parts) + " }"


def stored_tile(rows: int, columns: Columns, walk: Walk, lanes: int, stride: int = 0) -> str:
    """A C function that writes a tile's sums to `to` [row][stride]; the stride is the panel's width where 0."""
    stride = stride or columns.width(lanes)
    stores: list[str] = []
    for r in range(rows):
        for v in range(columns.vectors):
            at, t = f"to + {r * stride + v * lanes}", accumulator(r, v)
            half = columns.half and v == columns.vectors - 1
            stores.append(f"*(KERNEL_half_u *)({at}) = {t};" if half else f"korch_store_f32({at}, {t});")
    return "\n".join(
        [
            f"static __attribute__((noinline)) void KERNEL_tile_{rows}_{columns.name}"
            "(const float *a, const float *b, float *to) {",
            accumulate(rows, columns, walk, lanes),
            *stores,
            "}",
        ]
    )


def half_vectors(lanes: int, has_fma: bool) -> str:
    """The vectors of half width that a file with `Columns.half` needs."""
    fma = "__builtin_elementwise_fma(a, b, c)" if has_fma else "a * b + c"
    low = ", ".join(map(str, range(lanes // 2)))
    whole = ", ".join(map(str, range(lanes)))
    return "\n".join(
        [
            f"typedef float KERNEL_half __attribute__((ext_vector_type({lanes // 2})));",
            f"typedef float KERNEL_half_u __attribute__((ext_vector_type({lanes // 2}), aligned(4)));",
            "static inline KERNEL_half KERNEL_half_splat(float x) { return x - (KERNEL_half){0}; }",
            "static inline vf32 KERNEL_widen(KERNEL_half x) "
            f"{{ return __builtin_shufflevector(x, (KERNEL_half){{0}}, {whole}); }}",
            f"static inline KERNEL_half KERNEL_low(vf32 x) {{ return __builtin_shufflevector(x, x, {low}); }}",
            "static inline KERNEL_half KERNEL_half_fma(KERNEL_half a, KERNEL_half b, KERNEL_half c) "
            f"{{ return {fma}; }}",
        ]
    )
