"""Export of a benchmark network to one ONNX file, checked against PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from .calibrate import calibrated, images, outputs, relative_difference

OPSET = 18
TOLERANCE = 1e-4
"""Largest relative L2 difference accepted between onnxruntime and PyTorch."""

CHECK_SEEDS = (1, 2, 3, 4)
"""Seeds of the images on which they are compared."""


@dataclass(frozen=True)
class Exported:
    """What was exported, and how far onnxruntime's outputs lie from PyTorch's (None: not installed)."""

    file: Path
    parameters: int
    operators: Counter[str]
    error: float | None

    def __str__(self) -> str:
        error = "not compared (onnxruntime is missing)" if self.error is None else f"error {self.error:.1e}"
        operators = " ".join(f"{name}:{count}" for name, count in self.operators.most_common())
        return (
            f"{self.file}: {self.parameters:,} parameters, {self.file.stat().st_size / 1e6:.1f} MB, "
            f"{self.operators.total()} nodes, {error}\n    {operators}"
        )


def definition(name: str) -> ModuleType:
    """The module that defines a network: `network()`, `SIZE` and `PARAMETERS`."""
    return importlib.import_module(f"{__package__}.{name}")


def build(name: str, size: int | None = None) -> nn.Module:
    """A network in evaluation mode, calibrated for square images of the given (or its usual) size."""
    module = definition(name)
    return calibrated(module.network(), size or module.SIZE)


def export(name: str, directory: Path, size: int | None = None) -> Exported:
    """Export a network to `directory/NAME.onnx`; raises ValueError where it disagrees with PyTorch."""
    size = size or definition(name).SIZE
    model = build(name, size)
    proto = _to_onnx(model, images(size))
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name}.onnx"
    partial = directory / f".{name}.{os.getpid()}.onnx"
    try:
        partial.write_bytes(proto.SerializeToString(deterministic=True))
        onnx.checker.check_model(str(partial), full_check=True)
        error = _onnxruntime_error(partial, model, size)
        if error is not None and not error <= TOLERANCE:
            raise ValueError(f"{name}: onnxruntime and PyTorch differ by {error:.1e} (relative L2)")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    count = sum(parameter.numel() for parameter in model.parameters())
    return Exported(file, count, Counter(node.op_type for node in proto.graph.node), error)


def _to_onnx(model: nn.Module, x: Tensor) -> onnx.ModelProto:
    count = len(outputs(model, x))
    names = ["y"] if count == 1 else [f"y{index}" for index in range(count)]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (x,),
            input_names=["x"],
            output_names=names,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    for message in _messages(proto):
        message.ClearField("metadata_props")  # traces of the exporting machine
        message.ClearField("doc_string")
    return proto


def _messages(proto: onnx.ModelProto) -> Iterator[Any]:
    """Every part of a model that carries notes."""
    graph = proto.graph
    yield from (proto, graph)
    for group in (graph.node, graph.initializer, graph.input, graph.output, graph.value_info):
        yield from group


def _onnxruntime_error(file: Path, model: nn.Module, size: int) -> float | None:
    """The largest relative L2 difference from PyTorch over the outputs and the checked images."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    errors: list[float] = []
    for seed in CHECK_SEEDS:
        x = images(size, seed=seed)
        actual = tuple(torch.from_numpy(array) for array in session.run(None, {"x": x.numpy()}))
        errors += relative_difference(actual, outputs(model, x))
    return math.nan if any(map(math.isnan, errors)) else max(errors)
