"""Compiling for TVM: `python -m korch.bench.tvm_build MODEL.onnx OUT.so SHAPES THREADS [TRIALS]`.

The static-shape pipeline of TVM's documentation: fuse, tune every fused function by MetaSchedule (TRIALS measured
schedules each), apply the best. Without tuning TVM's loops are neither vectorized nor parallel on a CPU, so that tuning
is part of its best settings; it takes hours for a large network. SHAPES is a JSON object: name -> [shape, dtype].
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from typing import Any

import onnx

TRIALS = 64


def main() -> None:
    file, out, types, threads = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    trials = int(sys.argv[5]) if len(sys.argv) > 5 else TRIALS
    tvm: Any = importlib.import_module("tvm")
    relax: Any = importlib.import_module("tvm.relax")
    frontend: Any = importlib.import_module("tvm.relax.frontend.onnx")
    processor = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": threads})
    module = frontend.from_onnx(
        onnx.load(file),
        shape_dict={name: shape for name, (shape, _) in types.items()},
        dtype_dict={name: dtype for name, (_, dtype) in types.items()},
    )
    with tempfile.TemporaryDirectory() as folder, target:
        tasks = 1000  # more than any network has: the limit is the one per task
        pipeline = relax.pipeline.static_shape_tuning_pipeline(
            total_trials=trials * tasks, target=target, work_dir=folder, max_trials_per_task=trials
        )
        module = pipeline(module) if trials else relax.get_pipeline("zero")(module)
        tvm.compile(module, target=target).export_library(out)


if __name__ == "__main__":
    main()
