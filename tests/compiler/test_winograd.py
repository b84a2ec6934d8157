"""Winograd's kernels: their transforms, accuracy, borders, the bounds of what they read, and inputs not finite."""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from korch.codegen.c.backend import kernel_hash
from korch.codegen.c.linear import linear_implementations
from korch.codegen.c.linear.winograd import is_exact
from korch.codegen.c.linear.winograd_error import error_ratio, input_matrix, output_matrix
from korch.codegen.c.linear.winograd_transform import filters, input_sums, output_sums, transformed_weights
from korch.codegen.c.prelude import prelude
from korch.codegen.kernel import Kernel
from korch.codegen.target import host_features, target_named
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.costs.database import Database
from korch.costs.measure import Choice, Measurer, Offer, Setting
from korch.ir.fragment import Fragment
from tests.compiler import linear_cases
from tests.compiler.linear_cases import Build, Library, oracle, random_inputs

LAST = (0, 2, 3, 1)  # channels last
TARGETS = ("x86_64", "x86_64_v3", "x86_64_v4")
FAMILIES = ("winograd4x4", "winograd2x2")
# Relative L2 errors grow as a random walk over the C input channels. In units of sqrt(C) roundings of float32 they
# are 1.2 to 2.15 and 0.42 to 0.68 (the fewer channels, the more).
LARGEST = {"winograd4x4": 2.5, "winograd2x2": 0.8}


def conv(
    x: tuple[int, ...],
    outputs: int,
    pads: tuple[int, ...] = (1, 1, 1, 1),
    place: tuple[int, ...] | None = None,
    order: tuple[int, ...] = LAST,
    out: tuple[int, ...] = LAST,
    fused: str = "",
    **attributes: int | tuple[int, ...],
) -> Fragment:
    """A 3x3 convolution; `fused` may name bias, residual, relu, twice (two outputs), before and upsample."""
    g = Build()
    y = g.input(*x, order=order, strides=place)
    if "before" in fused:
        y = g.op("max", g.op("mul", y, g.spread(g.weight(x[1]), x, 1)), g.spread(g.constant(0.1), x))
    if "upsample" in fused:
        for axis in (2, 3):
            size = g.shape(y)[axis] * 2
            y = g.op("take", y, axis=axis, indices=tuple(i // 2 for i in range(size)))
            y = g.op("take", y, axis=axis, indices=(1, *range(size), size - 2))
    w = g.weight(outputs, x[1] // attributes.get("groups", 1), 3, 3)
    y = g.op("conv", y, w, **{"strides": (1, 1), "dilations": (1, 1), "pads": pads, "groups": 1, **attributes})
    both = [y] if "twice" in fused else []
    shape = g.shape(y)
    if "bias" in fused:
        y = g.op("add", y, g.spread(g.weight(outputs), shape, 1))
    if "residual" in fused:
        y = g.op("add", y, g.input(*shape, order=out))
    if "relu" in fused:
        y = g.op("max", y, g.spread(g.constant(0.0), shape))
    found = (*both, y)
    return g.fragment(*found, orders=dict.fromkeys(found, out))


CASES: dict[str, Fragment] = {
    "whole tiles": conv((1, 16, 8, 12), 16, fused="bias relu"),
    "every remainder": conv((2, 21, 9, 11), 35, fused="bias residual"),
    "one column more": conv((1, 17, 13, 14), 50),
    "smallest map": conv((1, 16, 4, 4), 16),
    "unpadded": conv((1, 24, 10, 9), 20, pads=(0, 0, 0, 0)),
    "uneven pads": conv((1, 16, 7, 8), 16, pads=(0, 2, 3, 1)),
    "pads beyond the kernel": conv((1, 16, 5, 6), 16, pads=(4, 5, 3, 6)),
    "cropped": conv((1, 16, 12, 11), 16, pads=(-1, -2, -1, 0)),
    "row-major input": conv((1, 18, 7, 9), 16, order=(0, 1, 2, 3)),
    "row-major output": conv((1, 16, 7, 9), 18, out=(0, 1, 2, 3), fused="bias"),
    "slot of a wider buffer": conv((2, 16, 9, 9), 16, place=(9 * 9 * 40, 1, 9 * 40, 40)),
    "two outputs": conv((1, 16, 9, 8), 16, fused="twice bias relu"),
    "prologue": conv((2, 20, 9, 10), 16, fused="before bias"),
    "long patches": conv((1, 16, 5, 90), 16, fused="before"),
    "upsampled and reflected": conv((1, 20, 5, 7), 16, pads=(0, 0, 0, 0), fused="before upsample bias"),
    "upsampled alone": conv((1, 16, 6, 5), 16, pads=(0, 0, 0, 0), fused="upsample"),
    "many tasks": conv((1, 32, 37, 50), 48),
    "by panels": conv((1, 256, 10, 9), 160, fused="bias relu"),
    "by panels, images together": conv((3, 130, 9, 5), 150),
    "by panels after a prologue": conv((1, 128, 11, 13), 128, fused="before"),
}


def kernels_of(fragment: Fragment, target: str) -> list[Kernel]:
    found = linear_implementations(fragment, target_named(target))
    assert not isinstance(found, str), found
    return [k for k in found if k.family in FAMILIES]


# For the machine's widest vectors all cases, for narrower ones those where lanes matter.
NARROW = ("every remainder", "row-major input", "two outputs", "prologue", "many tasks", "by panels")
HOST = [t for t in TARGETS if set(target_named(t).features) <= host_features()]


def names_for(target: str) -> list[str]:
    return [name for name in CASES if target == HOST[-1] or name in NARROW]


RUNS = [(target, name) for target in HOST for name in names_for(target)]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The kernels for a target, compiled when they are first asked for."""

    @functools.cache
    def library(target: str) -> Library:
        cases = [(CASES[name], k) for name in names_for(target) for k in kernels_of(CASES[name], target)]
        return Library(cases, target_named(target), tmp_path_factory.mktemp("winograd"))

    return library


def numbers(library: Library, name: str) -> list[int]:
    return [k for k, (f, _) in enumerate(library.cases) if f is CASES[name]]


class FrontGuarded:
    """Memory that starts exactly where the page before may not be touched."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, (-(-size // page) + 2) * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(page), 0) == 0
        self.address = base + page
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))

    def array(self, dtype: np.dtype | type) -> np.ndarray:
        return self.bytes.view(dtype)


@pytest.mark.parametrize(("target", "name"), RUNS)
def test_meaning(libraries, target, name, monkeypatch):
    """Accurate, whatever the order of tasks; with a page that may not be touched behind each buffer, then before."""
    library, inputs = libraries(target), random_inputs(CASES[name])
    reference = oracle(CASES[name], inputs)
    found, channels = numbers(library, name), inputs["i0"].shape[1]
    assert [library.cases[k][1].family for k in found] == list(FAMILIES)
    for k in found:
        got = library.run(k, inputs)
        with monkeypatch.context() as patch:
            patch.setattr(linear_cases, "Guarded", FrontGuarded)
            again = library.run(k, inputs, forward=True)
        for v, wanted in reference.items():
            error = np.linalg.norm(got[v] - wanted) / np.linalg.norm(wanted)
            assert error < LARGEST[library.cases[k][1].family] * 2.0**-24 * channels**0.5
            assert got[v].tobytes() == again[v].tobytes(), "the order of tasks matters"


@pytest.mark.parametrize("name", ["every remainder", "by panels", "prologue"])
@pytest.mark.parametrize("target", HOST)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inputs_not_finite(libraries, target, name, value):
    """What the definition makes not finite stays so; other tiles, and all of other images, are as without it."""
    library, fragment, inputs = libraries(target), CASES[name], random_inputs(CASES[name])
    spoilt = {v: a.copy() for v, a in inputs.items()}
    spoilt["i0"][0, 3, 4, 5] = value
    (output,) = oracle(fragment, inputs)
    with np.errstate(invalid="ignore"):
        wanted = oracle(fragment, spoilt)[output]
    for k in numbers(library, name):
        clean, got = library.run(k, inputs)[output], library.run(k, spoilt)[output]
        finite = np.isfinite(got)
        assert not np.any(finite & ~np.isfinite(wanted))
        m = 4 if library.cases[k][1].family == "winograd4x4" else 2
        # Outputs of tiles whose input holds row 4 and column 5; the maps begin one row and column outside.
        rows = [r for r in range(wanted.shape[2]) if r // m * m - 1 <= 4 <= r // m * m + m]
        columns = [c for c in range(wanted.shape[3]) if c // m * m - 1 <= 5 <= c // m * m + m]
        touched = np.zeros(wanted.shape, bool)
        touched[0, :, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
        assert np.all(finite | touched)
        assert np.array_equal(got[~touched], clean[~touched])


@pytest.mark.parametrize("m", [2, 4])
def test_the_transforms_are_a_convolution(m):
    """A' [(G g) . (B' d)] in exact enough arithmetic, from the C expressions themselves."""
    rng = np.random.default_rng(m)
    d, g = rng.standard_normal(m + 2), rng.standard_normal(3)
    scope = {"KERNEL_scaled": lambda k, a, b: k * a + b, "d": d}

    def value(text: str, values: np.ndarray) -> float:
        return eval(text.replace("f,", ",").replace("f *", " *"), {**scope, "d": values})

    names = [f"d[{i}]" for i in range(m + 2)]
    transformed = np.array([value(text, d) for text in input_sums(m, names)])
    found = [value(text, filters(m) @ g * transformed) for text in output_sums(m, names)]
    assert np.allclose(found, np.correlate(d, g, "valid"), rtol=1e-12, atol=1e-12)


def test_weights_are_rounded_once():
    w = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    found = transformed_weights(4, w)
    assert found.shape == (36, 2, 3) and found.dtype == np.float32
    g = filters(4)
    wanted = g @ w[2, 1].astype(np.float64) @ g.T
    assert np.array_equal(found[:, 1, 2], wanted.astype(np.float32).reshape(-1))


def test_kernels_say_that_they_are_not_exact():
    found = linear_implementations(CASES["whole tiles"], target_named("x86_64_v3"))
    assert not isinstance(found, str)
    assert {k.family: is_exact(k) for k in found} == {"winograd4x4": False, "winograd2x2": False, "conv": True}


@pytest.mark.parametrize(
    "fragment",
    [
        conv((1, 15, 8, 8), 16),
        conv((1, 16, 8, 8), 15),
        conv((1, 16, 3, 8), 16),
        conv((1, 16, 9, 9), 16, dilations=(2, 2)),
        conv((1, 16, 9, 9), 16, strides=(2, 1)),
        conv((1, 32, 9, 9), 32, groups=2),
    ],
    ids=["few inputs", "few outputs", "flat map", "dilated", "strided", "grouped"],
)
def test_not_offered(fragment):
    assert kernels_of(fragment, "x86_64_v3") == []


@pytest.mark.parametrize("name", CASES)
def test_generation_is_deterministic(name):
    first, second = kernels_of(CASES[name], "aarch64"), kernels_of(CASES[name], "aarch64")
    assert first and first == second


def test_a_cross_compiled_kernel_compiles(tmp_path: Path):
    """The narrow vectors of another architecture, with fused multiply-add."""
    target = target_named("aarch64")
    text = "\n".join(
        k.source.replace("KERNEL", f"k{n}") for n, k in enumerate(kernels_of(CASES["prologue"], "aarch64"))
    )
    compile_shared(find_toolchain(), f"{prelude(target, text)}\n{text}", target, tmp_path / "arm.so")
    assert (tmp_path / "arm.so").stat().st_size > 1000


# Accuracy on the model's own weights


@pytest.mark.parametrize("m", [2, 4])
def test_the_matrices_are_what_the_c_expressions_compute(m: int) -> None:
    known = {"KERNEL_scaled": lambda k, a, b: k * a + b}
    for matrix, sums in ((input_matrix(m), input_sums), (output_matrix(m), output_sums)):
        d = np.random.default_rng(m).standard_normal(m + 2)
        names = {f"d{k}": v for k, v in enumerate(d)}
        texts = [re.sub(r"([0-9.])f\b", r"\1", text) for text in sums(m, list(names))]
        np.testing.assert_allclose(matrix @ d, [eval(text, known, names) for text in texts], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [2, 4])
def test_usual_weights_lose_little(m: int) -> None:
    weights = np.random.default_rng(1).standard_normal((64, 128, 3, 3))
    assert 0.2 < error_ratio(m, weights) < 5
    assert error_ratio(m, np.zeros((16, 16, 3, 3))) == 1


def test_weights_that_need_the_direct_sum_are_refused() -> None:
    """Filters of one tap, which the direct sum adds almost without rounding."""
    weights = np.random.default_rng(1).standard_normal((64, 128, 3, 3)).astype(np.float32)
    shifts = np.where(np.arange(9).reshape(3, 3) == 0, weights, 0)
    kernel = next(k for k in kernels_of(conv((1, 128, 16, 16), 64), "x86_64_v3") if k.family == "winograd4x4")
    (packed,) = kernel.packed
    assert packed.guard is not None
    assert packed.guard(weights) is None
    assert "times that of the direct sum" in (packed.guard(shifts) or "")
    shifts[0, 0, 0, 0] = np.nan
    assert packed.guard(shifts) is None  # NaN comes out as NaN either way


def test_the_next_best_kernel_takes_weights_that_winograd_refuses(tmp_path: Path) -> None:
    fragment, target = conv((1, 128, 16, 16), 64), target_named("x86_64_v3")
    kernels = kernels_of(fragment, "x86_64_v3")
    setting = Setting("test", find_toolchain(), target, 1, tmp_path / "none.so")
    with Database(tmp_path / "costs.sqlite") as database:
        measurer = Measurer(setting, database)
        order = sorted(range(len(kernels)), key=lambda k: kernels[k].family != "winograd4x4")
        measurer.ranked[fragment.key] = tuple(
            Choice(1.0 + n, Offer(k, kernel_hash(kernels[k]), kernels[k].label, kernels[k].exact))
            for n, k in enumerate(order)
        )
        (name,) = fragment.weights
        weights = np.random.default_rng(1).standard_normal((64, 128, 3, 3)).astype(np.float32)
        assert measurer.kernel(fragment, {name: weights}).family == "winograd4x4"
        assert measurer.dropped == []
        shifts = np.where(np.arange(9).reshape(3, 3) == 0, weights, 0)
        assert measurer.kernel(fragment, {name: shifts}) == kernels[order[1]]
        (dropped,) = measurer.dropped
        assert dropped.label.startswith("winograd4x4") and "direct sum" in dropped.reason
