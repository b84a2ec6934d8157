"""Matrix products, convolutions, quantized operators, recurrent networks and transforms."""

from __future__ import annotations

import numpy as np
import pytest

from korch.ir.evaluate import evaluate
from tests.pure.fission_reference import check, compare, graph_of, model_of, normal

F = np.float32


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 1, 3, 4), (2, 5, 4, 2)),
        ((2, 5, 3, 4), (1, 1, 4, 2)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    compare("y = MatMul(a, b)", {"a": normal(*a), "b": normal(*b)})
    compare("y = MatMul(a, b)", {"a": normal(*a)}, {"b": normal(*b)})


def test_matmul_of_integers() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (3, 4), np.int32), rng.integers(-9, 9, (4, 2), np.int32)
    compare("y = MatMul(a, b)", {"a": a, "b": b})


@pytest.mark.parametrize("bias", [(), (1,), (5,), (3, 1), (3, 5), None])
@pytest.mark.parametrize("attributes", ["", "<alpha=0.5, beta=2.0>", "<transA=1>", "<transB=1, beta=0.25>"])
def test_gemm(attributes: str, bias: tuple[int, ...] | None) -> None:
    a = normal(4, 3) if "transA" in attributes else normal(3, 4)
    b = normal(5, 4) if "transB" in attributes else normal(4, 5)
    constants = {"b": b} | ({} if bias is None else {"c": normal(*bias)})
    compare(f"y = Gemm{attributes}(a, b{'' if bias is None else ', c'})", {"a": a}, constants)


def test_transposed_weight_is_folded() -> None:
    graph = compare("y = Gemm<transB=1>(a, b)", {"a": normal(3, 4)}, {"b": normal(5, 4)})
    assert [d.primitive for d in graph] == ["matmul"]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("ij,jk", ((2, 3), (3, 4))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("bhij,bhjd->bihd", ((2, 3, 4, 6), (2, 3, 6, 5))),
        ("ii->i", ((3, 3),)),
        ("ii", ((3, 3),)),
        ("...ij->...ji", ((2, 3, 4),)),
        ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 5))),
        ("...ij,...jk", ((2, 1, 3, 4), (1, 5, 4, 2))),
        ("i,j->ij", ((3,), (4,))),
        ("i,i->", ((3,), (3,))),
        ("ij->j", ((3, 4),)),
        ("ij,kj,lj->ikl", ((2, 3), (4, 3), (5, 3))),
        ("ij,k->", ((2, 3), (4,))),
        ("iij,jk->ik", ((3, 3, 4), (4, 2))),
        ("bij,bij->bij", ((2, 3, 4), (2, 3, 4))),
    ],
)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = {f"x{i}": normal(*s, seed=i) for i, s in enumerate(shapes)}
    body = f'y = Einsum<equation="{equation}">({", ".join(inputs)})'
    compare(body, inputs)


CONVOLUTIONS = [
    "strides=[1, 1]",
    "strides=[2, 1]",
    "pads=[1, 0, 2, 1]",
    "dilations=[2, 1], pads=[1, 1, 1, 1]",
    'auto_pad="SAME_UPPER", strides=[2, 2]',
    'auto_pad="SAME_LOWER", strides=[2, 3]',
    'auto_pad="VALID"',
    "group=2, kernel_shape=[3, 2]",
    "group=4",
]


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
def test_convolution(attributes: str) -> None:
    groups = 4 if "group=4" in attributes else 2 if "group=2" in attributes else 1
    x, w = normal(2, 4, 7, 8), normal(4, 4 // groups, 3, 2)
    compare(f"y = Conv<{attributes}>(x, w, b)", {"x": x}, {"w": w, "b": normal(4)}, atol=1e-5)
    compare(f"y = Conv<{attributes}>(x, w)", {"x": x, "w": w}, atol=1e-5)


def test_convolution_of_other_ranks() -> None:
    compare("y = Conv<strides=[2], pads=[1, 1]>(x, w)", {"x": normal(1, 3, 9)}, {"w": normal(2, 3, 3)}, atol=1e-5)
    compare(
        "y = Conv<pads=[1, 0, 1, 0, 1, 0]>(x, w)", {"x": normal(1, 2, 4, 5, 4)}, {"w": normal(3, 2, 2, 3, 2)}, atol=1e-5
    )


TRANSPOSED = [
    "strides=[1, 1]",
    "strides=[3, 2]",
    "strides=[2, 2], pads=[1, 0, 0, 1]",
    "strides=[3, 2], output_padding=[2, 1]",
    "dilations=[2, 3], strides=[2, 2]",
    "strides=[3, 2], output_shape=[10, 8]",
    'auto_pad="SAME_UPPER", strides=[2, 2]',
    'auto_pad="SAME_LOWER", strides=[2, 2]',
    "group=2",
]


@pytest.mark.parametrize("attributes", TRANSPOSED)
def test_transposed_convolution(attributes: str) -> None:
    """Against a loop over what each input element adds."""
    x, w, b = normal(2, 4, 3, 4), normal(4, 3, 3, 2), normal(6 if "group" in attributes else 3)
    graph = graph_of(model_of(f"y = ConvTranspose<{attributes}>(x, w, b)", {"x": x}, {"w": w, "b": b}))
    check(evaluate(graph, {"x": x})["y"], transposed(x, w, b, attributes), atol=1e-5)


def transposed(x: np.ndarray, w: np.ndarray, b: np.ndarray, attributes: str) -> np.ndarray:
    import re

    lists = {n: [int(v) for v in t.split(",")] for n, t in re.findall(r"(\w+)=\[([^]]*)\]", attributes)}
    groups = 2 if "group" in attributes else 1
    strides, dilations = lists.get("strides", [1, 1]), lists.get("dilations", [1, 1])
    extra, pads = lists.get("output_padding", [0, 0]), lists.get("pads", [0, 0, 0, 0])
    size, kernel = x.shape[2:], w.shape[2:]
    full = [(size[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 for d in (0, 1)]
    room = [f + e for f, e in zip(full, extra, strict=True)]
    canvas = np.zeros((2, w.shape[1] * groups, 20, 20))
    per, outs = 4 // groups, w.shape[1]
    for n, c, i, j, o, p, q in np.ndindex(2, 4, *size, outs, *kernel):
        place = (n, c // per * outs + o, i * strides[0] + p * dilations[0], j * strides[1] + q * dilations[1])
        canvas[place] += float(x[n, c, i, j]) * float(w[c, o, p, q])
    if "output_shape" in lists or "SAME" in attributes:
        target = lists.get("output_shape") or [n * s for n, s in zip(size, strides, strict=True)]
        totals = [max(0, r - t) for r, t in zip(room, target, strict=True)]
        first = [t // 2 if "UPPER" in attributes else t - t // 2 for t in totals]
    else:
        target = [r - pads[d] - pads[d + 2] for d, r in enumerate(room)]
        first = pads[:2]
    part = canvas[:, :, first[0] : first[0] + target[0], first[1] : first[1] + target[1]]
    return (part + b.reshape(1, -1, 1, 1)).astype(F)


def test_quantized_linear() -> None:
    rng = np.random.default_rng(0)
    x, scale = normal(3, 4) * F(4), np.array([0.1, 0.2, 0.3, 0.4], F)
    zero = np.array([0, 10, 128, 255], np.uint8)
    compare("y = QuantizeLinear<axis=1>(x, s, z)", {"x": x}, {"s": scale, "z": zero})
    compare("y = QuantizeLinear(x, s)", {"x": x}, {"s": np.array(0.1, F)})
    extremes = np.array([1e30, -1e30, np.inf, -np.inf, 1.25, 1.75], F)
    graph = graph_of(model_of("y = QuantizeLinear(x, s, z)", {"x": extremes}, {"s": np.array(0.5, F), "z": zero[1]}))
    check(evaluate(graph, {"x": extremes})["y"], np.array([255, 0, 255, 0, 12, 14], np.uint8))
    levels = rng.integers(0, 255, (3, 4), np.uint8)
    compare("y = DequantizeLinear<axis=1>(x, s, z)", {"x": levels}, {"s": scale, "z": zero}, opset=19)
    compare("y = DequantizeLinear(x, s)", {"x": levels}, {"s": np.array(0.1, F)}, opset=19)
    blocks = {"s": np.abs(normal(3, 2)) + F(0.1), "z": rng.integers(0, 9, (3, 2), np.uint8)}
    compare("y = DequantizeLinear<axis=1, block_size=2>(x, s, z)", {"x": levels}, blocks, opset=21)


def test_integer_products() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 255, (3, 4), np.uint8), rng.integers(-128, 127, (4, 5), np.int8)
    zeros = {"p": np.array(7, np.uint8), "q": np.array(-3, np.int8)}
    compare("y = MatMulInteger(a, b, p, q)", {"a": a, "b": b}, zeros)
    compare("y = MatMulInteger(a, b)", {"a": a}, {"b": b})
    x, w = rng.integers(0, 255, (1, 2, 5, 5), np.uint8), rng.integers(0, 255, (3, 2, 3, 3), np.uint8)
    compare("y = ConvInteger<pads=[1, 1, 1, 1]>(x, w, z)", {"x": x, "w": w}, {"z": np.array(5, np.uint8)})
    scales = {n: np.array(v, F) for n, v in (("s", 0.02), ("t", 0.03), ("u", 0.9))}
    zeros = {n: np.array(v, np.uint8) for n, v in (("p", 120), ("q", 130), ("r", 118))}
    compare("y = QLinearConv<pads=[1, 1, 1, 1]>(x, s, p, w, t, q, u, r)", {"x": x}, {"w": w, **scales, **zeros})
    b = rng.integers(0, 255, (4, 5), np.uint8)
    compare("y = QLinearMatMul(a, s, p, b, t, q, u, r)", {"a": a}, {"b": b, **scales, **zeros})


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize(("name", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent(name: str, gates: int, direction: str) -> None:
    steps, batch, width, hidden = 5, 2, 3, 4
    weights = {
        "w": normal(1, gates * hidden, width),
        "r": normal(1, gates * hidden, hidden),
        "b": normal(1, 2 * gates * hidden),
    }
    x = normal(steps, batch, width)
    body = f'y, h = {name}<hidden_size={hidden}, direction="{direction}">(x, w, r, b)'
    graph = graph_of(model_of(body, {"x": x}, weights, ("y", "h")))
    found = evaluate(graph, {"x": x})
    sequence = x[::-1] if direction == "reverse" else x
    states = recurrent(name, sequence.astype(float), **{n: a[0].astype(float) for n, a in weights.items()})
    ordered = states[::-1] if direction == "reverse" else states
    check(found["y"], ordered[:, None].astype(F), rtol=1e-4, atol=1e-5)
    check(found["h"], states[-1][None].astype(F), rtol=1e-4, atol=1e-5)


def recurrent(name: str, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The equations of the standard, one step after the other."""
    hidden = r.shape[1]
    h = c = np.zeros((x.shape[1], hidden))
    wb, rb = b[: len(b) // 2], b[len(b) // 2 :]

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    def gate(v: np.ndarray, k: int) -> np.ndarray:
        return v[..., k * hidden : (k + 1) * hidden]

    states = []
    for t in range(len(x)):
        p = x[t] @ w.T + wb
        q = h @ r.T + rb
        if name == "RNN":
            h = np.tanh(p + q)
        elif name == "GRU":
            z, s = sigmoid(gate(p + q, 0)), sigmoid(gate(p + q, 1))
            new = np.tanh(gate(p, 2) + (s * h) @ r[2 * hidden :].T + gate(rb, 2))
            h = (1 - z) * new + z * h
        else:
            i, o, f = (sigmoid(gate(p + q, k)) for k in range(3))
            c = f * c + i * np.tanh(gate(p + q, 3))
            h = o * np.tanh(c)
        states.append(h)
    return np.stack(states)


def test_both_directions_and_lengths() -> None:
    steps, width, hidden = 4, 3, 2
    weights = {"w": normal(2, 4 * hidden, width), "r": normal(2, 4 * hidden, hidden), "b": normal(2, 16)}
    x, lengths = normal(steps, 2, width), np.array([4, 2], np.int32)
    body = f'y, h, c = LSTM<hidden_size={hidden}, direction="bidirectional">(x, w, r, b, n)'
    graph = graph_of(model_of(body, {"x": x, "n": lengths}, weights, ("y", "h", "c")))
    found = evaluate(graph, {"x": x, "n": lengths})
    for i, length in enumerate(lengths):
        for d in (0, 1):
            part = x[:length, i : i + 1].astype(float)
            own = {n: a[d].astype(float) for n, a in weights.items()}
            states = recurrent("LSTM", part[::-1] if d else part, **own)[:, 0]
            ordered = states[::-1] if d else states
            np.testing.assert_allclose(found["y"][:length, d, i], ordered, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(found["y"][length:, d, i], 0)
            np.testing.assert_allclose(found["h"][d, i], states[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [5, 8, 11])
def test_fourier_transform(length: int) -> None:
    x = normal(2, 8, 3, 2)
    body = "y = DFT(x, n, a) z = DFT<inverse=1>(x, n, a)"
    constants = {"n": np.array(length), "a": np.array(1)}
    found = evaluate(graph_of(model_of(body, {"x": x}, constants, ("y", "z"), opset=20)), {"x": x})
    signal = x[..., 0].astype(np.float64) + 1j * x[..., 1]
    for name, transform in (("y", np.fft.fft), ("z", np.fft.ifft)):
        expected = transform(signal, length, axis=1)
        np.testing.assert_allclose(found[name], np.stack([expected.real, expected.imag], -1), atol=1e-5)
    real = x[..., :1]
    body = "y = DFT<onesided=1>(x, n, a)"
    found = evaluate(graph_of(model_of(body, {"x": real}, constants, opset=20)), {"x": real})
    expected = np.fft.rfft(real[..., 0].astype(np.float64), length, axis=1)
    np.testing.assert_allclose(found["y"], np.stack([expected.real, expected.imag], -1), atol=1e-5)
