"""Generated loop nests against the NumPy meaning: named patterns, and random fragments over the whole table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from korch.codegen.c.fusible import FusionRules, fusible
from korch.codegen.c.nests import generate_nest
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target, host_features, host_target, target_named
from korch.ir.evaluate import evaluate
from korch.ir.fragment import Fragment
from korch.ir.layout import Layout
from korch.ir.types import DType
from tests.compiler.nest_cases import Library, Make
from tests.compiler.nest_random import random_fragment, random_inputs

ONES = (1, 1, 1, 1)


def scaled(m: Make, x: str, factor: float) -> str:
    return m("mul", x, m.full(factor, x))


def channels_last(m: Make, *values: str) -> Fragment:
    return m.fragment(values[-1], layouts={v: Layout.channels_last(m.types[v].shape) for v in values})


def softmax(m: Make, x: str, axis: int) -> str:
    kept = tuple(d for d in range(m.types[x].rank) if d != axis)
    e = m("exp", m("sub", x, m.spread(m("reduce_max", x, axes=(axis,)), x, *kept)))
    return m("div", e, m.spread(m("reduce_sum", e, axes=(axis,)), x, *kept))


def normalise(m: Make, x: str, axes: tuple[int, ...]) -> str:
    shape = m.types[x].shape
    kept = tuple(d for d in range(len(shape)) if d not in axes)
    count = float(np.prod([shape[a] for a in axes]))
    mean = scaled(m, m("reduce_sum", x, axes=axes), 1 / count)
    centred = m("sub", x, m.spread(mean, x, *kept))
    v = scaled(m, m("reduce_sum", m("mul", centred, centred), axes=axes), 1 / count)
    v = m("sqrt", m("add", v, m.full(1e-5, v)))
    return m("mul", centred, m.spread(m("div", m.full(1, v), v), x, *kept))


def pool(m: Make, x: str, size: int, stride: int, pad: int, kind: str = "window_max") -> str:
    n, c, h, w = m.types[x].shape
    out = tuple((k + 2 * pad - size) // stride + 1 for k in (h, w))
    window, strides, pads = (1, 1, size, size), (1, 1, stride, stride), (0, 0, pad, pad)
    return m(kind, x, window=window, strides=strides, dilations=ONES, pads=pads, shape=(n, c, *out))


def build_cases() -> dict[str, Fragment]:
    """The patterns that networks are made of, at odd sizes."""
    found: dict[str, Fragment] = {}

    def case(name: str) -> Callable[[Callable[[Make], Fragment]], None]:
        def add(build: Callable[[Make], Fragment]) -> None:
            found[name] = build(Make())

        return add

    @case("relu")
    def _(m: Make) -> Fragment:
        x = m.input(3, 5, 7)
        return m.fragment(m("max", x, m.full(0, x)))

    @case("silu")
    def _(m: Make) -> Fragment:
        x = m.input(2, 3, 41)
        e = m("exp", m("neg", x))
        return m.fragment(m("div", x, m("add", m.full(1, e), e)))

    @case("silu of float16")
    def _(m: Make) -> Fragment:
        x = m.input(2, 3, 41, dtype=DType.FLOAT16)
        e = m("exp", m("neg", x))
        return m.fragment(m("div", x, m("add", m.full(1, e), e)))

    @case("softmax of rows")
    def _(m: Make) -> Fragment:
        return m.fragment(softmax(m, m.input(9, 77), 1))

    @case("softmax over channels")
    def _(m: Make) -> Fragment:
        return m.fragment(softmax(m, m.input(2, 21, 9, 11), 1))

    @case("softmax over channels, channels last")
    def _(m: Make) -> Fragment:
        x = m.input(2, 21, 9, 11)
        return channels_last(m, x, softmax(m, x, 1))

    @case("softmax in bfloat16")
    def _(m: Make) -> Fragment:
        return m.fragment(softmax(m, m.input(5, 33, dtype=DType.BFLOAT16), 1))

    @case("layer normalization with scale")
    def _(m: Make) -> Fragment:
        x, scale = m.input(2, 9, 67), m.input(67)
        return m.fragment(m("mul", normalise(m, x, (2,)), m.spread(scale, x, 2)))

    @case("instance normalization")
    def _(m: Make) -> Fragment:
        return m.fragment(normalise(m, m.input(2, 5, 9, 11), (2, 3)))

    @case("instance normalization, channels last")
    def _(m: Make) -> Fragment:
        x = m.input(2, 37, 9, 11)
        return channels_last(m, x, normalise(m, x, (2, 3)))

    @case("group normalization")
    def _(m: Make) -> Fragment:
        x = m.input(2, 12, 5, 7)
        y = m("reshape", normalise(m, m("reshape", x, shape=(2, 3, 140)), (2,)), shape=(2, 12, 5, 7))
        return m.fragment(y, layouts={x: Layout.channels_last((2, 12, 5, 7))})

    @case("mean and maximum at once")
    def _(m: Make) -> Fragment:
        x = m.input(3, 19, 23)
        mean = scaled(m, m("reduce_sum", x, axes=(1,)), 1 / 19)
        return m.fragment(mean, m("reduce_max", x, axes=(1,)))

    @case("global average")
    def _(m: Make) -> Fragment:
        x = m.input(2, 19, 7, 7)
        return m.fragment(scaled(m, m("reduce_sum", x, axes=(2, 3)), 1 / 49))

    @case("a sum of everything, subtracted")
    def _(m: Make) -> Fragment:
        x = m.input(500, 301)
        return m.fragment(m("sub", x, m.spread(m("reduce_sum", x, axes=(0, 1)), x)))

    @case("to channels last")
    def _(m: Make) -> Fragment:
        x = m.input(2, 37, 9, 11)
        y = m("neg", x)
        return m.fragment(y, layouts={y: Layout.channels_last((2, 37, 9, 11))})

    @case("from channels last, bytes")
    def _(m: Make) -> Fragment:
        x = m.input(1, 65, 17, 33, dtype=DType.UINT8)
        y = m("cast", x, to="float32")
        return m.fragment(y, layouts={x: Layout.channels_last((1, 65, 17, 33))})

    @case("channel shuffle")
    def _(m: Make) -> Fragment:
        x = m.input(2, 12, 3, 5)
        y = m("transpose", m("reshape", x, shape=(2, 3, 4, 15)), perm=(0, 2, 1, 3))
        return m.fragment(m("reshape", y, shape=(2, 12, 3, 5)))

    @case("pixel shuffle")
    def _(m: Make) -> Fragment:
        x = m.input(1, 12, 5, 7)
        y = m("transpose", m("reshape", x, shape=(1, 3, 2, 2, 5, 7)), perm=(0, 1, 4, 2, 5, 3))
        return m.fragment(m("reshape", y, shape=(1, 3, 10, 14)))

    @case("focus")
    def _(m: Make) -> Fragment:
        x = m.input(1, 3, 10, 44)
        corners = ((0, 0), (1, 0), (0, 1), (1, 1))
        parts = [m("slice", x, starts=(0, 0, i, j), steps=(1, 1, 2, 2), shape=(1, 3, 5, 22)) for i, j in corners]
        return m.fragment(m("concat", *parts, axis=1))

    @case("concat of three")
    def _(m: Make) -> Fragment:
        a, b = m.input(2, 3, 5), m.input(2, 4, 5)
        return m.fragment(m("concat", a, m("neg", b), a, axis=1))

    @case("concat of channels, channels last")
    def _(m: Make) -> Fragment:
        a, b = m.input(1, 19, 5, 6), m.input(1, 40, 5, 6)
        return channels_last(m, a, b, m("concat", a, b, axis=1))

    @case("split into three layouts")
    def _(m: Make) -> Fragment:
        x = m("abs", m.input(2, 12, 5))
        parts = [m("slice", x, starts=(0, s, 0), steps=(1, 1, 1), shape=(2, 4, 5)) for s in (0, 4, 8)]
        return m.fragment(*parts, layouts={parts[1]: Layout.canonical((2, 4, 5), (2, 0, 1))})

    @case("constant padding")
    def _(m: Make) -> Fragment:
        x = m.input(2, 3, 35)
        return m.fragment(m("pad", m("abs", x), before=(0, 1, 2), shape=(2, 6, 39), value=1.5))

    @case("reflected padding")
    def _(m: Make) -> Fragment:
        x = m.input(1, 3, 5, 37)
        rows, columns = (2, 1, *range(5), 3, 2), (2, 1, *range(37), 35, 34)
        return m.fragment(m("take", m("take", x, axis=2, indices=rows), axis=3, indices=columns))

    @case("nearest upsampling")
    def _(m: Make) -> Fragment:
        x = m.input(1, 3, 5, 27)
        rows, columns = (tuple(i // 2 for i in range(2 * n)) for n in (5, 27))
        return m.fragment(m("take", m("take", x, axis=2, indices=rows), axis=3, indices=columns))

    @case("backwards and every other")
    def _(m: Make) -> Fragment:
        x = m.input(5, 90)
        back = m("slice", x, starts=(4, 89), steps=(-1, -1), shape=(5, 45))
        return m.fragment(m("add", back, m("slice", x, starts=(0, 1), steps=(1, 2), shape=(5, 45))))

    @case("max pooling 5x5")
    def _(m: Make) -> Fragment:
        return m.fragment(pool(m, m.input(1, 5, 13, 38), 5, 1, 2))

    @case("max pooling 5x5, channels last")
    def _(m: Make) -> Fragment:
        x = m.input(1, 21, 13, 14)
        return channels_last(m, x, pool(m, x, 5, 1, 2))

    @case("max pooling 3x3 by 2 of relu, channels last")
    def _(m: Make) -> Fragment:
        x = m.input(1, 21, 13, 14)
        return channels_last(m, x, pool(m, m("max", x, m.full(0, x)), 3, 2, 1))

    @case("average pooling and relu")
    def _(m: Make) -> Fragment:
        y = scaled(m, pool(m, m.input(2, 3, 16, 40), 2, 2, 0, "window_sum"), 0.25)
        return m.fragment(m("max", y, m.full(0, y)))

    @case("average pooling of sigmoids, several windows each")
    def _(m: Make) -> Fragment:
        x = m.input(1, 3, 9, 17)
        e = m("exp", m("neg", x))
        return m.fragment(pool(m, m("div", e, m("add", m.full(1, e), e)), 3, 1, 1, "window_sum"))

    @case("pools in sequence")
    def _(m: Make) -> Fragment:
        x = m.input(1, 18, 9, 10)
        once = pool(m, x, 3, 1, 1)
        twice = pool(m, once, 3, 1, 1)
        y = m("concat", x, once, twice, axis=1)
        return channels_last(m, x, y)

    @case("position of the maximum over channels")
    def _(m: Make) -> Fragment:
        return m.fragment(m("arg_max", m.input(1, 21, 5, 9), axis=1, last=False))

    @case("last position of the minimum of rows")
    def _(m: Make) -> Fragment:
        x = m("round", m.input(7, 90))
        return m.fragment(m("arg_min", x, axis=1, last=True))

    @case("embedding and position")
    def _(m: Make) -> Fragment:
        table, at, position = m.input(11, 40), m.input(2, 6, dtype=DType.INT64), m.input(6, 40)
        rows = m("gather", table, at, axis=0)
        return m.fragment(m("add", rows, m.spread(position, rows, 1, 2)))

    @case("gathers of each kind")
    def _(m: Make) -> Fragment:
        x, at = m.input(6, 9), m.input(4, 9, dtype=DType.INT64)
        pairs = m.input(5, 2, dtype=DType.INT32)
        picked = m("gather_elements", x, at, axis=0)
        return m.fragment(picked, m("gather_nd", x, pairs, batch_dims=0), m("gather", x, pairs, axis=1))

    @case("matrix product with bias and relu")
    def _(m: Make) -> Fragment:
        a, b, c = m.input(2, 5, 17), m.input(17, 23), m.input(23)
        y = m("matmul", a, b)
        y = m("add", y, m.spread(c, y, 2))
        return m.fragment(m("max", y, m.full(0, y)))

    @case("matrix product of bytes")
    def _(m: Make) -> Fragment:
        a, b = m.input(5, 17, dtype=DType.UINT8), m.input(17, 23, dtype=DType.INT8)
        return m.fragment(m("matmul", a, b))

    @case("grouped convolution")
    def _(m: Make) -> Fragment:
        x, w = m.input(1, 4, 9, 11), m.input(6, 2, 3, 3)
        return m.fragment(m("conv", x, w, strides=(2, 1), dilations=(1, 2), pads=(1, 2, 1, 2), groups=2))

    @case("transposed convolution")
    def _(m: Make) -> Fragment:
        x, w = m.input(1, 4, 5, 6), m.input(4, 3, 3, 3)
        y = m(
            "conv_transpose",
            x, w, strides=(2, 2), dilations=(1, 1), pads=(1, 1), groups=1, shape=(1, 3, 9, 11),
        )  # fmt: skip
        return m.fragment(y)

    @case("bilinear rows")
    def _(m: Make) -> Fragment:
        x = m.input(1, 3, 6, 19)
        indices = tuple((min(i // 2, 5), min(i // 2 + 1, 5)) for i in range(12))
        weights = tuple((1.0, 0.0) if i % 2 == 0 else (0.5, 0.5) for i in range(12))
        return m.fragment(m("resample", x, axis=2, indices=indices, weights=weights))

    @case("bilinear rows and columns")
    def _(m: Make) -> Fragment:
        x = m.input(1, 3, 6, 40)
        for axis, n in ((2, 6), (3, 40)):
            indices = tuple((max((i - 1) // 2, 0), min((i + 1) // 2, n - 1)) for i in range(2 * n))
            weights = tuple((0.25, 0.75) if i % 2 == 0 else (0.75, 0.25) for i in range(2 * n))
            x = m("resample", x, axis=axis, indices=indices, weights=weights)
        return m.fragment(x)

    @case("scalars")
    def _(m: Make) -> Fragment:
        return m.fragment(m("exp", m.input()))

    @case("nothing")
    def _(m: Make) -> Fragment:
        return m.fragment(m("abs", m.input(3, 0, 5)))

    @case("reductions over nothing")
    def _(m: Make) -> Fragment:
        x = m.input(3, 0)
        return m.fragment(m("reduce_sum", x, axes=(1,)), m("neg", m("reduce_max", x, axes=(1,))))

    @case("an input, and a constant, as outputs")
    def _(m: Make) -> Fragment:
        x = m.input(3, 40)
        return m.fragment(m("transpose", x, perm=(1, 0)), m.full(2.5, x))

    return found


CASES = build_cases()


def floats(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64)


def difference(got: np.ndarray, want: np.ndarray, dtype: DType) -> str:
    """Empty when the two agree: exactly for integers, else to a few units in the last place of the RMS."""
    if not dtype.is_float:
        return "" if np.array_equal(got, want) else f"{np.count_nonzero(got != want)} of {want.size} differ"
    g, w = floats(got), floats(want)
    if not np.array_equal(np.isnan(g), np.isnan(w)) or not np.array_equal(g[np.isinf(w)], w[np.isinf(w)]):
        return "NaN or infinity in one of the two only"
    g, w = g[np.isfinite(w)], w[np.isfinite(w)]
    unit = {2: 2e-2, 4: 2e-5, 8: 1e-12}[dtype.size]
    scale = float(np.sqrt(np.mean(np.square(w)))) + 1e-3 if w.size else 1.0
    error = np.abs(g - w)
    return f"error {error.max():.2g}, RMS {scale:.2g}" if (error > unit * (scale + np.abs(w))).any() else ""


def check(library: Library, number: int, fragment: Fragment, inputs: dict[str, np.ndarray]) -> str:
    """The result agrees with the meaning, and is bit for bit the same with other threads, order and alignment."""
    want = evaluate(fragment.graph, inputs)
    once = library.run(number, fragment, inputs)
    again = library.run(number, fragment, inputs, threads=3, reverse=True)
    for v, reference in want.items():
        reason = difference(once[v], reference, fragment.graph.types[v].dtype)
        if reason:
            return f"{v}: {reason}"
        if once[v].tobytes() != again[v].tobytes():
            return f"{v}: differs between one thread and three"
    return ""


def kernels_of(fragments: Sequence[Fragment], target: Target, grain: float) -> list[Kernel]:
    found: list[Kernel] = []
    for fragment in fragments:
        kernel = generate_nest(fragment, target, grain)
        assert not isinstance(kernel, str), f"{kernel}\n{fragment.text}"
        found.append(kernel)
    return found


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Library:
    kernels = kernels_of(list(CASES.values()), host_target(), 300.0)
    return Library(kernels, host_target(), Path(tmp_path_factory.mktemp("named")))


@pytest.mark.parametrize("name", CASES)
def test_pattern(name: str, named: Library) -> None:
    fragment = CASES[name]
    inputs = random_inputs(fragment, 7)
    assert not check(named, list(CASES).index(name), fragment, inputs)


@pytest.mark.parametrize("name", ["relu", "softmax of rows", "max pooling 5x5", "layer normalization with scale"])
def test_not_a_number_and_infinities(name: str, named: Library) -> None:
    fragment = CASES[name]
    inputs = random_inputs(fragment, 7)
    x = inputs["i0"].reshape(-1)
    x[[1, 40]], x[[2, 60]], x[[3, 90]] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        assert not check(named, list(CASES).index(name), fragment, inputs)


SEEDS = [
    (range(0, 110), 30.0, "host"),
    (range(110, 200), 10_000.0, "host"),
    (range(200, 240), 100.0, "x86_64"),
    (range(240, 280), 30.0, "x86_64_v3"),
]


@pytest.mark.parametrize(("seeds", "grain", "name"), SEEDS)
def test_random_fragments(seeds: range, grain: float, name: str, tmp_path: Path) -> None:
    """Small grains make tasks, phases and split reductions of small tensors."""
    target = target_named(name)
    if not host_features().issuperset(target.features):
        pytest.skip(f"this machine does not run {name}")
    fragments = [random_fragment(seed) for seed in seeds]
    library = Library(kernels_of(fragments, target, grain), target, tmp_path)
    wrong = []
    for number, (seed, fragment) in enumerate(zip(seeds, fragments, strict=True)):
        with np.errstate(all="ignore"):
            reason = check(library, number, fragment, random_inputs(fragment, seed))
        if reason:
            wrong.append(f"seed {seed}: {reason}\n{fragment.text}")
    assert not wrong, "\n".join(wrong)


def test_the_fragments_reach_every_strategy() -> None:
    """Among the fragments above are several phases, split reductions, worker memory, transposed blocks…"""
    fragments = [*CASES.values(), *(random_fragment(s) for s in range(110))]
    sources = "".join(k.source for k in kernels_of(fragments, host_target(), 300.0))
    for sign in ("KERNEL_phase1", "piece", "local + ", "KERNEL_transpose_", "if (", "_base", "table", "korch_gather"):
        assert sign in sources, sign


def source_of(fragment: Fragment, grain: float = 10_000.0) -> str:
    kernel = generate_nest(fragment, host_target(), grain)
    assert not isinstance(kernel, str), kernel
    return kernel.source


def test_contiguous_axes_become_one_loop() -> None:
    m = Make()
    x = m.input(4, 8, 16, 32)
    assert source_of(m.fragment(m("abs", x))).count("for (") == 1


def test_a_row_stays_in_the_workers_memory() -> None:
    """Softmax of rows: one phase, and the exponentials of one row at a time."""
    m = Make()
    kernel = generate_nest(m.fragment(softmax(m, m.input(4096, 1024), 1)), host_target())
    assert not isinstance(kernel, str)
    assert kernel.scratch_bytes == 0 and 4096 <= kernel.worker_scratch_bytes <= 8192
    assert kernel.source.count("static void KERNEL_phase") == 1 and kernel.source.count("korch_exp_f32") == 1


def test_few_channels_split_the_reduction() -> None:
    """InstanceNorm over large maps with few channels: partial sums in parallel, then the maps in parallel."""
    m = Make()
    x = m.input(1, 32, 224, 224)
    source = source_of(channels_last(m, x, normalise(m, x, (2, 3))))
    assert source.count("static void KERNEL_phase") == 3
    assert len(re.findall(r"korch_parallel\(runtime, (?:[8-9]|[1-3]\d),", source)) == 3


def test_conditions_leave_the_inner_loops() -> None:
    """Padding: each part of the map has its own loops, none of them with a condition."""
    m = Make()
    x = m.input(2, 30, 300)
    source = source_of(m.fragment(m("pad", x, before=(0, 2, 3), shape=(2, 34, 306), value=0.0)))
    assert not re.search(r"if \((?!a\d+ < \d+\))", source)


def test_small_work_is_one_task() -> None:
    m = Make()
    assert "korch_parallel(runtime, 1," in source_of(m.fragment(m("abs", m.input(64, 64))))


def test_text_depends_on_the_fragment_alone() -> None:
    for seed in range(20):
        assert source_of(random_fragment(seed)) == source_of(random_fragment(seed))


def test_float16_is_rounded_after_each_primitive(tmp_path: Path) -> None:
    """Fusing does not change a bit: the whole equals its parts."""
    m = Make()
    x, y = m.input(3, 50, dtype=DType.FLOAT16), m.input(3, 50, dtype=DType.FLOAT16)
    z = m("sub", m("mul", m("add", x, y), y), x)
    fragment = m.fragment(z)
    library = Library(kernels_of([fragment], host_target(), 1e4), host_target(), tmp_path)
    inputs = random_inputs(fragment, 1)
    want = evaluate(fragment.graph, inputs)[z]
    assert library.run(0, fragment, inputs)[z].tobytes() == want.tobytes()


def test_what_does_not_fit_is_refused() -> None:
    """A map that a reduction over other axes needs, too large for the workers' memory."""
    m = Make()
    x = m.input(256, 2000)
    wide = m("reduce_sum", m("reshape", x, shape=(256, 2000, 1)), axes=(2,))
    big = m("broadcast", wide, shape=(2, 256, 2000), axes=(1, 2))
    total = m("reduce_sum", m("mul", big, big), axes=(0, 1, 2))
    reason = generate_nest(
        m.fragment(
            m(
                "window_max",
                m("add", wide, m.spread(total, wide)),
                window=(3, 3),
                strides=(1, 1),
                dilations=(1, 1),
                pads=(1, 1),
                shape=(256, 2000),
            )
        ),
        host_target(),
    )
    assert isinstance(reason, str) and "KiB" in reason


def test_two_linear_primitives_are_refused() -> None:
    m = Make()
    y = m("matmul", m("matmul", m.input(3, 4), m.input(4, 5)), m.input(5, 6))
    assert generate_nest(m.fragment(y), host_target()) == "a loop nest holds at most one linear primitive"


# The predicate.


def test_whatever_is_fusible_is_generated() -> None:
    yes = 0
    for seed in range(150):
        fragment = random_fragment(seed)
        if fusible(fragment.graph, range(len(fragment.graph))) is None:
            yes += 1
            assert not isinstance(generate_nest(fragment, host_target()), str), fragment.text
    assert yes > 60


def test_parts_of_fusible_sets_are_fusible() -> None:
    rng = np.random.default_rng(3)
    for seed in range(150):
        graph = random_fragment(seed).graph
        whole = list(range(len(graph)))
        if fusible(graph, whole) is None:
            for _ in range(8):
                part = [i for i in whole if rng.random() < 0.6]
                assert fusible(graph, part) is None


def test_the_rules_of_fusion() -> None:
    m = Make()
    a, b = m.input(8, 512, 64), m.input(64, 32)
    y = m("matmul", m("abs", a), b)  # 0, 1
    z = m("neg", m("transpose", y, perm=(0, 2, 1)))  # 2, 3
    s = m("reduce_sum", z, axes=(2,))  # 4
    m("cumsum", s, axis=1, exclusive=False, reverse=False)  # 5
    m("matmul", y, m("neg", m.input(32, 3)))  # 6, 7
    t = m("reduce_max", m("reduce_sum", a, axes=(2,)), axes=(1,))  # 8, 9
    m("reduce_max", a, axes=(0,))  # 10
    assert t
    graph = m.fragment(y).graph
    assert fusible(graph, [0, 1, 2, 3]) is None
    assert fusible(graph, [1, 2, 3, 4]) == "a reduction beside a linear primitive"
    assert fusible(graph, [5]) is None
    assert fusible(graph, [4, 5]) == "opaque primitives stand alone"
    assert fusible(graph, [1, 7]) == "two linear primitives without a softmax between"
    assert fusible(graph, [6, 7]) == "neg on a linear primitive's weights"
    assert fusible(graph, [8, 9]) is None
    assert fusible(graph, [8, 10]) == "reduce_sum and reduce_max over unlike axes"
    assert fusible(graph, [0, 2, 3], FusionRules(definitions=2)) == "more than 2 primitives"
