"""Lower bounds: the least work of fragments, and ceilings."""

from __future__ import annotations

import pytest

from korch.costs.bounds import Ceilings, Work, flops_of, lower_bound, work_of
from korch.ir.fragment import Fragment
from korch.ir.layout import Layout
from korch.ir.text import parse_graph

LEVELS = ((1 << 15, 400.0), (1 << 20, 200.0), (1 << 24, 50.0))
CEILINGS = Ceilings(flops_per_us=1000.0, bandwidths=LEVELS, launch_us=0.5)


def fragment(text: str, *weights: str) -> Fragment:
    graph = parse_graph("\n".join(line.strip() for line in text.strip().splitlines()) + "\n", {})
    layouts = {v: Layout.row_major(graph.types[v].shape) for v in (*graph.input_values, *graph.output_values)}
    return Fragment(graph, frozenset(weights), layouts)


def test_bandwidth_is_that_of_the_smallest_level_that_holds_all() -> None:
    assert [CEILINGS.bandwidth(n) for n in (1, 1 << 15, (1 << 15) + 1, 1 << 24, 1 << 40)] == [400, 400, 200, 50, 50]


def test_the_greater_of_arithmetic_and_traffic_counts() -> None:
    light = fragment("""
        input x = x : float32[1000]
        y = neg(x) : float32[1000]
        output y = y
    """)
    assert work_of(light) == Work(1000.0, 8000)
    assert lower_bound(light, CEILINGS) == 0.5 + max(1.0, 8000 / 400)
    heavy = fragment("""
        input a = a : float32[100,100]
        input b = b : float32[100,100]
        y = matmul(a, b) : float32[100,100]
        output y = y
    """)
    assert work_of(heavy) == Work(2e6, 120_000)
    assert lower_bound(heavy, CEILINGS) == 0.5 + max(2000.0, 120_000 / 200)


CASES = {
    "two operations in a chain": (
        """
        input x = x : float32[10]
        t = exp(x) : float32[10]
        y = neg(t) : float32[10]
        output y = y
        """,
        Work(90.0, 80),
    ),
    "a value is read once, however often it is used": (
        """
        input x = x : float32[10]
        t = neg(x) : float32[10]
        y = add(t, x) : float32[10]
        output y = y
        output z = x
        """,
        Work(20.0, 120),
    ),
    "only a slice is needed, through layouts and arithmetic": (
        """
        input x = x : float32[3,4,5]
        t = transpose(x; perm=(1, 2, 0)) : float32[4,5,3]
        u = reshape(t; shape=(20, 3)) : float32[20,3]
        v = exp(u) : float32[20,3]
        y = slice(v; shape=(20, 1), starts=(0, 1), steps=(1, 1)) : float32[20,1]
        output y = y
        """,
        Work(160.0, 160),
    ),
    "two different slices: the larger": (
        """
        input x = x : float32[10]
        y = slice(x; shape=(3,), starts=(0,), steps=(1,)) : float32[3]
        z = slice(x; shape=(5,), starts=(5,), steps=(1,)) : float32[5]
        output y = y
        output z = z
        """,
        Work(0.0, 5 * 4 + 8 * 4),
    ),
    "an element repeated is read once": (
        """
        input x = x : float32[100,2]
        y = take(x; axis=0, indices=(7, 7, 7, 9)) : float32[4,2]
        output y = y
        """,
        Work(0.0, 4 * 4 + 8 * 4),
    ),
    "what is broadcast is computed once": (
        """
        input x = x : float32[4]
        t = broadcast(x; axes=(1,), shape=(100, 4)) : float32[100,4]
        y = exp(t) : float32[100,4]
        output y = y
        """,
        Work(32.0, 16 + 1600),
    ),
    "padding is not read": (
        """
        input x = x : float32[4,4]
        y = pad(x; before=(1, -2), shape=(10, 4), value=0.0) : float32[10,4]
        output y = y
        """,
        Work(0.0, 8 * 4 + 160),
    ),
    "parts of a concatenation that nothing needs": (
        """
        input a = a : float32[6]
        input b = b : float32[2]
        t = concat(a, b; axis=0) : float32[8]
        y = slice(t; shape=(3,), starts=(5,), steps=(1,)) : float32[3]
        output y = y
        """,
        Work(0.0, 4 + 0 + 12),
    ),
    "a reduction reads what its needed results are made of": (
        """
        input x = x : float32[8,10]
        t = reduce_sum(x; axes=(1,)) : float32[8,1]
        y = slice(t; shape=(2, 1), starts=(0, 0), steps=(1, 1)) : float32[2,1]
        output y = y
        """,
        Work(20.0, 80 + 8),
    ),
    "windows apart from each other skip elements": (
        """
        input x = x : float32[100]
        y = window_max(x; dilations=(1,), pads=(0,), shape=(10,), strides=(10,), window=(3,)) : float32[10]
        output y = y
        """,
        Work(10.0, 30 * 4 + 40),
    ),
    "a strided pointwise convolution": (
        """
        input x = x : float32[1,3,8,8]
        input w = w : float32[5,3,1,1]
        y = conv(x, w; dilations=(1, 1), groups=1, pads=(0, 0, 0, 0), strides=(2, 2)) : float32[1,5,4,4]
        output y = y
        """,
        Work(2.0 * 5 * 16 * 3, 4 * (3 * 16 + 15 + 5 * 16)),
    ),
    "taps in the padding are no work, and those that never leave it are not read": (
        """
        input x = x : float32[1,3,1,1]
        input w = w : float32[5,3,3,3]
        y = conv(x, w; dilations=(1, 1), groups=1, pads=(1, 1, 1, 1), strides=(2, 2)) : float32[1,5,1,1]
        output y = y
        """,
        Work(2.0 * 5 * 3, 4 * (3 + 15 + 5)),
    ),
    "Winograd's algorithm multiplies a quarter": (
        """
        input x = x : float32[1,3,10,10]
        input w = w : float32[5,3,3,3]
        y = conv(x, w; dilations=(1, 1), groups=1, pads=(0, 0, 0, 0), strides=(1, 1)) : float32[1,5,8,8]
        output y = y
        """,
        Work(2.0 * 5 * 64 * 27 / 4, 4 * (300 + 135 + 320)),
    ),
    "a transposed convolution with its border cut off": (
        """
        input x = x : float32[1,2,3]
        input w = w : float32[2,4,3]
        y = conv_transpose(x, w; dilations=(1,), groups=1, pads=(1,), shape=(1, 4, 5), strides=(2,)) : float32[1,4,5]
        output y = y
        """,
        Work(2.0 * 2 * 4 * (9 - 2), 4 * (6 + 24 + 20)),
    ),
    "narrow elements share a lane": (
        """
        input x = x : uint8[64]
        y = add(x, x) : uint8[64]
        output y = y
        """,
        Work(16.0, 128),
    ),
    "nothing at all": (
        """
        input x = x : float32[0,4]
        y = exp(x) : float32[0,4]
        output y = y
        """,
        Work(0.0, 0),
    ),
    "an index reads what it points at, unknown before": (
        """
        input x = x : float32[100,8]
        input i = i : int64[5]
        y = gather(x, i; axis=0) : float32[5,8]
        output y = y
        """,
        Work(0.0, 4 + 40 + 160),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_least_work(name: str) -> None:
    text, expected = CASES[name]
    assert work_of(fragment(text)) == expected


def test_what_weights_alone_decide_is_packed_beforehand() -> None:
    text = """
        input x = x : float32[8]
        input w = w : float32[4,8]
        s = reduce_sum(w; axes=(0,)) : float32[1,8]
        e = exp(s) : float32[1,8]
        r = reshape(e; shape=(8,)) : float32[8]
        y = add(x, r) : float32[8]
        output y = y
    """
    assert work_of(fragment(text, "w")) == Work(8.0, 3 * 32)
    assert work_of(fragment(text)) == Work(32.0 + 64 + 8, 128 + 64)


def test_flops_of_a_definition_done_in_full() -> None:
    graph = fragment("""
        input x = x : float32[2,3]
        c = cast(x; to='float64') : float64[2,3]
        r = reduce_sum(c; axes=(1,)) : float64[2,1]
        output y = r
    """).graph
    assert [flops_of(graph, d) for d in graph.definitions] == [0.0, 6.0]


def test_the_highest_of_two_ceilings() -> None:
    one = Ceilings(100.0, ((1 << 15, 50.0), (1 << 20, 20.0)), 3.0)
    other = Ceilings(80.0, ((1 << 15, 60.0), (1 << 20, 10.0)), 2.0)
    assert one.highest(other) == other.highest(one) == Ceilings(100.0, ((1 << 15, 60.0), (1 << 20, 20.0)), 2.0)
