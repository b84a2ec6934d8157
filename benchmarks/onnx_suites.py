"""ONNX's own backend tests: their models and stored results, and how Korch is held against them.

Many of the node tests take as inputs what real models know: shapes, axes, bounds. What is refused as it stands is
tried again with all inputs but the first (where the first is a size: all) made constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test
from onnx import compose, helper, numpy_helper

import korch
from korch.errors import KorchError
from korch.fission import fission
from korch.importers.onnx import import_onnx
from korch.ir.graph import Graph

SUITES = ("node", "simple", "pytorch-operator", "pytorch-converted")

SIZED = ("test_range", "test_constantofshape", "test_hann", "test_hamming", "test_blackman", "test_melweight")
"""Tests whose first input is a size."""

ROUNDED = ("test_attention_", "test_dft_inverse")
"""Tests whose stored results were themselves computed in steps of float16 or bfloat16, or by a float32 transform.

They are compared to within two units in the last place of the dtype at the result's magnitude.
"""

BATCH = 40
"""Models that are compiled as one."""


@dataclass(frozen=True)
class Case:
    """One test: a model, and sets of inputs and expected outputs (arrays, TensorProtos, or lists of such)."""

    name: str
    model: onnx.ModelProto
    data_sets: Sequence[tuple[Sequence[object], Sequence[object]]]
    rtol: float
    atol: float


def load_cases(suite: str) -> list[Case]:
    """All cases of one of SUITES, in a fixed order."""
    if suite == "node":
        return _node_cases()
    folder = Path(onnx.backend.test.__file__).parent / "data" / suite
    return [_stored_case(path) for path in sorted(folder.iterdir())]


def _node_cases() -> list[Case]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases warns about their own values
        found = collect_testcases("")
    return [Case(c.name, c.model, c.data_sets, c.rtol, c.atol) for c in found if c.model and c.data_sets]


def _stored_case(folder: Path) -> Case:
    model = onnx.load(folder / "model.onnx")
    sets = [
        (_stored_values(data, "input", model.graph.input), _stored_values(data, "output", model.graph.output))
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    return Case(folder.name, model, sets, 1e-3, 1e-7)


def _stored_values(folder: Path, kind: str, declared: Sequence[onnx.ValueInfoProto]) -> list[object]:
    """Tensors; what is none stays bytes, as no model that has such an input or output is supported."""
    found: list[object] = []
    for k, value in enumerate(declared):
        path = folder / f"{kind}_{k}.pb"
        if path.exists():
            content = path.read_bytes()
            is_tensor = value.type.HasField("tensor_type")
            found.append(onnx.TensorProto.FromString(content) if is_tensor else content)
    return found


def array(value: object) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def variants(case: Case) -> Iterator[onnx.ModelProto]:
    """The model; then with inputs bound to the values of the first data set."""
    yield case.model
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    values = list(zip(model.graph.input, case.data_sets[0][0], strict=False))
    for declared, value in values[0 if case.name.startswith(SIZED) else 1 :]:
        if isinstance(value, np.ndarray | np.generic | onnx.TensorProto):
            model.graph.initializer.append(numpy_helper.from_array(array(value), declared.name))
    yield model


def feeds_of(case: Case, graph: Graph, data_set: int = 0) -> dict[str, np.ndarray]:
    """The inputs that the graph takes."""
    wanted = {name for name, _ in graph.inputs}
    given = zip(case.model.graph.input, case.data_sets[data_set][0], strict=False)
    return {d.name: array(v) for d, v in given if d.name in wanted}


def results_of(case: Case, data_set: int = 0) -> dict[str, np.ndarray]:
    """The expected outputs."""
    stored = zip(case.model.graph.output, case.data_sets[data_set][1], strict=True)
    return {d.name: array(v) for d, v in stored}


def check(found: np.ndarray, expected: np.ndarray, case: Case) -> None:
    """AssertionError unless the result is the stored one within the test's tolerance."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    atol = case.atol
    if case.name.startswith(ROUNDED) and expected.dtype.kind in "fV":
        magnitude = float(np.max(np.abs(expected.astype(np.float64)), where=np.isfinite(expected), initial=0))
        atol = 2 * float(ml_dtypes.finfo(expected.dtype).eps) * magnitude
    if expected.dtype.kind == "V" or expected.dtype.name not in np.sctypeDict:  # ml_dtypes
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=atol)


def difference(found: Mapping[str, np.ndarray], case: Case, data_set: int = 0) -> str:
    """The first result that is not the stored one; empty when all are."""
    for name, expected in results_of(case, data_set).items():
        try:
            check(found[name], expected, case)
        except AssertionError as error:
            return f"{name}: {' '.join(str(error).split())[:200]}"
    return ""


# --- through generated code


@dataclass(frozen=True)
class Taken:
    """A case in the form that is supported, with its first data set."""

    case: Case
    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Refused:
    """A case that is not supported, and what the error of the model as it stands says."""

    case: Case
    reason: str


def take(case: Case) -> Taken | Refused:
    """The first variant that fission takes."""
    reason = ""
    for model in variants(case):
        try:
            graph = fission(import_onnx(model))
        except KorchError as error:
            reason = reason or str(error)
            continue
        return Taken(case, model, feeds_of(case, graph))
    return Refused(case, reason)


def batches(found: Sequence[Taken]) -> Iterator[list[Taken]]:
    """Models that can be merged: of the same operator sets, and without functions of their own."""
    groups: dict[tuple[object, ...], list[Taken]] = {}
    for taken in found:
        if taken.model.functions:
            yield [taken]
            continue
        opsets = sorted((o.domain, o.version) for o in taken.model.opset_import)
        groups.setdefault((*opsets, taken.model.ir_version), []).append(taken)
    for group in groups.values():
        for start in range(0, len(group), BATCH):
            yield group[start : start + BATCH]


def merged(batch: Sequence[Taken]) -> onnx.ModelProto:
    """All models as one, the names of each with a prefix."""
    graph = onnx.GraphProto(name="batch")
    for k, taken in enumerate(batch):
        part = compose.add_prefix(taken.model, f"m{k}/").graph
        graph.node.extend(part.node)
        graph.input.extend(part.input)
        graph.output.extend(part.output)
        graph.initializer.extend(part.initializer)
        graph.sparse_initializer.extend(part.sparse_initializer)
        graph.value_info.extend(part.value_info)
    return helper.make_model(graph, opset_imports=batch[0].model.opset_import, ir_version=batch[0].model.ir_version)


def failures(batch: Sequence[Taken]) -> dict[str, str]:
    """What generated code gets wrong, by the names of the cases. A batch that fails as a whole is tried in halves."""
    if len(batch) == 1:
        return _single_failure(batch[0])
    inputs = {f"m{k}/{name}": a for k, taken in enumerate(batch) for name, a in taken.inputs.items()}
    try:
        results = korch.optimize(merged(batch), budget=0).run(inputs)
    except KorchError:
        middle = len(batch) // 2
        return failures(batch[:middle]) | failures(batch[middle:])
    wrong: dict[str, str] = {}
    for k, taken in enumerate(batch):
        prefix = f"m{k}/"
        own = {n.removeprefix(prefix): a for n, a in results.items() if n.startswith(prefix)}
        if problem := difference(own, taken.case):
            wrong[taken.case.name] = problem
    return wrong


def _single_failure(taken: Taken) -> dict[str, str]:
    try:
        problem = difference(korch.optimize(taken.model, budget=0).run(taken.inputs), taken.case)
    except KorchError as error:
        problem = str(error)[:300]
    return {taken.case.name: problem} if problem else {}
