"""The page that `korch explain --html` writes: one file, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from korch.report.text import certificate_lines, function_text, operators_text, plan_title

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { background: #3a7bd5; height: .7rem; min-width: 1px; }
.scale { width: 14rem; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: 12.5px; }
summary { cursor: pointer; }
"""
_PLANS = (("this plan", "objective_us"), ("greedy fusion", "greedy_us"), ("one kernel per operator", "per_operator_us"))


def explain_html(manifest: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """The plans of an artifact: costs beside the baselines', kernels with their shares, fragments and sources.

    `sources` maps the names of source sections to their text.
    """
    name = manifest["model"].get("name") or "model"
    body = "\n".join(_plan(manifest, plan, sources[plan["source"]]) for plan in manifest["plans"])
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}: plan</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(name)}</h1>\n{body}\n</body></html>\n"
    )


def _plan(manifest: Mapping[str, Any], plan: Mapping[str, Any], source: str) -> str:
    lines = "<br>\n".join(escape(line) for line in certificate_lines(plan["certificate"]))
    return "\n".join(
        [
            f"<h2>{escape(plan_title(manifest, plan))}</h2>",
            _comparison(plan["certificate"]),
            f"<p>{lines}</p>",
            _kernels(plan["kernels"], source),
        ]
    )


def _comparison(certificate: Mapping[str, Any]) -> str:
    """The plan's cost and the baselines', as bars."""
    known = [(label, certificate[key]) for label, key in _PLANS if certificate[key] is not None]
    most = max((us for _, us in known), default=0.0) or 1.0
    rows = [
        f'<tr><td>{label}</td><td class="number">{us / 1e3:.3f} ms</td><td>{_bar(us / most)}</td></tr>'
        for label, us in known
    ]
    return f"<table>{''.join(rows)}</table>"


def _kernels(kernels: list[Mapping[str, Any]], source: str) -> str:
    total = sum(k["cost_us"] for k in kernels) or 1.0
    most = max((k["cost_us"] for k in kernels), default=0.0) or 1.0
    head = '<th class="number">µs</th><th class="number">share</th><th></th><th>kernel</th>'
    return f"<table><tr>{head}</tr>{''.join(_kernel(k, source, total, most) for k in kernels)}</table>"


def _kernel(k: Mapping[str, Any], source: str, total: float, most: float) -> str:
    text = escape(f"{k['fragment']}\n{function_text(source, k['name'])}")
    operators = escape(operators_text(k))
    return (
        f'<tr><td class="number">{k["cost_us"]:.1f}</td><td class="number">{100 * k["cost_us"] / total:.1f} %</td>'
        f'<td class="scale">{_bar(k["cost_us"] / most)}</td><td><details><summary><b>{escape(k["name"])}</b> '
        f"{escape(k['family'])}: {operators}</summary><pre>{text}</pre></details></td></tr>"
    )


def _bar(share: float) -> str:
    return f'<div class="bar" style="width: {100 * share:.1f}%"></div>'
