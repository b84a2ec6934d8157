"""Every ATen operator of the table against PyTorch: the primitives' NumPy meaning on samples with odd values.

What generated code makes of primitives is tested elsewhere, for each of them.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the oracle is PyTorch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from korch.errors import UnsupportedModel  # noqa: E402
from korch.fission.aten.fission import fission  # noqa: E402
from korch.fission.aten.table import FAMILIES, IGNORED, KEPT, OPERATORS, PRIMS  # noqa: E402
from korch.importers.torch import as_numpy, read_graph  # noqa: E402
from korch.ir.evaluate import evaluate  # noqa: E402
from tests.peers.aten_samples import SAMPLES, Sample  # noqa: E402

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
"""Relative to the value, and to the largest of the result where rounding of a sum shows."""

OUTPUTS = {
    "_native_batch_norm_legit_functional.default": (0,),
    "_native_batch_norm_legit_no_training.default": (0,),
    "_scaled_dot_product_flash_attention_for_cpu.default": (0,),
    "log_sigmoid_forward.default": (0,),
}
"""Results compared where not all are: the others serve training."""


def overload(name: str) -> Any:
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which)


def results(name: str, sample: Sample, leaves: list[Any]) -> list[Any]:
    args, kwargs = pytree.tree_unflatten(leaves, pytree.tree_structure((sample.args, sample.kwargs)))
    found = overload(name)(*args, **kwargs)
    every = list(found) if isinstance(found, tuple | list) else [found]
    return [every[k] for k in OUTPUTS.get(name, range(len(every)))]


def program_of(name: str, sample: Sample, leaves: list[Any], places: list[int]) -> tuple[Any, list[str]]:
    """A program that is this one call, and the names of its inputs. (Tracing would take composite ones apart.)"""
    graph, filled = torch.fx.Graph(), list(leaves)
    for k in places:
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = leaves[k]
        filled[k] = node
    args, kwargs = pytree.tree_unflatten(filled, pytree.tree_structure((sample.args, sample.kwargs)))
    call = graph.call_function(overload(name), args, kwargs)
    call.meta["val"] = overload(name)(*sample.args, **sample.kwargs)
    ends = [call]
    if isinstance(call.meta["val"], tuple | list):
        every = range(len(call.meta["val"]))
        ends = [graph.call_function(operator.getitem, (call, k)) for k in OUTPUTS.get(name, every)]
    graph.output(tuple(ends))
    return torch.fx.GraphModule({}, graph), [f"x{k}" for k in places]


def through_primitives(name: str, sample: Sample, constant: bool = False) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results by the primitives, of inputs or of constants, and PyTorch's."""
    leaves = pytree.tree_leaves((sample.args, sample.kwargs), is_leaf=lambda x: x is None)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[k] for k in places]

    def call(*given: Any) -> list[Any]:
        filled = list(leaves)
        for k, tensor in zip(places, given, strict=True):
            filled[k] = tensor
        return results(name, sample, filled)

    expected = call(*(t.clone() for t in tensors))
    module, names = program_of(name, sample, leaves, places)
    outputs = [f"o{k}" for k in range(len(expected))]
    held = dict(zip(names, tensors, strict=True)) if constant else {}
    program = read_graph(module, [] if constant else [(n, n) for n in names], outputs, held, name)
    assert [node.target for node in program.nodes] == [f"aten.{name}"]
    arrays = {n: as_numpy(t) for n, t in zip(names, tensors, strict=True)}
    graph = fission(program)
    with np.errstate(all="ignore"):
        got = evaluate(graph, {n: arrays[n] for n, _ in graph.inputs})
    return [got[n] for n in outputs], [as_numpy(t) for t in expected]


def check(got: np.ndarray, expected: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(got, expected)
        return
    tolerance = TOLERANCE[expected.dtype.name]
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = b[np.isfinite(b)]
    scale = min(np.abs(finite).max(initial=0), 1e3)
    np.testing.assert_allclose(a, b, rtol=4 * tolerance, atol=tolerance * scale)


def test_every_operator_has_samples() -> None:
    known = {name for family in FAMILIES for name in family}
    assert known == set(SAMPLES)
    assert sum(map(len, FAMILIES)) == len(known)
    assert set(OPERATORS) == {f"aten.{name}" for name in known} | set(PRIMS)
    assert set(KEPT) <= set(OPERATORS) and not IGNORED & set(OPERATORS)


@pytest.mark.parametrize("name", SAMPLES)
def test_operator(name: str) -> None:
    for sample in SAMPLES[name]:
        for got, expected in zip(*through_primitives(name, sample), strict=True):
            check(got, expected)


@pytest.mark.parametrize(
    "name", [n for n in SAMPLES if n.startswith(("index", "gather", "conv", "scatter", "_native"))]
)
def test_operator_of_constants(name: str) -> None:
    for sample in SAMPLES[name]:
        for got, expected in zip(*through_primitives(name, sample, constant=True), strict=True):
            check(got, expected)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x[x > 0].sum(), "size depends on"),
        (lambda x: torch.lgamma(x), "aten.lgamma.default"),
        (lambda x: torch.nonzero(x).sum(), "aten.nonzero.default"),
        (lambda x: torch.randn_like(x), "aten.randn_like.default"),
        (lambda x: torch.complex(x, x).abs(), "complex64"),
    ],
)
def test_what_is_refused_is_named(function: Any, reason: str) -> None:
    module = make_fx(function, tracing_mode="fake")(torch.ones(3))
    (x,) = (node.name for node in module.graph.nodes if node.op == "placeholder")
    with pytest.raises(UnsupportedModel, match=reason):
        fission(read_graph(module, [(x, x)], ["y"], {}, "refused"))


def test_all_refused_operators_are_named_at_once() -> None:
    module = make_fx(lambda x: torch.lgamma(x) + torch.digamma(torch.lgamma(x)) + torch.i0(x), tracing_mode="fake")(
        torch.ones(3)
    )
    with pytest.raises(UnsupportedModel, match=r"lgamma.default in 2 nodes \(lgamma, lgamma_1\).*digamma.*i0"):
        fission(read_graph(module, [("x", "x_1")], ["y"], {}, "refused"))
