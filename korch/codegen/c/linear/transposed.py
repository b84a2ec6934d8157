"""Transposed convolution: one direct convolution for each phase of its stride.

Output p gets x[i] * w[k] for every p = i*s + k*d - pad. The outputs p = t*s + r of one phase r read the taps with
k*d = r + pad modulo s only, and of these x[t + (r + pad - k*d) / s]: a convolution of stride 1.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from korch.codegen.c.linear.conv import convolution_source, pack_conv
from korch.codegen.c.linear.geometry import Conv, walk_in_scratch
from korch.codegen.c.linear.problem import Arguments, Constant, Problem, constant_value
from korch.codegen.c.linear.split import Panels, tile_choices, use_half
from korch.codegen.kernel import Kernel, Packed

CHOICES = 2
Taps = tuple[tuple[int, ...], tuple[int, ...]]


def transposed_kernels(problem: Problem) -> tuple[Kernel, ...] | str:
    """Kernels for a transposed convolution with constant weights, or why there are none."""
    weights = constant_value(problem.fragment, problem.linear.inputs[1])
    if weights is None:
        return "the weights of the transposed convolution are not constant"
    found = _phases(problem)
    if isinstance(found, str):
        return found
    first = max((g for g, _ in found), key=lambda g: g.depth)
    row_step = walk_in_scratch(first).row_step
    tiles = tile_choices(first.outputs, first.length, first.depth, row_step, problem.target)[:CHOICES]
    return tuple(_kernel(problem, found, weights, *tile) for tile in tiles)


def _phases(problem: Problem) -> list[tuple[Conv, Taps]] | str:
    """The convolution of each phase that has outputs, and its taps of the kernel (by rows and by columns)."""
    d = problem.linear
    x, w, y = (problem.shape(v) for v in (*d.inputs, problem.result))
    n = len(x) - 2
    if n > 2:
        return f"a transposed convolution over {n} dimensions"

    def pair(values: tuple[int, ...], first: int) -> tuple[int, int]:
        return (values[0], values[1]) if n == 2 else (first, values[0])

    kernel, size, result = pair(w[2:], 1), pair(x[2:], 1), pair(y[2:], 1)
    strides, dilations, pads = (
        pair(d.ints("strides"), 1),
        pair(d.ints("dilations"), 1),
        pair(d.ints("pads")[:n], 0),
    )
    groups = d.int("groups")
    axes = [
        [_axis(kernel[a], strides[a], dilations[a], pads[a], result[a], r) for r in range(min(strides[a], result[a]))]
        for a in range(2)
    ]
    found: list[tuple[Conv, Taps]] = []
    for r, row in enumerate(axes[0]):
        for c, column in enumerate(axes[1]):
            if row is None or column is None:
                return "a stride that is larger than the kernel"
            (rows, tall, before, step), (length, wide, left, stride) = row, column
            g = Conv(
                x[0],
                groups,
                x[1] // groups,
                *size,
                w[1],
                rows,
                length,
                (len(tall), len(wide)),
                (1, 1),
                (step, stride),
                (before, left),
                spread=strides,
                offset=(r, c),
            )
            found.append((g, (tall, wide)))
    return found


def _axis(
    kernel: int, stride: int, dilation: int, pad: int, result: int, phase: int
) -> tuple[int, tuple[int, ...], int, int] | None:
    """Along one axis: how many outputs, which taps in the order of what they read, the pad and the dilation."""
    taps = [k for k in range(kernel) if (phase + pad - k * dilation) % stride == 0]
    if not taps:
        return None
    taps.reverse()
    reads = [(phase + pad - k * dilation) // stride for k in taps]
    step = reads[1] - reads[0] if len(reads) > 1 else 1
    return -(-(result - phase) // stride), tuple(taps), -reads[0], step


def _kernel(problem: Problem, found: list[tuple[Conv, Taps]], weights: Constant, rows: int, vectors: int) -> Kernel:
    target = problem.target
    arguments = Arguments()
    texts: list[str] = []
    shared = private = 0
    for number, (g, taps) in enumerate(found):
        panels = Panels(g.outputs, target.lanes(), vectors, use_half(g.outputs, target))
        key = f"conv {panels.key} groups={g.groups} taps={taps}, transposed: {weights.text}"
        packed = arguments.pack(Packed(weights.weights, key, partial(_pack, panels, g.groups, taps, weights)))
        text, more, own = convolution_source(problem, arguments, g, packed, None, panels, rows)
        texts.append(text.replace("KERNEL", f"KERNEL_phase{number}"))
        shared, private = max(shared, more), max(private, own)
    calls = "\n".join(f"KERNEL_phase{number}(runtime, p);" for number in range(len(found)))
    texts.append(f"void KERNEL(const korch_runtime *runtime, char *const *p) {{\n{calls}\n}}\n")
    return Kernel(
        "conv_transpose",
        "\n".join(replace_entry(t) for t in texts[:-1]) + texts[-1],
        tuple(arguments.arguments),
        (("mr", rows), ("nv", vectors)),
        tuple(arguments.packed),
        shared,
        private,
    )


def replace_entry(text: str) -> str:
    """A phase's entry is a function of the file's own."""
    return text.replace("\nvoid KERNEL_phase", "\nstatic void KERNEL_phase")


def _pack(panels: Panels, groups: int, taps: Taps, weights: Constant, *arrays: np.ndarray) -> np.ndarray:
    """[C, O/groups, KH, KW] (or without KH) as the panels of a convolution with these taps."""
    w = weights.evaluate(*arrays)
    w = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1, w.shape[-1])
    w = w[:, :, :, taps[0]][..., taps[1]].transpose(0, 2, 1, 3, 4)
    return pack_conv(panels, groups, w.reshape(-1, *w.shape[2:]))
