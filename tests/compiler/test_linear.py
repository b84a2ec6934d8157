"""Packed matrix products and direct convolutions against the primitives' meaning in float64."""

from __future__ import annotations

import numpy as np
import pytest

from korch.codegen.c.linear import linear_implementations
from korch.codegen.target import host_features, target_named
from korch.ir.fragment import Fragment
from korch.ir.types import DType
from tests.compiler.linear_cases import Build, Library, deviation, oracle, random_inputs, tolerance

LAST = (0, 2, 3, 1)  # channels last


def matmul(a: tuple[int, ...], b: tuple[int, ...], epilogue: str = "") -> Fragment:
    g = Build()
    y = g.op("matmul", g.input(*a), g.weight(*b))
    return finished(g, y, epilogue)


def finished(g: Build, y: str, epilogue: str, order: tuple[int, ...] | None = None, axis: int = -1) -> Fragment:
    """Adds an epilogue: words for bias, residual, relu, silu, and `both` for the value before the activation."""
    outputs: list[str] = []
    for word in epilogue.split():
        shape = g.shape(y)
        if word == "bias":
            y = g.op("add", y, g.spread(g.weight(shape[axis]), shape, axis % len(shape)))
        elif word == "residual":
            y = g.op("add", y, g.input(*shape, order=order))
        elif word == "relu":
            y = g.op("max", y, g.spread(g.constant(0.0), shape))
        elif word == "silu":
            one = g.spread(g.constant(1.0), shape)
            y = g.op("mul", y, g.op("div", one, g.op("add", one, g.op("exp", g.op("neg", y)))))
        elif word == "both":
            outputs.append(y)
        elif word == "swap":  # the last two dimensions exchanged
            y = g.op("transpose", y, perm=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        elif word == "heads":  # [M, N] to [N / 4, M, 4]
            y = g.op("reshape", y, shape=(shape[0], shape[1] // 4, 4))
            y = g.op("transpose", y, perm=(1, 0, 2))
        else:
            raise ValueError(word)
    return g.fragment(*outputs, y, orders={v: order for v in (*outputs, y)} if order else None)


def conv(
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    epilogue: str = "",
    order: tuple[int, ...] | None = LAST,
    out: tuple[int, ...] | None = LAST,
) -> Fragment:
    n, g = len(x) - 2, Build()
    if n == 1:
        order, out = (0, 2, 1), (0, 2, 1)
    y = g.op(
        "conv",
        g.input(*x, order=order),
        g.weight(*w),
        strides=(stride,) * n,
        dilations=(dilation,) * n,
        pads=(pad,) * (2 * n),
        groups=groups,
    )
    return finished(g, y, epilogue, out, axis=1)


MATMULS: dict[str, Fragment] = {
    "13x37x24": matmul((13, 37), (37, 24)),
    "one element": matmul((1, 1), (1, 1)),
    "one row": matmul((1, 129), (129, 100), "bias"),
    "few columns": matmul((50, 7), (7, 3), "bias relu"),
    "batch joined": matmul((2, 3, 11, 8), (8, 40), "bias"),
    "batched weights": matmul((3, 11, 8), (3, 8, 17), "residual"),
    "aliased rows": matmul((40, 1024), (1024, 48)),
    "silu and its input": matmul((29, 33), (33, 35), "bias both silu"),
    "transposed result": matmul((21, 16), (16, 36), "bias swap"),
    "heads": matmul((21, 16), (16, 36), "heads bias"),
    "by columns": matmul((5, 512), (512, 700), "bias"),
    "many tasks": matmul((700, 64), (64, 96), "relu"),
}

CONVS: dict[str, Fragment] = {
    "1x1": conv((1, 20, 9, 7), (33, 20, 1, 1), epilogue="bias relu"),
    "1x1 strided": conv((2, 16, 9, 8), (24, 16, 1, 1), stride=2),
    "3x3": conv((1, 16, 10, 11), (32, 16, 3, 3), pad=1, epilogue="bias residual silu"),
    "3x3 unpadded": conv((1, 16, 10, 11), (20, 16, 3, 3)),
    "3x3 strided": conv((2, 5, 13, 12), (7, 5, 3, 3), stride=2, pad=1),
    "dilated": conv((1, 8, 14, 13), (16, 8, 3, 3), pad=2, dilation=2),
    "unpadded and dilated": conv((1, 8, 14, 13), (16, 8, 3, 3), dilation=3),
    "wide pads": conv((1, 4, 3, 3), (8, 4, 3, 3), pad=4),
    "cropped": conv((1, 4, 9, 9), (8, 4, 3, 3), pad=-1),
    "grouped": conv((1, 24, 8, 8), (36, 8, 3, 3), pad=1, groups=3, epilogue="bias"),
    "image": conv((1, 3, 20, 22), (16, 3, 5, 5), stride=2, pad=2, order=None, epilogue="bias relu"),
    "row-major out": conv((1, 16, 6, 7), (3, 16, 3, 3), pad=1, out=None, epilogue="bias"),
    "few outputs": conv((1, 8, 12, 30), (3, 8, 5, 5), pad=2, epilogue="bias relu"),
    "few outputs unpadded": conv((2, 8, 15, 31), (2, 8, 7, 7), dilation=2, out=None),
    "few outputs of a signal": conv((2, 6, 50), (1, 6, 9), pad=4),
    "by columns": conv((1, 256, 5, 6), (300, 256, 3, 3), pad=1, epilogue="bias"),
    "many tasks": conv((1, 32, 40, 20), (32, 32, 3, 3), pad=1),
    "signal": conv((2, 6, 31), (10, 6, 5), stride=2, pad=2),
    "one input channel": conv((1, 1, 9, 9), (8, 1, 3, 3), pad=1),
}

DEPTHWISE: dict[str, Fragment] = {
    "3x3": conv((2, 24, 9, 13), (24, 1, 3, 3), pad=1, groups=24, epilogue="bias relu"),
    "3x3 strided": conv((1, 32, 10, 17), (32, 1, 3, 3), stride=2, pad=1, groups=32, epilogue="bias silu"),
    "5x5": conv((1, 19, 7, 21), (19, 1, 5, 5), pad=2, groups=19),
    "7x7 on a small map": conv((1, 16, 4, 3), (16, 1, 7, 7), pad=3, groups=16),
    "dilated": conv((1, 20, 12, 30), (20, 1, 3, 3), pad=3, dilation=3, groups=20),
    "unpadded": conv((1, 16, 8, 9), (16, 1, 3, 3), groups=16),
    "cropped": conv((1, 16, 9, 9), (16, 1, 3, 3), pad=-1, groups=16),
    "far pads": conv((1, 16, 3, 3), (16, 1, 3, 3), pad=5, groups=16),
    "row-major in": conv((1, 18, 8, 9), (18, 1, 3, 3), pad=1, groups=18, order=None),
    "pointwise": conv((1, 18, 8, 9), (18, 1, 1, 1), groups=18, epilogue="bias"),
    "multiplied": conv((1, 6, 8, 9), (12, 1, 3, 3), pad=1, groups=6),
    "signal": conv((2, 9, 31), (9, 1, 9), pad=4, groups=9, epilogue="residual"),
    "many tasks": conv((1, 48, 40, 40), (48, 1, 5, 5), pad=2, groups=48),
    "in blocks": conv((2, 512, 5, 6), (512, 1, 3, 3), stride=2, pad=1, groups=512, epilogue="bias relu"),
}



def separable(
    x: tuple[int, ...],
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    pad: int = 1,
    between: str = "bias silu",
    epilogue: str = "bias",
    order: tuple[int, ...] | None = LAST,
) -> Fragment:
    """A depthwise convolution, and a 1x1 convolution of what it gives."""
    g, channels = Build(), x[1]
    y = g.op(
        "conv", g.input(*x, order=order), g.weight(channels, 1, kernel, kernel), strides=(stride,) * 2,
        dilations=(1, 1), pads=(pad,) * 4, groups=channels,
    )  # fmt: skip
    if "bias" in between:
        y = g.op("add", y, g.spread(g.weight(channels), g.shape(y), 1))
    if "silu" in between:
        one = g.spread(g.constant(1.0), g.shape(y))
        y = g.op("mul", y, g.op("div", one, g.op("add", one, g.op("exp", g.op("neg", y)))))
    y = g.op(
        "conv", y, g.weight(outputs, channels, 1, 1), strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0), groups=1
    )
    return finished(g, y, epilogue, LAST, axis=1)


SEPARABLE: dict[str, Fragment] = {
    "as it comes": separable((1, 16, 12, 14), 24),
    "odd sizes": separable((2, 19, 9, 13), 21, epilogue="bias residual silu"),
    "strided": separable((1, 32, 11, 17), 16, stride=2, between="bias"),
    "5x5, nothing between": separable((1, 24, 10, 12), 40, kernel=5, pad=2, between="", epilogue=""),
    "many channels": separable((1, 256, 8, 8), 64, epilogue="bias both relu"),
    "unpadded": separable((1, 16, 9, 9), 8, pad=0),
    "many tasks": separable((1, 64, 48, 40), 32, epilogue="bias residual"),
}

WINOGRAD: dict[str, Fragment] = {
    "whole tiles": conv((2, 16, 12, 16), (32, 16, 3, 3), pad=1, epilogue="bias relu"),
    "partial tiles": conv((1, 19, 11, 21), (37, 19, 3, 3), pad=1, epilogue="bias residual silu"),
    "unpadded": conv((1, 16, 9, 10), (16, 16, 3, 3)),
    "many tiles": conv((1, 64, 40, 44), (48, 64, 3, 3), pad=1),
    "by positions": conv((2, 180, 10, 9), (200, 180, 3, 3), pad=1, epilogue="bias"),
}


def transposed(
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: int,
    pad: int,
    shape: tuple[int, ...],
    dilation: int = 1,
    groups: int = 1,
    epilogue: str = "",
) -> Fragment:
    n, g = len(x) - 2, Build()
    order = (0, *range(2, n + 2), 1)
    y = g.op(
        "conv_transpose",
        g.input(*x, order=order),
        g.weight(*w),
        strides=(stride,) * n,
        dilations=(dilation,) * n,
        pads=(pad,) * n,
        groups=groups,
        shape=shape,
    )
    return finished(g, y, epilogue, order, axis=1)


TRANSPOSED: dict[str, Fragment] = {
    "2x2 /2": transposed((1, 8, 5, 6), (8, 16, 2, 2), 2, 0, (1, 16, 10, 12), epilogue="bias relu"),
    "4x4 /2": transposed((2, 12, 5, 7), (12, 10, 4, 4), 2, 1, (2, 10, 10, 14), epilogue="bias"),
    "3x3 /2": transposed((1, 8, 6, 5), (8, 24, 3, 3), 2, 1, (1, 24, 12, 10)),
    "3x3 /1 dilated": transposed((1, 8, 6, 9), (8, 16, 3, 3), 1, 0, (1, 16, 10, 13), dilation=2),
    "5x5 /3 dilated": transposed((1, 4, 5, 5), (4, 16, 5, 5), 3, 2, (1, 16, 19, 17), dilation=2),
    "grouped": transposed((1, 8, 5, 5), (8, 6, 4, 4), 2, 1, (1, 12, 10, 10), groups=2),
    "signal": transposed((1, 6, 20), (6, 10, 8), 4, 2, (1, 10, 80)),
}


def attention(batch: int, heads: int, queries: int, keys: int, depth: int) -> dict[str, Fragment]:
    """Both products of attention, the heads read where [batch, tokens, heads * depth] holds them."""
    g = Build()
    q, k = (g.input(batch, n, heads * depth) for n in (queries, keys))
    q = g.op("reshape", q, shape=(batch, queries, heads, depth))
    q = g.op("transpose", q, perm=(0, 2, 1, 3))
    q = g.op("mul", q, g.spread(g.constant(depth**-0.5), g.shape(q)))
    k = g.op("reshape", k, shape=(batch, keys, heads, depth))
    scores = g.op("matmul", q, g.op("transpose", k, perm=(0, 2, 3, 1)))
    h = Build()
    p, v = h.input(batch, heads, queries, keys), h.input(batch, keys, heads * depth)
    v = h.op("reshape", v, shape=(batch, keys, heads, depth))
    y = h.op("matmul", p, h.op("transpose", v, perm=(0, 2, 1, 3)))
    y = h.op("transpose", y, perm=(0, 2, 1, 3))
    y = h.op("reshape", y, shape=(batch, queries, heads * depth))
    return {"scores": g.fragment(scores), "values": h.fragment(y)}


def linear_attention() -> Fragment:
    """transpose(relu(k)) v, tokens contracted; k and v are slices of one tensor."""
    g = Build()
    both = g.input(2, 37, 20)
    k = g.op("slice", both, starts=(0, 0, 0), steps=(1, 1, 1), shape=(2, 37, 8))
    v = g.op("slice", both, starts=(0, 0, 8), steps=(1, 1, 1), shape=(2, 37, 12))
    k = g.op("max", k, g.spread(g.constant(0.0), g.shape(k)))
    return g.fragment(g.op("matmul", g.op("transpose", k, perm=(0, 2, 1)), v))


def transposed_left() -> Fragment:
    g = Build()
    a, b = g.input(2, 19, 23), g.input(2, 19, 21)
    return g.fragment(g.op("matmul", g.op("transpose", a, perm=(0, 2, 1)), b))


def constant_left() -> Fragment:
    g = Build()
    return g.fragment(g.op("matmul", g.weight(17, 12), g.input(12, 50)))


def repeated() -> dict[str, Fragment]:
    """Operands that repeat elements: steps of 0."""
    g, h, k = Build(), Build(), Build()
    left = g.spread(g.input(9, 1), (9, 12), 0, 1)
    y = g.op("matmul", left, g.spread(g.input(12, 1), (12, 20), 0, 1))
    rows = h.op("matmul", h.spread(h.input(12), (9, 12), 1), h.spread(h.input(20), (12, 20), 1))
    x = k.spread(k.input(1, 1, 6, 7), (1, 16, 6, 7), 0, 1, 2, 3)
    z = k.op("conv", x, k.weight(16, 1, 3, 3), strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=16)
    n = Build()
    x = n.spread(n.input(1, 1, 6, 7), (1, 16, 6, 7), 0, 1, 2, 3)
    c = n.op("conv", x, n.weight(2, 16, 3, 3), strides=(1, 1), dilations=(1, 1), pads=(0,) * 4, groups=1)
    return {
        "repeated": g.fragment(y),
        "repeated rows": h.fragment(rows),
        "repeated channels": finished(k, z, "", LAST),
        "repeated input": finished(n, c, "", LAST),
    }


def computed_weights() -> Fragment:
    """Gemm with a transposed and scaled weight: it is packed as such."""
    g = Build()
    w = g.op("transpose", g.weight(20, 12), perm=(1, 0))
    w = g.op("mul", w, g.spread(g.constant(0.5), (12, 20)))
    return finished(g, g.op("matmul", g.input(9, 12), w), "bias")


def tokens() -> Fragment:
    """An image held channels-last is multiplied as a list of tokens, and becomes an image again."""
    g = Build()
    x = g.op("reshape", g.input(2, 12, 5, 6, order=LAST), shape=(2, 12, 30))
    y = g.op("matmul", g.op("transpose", x, perm=(0, 2, 1)), g.weight(12, 20))
    y = g.op("transpose", y, perm=(0, 2, 1))
    y = g.op("reshape", y, shape=(2, 20, 5, 6))
    return g.fragment(y, orders={y: LAST})


def styled(order: tuple[int, ...] | None, stride: int = 1, upsample: int = 1) -> Fragment:
    """Normalise, relu, nearest upsampling, reflection padding, then a 3x3 convolution."""
    g = Build()
    shape = (2, 10, 7, 9)
    x = g.input(*shape, order=order)
    x = g.op("sub", x, g.spread(g.input(2, 10), shape, 0, 1))
    x = g.op("mul", x, g.spread(g.weight(10), shape, 1))
    x = g.op("max", x, g.spread(g.constant(0.0), shape))
    for axis in (2, 3):
        size = shape[axis] * upsample
        x = g.op("take", x, axis=axis, indices=tuple(i // upsample for i in range(size)))
        x = g.op("take", x, axis=axis, indices=(1, *range(size), size - 2))
    y = g.op("conv", x, g.weight(16, 10, 3, 3), strides=(stride,) * 2, dilations=(1, 1), pads=(0,) * 4, groups=1)
    return finished(g, y, "bias", LAST, axis=1)


def padded() -> Fragment:
    """Padding with a constant other than zero, as a primitive of its own."""
    g = Build()
    x = g.op("pad", g.input(1, 6, 5, 5, order=LAST), before=(0, 0, 1, 2), shape=(1, 6, 8, 9), value=-1.5)
    y = g.op("conv", x, g.weight(8, 6, 3, 3), strides=(1, 1), dilations=(1, 1), pads=(0, 1, 1, 0), groups=1)
    return finished(g, y, "", LAST)


def narrow(dtype: DType) -> dict[str, Fragment]:
    """Operands and results of 16 bits; sums are float32."""
    g, h, k = Build(dtype), Build(dtype), Build(dtype)
    y = g.op("matmul", g.input(19, 40), g.weight(40, 21))
    z = h.op("matmul", h.input(2, 9, 24), h.input(2, 24, 18))
    x = k.input(1, 20, 9, 8, order=LAST)
    c = k.op("conv", x, k.weight(24, 20, 3, 3), strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=1)
    n = Build(dtype)
    d = n.op("conv", n.input(1, 20, 9, 8), n.weight(20, 1, 3, 3), strides=(1, 1), dilations=(1, 1), pads=(1,) * 4,
             groups=20)  # fmt: skip
    return {
        f"{dtype.value} matmul": finished(g, y, "bias relu"),
        f"{dtype.value} dynamic": h.fragment(z),
        f"{dtype.value} conv": finished(k, c, "bias", LAST, axis=1),
        f"{dtype.value} depthwise": n.fragment(d),
    }


def normalised_pointwise() -> Fragment:
    """A 1x1 convolution of something computed."""
    g = Build()
    shape = (1, 20, 9, 11)
    x = g.op("mul", g.input(*shape, order=LAST), g.spread(g.input(1, 20), shape, 0, 1))
    x = g.op("max", x, g.spread(g.constant(0.0), shape))
    y = g.op("conv", x, g.weight(24, 20, 1, 1), strides=(1, 1), dilations=(1, 1), pads=(0,) * 4, groups=1)
    return finished(g, y, "bias residual", LAST, axis=1)


FUSED: dict[str, Fragment] = {
    **repeated(),
    **narrow(DType.FLOAT16),
    **narrow(DType.BFLOAT16),
    "normalised pointwise": normalised_pointwise(),
    **attention(2, 3, 33, 29, 16),
    **{f"short {k}": f for k, f in attention(1, 2, 5, 7, 6).items()},
    "linear attention": linear_attention(),
    "transposed left": transposed_left(),
    "constant left": constant_left(),
    "computed weights": computed_weights(),
    "tokens": tokens(),
    "styled": styled(LAST),
    "styled from row-major": styled(None, stride=2),
    "styled and upsampled": styled(LAST, upsample=2),
    "padded": padded(),
}

ALL = {
    **{f"transposed {k}": f for k, f in TRANSPOSED.items()},
    **{f"matmul {k}": f for k, f in MATMULS.items()},
    **{f"conv {k}": f for k, f in CONVS.items()},
    **{f"winograd {k}": f for k, f in WINOGRAD.items()},
    **{f"depthwise {k}": f for k, f in DEPTHWISE.items()},
    **{f"separable {k}": f for k, f in SEPARABLE.items()},
    **FUSED,
}
TARGETS = ("x86_64", "x86_64_v3", "x86_64_v4")


def targets() -> list[str]:
    return [t for t in TARGETS if set(target_named(t).features) <= host_features()]


@pytest.fixture(scope="module", params=targets())
def library(request, tmp_path_factory) -> Library:
    target = target_named(request.param)
    cases = []
    for fragment in ALL.values():
        kernels = linear_implementations(fragment, target)
        assert not isinstance(kernels, str), kernels
        # Of each family the most and the least promising tile; where tiles are smaller, the former.
        chosen = {k.family: k for k in reversed(kernels)}
        if target.name == targets()[-1]:
            chosen |= {f"{k.family}, last": k for k in kernels}
        cases += [(fragment, k) for k in dict.fromkeys(chosen.values())]
    return Library(cases, target, tmp_path_factory.mktemp("linear"))


@pytest.mark.parametrize("name", ALL)
def test_meaning(library, name):
    wanted = ALL[name]
    inputs = random_inputs(wanted)
    reference = oracle(wanted, inputs)
    numbers = [k for k, (f, _) in enumerate(library.cases) if f is wanted]
    assert numbers
    for k in numbers:
        got, again = library.run(k, inputs), library.run(k, inputs, forward=True)
        kernel = library.cases[k][1]
        losses = 4 if kernel.family == "winograd4x4" else 1  # Winograd with 4x4 outputs costs two bits
        for v, r in reference.items():
            assert deviation(got[v], r) < losses * tolerance(wanted), kernel.label
            assert got[v].tobytes() == again[v].tobytes(), "the order of tasks matters"


@pytest.mark.parametrize("name", ALL)
def test_not_finite(library, name):
    """NaN and infinities go where the definition sends them, and nowhere else."""
    wanted = ALL[name]
    inputs = random_inputs(wanted, seed=1)
    rng = np.random.default_rng(2)
    for v in wanted.graph.input_values:
        flat = inputs[v].reshape(-1)
        if v not in wanted.weights:
            flat[rng.integers(flat.size)] = np.nan
            flat[rng.integers(flat.size)] = np.inf
    reference = oracle(wanted, inputs)
    for k, (fragment, kernel) in enumerate(library.cases):
        if fragment is not wanted or ("exact", 0) in kernel.parameters:
            continue
        got = library.run(k, inputs)
        for v, r in reference.items():
            assert np.array_equal(np.isnan(got[v]), np.isnan(r)), kernel.label
            assert np.array_equal(np.isposinf(got[v]), np.isposinf(r)), kernel.label
            assert np.array_equal(np.isneginf(got[v]), np.isneginf(r)), kernel.label
