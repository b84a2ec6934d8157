"""Fused loop nests: the general generator of the C backend.

Any fragment of elementwise, broadcast, reduce, layout, gather and (computed naively) linear primitives becomes one
kernel: `korch.codegen.c.nest_plan` finds the loops, `nest_schedule` their order and tasks, `nest_code` the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import DType, TensorType


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
    plain = _without_empty_reductions(fragment.graph)
    separated = _with_separate_windows(plain)
    if separated is not plain:
        yield separated, kept_values(separated, fragment.layouts)
    kept = kept_values(plain, fragment.layouts)
    yield plain, kept
    if kept:
        yield plain, frozenset()


def _with_separate_windows(graph: Graph) -> Graph:
    """Windows over several dimensions as one after the other, where that saves at least half of the work."""
    types = dict(graph.types)
    definitions: list[Definition] = []
    for d in graph.definitions:
        t = types[d.inputs[0]]
        if not d.primitive.startswith("window") or not _separates(d, t):
            definitions.append(d)
            continue
        value, shape = d.inputs[0], t.shape
        names = ("window", "strides", "dilations", "pads", "shape")
        columns = [d.ints(name) for name in names]
        wide = [k for k, w in enumerate(d.ints("window")) if w > 1 or columns[1][k] > 1]
        wide.sort(key=lambda k: (-columns[1][k], -k))
        rest = [k for k in range(len(shape)) if k not in wide and (columns[3][k] or columns[4][k] != shape[k])]
        for k in wide:
            here = {k, *rest} if k == wide[-1] else {k}
            last = k == wide[-1]
            shape = tuple(columns[4][i] if i in here else n for i, n in enumerate(shape))
            neutral_columns = ((1,) * len(shape), (1,) * len(shape), (1,) * len(shape), (0,) * len(shape), shape)
            fields = [
                tuple(own[i] if i in here else other[i] for i in range(len(shape)))
                for own, other in zip(columns, neutral_columns, strict=True)
            ]
            result = d.outputs[0] if last else f"{d.outputs[0]}_{k}"
            types[result] = TensorType(t.dtype, shape)
            attributes = tuple(sorted(zip(names, fields, strict=True)))
            definitions.append(Definition(d.primitive, (value,), (result,), attributes))
            value = result
    if len(definitions) == len(graph.definitions):
        return graph
    return replace(graph, types=types, definitions=tuple(definitions))


def _separates(d: Definition, t: TensorType) -> bool:
    window = d.ints("window")
    rounds = d.primitive == "window_sum" and t.dtype in (DType.FLOAT16, DType.BFLOAT16)
    return not rounds and math.prod(window) >= 2 * sum(w for w in window if w > 1) > 0


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
