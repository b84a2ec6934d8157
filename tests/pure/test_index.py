"""Index expressions: simplification never changes a value, and reshapes cancel."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korch.codegen.c.index import (
    Entry,
    Index,
    constant,
    cuts_of,
    dot,
    flatten,
    lane_pattern,
    lookup,
    repetition,
    row_major_strides,
    to_c,
    unflatten,
    variable,
)
from korch.codegen.c.nest_reads import GATHERS, LAYOUT_READS, REDUCTIONS
from korch.ir.primitives import ROWS

RANGES = {"a": (0, 3), "b": (0, 5), "c": (0, 6), "d": (-2, 4)}


def points() -> list[dict[str, int]]:
    return [
        dict(zip(RANGES, p, strict=True))
        for p in itertools.product(*(range(low, high + 1) for low, high in RANGES.values()))
    ]


POINTS = points()


def grow(rng: random.Random, depth: int) -> tuple[Index, object]:
    """A random expression, and the same as a tree that is evaluated without simplification."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.25:
            k = rng.randint(-9, 9)
            return constant(k), ("constant", k)
        name = rng.choice(list(RANGES))
        return variable(name, *RANGES[name]), ("variable", name)
    kind = rng.choice(["add", "add", "scale", "quotient", "remainder", "lookup"])
    left, left_tree = grow(rng, depth - 1)
    if kind == "add":
        right, right_tree = grow(rng, depth - 1)
        return left + right, ("add", left_tree, right_tree)
    k = rng.choice([2, 3, 4, 5, 6, 7, 12])
    if kind == "scale":
        factor = rng.choice([-3, -1, 1, 2, k])
        return left * factor, ("scale", left_tree, factor)
    if kind == "quotient":
        return left // k, ("quotient", left_tree, k)
    if kind == "remainder":
        return left % k, ("remainder", left_tree, k)
    low, high = left.low, left.high
    if high - low > 200:
        return left, left_tree
    run, start = rng.randint(1, 4), rng.randint(-3, 3)
    values = rng.choice(
        [
            tuple(rng.randint(-9, 9) for _ in range(high - low + 1)),
            tuple(start + (i + 1) // run for i in range(high - low + 1)),
            tuple(start - 2 * i for i in range(high - low + 1)),
        ]
    )
    return lookup(values, left - low), ("lookup", left_tree, values, low)


def tree_value(tree: tuple, point: dict[str, int]) -> int:
    kind, *rest = tree
    if kind == "constant":
        return rest[0]
    if kind == "variable":
        return point[rest[0]]
    if kind == "add":
        return tree_value(rest[0], point) + tree_value(rest[1], point)
    value = tree_value(rest[0], point)
    if kind == "scale":
        return value * rest[1]
    if kind == "quotient":
        return value // rest[1]
    if kind == "remainder":
        return value % rest[1]
    return rest[1][value - rest[2]]


def c_value(text: str, point: dict[str, int], tables: dict[str, tuple[int, ...]]) -> int:
    """Evaluates the C text with Python's integers: unsigned divisions must never see a negative number."""

    class Whole(int):
        def __truediv__(self, other: int) -> Whole:
            assert self >= 0
            return Whole(int(self) // other)

        def __mod__(self, other: int) -> Whole:
            assert self >= 0
            return Whole(int(self) % other)

        def __getitem__(self, _: int) -> int:
            raise AssertionError

    python = text.replace("(int64_t)((uint64_t)", "Whole(Whole").replace("(int64_t)table", "table")
    return int(eval(python, {"Whole": Whole, **point, **tables}))


def check(index: Index, tree: object) -> None:
    names: dict[str, tuple[int, ...]] = {}

    def table(values: tuple[int, ...]) -> str:
        names[f"table{len(names)}"] = values
        return f"table{len(names) - 1}"

    text = to_c(index, table)
    for point in random.Random(1).sample(POINTS, 60):
        expected = tree_value(tree, point)
        assert index.evaluate(point) == expected, index.text
        assert index.low <= expected <= index.high, index.text
        assert c_value(text, point, names) == expected, text


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 6))
def test_simplification_keeps_every_value(seed: int, depth: int) -> None:
    check(*grow(random.Random(seed), depth))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40))
def test_substitution_is_evaluation_in_two_steps(seed: int) -> None:
    rng = random.Random(seed)
    index, _ = grow(rng, 4)
    x, y = variable("x", 0, 1), variable("y", 0, 1)
    a = x * 2 + y
    replaced = index.substitute({"a": a})
    assert "a" not in replaced.variables
    for point in rng.sample(POINTS, 30):
        outer = {**point, "x": point["a"] // 2, "y": point["a"] % 2}
        assert replaced.evaluate(outer) == index.evaluate(point)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40))
def test_strides_are_differences(seed: int) -> None:
    rng = random.Random(seed)
    index, _ = grow(rng, 4)
    for name, (low, high) in RANGES.items():
        step = index.stride(name)
        if step is None:
            continue
        for point in rng.sample(POINTS, 20):
            if low <= point[name] < high:
                assert index.evaluate({**point, name: point[name] + 1}) - index.evaluate(point) == step


def point_index(shape: tuple[int, ...]) -> tuple[Index, ...]:
    return tuple(variable(f"i{d}", 0, n - 1) for d, n in enumerate(shape))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 5), (6, 20), (2, 3, 4, 5)),
        ((4, 6, 5), (4, 2, 3, 5), (8, 15), (4, 6, 5)),
        ((120,), (2, 3, 4, 5), (120,)),
        ((7, 12), (84,), (3, 28), (7, 12)),
        ((1, 6, 1, 4), (24, 1), (1, 6, 1, 4)),
    ],
)
def test_reshapes_cancel(shapes: tuple[tuple[int, ...], ...]) -> None:
    start = point_index(shapes[0])
    index = start
    for before, after in itertools.pairwise(shapes):
        index = unflatten(flatten(index, before), after)
    assert index == start


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_any_row_major_reshape_reads_contiguously(shape: list[int], rng: random.Random) -> None:
    """Whatever the shapes between, a buffer read in row-major order has a plain offset in the end."""
    total = math.prod(shape)
    factors = [d for d in range(1, total + 1) if total % d == 0]
    index, current = point_index(tuple(shape)), tuple(shape)
    for _ in range(3):
        first = rng.choice(factors)
        following = (first, total // first)
        index, current = unflatten(flatten(index, current), following), following
    offset = dot(index, row_major_strides(current))
    assert offset == dot(point_index(tuple(shape)), row_major_strides(tuple(shape)))


def test_nearest_resize_is_a_quotient() -> None:
    x = variable("x", 0, 9)
    assert lookup(tuple(i // 2 for i in range(10)), x) == x // 2
    assert lookup(tuple((i + 1) // 2 for i in range(10)), x) == (x + 1) // 2
    assert lookup(tuple(range(9, -1, -1)), x).stride("x") == -1


def test_nested_division_by_hand() -> None:
    i = variable("i", 0, 59)
    assert (i // 4) // 3 == i // 12
    assert (i // 12) * 12 + ((i // 4) % 3) * 4 + i % 4 == i
    h, w = variable("h", 0, 6), variable("w", 0, 9)
    assert (h * 10 + w) // 20 == h // 2
    assert (h * 10 + w) % 20 == (h % 2) * 10 + w
    assert (h * 10 + w).text == "10*h+w"


def test_every_primitive_has_index_semantics() -> None:
    """All but elementwise and opaque primitives are in exactly one of the tables of reads."""
    tables = [set(LAYOUT_READS), set(REDUCTIONS), set(GATHERS)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    kinds = [{"layout", "broadcast"}, {"reduce", "linear"}, {"gather"}]
    for table, kind in zip(tables, kinds, strict=True):
        assert table == {row.name for row in ROWS if row.kind in kind}


def test_repeated_lanes() -> None:
    x, y = variable("x", 0, 99), variable("y", 0, 9)
    assert lane_pattern(x // 2 + y * 50, "x", 0, 4) == (0, 0, 1, 1)
    assert lane_pattern((x + 1) // 2, "x", 0, 4) == (0, 1, 1, 2)
    assert lane_pattern(x // 2, "x", 3, 4) == (0, 1, 1, 2)
    assert lane_pattern(x // 3, "x", 0, 4) is None
    assert lane_pattern(x % 4, "x", 0, 4) is None


def test_cuts_of_tables() -> None:
    assert cuts_of((2, 1, *range(9), 7, 6)) == [0, 3, 11]
    twice = tuple(min(max((i - 1) // 2, 0), 18) for i in range(40))
    assert repetition(twice) == (1, 39, 2) and cuts_of(twice) == [1, 39]
    assert cuts_of(tuple(i * i for i in range(40))) == []
    for values in (twice, (2, 1, *range(9), 7, 6)):
        for low, high in itertools.pairwise([*cuts_of(values), len(values)]):
            piece = variable("p", low, high - 1)
            found = lookup(values, piece)
            assert not any(isinstance(a, Entry) for a in found.atoms())
            assert all(found.evaluate({"p": p}) == values[p] for p in range(low, high))
