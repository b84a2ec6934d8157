"""The C prelude against NumPy: every elementwise primitive at every dtype, memory access, conversions, routines."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from dataclasses import dataclass

import numpy as np
import pytest

from korch.codegen.c.prelude import expression, literal, prelude, register_tag, storage_tag
from korch.codegen.target import TARGETS, Target, host_features, host_target, target_named
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.ir.graph import Attribute, Definition
from korch.ir.primitives import ROWS, TABLE
from korch.ir.primitives.primitive import FLOAT, NUMBER
from korch.ir.types import CODES, DType, TensorType

ELEMENTWISE = [row for row in ROWS if row.kind == "elementwise"]
DTYPES = tuple(d for d in DType if d not in CODES)
# Of all pairs of dtypes, those whose code differs.
POW_BASES = (DType.FLOAT64, DType.FLOAT32, DType.INT64, DType.UINT8)
POW_EXPONENTS = (DType.FLOAT32, DType.INT32, DType.UINT8)
EXPORT = '__attribute__((visibility("default")))'


def machine_targets() -> list[Target]:
    """The instruction sets that this machine has: wide ones and narrow ones take different paths in the prelude."""
    features = host_features()
    own = host_target()
    return [t for t in TARGETS if t.triple == own.triple and features.issuperset(t.features)]


@dataclass(frozen=True)
class Case:
    """One elementwise primitive at certain dtypes."""

    primitive: str
    dtypes: tuple[DType, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()

    @property
    def types(self) -> list[TensorType]:
        return [TensorType(d, (1,)) for d in self.dtypes]

    @property
    def result(self) -> TensorType:
        return TABLE[self.primitive].infer(self.types, dict(self.attributes))[0]

    @property
    def definition(self) -> Definition:
        return Definition(self.primitive, tuple("xyz"[: len(self.dtypes)]), ("r",), self.attributes)

    @property
    def label(self) -> str:
        return "_".join([self.primitive, *(d.value for d in self.dtypes), *(str(v) for _, v in self.attributes)])


def cases_of(name: str) -> list[Case]:
    """A row's cases: all dtypes, all choices of its attributes."""
    row = TABLE[name]
    dtypes = [d for d in DTYPES if d in row.dtypes]
    if name == "cast":
        return [Case(name, (d,), (("to", to.value),)) for d in dtypes for to in DTYPES]
    if name == "bitcast":
        pairs = itertools.product(dtypes, repeat=2)
        return [Case(name, (d,), (("to", to.value),)) for d, to in pairs if d.size == to.size]
    if name == "isinf":
        flags = itertools.product((False, True), repeat=2)
        return [Case(name, (d,), (("negative", n), ("positive", p))) for d in dtypes for n, p in flags]
    if name == "pow":
        pairs = itertools.product(dtypes, repeat=2)
        return [Case(name, (a, b)) for a, b in pairs if a is b or (a in POW_BASES and b in POW_EXPONENTS)]
    if name == "where":
        return [Case(name, (DType.BOOL, d, d)) for d in dtypes]
    return [Case(name, (d,) * row.arity[0]) for d in dtypes]


def function(case: Case) -> str:
    """`void LABEL(pointers, n)`: the case over n elements, a multiple of the lanes."""
    tags = [storage_tag(d) for d in case.dtypes]
    result, out = case.result, storage_tag(case.result.dtype)
    value = expression(case.definition, ["x", "y", "z"][: len(tags)], case.types, result)
    loads = "".join(
        f"    v{register_tag(d)} {n} = korch_load_{t}((const {t} *)p[{k}] + i);\n"
        for k, (n, d, t) in enumerate(zip("xyz", case.dtypes, tags, strict=False))
    )
    store = f"korch_store_{out}(({out} *)p[{len(tags)}] + i, r);"
    return (
        f"{EXPORT} void {case.label}(char *const *p, int64_t n) {{\n  for (int64_t i = 0; i < n; i += W) {{\n{loads}"
        f"    v{register_tag(result.dtype)} r = {value};\n    {store}\n  }}\n}}\n"
    )


def compile_text(text: str, target: Target, directory, optimize: str = "-O1") -> ctypes.CDLL:
    output = directory / f"{target.name}.so"
    compile_shared(find_toolchain(), f"{prelude(target, text)}\n{text}", target, output, optimize=optimize)
    return ctypes.CDLL(str(output))


def call(function, *arrays: np.ndarray, count: int) -> None:
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    function(pointers, ctypes.c_int64(count))


def adversarial(dtype: DType) -> np.ndarray:
    """The values on which such code goes wrong."""
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        values = {
            limits.min,
            limits.min + 1,
            limits.max - 1,
            limits.max,
            limits.max // 2,
            0,
            1,
            2,
            3,
            7,
            8,
            16,
            31,
            63,
            100,
        }
        signed = {-1, -2, -3, -7, -100} if limits.min < 0 else set[int]()
        return np.array(sorted(values | signed), dtype.numpy)
    powers = [2.0**k for k in (-24, -14, 7, 8, 11, 15, 16, 23, 24, 31, 32, 52, 53, 63, 64, 120)]
    values = [
        0.0,
        0.25,
        0.3,
        0.5,
        0.6,
        1.0,
        1.1,
        1.5,
        2.0,
        2.5,
        3.0,
        7.0,
        9.3,
        22.5,
        88.6,
        88.8,
        104.5,
        127.5,
        128.0,
        254.7,
    ]
    values += [255.5, 32767.5, 65504.0, 65519.0, 65520.0, 2147483520.0, np.pi / 2, np.pi, 1e5, 1e22, np.inf, np.nan]
    with np.errstate(all="ignore"):
        found = np.array(values + powers, np.float64).astype(dtype.numpy).astype(np.float64)
        edges = [float(np.nextafter(np.float32(1), np.float32(k))) for k in (0, 2)] + [
            5e-324,
            1e-45,
            1e-40,
            6e-8,
            1.2e-38,
        ]
        found = np.concatenate([found, np.array(edges)])
        found = np.concatenate([found, -found]).astype(dtype.numpy)
        least, greatest = lowest_denormal(dtype), greatest_float(dtype)
    return np.concatenate([found, np.array([least, -least, greatest, -greatest], dtype.numpy)])


def lowest_denormal(dtype: DType) -> float:
    return float(np.array(1, f"u{dtype.size}").view(dtype.numpy))


def greatest_float(dtype: DType) -> float:
    infinity = np.array(np.inf, dtype.numpy).view(f"u{dtype.size}")
    return float((infinity - infinity.dtype.type(1)).view(dtype.numpy))


def random_values(dtype: DType, low: float, high: float, count: int, generator: np.random.Generator) -> np.ndarray:
    """Half over the domain, half over all bit patterns (which most floats of great and small exponents are)."""
    if dtype is DType.BOOL:
        return generator.integers(0, 2, count).astype(np.bool_)
    bits = generator.integers(0, 256, (count // 2) * dtype.size, np.uint8).view(dtype.numpy)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        inside = generator.integers(max(limits.min, -20), min(limits.max, 20), count - count // 2)
    else:
        inside = generator.uniform(low, high, count - count // 2)
    return np.concatenate([inside.astype(dtype.numpy), bits])


def operands(case: Case) -> list[np.ndarray]:
    """Random values in the primitive's domain, then every combination of adversarial ones."""
    generator = np.random.default_rng(len(case.label))
    domain = TABLE[case.primitive].domain
    with np.errstate(all="ignore"):
        drawn = [random_values(d, *domain.of(k), 501, generator) for k, d in enumerate(case.dtypes)]
    corners = [adversarial(d) for d in case.dtypes]
    if len(corners) == 3:
        corners[1], corners[2] = corners[1][:12], corners[2][-12:]
    grid = np.meshgrid(*corners, indexing="ij")
    both = [np.concatenate([d, g.ravel().astype(d.dtype)]) for d, g in zip(drawn, grid, strict=True)]
    return [np.resize(x, -(-x.size // 16) * 16) for x in both]  # a multiple of every target's lanes


def exact_match(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Equal, or both NaN. Zeros of either sign are equal."""
    with np.errstate(all="ignore"):
        return (got == want) | ((got != got) & (want != want))


def ulp_errors(got: np.ndarray, exact: np.ndarray, dtype: DType) -> np.ndarray:
    """Errors in units in the last place of the exact result in that dtype; inf where only one is NaN or infinite."""
    digits = {DType.FLOAT64: 52, DType.FLOAT32: 23, DType.FLOAT16: 10, DType.BFLOAT16: 7}[dtype]
    got = got.astype(np.float64)
    # Infinity is the next number after the greatest one.
    infinity = np.ldexp(1.0, int(np.frexp(greatest_float(dtype))[1])) if dtype is not DType.FLOAT64 else np.inf
    got, exact = np.clip(got, -infinity, infinity), np.clip(exact, -infinity, infinity)
    _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 0.0))
    ulp = np.maximum(np.ldexp(1.0, exponent - 1 - digits), lowest_denormal(dtype))
    agree = (np.isnan(got) & np.isnan(exact)) | (got == exact)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - exact) / ulp
    return np.where(agree, 0.0, np.where(np.isnan(error), np.inf, error))


def check(case: Case, library: ctypes.CDLL) -> str:
    """Empty, or what is wrong with the first failing element."""
    row, dtype = TABLE[case.primitive], case.result.dtype
    inputs, attributes = operands(case), dict(case.attributes)
    got = np.zeros(inputs[0].size, dtype.numpy)
    call(getattr(library, case.label), *inputs, got, count=got.size)
    with np.errstate(all="ignore"):
        if row.tolerance == 0 or not dtype.is_float:
            (want,) = row.numpy(inputs, attributes)
            wrong = ~exact_match(got, want)
            if case.primitive == "pow" and case.dtypes[1].is_float:
                # Through float64 and truncated: 1e-15 may decide about the last place.
                size = np.abs(want.astype(np.float64))
                wrong &= np.abs(got.astype(np.float64) - want.astype(np.float64)) > np.maximum(1, 1e-15 * size)
            if case.primitive == "bitcast" and case.dtypes[0].is_float:
                # A NaN of a narrow float may become quiet on its way through float32.
                wrong &= (inputs[0] == inputs[0]) | (case.dtypes[0].size > 2)
        else:
            wide = [x.astype(np.float64) if DType.of(x.dtype).is_float else x for x in inputs]
            (want,) = row.numpy(wide, attributes)
            # 1e-15 for float64; half an ulp more where a float32 result is rounded to a narrower type.
            bound = {DType.FLOAT64: 5.0, DType.FLOAT32: row.tolerance}.get(dtype, 0.51)
            wrong = ulp_errors(got, want, dtype) > bound
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    values = ", ".join(repr(x[at]) for x in inputs)
    return f"{case.label}({values}) = {got[at]!r}, not {want[at]!r} ({int(wrong.sum())} of {wrong.size} wrong)"


@pytest.fixture(scope="module", params=machine_targets(), ids=lambda t: t.name)
def target(request) -> Target:
    return request.param


@pytest.fixture(scope="module")
def library(target: Target, tmp_path_factory) -> ctypes.CDLL:
    cases = [case for row in ELEMENTWISE for case in cases_of(row.name)]
    return compile_text("".join(map(function, cases)), target, tmp_path_factory.mktemp("prelude"))


@pytest.mark.parametrize("name", [row.name for row in ELEMENTWISE])
def test_elementwise_primitive_equals_its_numpy_meaning(name: str, library: ctypes.CDLL):
    failures = [message for case in cases_of(name) if (message := check(case, library))]
    assert not failures, "\n".join(failures)


def test_powers_stay_exact_where_the_exponent_magnifies_the_logarithm(library: ctypes.CDLL):
    generator = np.random.default_rng(0)
    for reach in (300.0, 1.0, 1e-3):
        x = np.exp(generator.uniform(-reach, reach, 4096))
        y = generator.uniform(-700, 700, 4096) / np.log(x)
        got = np.zeros_like(x)
        call(library.pow_float64_float64, x, y, got, count=x.size)
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        assert np.max(np.abs(got - exact) / exact) < 1e-15


def test_every_primitive_links_without_libraries_on_aarch64(tmp_path):
    cases = [case for row in ELEMENTWISE for case in cases_of(row.name)]
    text = "".join(map(function, cases))
    target = target_named("aarch64")
    # The linker refuses undefined symbols, such as a call of floorf or of a conversion routine.
    compile_shared(find_toolchain(), f"{prelude(target, text)}\n{text}", target, tmp_path / "a.so", optimize="-O1")


MEMORY = "".join(
    f"""
{EXPORT} void whole_{t}({t} **p, int64_t n) {{ korch_store_{t}(p[1], korch_load_{t}(p[0])); }}
{EXPORT} void part_{t}({t} **p, int64_t n) {{ korch_store_n_{t}(p[1], korch_load_n_{t}(p[0], n), n); }}
{EXPORT} void filled_{t}({t} **p, int64_t n) {{ korch_store_{t}(p[1], korch_load_n_{t}(p[0], n)); }}
{EXPORT} void spread_{t}({t} **p, int64_t s) {{ korch_scatter_{t}(p[1], s, korch_load_{t}(p[0])); }}
{EXPORT} void collect_{t}({t} **p, int64_t s) {{ korch_store_{t}(p[1], korch_gather_{t}(p[0], s)); }}
{EXPORT} void spread_n_{t}({t} **p, int64_t n) {{ korch_scatter_n_{t}(p[1], 3, korch_load_n_{t}(p[0], n), n); }}
{EXPORT} void collect_n_{t}({t} **p, int64_t n) {{ korch_store_n_{t}(p[1], korch_gather_n_{t}(p[0], 3, n), n); }}
{EXPORT} void one_{t}({t} **p, int64_t n) {{ korch_store_{t}(p[1], korch_broadcast_{t}(p[0])); }}
"""
    for t in map(storage_tag, DTYPES)
)
REDUCE = "".join(
    f"{EXPORT} void {op}_{t}({t} **p, int64_t n) {{ *p[1] = korch_reduce_{op}_{t}(korch_load_{t}(p[0])); }}\n"
    for t in map(storage_tag, DTYPES)
    for op in ("sum", "prod", "max", "min")
    if t not in ("f16", "bf16") and (t != "b8" or op in ("max", "min"))
) + "".join(
    f"{EXPORT} void iota_{t}({t} **p, int64_t n) {{ korch_store_{t}(p[0], korch_iota_{t}() + korch_splat_{t}(3)); }}\n"
    for t in map(storage_tag, DTYPES)
    if t not in ("f16", "bf16", "b8")
)
ROUTINES = f"""
{EXPORT} void *own_memcpy(void *a, const void *b, size_t n) {{ return memcpy(a, b, n); }}
{EXPORT} void *own_memmove(void *a, const void *b, size_t n) {{ return memmove(a, b, n); }}
{EXPORT} void *own_memset(void *a, int v, size_t n) {{ return memset(a, v, n); }}
{EXPORT} int own_memcmp(const void *a, const void *b, size_t n) {{ return memcmp(a, b, n); }}
"""


@pytest.fixture(scope="module")
def access(target: Target, tmp_path_factory) -> ctypes.CDLL:
    text = MEMORY + REDUCE + ROUTINES
    return compile_text(text, target, tmp_path_factory.mktemp("access"))


class Guarded:
    """Memory that ends where an inaccessible page begins: a read or write too far is a crash."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 3 * mmap.PAGESIZE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(self._start + 2 * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0

    def array(self, count: int, dtype: np.dtype) -> np.ndarray:
        """An array of `count` elements that ends at the page."""
        size = count * dtype.itemsize
        buffer = (ctypes.c_char * size).from_address(self._start + 2 * mmap.PAGESIZE - size)
        return np.frombuffer(buffer, dtype, count)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_access_stays_inside_and_moves_what_it_should(dtype: DType, access: ctypes.CDLL, target: Target):
    lanes, tag, numpy = target.lanes(), storage_tag(dtype), dtype.numpy
    source, sink, generator = Guarded(), Guarded(), np.random.default_rng(0)

    def fill(count: int) -> np.ndarray:
        x = source.array(count, numpy)
        x[:] = random_values(dtype, -9, 9, 2 * count, generator)[:count]
        return x

    def run(name: str, x: np.ndarray, outputs: int, argument: int) -> np.ndarray:
        out = sink.array(outputs, numpy)
        out[:] = 1
        call(getattr(access, f"{name}_{tag}"), x, out, count=argument)
        return out

    x = fill(lanes)
    assert exact_match(run("whole", x, lanes, 0), x).all()
    assert exact_match(run("one", x[-1:], lanes, 0), np.repeat(x[-1:], lanes)).all()
    for n in range(lanes + 1):
        x = fill(n)
        assert exact_match(run("part", x, n, n), x).all()
        assert exact_match(run("filled", x, lanes, n), np.concatenate([x, np.zeros(lanes - n, numpy)])).all()
        x, reach = fill(n), 3 * max(n - 1, 0) + (n > 0)
        want = np.ones(reach, numpy)
        want[::3] = x
        assert exact_match(run("spread_n", x, reach, n), want).all()
        x = fill(reach)
        assert exact_match(run("collect_n", x, n, n), x[::3]).all()
    for stride in (1, 2, 5):
        x, reach = fill(lanes), stride * (lanes - 1) + 1
        want = np.ones(reach, numpy)
        want[::stride] = x
        assert exact_match(run("spread", x, reach, stride), want).all()
        x = fill(reach)
        assert exact_match(run("collect", x, lanes, stride), x[::stride]).all()


def halving(x: np.ndarray, combine: np.ufunc) -> np.generic:
    """Lane i meets lane i ^ W/2, then i ^ W/4…"""
    with np.errstate(all="ignore"):
        while x.size > 1:
            x = combine(x[: x.size // 2], x[x.size // 2 :])
    return x[0]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.size != 2 or not d.is_float], ids=str)
def test_horizontal_reductions_take_one_fixed_order(dtype: DType, access: ctypes.CDLL, target: Target):
    lanes, tag = target.lanes(), storage_tag(dtype)
    ufuncs = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    x, out = np.zeros(lanes, dtype.numpy), np.zeros(1, dtype.numpy)
    for seed in range(8):
        x[:] = random_values(dtype, -2, 2, 2 * lanes, np.random.default_rng(seed))[:lanes]
        if dtype.is_float and seed % 2:
            x[seed % lanes] = np.nan
        for name, ufunc in ufuncs.items():
            if dtype is DType.BOOL and name in ("sum", "prod"):
                continue
            call(getattr(access, f"{name}_{tag}"), x, out, count=0)
            assert exact_match(out, np.array([halving(x, ufunc)])).all(), (name, x, out)
    if dtype is not DType.BOOL:
        call(getattr(access, f"iota_{tag}"), x, count=0)
        assert (x == np.arange(3, 3 + lanes)).all()


def test_memory_routines(access: ctypes.CDLL):
    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8).tobytes()
    for size in [*range(0, 20), 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 777]:
        for shift in (0, 1, 7, 64, 200):
            copy, moved = ctypes.create_string_buffer(1000), ctypes.create_string_buffer(data, 1000)
            access.own_memcpy(ctypes.byref(copy, shift), data, ctypes.c_size_t(size))
            assert copy.raw == (bytes(shift) + data[:size]).ljust(1000, b"\0")
            access.own_memmove(ctypes.byref(moved, shift), moved, ctypes.c_size_t(size))
            assert moved.raw == data[:shift] + data[:size] + data[shift + size :]
            moved = ctypes.create_string_buffer(data, 1000)
            access.own_memmove(moved, ctypes.byref(moved, shift), ctypes.c_size_t(size))
            assert moved.raw == data[shift : shift + size] + data[size:]
        access.own_memset(copy, 0x1A5, ctypes.c_size_t(size))
        assert copy.raw[:size] == b"\xa5" * size
        other = bytearray(data)
        if size:
            other[size - 1] ^= 0x80
        signs = [
            access.own_memcmp(a, b, ctypes.c_size_t(size)) for a, b in ((data, bytes(other)), (bytes(other), data))
        ]
        expected = (data > bytes(other)) - (data < bytes(other))
        assert signs == [expected, -expected]
        assert access.own_memcmp(data, data, ctypes.c_size_t(size)) == 0


def test_literals_are_exact(tmp_path):
    values = [np.array(v, d.numpy)[()] for d in DTYPES for v in adversarial(d)]
    kept = [d for v in values if (d := DType.of(v.dtype)) not in (DType.FLOAT16, DType.BFLOAT16)]
    plain = [v for v in values if DType.of(v.dtype) in kept]
    text = "".join(
        f"{EXPORT} void c{k}({storage_tag(DType.of(v.dtype))} *p) {{ *p = {literal(v)}; }}\n"
        for k, v in enumerate(plain)
    )
    library = compile_text(text, host_target(), tmp_path, "-O0")
    for k, value in enumerate(plain):
        out = np.zeros(1, value.dtype)
        getattr(library, f"c{k}")(ctypes.c_void_p(out.ctypes.data))
        assert exact_match(out, np.array([value])).all()
        assert np.signbit(out[0]) == np.signbit(value) or value != value


def test_a_file_gets_what_it_uses_and_no_more():
    target = host_target()
    text = prelude(target, "korch_store_f32(p, korch_exp_f32(korch_load_f32(p)))")
    assert "korch_exp_f32(vf32 x)" in text and "korch_fma_f32(" in text
    assert "korch_erf" not in text and "vf64" not in text.replace("typedef f64 vf64", "")
    assert prelude(target, ["korch_exp_f32", "korch_store_f32", "korch_load_f32"]) == text
    assert len(text) < len(prelude(target)) / 8


def test_float16_is_computed_in_float32_and_cast_rounds():
    half, single = TensorType(DType.FLOAT16, (2,)), TensorType(DType.FLOAT32, (2,))
    assert expression(Definition("exp", ("x",), ("y",)), ["x"], [half], half) == "korch_exp_f32(x)"
    cast = Definition("cast", ("x",), ("y",), (("to", "float16"),))
    assert expression(cast, ["x"], [single], half) == "korch_cast_f32_f16(x)"


def names_of(target: Target) -> set[str]:
    text = prelude(target)
    return {word.split("(")[0] for word in text.replace("*", " ").split() if word.startswith("korch_") and "(" in word}


def test_every_elementwise_row_has_c_text_at_every_dtype():
    defined = names_of(host_target())
    missing: list[str] = []
    for row in ELEMENTWISE:
        cases = cases_of(row.name)
        if row.name == "pow":
            cases = [Case("pow", pair) for pair in itertools.product(NUMBER, repeat=2)]
        for case in cases:
            text = expression(case.definition, ["x", "y", "z"], case.types, case.result)
            if "korch_" in text and text.split("(")[0] not in defined:
                missing.append(text)
    assert not missing


def test_the_tolerances_cover_the_float_functions():
    """What is not computed exactly says so; everything else is held to equality above."""
    inexact = {row.name for row in ELEMENTWISE if row.tolerance}
    functions = {row.name for row in ELEMENTWISE if row.dtypes == FLOAT} - {"isnan", "isinf", "floor", "ceil", "round"}
    assert inexact == functions | {"pow"}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_constant_count_of_narrow_lanes_stores_no_more(count: int, target: Target, tmp_path):
    """What is narrowed just before: clang stores four bytes of a lane when it sees that there is but one."""
    kinds = {"bf16": "korch_splat_f32(x)", "i16": "korch_cast_f32_i16(korch_splat_f32(x))"}
    kinds["i8"] = "korch_cast_f32_i8(korch_splat_f32(x))"
    text = "".join(
        f"{EXPORT} void store_{kind}({kind} *p, float x) {{ korch_store_n_{kind}(p, {value}, {count}); }}\n"
        for kind, value in kinds.items()
    )
    library = compile_text(text, target, tmp_path)
    for kind, size in (("bf16", 2), ("i16", 2), ("i8", 1)):
        memory = np.full(64, 0xA5, np.uint8)
        store = getattr(library, f"store_{kind}")
        store.argtypes, store.restype = (ctypes.c_void_p, ctypes.c_float), None
        store(memory.ctypes.data, 3.0)
        assert (memory[count * size :] == 0xA5).all() and (memory[: count * size] != 0xA5).any()


def test_a_gate_is_as_its_primitives(target: Target, tmp_path):
    """a / (1 + exp(-x)) with a = 1 and a = x: within 2.5 ulp where exp(-x) is finite, 0 or NaN where it is infinite."""
    text = "".join(
        f"{EXPORT} void {name}(const f32 *x, f32 *y, int64_t n) {{ for (int64_t i = 0; i < n; i += W)"
        f" korch_store_f32(y + i, korch_gate_f32({a}, korch_load_f32(x + i))); }}\n"
        for name, a in (("sigmoid", "(vf32)1.0f"), ("silu", "korch_load_f32(x + i)"))
    )
    library = compile_text(text, target, tmp_path)
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 1 << 32, 1 << 15, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([bits, generator.uniform(-95, 95, 1 << 15).astype(np.float32), adversarial(DType.FLOAT32)])
    x = np.concatenate([x, np.zeros(-x.size % 16, np.float32)])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        e = np.exp(-wide)
        for name, a in (("sigmoid", 1.0), ("silu", wide)):
            y = np.empty_like(x)
            getattr(library, name)(*(ctypes.c_void_p(v.ctypes.data) for v in (x, y)), ctypes.c_int64(x.size))
            vanishing = x < -88.7  # exp(-x) is infinite in float32
            want = np.where(vanishing, a * 0.0, a / (1 + e))
            assert (np.isnan(y) == np.isnan(want)).all()
            assert (np.abs(y[vanishing & np.isfinite(want)]) < 1e-36).all()
            assert ulp_errors(y[~vanishing], want[~vanishing], DType.FLOAT32).max() < 2.5
