"""The engines that can be timed. Each is given its best settings for latency with a fixed number of threads.

An engine is a function from (model file, input arrays, threads) to a function that runs one inference on the
inputs and returns the outputs by name. Imports happen inside, so that an absent engine costs nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Run = Callable[[], dict[str, np.ndarray]]


def korch_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """A `.korch` file."""
    from korch.artifact.load import load

    loaded = load(model)
    return lambda: loaded.run(dict(inputs), threads=threads)


def onnxruntime_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """ONNX Runtime's CPU provider, all graph optimizations, spinning threads (its default)."""
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    feed = dict(inputs)
    return lambda: dict(zip(names, session.run(None, feed), strict=True))


def openvino_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """OpenVINO's CPU plugin with the latency hint, float32 arithmetic."""
    ov: Any = importlib.import_module("openvino")
    core = ov.Core()
    read = core.read_model(str(model))
    read.reshape({name: list(a.shape) for name, a in inputs.items()})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    names = [o.get_any_name() for o in read.outputs]
    feed = dict(inputs)

    def run() -> dict[str, np.ndarray]:
        results = request.infer(feed, share_inputs=True, share_outputs=True)
        return {name: np.asarray(results[k]) for k, name in enumerate(names)}

    return run


def torch_engine(model: Path, inputs: Arrays, threads: int, *, channels_last: bool = False) -> Run:
    """PyTorch eager. `model` is a file written by `torch.export.save`, whose module takes the inputs in order."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    module = torch.export.load(str(model)).module()
    tensors = [torch.from_numpy(a) for a in inputs.values()]
    if channels_last:
        # Parameters first: convolutions pick the layout of their weight and input.
        for parameter in [*module.parameters(), *module.buffers()]:
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        tensors = [t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]

    def run() -> dict[str, np.ndarray]:
        with torch.inference_mode():
            results = module(*tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return {f"y{k}": r.numpy() for k, r in enumerate(results)}

    return run


def torch_channels_last_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """PyTorch eager with 4-D tensors held channels-last."""
    return torch_engine(model, inputs, threads, channels_last=True)


ENGINES: dict[str, Callable[[Path, Arrays, int], Run]] = {
    "korch": korch_engine,
    "onnxruntime": onnxruntime_engine,
    "openvino": openvino_engine,
    "torch": torch_engine,
    "torch-channels-last": torch_channels_last_engine,
}
PACKAGES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "torch": "torch",
    "torch-channels-last": "torch",
}
SUFFIXES = {name: ".pt2" if name.startswith("torch") else ".onnx" for name in ENGINES} | {"korch": ".korch"}


def engine_of(label: str) -> str:
    """The engine of a label: `korch` of `korch` and of `korch:greedy`."""
    return label.partition(":")[0]


def missing_package(engine: str) -> str | None:
    """The package that an engine lacks here, or None when it can run."""
    package = PACKAGES.get(engine)
    return package if package is not None and importlib.util.find_spec(package) is None else None
