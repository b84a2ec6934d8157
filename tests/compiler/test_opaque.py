"""Opaque primitives against their NumPy meaning: every dtype family, layout, axis and edge of the definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from korch.codegen.c.opaque import opaque_implementations
from korch.codegen.target import host_target
from korch.ir.evaluate import evaluate
from korch.ir.fragment import Fragment
from korch.ir.layout import Layout
from korch.ir.types import DType
from tests.compiler.nest_cases import Library, Make

FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
INTEGERS = (DType.INT64, DType.INT32, DType.INT16, DType.INT8, DType.UINT64, DType.UINT32, DType.UINT16, DType.UINT8)
SHAPE = (3, 4, 7)


def strange(shape: tuple[int, ...]) -> Layout:
    """Reversed order, in a slot of a larger buffer."""
    order = tuple(reversed(range(len(shape))))
    strides = list(Layout.canonical(shape, order).strides_of(shape))
    strides[-1] += 2  # the slowest dimension
    return Layout.canonical(shape, order, tuple(strides))


def top_k_cases() -> Iterator[tuple[str, Fragment]]:
    for dtype, largest in itertools.product((*FLOATS, *INTEGERS), (True, False)):
        m = Make()
        x = m.input(*SHAPE, dtype=dtype)
        both = m.all("top_k", x, axis=2, k=3, largest=largest, sorted=True)
        yield f"top_k {dtype.value} largest={largest}", m.fragment(*both)
    for axis, k in ((0, 3), (1, 1), (2, 7), (2, 0), (1, 2)):
        m = Make()
        x = m.input(*SHAPE)
        values, at = m.all("top_k", x, axis=axis, k=k, largest=True, sorted=True)
        layouts = {x: strange(SHAPE), at: Layout.channels_last(m.types[at].shape)}
        yield f"top_k axis={axis} k={k}", m.fragment(values, at, layouts=layouts)
    m = Make()
    values, at = m.all("top_k", m.input(300), axis=0, k=40, largest=True, sorted=False)
    yield "top_k indices only", m.fragment(at)


def cumsum_cases() -> Iterator[tuple[str, Fragment]]:
    for dtype in (*FLOATS, *INTEGERS):
        m = Make()
        yield (
            f"cumsum {dtype.value}",
            m.fragment(m("cumsum", m.input(*SHAPE, dtype=dtype), axis=1, exclusive=False, reverse=False)),
        )
    for axis, exclusive, reverse in itertools.product((0, 2), (False, True), (False, True)):
        m = Make()
        x = m.input(*SHAPE)
        y = m("cumsum", x, axis=axis, exclusive=exclusive, reverse=reverse)
        yield f"cumsum {axis} {exclusive} {reverse}", m.fragment(y, layouts={y: strange(SHAPE)})
    m = Make()
    yield "cumsum empty", m.fragment(m("cumsum", m.input(3, 0), axis=1, exclusive=False, reverse=False))


def scatter_cases() -> Iterator[tuple[str, Fragment]]:
    kinds = ("none", "add", "mul", "max", "min")
    for dtype, kind in itertools.product((*FLOATS, DType.INT64, DType.INT8, DType.UINT8), kinds):
        m = Make()
        data, at, updates = (
            m.input(*SHAPE, dtype=dtype),
            m.input(3, 9, 7, dtype=DType.INT64),
            m.input(3, 9, 7, dtype=dtype),
        )
        y = m("scatter_elements", data, at, updates, axis=1, reduction=kind)
        yield f"scatter_elements {dtype.value} {kind}", m.fragment(y)
    for kind, layout in itertools.product(kinds, (False, True)):
        m = Make()
        data, at, updates = m.input(*SHAPE), m.input(5, 2, dtype=DType.INT32), m.input(5, 7)
        y = m("scatter_nd", data, at, updates, reduction=kind)
        layouts = {data: strange(SHAPE), y: strange(SHAPE), updates: strange((5, 7))} if layout else {}
        yield f"scatter_nd {kind} {layout}", m.fragment(y, layouts=layouts)
    m = Make()
    data, at, updates = m.input(5, dtype=DType.BOOL), m.input(3, dtype=DType.INT64), m.input(3, dtype=DType.BOOL)
    yield "scatter_elements bool", m.fragment(m("scatter_elements", data, at, updates, axis=0, reduction="none"))
    m = Make()
    data, at, updates = m.input(5), m.input(0, dtype=DType.INT64), m.input(0)
    yield "scatter_elements nothing", m.fragment(m("scatter_elements", data, at, updates, axis=0, reduction="add"))


CASES = dict((*top_k_cases(), *cumsum_cases(), *scatter_cases()))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    kernels = []
    for fragment in CASES.values():
        found = opaque_implementations(fragment, host_target())
        assert not isinstance(found, str), found
        kernels.append(found[0])
    return Library(kernels, host_target(), Path(tmp_path_factory.mktemp("opaque")))


def inputs_of(fragment: Fragment, seed: int) -> dict[str, np.ndarray]:
    """Few distinct values, so that there are ties; among floats NaN, infinities and both zeros. Indices leave the
    data at both ends."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for k, v in enumerate(fragment.graph.input_values):
        t = fragment.graph.types[v]
        if k == 1:
            found[v] = rng.integers(-6, 6, t.shape).astype(t.dtype.numpy)
        elif t.dtype.is_float:
            special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, np.nan, np.inf, -np.inf])
            weights = np.array([4, 4, 4, 4, 4, 4, 1, 1, 1]) / 27
            found[v] = rng.choice(special, t.shape, p=weights).astype(t.dtype.numpy)
        elif t.dtype is DType.BOOL:
            found[v] = rng.integers(0, 2, t.shape).astype(bool)
        else:
            limits = np.iinfo(t.dtype.numpy)
            some = np.array([limits.min, limits.max, 0, 1, 2, 3], t.dtype.numpy)
            found[v] = rng.choice(some, t.shape)
    return found


@pytest.mark.parametrize("name", CASES)
def test_equals_the_numpy_meaning(name: str, library: Library) -> None:
    fragment = CASES[name]
    number = list(CASES).index(name)
    for seed in range(3):
        inputs = inputs_of(fragment, seed)
        with np.errstate(all="ignore"):
            expected = evaluate(fragment.graph, inputs)
        for threads in (1, 3):
            got = library.run(number, fragment, inputs, threads, reverse=threads > 1)
            for v, reference in expected.items():
                assert got[v].dtype == reference.dtype
                exact = got[v], reference
                if reference.dtype.kind in "fV" or reference.dtype.itemsize == 2:
                    exact = tuple(a.astype(np.float64) for a in exact)  # bfloat16's NaN does not equal itself
                np.testing.assert_array_equal(*exact, strict=True)


def test_rows_become_tasks(tmp_path: Path) -> None:
    m = Make()
    x = m.input(64, 4096)
    found = opaque_implementations(m.fragment(m("cumsum", x, axis=1, exclusive=False, reverse=False)), host_target())
    assert not isinstance(found, str)
    assert "korch_parallel(runtime, 26," in found[0].source


def test_an_opaque_primitive_stands_alone() -> None:
    m = Make()
    x = m("neg", m.input(4))
    fragment = m.fragment(m("cumsum", x, axis=0, exclusive=False, reverse=False))
    assert opaque_implementations(fragment, host_target()) == "an opaque primitive stands alone in its kernel"
