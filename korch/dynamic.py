"""A model that is optimized for new shapes when it first sees them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from korch.errors import InvalidInput
from korch.importers.onnx import describe_onnx
from korch.model import Model, bind_arguments, result_of
from korch.pipeline import Options, Shapes, optimize_model, optimize_to_file


class DynamicModel:
    """Called as a `Model`; the first call with new shapes takes as long as optimizing does, which for shapes whose
    kernels were measured before is seconds. Safe to call from many threads.

    `source` is what `korch.optimize` takes. The shapes in `options` are optimized at once when `held`.
    """

    def __init__(self, source: Any, options: Options, *, held: bool = False) -> None:
        self._source, self._options = source, options
        described = describe_onnx(source)
        self._names, self._dtypes = tuple(described.inputs), described.dtypes
        self._models: dict[tuple[tuple[int, ...], ...], Model] = {}
        self._lock = threading.Lock()
        for shapes in options.shapes if held else ():
            model = self._optimized(shapes)
            self._models[tuple(t.shape for t in model.inputs.values())] = model

    @property
    def shapes(self) -> tuple[Shapes, ...]:
        """The input shapes that there are plans for."""
        return tuple(dict(zip(self._names, key, strict=True)) for key in self._models)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One inference, as `Model.__call__`."""
        return result_of(self.run(bind_arguments(self._names, args, kwargs)))

    def run(self, inputs: Mapping[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
        """One inference by name, as `Model.run`."""
        if set(inputs) != set(self._names):
            given = ", ".join(inputs) or "nothing"
            raise InvalidInput(f"the model takes {', '.join(self._names)}; it was given {given}")
        for name, dtype in self._dtypes.items():  # before minutes are spent
            if dtype is not None and np.asarray(inputs[name]).dtype != dtype.numpy:
                given = np.asarray(inputs[name]).dtype
                raise InvalidInput(f"input {name} has dtype {given}; the model takes {dtype.value}")
        return self.model_for({name: np.shape(inputs[name]) for name in self._names}).run(inputs, **options)

    def model_for(self, shapes: Shapes) -> Model:
        """The model for these input shapes, optimized now when there is none."""
        key = tuple(tuple(shapes[name]) for name in self._names)
        if key not in self._models:
            with self._lock:  # one thread optimizes, the others wait for its result
                if key not in self._models:
                    self._models[key] = self._optimized(shapes)
        return self._models[key]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one file with a plan for each of `shapes`; InvalidInput when there is none yet."""
        if not self._models:
            raise InvalidInput("the model has seen no shapes yet; call it once, or give shapes to korch.optimize")
        optimize_to_file(self._source, Path(path), replace(self._options, shapes=self.shapes))

    def _optimized(self, shapes: Shapes) -> Model:
        return optimize_model(self._source, replace(self._options, shapes=(shapes,)))
