"""Networks that come with installed packages, for the tests: ONNX's light models, and PP-OCRv4."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def light_file(name: str) -> Path:
    """An ONNX file whose weights are all alike, so that it is small."""
    return LIGHT / f"light_{name}.onnx"


def light_inputs(model: ModelProto) -> dict[str, np.ndarray]:
    """What the stored outputs were computed from: numbers from 0 to 1 in order."""
    known = {t.name for t in model.graph.initializer}
    found: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name not in known:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            count = math.prod(shape)
            found[value.name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
    return found


def light_outputs(name: str, model: ModelProto) -> dict[str, np.ndarray]:
    """The stored outputs."""
    return {
        value.name: numpy_helper.to_array(onnx.load_tensor(LIGHT / f"light_{name}_output_{k}.pb"))
        for k, value in enumerate(model.graph.output)
    }


def with_random_weights(model: ModelProto) -> ModelProto:
    """A light model with random weights, each of a size that keeps the activations' (He et al. 2015), up to its last
    Softmax.

    With weights that are all alike every output is alike, whatever is computed in between; and a Softmax makes
    zeros and a one of large numbers.
    """
    result = ModelProto()
    result.CopyFrom(model)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    rng = np.random.default_rng(0)
    del result.graph.node[:]
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            result.graph.node.append(node)
            continue
        shape = tuple(int(n) for n in shapes[node.input[0]])
        if len(shape) > 1:
            array = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        else:
            array = rng.uniform(0.5, 1.5, shape)  # a bias, a scale, a mean or a variance
        result.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), node.output[0]))
    last = result.graph.node[-1]
    if last.op_type == "Softmax":
        result.graph.node.pop()
        result.graph.output[0].name = last.input[0]
        result.graph.output[0].type.tensor_type.ClearField("shape")
    return result


def ocr_file(name: str) -> Path | None:
    """One of the networks in the wheel rapidocr-onnxruntime (which is not imported), None where it is not installed."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "models" / f"{name}.onnx"
    return path if path.exists() else None


def lines_of_text(shape: tuple[int, ...]) -> np.ndarray:
    """Images of printed text, [N, 3, height, width], each its own words, from -1 to 1.

    What the networks were trained on: noise has them decide between thousands of characters by rounding errors.
    """
    from PIL import Image, ImageDraw  # as rapidocr-onnxruntime, which holds the networks, needs it too

    count, _, height, width = shape
    images: list[np.ndarray] = []
    for k in range(count):
        image = Image.new("RGB", (-(-width // 3), -(-height // 3)), "white")
        draw = ImageDraw.Draw(image)
        for y in range(1, max(image.height - 10, 2), 14):
            draw.text((2 + k, y), f"{k + 3}7 fox jumps over the lazy dog"[k : k + 24], fill=(20 * k, 30, 60))
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)
        images.append(pixels.transpose(2, 0, 1) / 127.5 - 1)
    return np.stack(images)
