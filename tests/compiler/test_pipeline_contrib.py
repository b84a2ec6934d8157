"""The `com.microsoft` operators through generated code, all of them as one model."""

from __future__ import annotations

import onnx
from onnx import compose, helper

import korch
from tests.pure.test_fission_contrib import CASES, check, feeds_of, model_of, wide


def test_generated_code(cache) -> None:
    graph = onnx.GraphProto(name="all")
    inputs = {}
    for k, case in enumerate(CASES.values()):
        part = compose.add_prefix(model_of(case), f"m{k}/").graph
        for field in ("node", "input", "output", "initializer"):
            getattr(graph, field).extend(getattr(part, field))
        inputs |= {f"m{k}/{name}": array for name, array in feeds_of(case).items()}
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    found = korch.optimize(helper.make_model(graph, opset_imports=opsets, ir_version=8), budget=0).run(inputs)
    for k, case in enumerate(CASES.values()):
        for name, expected in case.expected(wide(case)).items():
            check(found[f"m{k}/{name}"], expected, case)
