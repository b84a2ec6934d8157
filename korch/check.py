"""`korch check` as a function: what a model holds and whether it is supported. Nothing is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from korch.errors import UnsupportedModel
from korch.fission.fission import Refusal, unsupported
from korch.importers.binding import bind_inputs
from korch.importers.onnx import ModelSummary, describe_onnx, import_onnx, load_model


@dataclass(frozen=True)
class Check:
    """What was found. `problem` says why the operators could not be looked at one by one, if they could not: a
    dimension is unbound (`bound` is false then) or depends on data.

    `remaining` counts the operators that are left after constant folding, `unsupported` those refused among them.
    """

    summary: ModelSummary
    bound: bool
    remaining: int = 0
    unsupported: tuple[Refusal, ...] = ()
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether `korch optimize` takes the model as it stands."""
        return not self.unsupported and self.problem is None

    @property
    def refused(self) -> bool:
        """Whether no shapes given to its inputs could make it supported."""
        return self.bound and not self.ok

    def json(self) -> dict[str, object]:
        s = self.summary
        return {
            "ok": self.ok,
            "opsets": dict(s.opsets),
            "operators": dict(s.operators),
            "inputs": dict(s.inputs),
            "outputs": dict(s.outputs),
            "unbound": {name: None if dims is None else list(dims) for name, dims in s.unbound.items()},
            "parameters": s.parameters,
            "parameter_bytes": s.parameter_bytes,
            "remaining_operators": self.remaining,
            "unsupported": [
                {"operator": r.op_type, "domain": r.domain, "nodes": list(r.nodes), "reason": r.reason}
                for r in self.unsupported
            ],
            "problem": self.problem,
        }

    def text(self) -> str:
        s = self.summary
        lines = [
            "opset: " + ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in s.opsets.items()),
            "inputs: " + (", ".join(f"{name} {type_}" for name, type_ in s.inputs.items()) or "none"),
            "outputs: " + ", ".join(f"{name} {type_}" for name, type_ in s.outputs.items()),
            "operators: " + (", ".join(f"{op} {count}" for op, count in s.operators.items()) or "none"),
            f"parameters: {s.parameters} ({s.parameter_bytes / 2**20:.1f} MiB)",
        ]
        if s.unbound:
            unbound = (f"{name} ({'rank' if dims is None else ', '.join(dims)})" for name, dims in s.unbound.items())
            lines.append("unbound in the model: " + ", ".join(unbound))
        lines += [self.problem] if self.problem else []
        lines += [f"not supported: {r}" for r in self.unsupported]
        if self.ok:
            lines.append(f"supported: all {self.remaining} operators that remain after constant folding")
        return "\n".join(lines)


def check_model(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> Check:
    """Reads and, where all dimensions are bound, imports the model.

    InvalidModel when it is no valid model; InvalidInput when `shapes` does not fit it.
    """
    proto = load_model(model)
    summary = describe_onnx(proto)
    try:
        bind_inputs(proto.graph, shapes)
    except UnsupportedModel as error:
        return Check(summary, bound=False, problem=str(error))
    try:
        operators = import_onnx(proto, shapes)
    except UnsupportedModel as error:
        return Check(summary, bound=True, problem=str(error))
    return Check(summary, True, len(operators.operators), tuple(unsupported(operators)))
