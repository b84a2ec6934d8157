"""Every known case through import, fission and the primitives' NumPy meaning."""

from __future__ import annotations

import time

import numpy as np
import pytest

from korch.fission import fission
from korch.importers.onnx import import_onnx
from korch.ir.evaluate import evaluate
from tests.pure.cases import Case, cases, shared_chain

CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_case(case: Case) -> None:
    results = evaluate(fission(import_onnx(case.model)), case.inputs)
    assert list(results) == list(case.expected)
    for name, expected in case.expected.items():
        found = results[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=case.atol)


def test_time_grows_with_the_chain_not_with_its_paths() -> None:
    case = shared_chain(30)
    operators = import_onnx(case.model)
    begin = time.perf_counter()
    graph = fission(operators)
    assert time.perf_counter() - begin < 5
    assert len(graph) < 3 * len(operators.operators)
