"""Attention kernels against the primitives' meaning in float64."""

from __future__ import annotations

import numpy as np
import pytest

from korch.codegen.c.fusible import attention_sets, fusible
from korch.codegen.c.linear import linear_implementations
from korch.codegen.target import host_features, target_named
from korch.ir.evaluate import evaluate
from korch.ir.fragment import Fragment
from tests.compiler.linear_cases import Build, Library, deviation, oracle, random_inputs


def attention(
    batch: tuple[int, ...],
    queries: int,
    keys: int,
    depth: int,
    width: int,
    *,
    scale: float = 0.0,
    mask: bool = False,
    late: bool = False,
    merged: bool = False,
    in_place: bool = False,
) -> Fragment:
    """Rows of softmax(q k^T [/ scale] [+ mask]) v. `late`: the division comes after the second product; `merged`: heads
    are put side by side afterwards; `in_place`: heads are read side by side, keys transposed."""
    g = Build()
    n = len(batch)
    heads_aside = (*range(n - 1), n, n - 1, n + 1)
    q = g.input(*batch, queries, depth, order=heads_aside if in_place else None)
    k = g.input(*batch, depth, keys, order=(*range(n), n + 1, n) if in_place else None)
    v = g.input(*batch, keys, width, order=heads_aside if in_place else None)
    x = g.op("matmul", q, k)
    shape = g.shape(x)
    if scale:
        x = g.op("div", x, g.spread(g.constant(scale), shape))
    if mask:
        x = g.op("add", x, g.spread(g.input(queries, keys), shape, n, n + 1))
    kept = tuple(range(n + 1))
    e = g.op("exp", g.op("sub", x, g.spread(g.op("reduce_max", x, axes=(n + 1,)), shape, *kept)))
    z = g.op("reduce_sum", e, axes=(n + 1,))
    if late:
        y = g.op("matmul", e, v)
        y = g.op("div", y, g.spread(z, g.shape(y), *kept))
    else:
        y = g.op("matmul", g.op("div", e, g.spread(z, shape, *kept)), v)
    if merged:
        y = g.op("transpose", y, perm=heads_aside)
        y = g.op("reshape", y, shape=(*batch[:-1], queries, batch[-1] * width))
    return g.fragment(y)


CASES: dict[str, Fragment] = {
    "one row of one key": attention((1,), 1, 1, 1, 1),
    "whole tiles": attention((2,), 48, 64, 32, 32, scale=5.0),
    "odd sizes": attention((1, 3), 29, 37, 19, 21, scale=3.0),
    "fewer keys than lanes": attention((2, 2), 17, 3, 5, 9),
    "many keys": attention((1,), 40, 1029, 8, 16, scale=2.0),
    "mask": attention((1, 2), 33, 66, 16, 16, scale=4.0, mask=True),
    "divided late": attention((1, 2), 30, 50, 16, 24, late=True),
    "heads put together": attention((1, 5), 50, 64, 32, 32, scale=5.0, merged=True),
    "heads in place": attention((2, 4), 35, 40, 16, 8, merged=True, in_place=True),
    "many rows": attention((1,), 1000, 256, 32, 32, scale=5.0),
}
TARGETS = ["x86_64", "x86_64_v3", "x86_64_v4"]


@pytest.fixture(scope="module", params=TARGETS)
def built(request, tmp_path_factory):
    """All kernels of all cases for one target."""
    target = target_named(request.param)
    if not host_features().issuperset(target.features):
        pytest.skip(f"this machine has no {request.param}")
    cases = []
    for fragment in CASES.values():
        kernels = linear_implementations(fragment, target)
        assert not isinstance(kernels, str), kernels
        cases += [(fragment, kernel) for kernel in kernels]
    return Library(cases, target, tmp_path_factory.mktemp("attention"))


def limit(fragment: Fragment, inputs: dict[str, np.ndarray], wanted: np.ndarray) -> float:
    """Thrice what NumPy's float32 deviates: the exponential magnifies the rounding of large logits."""
    (single,) = evaluate(fragment.graph, inputs).values()
    return 1e-6 + 3 * deviation(single, wanted)


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_its_primitives(name: str, built: Library):
    fragment = CASES[name]
    inputs = random_inputs(fragment)
    (wanted,) = oracle(fragment, inputs).values()
    for number, (other, _) in enumerate(built.cases):
        if other is fragment:
            (got,) = built.run(number, inputs).values()
            assert deviation(got, wanted) < limit(fragment, inputs, wanted)
            (again,) = built.run(number, inputs, forward=True).values()
            assert np.array_equal(got, again)


def test_a_masked_row_ignores_keys_and_others_are_untouched(built: Library):
    """-inf in the mask takes a key out; a row of nothing but -inf is NaN, as softmax defines it; so is one with NaN."""
    fragment = CASES["mask"]
    inputs = random_inputs(fragment)
    mask = next(v for v in inputs if inputs[v].shape == (33, 66))
    inputs[mask][3, :40] = -np.inf
    inputs[mask][5] = -np.inf
    inputs[mask][9, 65] = np.nan
    with np.errstate(all="ignore"):
        (wanted,) = oracle(fragment, inputs).values()
    number = next(k for k, (other, _) in enumerate(built.cases) if other is fragment)
    (got,) = built.run(number, inputs).values()
    assert np.array_equal(np.isnan(got), np.isnan(wanted)) and np.isnan(got[:, :, [5, 9]]).all()
    clean = random_inputs(fragment)
    (whole,) = oracle(fragment, clean).values()
    assert deviation(np.nan_to_num(got), np.nan_to_num(wanted)) < limit(fragment, clean, whole)


def test_what_is_no_attention_is_refused():
    g = Build()
    y = g.op("matmul", g.op("matmul", g.input(4, 5), g.input(5, 6)), g.input(6, 7))
    reason = linear_implementations(g.fragment(y), target_named("x86_64_v3"))
    assert isinstance(reason, str) and "softmax" in reason


def test_the_sets_of_an_attention_are_proposed_and_fused():
    """Each prefix of what follows the second product; the maximum and the sum stay inside."""
    graph = CASES["heads put together"].graph
    sets = attention_sets(graph)
    assert [len(graph.definitions) - len(s) for s in sets] == [3, 2, 1]
    assert all(fusible(graph, s) is None for s in sets)
    assert fusible(graph, sets[0][:-1]) is not None
    assert attention_sets(CASES["divided late"].graph)
