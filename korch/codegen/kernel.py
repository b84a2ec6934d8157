"""A kernel: C source for one fragment, and how to call it.

The source defines one function

    void KERNEL(const korch_runtime *runtime, char *const *p)

where the token KERNEL is replaced by a unique name (helpers of its own are named KERNEL_something), and
`p[k]` points to what `arguments[k]` says. The types, vector mathematics and `korch_runtime` come from
`korch.codegen.c.prelude`, emitted once per file. See docs/kernels.md for the calling convention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

# Packs weights into the form that a kernel reads; called once, at optimisation time. Kernels are measured in another
# process, so it can be pickled: a function of a module, or a `functools.partial` of one.
Packer = Callable[..., np.ndarray]


# Looks at the weights themselves: why a kernel must not be used with them, or None.
Guard = Callable[..., str | None]


@dataclass(frozen=True)
class Argument:
    """One pointer: `kind` is `input`, `output` (then `value` names it in the fragment's graph), `packed` (then
    `index` counts into `Kernel.packed`) or `scratch` (shared by the threads, `Kernel.scratch_bytes` long)."""

    kind: str
    value: str = ""
    index: int = 0


@dataclass(frozen=True)
class Packed:
    """Weights in the form a kernel wants: `packer(*arrays)`, with one array for each name in `weights`.

    `key` names the form and its parameters in words, so that equal packings of equal weights are stored once.
    `guard(*arrays)` may refuse weights, with which the kernel would be inaccurate.
    """

    weights: tuple[str, ...]
    key: str
    packer: Packer = field(compare=False)
    guard: Guard | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Kernel:
    """One implementation of a fragment.

    `family` and `parameters` say how it was made ("matmul", (("mr", 6), ("nv", 2))); `worker_scratch_bytes` is
    private memory of each thread, found at `runtime->scratch + worker * runtime->scratch_stride`.
    """

    family: str
    source: str
    arguments: tuple[Argument, ...]
    parameters: tuple[tuple[str, int], ...] = ()
    packed: tuple[Packed, ...] = ()
    scratch_bytes: int = 0
    worker_scratch_bytes: int = 0

    @property
    def exact(self) -> bool:
        """Whether every element keeps the class and sign that the definition gives it (no Winograd, say)."""
        return ("exact", 0) not in self.parameters

    @property
    def label(self) -> str:
        return self.family + "".join(f" {k}={v}" for k, v in self.parameters)
