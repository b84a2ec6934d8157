"""What `korch optimize` and `korch explain` print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from korch.errors import InvalidInput
from korch.ir.types import shape_text

if TYPE_CHECKING:
    from korch.pipeline import Summary


def summary_text(summary: Summary, *, titled: bool = False) -> str:
    """The figures of one plan in four lines, after one that says what it is for."""
    s = summary
    gap = f"{100 * s.gap:.2f} %"
    shapes = ", ".join(f"{name} {shape_text(shape)}" for name, shape in s.inputs.items())
    return "\n".join(
        [
            *([f"plan for {shapes or 'no inputs'} on {s.target}"] if titled else []),
            f"{s.operators} operators -> {s.primitives} primitives -> {s.candidates} candidates "
            f"({s.distinct} distinct, {s.measured} measured) -> {s.kernels} kernels",
            f"plan {milliseconds(s.objective_us)}, proven at least {milliseconds(s.bound_us)} (gap {gap})",
            f"greedy fusion {milliseconds(s.greedy_us)}, one kernel per operator {milliseconds(s.per_operator_us)}",
            f"took {s.seconds:.1f} s",
        ]
    )


def milliseconds(us: float | None) -> str:
    """Microseconds for people, as milliseconds where they are many."""
    if us is None:
        return "unknown (a kernel of it could not be made)"
    return f"{us / 1e3:.3f} ms" if us >= 100 else f"{us:.3f} us"


def plan_text(manifest: Mapping[str, Any]) -> str:
    """The plans of an artifact: each kernel, what it computes, its measured cost, and the certificate."""
    lines: list[str] = []
    for plan in manifest["plans"]:
        lines += [plan_title(manifest, plan), _table(plan["kernels"]), *certificate_lines(plan["certificate"])]
    return "\n".join(lines)


def plan_title(manifest: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """What one plan is for: shapes, target and threads."""
    inputs = zip(manifest["inputs"], plan["inputs"], strict=True)
    shapes = ", ".join(f"{i['name']} {shape_text(shape)}" for i, shape in inputs)
    return f"plan for {shapes or 'no inputs'} on {plan['target']}, {plan['threads']} threads"


def _table(kernels: list[Mapping[str, Any]]) -> str:
    total = sum(k["cost_us"] for k in kernels)
    rows = [f"{'kernel':<12}{'us':>10}{'share':>8}  {'implementation':<28} operators"]
    for k in kernels:
        share = f"{100 * k['cost_us'] / (total or 1.0):.1f}%"
        rows.append(f"{k['name']:<12}{k['cost_us']:>10.1f}{share:>8}  {k['family']:<28} {operators_text(k)}")
    rows.append(f"{'total':<12}{total:>10.1f}")
    return "\n".join(rows)


def operators_text(kernel: Mapping[str, Any], most: int = 6) -> str:
    """The model's operators that a kernel takes part in, by name."""
    operators = list(kernel["operators"])
    more = f" and {len(operators) - most} more" if len(operators) > most else ""
    return ", ".join(operators[:most]) + more


def certificate_lines(c: Mapping[str, Any]) -> list[str]:
    """What is proven about a plan, and the baselines beside it."""
    return [
        f"certificate: objective {c['objective_us']:.1f} us, bound {c['bound_us']:.1f} us, gap {100 * c['gap']:.2f} %; "
        f"{c['candidates']} candidates, {c['distinct']} distinct, {c['measured']} of them measured",
        f"beside it: greedy fusion {milliseconds(c['greedy_us'])}, "
        f"one kernel per operator {milliseconds(c['per_operator_us'])}",
        "optimal over the enumerated candidates, the implementations tried and their isolated costs, up to the gap; "
        f"caps: {', '.join(f'{k} {v}' for k, v in c['caps'].items())}",
    ]


def find_kernel(manifest: Mapping[str, Any], sources: Mapping[str, str], name: str) -> dict[str, Any]:
    """A kernel's entry in the manifest and its C `source`. InvalidInput lists the names when none is so named."""
    names: list[str] = []
    for plan in manifest["plans"]:
        for k in plan["kernels"]:
            if k["name"] == name:
                return {**k, "source": function_text(sources[plan["source"]], name)}
            names.append(k["name"])
    known = ", ".join(dict.fromkeys(names)) or "none, the model needs no kernel"
    raise InvalidInput(f"no kernel is named {name!r}; the kernels are: {known}")


def kernel_text(kernel: Mapping[str, Any]) -> str:
    """What `find_kernel` found, for people."""
    head = f"{kernel['name']}: {kernel['family']}, {kernel['cost_us']:.1f} us"
    return f"{head}\noperators: {operators_text(kernel)}\n\n{kernel['fragment']}\n{kernel['source']}"


def function_text(source: str, name: str) -> str:
    """The part of a generated file that belongs to one kernel: what stands between its marks."""
    begin, end = f"/* begin {name} */", f"/* end {name} */"
    return source.partition(begin)[2].partition(end)[0].strip()
