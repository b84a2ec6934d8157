"""Sweeps the float32 functions of the generated kernels and prints their largest errors and their speed.

    python benchmarks/vector_math.py exp tanh            every 97th float32
    python benchmarks/vector_math.py --step 1 exp        all 2^32 of them (minutes for each function)

The reference is NumPy's float64 function (for erf the library's own float64 one, which the tests hold against
mpmath): its error is 2^-29 of a float32 ulp. Errors are in units in the last place of the exact result.
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
REFERENCE = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "round": "rint"} | {
    f"a{name}": f"arc{name}" for name in ("sinh", "cosh", "tanh")
}
CHUNK = 1 << 20


def source(target: Target, names: list[str]) -> str:
    """A C file with `void NAME_TAG(from, to, n)` for each name and both float types."""
    parts: list[str] = []
    for name in names:
        for tag in ("f32", "f64"):
            value = TABLE[name].c.format("x", T=tag)
            parts.append(
                f"""__attribute__((visibility("default")))
void {name}_{tag}(const {tag} *from, {tag} *to, int64_t n) {{
  for (int64_t i = 0; i < n; i += W) {{
    v{tag} x = korch_load_{tag}(from + i);
    korch_store_{tag}(to + i, {value});
  }}
}}"""
            )
    text = "\n".join(parts)
    return f"{prelude(target, text)}\n{text}\n"


def load(target: Target, names: list[str], directory: Path) -> ctypes.CDLL:
    """The compiled functions."""
    output = directory / "vector_math.so"
    compile_shared(find_toolchain(), source(target, names), target, output)
    return ctypes.CDLL(str(output))


def apply(function: ctypes._CFuncPtr, x: np.ndarray) -> np.ndarray:
    """The function over an array whose length is a multiple of the lanes."""
    y = np.empty_like(x)
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size))
    return y


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in float32 ulp of the exact result; infinite where one is NaN or infinite and the other is not."""
    nearest = exact.astype(np.float32)
    ulp = np.maximum(np.spacing(np.abs(nearest)).astype(np.float64), 2.0**-149)
    difference = np.abs(got.astype(np.float64) - exact) / ulp
    special = ~np.isfinite(nearest) | ~np.isfinite(got)
    agree = (np.isnan(got) & np.isnan(nearest)) | (got == nearest)
    # At the edge of overflow, the greatest float32 for an exact value that rounds to infinity is within one ulp.
    edge = np.isinf(nearest) & np.isfinite(got) & (np.abs(got) == np.finfo(np.float32).max)
    edge |= np.isinf(got) & (np.abs(nearest) == np.finfo(np.float32).max)
    return np.where(special, np.where(agree, 0.0, np.where(edge, 1.0, np.inf)), difference)


def sweep(name: str, library: ctypes.CDLL, step: int) -> tuple[float, float]:
    """The largest error over every `step`-th float32 and the input where it happens."""
    worst, where = -1.0, np.nan
    function = getattr(library, f"{name}_f32")
    for start in range(0, 1 << 32, CHUNK * step):
        bits = np.arange(start, min(start + CHUNK * step, 1 << 32), step, np.uint64).astype(np.uint32)
        bits = np.resize(bits, -(-bits.size // 64) * 64)
        x = bits.view(np.float32)
        if name == "erf":
            exact = apply(library.erf_f64, x.astype(np.float64))
        else:
            exact = getattr(np, REFERENCE.get(name, name))(x.astype(np.float64))
        found = errors(apply(function, x), exact)
        at = int(np.argmax(found))
        if found[at] > worst:
            worst, where = float(found[at]), float(x[at])
    return worst, where


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
    names = options.names or FUNCTIONS
    with tempfile.TemporaryDirectory() as directory, np.errstate(all="ignore"):
        library = load(target_named(options.target), names, Path(directory))
        print(f"{'function':<10}{'max ulp':>10}   {'at':<16}{'ns per element':>16}")
        for name in names:
            worst, where = sweep(name, library, options.step)
            print(f"{name:<10}{worst:>10.3f}   {where:<16.9g}{speed(name, library):>16.3f}", flush=True)


if __name__ == "__main__":
    main()
