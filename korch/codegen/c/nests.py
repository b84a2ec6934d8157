"""Fused loop nests: the general generator of the C backend.

Any fragment of elementwise, broadcast, reduce, layout, gather and (computed naively) linear primitives becomes one
kernel: `korch.codegen.c.nest_plan` finds the loops, `nest_schedule` their order and tasks, `nest_code` the text.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from korch.codegen.c.nest_code import Coder
from korch.codegen.c.nest_plan import kept_values, make_plan
from korch.codegen.c.nest_reads import REDUCTIONS
from korch.codegen.c.nest_reduce import neutral
from korch.codegen.c.nest_schedule import TASK_NANOSECONDS, Schedule, make_schedule
from korch.codegen.c.nest_values import NestError
from korch.codegen.kernel import Argument, Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.graph import Graph
from korch.ir.primitives import TABLE


def nest_implementations(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """The loop nests for a fragment, or the reason why there is none."""
    kernel = generate_nest(fragment, target)
    return kernel if isinstance(kernel, str) else (kernel,)


def generate_nest(fragment: Fragment, target: Target, grain: float = TASK_NANOSECONDS) -> Kernel | str:
    """One fused loop nest for a fragment, or the reason why there is none.

    `grain` is the estimated work of one task in nanoseconds; less work than twice that is one task.
    """
    kinds = [TABLE[d.primitive].kind for d in fragment.graph.definitions]
    if "opaque" in kinds:
        return "opaque primitives are not fused"
    if kinds.count("linear") > 1:
        return "a loop nest holds at most one linear primitive"
    graph = _without_empty_reductions(fragment.graph)
    kept = kept_values(graph, fragment.layouts)
    reason = ""
    for values in dict.fromkeys((kept, frozenset[str]())):
        try:
            plan = make_plan(graph, fragment.layouts, values)
            schedule = make_schedule(plan, target, grain)
            arguments, pointers = _arguments(graph, schedule)
            source = Coder(plan, schedule, target, pointers).source()
        except NestError as error:
            reason = reason or str(error)
            continue
        return Kernel("nest", source, arguments, (), (), schedule.shared_bytes, schedule.local_bytes)
    return reason


def _arguments(graph: Graph, schedule: Schedule) -> tuple[tuple[Argument, ...], dict[str, str]]:
    """The kernel's pointers, and the C expressions by which the text names them."""
    arguments: list[Argument] = []
    pointers: dict[str, str] = {}
    for value in dict.fromkeys(graph.input_values):
        pointers[value] = f"p[{len(arguments)}]"
        arguments.append(Argument("input", value))
    for value in dict.fromkeys(graph.output_values):
        pointers[f"out {value}"] = f"p[{len(arguments)}]"
        arguments.append(Argument("output", value))
    if schedule.shared_bytes:
        pointers["scratch"] = f"p[{len(arguments)}]"
        arguments.append(Argument("scratch"))
    return tuple(arguments), pointers


def _without_empty_reductions(graph: Graph) -> Graph:
    """Reductions over nothing are constants."""
    constants = dict(graph.constants)
    definitions = list(graph.definitions)
    for d in graph.definitions:
        if d.primitive not in REDUCTIONS:
            continue
        row = REDUCTIONS[d.primitive]
        extents = row.extents(d, [graph.types[v] for v in d.inputs])
        t = graph.types[d.outputs[0]]
        if math.prod(extents) == 0 and t.elements:
            constants[d.outputs[0]] = np.asarray(neutral(row.combine, t.dtype))
            definitions.remove(d)
    if len(definitions) == len(graph.definitions):
        return graph
    return replace(graph, definitions=tuple(definitions), constants=constants)
