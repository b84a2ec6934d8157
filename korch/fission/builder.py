"""Building a primitive graph: constants are evaluated and equal definitions are shared while it grows.

A `Builder` works on value names; `korch.fission.simplify` puts the folds of each primitive above it, and
`korch.fission.tensor` the handles with which operators are written as formulas.

Constants may be huge and repeat one element (strides of 0). Evaluation keeps them so: what is equal along an axis
is computed once along it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.primitives import TABLE
from korch.ir.types import TensorType

EVALUATED_ELEMENTS = 1 << 26
"""What depends on constants alone is computed while building, unless this many elements would be written."""

SHARED_BYTES = 1 << 16
"""Constants up to this size are compared by content, so that equal ones become one value."""

COMMUTATIVE = frozenset({"add", "mul", "eq", "and", "or", "xor"})
"""Primitives for which the order of the two inputs cannot be seen (of two NaNs `max` returns either)."""

VIEWS = frozenset({"reshape", "transpose", "slice", "take", "broadcast"})
"""Primitives that only choose elements: of a constant that repeats one element they repeat it again."""


class Builder:
    """A growing graph. Values are named by strings that mean nothing; `finish` renames them densely."""

    def __init__(self, declared: Mapping[str, TensorType] | None = None) -> None:
        self.declared = declared or {}
        """What the model states of its own values, under the model's names."""
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.origin = ""
        """The operator to which the definitions made from now on are attributed."""
        self._inputs: list[tuple[str, str]] = []
        self._definitions: list[Definition] = []
        self._producers: dict[str, Definition] = {}
        self._shared: dict[Hashable, tuple[str, ...]] = {}
        self._spread: dict[str, np.ndarray] = {}

    def input(self, name: str, type: TensorType) -> str:
        """A new input of the graph, under its interface name."""
        value = self._new(type)
        self._inputs.append((name, value))
        return value

    def constant(self, array: np.ndarray) -> str:
        """A constant; small equal ones are one value. The array must not change any more."""
        small = collapse(array)
        key: Hashable = None
        if small.nbytes <= SHARED_BYTES:
            key = ("constant", str(TensorType.of(array)), small.shape, small.tobytes())
            if key in self._shared:
                return self._shared[key][0]
        value = self._new(TensorType.of(array))
        self.constants[value] = array
        if key is not None:
            self._shared[key] = (value,)
        return value

    def known(self, value: str) -> np.ndarray | None:
        """The contents of a constant, or of a constant that is broadcast (a view); None for anything else."""
        found = self.constants.get(value)
        return self._spread.get(value) if found is None else found

    def producer(self, value: str) -> Definition | None:
        """The definition of a value; None for inputs and constants."""
        return self._producers.get(value)

    def emit(
        self, primitive: str, inputs: Sequence[str], attributes: Mapping[str, Attribute] | None = None
    ) -> tuple[str, ...]:
        """The outputs of a primitive: evaluated, found among the existing values, or newly defined."""
        named = tuple(sorted((attributes or {}).items()))
        order = sorted(inputs) if primitive in COMMUTATIVE else inputs
        # repr tells 1, 1.0 and True, and 0.0 and -0.0 apart, which as keys are equal.
        key = (primitive, tuple(order), repr(named))
        if key in self._shared:
            return self._shared[key]
        types = TABLE[primitive].infer(tuple(self.types[v] for v in inputs), dict(named))
        outputs = self._evaluate(primitive, inputs, dict(named), types)
        if outputs is None:
            outputs = self._define(primitive, tuple(inputs), named, types)
        self._shared[key] = outputs
        return outputs

    def finish(self, outputs: Iterable[tuple[str, str]]) -> Graph:
        """The graph that computes `outputs`, pairs of an interface name and a value. What they do not need is gone."""
        outputs = tuple(outputs)
        live = {value for _, value in outputs}
        kept: list[Definition] = []
        for definition in reversed(self._definitions):
            if live.intersection(definition.outputs):
                live.update(definition.inputs, definition.outputs)
                kept.append(definition)
        kept.reverse()
        values = [value for _, value in self._inputs]
        values += [value for value in self.constants if value in live]
        values += [value for definition in kept for value in definition.outputs]
        names = {value: f"v{i}" for i, value in enumerate(values)}
        return Graph(
            types={names[v]: self.types[v] for v in values},
            inputs=tuple((name, names[v]) for name, v in self._inputs),
            outputs=tuple((name, names[v]) for name, v in outputs),
            definitions=tuple(
                Definition(
                    d.primitive,
                    tuple(names[v] for v in d.inputs),
                    tuple(names[v] for v in d.outputs),
                    d.attributes,
                    d.origin,
                )
                for d in kept
            ),
            constants={names[v]: array for v, array in self.constants.items() if v in live},
        )

    def _new(self, type: TensorType) -> str:
        value = f"t{len(self.types)}"
        self.types[value] = type
        return value

    def _define(
        self,
        primitive: str,
        inputs: tuple[str, ...],
        attributes: tuple[tuple[str, Attribute], ...],
        types: tuple[TensorType, ...],
    ) -> tuple[str, ...]:
        outputs = tuple(self._new(t) for t in types)
        definition = Definition(primitive, inputs, outputs, attributes, self.origin)
        self._definitions.append(definition)
        for value in outputs:
            self._producers[value] = definition
        return outputs

    def _evaluate(
        self,
        primitive: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute],
        types: tuple[TensorType, ...],
    ) -> tuple[str, ...] | None:
        arrays = [array for v in inputs if (array := self.known(v)) is not None]
        if len(arrays) < len(inputs):
            return None
        if primitive == "broadcast" and types[0].elements > arrays[0].size:
            # Kept as a definition: the larger constant would cost memory and traffic. Users see its contents.
            outputs = self._define(primitive, tuple(inputs), tuple(sorted(attributes.items())), types)
            self._spread[outputs[0]] = evaluate_broadcast(arrays[0], attributes)
            return outputs
        results = evaluate(primitive, arrays, attributes, types)
        if results is None:
            return None
        if all(v in self._spread for v in inputs):
            return tuple(self.spread(array) for array in results)
        return tuple(self.constant(array) for array in results)

    def spread(self, array: np.ndarray) -> str:
        """A constant that is stored without its repetition and broadcast to its shape."""
        small = collapse(array)
        axes = tuple(d for d in range(small.ndim) if small.shape[d] != 1)
        if small.size == array.size:
            return self.constant(array)
        stored = self.constant(small.reshape([small.shape[d] for d in axes]))
        return self.emit("broadcast", (stored,), {"axes": axes, "shape": tuple(array.shape)})[0]


def collapse(array: np.ndarray) -> np.ndarray:
    """The array with every dimension along which it repeats itself in memory (stride 0) cut to size 1."""
    repeats = (n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides, strict=True))
    return array[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)]


def evaluate_broadcast(array: np.ndarray, attributes: Mapping[str, Attribute]) -> np.ndarray:
    """The broadcast primitive as a view of `array`."""
    shape, axes = attributes["shape"], attributes["axes"]
    assert isinstance(shape, tuple) and isinstance(axes, tuple)
    aligned = [1] * len(shape)
    for axis, n in zip(axes, array.shape, strict=True):
        assert isinstance(axis, int)
        aligned[axis] = n
    return np.broadcast_to(array.reshape(aligned), shape)  # type: ignore[arg-type]


def evaluate(
    primitive: str,
    arrays: Sequence[np.ndarray],
    attributes: Mapping[str, Attribute],
    types: tuple[TensorType, ...],
) -> tuple[np.ndarray, ...] | None:
    """The primitive's results on known arrays; None when they are too large to be worth it."""
    row, shape = TABLE[primitive], types[0].shape
    if primitive in VIEWS and types[0].elements and arrays[0].size and collapse(arrays[0]).size == 1:
        return (np.broadcast_to(collapse(arrays[0]).reshape(()), shape),)
    if row.kind == "elementwise":
        small = collapse_together(arrays)
        if math.prod(small[0].shape) > EVALUATED_ELEMENTS:
            return None
        with np.errstate(all="ignore"):
            return tuple(np.broadcast_to(result, shape) for result in row.numpy(small, attributes))
    if primitive not in ("reshape", "transpose", "slice") and sum(t.elements for t in types) > EVALUATED_ELEMENTS:
        return None
    with np.errstate(all="ignore"):
        return tuple(row.numpy(arrays, attributes))


def collapse_together(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays of one shape, cut to size 1 along each dimension along which all of them repeat themselves."""
    cut = tuple(
        slice(0, 1) if n > 1 and all(a.strides[d] == 0 for a in arrays) else slice(None)
        for d, n in enumerate(arrays[0].shape)
    )
    return [a[cut] for a in arrays]
