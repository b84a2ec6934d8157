"""The C backend: all its implementations of a fragment, and the C file that holds several kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from korch.codegen.c.linear import linear_implementations
from korch.codegen.c.nests import nest_implementations
from korch.codegen.c.opaque import opaque_implementations
from korch.codegen.c.prelude import prelude
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.primitives import TABLE

# A nest computes a linear primitive element by element: the fallback where no fast family takes the fragment,
# and only for work that it can do in reasonable time.


def implementations(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """Every kernel that the backend offers for a fragment, or the reason why there is none."""
    kinds = [TABLE[d.primitive].kind for d in fragment.graph.definitions]
    if "opaque" in kinds:
        return opaque_implementations(fragment, target)
    if "linear" not in kinds:
        return nest_implementations(fragment, target)
    fast = linear_implementations(fragment, target)
    if not isinstance(fast, str):
        return fast
    slow = nest_implementations(fragment, target)
    return f"{fast}; {slow}" if isinstance(slow, str) else slow


def kernel_hash(kernel: Kernel) -> str:
    """Identifies an implementation: its source, and the form of the weights it reads."""
    digest = hashlib.sha256(kernel.source.encode())
    for packed in kernel.packed:
        digest.update(f"|{packed.weights}{packed.key}".encode())
    return digest.hexdigest()[:24]


def library_source(kernels: Sequence[tuple[str, Kernel]], target: Target, tail: str = "") -> str:
    """One C file with the named kernels, and `tail` after them (which may name them)."""
    bodies = [
        f"/* begin {name} */\n{kernel.source.replace('KERNEL', name)}\n/* end {name} */" for name, kernel in kernels
    ]
    text = "\n".join([*bodies, tail])
    return f"{prelude(target, text)}\n{text}"
