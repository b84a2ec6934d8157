"""This machine's ceilings: the arithmetic rate, the bandwidth of each cache level, and the cost of a launch.

Each is measured with small kernels of the same calling convention as all others, several times; the highest ever
seen counts, plus a margin, because a lower bound must never exceed what a kernel can do.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import numpy as np

from korch.codegen.c.prelude import prelude
from korch.codegen.target import Target
from korch.codegen.toolchain import compile_shared
from korch.costs.bounds import Ceilings
from korch.costs.measure import Setting
from korch.costs.session import Session, harness

MARGIN = 1.1
_FLOP_STEPS = 2000
_KERNELS = ("flops", "touch", "empty")
_ROUNDS = 12
_LAUNCH_SHARE = 0.5  # a kernel too small for all threads runs alone, without the cost of a fork and join


def ceilings_source(target: Target) -> str:
    """Kernels: `flops` (independent multiply-adds), `touch` (read two streams, write one), `empty` (a launch)."""
    count = 10 if target.vector_registers == 16 else 20
    names = [f"a{i}" for i in range(count)]
    loop = "\n      ".join(f"{n} = korch_fma_f32({n}, x, y);" for n in names)
    text = f"""
static void flops_body(void *context, int64_t task, int64_t worker) {{
  float *out = (float *)context + task * {count} * W;
  vf32 x = korch_splat_f32(1.0f), y = korch_splat_f32(1e-9f);
  {" ".join(f"vf32 {n} = korch_splat_f32({i}.0f);" for i, n in enumerate(names))}
  for (int i = 0; i < {_FLOP_STEPS}; i++) {{
      {loop}
      __asm__ volatile("" : "+x"(x), "+x"(y));
  }}
  {" ".join(f"korch_store_f32(out + {i} * W, {n});" for i, n in enumerate(names))}
}}
__attribute__((visibility("default")))
void flops(const korch_runtime *r, char *const *p) {{ r->parallel_for(r, r->threads, flops_body, p[0]); }}
typedef struct {{ float *base; int64_t n; }} touch_t;
static void touch_body(void *context, int64_t task, int64_t worker) {{
  const touch_t *t = context;
  const float *a = t->base + 3 * t->n * task, *c = a + t->n;
  float *b = t->base + 3 * t->n * task + 2 * t->n;
  for (int64_t i = 0; i < t->n; i += 4 * W)
    for (int k = 0; k < 4; k++)
      korch_store_f32(b + i + k * W, korch_load_f32(a + i + k * W) + korch_load_f32(c + i + k * W));
}}
__attribute__((visibility("default")))
void touch(const korch_runtime *r, char *const *p) {{
  touch_t t = {{(float *)p[0], *(const int64_t *)p[1]}};
  r->parallel_for(r, r->threads, touch_body, &t);
}}
static void empty_body(void *context, int64_t task, int64_t worker) {{}}
__attribute__((visibility("default")))
void empty(const korch_runtime *r, char *const *p) {{ r->parallel_for(r, r->threads, empty_body, 0); }}
"""
    if target.triple.startswith("aarch64"):
        text = text.replace('"+x"', '"+w"')
    text += harness(_KERNELS)
    return f"{prelude(target, text)}\n{text}"


def footprints(target: Target, threads: int) -> tuple[int, ...]:
    """The footprints of all threads together, in bytes, whose bandwidth is measured: well inside the first, the
    second and the third cache, and far beyond."""
    return (
        threads * target.l1_bytes // 2,
        threads * target.l2_bytes // 2,
        max(target.l3_bytes, 2 * threads * target.l2_bytes) // 2,
        4 * target.l3_bytes,
    )


def measure_ceilings(setting: Setting) -> Ceilings:
    """Takes about a second."""
    target, threads = setting.target, setting.threads
    with tempfile.TemporaryDirectory(prefix="korch-") as folder:
        path = Path(folder) / "ceilings.so"
        compile_shared(setting.toolchain, ceilings_source(target), target, path, optimize="-O3")
        library = ctypes.CDLL(str(path))
    session = Session(setting.runtime, threads)

    def best_us(name: str, arrays: list[np.ndarray], repeats: int) -> float:
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        lists = (ctypes.c_void_p * 1)(ctypes.addressof(pointers))
        index = _KERNELS.index(name)
        return min(session.seconds(library, index, lists, repeats) for _ in range(_ROUNDS)) * 1e6 / repeats

    count = 10 if target.vector_registers == 16 else 20
    flops = 2.0 * _FLOP_STEPS * count * target.lanes() * threads
    out = np.zeros(threads * count * target.lanes() + 64, np.float32)
    rate = flops / best_us("flops", [out], 50)
    bandwidths: list[tuple[int, float]] = []
    for footprint in footprints(target, threads):
        n = footprint // (3 * 4 * threads) // (4 * target.lanes()) * (4 * target.lanes())
        moved = 3 * 4 * n * threads
        arrays = [np.zeros(3 * n * threads, np.float32), np.array([n], np.int64)]
        bandwidths.append((footprint, moved / best_us("touch", arrays, max(1, 4_000_000 // moved)) * MARGIN))
    launch = best_us("empty", [out], 2000)
    return Ceilings(rate * MARGIN, _monotone(bandwidths), _LAUNCH_SHARE * launch)


def _monotone(rates: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """A smaller footprint is never slower than a larger one."""
    found: list[tuple[int, float]] = []
    fastest = 0.0
    for size, rate in reversed(rates):
        fastest = max(fastest, rate)
        found.append((size, fastest))
    return tuple(reversed(found))
