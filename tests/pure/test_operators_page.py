"""The page of supported operators is current: for a sample of the cases, and for what it says of all."""

from __future__ import annotations

import json

import pytest

from benchmarks.onnx_suites import SUITES, load_cases
from benchmarks.operators import PAGE, RESULTS, outcome_of, page

RECORDED = json.loads(RESULTS.read_text())
STEP = 17


def test_the_page_tells_the_recorded_outcomes() -> None:
    assert PAGE.read_text() == page(RECORDED)


def test_no_case_fails() -> None:
    assert [n for s in SUITES for n, c in RECORDED[s].items() if c["outcome"] == "failed"] == []


@pytest.mark.parametrize("suite", SUITES)
def test_a_sample_has_the_recorded_outcome(suite: str) -> None:
    cases = load_cases(suite)
    assert [c.name for c in cases] == list(RECORDED[suite])
    for case in cases[::STEP]:
        found, recorded = outcome_of(case), RECORDED[suite][case.name]
        assert (found["outcome"], found.get("reason")) == (recorded["outcome"], recorded.get("reason")), case.name
