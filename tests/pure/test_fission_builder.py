"""The builder: what folds, what must not, and that neither size nor sharing costs more than it should."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korch.fission.builder import Builder, collapse
from korch.fission.tensor import Tensor, concat, constant, where
from korch.ir.evaluate import evaluate
from korch.ir.graph import Graph
from korch.ir.types import DType, TensorType
from tests.pure.fission_reference import ADVERSARIAL

F = np.float32


def graph_of(formula: Callable[..., Tensor], *arrays: np.ndarray) -> Graph:
    """The graph of a formula of one or more inputs `x0, x1…`."""
    b = Builder()
    inputs = [Tensor(b, b.input(f"x{i}", TensorType.of(a))) for i, a in enumerate(arrays)]
    return b.finish([("y", formula(*inputs).value)])


def run(formula: Callable[..., Tensor], *arrays: np.ndarray) -> np.ndarray:
    return evaluate(graph_of(formula, *arrays), {f"x{i}": a for i, a in enumerate(arrays)})["y"]


def names(graph: Graph) -> list[str]:
    return [d.primitive for d in graph]


X = np.arange(24, dtype=F).reshape(2, 3, 4)
KEEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "x * 1": lambda x: x * 1,
    "1 * x": lambda x: 1 * x,
    "x / 1": lambda x: x / 1,
    "x - 0": lambda x: x - 0,
    "x + -0": lambda x: x + -0.0,
    "x ** 1": lambda x: x.power(1),
    "--x": lambda x: (-x).map("neg"),
    "max(x, x)": lambda x: x.maximum(x),
    "where(true, x, 0)": lambda x: where(constant(x.builder, np.array(True)), x, 0),
    "where(all true, x, 0)": lambda x: where(constant(x.builder, np.ones(4, bool)), x, 0),
    "where(none, 0, x)": lambda x: where(constant(x.builder, np.zeros((3, 1), bool)), 0, x),
    "where(c, x, x)": lambda x: where(x < 0, x, x),
    "cast to itself": lambda x: x.cast(DType.FLOAT32),
    "widened and back": lambda x: x.cast(DType.FLOAT64).cast(DType.FLOAT32),
    "reshape there and back": lambda x: x.reshape((6, 4)).reshape((2, 3, 4)),
    "transpose there and back": lambda x: x.transpose((2, 0, 1)).transpose((1, 2, 0)),
    "whole slice": lambda x: x.narrow(1, 0, 3),
    "reversed twice": lambda x: x.narrow(2, 3, 4, -1).narrow(2, 3, 4, -1),
    "no padding": lambda x: x.pad((0, 0, 0), (0, 0, 0)),
    "concat of one": lambda x: concat([x], 0),
    "concat with nothing": lambda x: concat([x, x.narrow(1, 0, 0)], 1),
    "broadcast to itself": lambda x: x.expand((2, 3, 4)),
    "sum over nothing": lambda x: x.sum(()),
    "take everything": lambda x: x.take(0, (0, 1)),
}


@pytest.mark.parametrize("name", KEEPS)
def test_what_changes_nothing_vanishes(name: str) -> None:
    assert names(graph_of(KEEPS[name], X)) == []


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "x * 0": lambda x: x * 0,
    "x - x": lambda x: x - x,
    "x / x": lambda x: x / x,
    "x + 0": lambda x: x + 0.0,
    "x - -0": lambda x: x - -0.0,
    "0 - x": lambda x: 0 - x,
    "1 / x": lambda x: 1 / x,
    "x ** 0": lambda x: x.power(0.0),
    "max(x, -inf)": lambda x: x.maximum(-np.inf),
    "narrowed and back": lambda x: x.cast(DType.FLOAT16).cast(DType.FLOAT32),
    "to integers and back": lambda x: x.cast(DType.INT32).cast(DType.FLOAT32),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_untrue_for_some_value_stays(name: str) -> None:
    with np.errstate(all="ignore"):
        found = run(CHANGES[name], ADVERSARIAL)
        b = Builder()
        folded = CHANGES[name](constant(b, ADVERSARIAL)).known
    assert folded is not None
    np.testing.assert_array_equal(found, folded)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(folded))
    assert names(graph_of(CHANGES[name], ADVERSARIAL)) != []


def test_equal_definitions_are_one() -> None:
    graph = graph_of(lambda x, y: (x + y).exp() * (y + x).exp() - (x - y) * (y - x), X, X)
    assert names(graph) == ["add", "exp", "mul", "sub", "sub", "mul", "sub"]


def test_attributes_that_compare_equal_but_differ_are_kept_apart() -> None:
    b = Builder()
    x = Tensor(b, b.input("x", TensorType(DType.FLOAT32, (2,))))
    padded = [x.pad((0,), (1,), v).value for v in (0.0, -0.0, 1.0)]
    assert len(set(padded)) == 3
    assert len({constant(b, np.array(v)).value for v in (0.0, -0.0, 0, False, np.float32(0))}) == 5
    assert constant(b, np.array([np.nan])) == constant(b, np.array([np.nan]))


def test_statistics_need_no_reshape() -> None:
    """keepdims inserts dimensions of 1; they sink through elementwise primitives into the broadcast."""

    def normalize(x: Tensor) -> Tensor:
        d = x - x.mean(2, keepdims=True)
        return d / ((d * d).mean(2, keepdims=True) + 1e-5).sqrt() * (x.max(2, keepdims=True) - x.min(2, keepdims=True))

    graph = graph_of(normalize, X)
    assert "reshape" not in names(graph)
    ranks = {graph.types[d.outputs[0]].rank for d in graph if d.primitive in ("sqrt", "div", "add")}
    assert ranks == {2, 3}
    np.testing.assert_allclose(
        run(normalize, X), (X - X.mean(2, keepdims=True)) / np.sqrt(X.var(2, keepdims=True) + 1e-5) * 3, rtol=1e-5
    )


def test_a_channel_constant_follows_what_sinks() -> None:
    scale = np.arange(3, dtype=F).reshape(1, 3, 1)
    formula = lambda x: x.sum(2, keepdims=True) * constant(x.builder, scale)  # noqa: E731
    assert names(graph_of(formula, X)) == ["reduce_sum", "broadcast", "mul", "reshape"]
    np.testing.assert_array_equal(run(formula, X), X.sum(2, keepdims=True) * scale)


def test_casts_merge_only_where_nothing_is_lost() -> None:
    half = X.astype(np.float16)
    assert names(graph_of(lambda x: x.cast(DType.FLOAT32).cast(DType.FLOAT64), half)) == ["cast"]
    assert names(graph_of(lambda x: x.cast(DType.FLOAT32).cast(DType.BFLOAT16), half)) == ["cast"]
    assert names(graph_of(lambda x: x.cast(DType.BFLOAT16).cast(DType.FLOAT32), half)) == ["cast", "cast"]
    small = np.array([-1, 100], np.int8)
    assert names(graph_of(lambda x: x.cast(DType.INT32).cast(DType.UINT8), small)) == ["cast"]
    assert names(graph_of(lambda x: x.cast(DType.FLOAT32).cast(DType.UINT8), small)) == ["cast", "cast"]
    np.testing.assert_array_equal(run(lambda x: x.cast(DType.INT32).cast(DType.UINT8), small), small.view(np.uint8))
    np.testing.assert_array_equal(run(lambda x: x.cast(DType.FLOAT32).cast(DType.UINT8), small), [0, 100])


def test_places_evenly_spaced_are_slices() -> None:
    assert names(graph_of(lambda x: x.take(2, (3, 2, 1, 0)), X)) == ["slice"]
    assert names(graph_of(lambda x: x.take(2, (1, 3)), X)) == ["slice"]
    assert names(graph_of(lambda x: x.take(2, (1, 1, 1)), X)) == ["slice", "broadcast"]
    assert names(graph_of(lambda x: x.take(2, (0, 0, 1)).take(2, (2, 0, 0)), X)) == ["take"]
    np.testing.assert_array_equal(run(lambda x: x.take(2, (1, 1, 1)), X), X[..., [1, 1, 1]])


def test_a_transpose_of_ones_is_a_reshape() -> None:
    x = np.arange(6, dtype=F).reshape(1, 2, 1, 3)
    assert names(graph_of(lambda t: t.transpose((1, 0, 3, 2)), x)) == ["reshape"]
    assert names(graph_of(lambda t: t.transpose((0, 3, 2, 1)), x)) == ["transpose"]


def test_what_nothing_needs_is_gone_and_names_are_dense() -> None:
    b = Builder()
    x = Tensor(b, b.input("x", TensorType.of(X)))
    unused = Tensor(b, b.input("unused", TensorType.of(X)))
    (unused * 3).exp()
    y = x * 2
    y.exp()
    graph = b.finish([("a", y.value), ("b", y.value), ("c", x.value)])
    assert names(graph) == ["broadcast", "mul"]
    assert graph.inputs == (("x", "v0"), ("unused", "v1"))
    assert set(graph.types) == {f"v{i}" for i in range(len(graph.types))}
    assert dict(graph.outputs)["a"] == dict(graph.outputs)["b"]
    assert dict(graph.outputs)["c"] == "v0"
    assert [float(a) for a in graph.constants.values()] == [2.0]


def test_constants_are_evaluated() -> None:
    b = Builder()
    w = constant(b, X)
    y = (w.transpose((1, 0, 2)).reshape((3, 8)) @ constant(b, np.eye(8, dtype=F)) * 2 + 1).sum(0)
    np.testing.assert_array_equal(y.known, (X.transpose(1, 0, 2).reshape(3, 8) * 2 + 1).sum(0))
    assert b.finish([("y", y.value)]).definitions == ()


def test_a_scalar_stays_a_scalar() -> None:
    graph = graph_of(lambda x: (x + 1) * (constant(x.builder, np.full((1, 1, 1), 2, F)) + 1), X)
    assert [a.shape for a in graph.constants.values()] == [(), ()]
    assert sorted(float(a) for a in graph.constants.values()) == [1, 3]


def test_what_repeats_in_memory_costs_nothing() -> None:
    """A dummy weight of 400 MB, one element with strides of 0, through everything that a weight goes through."""
    tracemalloc.start()
    b = Builder()
    w = constant(b, np.broadcast_to(np.array(0.5, F), (4096, 25600)))
    w = ((w.transpose((1, 0)) * 2 + 1) / w.transpose((1, 0))).reshape((25600, 64, 64))
    w = w.transpose((1, 0, 2)).narrow(1, 5, 20000).take(2, (0, 0, 3)).cast(DType.FLOAT16)
    row = constant(b, np.arange(3, dtype=np.float16))
    mixed = w + row
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert w.known is not None and mixed.known is not None
    assert w.shape == mixed.shape == (64, 20000, 3)
    assert (w.known[0, 0] == 4).all()
    np.testing.assert_array_equal(mixed.known[7, 19999], [4, 5, 6])
    assert max(collapse(a).size for a in b.constants.values()) == 3


def test_what_is_too_large_to_evaluate_stays_a_definition() -> None:
    b = Builder()
    row = constant(b, np.arange(20000, dtype=np.int8))
    product = row.unsqueeze(1) * row.unsqueeze(0)
    assert product.known is None
    assert product.shape == (20000, 20000)


def test_deep_and_shared_graphs_take_linear_time() -> None:
    def chain(x: Tensor) -> Tensor:
        a, b = x, x * 2
        for i in range(5000):
            a, b = b, (a + b if i % 2 else a * b)
            b = b.unsqueeze(0).reshape(b.shape)
        return b

    begin = time.perf_counter()
    graph = graph_of(chain, X)
    assert time.perf_counter() - begin < 10
    assert len(graph) == 5002


def test_indices_outside_an_axis_are_an_error() -> None:
    b = Builder()
    x = Tensor(b, b.input("x", TensorType.of(X)))
    with pytest.raises(ValueError, match="do not exist in a tensor of rank 3"):
        x.sum((0, 3))
    with pytest.raises(ValueError, match="number of elements"):
        x.reshape((5, 5))
    with pytest.raises(OverflowError):
        constant(b, np.zeros(1, np.uint8)).like(300)


Step = tuple[str, int]


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    kinds = ["reshape", "transpose", "slice", "take", "pad", "expand", "concat", "unit", "sum", "double", "mean"]
    return draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 2**16)), max_size=8))


def apply(x: Tensor, y: np.ndarray, kind: str, seed: int) -> tuple[Tensor, np.ndarray]:
    """One random step, on the handle and in NumPy."""
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(y.ndim)) if y.ndim else 0
    if kind == "unit" or y.ndim == 0:
        place = int(rng.integers(y.ndim + 1))
        return x.unsqueeze(place), np.expand_dims(y, place)
    n = y.shape[axis]
    if kind == "reshape":
        shape = rng.permutation([*y.shape, 1]) if rng.integers(2) else [y.size]
        return x.reshape(map(int, shape)), y.reshape(shape)
    if kind == "transpose":
        perm = rng.permutation(y.ndim).tolist()
        return x.transpose(perm), y.transpose(perm)
    if kind == "slice":
        start, step = int(rng.integers(n)), int(rng.choice([1, 2, -1, -2]))
        count = len(range(start, n if step > 0 else -1, step))
        places = [start + i * step for i in range(count)]
        return x.narrow(axis, start, count, step), np.take(y, places, axis)
    if kind == "take":
        places = rng.integers(n, size=3).tolist()
        return x.take(axis, places), np.take(y, places, axis)
    if kind == "pad":
        before, after = rng.integers(-1, 3, (2, y.ndim)).tolist() if min(y.shape) > 2 else ([1] * y.ndim, [0] * y.ndim)
        inner = y[tuple(slice(max(-p, 0), m + min(q, 0)) for p, q, m in zip(before, after, y.shape, strict=True))]
        widths = [(max(p, 0), max(q, 0)) for p, q in zip(before, after, strict=True)]
        return x.pad(before, after, 3), np.pad(inner, widths, constant_values=3)
    if kind == "expand":
        shape = [5 if m == 1 else m for m in y.shape]
        return x.expand((2, *shape)), np.broadcast_to(y, (2, *shape))
    if kind == "concat":
        return concat([x, x, x.narrow(axis, 0, 1)], axis), np.concatenate([y, y, y.take([0], axis)], axis)
    if kind == "sum":
        return x.sum(axis, keepdims=True), y.sum(axis, keepdims=True)
    if kind == "mean":
        return x - x.max(axis, keepdims=True), y - y.max(axis, keepdims=True)
    return x + x * 1, y + y


@settings(max_examples=150, deadline=None)
@given(steps(), st.booleans())
def test_any_chain_equals_numpy(chain: list[Step], known: bool) -> None:
    """Random chains of folds, of an input and of a constant, give what NumPy gives."""
    start = np.arange(12, dtype=np.int64).reshape(1, 3, 4)
    b = Builder()
    x = constant(b, start) if known else Tensor(b, b.input("x", TensorType.of(start)))
    y: np.ndarray = start
    for kind, seed in chain:
        if y.size > 5000:
            break
        x, y = apply(x, y, kind, seed)
        assert x.shape == y.shape
    graph = b.finish([("y", x.value)])
    np.testing.assert_array_equal(evaluate(graph, {} if known else {"x": start})["y"], y)
    if known:
        np.testing.assert_array_equal(x.known, y)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint64, np.bool_])
def test_numbers_take_the_tensor_dtype(dtype: type) -> None:
    x = np.array([0, 1, 1], dtype)
    formula = (lambda t: t | True) if dtype is np.bool_ else (lambda t: t + 1)
    assert run(formula, x).dtype == x.dtype
