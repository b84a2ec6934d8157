"""Models through the whole pipeline, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import korch

Through = Callable[..., dict[str, np.ndarray]]


@pytest.fixture
def through(cache: Path, tmp_path: Path) -> Through:
    """`through(model, inputs, **options)` optimizes a model, saves it, loads the file and runs that."""

    def run(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], **options: object) -> dict[str, np.ndarray]:
        file = tmp_path / "model.korch"
        korch.optimize(model, **{"budget": 0, **options}).save(file)
        return korch.load(file).run(inputs)

    return run
