"""What `korch optimize` and `korch explain` print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from korch.errors import InvalidInput
from korch.pipeline import Summary


def summary_text(summary: Summary) -> str:
    """The figures of an optimization in four lines."""
    s = summary
    return "\n".join(
        [
            f"{s.operators} operators -> {s.primitives} primitives -> {s.candidates} candidates "
            f"({s.distinct} distinct, {s.measured} measured now) -> {s.kernels} kernels",
            f"plan {s.objective_us / 1e3:.3f} ms, proven at least {s.bound_us / 1e3:.3f} ms (gap {100 * s.gap:.2f} %)",
            f"greedy fusion {_ms(s.greedy_us)}, one kernel per operator {_ms(s.per_operator_us)}",
            f"took {s.seconds:.1f} s",
        ]
    )


def _ms(us: float | None) -> str:
    return "unknown (a kernel of it could not be made)" if us is None else f"{us / 1e3:.3f} ms"


def explain_plan(manifest: Mapping[str, Any]) -> str:
    """The plan of an artifact: each kernel, what it computes, its measured cost, and the certificate."""
    lines: list[str] = []
    for plan in manifest["plans"]:
        certificate: Mapping[str, Any] = plan["certificate"]
        shapes = ", ".join(
            f"{i['name']} {'x'.join(map(str, shape))}"
            for i, shape in zip(manifest["inputs"], plan["inputs"], strict=True)
        )
        lines.append(f"plan for {shapes or 'no inputs'} on {plan['target']}, {plan['threads']} threads")
        lines.append(_table(plan["kernels"]))
        lines.append(_certificate_text(certificate))
    return "\n".join(lines)


def _table(kernels: list[Mapping[str, Any]]) -> str:
    total = sum(k["cost_us"] for k in kernels) or 1.0
    rows = [f"{'kernel':<12}{'us':>10}{'share':>8}  {'implementation':<28} operators"]
    for k in kernels:
        operators = list(k["operators"])
        shown = ", ".join(operators[:6]) + (f" and {len(operators) - 6} more" if len(operators) > 6 else "")
        share = f"{100 * k['cost_us'] / total:.1f}%"
        rows.append(f"{k['name']:<12}{k['cost_us']:>10.1f}{share:>8}  {k['family']:<28} {shown}")
    rows.append(f"{'total':<12}{total:>10.1f}")
    return "\n".join(rows)


def _certificate_text(c: Mapping[str, Any]) -> str:
    return (
        f"certificate: objective {c['objective_us']:.1f} us, bound {c['bound_us']:.1f} us, gap {100 * c['gap']:.2f} %; "
        f"{c['candidates']} candidates, {c['distinct']} distinct, {c['measured']} of them measured\n"
        f"beside it: greedy fusion {_ms(c['greedy_us'])}, one kernel per operator {_ms(c['per_operator_us'])}\n"
        f"optimal over the enumerated candidates, the implementations tried and their isolated costs; "
        f"caps: {', '.join(f'{k} {v}' for k, v in c['caps'].items())}"
    )


def explain_kernel(manifest: Mapping[str, Any], sources: Mapping[str, str], name: str) -> str:
    """One kernel's fragment and its C source. InvalidInput lists the names when there is none of that name."""
    names: list[str] = []
    for plan in manifest["plans"]:
        for k in plan["kernels"]:
            names.append(k["name"])
            if k["name"] == name:
                source = _function_text(sources[plan["source"]], name)
                return f"{name}: {k['family']}, {k['cost_us']:.1f} us\n\n{k['fragment']}\n{source}"
    raise InvalidInput(f"no kernel {name!r}; the kernels are: {', '.join(dict.fromkeys(names))}")


def _function_text(source: str, name: str) -> str:
    """The part of a generated file that belongs to one kernel: what stands between its marks."""
    begin, end = f"/* begin {name} */", f"/* end {name} */"
    return source.partition(begin)[2].partition(end)[0].strip()
