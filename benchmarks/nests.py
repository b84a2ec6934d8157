"""Bandwidth of generated loop nests on one thread, beside NumPy's copy of the same number of bytes.

    python benchmarks/nests.py [NAME...]

GB/s count every input and output once. Times are of the processor, not of the clock on the wall, and the copy is
timed in turn with each kernel, so that a busy machine hits both alike.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from korch.codegen.c.nests import generate_nest
from korch.codegen.kernel import Kernel
from korch.codegen.target import host_target
from korch.ir.fragment import Fragment
from korch.ir.layout import Layout
from korch.ir.types import DType
from tests.compiler.nest_cases import Library, Make


def relu() -> Fragment:
    m = Make()
    x = m.input(1, 64, 181, 181)
    return m.fragment(m("max", x, m.full(0, x)))


def add() -> Fragment:
    m = Make()
    x, y = m.input(1, 64, 128, 128), m.input(1, 64, 128, 128)
    return m.fragment(m("add", x, y))


def silu() -> Fragment:
    m = Make()
    x = m.input(1, 64, 128, 128)
    e = m("exp", m("neg", x))
    return m.fragment(m("div", x, m("add", m.full(1, e), e)))


def bias_channels_last() -> Fragment:
    m = Make()
    x, b = m.input(1, 64, 104, 104), m.input(64)
    y = m("max", m("add", x, m.spread(b, x, 1)), m.full(0, x))
    return _channels_last(m, x, y)


def _channels_last(m: Make, *values: str) -> Fragment:
    layouts = {v: Layout.channels_last(m.types[v].shape) for v in values}
    return m.fragment(values[-1], layouts=layouts)


def to_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 64, 104, 104)
    return _channels_last(m, m("abs", x))


def from_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 64, 104, 104)
    y = m("abs", x)
    return m.fragment(y, layouts={x: Layout.channels_last((1, 64, 104, 104))})


def to_channels_last_3() -> Fragment:
    m = Make()
    x = m.input(1, 3, 416, 416)
    return _channels_last(m, m("abs", x))


def transpose_bytes() -> Fragment:
    m = Make()
    x = m.input(512, 512, dtype=DType.INT8)
    return m.fragment(m("transpose", x, perm=(1, 0)))


def softmax() -> Fragment:
    m = Make()
    x = m.input(1, 8, 1024, 1024)
    return m.fragment(_softmax(m, x, 3))


def softmax_channels() -> Fragment:
    m = Make()
    x = m.input(1, 21, 128, 128)
    return m.fragment(_softmax(m, x, 1))


def softmax_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 21, 128, 128)
    return _channels_last(m, x, _softmax(m, x, 1))


def avgpool() -> Fragment:
    m = Make()
    x = m.input(1, 64, 112, 112)
    ones = (1, 1, 1, 1)
    s = m(
        "window_sum", x, window=(1, 1, 2, 2), strides=(1, 1, 2, 2), dilations=ones, pads=(0, 0, 0, 0),
        shape=(1, 64, 56, 56),
    )  # fmt: skip
    return m.fragment(m("mul", s, m.full(0.25, s)))


def squeeze_excite_channels_last() -> Fragment:
    m = Make()
    x, s = m.input(1, 256, 28, 28), m.input(1, 256)
    e = m("exp", m("neg", s))
    gate = m("div", m.full(1, e), m("add", m.full(1, e), e))
    return _channels_last(m, x, m("mul", x, m.spread(gate, x, 0, 1)))


def layernorm_channels() -> Fragment:
    m = Make()
    x = m.input(1, 64, 64, 64)
    return m.fragment(_normalise(m, x, (1,)))


def groupnorm() -> Fragment:
    m = Make()
    x = m.input(1, 64, 64, 64)
    y = _normalise(m, m("reshape", x, shape=(1, 8, 8 * 4096)), (2,))
    return m.fragment(m("reshape", y, shape=(1, 64, 64, 64)))


def _softmax(m: Make, x: str, axis: int) -> str:
    kept = tuple(d for d in range(m.types[x].rank) if d != axis)
    e = m("exp", m("sub", x, m.spread(m("reduce_max", x, axes=(axis,)), x, *kept)))
    return m("div", e, m.spread(m("reduce_sum", e, axes=(axis,)), x, *kept))


def _normalise(m: Make, x: str, axes: tuple[int, ...]) -> str:
    shape = m.types[x].shape
    kept = tuple(d for d in range(len(shape)) if d not in axes)
    count = float(np.prod([shape[a] for a in axes]))
    s = m("reduce_sum", x, axes=axes)
    centred = m("sub", x, m.spread(m("mul", s, m.full(1 / count, s)), x, *kept))
    v = m("reduce_sum", m("mul", centred, centred), axes=axes)
    v = m("sqrt", m("add", m("mul", v, m.full(1 / count, v)), m.full(1e-5, v)))
    return m("mul", centred, m.spread(m("div", m.full(1, v), v), x, *kept))


def layernorm() -> Fragment:
    m = Make()
    x = m.input(16384, 64)
    return m.fragment(_normalise(m, x, (1,)))


def instancenorm() -> Fragment:
    m = Make()
    x = m.input(1, 32, 224, 224)
    return m.fragment(_normalise(m, x, (2, 3)))


def instancenorm_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 32, 224, 224)
    return _channels_last(m, x, _normalise(m, x, (2, 3)))


def mean_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 256, 56, 56)
    s = m("reduce_sum", x, axes=(2, 3))
    y = m("mul", s, m.full(1 / 3136, s))
    return m.fragment(y, layouts={x: Layout.channels_last((1, 256, 56, 56))})


def _pool(m: Make, x: str) -> str:
    shape = m.types[x].shape
    ones = (1, 1, 1, 1)
    return m("window_max", x, window=(1, 1, 5, 5), strides=ones, dilations=ones, pads=(0, 0, 2, 2), shape=shape)


def maxpool_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 256, 52, 52)
    return _channels_last(m, x, _pool(m, x))


def maxpool() -> Fragment:
    m = Make()
    x = m.input(1, 256, 52, 52)
    return m.fragment(_pool(m, x))


def concat_channels_last() -> Fragment:
    m = Make()
    x, y = m.input(1, 64, 104, 104), m.input(1, 64, 104, 104)
    return _channels_last(m, x, y, m("concat", x, y, axis=1))


def concat() -> Fragment:
    m = Make()
    x, y = m.input(1, 64, 104, 104), m.input(1, 64, 104, 104)
    return m.fragment(m("concat", x, y, axis=1))


def _nearest(m: Make, x: str) -> str:
    n = m.types[x].shape[2]
    twice = tuple(i // 2 for i in range(2 * n))
    return m("take", m("take", x, axis=2, indices=twice), axis=3, indices=twice)


def upsample() -> Fragment:
    m = Make()
    x = m.input(1, 64, 52, 52)
    return m.fragment(_nearest(m, x))


def upsample_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 64, 52, 52)
    return _channels_last(m, x, _nearest(m, x))


def reflect_pad() -> Fragment:
    m = Make()
    x = m.input(1, 32, 224, 224)
    indices = (2, 1, *range(224), 222, 221)
    return m.fragment(m("take", m("take", x, axis=2, indices=indices), axis=3, indices=indices))


def focus_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 3, 416, 416)
    parts = [
        m("slice", x, starts=(0, 0, i, j), steps=(1, 1, 2, 2), shape=(1, 3, 208, 208))
        for i, j in ((0, 0), (1, 0), (0, 1), (1, 1))
    ]
    y = m("concat", *parts, axis=1)
    return m.fragment(y, layouts={y: Layout.channels_last((1, 12, 208, 208))})


def half_relu() -> Fragment:
    m = Make()
    x = m.input(1, 64, 128, 128, dtype=DType.FLOAT16)
    return m.fragment(m("max", x, m.full(0, x)))


def argmax_channels() -> Fragment:
    m = Make()
    x = m.input(1, 21, 128, 128)
    return m.fragment(m("arg_max", x, axis=1, last=False))


def _bilinear(m: Make, x: str, scale: int) -> str:
    """Half-pixel bilinear upsampling of the last two dimensions."""
    for axis in (2, 3):
        n = m.types[x].shape[axis]
        positions = [(i + 0.5) / scale - 0.5 for i in range(n * scale)]
        low = [min(max(int(np.floor(p)), 0), n - 1) for p in positions]
        high = [min(int(np.floor(p)) + 1, n - 1) for p in positions]
        share = [float(min(max(p, 0) - k, 1)) for p, k in zip(positions, low, strict=True)]
        indices = tuple(zip(low, high, strict=True))
        x = m("resample", x, axis=axis, indices=indices, weights=tuple((1 - s, s) for s in share))
    return x


def bilinear() -> Fragment:
    m = Make()
    return m.fragment(_bilinear(m, m.input(1, 64, 52, 52), 2))


def bilinear_8() -> Fragment:
    m = Make()
    return m.fragment(_bilinear(m, m.input(1, 64, 16, 16), 8))


def bilinear_channels_last() -> Fragment:
    m = Make()
    x = m.input(1, 64, 52, 52)
    return _channels_last(m, x, _bilinear(m, x, 2))


CASES: tuple[Callable[[], Fragment], ...] = (
    relu, add, silu, half_relu, bias_channels_last, to_channels_last, from_channels_last, to_channels_last_3,
    transpose_bytes, softmax, softmax_channels, softmax_channels_last, layernorm, layernorm_channels, groupnorm,
    instancenorm, instancenorm_channels_last, squeeze_excite_channels_last, avgpool,
    mean_channels_last, maxpool, maxpool_channels_last, concat, concat_channels_last, upsample,
    upsample_channels_last, reflect_pad, focus_channels_last, argmax_channels, bilinear, bilinear_8,
    bilinear_channels_last,
)  # fmt: skip


def main() -> None:
    target = host_target()
    chosen = [c for c in CASES if not sys.argv[1:] or c.__name__ in sys.argv[1:]]
    print(f"{'':28} {'MB':>6} {'ms':>8} {'GB/s':>6} {'copy':>6}  compile ms, source KB")
    for make in chosen:
        fragment = make()
        kernel = generate_nest(fragment, target)
        if isinstance(kernel, str):
            print(f"{make.__name__:28} refused: {kernel}")
            continue
        with tempfile.TemporaryDirectory() as directory:
            start = time.perf_counter()
            library = Library([kernel], target, Path(directory))
            compiled = time.perf_counter() - start
            report(make.__name__, fragment, kernel, library, compiled)


def report(name: str, fragment: Fragment, kernel: Kernel, library: Library, compiled: float) -> None:
    types = fragment.graph.types
    rng = np.random.default_rng(0)
    buffers: list[np.ndarray] = []
    total = 0
    for a in kernel.arguments:
        size = kernel.scratch_bytes if a.kind == "scratch" else types[a.value].bytes
        total += 0 if a.kind == "scratch" else size
        block = _aligned(size)
        if a.kind == "input" and types[a.value].dtype is DType.FLOAT32:
            block[...] = rng.standard_normal(size // 4).astype(np.float32).view(np.uint8)
        buffers.append(block)
    scratch = _aligned(kernel.worker_scratch_bytes + 64)
    pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
    source, copy = _aligned(total // 2), _aligned(total // 2)
    best, best_copy = 1e9, 1e9
    for _ in range(25):
        start = time.thread_time()
        library.call(0, pointers, scratch.ctypes.data, 0, 1, 0)
        middle = time.thread_time()
        np.copyto(copy, source)
        end = time.thread_time()
        best, best_copy = min(best, middle - start), min(best_copy, end - middle)
    print(
        f"{name:28} {total / 1e6:6.1f} {best * 1e3:8.3f} {total / best / 1e9:6.1f} {total / best_copy / 1e9:6.1f}"
        f"  {compiled * 1e3:.0f}, {len(kernel.source) / 1e3:.1f}"
    )


def _aligned(size: int) -> np.ndarray:
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


if __name__ == "__main__":
    main()
