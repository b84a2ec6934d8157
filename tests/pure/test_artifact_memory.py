"""The arena's plan against a brute-force overlap check."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from korch.artifact.memory import Buffer, plan_memory

lives = st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda t: (t[0], t[0] + t[1]))
buffers = st.builds(
    lambda size, life, alias: Buffer(size, *life, alias),
    st.integers(0, 5000),
    lives,
    st.sampled_from([None, None, None, "a", "b"]),
)


@given(st.lists(buffers, max_size=24))
def test_live_buffers_never_overlap(some):
    offsets, size = plan_memory(some)
    assert len(offsets) == len(some)
    for buffer, offset in zip(some, offsets, strict=True):
        assert offset % 64 == 0 and offset >= 0 and offset + buffer.size <= size
    aliases = {b.alias: [x for x in some if x.alias == b.alias] for b in some if b.alias}
    for (b, i), (c, j) in itertools.combinations(zip(some, offsets, strict=True), 2):
        if b.alias is not None and b.alias == c.alias:
            assert i == j
            continue
        # a class of aliases lives as a whole, from its first use to its last
        first, last = _life(b, aliases)
        other_first, other_last = _life(c, aliases)
        if first <= other_last and other_first <= last:
            assert i + b.size <= j or j + c.size <= i or not b.size or not c.size


def _life(buffer, aliases):
    members = aliases[buffer.alias] if buffer.alias else [buffer]
    return min(b.first for b in members), max(b.last for b in members)


@given(st.lists(buffers, max_size=12))
def test_equal_inputs_give_equal_plans(some):
    assert plan_memory(some) == plan_memory(list(some))


def test_a_chain_needs_two_buffers():
    chain = [Buffer(1 << 20, k, k + 1) for k in range(50)]
    assert plan_memory(chain)[1] == 2 << 20


def test_the_tightest_gap_is_taken():
    # a hole of 128 bytes between two long-lived buffers takes the buffer of 128
    some = [Buffer(640, 0, 9), Buffer(256, 0, 3), Buffer(512, 0, 9), Buffer(128, 4, 9), Buffer(128, 4, 9)]
    assert plan_memory(some)[1] == 640 + 256 + 512


def test_aliases_share_one_place():
    offsets, size = plan_memory([Buffer(64, 0, 1, "x"), Buffer(100, 3, 4, "x"), Buffer(64, 2, 2)])
    assert offsets[0] == offsets[1] and size == 128 + 64


def test_nothing_needs_nothing():
    assert plan_memory([]) == ((), 0)
    assert plan_memory([Buffer(0, 0, 5)]) == ((0,), 0)
