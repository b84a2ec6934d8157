"""A small artifact whose entry is written by hand: what the code generator will write, in small.

Inputs x float32[rows,1000], flag bool[3], h float16[] and e float32[0,4]; outputs
    y = relu(x) * 0.5 + w      in tasks of one row, through the arena and the workers' scratch
    no = not flag, k = h, e2 = e (empty)
    control int32[64]          the floating-point control register that each task saw
"""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from korch.artifact.build import build_runtime
from korch.artifact.pack import Artifact, Plan, Tensor, Weights
from korch.codegen.target import Target, target_named
from korch.codegen.toolchain import compile_shared, find_toolchain

MACHINE = platform.machine()
COLUMNS = 1000
PRELUDE = """
typedef __INT64_TYPE__ int64_t; typedef __UINT32_TYPE__ uint32_t;
typedef struct korch_runtime {
  uint32_t version, threads; char *scratch; int64_t scratch_stride; void *pool;
  void (*parallel_for)(const struct korch_runtime *, int64_t, void (*)(void *, int64_t, int64_t), void *);
} korch_runtime;
"""
SOURCE = (
    PRELUDE
    + """
typedef struct { const korch_runtime *runtime; const float *x, *w; float *half, *y; int *control; } job;
static int control(void) {
#ifdef __x86_64__
  uint32_t value; __asm__ volatile("stmxcsr %0" : "=m"(value)); return (int)(value & 0xffc0); /* not the flags */
#else
  __UINT64_TYPE__ value; __asm__ volatile("mrs %0, fpcr" : "=r"(value)); return (int)value;
#endif
}
static void halve(void *context, int64_t task, int64_t worker) {
  job *j = context;
  for (int64_t i = task * 1000; i < (task + 1) * 1000; i++) j->half[i] = j->x[i] > 0 ? j->x[i] * 0.5f : 0;
  if (task < 64) j->control[task] = control();
}
static void add(void *context, int64_t task, int64_t worker) {
  job *j = context;
  float *row = (float *)(j->runtime->scratch + worker * j->runtime->scratch_stride);
  for (int64_t i = 0; i < 1000; i++) row[i] = j->half[task * 1000 + i];
  for (int64_t i = 0; i < 1000; i++) j->y[task * 1000 + i] = row[i] + j->w[i];
}
__attribute__((visibility("default")))
void korch_run(const korch_runtime *runtime, char *const *io, char *arena, const char *weights) {
  job j = {runtime, (float *)io[0], (const float *)weights, (float *)arena, (float *)io[4], (int *)io[8]};
  for (int64_t i = 0; i < 64; i++) j.control[i] = control();
  runtime->parallel_for(runtime, ROWS, halve, &j);
  runtime->parallel_for(runtime, ROWS, add, &j);
  for (int64_t i = 0; i < 3; i++) io[5][i] = !io[1][i];
  for (int64_t i = 0; i < 2; i++) io[6][i] = io[2][i];
}
"""
)
INPUTS = (Tensor("x", "float32"), Tensor("flag", "bool"), Tensor("h", "float16"), Tensor("e", "float32"))
OUTPUTS = (
    Tensor("y", "float32"),
    Tensor("no", "bool"),
    Tensor("k", "float16"),
    Tensor("e2", "float32"),
    Tensor("control", "int32"),
)
BIAS = np.linspace(-1, 1, COLUMNS, dtype=np.float32)


def sample_plan(rows: int, target: Target) -> Plan:
    """A plan for x of that many rows."""
    source = SOURCE.replace("ROWS", str(rows))
    return Plan(
        target=target,
        inputs=((rows, COLUMNS), (3,), (), (0, 4)),
        outputs=((rows, COLUMNS), (3,), (), (0, 4), (64,)),
        code=compiled(source, target),
        source=source,
        weights=Weights(4096, ((0, BIAS),)),
        threads=2,
        arena_bytes=rows * COLUMNS * 4,
        worker_scratch_bytes=COLUMNS * 4,
        kernels=({"name": "halve", "cost_us": 1.5}, {"name": "add", "cost_us": 2.5}),
        certificate={"objective_us": 4.0},
    )


def sample_artifact(rows: tuple[int, ...] = (40,), targets: tuple[str, ...] = ("host",)) -> Artifact:
    """Plans for each number of rows and target."""
    plans = tuple(sample_plan(r, target_named(t)) for r in rows for t in targets)
    machines = sorted({p.target.triple.split("-")[0] for p in plans})
    return Artifact(INPUTS, OUTPUTS, plans, {m: runtime(m) for m in machines}, {"name": "sample", "sha256": ""})


@functools.cache
def compiled(source: str, target: Target) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "code.so"
        compile_shared(find_toolchain(), source, target, path)
        return path.read_bytes()


@functools.cache
def runtime(machine: str) -> bytes:
    return build_runtime(find_toolchain(), machine)


def sample_inputs(rows: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, COLUMNS), np.float32)
    x[0, :4] = [np.nan, np.inf, 3e-39, -0.0]  # 3e-39 is denormal
    return {
        "x": x,
        "flag": np.array([True, False, True]),
        "h": np.array(1.5, np.float16),
        "e": np.empty((0, 4), np.float32),
    }


def expected_y(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x * np.float32(0.5), np.float32(0)) + BIAS


def run_python(code: str, *arguments: object, timeout: float = 120) -> str:
    """What a new Python process prints; its failure is the test's."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
