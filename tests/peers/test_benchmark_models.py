"""The benchmark networks have their published sizes, live activations, and export cleanly to ONNX."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the benchmark networks are defined in PyTorch")
onnx = pytest.importorskip("onnx", reason="the benchmark networks are exported to ONNX")
pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter needs onnxscript")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import models  # noqa: E402
from benchmarks.models import calibrate  # noqa: E402
from benchmarks.models.export import TOLERANCE, build, definition, export  # noqa: E402

slow = pytest.mark.skipif(
    os.environ.get("KORCH_SLOW_TESTS") != "1",
    reason="full-size networks; set KORCH_SLOW_TESTS=1",
)
every_network = pytest.mark.parametrize("name", models.NAMES)


def require(name: str) -> None:
    """Skip when a network's own dependency is missing."""
    if name.startswith("segformer"):
        pytest.importorskip("transformers", reason="SegFormer is built by transformers")


def check_alive(name: str, size: int) -> None:
    """Every layer's output deviates moderately, and the network's output depends on its input."""
    network = build(name, size)
    first, second = (calibrate.images(size, seed=seed) for seed in (1, 2))
    for x in (first, second):
        wrong = [found for found in calibrate.deviations(network, x) if not 0.1 <= found[2] <= 10.0]
        assert not wrong
    differences = calibrate.relative_difference(
        calibrate.outputs(network, first), calibrate.outputs(network, second)
    )
    assert min(differences) > 1e-2


@every_network
def test_parameter_count_is_the_published_one(name: str) -> None:
    require(name)
    module = definition(name)
    with torch.device("meta"):
        network = module.network()
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == pytest.approx(module.PARAMETERS, rel=0.01)


@pytest.mark.parametrize(("name", "size"), [("candy", 64), ("yolox_nano", 256)])
def test_activations_at_reduced_resolution(name: str, size: int) -> None:
    check_alive(name, size)


def test_images_are_normalised_and_differ() -> None:
    first, second = calibrate.images(64, seed=3), calibrate.images(64, seed=4)
    assert first.shape == (1, 3, 64, 64)
    assert torch.equal(first, calibrate.images(64, seed=3))
    assert 0.9 < float(first.std()) < 1.1
    assert float((first - second).norm() / first.norm()) > 0.5


def test_export_is_clean_and_deterministic(tmp_path: Path) -> None:
    first = export("candy", tmp_path / "first", size=32)
    second = export("candy", tmp_path / "second", size=32)
    assert first.file.read_bytes() == second.file.read_bytes()
    assert first.error is None or first.error <= TOLERANCE
    proto = onnx.load(first.file)
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    assert not proto.functions
    assert [value.name for value in proto.graph.input] == ["x"]
    assert [value.name for value in proto.graph.output] == ["y"]
    assert str(Path(__file__).resolve().parents[2]).encode() not in first.file.read_bytes()
    assert [file.name for file in first.file.parent.iterdir()] == ["candy.onnx"]


def test_export_keeps_the_epsilon_of_linear_attention(tmp_path: Path) -> None:
    """Without it the output is not a number wherever the kernel zeroes a whole query."""
    proto = onnx.load(export("efficientvit_b1", tmp_path, size=64).file)
    divisors = {node.input[1] for node in proto.graph.node if node.op_type == "Div"}
    assert divisors == {
        node.output[0] for node in proto.graph.node if node.op_type == "Add" and node.output[0] in divisors
    }
    assert len(divisors) == 7


def test_unknown_network_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown network"):
        models.path("resnet")


@slow
@every_network
def test_activations_at_full_resolution(name: str) -> None:
    require(name)
    check_alive(name, definition(name).SIZE)


@slow
@every_network
def test_export_agrees_with_pytorch(name: str, tmp_path: Path) -> None:
    require(name)
    exported = export(name, tmp_path)
    assert exported.error is None or exported.error <= TOLERANCE
    (x,) = onnx.load(exported.file).graph.input
    size = definition(name).SIZE
    assert [axis.dim_value for axis in x.type.tensor_type.shape.dim] == [1, 3, size, size]
