"""The primitive table: complete, well-typed, and right in the corners that docs/primitives.md states."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korch.errors import InvalidInput
from korch.ir.evaluate import evaluate, evaluate_values
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import ROWS, TABLE
from korch.ir.primitives.primitive import ANY, FLOAT
from korch.ir.types import DType, TensorType

F32, F64, F16, I64, I32, I8, U8, BOOL = (
    DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.INT64, DType.INT32, DType.INT8, DType.UINT8, DType.BOOL,
)  # fmt: skip
NAN, INF = math.nan, math.inf
BF16 = np.dtype(ml_dtypes.bfloat16)


def t(dtype: DType, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


def run(name: str, *arrays: object, **attributes: object) -> np.ndarray:
    """The primitive's NumPy meaning, with the types that it infers checked against what it gives."""
    inputs = [np.asarray(a) for a in arrays]
    row = TABLE[name]
    types = row.infer([TensorType.of(a) for a in inputs], attributes)
    with np.errstate(all="ignore"):
        outputs = row.numpy(inputs, attributes)
    assert [TensorType.of(o) for o in outputs] == list(types)
    return outputs[0]


# One well-typed use for each row: input types and attributes.
CONV = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 0, 2), "groups": 2}
WINDOW = {"window": (1, 3), "strides": (1, 2), "dilations": (1, 1), "pads": (0, 1), "shape": (4, 3)}
USES: dict[str, tuple[tuple[TensorType, ...], dict[str, object]]] = {
    **{r.name: ((t(F32, 2, 3),) * r.arity[0], {}) for r in ROWS if r.kind == "elementwise" and F32 in r.dtypes},
    **{n: ((t(BOOL, 2, 3),) * TABLE[n].arity[0], {}) for n in ("not", "and", "or", "xor")},
    **{n: ((t(DType.UINT32, 2, 3),) * 2, {}) for n in ("shift_left", "shift_right")},
    "isinf": ((t(F32, 2, 3),), {"positive": True, "negative": False}),
    "cast": ((t(F32, 2, 3),), {"to": "float64"}),
    "bitcast": ((t(F32, 2, 3),), {"to": "int32"}),
    "where": ((t(BOOL, 2, 3), t(F32, 2, 3), t(F32, 2, 3)), {}),
    "broadcast": ((t(F32, 1, 3),), {"shape": (2, 4, 3), "axes": (1, 2)}),
    **{n: ((t(F32, 2, 3, 4),), {"axes": (0, 2)}) for n in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")},
    **{n: ((t(F32, 2, 3),), {"axis": 1, "last": False}) for n in ("arg_max", "arg_min")},
    **{n: ((t(F32, 4, 5),), WINDOW) for n in ("window_sum", "window_max")},
    "reshape": ((t(F32, 2, 3),), {"shape": (3, 2, 1)}),
    "transpose": ((t(F32, 2, 3),), {"perm": (1, 0)}),
    "slice": ((t(F32, 4, 5),), {"starts": (3, 1), "steps": (-2, 1), "shape": (2, 3)}),
    "pad": ((t(F32, 2, 3),), {"before": (1, 0), "shape": (4, 4), "value": 0.5}),
    "concat": ((t(F32, 2, 3), t(F32, 2, 1)), {"axis": 1}),
    "take": ((t(F32, 2, 3),), {"axis": 1, "indices": (2, 2, 0, 1)}),
    "matmul": ((t(F32, 5, 2, 3), t(F32, 5, 3, 4)), {}),
    "conv": ((t(F32, 2, 4, 5, 6), t(F32, 6, 2, 3, 2)), CONV),
    "conv_transpose": (
        (t(F32, 2, 4, 3, 3), t(F32, 4, 3, 2, 3)),
        {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0), "groups": 2, "shape": (2, 6, 6, 7)},
    ),
    "resample": (
        (t(F32, 2, 3),),
        {
            "axis": 1,
            "indices": ((0, 1), (1, 2), (2, 2), (0, 0)),
            "weights": ((0.5, 0.5), (0.25, 0.75), (1.0, 0.0), (1.0, 0.0)),
        },
    ),
    "gather": ((t(F32, 4, 3), t(I64, 2, 2)), {"axis": 0}),
    "gather_elements": ((t(F32, 4, 3), t(I64, 2, 3)), {"axis": 0}),
    "gather_nd": ((t(F32, 2, 4, 3), t(I64, 2, 5, 1)), {"batch_dims": 1}),
    "top_k": ((t(F32, 2, 5),), {"axis": 1, "k": 3, "largest": True, "sorted": True}),
    "cumsum": ((t(F32, 2, 5),), {"axis": 1, "exclusive": True, "reverse": False}),
    "scatter_elements": ((t(F32, 4, 3), t(I64, 2, 3), t(F32, 2, 3)), {"axis": 0, "reduction": "add"}),
    "scatter_nd": ((t(F32, 4, 3), t(I64, 5, 1), t(F32, 5, 3)), {"reduction": "none"}),
}


def samples(name: str, types: list[TensorType]) -> list[np.ndarray]:
    """Inputs on which no function overflows or gives NaN."""
    generator, found = np.random.default_rng(0), list[np.ndarray]()
    for type_ in types:
        if type_.dtype.is_float:
            values = generator.uniform(0.1, 0.9, type_.shape) + (name == "acosh")
        else:
            values = generator.integers(0, 2 if type_.dtype is BOOL else 4, type_.shape)
        found.append(np.asarray(values).astype(type_.dtype.numpy))
    return found


def test_the_document_and_the_table_name_the_same_primitives():
    text = (Path(__file__).parents[2] / "docs" / "primitives.md").read_text()
    cells = re.findall(r"^\| ([a-z0-9_ ]+) \|", text, re.MULTILINE)
    documented = [name for cell in cells if cell != "name" for name in cell.split()]
    assert sorted(documented) == sorted(TABLE)
    assert len(ROWS) == len(TABLE)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_every_row_is_complete(row):
    _, attributes = USES[row.name]
    assert row.kind in ("elementwise", "broadcast", "reduce", "layout", "linear", "gather", "opaque")
    least, greatest = row.arity
    assert least >= 1 and (greatest is None or greatest >= least)
    assert row.dtypes and row.dtypes <= ANY
    assert tuple(sorted(row.attributes)) == tuple(sorted(attributes))
    assert (row.c != "" and row.triton != "") or row.kind == "opaque"
    assert row.tolerance >= 0 and all(low < high for low, high in row.domain.ranges)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_the_meaning_has_the_inferred_types_and_computes_float64(row):
    types, attributes = USES[row.name]
    inputs = samples(row.name, list(types))
    outputs = row.numpy(inputs, attributes)
    assert [TensorType.of(o) for o in outputs] == list(row.infer(types, attributes))
    if row.name in ("cast", "bitcast"):
        return
    wide = row.numpy([x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs], attributes)
    for narrow, double in zip(outputs, wide, strict=True):
        if narrow.dtype == np.float32:
            assert double.dtype == np.float64
        np.testing.assert_allclose(narrow, double, rtol=2e-6)


@pytest.mark.parametrize("name", [r.name for r in ROWS if r.dtypes >= FLOAT and r.name not in ("cast", "bitcast")])
@pytest.mark.parametrize("dtype", [F16, DType.BFLOAT16], ids=str)
def test_narrow_floats_are_computed_in_float32_and_rounded_once(name: str, dtype: DType):
    types, attributes = USES[name]
    narrow = [TensorType(dtype, x.shape) if x.dtype is F32 else x for x in types]
    inputs = samples(name, narrow)
    outputs = TABLE[name].numpy(inputs, attributes)
    assert [TensorType.of(o) for o in outputs] == list(TABLE[name].infer(narrow, attributes))
    wide = TABLE[name].numpy([x.astype(np.float32) if x.dtype == dtype.numpy else x for x in inputs], attributes)
    for got, want in zip(outputs, wide, strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(got.dtype).astype(np.float64))


ILL_TYPED = [
    ("add", (t(F32, 2), t(F32, 3)), {}, "shapes differ"),
    ("add", (t(F32, 2), t(F64, 2)), {}, "dtypes of the inputs differ"),
    ("add", (t(BOOL, 2), t(BOOL, 2)), {}, "bool is not supported"),
    ("add", (t(F32, 2),), {}, "takes 2 inputs, not 1"),
    ("exp", (t(I32, 2),), {}, "int32 is not supported"),
    ("exp", (t(F32, 2),), {"axis": 1}, "has the attributes"),
    ("shift_left", (t(I32, 2), t(I32, 2)), {}, "int32 is not supported"),
    ("where", (t(F32, 2), t(F32, 2), t(F32, 2)), {}, "condition must be bool"),
    ("cast", (t(F32, 2),), {"to": "float8"}, "attribute to must be one of"),
    ("bitcast", (t(F32, 2),), {"to": "int64"}, "another size"),
    ("isinf", (t(F32, 2),), {"positive": 1, "negative": True}, "true or false"),
    ("broadcast", (t(F32, 2, 3),), {"shape": (2, 4), "axes": (0, 1)}, "does not broadcast"),
    ("broadcast", (t(F32, 2, 3),), {"shape": (3, 2), "axes": (1, 0)}, "ascending"),
    ("reduce_sum", (t(F32, 2, 3),), {"axes": (2,)}, "2 dimensions"),
    ("reduce_sum", (t(F32, 2, 3),), {"axes": (1, 1)}, "ascending and distinct"),
    ("reduce_sum", (t(BOOL, 2, 3),), {"axes": (1,)}, "bool is not supported"),
    ("arg_max", (t(F32, 2, 0),), {"axis": 1, "last": False}, "axis is empty"),
    ("window_max", (t(F32, 4, 5),), WINDOW | {"window": (1, 0)}, "positive"),
    ("window_max", (t(F32, 4, 5),), WINDOW | {"pads": (0,)}, "2 entries"),
    ("reshape", (t(F32, 2, 3),), {"shape": (4,)}, "another number of elements"),
    ("transpose", (t(F32, 2, 3),), {"perm": (0, 0)}, "no permutation"),
    ("slice", (t(F32, 4),), {"starts": (2,), "steps": (1,), "shape": (3,)}, "leaves a dimension"),
    ("slice", (t(F32, 4),), {"starts": (1,), "steps": (-1,), "shape": (3,)}, "leaves a dimension"),
    ("slice", (t(F32, 4),), {"starts": (0,), "steps": (0,), "shape": (1,)}, "zero"),
    ("pad", (t(I8, 4),), {"before": (0,), "shape": (5,), "value": 200}, "is no int8"),
    ("pad", (t(I8, 4),), {"before": (0,), "shape": (5,), "value": NAN}, "is no int8"),
    ("pad", (t(F32, 4),), {"before": (0,), "shape": (5,), "value": "x"}, "number or bool"),
    ("concat", (t(F32, 2, 3), t(F32, 3, 3)), {"axis": 1}, "outside axis 1"),
    ("take", (t(F32, 3),), {"axis": 0, "indices": (3,)}, "leaves the dimension"),
    ("matmul", (t(F32, 2, 3), t(F32, 4, 5)), {}, "inner dimensions"),
    ("matmul", (t(F32, 2, 2, 3), t(F32, 3, 3, 5)), {}, "batch dimensions"),
    ("matmul", (t(F32, 3), t(F32, 3, 5)), {}, "two dimensions"),
    ("conv", (t(F32, 1, 4, 5, 5), t(F32, 6, 3, 3, 3)), CONV, "4 channels"),
    ("conv", (t(F32, 1, 4, 1, 1), t(F32, 6, 2, 3, 3)), CONV, "reaches over"),
    ("conv_transpose", *USES["conv_transpose"][:1], USES["conv_transpose"][1] | {"shape": (2, 5, 6, 7)}, "begins with"),
    ("resample", (t(F32, 3),), {"axis": 0, "indices": ((0, 1),), "weights": ((1.0,),)}, "one length"),
    ("resample", (t(I32, 3),), {"axis": 0, "indices": ((0,),), "weights": ((1.0,),)}, "int32 is not supported"),
    ("gather", (t(F32, 3), t(F32, 2)), {"axis": 0}, "not integers"),
    ("gather", (t(F32, 0), t(I64, 2)), {"axis": 0}, "empty dimension"),
    ("gather_nd", (t(F32, 2, 3), t(I64, 2, 3)), {"batch_dims": 0}, "does not fit"),
    ("top_k", (t(F32, 3),), {"axis": 0, "k": 4, "largest": True, "sorted": True}, "k is 4"),
    ("scatter_nd", (t(F32, 3), t(I64, 2, 1), t(F32, 3)), {"reduction": "add"}, "must have the shape"),
    ("scatter_nd", (t(F32, 3), t(I64, 2, 1), t(F32, 2)), {"reduction": "sum"}, "must be one of"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "types", "attributes", "message"), ILL_TYPED)
def test_ill_typed_uses_are_refused_with_the_reason(name, types, attributes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        TABLE[name].infer(types, attributes)
    assert str(caught.value).startswith(name) and "\n" not in str(caught.value)


def test_casts_saturate_truncate_and_round():
    x = np.array([NAN, INF, -INF, 1.9, -1.9, 300.0, -300.0, 3e9, -0.0], np.float32)
    assert run("cast", x, to="int8").tolist() == [0, 127, -128, 1, -1, 127, -128, 127, 0]
    assert run("cast", x, to="uint8").tolist() == [0, 255, 0, 1, 0, 255, 0, 255, 0]
    assert run("cast", x, to="int32")[[1, 2, 7]].tolist() == [2**31 - 1, -(2**31), 2**31 - 1]
    assert run("cast", np.float32(2.0**63), to="int64") == 2**63 - 1
    assert run("cast", np.float64(2.0**64), to="uint64") == 2**64 - 1
    assert run("cast", np.float32(2.0**63), to="uint64") == 2**63
    assert run("cast", x, to="bool").tolist() == [True] * 8 + [False]
    assert run("cast", np.array([300, -1], np.int64), to="uint8").tolist() == [44, 255]
    assert run("cast", np.array(True), to="float16") == 1.0
    # Just above the middle between two bfloat16 numbers: rounding through float32 would go to the even one below.
    above = np.float64(1 + 2.0**-8 + 2.0**-40)
    assert float(run("cast", above, to="bfloat16")) == 1 + 2.0**-7
    assert float(run("cast", np.int32(2**24 + 2**16 + 1), to="bfloat16")) == 2**24 + 2**17
    assert float(run("cast", np.float64(65519.99), to="float16")) == 65504.0
    assert np.isinf(run("cast", np.float32(65520), to="float16"))


def test_integer_division_truncates_and_never_traps():
    a = np.array([7, -7, 7, -7, 5, -128, -128, 0], np.int8)
    b = np.array([2, 2, -2, -2, 0, -1, 1, 3], np.int8)
    assert run("div", a, b).tolist() == [3, -3, -3, 3, 0, -128, -128, 0]
    assert run("mod", a, b).tolist() == [1, 1, -1, -1, 0, 0, 0, 0]
    assert run("fmod", a, b).tolist() == [1, -1, 1, -1, 0, 0, 0, 0]
    least = np.int64(-(2**63))
    assert run("div", least, np.int64(-1)) == least and run("mod", least, np.int64(-1)) == 0
    assert run("div", np.uint64(2**64 - 1), np.uint64(2)) == 2**63 - 1


def test_float_division_remainders_and_powers():
    a, b = np.array([1, -1, 0, 5.5, -5.5], np.float32), np.array([0, 0, 0, 2, 2], np.float32)
    assert run("div", a, b)[:2].tolist() == [INF, -INF] and np.isnan(run("div", a, b)[2])
    assert run("mod", a, b)[3:].tolist() == [1.5, 0.5] and run("fmod", a, b)[3:].tolist() == [1.5, -1.5]
    assert run("pow", np.float32(-2), np.int64(3)) == -8.0
    assert run("pow", np.float32(NAN), np.float32(0)) == 1.0
    base, exponent = np.array([2, 3, 1, -1, -1, 0, 0, 7]), np.array([-1, 39, -5, -3, -4, -1, 0, 2])
    assert run("pow", base, exponent).tolist() == [0, 3**39, 1, -1, 1, 0, 1, 49]
    assert run("pow", np.int8(3), np.int64(7)) == np.int64(3**7).astype(np.int8)
    assert run("pow", np.int32(2), np.float32(0.5)) == 1 and run("pow", np.int32(10), np.float32(20)) == 2**31 - 1


def test_nan_wins_in_maxima_and_arguments():
    x, y = np.array([NAN, 1, 2], np.float32), np.array([1, NAN, 3], np.float32)
    assert np.isnan(run("max", x, y)[:2]).all() and np.isnan(run("min", x, y)[:2]).all()
    assert run("max", x.astype(BF16), y.astype(BF16)).astype(np.float32)[2] == 3
    row = np.array([[1, NAN, 5, NAN], [5, 5, 1, 5]], np.float32)
    assert np.isnan(run("reduce_max", row, axes=(1,))[0])
    assert run("arg_max", row, axis=1, last=False).tolist() == [1, 0]
    assert run("arg_max", row, axis=1, last=True).tolist() == [3, 3]
    assert run("arg_min", row, axis=1, last=True).tolist() == [3, 2]
    assert run("sign", np.array([NAN, -2, 0, 3], np.float32))[1:].tolist() == [-1, 0, 1]
    assert np.isnan(run("sign", np.float32(NAN)))


def test_reductions_over_nothing_and_of_bools():
    empty = np.zeros((2, 0), np.float32)
    expected = {"reduce_sum": 0, "reduce_prod": 1, "reduce_max": -INF, "reduce_min": INF}
    for name, value in expected.items():
        assert run(name, empty, axes=(1,)).tolist() == [value, value]
        assert run(name, np.float32(3), axes=()) == 3
    assert run("reduce_max", np.zeros(0, np.int8), axes=(0,)) == -128
    assert run("reduce_min", np.zeros(0, np.uint16), axes=(0,)) == 65535
    truth = np.array([[True, False], [True, True]])
    assert run("reduce_max", truth, axes=(1,)).tolist() == [True, True]
    assert run("reduce_min", truth, axes=(1,)).tolist() == [False, True]
    assert not run("reduce_max", np.zeros(0, np.bool_), axes=(0,)) and run(
        "reduce_min", np.zeros(0, np.bool_), axes=(0,)
    )


def test_sums_of_narrow_floats_do_not_stall():
    ones = np.ones(10000, np.float16)
    assert run("reduce_sum", ones, axes=(0,)) == 10000
    assert float(run("reduce_sum", np.ones(1000, BF16), axes=(0,))) == 1000
    big = np.full(1 << 20, 0.1, np.float32)
    exact = float(np.float32(0.1)) * (1 << 20)
    assert abs(float(run("reduce_sum", big, axes=(0,))) - exact) <= 0.5 * float(np.spacing(np.float32(exact)))
    assert run("reduce_sum", np.full(3, 100, np.int8), axes=(0,)) == np.int64(300).astype(np.int8)


def test_bits_shifts_and_classes():
    assert run("shift_left", np.uint8([1, 1, 255]), np.uint8([7, 8, 1])).tolist() == [128, 0, 254]
    assert run("shift_right", np.uint64([2**63, 5]), np.uint64([63, 64])).tolist() == [1, 0]
    assert run("not", np.int8([0, 5])).tolist() == [-1, -6] and run("not", np.array([True])).tolist() == [False]
    assert run("bitcast", np.float32([1, -0.0]), to="uint32").tolist() == [0x3F800000, 0x80000000]
    assert run("bitcast", np.uint16([0x3F80]), to="bfloat16").astype(np.float32).tolist() == [1.0]
    x = np.float32([INF, -INF, NAN, 1])
    assert run("isinf", x, positive=True, negative=False).tolist() == [True, False, False, False]
    assert run("isinf", x, positive=False, negative=True).tolist() == [False, True, False, False]
    assert run("isnan", x).tolist() == [False, False, True, False]
    assert np.signbit(run("round", np.float32([-0.4, -0.5]))).all() and run(
        "round", np.float32([0.5, 1.5, 2.5])
    ).tolist() == [0, 2, 2]


def test_erf_is_exact_to_the_last_places():
    x = np.concatenate([np.linspace(-7, 7, 4001), [1e-300, 5e-324, -0.0, 1e300, INF, -INF]])
    want = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(run("erf", x), want, rtol=5e-16, atol=0)
    assert np.isnan(run("erf", np.float32(NAN))) and np.signbit(run("erf", np.float32(-0.0)))


def naive_window(x, window, strides, dilations, pads, shape, start, combine):
    out = np.full(shape, start, np.float64)
    for o in np.ndindex(*shape):
        for w in np.ndindex(*window):
            at = tuple(i * s + k * d - p for i, s, k, d, p in zip(o, strides, w, dilations, pads, strict=True))
            if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
                out[o] = combine(out[o], x[at])
    return out


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_windows_equal_their_definition(data):
    rank = data.draw(st.integers(1, 3))
    sizes = [data.draw(st.integers(0, 5)) for _ in range(rank)]
    window, strides, dilations = ([data.draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(3))
    pads = [data.draw(st.integers(-1, 3)) for _ in range(rank)]
    shape = [data.draw(st.integers(0, 4)) for _ in range(rank)]
    x = np.random.default_rng(0).integers(-9, 9, sizes).astype(np.float32)
    names = ("window", "strides", "dilations", "pads", "shape")
    attributes = dict(zip(names, map(tuple, (window, strides, dilations, pads, shape)), strict=True))
    values = [attributes[n] for n in names]
    assert (run("window_max", x, **attributes) == naive_window(x, *values, -INF, max)).all()
    assert (run("window_sum", x, **attributes) == naive_window(x, *values, 0, lambda a, b: a + b)).all()


def naive_conv(x, w, strides, dilations, pads, groups):
    n = x.ndim - 2
    padded = np.zeros(
        (*x.shape[:2], *(s + pads[d] + pads[n + d] for d, s in enumerate(x.shape[2:]))), np.float64
    )  # fmt: skip
    for at in np.ndindex(*x.shape[2:]):
        to = tuple(a + pads[d] for d, a in enumerate(at))
        if all(0 <= a < s for a, s in zip(to, padded.shape[2:], strict=True)):
            padded[(slice(None), slice(None), *to)] = x[(slice(None), slice(None), *at)]
    out = [
        (s - (k - 1) * d - 1) // t + 1
        for s, k, d, t in zip(padded.shape[2:], w.shape[2:], dilations, strides, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    each, made = w.shape[1], w.shape[0] // groups
    for o, k in itertools.product(np.ndindex(*out), np.ndindex(*w.shape[2:])):
        at = tuple(i * t + j * d for i, t, j, d in zip(o, strides, k, dilations, strict=True))
        for g in range(groups):
            read = padded[(slice(None), slice(g * each, (g + 1) * each), *at)]
            y[(slice(None), slice(g * made, (g + 1) * made), *o)] += (
                read @ w[(slice(g * made, (g + 1) * made), slice(None), *k)].T
            )
    return y


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_convolutions_equal_their_definition(data):
    rank, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    each, made = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    kernel, strides, dilations = ([data.draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(3))
    pads = [data.draw(st.integers(0, 2)) for _ in range(2 * rank)]
    sizes = [(k - 1) * d + 1 + data.draw(st.integers(0, 3)) for k, d in zip(kernel, dilations, strict=True)]
    batch, generator = data.draw(st.integers(0, 2)), np.random.default_rng(0)
    x = generator.integers(-4, 5, (batch, groups * each, *sizes))
    w = generator.integers(-4, 5, (groups * made, each, *kernel))
    attributes = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(pads), "groups": groups}
    want = naive_conv(x, w, strides, dilations, pads, groups)
    for dtype in (np.float32, np.float16, np.int64, np.int8):
        assert (run("conv", x.astype(dtype), w.astype(dtype), **attributes) == want).all(), dtype


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_transposed_convolutions_equal_their_definition(data):
    rank, groups = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    each, made = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    kernel, strides, dilations = ([data.draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(3))
    sizes, shape = ([data.draw(st.integers(1, 5)) for _ in range(rank)] for _ in range(2))
    pads, generator = [data.draw(st.integers(-1, 2)) for _ in range(rank)], np.random.default_rng(0)
    x = generator.integers(-4, 5, (2, groups * each, *sizes)).astype(np.float32)
    w = generator.integers(-4, 5, (groups * each, made, *kernel)).astype(np.float32)
    want = np.zeros((2, groups * made, *shape))
    for i, k in itertools.product(np.ndindex(*sizes), np.ndindex(*kernel)):
        p = tuple(a * s + b * d - q for a, s, b, d, q in zip(i, strides, k, dilations, pads, strict=True))
        if not all(0 <= a < n for a, n in zip(p, shape, strict=True)):
            continue
        for g in range(groups):
            read, weight = slice(g * each, (g + 1) * each), slice(g * made, (g + 1) * made)
            want[(slice(None), weight, *p)] += x[(slice(None), read, *i)] @ w[(read, slice(None), *k)]
    attributes = {
        "strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(pads), "groups": groups,
        "shape": want.shape,
    }  # fmt: skip
    assert (run("conv_transpose", x, w, **attributes) == want).all()


def test_products_of_bytes_give_int32_and_integers_wrap():
    a, b = np.full((1, 3), -128, np.int8), np.full((3, 1), 255, np.uint8)
    product = run("matmul", a, b)
    assert product.dtype == np.int32 and product.item() == -128 * 255 * 3
    big = np.full((1, 2), 2**62, np.int64)
    assert run("matmul", big, np.full((2, 1), 2, np.int64)).item() == 0
    assert run("matmul", np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)).tolist() == [[0] * 3] * 2
    stacked = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert (run("matmul", stacked, np.eye(4, dtype=np.float32)) == stacked).all()


def test_resampling_leaves_out_taps_of_weight_zero():
    x = np.array([[1, 2, INF]], np.float32)
    attributes = {"axis": 1, "indices": ((0, 1), (0, 2)), "weights": ((0.25, 0.75), (1.0, 0.0))}
    assert run("resample", x, **attributes).tolist() == [[1.75, 1.0]]


def test_layouts_move_elements():
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert (run("slice", x, starts=(2, 3), steps=(-1, -2), shape=(3, 2)) == x[::-1, ::-2]).all()
    assert run("slice", x, starts=(0, 0), steps=(1, 1), shape=(0, 4)).shape == (0, 4)
    assert (run("pad", x, before=(1, -1), shape=(5, 4), value=9)[1:4, :3] == x[:, 1:]).all()
    assert (run("pad", x, before=(5, 0), shape=(4, 2), value=7) == 7).all()
    assert (
        run("pad", np.zeros((2, 0), np.float32), before=(0, 1), shape=(2, 2), value=-INF).tolist() == [[-INF] * 2] * 2
    )
    assert (run("take", x, axis=1, indices=(3, 0, 0)) == x[:, [3, 0, 0]]).all()
    assert run("take", x, axis=1, indices=()).shape == (3, 0)
    assert (run("broadcast", x[:, :1], shape=(2, 3, 4), axes=(1, 2)) == np.broadcast_to(x[:, :1], (2, 3, 4))).all()
    assert run("broadcast", np.float32(2), shape=(2, 2), axes=()).tolist() == [[2, 2], [2, 2]]
    assert run("reshape", np.float32(2), shape=(1, 1)).tolist() == [[2]]


def test_gathers_count_from_the_end_and_clamp():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert run("gather", x, np.int64([0, -1, 9, -9]), axis=0)[:, 0].tolist() == [0, 8, 8, 0]
    assert run("gather", x, np.int32(1), axis=1).tolist() == [1, 5, 9]
    assert run("gather_elements", x, np.int64([[-1, 5], [0, -7]]), axis=1).tolist() == [[3, 3], [4, 4]]
    assert run("gather_nd", x, np.int64([[0, 1], [-1, 99]]), batch_dims=0).tolist() == [1, 11]
    assert run("gather_nd", x, np.int64([[1], [2], [3]]), batch_dims=1).tolist() == [1, 6, 11]
    assert run("gather", np.zeros((0, 2), np.float32), np.zeros(0, np.int64), axis=0).shape == (0, 2)


def test_sorting_scattering_and_running_sums():
    x = np.array([3, NAN, 3, 1, 2], np.float32)
    values, indices = TABLE["top_k"].numpy([x], {"axis": 0, "k": 4, "largest": True, "sorted": True})
    assert indices.tolist() == [1, 0, 2, 4] and np.isnan(values[0])
    _, indices = TABLE["top_k"].numpy([x], {"axis": 0, "k": 3, "largest": False, "sorted": True})
    assert indices.tolist() == [3, 4, 0]
    least = np.array([-128, -128, 5], np.int8)
    _, indices = TABLE["top_k"].numpy([least], {"axis": 0, "k": 3, "largest": True, "sorted": True})
    assert indices.tolist() == [2, 0, 1]
    y = np.array([1, 2, 3, 4], np.float32)
    assert run("cumsum", y, axis=0, exclusive=False, reverse=False).tolist() == [1, 3, 6, 10]
    assert run("cumsum", y, axis=0, exclusive=True, reverse=True).tolist() == [9, 7, 4, 0]
    assert run("cumsum", y[:0], axis=0, exclusive=True, reverse=False).shape == (0,)
    data, at, updates = np.zeros(3, np.float32), np.int64([[0], [-1], [7], [0]]), np.float32([1, 2, 3, 4])
    assert run("scatter_nd", data, at, updates, reduction="none").tolist() == [4, 0, 2]
    assert run("scatter_nd", data, at, updates, reduction="add").tolist() == [5, 0, 2]
    assert np.isnan(run("scatter_nd", data, at, np.float32([NAN, 2, 3, 4]), reduction="max")[0])
    assert run("scatter_elements", data, at[:, 0], updates, axis=0, reduction="mul").tolist() == [0, 0, 0]


def graph(definitions: list[Definition], types: dict[str, TensorType], **parts: object) -> Graph:
    inputs = parts.pop("inputs", (("x", "v"),))
    outputs = parts.pop("outputs", (("y", definitions[-1].outputs[0]),))
    return Graph(types, inputs, outputs, tuple(definitions), **parts)


def test_evaluation_by_interface_names_with_constants_and_passed_through_values():
    types = {n: t(F32, 2) for n in ("v", "c", "a", "b")}
    definitions = [Definition("add", ("v", "c"), ("a",)), Definition("mul", ("a", "a"), ("b",))]
    outputs = (("y", "b"), ("again", "b"), ("x", "v"), ("k", "c"))
    g = graph(definitions, types, outputs=outputs, constants={"c": np.float32([1, 2])})
    found = evaluate(g, {"x": np.float32([1, 1])})
    assert {k: v.tolist() for k, v in found.items()} == {"y": [4, 9], "again": [4, 9], "x": [1, 1], "k": [1, 2]}
    assert evaluate_values(g, {"v": np.float32([1, 1])}, ["a"])["a"].tolist() == [2, 3]
    assert evaluate_values(g, {"a": np.float32([5, 6])}, ["b"])["b"].tolist() == [25, 36]
    with pytest.raises(InvalidInput, match="'x' is missing"):
        evaluate(g, {})
    with pytest.raises(InvalidInput, match=r"float64\[2\]; the model takes float32\[2\]"):
        evaluate(g, {"x": np.float64([1, 1])})
    with pytest.raises(InvalidInput, match="not given either: v"):
        evaluate_values(g, {}, ["b"])


def test_evaluation_takes_the_first_definition_and_is_silent():
    types = {n: t(F32, 1) for n in ("v", "a", "unused")}
    definitions = [
        Definition("log", ("v",), ("a",)),
        Definition("neg", ("v",), ("a",)),
        Definition("sqrt", ("v",), ("unused",)),
    ]
    assert np.isnan(evaluate(graph(definitions, types, outputs=(("y", "a"),)), {"x": np.float32([-1])})["y"]).all()


def test_evaluation_in_double_is_free_of_the_models_rounding():
    types = {
        "v": t(F32, 1),
        "c": t(F32, 1),
        "a": t(F32, 1),
        "h": t(F16, 1),
        "w": t(F32, 1),
        "i": t(I32, 1),
        "b": t(F32, 1),
    }
    definitions = [
        Definition("add", ("v", "c"), ("a",)),
        Definition("cast", ("a",), ("h",), (("to", "float16"),)),
        Definition("cast", ("h",), ("w",), (("to", "float32"),)),
        Definition("bitcast", ("v",), ("i",), (("to", "int32"),)),
        Definition("bitcast", ("i",), ("b",), (("to", "float32"),)),
    ]
    outputs = tuple((n, n) for n in ("a", "w", "i", "b"))
    g = graph(definitions, types, outputs=outputs, constants={"c": np.float32([2.0**-30])})
    x = np.float32([1])
    single, double = evaluate(g, {"x": x}), evaluate(g, {"x": x}, double=True)
    assert single["a"].dtype == np.float32 and single["a"] == 1
    assert double["a"].dtype == np.float64 and double["a"] == 1 + 2.0**-30
    assert double["w"].dtype == np.float64 and double["w"] == 1  # rounded to float16 on the way
    assert double["i"] == 0x3F800000 and double["b"] == 1 and double["b"].dtype == np.float64
