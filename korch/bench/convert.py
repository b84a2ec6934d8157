"""Models in the form that a peer reads, made by the peer's own converter, once, beside the ONNX file.

The names of the files hold the shapes of the inputs (`model.1x3x224x224.mnn`). Converters run as processes of their
own, so that their memory is not counted as the engine's. A converter that fails is a KorchError with its last words.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from korch.errors import KorchError
from korch.ir.types import shape_text

SECONDS = 3600
_OUTPUTS = """
import json, onnx, sys
print(json.dumps([o.name for o in onnx.load(sys.argv[1], load_external_data=False).graph.output]))
"""
# Its own command line, `MNN.tools.mnnconvert`, installs a logging package by pip and reports what it converted.
_MNN = "import sys, _tools; _tools.mnnconvert(['mnnconvert', *sys.argv[1:]])"


def output_names(model: Path) -> list[str]:
    """The outputs of an ONNX file in order."""
    return json.loads(_run([sys.executable, "-c", _OUTPUTS, str(model.resolve())], model.parent))


def ncnn_files(model: Path, inputs: Mapping[str, np.ndarray]) -> tuple[Path, Path]:
    """Parameters and float32 weights for ncnn, by pnnx."""
    found = importlib.util.find_spec("pnnx")
    assert found is not None and found.origin is not None
    program = Path(found.origin).with_name("pnnx")
    shapes = ",".join(f"[{','.join(map(str, a.shape))}]f32" for a in inputs.values())
    command = [str(program), "MODEL", f"inputshape={shapes}", "fp16=0", "optlevel=2", "device=cpu"]
    command += ["ncnnparam=OUT0", "ncnnbin=OUT1"]
    parameters, weights = _converted(model, inputs, (".ncnn.param", ".ncnn.bin"), command)
    return parameters, weights


def mnn_file(model: Path, inputs: Mapping[str, np.ndarray]) -> Path:
    """A float32 model for MNN, by its converter, optimized for speed."""
    command = [sys.executable, "-c", _MNN, "-f", "ONNX", "--modelFile", "MODEL", "--MNNModel", "OUT0"]
    command += ["--bizCode", "MNN", "--optimizePrefer", "2"]
    (file,) = _converted(model, inputs, (".mnn",), command)
    return file


def tvm_file(model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> Path:
    """A shared library by TVM (`korch.bench.tvm_build`)."""
    shapes = json.dumps({name: (a.shape, a.dtype.name) for name, a in inputs.items()})
    command = [sys.executable, "-m", "korch.bench.tvm_build", "MODEL", "OUT0", shapes, str(threads)]
    (file,) = _converted(model, inputs, (f".{threads}.tvm.so",), command)
    return file


def _converted(
    model: Path, inputs: Mapping[str, np.ndarray], suffixes: Sequence[str], command: Sequence[str]
) -> list[Path]:
    """One file per suffix beside the model, made by `command` where one is missing or older than the model.

    In the command's words `MODEL` stands for the model, and OUT0, OUT1 for the files to write. It runs in
    a folder of its own, as converters leave further files about.
    """
    shapes = "_".join(shape_text(a.shape) for a in inputs.values())
    targets = [model.with_name(f"{model.stem}.{shapes}{suffix}") for suffix in suffixes]
    if all(t.exists() and t.stat().st_mtime >= model.stat().st_mtime for t in targets):
        return targets
    with tempfile.TemporaryDirectory(prefix="korch-convert-") as folder:
        copy = Path(folder) / "model.onnx"
        copy.symlink_to(model.resolve())
        made = [Path(folder) / f"made{suffix}" for suffix in suffixes]
        words = {"MODEL": str(copy), **{f"OUT{k}": str(file) for k, file in enumerate(made)}}
        said = _run([_filled(word, words) for word in command], Path(folder))
        for file, target in zip(made, targets, strict=True):
            if not file.exists():
                raise KorchError(f"{model.name} cannot be converted: {_last(said)}")
            shutil.move(file, target)
    return targets


def _filled(word: str, words: Mapping[str, str]) -> str:
    key, equals, value = word.partition("=")
    return f"{key}={words[value]}" if equals and value in words else words.get(word, word)


def _run(command: Sequence[str], folder: Path) -> str:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise KorchError(f"converting took more than {SECONDS} seconds") from error
    if done.returncode:
        raise KorchError(f"converting failed (status {done.returncode}): {_last(done.stderr) or _last(done.stdout)}")
    return done.stdout + done.stderr


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
