"""Engines side by side: labels, and that each adapter computes what the ONNX reference evaluator does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from korch.bench.bench import compare_engines
from korch.errors import InvalidInput


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 3x3 convolution (Winograd where an engine has it), a bias and a ReLU."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(16, 16, 3, 3)).astype(np.float32)
    bias = rng.normal(size=16).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 20, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 20, 20])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    file = tmp_path_factory.mktemp("tiny") / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=(1, 16, 20, 20)).astype(np.float32)}


def test_one_engine_with_several_files(model: Path, inputs: dict[str, np.ndarray]) -> None:
    pytest.importorskip("onnxruntime")
    other = onnx.load(model)
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.full(16, 1e3, np.float32), "b"))
    changed = model.with_name("changed.onnx")
    onnx.save(other, changed)
    files = {"onnxruntime:one": model, "onnxruntime:two/three": changed}
    compared = compare_engines(files, inputs, 1, rounds=1)
    assert set(compared.timings) == set(compared.outputs) == set(files)
    (one,), (two,) = compared.outputs["onnxruntime:one"], compared.outputs["onnxruntime:two/three"]
    assert one.mean() < 100 < two.mean()
    assert compared.speedup("onnxruntime:one", "onnxruntime:one") == 1


def test_label_of_no_engine(model: Path, inputs: dict[str, np.ndarray]) -> None:
    with pytest.raises(InvalidInput, match="tensorrt"):
        compare_engines({"tensorrt:one": model}, inputs, 1)
