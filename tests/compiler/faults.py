"""A backend whose kernels misbehave, for the tests of measuring: negation done right, and in six wrong ways."""

from __future__ import annotations

from korch.codegen.kernel import Argument, Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment

BODIES = {
    "right": "for (int i = 0; i < n; i++) y[i] = -x[i];",
    "slow": "for (int k = 0; k < 2000; k++) for (int i = 0; i < n; i++) y[i] = -x[i] * (k < 2000);",
    "crashes": "*(volatile int *)0 = 1;",
    "hangs": "for (volatile int k = 1; k;) {}",
    "wrong": "for (int i = 0; i < n; i++) y[i] = x[i];",
    "wrong at the end": "for (int i = 0; i < n; i++) y[i] = i == n - 1 ? 0 : -x[i];",
    "wrong for NaN": "for (int i = 0; i < n; i++) y[i] = x[i] == x[i] ? -x[i] : 0;",
    "overruns": "for (int i = 0; i < n; i++) y[i] = -x[i]; y[n] = 1;",
    "does not compile": "this is not C;",
}


def implementations(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """One kernel for each body; only for a fragment of one negation."""
    (d,) = fragment.graph.definitions
    if d.primitive != "neg":
        return "only negation"
    count = fragment.graph.types[d.outputs[0]].elements
    return tuple(
        Kernel(
            family=family,
            source="void KERNEL(const korch_runtime *runtime, char *const *p) {\n"
            f"  const float *x = (const float *)p[0]; float *y = (float *)p[1]; int n = {count};\n  {body}\n}}\n",
            arguments=(Argument("input", d.inputs[0]), Argument("output", d.outputs[0])),
        )
        for family, body in BODIES.items()
    )
