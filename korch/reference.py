"""The ONNX reference evaluator, which verification compares with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from korch.errors import KorchError


class Softmax(OpRun):
    """Softmax before opset 13, which flattens its input to two dimensions at `axis`.

    The evaluator applies today's definition to it, as to the two that follow.
    """

    op_schema = onnx.defs.get_schema("Softmax", 11)

    def _run(self, x: np.ndarray, axis: int) -> tuple[np.ndarray]:
        flat = _flat(x, axis)
        e = np.exp(flat - flat.max(1, keepdims=True, initial=-np.inf))
        return ((e / e.sum(1, keepdims=True)).reshape(x.shape).astype(x.dtype),)


class LogSoftmax(OpRun):
    """LogSoftmax before opset 13."""

    op_schema = onnx.defs.get_schema("LogSoftmax", 11)

    def _run(self, x: np.ndarray, axis: int) -> tuple[np.ndarray]:
        flat = _flat(x, axis)
        shifted = flat - flat.max(1, keepdims=True, initial=-np.inf)
        return ((shifted - np.log(np.exp(shifted).sum(1, keepdims=True))).reshape(x.shape).astype(x.dtype),)


class Hardmax(OpRun):
    """Hardmax before opset 13: one at the first of the largest of each row, zero elsewhere."""

    op_schema = onnx.defs.get_schema("Hardmax", 11)

    def _run(self, x: np.ndarray, axis: int) -> tuple[np.ndarray]:
        flat = _flat(x, axis)
        found = np.zeros_like(flat)
        if flat.size:
            found[np.arange(flat.shape[0]), flat.argmax(1)] = 1
        return (found.reshape(x.shape),)


class BatchNormalization(OpRun):
    """BatchNormalization before opset 14, which normalises by the given statistics when it has one output.

    The evaluator mixes in those of the batch, as in training.
    """

    op_schema = onnx.defs.get_schema("BatchNormalization", 9)

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        epsilon: float,
        momentum: float,
    ) -> tuple[np.ndarray]:
        s, b, m, v = (a.reshape(-1, *[1] * (x.ndim - 2)) for a in (scale, bias, mean, variance))
        return ((s * (x - m) / np.sqrt(v + epsilon) + b).astype(x.dtype),)


class LRN(OpRun):
    """LRN. The evaluator takes the batch size for the number of channels."""

    def _run(self, x: np.ndarray, alpha: float, beta: float, bias: float, size: int) -> tuple[np.ndarray]:
        before, after = (size - 1) // 2, size // 2
        squares = np.square(x)
        sums = [squares[:, max(0, c - before) : c + after + 1].sum(1, keepdims=True) for c in range(x.shape[1])]
        total = np.concatenate(sums, 1) if sums else squares
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class LpNormalization(OpRun):
    """LpNormalization. The evaluator forgets the absolute value where p is 1."""

    def _run(self, x: np.ndarray, axis: int, p: int) -> tuple[np.ndarray]:
        norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
        return ((x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


_ALWAYS = 1 << 30
# Where the evaluator does not do what the standard says: put right before (and without) an operator set.
_CORRECTIONS: dict[int, list[type[OpRun]]] = {
    13: [Softmax, LogSoftmax, Hardmax],
    14: [BatchNormalization],
    _ALWAYS: [LRN, LpNormalization],
}


def _flat(x: np.ndarray, axis: int) -> np.ndarray:
    at = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


def reference_outputs(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model's outputs by name. `model` is a path, an `onnx.ModelProto` or its bytes; seconds for a large one.

    KorchError when the evaluator cannot run the model.
    """
    if isinstance(model, bytes):
        proto = onnx.load_model_from_string(model)
    elif isinstance(model, (str, Path)):
        proto = onnx.load(str(model))
    else:
        proto = model
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    corrections = [op for until, ops in _CORRECTIONS.items() if version < until for op in ops]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            evaluator = ReferenceEvaluator(proto, new_ops=corrections)
            results = evaluator.run(None, dict(inputs))
    except Exception as error:  # it is plain Python: whatever a node raises comes through
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise KorchError(
            f"the reference evaluator cannot run the model ({reason}); compare with another engine by korch bench"
        ) from error
    names = [o.name for o in proto.graph.output]
    return {name: np.asarray(value) for name, value in zip(names, results, strict=True)}
