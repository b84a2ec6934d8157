"""The ONNX reference evaluator, which verification compares with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


class Softmax(OpRun):
    """Softmax before opset 13, which flattens its input to two dimensions at `axis`.

    The evaluator applies today's definition to it.
    """

    def _run(self, x: np.ndarray, axis: int = 1) -> tuple[np.ndarray]:
        at = axis + x.ndim if axis < 0 else axis
        flat = x.reshape(int(np.prod(x.shape[:at], initial=1)), -1)
        e = np.exp(flat - flat.max(1, keepdims=True, initial=-np.inf))
        return ((e / e.sum(1, keepdims=True)).reshape(x.shape).astype(x.dtype),)


def reference_outputs(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's outputs by name. `model` is a path, an `onnx.ModelProto` or its bytes; seconds for a large one."""
    if isinstance(model, bytes):
        proto = onnx.load_model_from_string(model)
    elif isinstance(model, (str, Path)):
        proto = onnx.load(str(model))
    else:
        proto = model
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    evaluator = ReferenceEvaluator(proto, new_ops=[Softmax] if version < 13 else [])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = evaluator.run(None, dict(inputs))
    names = [o.name for o in proto.graph.output]
    return {name: np.asarray(value) for name, value in zip(names, results, strict=True)}
