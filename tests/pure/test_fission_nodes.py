"""ONNX's own backend tests: everything that is supported gives the stored results."""

from __future__ import annotations

import pytest

from benchmarks.onnx_suites import SUITES, Case, difference, feeds_of, load_cases, variants
from korch.errors import KorchError, UnsupportedModel
from korch.fission import fission, unsupported
from korch.importers.onnx import import_onnx
from korch.ir.evaluate import evaluate
from korch.ir.graph import Graph

REFUSED = {
    "Dropout": "training mode drops elements at random",
    "RandomUniformLike": "it has no decomposition",
    "TfIdfVectorizer": "it has no decomposition",
}
"""Standard operators that fission refuses in these models, and why. All other refusals are the importer's."""

PASSED = {"node": 1603, "simple": 7, "pytorch-operator": 23, "pytorch-converted": 82}
"""How many cases pass at least."""

STANDARD = ("", "ai.onnx")


def graph_of(case: Case) -> Graph | set[tuple[str, str]] | None:
    """The graph; or what fission refuses; or None for what the importer refuses."""
    refused: set[tuple[str, str]] | None = None
    for model in variants(case):
        try:
            operators = import_onnx(model)
        except KorchError:
            continue
        try:
            return fission(operators)
        except UnsupportedModel:
            refused = {(r.op_type, r.reason) for r in unsupported(operators) if r.domain in STANDARD}
    return refused


@pytest.mark.parametrize("suite", SUITES)
def test_backend_tests(suite: str) -> None:
    failures: list[str] = []
    refused: set[tuple[str, str]] = set()
    passed = 0
    for case in load_cases(suite):
        graph = graph_of(case)
        if not isinstance(graph, Graph):
            refused |= graph or set()
            continue
        found = (difference(evaluate(graph, feeds_of(case, graph, k)), case, k) for k in range(len(case.data_sets)))
        problem = next(filter(None, found), "")
        passed += not problem
        failures += [f"{case.name}: {problem}"] if problem else []
    assert failures == []
    assert refused <= set(REFUSED.items())
    assert suite != "node" or refused == set(REFUSED.items())
    assert passed >= PASSED[suite]
