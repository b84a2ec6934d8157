"""`korch check` as a function: what a model holds and whether it is supported. Nothing is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from korch.errors import UnsupportedModel
from korch.fission.fission import Refusal, unsupported
from korch.importers.onnx import ModelSummary, describe_onnx, import_onnx


@dataclass(frozen=True)
class Check:
    """`operators_left` and `unsupported` are known only when every dimension is bound (`bound`)."""

    summary: ModelSummary
    bound: bool
    operators_left: int
    unsupported: tuple[Refusal, ...]
    problem: str | None = None

    def json(self) -> dict[str, object]:
        s = self.summary
        return {
            "ok": self.bound and not self.unsupported and self.problem is None,
            "operators": dict(s.operators),
            "inputs": {name: str(text) for name, text in s.inputs.items()},
            "unbound": {name: list(dims) for name, dims in s.unbound.items()},
            "parameters": s.parameters,
            "bytes": s.bytes,
            "operators_left": self.operators_left,
            "unsupported": [
                {"operator": r.op_type, "domain": r.domain, "nodes": list(r.nodes), "reason": r.reason}
                for r in self.unsupported
            ],
            "problem": self.problem,
        }

    def text(self) -> str:
        s = self.summary
        lines = [
            "operators: "
            + ", ".join(f"{k} {n}" for k, n in sorted(s.operators.items(), key=lambda i: (-i[1], i[0]))),
            "inputs: " + ", ".join(f"{name} {text}" for name, text in s.inputs.items()),
            f"parameters: {s.parameters} ({s.bytes / 2**20:.1f} MiB)",
        ]
        if s.unbound:
            lines.append(
                "unbound: " + ", ".join(f"{n} ({', '.join(map(str, d))})" for n, d in s.unbound.items())
            )
        if self.problem:
            lines.append(self.problem)
        for r in self.unsupported:
            lines.append(f"unsupported: {r.op_type} x{len(r.nodes)} ({', '.join(r.nodes[:5])}): {r.reason}")
        if self.bound and not self.unsupported and self.problem is None:
            lines.append(f"supported: all {self.operators_left} operators that remain after constant folding")
        return "\n".join(lines)


def check_model(model: Path, shapes: Mapping[str, tuple[int, ...]]) -> Check:
    """Reads and, where all dimensions are bound, imports the model. InvalidModel when it is not a model."""
    summary = describe_onnx(model)
    unbound = {name for name in summary.unbound if name not in shapes}
    if unbound:
        return Check(summary, False, 0, ())
    try:
        operators = import_onnx(model, shapes)
    except UnsupportedModel as error:
        return Check(summary, True, 0, (), str(error))
    return Check(summary, True, len(operators.operators), tuple(unsupported(operators)))
