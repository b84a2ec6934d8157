"""Models of a few operators, compared with ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from korch.fission import fission
from korch.importers.onnx import import_onnx
from korch.ir.evaluate import evaluate
from korch.ir.graph import Graph

ADVERSARIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, -1e-40, 3e38, -3e38, 20, -100],
    np.float32,
)
"""Values at which a formula may go wrong."""


def model_of(
    body: str,
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
) -> onnx.ModelProto:
    """`body` is in ONNX's textual form; the types of outputs are left to inference."""
    graph = parser.parse_graph("g () => () {" + body + "}")
    graph.input.extend(
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    )
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in (constants or {}).items())
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def graph_of(model: onnx.ModelProto) -> Graph:
    return fission(import_onnx(model))


def compare(
    body: str,
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Graph:
    """The graph, after its results were found equal to the reference evaluator's."""
    model = model_of(body, inputs, constants, outputs, opset)
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, dict(inputs))
    graph = graph_of(model)
    found = evaluate(graph, inputs)
    for name, wanted in zip(outputs, expected, strict=True):
        check(found[name], np.asarray(wanted), rtol, atol)
    return graph


def check(found: np.ndarray, expected: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal dtype, shape, NaN and infinities; the rest within the tolerance."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind not in "fV":
        np.testing.assert_array_equal(found, expected)
        return
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)
