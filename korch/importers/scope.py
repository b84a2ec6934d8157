"""What names mean where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from onnx import AttributeProto, GraphProto, TypeProto


@dataclass(frozen=True)
class Scope:
    """What names mean in one graph, branch, body or function call.

    - `names` maps the model's names to values (unique in the whole import), "" to an absent input of a function.
    - `outer` is the scope around a body; a function has none.
    - `arguments` are the attributes that a function was called with.
    - `prefix` is put before the names of values and operators: a function may be called often.
    - `declared` are the types that the model states, for operators that the standard does not know.
    """

    opsets: Mapping[str, int]
    names: dict[str, str] = field(default_factory=dict[str, str])
    outer: Scope | None = None
    arguments: Mapping[str, AttributeProto] | None = None
    prefix: str = ""
    declared: Mapping[str, TypeProto] = field(default_factory=dict[str, TypeProto])

    def value(self, name: str) -> str:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise KeyError(name)

    def inner(self, graph: GraphProto) -> Scope:
        """The scope of a body or branch."""
        return replace(self, names={}, outer=self, declared={v.name: v.type for v in graph.value_info})
