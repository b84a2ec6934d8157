"""Fast kernels for fragments with one linear primitive, and what is fused before and after it.

A matrix product or convolution becomes loops (`contraction`) around a register tile (`tile`) that reads packed
weights. `problem` and `operand` say what is fused and where operands lie, `fuse` writes the code of it.
"""

from __future__ import annotations

from korch.codegen.c.emit import NestError
from korch.codegen.c.linear.attention import attention_kernels
from korch.codegen.c.linear.conv import conv_kernels
from korch.codegen.c.linear.matmul import matmul_kernels
from korch.codegen.c.linear.problem import Problem
from korch.codegen.c.linear.separable import separable_kernels
from korch.codegen.c.linear.transposed import transposed_kernels
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.primitives import TABLE


def linear_implementations(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """Kernels for a fragment with one linear primitive, or a known pair, the most promising first; or why there are
    none."""
    linear = [d.primitive for d in fragment.graph.definitions if TABLE[d.primitive].kind == "linear"]
    if len(linear) > 1:
        return separable_kernels(fragment, target) if "conv" in linear else attention_kernels(fragment, target)
    problem = Problem.of(fragment, target)
    if isinstance(problem, str):
        return problem
    families = {"conv": conv_kernels, "conv_transpose": transposed_kernels, "matmul": matmul_kernels}
    family = families.get(problem.linear.primitive)
    if family is None:
        return f"{problem.linear.primitive} has no fast kernels"
    try:
        return family(problem)
    except NestError as error:
        return str(error)
