"""Plans as JSON, so that a model that was optimized before need not be searched again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from korch.candidates.candidate import Candidate
from korch.ir.layout import Layout, Resource
from korch.selection.lazy import Certificate, Plan


def plan_to_json(plan: Plan, certificate: Certificate) -> dict[str, Any]:
    """What `plan_from_json` reads."""
    return {
        "kernels": [_candidate(c) for c in plan.kernels],
        "keys": plan.keys,
        "costs": plan.costs,
        "columns": plan.columns,
        "certificate": asdict(certificate),
    }


def plan_from_json(value: Mapping[str, Any]) -> tuple[Plan, Certificate]:
    """The inverse of `plan_to_json`."""
    plan = Plan(
        tuple(map(_parsed, value["kernels"])), tuple(value["keys"]), tuple(value["costs"]), tuple(value["columns"])
    )
    return plan, Certificate(**value["certificate"])


def _candidate(c: Candidate) -> list[Any]:
    resources = ([[r.value, str(r.layout)] for r in some] for some in (c.inputs, c.outputs))
    return [c.kind, c.definitions, *resources, c.weights, c.offset]


def _parsed(value: list[Any]) -> Candidate:
    kind, definitions, inputs, outputs, weights, offset = value
    read, written = (tuple(Resource(v, Layout.parse(text)) for v, text in some) for some in (inputs, outputs))
    return Candidate(kind, tuple(definitions), read, tuple(weights), written, offset)
