"""ONNX's own backend tests through the whole pipeline, many models merged into one.

The same tests check the primitives' NumPy meaning in `tests/pure/test_fission_nodes.py`; here they check generated
code. A sample of them runs always, all of them where KORCH_SLOW_TESTS is 1.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.onnx_suites import SUITES, Taken, batches, failures, load_cases, take

SLOW = os.environ.get("KORCH_SLOW_TESTS") == "1"
STEP = 1 if SLOW else 25


@pytest.mark.parametrize("suite", SUITES)
def test_generated_code(suite: str, cache) -> None:
    cases = [c for c in load_cases(suite)[::STEP] if SLOW or not c.model.functions]
    found = [t for t in map(take, cases) if isinstance(t, Taken)]
    assert found
    wrong = [f"{name}: {why}" for batch in batches(found) for name, why in failures(batch).items()]
    assert wrong == []
