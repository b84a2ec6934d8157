"""Korch: the cheapest set of generated kernels that computes a trained model.

>>> import korch
>>> model = korch.optimize("model.onnx", shapes={"x": (1, 3, 224, 224)})
>>> y = model(x)
>>> model.save("model.korch")
>>> model = korch.optimize(module.eval(), (x,))  # a torch.nn.Module with example inputs
>>> model = korch.load("model.korch")  # needs NumPy only: no onnx, no solver, no compiler
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from korch.errors import (
    ArtifactError,
    InvalidInput,
    InvalidModel,
    KorchError,
    ToolchainError,
    UnsupportedModel,
)
from korch.model import Model

if TYPE_CHECKING:
    from korch.dynamic import DynamicModel

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


Sizes = Sequence[int]


@overload
def optimize(
    model: Any,
    inputs: Any = None,
    *,
    shapes: Mapping[str, Sizes] | Sequence[Mapping[str, Sizes]] | None = None,
    threads: int = 0,
    target: str | Sequence[str] = "host",
    numerics: str = "default",
    budget: float | None = None,
    gap: float = 0.01,
    dynamic: Literal[False] = False,
) -> Model: ...


@overload
def optimize(
    model: Any,
    inputs: Any = None,
    *,
    shapes: Mapping[str, Sizes] | Sequence[Mapping[str, Sizes]] | None = None,
    threads: int = 0,
    target: str | Sequence[str] = "host",
    numerics: str = "default",
    budget: float | None = None,
    gap: float = 0.01,
    dynamic: Literal[True],
) -> DynamicModel: ...


def optimize(
    model: Any,
    inputs: Any = None,
    *,
    shapes: Mapping[str, Sizes] | Sequence[Mapping[str, Sizes]] | None = None,
    threads: int = 0,
    target: str | Sequence[str] = "host",
    numerics: str = "default",
    budget: float | None = None,
    gap: float = 0.01,
    dynamic: bool = False,
) -> Model | DynamicModel:
    """Finds the cheapest plan for a model on this machine, generates it, and loads it: a `Model`.

    `model` is an ONNX model (a path, an `onnx.ModelProto` or its bytes), or a `torch.nn.Module` in evaluation mode
    with `inputs`, the example arguments of its `forward` (a tuple, a mapping by name, or one tensor; docs/pytorch.md).

    `shapes` binds unbound input dimensions of an ONNX model, and where it is a list, the model gets a plan for each;
    `threads` 0 takes all that the process may use; `target` names an instruction set (see `korch doctor`) that this
    machine has, or several; `numerics` is `strict` or `default`; `budget` is seconds for measuring and selection of
    one plan, None for no limit; `gap` is how far from the best plan the found one may provably be (a share of its
    cost) for the search to end, 0 for the best. With `dynamic`, shapes that an ONNX model has no plan for are
    optimized when they are first given (`korch.dynamic.DynamicModel`).

    InvalidModel, UnsupportedModel or InvalidInput says in one line what is wrong with the model or an argument;
    ToolchainError that the C compiler or the target does not work here.
    """
    from onnx import ModelProto  # heavy imports stay out of `import korch`

    from korch.dynamic import DynamicModel
    from korch.pipeline import Options, optimize_model

    sets = (shapes or {},) if isinstance(shapes, Mapping) else shapes or ({},)
    options = Options(
        shapes=tuple({name: tuple(shape) for name, shape in one.items()} for one in sets),
        targets=(target,) if isinstance(target, str) else tuple(target),
        threads=threads,
        numerics=numerics,
        budget=budget,
        gap=gap,
    )
    if _is_pytorch(model):
        from korch.importers.torch import import_module

        if shapes or dynamic:
            raise InvalidInput("a PyTorch module has its example inputs' shapes; leave `shapes` and `dynamic` out")
        return optimize_model(import_module(model, inputs), options)
    source = Path(model) if isinstance(model, str | os.PathLike) else model
    if not isinstance(source, Path | ModelProto | bytes):
        given = type(source).__name__
        raise InvalidModel(
            f"cannot read a model from {given}; give a path, an onnx.ModelProto or its bytes, or a torch.nn.Module"
        )
    if inputs is not None:
        raise InvalidInput("example inputs go with a PyTorch module; an ONNX model takes `shapes`")
    return DynamicModel(source, options, held=bool(shapes)) if dynamic else optimize_model(source, options)


def _is_pytorch(model: Any) -> bool:
    """Whether it is a module or an exported program, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def load(path: str | os.PathLike[str]) -> Model:
    """Loads a `.korch` file. It holds native code: load only files whose origin you trust.

    ArtifactError says in one line what does not fit: no `.korch` file, damaged, made for another machine.
    """
    return Model(Path(path))
