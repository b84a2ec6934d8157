"""Further networks that come with installed packages, with their shapes fixed: ONNX's light models and PP-OCRv4.

The light models are those of the ONNX package. There every weight tensor is one number repeated, which makes outputs a
matter of rounding errors, so that nothing could be checked: they get seeded random weights here, of a size that keeps
the activations' (He et al. 2015), and end before their Softmax. PP-OCRv4's detector, from the wheel
rapidocr-onnxruntime, is trained; it gets 640x640 pixels.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LIGHT = ("resnet50", "densenet121", "squeezenet", "shufflenet")
NAMES = (*(f"light_{name}" for name in LIGHT), "ppocr_v4_det")
"""Names of these networks."""

OCR_SIZE = (1, 3, 640, 640)


def write(name: str, file: Path) -> None:
    """The network as one ONNX file; ModuleNotFoundError names the package that is not installed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("light_"):
        source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx"
        onnx.save(_with_random_weights(onnx.load(source)), file)
        return
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("PP-OCRv4 comes with the package rapidocr-onnxruntime")
    model = onnx.load(Path(spec.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx")
    for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim, OCR_SIZE, strict=True):
        dimension.dim_value = size
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(onnx.shape_inference.infer_shapes(model), file)


def _with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    shapes = {t.name: tuple(numpy_helper.to_array(t).reshape(-1)) for t in graph.initializer}
    rng = np.random.default_rng(0)
    weights = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    for node in weights:
        shape = tuple(map(int, shapes[node.input[0]]))
        if len(shape) > 1:
            array = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        else:
            array = rng.uniform(0.5, 1.5, shape)  # a bias, a scale, a mean or a variance
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), node.output[0]))
        graph.node.remove(node)
    last = graph.node[-1]
    if last.op_type == "Softmax":
        graph.output[0].name = last.input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
        graph.node.remove(last)
    used = {name for node in graph.node for name in node.input}
    for group in (graph.initializer, graph.input):  # the shapes of the weights are not needed any more
        for item in [i for i in group if i.name not in used]:
            group.remove(item)
    held = {t.name for t in graph.initializer}
    for item in [i for i in graph.input if i.name in held]:
        graph.input.remove(item)
    model.ir_version = 8  # weights need not be inputs
    return onnx.shape_inference.infer_shapes(model)
