"""Engines side by side: labels, and that each adapter computes what the ONNX reference evaluator does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from korch.bench.bench import Comparison, Timing, compare_engines
from korch.bench.engines import ENGINES, SUFFIXES, lacking
from korch.bench.report import bench_text, correct_peers, errors_of
from korch.errors import InvalidInput, KorchError
from korch.reference import reference_outputs

slow = pytest.mark.skipif(
    os.environ.get("KORCH_SLOW_TESTS") != "1", reason="takes minutes; set KORCH_SLOW_TESTS=1 to run it"
)


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


@pytest.mark.parametrize(
    "engine",
    [pytest.param(e, marks=slow if e == "torch-compile" else ()) for e in ENGINES if e not in ("korch", "tvm")],
)
def test_engine_computes_what_the_reference_does(engine: str, model: Path, inputs: dict[str, np.ndarray]) -> None:
    if lack := lacking(engine):
        pytest.skip(f"needs {lack}")
    file = model
    if SUFFIXES[engine] == ".pt2":
        file = in_torch(model)
    compared = compare_engines({engine: file}, inputs, 2, rounds=1)
    assert compared.failed == {}
    (got,) = compared.outputs[engine]
    (expected,) = reference_outputs(model, inputs).values()
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert np.linalg.norm(got - expected) < 1e-5 * np.linalg.norm(expected)


def in_torch(model: Path) -> Path:
    """The model for the PyTorch engines."""
    torch = pytest.importorskip("torch")
    file = model.with_suffix(".pt2")
    if not file.exists():
        layer = torch.nn.Conv2d(16, 16, 3, padding=1)
        weight, bias = (torch.from_numpy(numpy_helper.to_array(t).copy()) for t in onnx.load(model).graph.initializer)
        layer.load_state_dict({"weight": weight, "bias": bias})
        network = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
        torch.export.save(torch.export.export(network, (torch.zeros(1, 16, 20, 20),)), file)
    return file


@slow
def test_tvm(model: Path, inputs: dict[str, np.ndarray]) -> None:
    """Without tuning, which takes minutes."""
    if lack := lacking("tvm"):
        pytest.skip(f"needs {lack}")
    shapes = json.dumps({name: (a.shape, "float32") for name, a in inputs.items()})
    library = model.with_name("tiny.1x16x20x20.2.tvm.so")
    command = [sys.executable, "-m", "korch.bench.tvm_build", str(model), str(library), shapes, "2", "0"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    compared = compare_engines({"tvm": model}, inputs, 2, rounds=1)
    assert compared.failed == {}
    (expected,) = reference_outputs(model, inputs).values()
    np.testing.assert_allclose(compared.outputs["tvm"][0], expected, rtol=1e-4, atol=1e-3)


def test_a_peer_that_cannot_run_a_model_is_named(model: Path, inputs: dict[str, np.ndarray]) -> None:
    pytest.importorskip("onnxruntime")
    broken = model.with_name("broken.onnx")
    broken.write_bytes(b"no model")
    compared = compare_engines({"onnxruntime:good": model, "onnxruntime:bad": broken}, inputs, 1, rounds=1)
    assert set(compared.timings) == set(compared.outputs) == {"onnxruntime:good"}
    assert list(compared.failed) == ["onnxruntime:bad"]
    assert "the engine onnxruntime:bad failed" in compared.failed["onnxruntime:bad"]


def test_korch_must_run(model: Path, inputs: dict[str, np.ndarray]) -> None:
    broken = model.with_name("broken.korch")
    broken.write_bytes(b"no artifact")
    with pytest.raises(KorchError, match=r"the engine korch failed: .*broken\.korch"):
        compare_engines({"korch": broken}, inputs, 1, rounds=1)


def test_ncnn_takes_one_image(model: Path) -> None:
    with pytest.raises(KorchError, match="batch 1"):
        ENGINES["ncnn"](model, {"x": np.zeros((2, 16, 20, 20), np.float32)}, 1)


def test_report_shows_who_is_wrong_and_who_failed() -> None:
    timings = {"korch": Timing((1.0, 1.0), 1), "ncnn": Timing((0.5,), 1), "mnn": Timing((3.0,), 1)}
    ones = np.ones((1, 4), np.float32)
    outputs = {"korch": (ones,), "ncnn": (2 * ones,), "mnn": (1.00001 * ones,)}
    errors = errors_of(Comparison(timings, outputs), {"y": ones})
    assert errors["korch"] == 0 and errors["ncnn"] == pytest.approx(1) and errors["mnn"] == pytest.approx(1e-5, rel=0.1)
    report = {
        "model": "m.onnx",
        "threads": 2,
        "shape": {"x": [1, 4]},
        "engines": {n: {**t.json(), "rel_l2_error": errors[n]} for n, t in timings.items()},
        "speedup": {"ncnn": 0.5, "mnn": 3.0},
        "failed": {"tvm": "the engine tvm failed: no reason"},
        "max_rel_error": 1.0,
    }
    text = bench_text(report)
    assert "the engine tvm failed: no reason" in text
    (row,) = [line for line in text.splitlines() if line.startswith("ncnn")]
    assert "wrong" in row and "0.50x" in row
    assert correct_peers(report) == ["mnn"]


def test_outputs_that_do_not_fit_the_reference_have_no_error() -> None:
    ones = np.ones((1, 4), np.float32)
    outputs = {"few": (), "flat": (np.ones(4, np.float32),), "nan": (np.full((1, 4), np.nan, np.float32),)}
    assert errors_of(Comparison({}, outputs), {"y": ones}) == {"few": None, "flat": None, "nan": None}
