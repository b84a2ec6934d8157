"""The engines that can be timed. Each is given its best settings for latency with a fixed number of threads.

An engine is a function from (model file, input arrays, threads) to a function that runs one inference on the
inputs and returns the outputs by name. Imports happen inside, so that an absent engine costs nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from korch.bench.convert import mnn_file, ncnn_files, output_names, tvm_file
from korch.errors import KorchError

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


def torch_compile_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """PyTorch compiled by TorchInductor: mode max-autotune, and freezing, which folds and packs the weights and lets
    convolutions work channels-last. Kernels are generated for the given number of threads."""
    torch: Any = importlib.import_module("torch")
    config: Any = importlib.import_module("torch._inductor.config")
    torch.set_num_threads(threads)
    config.freezing = True
    config.compile_threads = 1  # no workers beside the engine's process
    config.cpp.threads = threads
    module = torch.compile(torch.export.load(str(model)).module(), mode="max-autotune")
    tensors = [torch.from_numpy(a) for a in inputs.values()]

    def run() -> dict[str, np.ndarray]:
        with torch.no_grad():
            results = module(*tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return {f"y{k}": r.numpy() for k, r in enumerate(results)}

    run()  # compiles
    return run


def ncnn_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """ncnn as in its own benchmark program: Winograd, packed layouts and matrix multiplication for convolutions on,
    light mode (intermediate values are freed at once), pool allocators. 16-bit storage and arithmetic are off, and
    the weights are float32. It has no batch dimension: KorchError for a batch other than 1, or other than float32."""
    if any(a.dtype != np.float32 or a.ndim < 2 or a.shape[0] != 1 for a in inputs.values()):
        raise KorchError("ncnn takes float32 inputs of batch 1")
    ncnn: Any = importlib.import_module("ncnn")
    parameters, weights = ncnn_files(model, inputs)
    net = ncnn.Net()
    options = net.opt
    options.num_threads = threads
    options.lightmode = True
    options.use_packing_layout = True
    options.use_winograd_convolution = True
    options.use_sgemm_convolution = True
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        setattr(options, f"use_{name}", False)
    pools = ncnn.PoolAllocator(), ncnn.PoolAllocator()
    options.blob_allocator, options.workspace_allocator = pools
    if net.load_param(str(parameters)) or net.load_model(str(weights)):
        raise KorchError("ncnn cannot load what pnnx made of the model")
    mats = {f"in{k}": ncnn.Mat(a[0]).clone() for k, a in enumerate(inputs.values())}
    names = sorted(net.output_names(), key=lambda n: int(n.removeprefix("out")))

    def run() -> dict[str, np.ndarray]:
        extractor = net.create_extractor()
        for name, mat in mats.items():
            extractor.input(name, mat)
        found = {name: extractor.extract(name) for name in names}
        if failed := [name for name, (code, _) in found.items() if code]:
            raise KorchError(f"ncnn cannot compute {', '.join(failed)}")
        return {name: np.array(mat)[np.newaxis] for name, (_, mat) in found.items()}

    run.kept = pools  # type: ignore[attr-defined] (the net holds plain pointers to them)
    return run


def mnn_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """MNN's module interface: high precision (float32), high power and memory hints; converted for speed
    (`--optimizePrefer 2`). Winograd is on, by default at its highest memory level. Weights are not rearranged when
    loading (`rearrange=False`): MNN would choose convolutions before it knows the shapes, and does without Winograd."""
    file = mnn_file(model, inputs)
    names = output_names(model)
    mnn: Any = importlib.import_module("MNN")
    settings = {"backend": "CPU", "numThread": threads, "precision": "high", "power": "high", "memory": "high"}
    manager = mnn.nn.create_runtime_manager((settings,))
    module = mnn.nn.load_module_from_file(
        str(file), list(inputs), names, runtime_manager=manager, shape_mutable=False, rearrange=False
    )
    kinds = {"float32": mnn.expr.float, "int32": mnn.expr.int, "int64": mnn.expr.int, "uint8": mnn.expr.uint8}
    variables: list[Any] = []
    for name, a in inputs.items():
        if a.dtype.name not in kinds:
            raise KorchError(f"MNN takes no {a.dtype.name} input ({name})")
        variable = mnn.expr.placeholder(list(a.shape), mnn.expr.NCHW, kinds[a.dtype.name])
        variable.write(a.astype(np.int32) if a.dtype == np.int64 else a)
        variables.append(variable)

    def run() -> dict[str, np.ndarray]:
        results = module.forward(variables)
        results = results if isinstance(results, (tuple, list)) else [results]
        return {
            name: np.asarray(mnn.expr.convert(r, mnn.expr.NCHW).read()) for name, r in zip(names, results, strict=True)
        }

    run.kept = manager  # type: ignore[attr-defined]
    return run


def tvm_engine(model: Path, inputs: Arrays, threads: int) -> Run:
    """TVM's virtual machine on code tuned by MetaSchedule for this processor (`korch.bench.tvm_build`)."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    file = tvm_file(model, inputs, threads)
    tvm: Any = importlib.import_module("tvm")
    relax: Any = importlib.import_module("tvm.relax")
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(file)), device)
    arguments = [tvm.runtime.tensor(a, device) for a in inputs.values()]

    def run() -> dict[str, np.ndarray]:
        results = machine["main"](*arguments)
        results = [results] if hasattr(results, "numpy") else list(results)
        return {f"y{k}": r.numpy() for k, r in enumerate(results)}

    return run


ENGINES: dict[str, Callable[[Path, Arrays, int], Run]] = {
    "korch": korch_engine,
    "onnxruntime": onnxruntime_engine,
    "openvino": openvino_engine,
    "torch": torch_engine,
    "torch-channels-last": torch_channels_last_engine,
    "torch-compile": torch_compile_engine,
    "ncnn": ncnn_engine,
    "mnn": mnn_engine,
    "tvm": tvm_engine,
}
PACKAGES: dict[str, dict[str, str]] = {  # module -> the package that has it
    "korch": {},
    "onnxruntime": {"onnxruntime": "onnxruntime"},
    "openvino": {"openvino": "openvino"},
    "torch": {"torch": "torch"},
    "torch-channels-last": {"torch": "torch"},
    "torch-compile": {"torch": "torch"},
    "ncnn": {"ncnn": "ncnn", "pnnx": "pnnx"},
    "mnn": {"MNN": "MNN"},
    "tvm": {"tvm": "apache-tvm"},
}
SUFFIXES = {name: ".pt2" if name.startswith("torch") else ".onnx" for name in ENGINES} | {"korch": ".korch"}


def engine_of(label: str) -> str:
    """The engine of a label: `korch` of `korch` and of `korch:greedy`."""
    return label.partition(":")[0]


def lacking(engine: str) -> str | None:
    """What an engine lacks here ("the package ncnn"), or None when it can run."""
    for module, package in PACKAGES[engine].items():
        if importlib.util.find_spec(module) is None:
            return f"the package {package}"
    compilers = (os.environ.get("CXX", "g++"), "g++", "clang++")
    if engine == "torch-compile" and not any(map(shutil.which, compilers)):
        return "a C++ compiler (g++, clang++ or the one named by CXX)"
    return None
