"""Korch: the cheapest set of generated kernels that computes a trained model.

>>> import korch
>>> model = korch.optimize("model.onnx", shapes={"x": (1, 3, 224, 224)})
>>> y = model(x)
>>> model.save("model.korch")
>>> model = korch.load("model.korch")  # needs NumPy only: no onnx, no solver, no compiler
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from korch.errors import (
    ArtifactError,
    InvalidInput,
    InvalidModel,
    KorchError,
    ToolchainError,
    UnsupportedModel,
)

if TYPE_CHECKING:
    from korch.model import Model

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "InvalidInput",
    "InvalidModel",
    "KorchError",
    "ToolchainError",
    "UnsupportedModel",
    "__version__",
    "load",
    "optimize",
]


def optimize(
    model: Any,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    threads: int = 0,
    target: str = "host",
    numerics: str = "default",
    budget: float | None = None,
) -> Model:
    """Finds the cheapest plan for an ONNX model on this machine, generates it, and loads it.

    `model` is a path, an `onnx.ModelProto` or its bytes; `shapes` binds unbound input dimensions; `threads` 0 takes
    all that the process may use; `numerics` is `strict` or `default`; `budget` is seconds for selection.
    """
    from korch.pipeline import Options, optimize_model  # heavy imports stay out of `import korch`

    return optimize_model(model, Options(dict(shapes or {}), threads, target, numerics, budget))


def load(path: str | os.PathLike[str]) -> Model:
    """Loads a `.korch` file. It holds native code: load only files whose origin you trust."""
    from pathlib import Path

    from korch.model import Model

    return Model(Path(path))
