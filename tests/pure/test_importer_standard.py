"""Against the standard: its node tests, its bodies of operators, and real networks run one operator at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, helper
from onnx import numpy_helper as arrays
from onnx.reference import ReferenceEvaluator

from korch.errors import UnsupportedModel
from korch.importers.attributes import make_attribute
from korch.importers.inference import find_schema
from korch.importers.onnx import describe_onnx, expand_function_operator, import_onnx
from korch.importers.operators import Operator, OperatorGraph
from korch.ir.types import DType, TensorType

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # making the cases warns about their own values
    from onnx.backend.test.case.node import collect_testcases

    CASES = {c.name: c for c in collect_testcases(None)}


# --- running an operator graph


def node_of(operator: Operator) -> NodeProto:
    schema = find_schema(operator.op_type, operator.version, operator.domain)
    assert schema is not None
    outputs = list(operator.outputs)
    for k, name in enumerate(outputs):
        option = schema.outputs[min(k, len(schema.outputs) - 1)].option
        if not name and option != onnx.defs.OpSchema.FormalParameterOption.Optional:
            outputs[k] = f"unused {k}"
    while not outputs[-1]:
        outputs.pop()
    node = helper.make_node(operator.op_type, operator.inputs, outputs, operator.name, domain=operator.domain)
    node.attribute.extend(make_attribute(k, v, schema) for k, v in operator.attributes.items())
    return node


def run_operator(operator: Operator, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    node = node_of(operator)
    model = ModelProto(
        ir_version=onnx.IR_VERSION, opset_import=[helper.make_opsetid(operator.domain, operator.version)]
    )
    if operator.domain:
        model.opset_import.append(helper.make_opsetid("", onnx.defs.onnx_opset_version()))
    model.graph.name = "one"
    model.graph.node.append(node)
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output if n)
    feeds: dict[str, Any] = {}
    for name in dict.fromkeys(v for v in node.input if v):
        array = values[name]
        model.graph.input.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        )
        feeds[name] = array
    results = ReferenceEvaluator(model).run(None, feeds)
    return dict(zip([n for n in node.output if n], map(np.asarray, results), strict=True))


def run(graph: OperatorGraph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs, one operator at a time; checks every value against its type."""
    values = {**graph.constants, **{v: feeds[name] for name, v in graph.inputs}}
    for operator in graph.operators:
        results = run_operator(operator, values)
        values |= {v: results[v] for v in operator.outputs if v}
    for value, type_ in graph.types.items():
        assert TensorType.of(values[value]) == type_, value
    return [values[v] for _, v in graph.outputs]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The reference evaluator warns about infinities and such."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


# --- node tests


def data_sets(name: str) -> Iterator[tuple[ModelProto, list[np.ndarray], list[np.ndarray]]]:
    """A case's model, inputs and expected outputs; none when they are not all tensors."""
    case = CASES[name]
    assert case.model is not None and case.data_sets is not None
    for inputs, outputs in case.data_sets:
        tensors = all(isinstance(a, np.ndarray | np.generic) for a in [*inputs, *outputs])
        if tensors and all(i.type.HasField("tensor_type") for i in case.model.graph.input):
            yield case.model, [np.asarray(a) for a in inputs], [np.asarray(a) for a in outputs]


def with_constants(model: ModelProto, inputs: list[np.ndarray], first: int) -> ModelProto:
    """The model with its inputs from `first` on as initializers."""
    result = ModelProto()
    result.CopyFrom(model)
    names = [i.name for i in result.graph.input]
    del result.graph.input[first:]
    result.graph.initializer.extend(arrays.from_array(a, n) for n, a in list(zip(names, inputs, strict=True))[first:])
    return result


def supported(array: np.ndarray) -> bool:
    return array.dtype.name in set(DType)


TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 5e-4, "float64": 5e-4}  # relative to the largest element


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    largest = float(np.abs(e[np.isfinite(e)]).max(initial=0))
    bound = TOLERANCE.get(actual.dtype.name, 0)
    np.testing.assert_allclose(a, e, rtol=0, atol=bound * largest)


# Not refused, yet not folded either: random, slow, of another domain, or not in the reference evaluator.
LEFT = ("dropout", "bernoulli", "pool", "ai_onnx_ml", "flexattention", "momentum", "adagrad", "adam", "scatter_with")
LEFT += ("upsample", "group_normalization")

REFUSED = ("sequence", "Scan of operator set 8", "ImageDecoder", "has a body")

OLD = ("test_not_2d", "test_not_3d", "test_not_4d")  # of operator set 1


@cache
def foldable() -> list[str]:
    return [n for n in CASES if n not in OLD and any(all(map(supported, [*i, *o])) for _, i, o in data_sets(n))]


def test_there_are_node_tests() -> None:
    assert len(foldable()) > 1000


@pytest.mark.parametrize("part", range(8))
def test_known_inputs_fold_to_the_expected_outputs(part: int) -> None:
    """Every node test with its inputs as initializers."""
    for name in foldable()[part::8]:
        for model, inputs, outputs in data_sets(name):
            try:
                graph = import_onnx(with_constants(model, inputs, 0))
            except UnsupportedModel as error:
                assert any(k in str(error) for k in REFUSED), (name, str(error))
                continue
            for (_, value), expected in zip(graph.outputs, outputs, strict=True):
                assert value in graph.constants or any(k in name for k in LEFT), name
                if value in graph.constants and "test_bernoulli" not in name:
                    assert_close(graph.constants[value], expected)


# Their outputs have as many elements as the data say, or their inputs are all data.
BY_DATA = ("nonmaxsuppression", "range", "loop11", "melweight", "nonzero", "unique", "window", "string", "scan_sum")
BY_DATA += ("constantofshape", "image_decoder", "optional", "sequence", "test_if_seq", "test_if_opt")


@pytest.mark.parametrize("part", range(8))
def test_types_are_those_of_the_expected_outputs(part: int) -> None:
    """Every node test of one operator with its first input at run time."""
    for name in [n for n in foldable() if not n.endswith("_expanded")][part::8]:
        for model, inputs, outputs in data_sets(name):
            bound = with_constants(model, inputs, 1)
            shapes = {i.name: a.shape for i, a in zip(bound.graph.input, inputs, strict=False)}
            try:
                graph = import_onnx(bound, shapes)
            except UnsupportedModel as error:
                assert any(k in name for k in BY_DATA) or "has a body" in str(error), (name, str(error))
                continue
            for (_, value), expected in zip(graph.outputs, outputs, strict=True):
                assert graph.types[value] == TensorType.of(expected), name


# --- bodies of operators


def bodied() -> list[str]:
    """Node tests of one operator that the standard gives a body, by name."""
    found: list[str] = []
    for name in foldable():
        model = CASES[name].model
        assert model is not None
        if len(model.graph.node) == 1 and "_expanded" not in name:
            node = model.graph.node[0]
            version = next(o.version for o in model.opset_import if o.domain in (node.domain, "ai.onnx"))
            schema = find_schema(node.op_type, version, node.domain)
            if schema is not None and (schema.has_function or schema.has_context_dependent_function):
                found.append(name)
    return found


# The evaluator and the body round, or draw, differently; or the body has a rule of its own.
INEXACT = ("bernoulli", "training", "test_range", "nllloss", "sce", "center_crop")


@pytest.mark.parametrize("part", range(4))
def test_bodies_compute_their_operator(part: int) -> None:
    expanded = 0
    for name in bodied()[part::4]:
        for model, inputs, outputs in data_sets(name):
            try:
                graph = import_onnx(with_constants(model, inputs, 1), {model.graph.input[0].name: inputs[0].shape})
            except UnsupportedModel:
                continue
            if len(graph.operators) != 1 or any(k in name for k in INEXACT):
                continue
            body = expand_function_operator(graph.operators[0], graph.types, graph.constants)
            assert body is not None, name
            assert [n for n, _ in body.outputs] == [v for v in graph.operators[0].outputs if v]
            assert not set(body.types) & (set(graph.types) - {v for _, v in body.inputs}), name
            feeds = {graph.inputs[0][1]: inputs[0], **graph.constants}
            results = dict(zip([n for n, _ in body.outputs], run(body, feeds), strict=True))
            for (_, value), expected in zip(graph.outputs, outputs, strict=True):
                assert_close(results[value], expected)
            expanded += 1
    assert expanded > 20


def test_operators_without_a_body() -> None:
    types = {"x": TensorType(DType.FLOAT32, (2, 3))}
    for op_type, domain in (("Exp", ""), ("Fancy", "com.example")):
        assert expand_function_operator(Operator(op_type, domain, 17, "o", ("x",), ("y",)), types) is None


def test_defaults_of_attributes_in_a_body() -> None:
    types = {"x": TensorType(DType.FLOAT32, (3,))}
    x = np.array([-1.0, 0.5, 2.0], np.float32)
    for attributes, alpha in (({}, 1.0), ({"alpha": 2.0}, 2.0)):
        body = expand_function_operator(Operator("Elu", "", 9, "e", ("x",), ("y",), attributes), types)
        assert body is not None and {o.version for o in body.operators} == {18}
        [y] = run(body, {"x": x})
        np.testing.assert_allclose(y, np.where(x < 0, alpha * np.expm1(x), x), rtol=1e-6)


def test_a_body_keeps_clear_of_the_names_around_it() -> None:
    types = {"x": TensorType(DType.FLOAT32, (3,)), "s/Y": TensorType(DType.FLOAT32, (3,))}
    body = expand_function_operator(Operator("Softsign", "", 17, "s", ("x",), ("y",)), types)
    assert body is not None
    assert "s/Y" not in body.types and "y" not in body.types


# --- real networks

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
RAPIDOCR = find_spec("rapidocr_onnxruntime")


def test_light_squeezenet_runs() -> None:
    path = LIGHT / "light_squeezenet.onnx"
    graph = import_onnx(path)
    assert {o.op_type for o in graph.operators} == {
        *("Conv", "Relu", "MaxPool", "Concat", "Dropout", "GlobalAveragePool", "Softmax")
    }
    assert graph.outputs == (("softmaxout_1", "softmaxout_1"),)
    assert str(graph.types["softmaxout_1"]) == "float32[1,1000,1,1]"


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda p: p.stem)
def test_light_networks_import_without_their_weights_in_memory(path: Path) -> None:
    graph = import_onnx(path)
    summary = describe_onnx(path)
    assert summary.unbound == {}
    assert 0 < len(graph.operators) < sum(summary.operators.values())
    stored = sum(a.itemsize for a in graph.constants.values() if not any(a.strides))
    stored += sum(a.nbytes for a in graph.constants.values() if any(a.strides))
    assert stored < 1 << 16
    assert sum(graph.types[v].bytes for v in graph.constants) > 1 << 20


def ocr(name: str) -> Path:
    assert RAPIDOCR is not None and RAPIDOCR.origin is not None
    return Path(RAPIDOCR.origin).parent / "models" / name


@pytest.mark.skipif(RAPIDOCR is None, reason="needs the models of rapidocr-onnxruntime")
@pytest.mark.parametrize(
    ("name", "shape", "output"),
    [
        ("ch_PP-OCRv4_det_infer.onnx", (1, 3, 640, 640), "float32[1,1,640,640]"),
        ("ch_PP-OCRv4_det_infer.onnx", (1, 3, 736, 736), "float32[1,1,736,736]"),
        ("ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320), "float32[1,40,6625]"),
        ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, 48, 192), "float32[1,2]"),
    ],
)
def test_shape_arithmetic_of_paddle_models_vanishes(name: str, shape: tuple[int, ...], output: str) -> None:
    graph = import_onnx(ocr(name), {"x": shape})
    assert str(graph.types[graph.outputs[0][1]]) == output
    shapes = {"Shape", "Gather", "Cast", "Constant", "Range", "ConstantOfShape", "Unsqueeze", "Expand", "If"}
    assert not shapes & {o.op_type for o in graph.operators}


@pytest.mark.skipif(RAPIDOCR is None, reason="needs the models of rapidocr-onnxruntime")
def test_a_paddle_model_runs_operator_by_operator() -> None:
    path = ocr("ch_ppocr_mobile_v2.0_cls_infer.onnx")
    x = np.random.default_rng(0).standard_normal((1, 3, 48, 64)).astype(np.float32)
    [expected] = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})
    [actual] = run(import_onnx(path, {"x": x.shape}), {"x": x})
    np.testing.assert_array_equal(actual, expected)
