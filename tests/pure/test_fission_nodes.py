"""ONNX's own backend node tests: everything that is supported gives the stored results.

Many of these models take as inputs what real models know: shapes, axes, bounds. What is refused as it stands is
tried again with all inputs but the first (where the first is a size: all) made constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

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

SIZED = ("test_range", "test_constantofshape", "test_hann", "test_hamming", "test_blackman", "test_melweight")
"""Tests whose first input is a size."""

ROUNDED = ("test_attention_", "test_dft_inverse")
"""Tests whose stored results were themselves computed in steps of float16 or bfloat16, or by a float32 transform.

They are compared to within two units in the last place of the dtype at the result's magnitude.
"""

STANDARD = ("", "ai.onnx")


@pytest.fixture(scope="module")
def cases() -> list[TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(""))


def array(value: object) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def variants(case: TestCase) -> Iterator[onnx.ModelProto]:
    """The model; then with inputs bound to the values of the first data set."""
    assert case.model is not None and case.data_sets is not None
    yield case.model
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    values = list(zip(model.graph.input, case.data_sets[0][0], strict=True))
    for declared, value in values[0 if case.name.startswith(SIZED) else 1 :]:
        if isinstance(value, np.ndarray | np.generic | onnx.TensorProto):
            model.graph.initializer.append(numpy_helper.from_array(array(value), declared.name))
    yield model


def graph_of(case: TestCase) -> Graph | set[tuple[str, str]] | None:
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


def difference(case: TestCase, graph: Graph) -> str:
    """The first result that is not the stored one; empty when all are."""
    assert case.model is not None and case.data_sets is not None
    wanted = {name for name, _ in graph.inputs}
    for inputs, outputs in case.data_sets:
        feeds = {d.name: array(v) for d, v in zip(case.model.graph.input, inputs, strict=False) if d.name in wanted}
        found = evaluate(graph, feeds)
        for declared, value in zip(case.model.graph.output, outputs, strict=True):
            try:
                check(found[declared.name], array(value), case)
            except AssertionError as error:
                return f"{declared.name}: {' '.join(str(error).split())[:200]}"
    return ""


def check(found: np.ndarray, expected: np.ndarray, case: TestCase) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    atol = case.atol
    if case.name.startswith(ROUNDED) and expected.dtype.kind in "fV":
        magnitude = float(np.max(np.abs(expected.astype(np.float64)), where=np.isfinite(expected), initial=0))
        atol = 2 * float(ml_dtypes.finfo(expected.dtype).eps) * magnitude
    if expected.dtype == ml_dtypes.bfloat16:
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=atol)


def test_backend_node_tests(cases: list[TestCase]) -> None:
    failures: list[str] = []
    refused: set[tuple[str, str]] = set()
    passed = 0
    for case in cases:
        graph = graph_of(case)
        if not isinstance(graph, Graph):
            refused |= graph or set()
            continue
        problem = difference(case, graph)
        passed += not problem
        failures += [f"{case.name}: {problem}"] if problem else []
    assert failures == []
    assert refused == set(REFUSED.items())
    assert passed > 1500
