"""Sweeps the float32 functions of the generated kernels and prints their largest errors and their speed.

    python benchmarks/vector_math.py                     all functions, every 97th float32
    python benchmarks/vector_math.py --step 1 exp tanh   all 2^32 of them (half a minute for each function)

The sweep compares with the library's own float64 function, whose error is some 2^-28 of a float32 ulp and is itself
held against NumPy here (erf against math.erf). Errors are in units in the last place of the exact result.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from pathlib import Path

import numpy as np

from korch.codegen.c.prelude import prelude
from korch.codegen.target import Target, target_named
from korch.codegen.toolchain import compile_shared, find_toolchain
from korch.ir.primitives import ROWS, TABLE
from korch.ir.primitives.primitive import FLOAT

FUNCTIONS = [
    row.name
    for row in ROWS
    if row.kind == "elementwise" and row.dtypes == FLOAT and row.arity == (1, 1) and row.name not in ("isnan", "isinf")
]

# NAME_sweep gives the largest error over the floats whose bits are first, first + step, ... before last, and where.
# An infinity counts as the number after the greatest; a NaN must meet a NaN.
FUNCTION = """
#define EXPORT __attribute__((visibility("default")))
EXPORT void NAME_f32(const f32 *from, f32 *to, int64_t n) {
  for (int64_t i = 0; i < n; i += W) { vf32 x = korch_load_f32(from + i); korch_store_f32(to + i, SINGLE); }
}
EXPORT void NAME_f64(const f64 *from, f64 *to, int64_t n) {
  for (int64_t i = 0; i < n; i += W) { vf64 x = korch_load_f64(from + i); korch_store_f64(to + i, DOUBLE); }
}
EXPORT f64 NAME_sweep(int64_t first, int64_t last, int64_t step, f32 *where) {
  vf64 worst = (vf64)-1.0;
  vf32 at = (vf32)0.0f;
  for (int64_t i = first; i < last; i += step * W) {
    vi64 bits = i + korch_iota_i64() * step;
    vf32 single_x = (vf32)__builtin_convertvector(bits < last ? bits : (vi64)first, vu32);
    vf64 double_x = __builtin_convertvector(single_x, vf64);
    vf64 got, exact;
    { vf32 x = single_x; got = __builtin_convertvector(SINGLE, vf64); }
    { vf64 x = double_x; exact = DOUBLE; }
    vi64 exponent = (vi64)__builtin_elementwise_abs(exact) >> 52;
    exponent = exponent < 897 ? (vi64)897 : exponent;
    vf64 error = korch_clamp_f64(got, -0x1p128, 0x1p128) - korch_clamp_f64(exact, -0x1p128, 0x1p128);
    error = __builtin_elementwise_abs(error) / (vf64)((exponent - 23) << 52);
    error = exact != exact & got != got ? (vf64)0.0 : error == error ? error : (vf64)__builtin_inf();
    vi64 more = error > worst;
    worst = more ? error : worst;
    at = __builtin_convertvector(more, vi32) ? single_x : at;
  }
  int best = 0;
  for (int i = 1; i < W; i++) if (worst[i] > worst[best]) best = i;
  *where = at[best];
  return worst[best];
}
#undef EXPORT
"""


def source(target: Target, names: list[str]) -> str:
    """A C file with NAME_f32, NAME_f64 and NAME_sweep for each name."""
    parts: list[str] = []
    for name in names:
        single, double = (TABLE[name].c.format("x", T=tag) for tag in ("f32", "f64"))
        parts.append(FUNCTION.replace("NAME", name).replace("SINGLE", single).replace("DOUBLE", double))
    text = "\n".join(parts)
    return f"{prelude(target, text)}\n{text}\n"


def apply(function: ctypes._CFuncPtr, x: np.ndarray) -> np.ndarray:
    """The function over an array whose length is a multiple of the lanes."""
    y = np.empty_like(x)
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size))
    return y


def double_error(name: str, library: ctypes.CDLL) -> float:
    """The largest relative error of the float64 function against NumPy, over a sample of all magnitudes."""
    generator = np.random.default_rng(0)
    low, high = TABLE[name].domain.of(0)
    x = np.concatenate(
        [generator.uniform(low, high, 4096), generator.integers(0, 2**64, 4096, np.uint64).view(np.float64)]
    )
    got, (want,) = apply(getattr(library, f"{name}_f64"), x), TABLE[name].numpy([x], {})
    if (np.isnan(got) != np.isnan(want)).any():
        return np.inf
    usual = np.isfinite(want) & (np.abs(want) > 1e-300)
    if (got[~np.isfinite(want)] != want[~np.isfinite(want)])[~np.isnan(want[~np.isfinite(want)])].any():
        return np.inf
    return float(np.max(np.abs(got[usual] - want[usual]) / np.abs(want[usual])))


def sweep(name: str, library: ctypes.CDLL, step: int) -> tuple[float, float]:
    """The largest error over every `step`-th float32, and the input where it happens."""
    function, where = getattr(library, f"{name}_sweep"), ctypes.c_float()
    function.restype = ctypes.c_double
    worst = function(ctypes.c_int64(0), ctypes.c_int64(1 << 32), ctypes.c_int64(step), ctypes.byref(where))
    return worst, where.value


def speed(name: str, library: ctypes.CDLL) -> float:
    """Nanoseconds per element over data in the first-level cache."""
    low, high = TABLE[name].domain.of(0)
    x = np.random.default_rng(0).uniform(max(low, -80), min(high, 80), 2048).astype(np.float32)
    function, y = getattr(library, f"{name}_f32"), np.empty(2048, np.float32)
    arguments = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size)
    best = np.inf
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(10):
            function(*arguments)
        best = min(best, time.perf_counter() - start)
    return best / 10 / x.size * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of: {' '.join(FUNCTIONS)} (default: all)")
    parser.add_argument("--step", type=int, default=97, help="sweep every STEP-th float32")
    parser.add_argument("--target", default="host", help="an instruction set that this machine has")
    options = parser.parse_args()
    names, target = options.names or FUNCTIONS, target_named(options.target)
    with tempfile.TemporaryDirectory() as directory, np.errstate(all="ignore"):
        output = Path(directory) / "vector_math.so"
        compile_shared(find_toolchain(), source(target, names), target, output)
        library = ctypes.CDLL(str(output))
        print(f"{'function':<10}{'max ulp':>10}   {'at':<16}{'ns/element':>12}{'float64 error':>16}")
        for name in names:
            worst, where = sweep(name, library, options.step)
            timed, double = speed(name, library), double_error(name, library)
            print(f"{name:<10}{worst:>10.3f}   {where:<16.9g}{timed:>12.3f}{double:>16.1e}", flush=True)


if __name__ == "__main__":
    main()
