"""Korch: the cheapest set of generated kernels that computes a trained model.

>>> import korch
>>> model = korch.optimize("model.onnx", shapes={"x": (1, 3, 224, 224)})
>>> y = model(x)
>>> model.save("model.korch")
>>> model = korch.load("model.korch")  # needs NumPy only: no onnx, no solver, no compiler
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from korch.errors import (
    ArtifactError,
    InvalidInput,
    InvalidModel,
    KorchError,
    ToolchainError,
    UnsupportedModel,
)
from korch.model import Model

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "InvalidInput",
    "InvalidModel",
    "KorchError",
    "Model",
    "ToolchainError",
    "UnsupportedModel",
    "__version__",
    "load",
    "optimize",
]


def optimize(
    model: Any,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int = 0,
    target: str = "host",
    numerics: str = "default",
    budget: float | None = None,
) -> Model:
    """Finds the cheapest plan for an ONNX model on this machine, generates it, and loads it.

    `model` is a path, an `onnx.ModelProto` or its bytes; `shapes` binds unbound input dimensions; `threads` 0 takes
    all that the process may use; `target` names an instruction set (see `korch doctor`) that this machine has;
    `numerics` is `strict` or `default`; `budget` is seconds for measuring and selection, None for no limit.

    InvalidModel, UnsupportedModel or InvalidInput says in one line what is wrong with the model or an argument;
    ToolchainError that the C compiler or the target does not work here.
    """
    from onnx import ModelProto  # heavy imports stay out of `import korch`

    from korch.pipeline import Options, optimize_model

    source = Path(model) if isinstance(model, str | os.PathLike) else model
    if not isinstance(source, Path | ModelProto | bytes):
        given = type(source).__name__
        raise InvalidModel(f"cannot read a model from {given}; give a path, an onnx.ModelProto or its bytes")
    bound = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    return optimize_model(source, Options(bound, threads, target, numerics, budget))


def load(path: str | os.PathLike[str]) -> Model:
    """Loads a `.korch` file. It holds native code: load only files whose origin you trust.

    ArtifactError says in one line what does not fit: no `.korch` file, damaged, made for another machine.
    """
    return Model(Path(path))
