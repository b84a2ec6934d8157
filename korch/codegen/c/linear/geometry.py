"""The geometry of convolutions, and their input with its padding in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from korch.codegen.c.index import Index, to_c, unflatten, variable
from korch.codegen.c.linear.fuse import Plane, prologue
from korch.codegen.c.linear.operand import Place, no_table, place_of
from korch.codegen.c.linear.problem import Arguments, Problem
from korch.codegen.c.linear.tile import Walk
from korch.codegen.c.nest_reads import Indices
from korch.codegen.kernel import Argument


@dataclass(frozen=True)
class Conv:
    """The geometry of a convolution of images [N, C, H, W] (a signal [N, C, W] has H = 1).

    A kernel of one tap knows no rows: with a `grid`, the one row holds all output positions [rows, columns].
    Output (i, j) goes to `(i, j) * spread + offset`: a phase of a transposed convolution.
    """

    images: int
    groups: int
    channels: int  # of a group
    height: int
    width: int
    outputs: int  # of a group
    rows: int
    length: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]  # before
    grid: tuple[int, int] | None = None
    spread: tuple[int, int] = (1, 1)
    offset: tuple[int, int] = (0, 0)

    @staticmethod
    def of(problem: Problem) -> Conv | str:
        definition = problem.linear
        x, w = (problem.shape(v) for v in definition.inputs)
        y = problem.shape(problem.result)
        n = len(x) - 2
        if n > 2:
            return f"a convolution over {n} dimensions"

        def pair(values: tuple[int, ...], first: int) -> tuple[int, int]:
            return (values[0], values[1]) if n == 2 else (first, values[0])

        groups = definition.int("groups")
        height, width = pair(x[2:], 1)
        rows, length = pair(y[2:], 1)
        whole = Conv(
            x[0],
            groups,
            w[1],
            height,
            width,
            w[0] // groups,
            rows,
            length,
            pair(w[2:], 1),
            pair(definition.ints("strides"), 1),
            pair(definition.ints("dilations"), 1),
            pair(definition.ints("pads")[:n], 0),
        )
        pointwise = whole.kernel == (1, 1) and whole.strides == (1, 1) and not any(definition.ints("pads"))
        return whole.as_one_row() if pointwise else whole

    def as_one_row(self) -> Conv:
        positions = self.rows * self.length
        return replace(self, height=1, width=positions, rows=1, length=positions, grid=(self.rows, self.length))

    @property
    def depth(self) -> int:
        return self.channels * self.kernel[0] * self.kernel[1]

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns that one output reads over."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))  # type: ignore[return-value]

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns, from the first pad on, that the outputs read."""
        counts = ((self.rows, self.length), self.strides, self.reach)
        return tuple((n - 1) * s + r for n, s, r in zip(*counts, strict=True))  # type: ignore[return-value]

    @property
    def inside(self) -> bool:
        """Whether no tap of any output lies outside of the input."""
        ends = (a - p for a, p in zip(self.padded, self.pads, strict=True))
        return max(self.pads) <= 0 and all(e <= n for e, n in zip(ends, (self.height, self.width), strict=True))

    def read_index(self, problem: Problem) -> Indices:
        """The input element that an output reads: image o0, group o1, i, j, taps u and v, channel q."""
        u, v = variable("u", 0, self.kernel[0] - 1), variable("v", 0, self.kernel[1] - 1)
        row = variable("i", 0, self.rows - 1) * self.strides[0] + u * self.dilations[0] - self.pads[0]
        column = variable("j", 0, self.length - 1) * self.strides[1] + v * self.dilations[1] - self.pads[1]
        return self._index(problem, variable("q", 0, self.channels - 1), self.channels, row, column)

    def input_index(self, problem: Problem) -> Indices:
        """The input element of image o0, group o1, row h, column w, channel q."""
        h, w = variable("h", 0, self.height - 1), variable("w", 0, self.width - 1)
        return self._index(problem, variable("q", 0, self.channels - 1), self.channels, h, w)

    def result_index(self, problem: Problem, j: Index, c: Index) -> Indices:
        """The output element of image o0, group o1, row i, column j, channel c."""
        row = variable("i", 0, self.rows - 1) * self.spread[0] + self.offset[0]
        return self._index(problem, c, self.outputs, row, j * self.spread[1] + self.offset[1])

    def joined(self, channels: int) -> Conv:
        """A depthwise convolution whose groups are blocks of channels."""
        return replace(self, groups=self.groups // channels, channels=channels, outputs=channels)

    def _index(self, problem: Problem, channel: Index, channels: int, row: Index, column: Index) -> Indices:
        image, group = variable("o0", 0, self.images - 1), variable("o1", 0, self.groups - 1)
        if self.grid:
            row, column = unflatten(column, self.grid)
        rank = len(problem.shape(problem.result))
        return (image, group * channels + channel, *((row, column) if rank == 4 else (column,)))


def merged(row_step: int, taps: list[tuple[int, int]], run: int, run_step: int) -> Walk:
    """Taps that continue each other's run become one."""
    taps = [tap for tap in taps if tap[0] > 1]
    if run == 1 and taps:
        run, run_step = taps.pop()
    while taps and taps[-1][1] == run * run_step:
        run *= taps.pop()[0]
    return Walk(row_step, tuple(taps), run, run_step)


def walk_in_place(g: Conv, place: Place) -> Walk | None:
    """How a tile reads the input itself; None when it is not a sum of strides."""
    steps = [place.step(name) for name in ("j", "u", "v", "q")]
    if any(s is None for s in steps):
        return None
    j, u, v, q = (s or 0 for s in steps)
    return merged(j, [(g.kernel[0], u), (g.kernel[1], v)], g.channels, q)


def walk_in_scratch(g: Conv) -> Walk:
    """How a tile reads padded rows [row][column][channel]."""
    width = g.channels
    taps = [(g.kernel[0], g.dilations[0] * g.padded[1] * width), (g.kernel[1], g.dilations[1] * width)]
    return merged(g.strides[1] * width, taps, g.channels, 1)


def padded_rows(problem: Problem, arguments: Arguments, g: Conv, value: str, first: str, last: str, target: str) -> str:
    """C statements that compute the padded rows `first` to `last` of a group at `target` [row][column][channel]."""
    wide = g.padded[1]
    lead = min(max(g.pads[1], 0), wide)
    start = max(-g.pads[1], 0)
    body = max(0, min(wide - lead, g.width - start))
    tail = wide - lead - body
    line = wide * g.channels
    lines = [
        f"for (int64_t r = {first}; r < {last}; ++r) {{",
        f"float *to = {target} + (r - ({first})) * {line};",
        f"const int64_t h = r - {g.pads[0]};",
    ]
    if g.pads[0] > 0 or g.padded[0] - g.pads[0] > g.height:
        lines.append(f"if (h < 0 || h >= {g.height}) {{ __builtin_memset(to, 0, {line * 4}); continue; }}")
    if lead:
        lines.append(f"__builtin_memset(to, 0, {lead * g.channels * 4});")
    index = g.input_index(problem)
    place = place_of(problem.fragment, value, index)
    if place and place.step("q") == 1 and place.step("w") == g.channels:
        source = arguments.pointer(Argument("input", place.value))
        at = to_c(place.at(w=start, q=0), no_table)
        lines.append(
            f"__builtin_memcpy(to + {lead * g.channels}, (const float *){source} + {at}, {body * g.channels * 4});"
        )
    elif body:
        pointer = f"to + {(lead - start) * g.channels}"
        plane = Plane(index, str(start), str(start + body), g.channels, pointer, g.channels)
        lines.append(prologue(problem, arguments, value, plane))
    if tail:
        lines.append(f"__builtin_memset(to + {(lead + body) * g.channels}, 0, {tail * g.channels * 4});")
    return "\n".join([*lines, "}"])
