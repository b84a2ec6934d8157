"""Fused loop nests: the general generator of the C backend.

Any fragment of elementwise, broadcast, reduce, layout, gather and (computed naively) linear primitives becomes one
kernel: `korch.codegen.c.nest_plan` finds the loops, `nest_schedule` their order and tasks, `nest_code` the text.
"""

from __future__ import annotations

from collections.abc import Iterator

from korch.codegen.c.nest_code import Coder
from korch.codegen.c.nest_plan import kept_values, make_plan
from korch.codegen.c.nest_rewrite import with_lines, without_empty_reductions
from korch.codegen.c.nest_schedule import TASK_NANOSECONDS, Schedule, make_schedule
from korch.codegen.c.nest_values import NestError
from korch.codegen.kernel import Argument, Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.graph import Graph
from korch.ir.primitives import TABLE


def nest_implementations(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """The loop nests worth a trial for a fragment, the likely fastest first, or the reason why there is none."""
    first = generate_nest(fragment, target)
    if isinstance(first, str):
        return first
    second = _generate(fragment, target, TASK_NANOSECONDS, 1)
    return (first,) if isinstance(second, str) or second.source == first.source else (first, second)


def generate_nest(fragment: Fragment, target: Target, grain: float = TASK_NANOSECONDS) -> Kernel | str:
    """One fused loop nest for a fragment, or the reason why there is none.

    `grain` is the estimated work of one task in nanoseconds; less work than twice that is one task.
    """
    kinds = [TABLE[d.primitive].kind for d in fragment.graph.definitions if d.primitive != "resample"]
    if "opaque" in kinds:
        return "opaque primitives are not fused"
    if kinds.count("linear") > 1:  # a resampling is as cheap as a window
        return "a loop nest holds at most one linear primitive"
    return _generate(fragment, target, grain, 0)


def _generate(fragment: Fragment, target: Target, grain: float, choice: int) -> Kernel | str:
    """The first variant that fits into memory; `choice` counts other vector axes."""
    reason = ""
    for number, (graph, kept) in enumerate(_variants(fragment)):
        try:
            plan = make_plan(graph, fragment.layouts, kept)
            schedule = make_schedule(plan, target, grain, choice)
            arguments, pointers = _arguments(graph, schedule)
            source = Coder(plan, schedule, target, pointers).source()
        except NestError as error:
            reason = str(error)
            continue
        parameters = (("variant", number), ("axes", choice))
        local, shared = schedule.local_bytes, schedule.shared_bytes
        return Kernel("nest", source, arguments, parameters, (), shared, local)
    return reason


def _variants(fragment: Fragment) -> Iterator[tuple[Graph, frozenset[str]]]:
    """Ways to compute a fragment, the likely fastest first; later ones keep less between loops."""
    plain = without_empty_reductions(fragment.graph)
    lines, padded = with_lines(plain, fragment.layouts)
    if lines is not plain:
        yield lines, kept_values(lines, fragment.layouts) | padded
    kept = kept_values(plain, fragment.layouts)
    yield plain, kept
    if kept:
        yield plain, frozenset()


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
