"""ONNX's own node tests through the whole pipeline, many models merged into one.

The same tests check the primitives' NumPy meaning in `tests/pure/test_fission_nodes.py`; here they check generated
code. A sample of them runs always, all of them where KORCH_SLOW_TESTS is 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import compose, helper
from onnx.backend.test.case.test_case import TestCase

import korch
from korch.fission import fission
from korch.importers.onnx import import_onnx
from tests.pure.test_fission_nodes import array, cases, check, variants

__all__ = ["cases"]  # the fixture

SLOW = os.environ.get("KORCH_SLOW_TESTS") == "1"
STEP = 1 if SLOW else 25
BATCH = 40


@dataclass(frozen=True)
class Node:
    """One node test in the form that is supported, with its first data set."""

    case: TestCase
    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def nodes(cases: Sequence[TestCase]) -> Iterator[Node]:
    """Those that fission takes, without models that have functions of their own."""
    for case in cases:
        for model in () if case.model.functions else variants(case):
            try:
                graph = fission(import_onnx(model))
            except korch.KorchError:
                continue
            given, expected = case.data_sets[0]
            feeds = {d.name: array(v) for d, v in zip(model.graph.input, given, strict=False)}
            results = {d.name: array(v) for d, v in zip(model.graph.output, expected, strict=True)}
            yield Node(case, model, {name: feeds[name] for name, _ in graph.inputs}, results)
            break


def merged(batch: Sequence[Node]) -> onnx.ModelProto:
    """All models as one, the names of each with a prefix."""
    graph = onnx.GraphProto(name="batch")
    for k, node in enumerate(batch):
        part = compose.add_prefix(node.model, f"m{k}/").graph
        graph.node.extend(part.node)
        graph.input.extend(part.input)
        graph.output.extend(part.output)
        graph.initializer.extend(part.initializer)
        graph.sparse_initializer.extend(part.sparse_initializer)
        graph.value_info.extend(part.value_info)
    return helper.make_model(graph, opset_imports=batch[0].model.opset_import, ir_version=batch[0].model.ir_version)


def batches(found: Sequence[Node]) -> Iterator[list[Node]]:
    """Models of the same operator sets."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in found:
        opsets = sorted((o.domain, o.version) for o in node.model.opset_import)
        groups.setdefault((*opsets, node.model.ir_version), []).append(node)
    for group in groups.values():
        for start in range(0, len(group), BATCH):
            yield group[start : start + BATCH]


def failures(batch: Sequence[Node]) -> list[str]:
    """What is wrong, one line each. When a batch fails as a whole, its models are tried one by one."""
    inputs = {f"m{k}/{name}": a for k, node in enumerate(batch) for name, a in node.inputs.items()}
    try:
        results = korch.optimize(merged(batch), budget=0).run(inputs)
    except korch.KorchError as error:
        if len(batch) == 1:
            return [f"{batch[0].case.name}: {str(error)[:300]}"]
        return [line for node in batch for line in failures([node])]
    wrong: list[str] = []
    for k, node in enumerate(batch):
        for name, expected in node.outputs.items():
            try:
                check(results[f"m{k}/{name}"], expected, node.case)
            except AssertionError as error:
                wrong.append(f"{node.case.name}: {name}: {' '.join(str(error).split())[:200]}")
    return wrong


def test_node_tests(cases: list[TestCase], cache) -> None:
    found = list(nodes(cases[::STEP]))
    assert len(found) > 1400 / STEP
    wrong = [line for batch in batches(found) for line in failures(batch)]
    assert wrong == []
