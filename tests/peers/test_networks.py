"""The five networks of the paper's evaluation, verified by the standard of `korch verify`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.compiler.test_networks import verify

slow = pytest.mark.skipif(
    os.environ.get("KORCH_SLOW_TESTS") != "1", reason="takes minutes; set KORCH_SLOW_TESTS=1 to run it"
)


@pytest.mark.parametrize(
    "name",
    [
        "candy",
        "yolox_nano",
        "efficientvit_b1",
        pytest.param("segformer_b0", marks=slow),
        pytest.param("yolov4", marks=slow),
    ],
)
def test_network(name: str, cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the networks are defined in PyTorch")
    pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter needs onnxscript")
    if name.startswith("segformer") and not importlib.util.find_spec("transformers"):
        pytest.skip("SegFormer is built by transformers")
    from benchmarks import models

    file = models.path(name)
    verify(file, tmp_path / "model.korch")
