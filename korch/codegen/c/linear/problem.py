"""A fragment around one linear primitive: what is fused before it, what after it, and the kernel's arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from korch.codegen.c.emit import Memory
from korch.codegen.kernel import Argument, Packed
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition
from korch.ir.layout import Layout
from korch.ir.primitives import TABLE
from korch.ir.types import DType

# Sums are float32 for all of these; the narrow ones are converted when operands are packed or copied.
COMPUTED_IN_FLOAT32 = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
FUSED = ("elementwise", "broadcast", "layout")


@dataclass(frozen=True)
class Problem:
    """`linear` is the one linear definition; `after` are the values computed from its result."""

    fragment: Fragment
    target: Target
    linear: Definition
    after: frozenset[str]

    @staticmethod
    def of(fragment: Fragment, target: Target) -> Problem | str:
        """The problem, or why the fast families do not take the fragment."""
        graph = fragment.graph
        linear = [d for d in graph.definitions if TABLE[d.primitive].kind == "linear"]
        if len(linear) != 1:
            return f"it has {len(linear)} linear primitives"
        result = linear[0].outputs[0]
        types = [graph.types[v] for v in (*linear[0].inputs, result)]
        if any(t.dtype not in COMPUTED_IN_FLOAT32 for t in types):
            return f"{linear[0].primitive} of {types[0].dtype.value}"
        if any(t.elements == 0 for t in types):
            return "an empty tensor"
        after = {result}
        for d in graph.definitions:
            if d is linear[0]:
                continue
            if TABLE[d.primitive].kind not in FUSED:
                return f"{d.primitive} beside a linear primitive"
            if not after.isdisjoint(d.inputs):
                after.update(d.outputs)
        for v in graph.output_values:
            if v not in after:
                return f"the output {v} does not depend on the linear primitive"
        return Problem(fragment, target, linear[0], frozenset(after))

    @property
    def result(self) -> str:
        return self.linear.outputs[0]

    def shape(self, value: str) -> tuple[int, ...]:
        return self.fragment.graph.types[value].shape


def part_of(fragment: Fragment, outputs: Iterable[str], inputs: Iterable[str]) -> Fragment:
    """The part of a fragment that computes these values from its inputs and those given."""
    graph = fragment.graph
    makers = {v: d for d in graph.definitions for v in d.outputs if v not in inputs}
    needed: set[str] = set()
    waiting = list(outputs)
    while waiting:
        v = waiting.pop()
        if v not in needed:
            needed.add(v)
            waiting.extend(makers[v].inputs if v in makers else ())
    definitions = tuple(d for d in graph.definitions if d.outputs[0] in needed and d.outputs[0] in makers)
    read = tuple(v for v in (*graph.input_values, *inputs) if v in needed)
    made = replace(
        graph, inputs=tuple((v, v) for v in read), outputs=tuple((v, v) for v in outputs), definitions=definitions
    )
    layouts = {v: fragment.layouts.get(v, Layout.row_major(graph.types[v].shape)) for v in (*read, *outputs)}
    return Fragment(made, fragment.weights & set(read), layouts)


class Arguments:
    """A kernel's pointers, numbered as they are asked for."""

    def __init__(self) -> None:
        self.arguments: list[Argument] = []
        self.packed: list[Packed] = []
        self.inner: dict[str, Memory] = {}  # values that lie in a kernel's own memory

    def pointer(self, argument: Argument) -> str:
        """C text of type `char *`."""
        if argument not in self.arguments:
            self.arguments.append(argument)
        return f"p[{self.arguments.index(argument)}]"

    def memory(self, problem: Problem, value: str, kind: str = "input") -> Memory:
        """Where a fragment's input or output lies."""
        if value in self.inner:
            return self.inner[value]
        strides = problem.fragment.layouts[value].strides_of(problem.shape(value))
        return Memory(self.pointer(Argument(kind, value)), strides)

    def sources(self, problem: Problem, values: Iterable[str]) -> dict[str, Memory]:
        """The inputs that these values depend on, other than through the linear primitive."""
        graph = problem.fragment.graph
        definitions = {v: d for d in graph.definitions for v in d.outputs}
        found: dict[str, Memory] = {}
        open_values, seen = list(values), {problem.result}
        while open_values:
            value = open_values.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in definitions:
                open_values.extend(definitions[value].inputs)
            elif value in problem.fragment.layouts:
                found[value] = self.memory(problem, value)
        return found

    def pack(self, packed: Packed) -> str:
        """C text of type `char *`: the packed weights."""
        if packed not in self.packed:
            self.packed.append(packed)
        return self.pointer(Argument("packed", index=self.packed.index(packed)))


@dataclass(frozen=True)
class Constant:
    """A value that depends on weights and constants alone: `chain` computes it, from them and the `literals`."""

    value: str
    weights: tuple[str, ...]
    text: str
    chain: tuple[Definition, ...]
    literals: Mapping[str, np.ndarray]

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        """The value as float32, from an array for each weight."""
        known = {**self.literals, **dict(zip(self.weights, arrays, strict=True))}
        for d in self.chain:
            operands = [known[v] for v in d.inputs]
            known[d.outputs[0]] = TABLE[d.primitive].numpy(operands, dict(d.attributes))[0]
        return known[self.value].astype(np.float32)


def constant_value(fragment: Fragment, value: str) -> Constant | None:
    """How a value follows from the weights; None when it depends on anything else."""
    graph = fragment.graph
    definitions = {v: d for d in graph.definitions for v in d.outputs}
    weights: list[str] = []
    chain: list[Definition] = []

    def visit(v: str) -> bool:
        if v in definitions:
            if not all(visit(i) for i in definitions[v].inputs):
                return False
            if definitions[v] not in chain:
                chain.append(definitions[v])
        elif v in fragment.weights and v not in weights:
            weights.append(v)
        return v in definitions or v in fragment.weights or v in graph.constants

    if not visit(value) or not weights:
        return None
    names = {w: f"w{k}" for k, w in enumerate(weights)}
    for d in chain:
        names[d.outputs[0]] = f"t{len(names)}"

    def spell(v: str) -> str:
        return names[v] if v in names else graph.constants[v].tobytes().hex()

    text = "; ".join(f"{d.primitive}({', '.join(map(spell, d.inputs))}, {dict(d.attributes)})" for d in chain)
    literals = {v: graph.constants[v] for d in chain for v in d.inputs if v in graph.constants}
    return Constant(value, tuple(weights), text, tuple(chain), literals)
