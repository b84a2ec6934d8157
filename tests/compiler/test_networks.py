"""Whole networks, optimized with a small budget and verified by the standard of `korch verify`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import korch
from korch.costs.samples import mismatch
from korch.fission import fission
from korch.importers.onnx import import_onnx
from korch.ir.evaluate import evaluate
from korch.reference import reference_outputs
from korch.verify import compare, random_inputs
from tests.compiler.networks import (
    light_file,
    light_inputs,
    light_outputs,
    lines_of_text,
    ocr_file,
    with_random_weights,
)

slow = pytest.mark.skipif(
    os.environ.get("KORCH_SLOW_TESTS") != "1", reason="takes minutes; set KORCH_SLOW_TESTS=1 to run it"
)
ALL = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
       "zfnet512")  # fmt: skip


def light(*quick: str) -> pytest.MarkDecorator:
    """All nine light networks; those that are not quick only where slow tests are wanted."""
    return pytest.mark.parametrize("name", [n if n in quick else pytest.param(n, marks=slow) for n in ALL])


def verify(model: Any, file: Path, inputs: Mapping[str, np.ndarray] | None = None, **options: Any) -> None:
    """Optimizes, saves, loads, and compares with the reference evaluator, on random inputs where none are given."""
    optimized = korch.optimize(model, **{"budget": 0, **options})
    assert optimized.summary is not None and optimized.summary.dropped == ()
    optimized.save(file)
    loaded = korch.load(file)
    inputs = random_inputs(loaded.inputs) if inputs is None else inputs
    verified = compare(loaded.run(inputs), reference_outputs(model, inputs))
    assert verified.ok, verified


@light("bvlc_alexnet", "inception_v1", "resnet50", "shufflenet", "squeezenet", "zfnet512")
def test_stored_outputs_of_a_light_network(name: str, cache) -> None:
    """The standard's own models and results: all weights are alike, so this sees the network's form only."""
    model = onnx.load(light_file(name))
    got = korch.optimize(light_file(name), budget=0).run(light_inputs(model))
    for output, expected in light_outputs(name, model).items():
        assert got[output].shape == expected.shape
        np.testing.assert_allclose(got[output], expected, rtol=1e-3, atol=1e-7, err_msg=output)


@light("resnet50", "shufflenet", "squeezenet")
def test_light_network_with_random_weights(name: str, cache, tmp_path) -> None:
    model = with_random_weights(onnx.load(light_file(name)))
    verify(model, tmp_path / "model.korch")


DETECTION, CLASSIFICATION = "ch_PP-OCRv4_det_infer", "ch_ppocr_mobile_v2.0_cls_infer"


def installed(name: str) -> Path:
    file = ocr_file(name)
    if file is None:
        pytest.skip("the package rapidocr-onnxruntime, which holds the networks, is not installed")
    return file


@pytest.mark.parametrize(("name", "shape"), [
    (DETECTION, (1, 3, 96, 64)),
    (DETECTION, (2, 3, 64, 96)),
    (CLASSIFICATION, (1, 3, 48, 192)),
    (CLASSIFICATION, (6, 3, 48, 100)),
    pytest.param(DETECTION, (1, 3, 640, 640), marks=slow),
])  # fmt: skip
def test_trained_network(name: str, shape: tuple[int, ...], cache, tmp_path) -> None:
    """PP-OCRv4's detection and classification of text."""
    verify(installed(name), tmp_path / "model.korch", {"x": lines_of_text(shape)}, shapes={"x": shape})


@pytest.mark.parametrize("shape", [(1, 3, 48, 160), (3, 3, 48, 100), pytest.param((6, 3, 48, 320), marks=slow)])
def test_trained_recognition(shape: tuple[int, ...], cache) -> None:
    """PP-OCRv4's recognition, with attention, and probabilities of 6625 characters.

    It amplifies rounding: float32 evaluations by NumPy and by others differ from float64 by up to the standard's
    largest error. So the same rule holds as for kernels: the standard, or 8 times the error of NumPy's own float32.
    """
    file, inputs = installed("ch_PP-OCRv4_rec_infer"), {"x": lines_of_text(shape)}
    got = korch.optimize(file, shapes={"x": shape}, budget=0).run(inputs)
    exact = evaluate(fission(import_onnx(file, {"x": shape})), inputs, double=True)
    reference = reference_outputs(file, inputs)
    assert all(e.rel_l2_error < 1e-4 for e in compare(got, reference).outputs.values())
    assert mismatch(got, reference, exact) is None
