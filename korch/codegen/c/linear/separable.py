"""Depthwise convolution followed by a 1x1 convolution in one kernel.

A task computes some rows of the depthwise result, with whatever is fused behind it, into its scratch, and multiplies
them by the second weights from there: the value between never leaves the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from korch.codegen.c.emit import Memory, NestError
from korch.codegen.c.linear.conv import convolution_source, pack_weights
from korch.codegen.c.linear.depthwise import rows_in_place
from korch.codegen.c.linear.geometry import Conv
from korch.codegen.c.linear.problem import Arguments, Constant, Problem, constant_value, part_of
from korch.codegen.c.linear.split import Panels, tile_choices, use_half
from korch.codegen.kernel import Kernel, Packed
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.primitives import TABLE

CHOICES = 2


@dataclass(frozen=True)
class Separable:
    """The two convolutions of images."""

    first: Definition
    second: Definition

    @staticmethod
    def of(graph: Graph, definitions: Sequence[Definition]) -> Separable | str:
        """The two, or why these definitions are no such pair."""
        pair = [d for d in definitions if TABLE[d.primitive].kind == "linear"]
        if [d.primitive for d in pair] != ["conv", "conv"]:
            return "two linear primitives"
        first, second = sorted(pair, key=lambda d: d.int("groups") == 1)
        x, w = (graph.types[v].shape for v in first.inputs)
        k = graph.types[second.inputs[1]].shape
        if len(x) != 4 or w[1] != 1 or w[0] != x[1] or first.int("groups") != x[1] or x[1] == 1:
            return "two linear primitives, the first no depthwise convolution"
        if k[2:] != (1, 1) or second.int("groups") != 1 or {*second.ints("strides")} != {1} or any(second.ints("pads")):
            return "two linear primitives, the second no 1x1 convolution"
        between, after, beside = {first.outputs[0]}, {second.outputs[0]}, set[str]()
        for d in definitions:
            kind, out = TABLE[d.primitive].kind, d.outputs[0]
            if d is first or d is second:
                continue
            if not after.isdisjoint(d.inputs):
                if kind != "elementwise" and d.primitive not in ("reshape", "transpose"):
                    return f"{d.primitive} after two linear primitives"
                after.add(out)
            elif not between.isdisjoint(d.inputs):
                if kind != "elementwise":
                    return f"{d.primitive} between two linear primitives"
                between.add(out)
            elif kind not in ("broadcast", "layout", "elementwise"):
                return f"{d.primitive} beside two linear primitives"
            else:
                beside.add(out)
        if first.inputs[0] in beside or second.inputs[0] not in between:
            return "two linear primitives with something computed before them"
        if any(v in between for v in graph.output_values):
            return "an output between two linear primitives"
        return Separable(first, second)


def separable_kernels(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """Kernels for a fragment that is such a pair, the most promising tile first, or why there are none."""
    graph = fragment.graph
    parts = Separable.of(graph, graph.definitions)
    if isinstance(parts, str):
        return parts
    middle = parts.second.inputs[0]
    one = Problem.of(part_of(fragment, (middle,), ()), target)
    two = Problem.of(part_of(fragment, graph.output_values, (middle,)), target)
    if isinstance(one, str) or isinstance(two, str):
        return one if isinstance(one, str) else str(two)
    g, row = Conv.of(one), Conv.of(two)
    weights = [constant_value(fragment, d.inputs[1]) for d in (parts.first, parts.second)]
    if isinstance(g, str) or isinstance(row, str) or weights[0] is None or weights[1] is None:
        return "convolutions whose weights are not constant"
    if g.rows < 2:
        return "a convolution of one row"
    h = replace(row, height=g.rows, width=g.length, rows=g.rows, length=g.length, grid=None)
    tiles = tile_choices(h.outputs, h.length, h.channels, h.channels, target)[:CHOICES]
    try:
        found = [_kernel(one, two, g, h, middle, weights[0], weights[1], tile) for tile in tiles]
    except NestError as error:
        return str(error)
    kernels = tuple(k for k in found if k is not None)
    return kernels or "the input of the depthwise convolution cannot be read where it lies"


def _kernel(
    one: Problem, two: Problem, g: Conv, h: Conv, middle: str, first: Constant, second: Constant, tile: tuple[int, int]
) -> Kernel | None:
    rows, vectors = tile
    target, line = one.target, h.length * h.channels
    arguments = Arguments()
    arguments.inner[middle] = Memory(f"(char *)(scratch - lo * {line})", (0, 1, line, h.channels))
    made = rows_in_place(one, arguments, g, first)
    if made is None:
        return None
    panels = Panels(h.outputs, target.lanes(), vectors, use_half(h.outputs, target))
    key = f"conv {panels.key} groups=1: {second.text}"
    packed = arguments.pack(Packed(second.weights, key, partial(pack_weights, panels, 1, second)))
    source, shared, private = convolution_source(two, arguments, h, packed, None, panels, rows, made)
    parameters = (("mr", rows), ("nv", vectors))
    family = "depthwise and 1x1"
    return Kernel(family, source, tuple(arguments.arguments), parameters, tuple(arguments.packed), shared, private)
