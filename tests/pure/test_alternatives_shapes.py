"""Every rule on all small shapes of its pattern, against NumPy in float64; over the integers to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from korch.alternatives.rules import RULES
from tests.pure.rule_graphs import Sketch, check, conv

SIZES = (1, 2, 3)


def count(rule: str, graphs: Iterator, exact: bool = True) -> None:
    """All graphs are checked; the rule fires on some of them, or nothing was tested."""
    fired = [check(g, rule, fires=None, exact=exact, seed=k) for k, g in enumerate(graphs)]
    assert sum(fired) >= 2, f"fired {sum(fired)} times on {len(fired)} graphs"
    COVERED.add(rule)


COVERED: set[str] = set()


@dataclass(frozen=True)
class Linear:
    """A linear primitive with a weight: `apply` it to an input of that `shape`, whose channels are on `axis`."""

    shape: tuple[int, ...]
    axis: int
    apply: Callable[[Sketch, str], str]


def matmul(channels: int, outputs: int) -> Linear:
    return Linear((2, 3, channels), 2, lambda s, x: s("matmul", x, s.weight(channels, outputs)))


def convolution(channels: int, outputs: int, k: int, stride: int, dilation: int, pad: int, groups: int) -> Linear:
    def apply(s: Sketch, x: str) -> str:
        return conv(s, x, s.weight(outputs, channels // groups, k), stride, dilation, (pad, pad), groups)

    return Linear((1, channels, 6), 1, apply)


def transposed(channels: int, outputs: int, k: int, stride: int, dilation: int, pad: int, groups: int) -> Linear:
    def apply(s: Sketch, x: str) -> str:
        return s(
            "conv_transpose",
            x,
            s.weight(channels, outputs // groups, k),
            strides=(stride,),
            dilations=(dilation,),
            pads=(pad,),
            groups=groups,
            shape=(1, outputs, 5 * stride + (k - 1) * dilation + 1 - 2 * pad),
        )

    return Linear((1, channels, 6), 1, apply)


def linears(channels: int, outputs: int) -> Iterator[Linear]:
    """All small kernels, strides, dilations, pads and groups."""
    yield matmul(channels, outputs)
    for k, stride, dilation, pad, groups in itertools.product(SIZES, (1, 2), (1, 2), (0, 1), (1, 2)):
        if channels % groups == 0 and outputs % groups == 0:
            yield convolution(channels, outputs, k, stride, dilation, pad, groups)
            yield transposed(channels, outputs, k, stride, dilation, pad, groups)


def test_affine_into_weights():
    def graphs():
        for channels, outputs in ((1, 2), (2, 2), (4, 2)):
            kinds = ("mul", "add mul", "mul add", "sub div add", "rsub mul")
            for linear, steps in itertools.product(linears(channels, outputs), kinds):
                s = Sketch()
                y = linear.apply(s, s.input(*linear.shape))
                n = s.types[y].shape[linear.axis]
                for step in steps.split():
                    powers = 2.0 ** s.rng.integers(0, 3, n)
                    c = s.along(linear.axis, y, powers if step == "div" else None)
                    y = s("sub", c, y) if step == "rsub" else s(step, y, c)
                yield s.graph()

    count("affine_into_weights", graphs())


def test_affine_before_weights():
    def graphs():
        for channels, outputs in ((1, 2), (2, 1), (2, 4), (4, 2)):
            for linear, steps in itertools.product(linears(channels, outputs), ("mul", "add", "mul add", "rsub")):
                s = Sketch()
                x = s.input(*linear.shape)
                for step in steps.split():
                    c = s.along(linear.axis, x)
                    x = s("sub", c, x) if step == "rsub" else s(step, x, c)
                linear.apply(s, x)
                yield s.graph()

    count("affine_before_weights", graphs())


def test_scalar_into_weights():
    def graphs():
        for m, k, n, bias, op in itertools.product(SIZES, SIZES, SIZES, (False, True), ("mul", "div")):
            s = Sketch(seed=m)
            y = s("matmul", s.input(2, m, k), s.weight(k, 2 * n))
            if bias:
                y = s("add", y, s.along(2, y))
            y = s("transpose", s("reshape", y, shape=(2, m, 2, n)), perm=(0, 2, 1, 3))
            s(op, y, s.filled(4.0, y))
            yield s.graph()

    count("scalar_into_weights", graphs())


def test_scale_past_matmul():
    def graphs():
        for m, k, n, op, side in itertools.product(SIZES, SIZES, SIZES, ("mul", "div"), (0, 1)):
            s = Sketch()
            operands = [s.input(2, m, k), s.input(2, k, n)]
            x = operands[side]
            if op == "div":
                f = s.constant(2.0 ** s.rng.integers(0, 3, (2, m if side == 0 else n)))
            else:
                f = s.input(2, m if side == 0 else n)
            spread = s("broadcast", f, shape=s.types[x].shape, axes=(0, 1 if side == 0 else 2))
            operands[side] = s(op, x, spread)
            s("matmul", *operands)
            yield s.graph()

    count("scale_past_matmul", graphs())


def test_scale_before_matmul():
    def graphs():
        for m, k, n, op in itertools.product((1, 2, 5), (1, 2), (1, 2, 5), ("mul", "div")):
            s = Sketch()
            y = s("matmul", s.input(2, m, k), s.input(2, k, n))
            s(op, y, s.filled(0.5, y))
            yield s.graph()

    count("scale_before_matmul", graphs())


def test_sharing_input_merged():
    def graphs():
        for channels, outputs, more in itertools.product((1, 2), (1, 2), (1, 3)):
            for one, two in zip(linears(channels, outputs), linears(channels, more), strict=False):
                s = Sketch()
                x = s.input(*one.shape)
                if one.shape == two.shape:
                    yield s.graph(one.apply(s, x), two.apply(s, x))

    count("sharing_input_merged", graphs())


def test_sum_of_linear():
    def graphs():
        for a, b, outputs, same in itertools.product((1, 2), (1, 2), (1, 2), (False, True)):
            if same and a != b:
                continue
            for one, two in zip(linears(a, outputs), linears(b, outputs), strict=False):
                s = Sketch()
                x = s.input(*one.shape)
                y = one.apply(s, x)
                z = two.apply(s, x if same else s.input(*two.shape))
                if s.types[y] == s.types[z]:
                    s("add", s("add", y, s.along(one.axis, y)), z)
                    yield s.graph()

    count("sum_of_linear", graphs())


def test_pointwise_merged():
    def graphs():
        for a, b, c in ((1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 4, 2)):
            for one, bias in itertools.product(linears(a, b), (False, True)):
                s = Sketch()
                y = one.apply(s, s.input(*one.shape))
                if bias:
                    y = s("add", y, s.along(one.axis, y))
                if one.axis == 2:
                    y = s("reshape", s("transpose", y, perm=(0, 2, 1)), shape=(2, b, 3, 1))
                    conv(s, y, s.weight(c, b, 1, 1))
                else:
                    conv(s, y, s.weight(c, b, 1))
                yield s.graph()

    count("pointwise_merged", graphs())


def test_sum_as_product():
    def graphs():
        for m, k, n, fixed in itertools.product(SIZES, SIZES, SIZES, (False, True)):
            s = Sketch()
            z = s.input(2, m, k)
            v = s.weight(k, n) if fixed else s.input(2, k, n)
            yield s.graph(s("reduce_sum", z, axes=(2,)), s("matmul", z, v))

    count("sum_as_product", graphs())


def stretched(s: Sketch, x: str, axis: int, how: str) -> str:
    n = s.types[x].shape[axis]
    if how == "take":
        return s("take", x, axis=axis, indices=tuple(i // 2 for i in range(2 * n)))
    pairs = tuple((i // 2, min(n - 1, (i + 1) // 2)) for i in range(2 * n))
    return s("resample", x, axis=axis, indices=pairs, weights=((2.0, 1.0),) * (2 * n))


def test_pointwise_before_enlarging():
    def graphs():
        for size, channels, outputs, how, parts in itertools.product(
            SIZES, (1, 2), (1, 2), ("take", "resample"), (1, 2, 3)
        ):
            s = Sketch()
            made = []
            for k in range(parts):
                if k == 1:
                    made.append(s.input(1, 1, 2 * size, 2 * size))
                    continue
                x = stretched(s, s.input(1, channels, size, size), 2, how)
                made.append(stretched(s, x, 3, how))
            whole = made[0] if parts == 1 else s("concat", *made, axis=1)
            total = s.types[whole].shape[1]
            conv(s, whole, s.weight(outputs, total, 1, 1))
            yield s.graph()
            t = Sketch()
            x = stretched(t, t.input(1, size, channels), 1, how)
            t("matmul", x, t.weight(channels, outputs))
            yield t.graph()

    count("pointwise_before_enlarging", graphs())


def test_sum_before_resampling():
    def graphs():
        for n, how in itertools.product(SIZES, ("take", "resample")):
            s = Sketch()
            s("add", stretched(s, s.input(1, 2, n), 2, how), stretched(s, s.input(1, 2, n), 2, how))
            yield s.graph()

    count("sum_before_resampling", graphs())


BORDERS = ("zeros", "reflect", "edge", "none", "uneven")


@pytest.mark.parametrize("border", BORDERS)
def test_repeated_then_convolved(border):
    def graphs():
        for n, factor, kernel, stride, dilation in itertools.product(
            (1, 2, 3, 4), (2, 3), (1, 2, 3, 4, 5), (1, 2), (1, 2)
        ):
            s = Sketch()
            x = s.input(1, 2, n)
            x = s("take", x, axis=2, indices=tuple(i // factor for i in range(factor * n)))
            size, pad = factor * n, kernel // 2
            if border == "reflect" and pad < size:
                around = [abs(i) if i < size else 2 * (size - 1) - i for i in range(-pad, size + pad)]
                x = s("take", x, axis=2, indices=tuple(around))
            elif border == "edge":
                around = [min(max(i, 0), size - 1) for i in range(-pad, size + pad)]
                x = s("take", x, axis=2, indices=tuple(around))
            elif border == "uneven":
                x = s("pad", x, before=(0, 0, 1), shape=(1, 2, size + 3), value=0.0)
            pads = (pad, pad) if border == "zeros" else (0, 0)
            if s.types[x].shape[2] + sum(pads) < (kernel - 1) * dilation + 1:
                continue
            conv(s, x, s.weight(2, 2, kernel), stride, dilation, pads)
            yield s.graph()

    count("repeated_then_convolved", graphs())


def test_repeated_then_convolved_in_two_dimensions():
    def graphs():
        for h, w, kernel, stride, pads in itertools.product(
            (1, 2, 3), (1, 3), (1, 2, 3), (1, 2), ((0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 0, 1))
        ):
            s = Sketch()
            x = s.input(1, 2, h, w)
            x = s("take", x, axis=2, indices=tuple(i // 2 for i in range(2 * h)))
            x = s("take", x, axis=3, indices=tuple(i // 2 for i in range(2 * w)))
            if 2 * h + pads[0] + pads[2] < kernel or 2 * w + pads[1] + pads[3] < kernel:
                continue
            conv(s, x, s.weight(1, 2, kernel, kernel), stride, 1, pads)
            yield s.graph()

    count("repeated_then_convolved", graphs())


def test_transposed_as_convolution():
    def graphs():
        for n, kernel, stride, dilation, pad, extra in itertools.product(
            SIZES, SIZES, (1, 2, 3), (1, 2), (0, 1), (0, 1)
        ):
            out = (n - 1) * stride + (kernel - 1) * dilation + 1 - 2 * pad + extra
            if out < 1:
                continue
            s = Sketch()
            s(
                "conv_transpose",
                s.input(1, 2, n),
                s.weight(2, 3, kernel),
                strides=(stride,),
                dilations=(dilation,),
                pads=(pad,),
                groups=1,
                shape=(1, 3, out),
            )
            yield s.graph()
        for kernel, stride, pad in itertools.product(SIZES, (1, 2), (0, 1)):
            out = 2 * stride + kernel - 2 * pad
            s = Sketch()
            s(
                "conv_transpose",
                s.input(2, 2, 3, 3),
                s.weight(2, 1, kernel, kernel),
                strides=(stride, 1),
                dilations=(1, 1),
                pads=(pad, pad),
                groups=1,
                shape=(2, 1, out, 2 + kernel - 2 * pad),
            )
            if out > 0 and 2 + kernel - 2 * pad > 0:
                yield s.graph()

    count("transposed_as_convolution", graphs())


def test_dilated_in_phases():
    def graphs():
        for n, m, kernel, dilation, pad, groups, stride in itertools.product(
            (3, 4, 7), (3, 5), SIZES, (1, 2, 3), (0, 1, 2), (1, 2), (1, 2)
        ):
            if min(n, m) + 2 * pad < (kernel - 1) * dilation + 1:
                continue
            s = Sketch()
            conv(s, s.input(2, 2, n, m), s.weight(2, 2 // groups, kernel, kernel), stride, dilation, (pad,) * 4, groups)
            yield s.graph()
        s = Sketch()
        x = s.input(1, 1, 6, 6)
        s("conv", x, s.weight(1, 1, 2, 2), strides=(2, 1), dilations=(1, 2), pads=(0, 1, 1, 1), groups=1)
        yield s.graph()

    count("dilated_in_phases", graphs())


def test_pad_into_window():
    def graphs():
        for n, before, after, pad, kernel, stride in itertools.product(SIZES, (0, 1, 2), (0, 1), (0, 1), SIZES, (1, 2)):
            if not before and not after:
                continue
            whole = n + before + after
            out = (whole + 2 * pad - kernel) // stride + 1
            if whole + 2 * pad < kernel:
                continue
            for primitive in ("conv", "window_sum", "window_max"):
                s = Sketch()
                value = -np.inf if primitive == "window_max" else 0.0
                x = s("pad", s.input(1, 2, n), before=(0, 0, before), shape=(1, 2, whole), value=value)
                if primitive == "conv":
                    conv(s, x, s.weight(2, 2, kernel), stride, 1, (pad, pad))
                else:
                    s(
                        primitive,
                        x,
                        window=(1, 1, kernel),
                        strides=(1, 1, stride),
                        dilations=(1, 1, 1),
                        pads=(0, 0, pad),
                        shape=(1, 2, out),
                    )
                yield s.graph()

    count("pad_into_window", graphs())


def moves(s: Sketch, x: str, how: str) -> str:
    shape = s.types[x].shape
    n, m = shape
    if how == "pad":
        return s("pad", x, before=(1, 0), shape=(n + 2, m + 1), value=2.5)
    if how == "crop":
        return s("pad", x, before=(-1, 1), shape=(max(n - 1, 1), m + 1), value=2.5)
    if how == "slice":
        return s("slice", x, starts=(0, m - 1), steps=(1, -1), shape=(max(1, n - 1), m))
    if how == "inner":
        return s("slice", x, starts=(min(1, n - 1), 0), steps=(1, 1), shape=(max(1, n - 2), max(1, m - 1)))
    if how == "take":
        return s("take", x, axis=0, indices=tuple(range(n - 1, -1, -1)))
    return s("take", x, axis=1, indices=(0, *range(m)))


def test_picks_merged():
    def graphs():
        kinds = ("pad", "crop", "slice", "inner", "take", "repeat")
        for n, m in itertools.product(SIZES, (1, 3)):
            for chain in [*itertools.product(kinds, repeat=2), *itertools.product(kinds[:5], repeat=3)]:
                s = Sketch()
                x = s.input(n, m)
                for how in chain:
                    x = moves(s, x, how)
                yield s.graph()

    count("picks_merged", graphs())


def test_slice_of_concat():
    def graphs():
        for a, b, first, size, step in itertools.product(SIZES, SIZES, range(6), SIZES, (-1, 1, 2)):
            last = first + (size - 1) * step
            if not (0 <= last < a + b and first < a + b):
                continue
            s = Sketch()
            x = s("concat", s.input(2, a), s.input(2, b), axis=1)
            s("slice", x, starts=(0, first), steps=(1, step), shape=(2, size))
            yield s.graph()

    count("slice_of_concat", graphs())


def test_slice_into_weights():
    def graphs():
        for outputs, first, size, step in ((2, 0, 1, 1), (2, 1, 1, 1), (2, 1, 2, -1), (3, 1, 2, 1), (3, 2, 1, 1)):
            last = first + (size - 1) * step
            if not (0 <= last < outputs and first < outputs):
                continue
            for linear in linears(2, outputs):
                s = Sketch()
                y = linear.apply(s, s.input(*linear.shape))
                starts = tuple(first if k == linear.axis else 0 for k in range(3))
                steps = tuple(step if k == linear.axis else 1 for k in range(3))
                shape = tuple(size if k == linear.axis else n for k, n in enumerate(s.types[y].shape))
                s("slice", y, starts=starts, steps=steps, shape=shape)
                yield s.graph()

    count("slice_into_weights", graphs())


def orders(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for perm in itertools.permutations(range(len(shape))):
        yield "perm", perm
    total = int(np.prod(shape))
    for rank in (1, 2, 3):
        for other in itertools.product((1, 2, 3, 4, 6), repeat=rank):
            if int(np.prod(other)) == total:
                yield "shape", other


def order(s: Sketch, x: str, step: tuple[str, tuple[int, ...]]) -> str:
    return s("transpose", x, perm=step[1]) if step[0] == "perm" else s("reshape", x, shape=step[1])


def test_orders_merged():
    def graphs():
        for shape in ((1, 2, 2), (2, 3), (3, 2, 2)):
            for first in orders(shape):
                s = Sketch()
                x = order(s, s.input(*shape), first)
                for second in orders(s.types[x].shape):
                    t = Sketch()
                    order(t, order(t, t.input(*shape), first), second)
                    yield t.graph()

    count("orders_merged", graphs())


def test_order_around_elementwise():
    def graphs():
        for shape in ((2, 3), (2, 1, 3)):
            for first in orders(shape):
                s = Sketch()
                x = order(s, s.input(*shape), first)
                for second, operand in itertools.product(
                    list(orders(s.types[x].shape)), ("unary", "scalar", "vector", "both", "whole")
                ):
                    t = Sketch()
                    x = order(t, t.input(*shape), first)
                    if operand == "unary":
                        y = t("neg", x)
                    elif operand == "scalar":
                        y = t("add", x, t.filled(2.0, x))
                    elif operand == "vector":
                        y = t("mul", x, t.along(t.types[x].rank - 1, x))
                    elif operand == "whole":
                        y = t("mul", x, t.weight(*t.types[x].shape))
                    else:
                        y = t("mul", x, t("abs", order(t, t.input(*shape), first)))
                    order(t, y, second)
                    yield t.graph()

    count("order_around_elementwise", graphs())


@pytest.mark.parametrize(
    ("rule", "primitives"),
    [("order_before_extreme", ("reduce_max", "reduce_min")), ("order_before_sum", ("reduce_sum", "reduce_prod"))],
)
def test_order_before_reduce(rule, primitives):
    def graphs():
        for primitive, shape in itertools.product(primitives, ((1, 2, 3), (3, 2, 2))):
            for perm in itertools.permutations(range(3)):
                for axes in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)):
                    s = Sketch()
                    s(primitive, s("transpose", s.input(*shape), perm=perm), axes=axes)
                    yield s.graph()

    count(rule, graphs())


def test_transposed_product():
    def graphs():
        for m, k, n, left, right in itertools.product(SIZES, SIZES, SIZES, (False, True), (False, True)):
            s = Sketch()
            a = s("transpose", s.input(2, k, m), perm=(0, 2, 1)) if left else s.input(2, m, k)
            b = s("transpose", s.input(2, n, k), perm=(0, 2, 1)) if right else s.input(2, k, n)
            s("transpose", s("matmul", a, b), perm=(0, 2, 1))
            yield s.graph()

    count("transposed_product", graphs())


def test_every_rule_was_checked_on_all_shapes():
    """Runs last in this file; the one rule that is no rearrangement is checked beside the others."""
    assert {r.name for r in RULES} - COVERED == {"tanh_of_softplus"}
