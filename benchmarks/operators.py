"""What of ONNX is supported, held against ONNX's own backend tests: `python -m benchmarks.operators [--generated]`.

Every case that is supported is evaluated by the primitives' NumPy meaning; with `--generated` it also runs through the
whole pipeline, that is, through generated code (long: an hour on two cores; it goes on where it was stopped, unless
`--afresh`). Writes `benchmarks/results/operators.json` (the outcome of each case) and from it `docs/operators.md`.
Exit code 1 when a case fails.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import defs

from benchmarks.onnx_suites import SUITES, Case, Refused, Taken, batches, difference, failures, load_cases, take
from korch.fission import fission
from korch.fission.operators.contrib import CONTRIB
from korch.importers.attributes import element_name, graphs_of
from korch.importers.onnx import import_onnx
from korch.ir.evaluate import evaluate

RESULTS = Path(__file__).parent / "results" / "operators.json"
PAGE = Path(__file__).parents[1] / "docs" / "operators.md"

OUTCOMES = ("passed", "refused", "failed")

EXCLUDED = (
    ("training", re.compile(r"training|Gradient")),
    ("strings", re.compile(r"\bstring\b")),
    ("sequences, maps and optional values", re.compile(r"\b(sequence|map|optional)\b|Sequence")),
    ("images of any size", re.compile("ImageDecoder")),
)
"""What is out of scope, and how its refusals are told; the first that matches counts."""

Outcome = dict[str, Any]


def outcome_of(case: Case) -> Outcome:
    """What becomes of a case by the primitives' NumPy meaning."""
    facts = {"operators": sorted(operators_of(case)), "dtypes": sorted(dtypes_of(case))}
    found = take(case)
    if isinstance(found, Refused):
        return {"outcome": "refused", "reason": found.reason, **facts}
    wrong = difference(evaluate(fission(import_onnx(found.model)), found.inputs), case)
    if wrong:
        return {"outcome": "failed", "reason": wrong, **facts}
    return {"outcome": "passed", "generated": False, **facts}


def generate(suite: str, outcomes: dict[str, Outcome]) -> Iterator[None]:
    """Runs what has not run yet through generated code, and records it after each batch."""
    waiting = [c for c in load_cases(suite) if outcomes[c.name].get("generated") is False]
    taken = [t for t in map(take, waiting) if isinstance(t, Taken)]
    for batch in batches(taken):
        wrong = failures(batch)
        for t in batch:
            if t.case.name in wrong:
                outcomes[t.case.name] |= {"outcome": "failed", "reason": wrong[t.case.name]}
            outcomes[t.case.name]["generated"] = True
        yield


def operators_of(case: Case) -> set[str]:
    """The operators that the model's own nodes, those of bodies included, call."""
    found: set[str] = set()
    graphs = [case.model.graph]
    while graphs:
        for node in graphs.pop().node:
            found.add(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
            graphs.extend(graphs_of(node))
    return found - {"Constant"} or found


def dtypes_of(case: Case) -> set[str]:
    """The element types of the model's inputs and outputs, as ONNX names them."""
    values = [*case.model.graph.input, *case.model.graph.output]
    return {element_name(v.type.tensor_type.elem_type) for v in values if v.type.HasField("tensor_type")}


def excluded(outcome: Outcome) -> str:
    """The kind that is out of scope; empty for everything else."""
    if outcome["outcome"] != "refused":
        return ""
    return next((kind for kind, pattern in EXCLUDED if pattern.search(outcome["reason"])), "")


# --- the page


def page(results: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The page in Markdown."""
    onnx_version, newest = results["onnx"], defs.onnx_opset_version()
    suites = {s: results[s] for s in SUITES}
    return "\n".join(
        [
            "# Operators",
            "",
            f"What of ONNX is supported, held against the backend tests of onnx {onnx_version}. Every passed case gave",
            "the stored results when its primitives were evaluated with NumPy; the column *through generated code*",
            "counts those that also ran through the whole pipeline when that was last tried on all. A case that needs",
            "to know inputs beforehand (shapes, axes, bounds) had all its inputs but the first made constants.",
            "`python -m benchmarks.operators` writes this page.",
            "",
            f"Models of operator sets 1 to {newest} are taken; those before 7 are converted by onnx. Dtypes are all",
            "that NumPy or ml_dtypes can hold, other than complex ones and strings. Supported of `com.microsoft` are:",
            f"{', '.join(f.__name__ for f in CONTRIB)}.",
            "",
            *_totals(suites),
            "",
            *_exclusions(suites),
            "",
            "## By operator",
            "",
            "*Operator sets* are those in which the operator changed. *Tested dtypes* are those of inputs and outputs",
            "of passed cases. *Passed*, *refused* and *failed* count the node cases whose model calls the operator.",
            "",
            *_operators(suites["node"]),
            "",
        ]
    )


def _totals(suites: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    yield "| suite | cases | passed | refused | failed | passed of all | of those in scope | through generated code |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for suite, cases in suites.items():
        counts = Counter(c["outcome"] for c in cases.values())
        scope = sum(not excluded(c) for c in cases.values())
        numbers = " | ".join(str(counts[o]) for o in OUTCOMES)
        passed = counts["passed"]
        shares = f"{passed / len(cases):.1%} | {passed / max(1, scope):.1%}"
        generated = sum(c["outcome"] == "passed" and c["generated"] for c in cases.values())
        yield f"| {suite} | {len(cases)} | {numbers} | {shares} | {generated} |"


def _exclusions(suites: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    """Refused cases, by whether and why they are out of scope."""
    found = Counter((suite, excluded(c)) for suite, cases in suites.items() for c in cases.values())
    yield f"| out of scope | {' | '.join(suites)} |"
    yield f"|---|{'---:|' * len(suites)}"
    for kind, _ in EXCLUDED:
        yield f"| {kind} | {' | '.join(str(found[suite, kind]) for suite in suites)} |"


def _operators(cases: Mapping[str, Outcome]) -> Iterator[str]:
    yield "| operator | operator sets | tested dtypes | passed | refused | failed | refused because |"
    yield "|---|---|---|---:|---:|---:|---|"
    for name in _names(cases):
        own = [c for c in cases.values() if name in c["operators"]]
        counts = Counter(c["outcome"] for c in own)
        dtypes = sorted({d for c in own if c["outcome"] == "passed" for d in c["dtypes"]})
        numbers = " | ".join(str(counts[o]) for o in OUTCOMES)
        yield f"| {name} | {_versions(name)} | {' '.join(dtypes)} | {numbers} | {_reasons(name, own)} |"


def _names(cases: Mapping[str, Outcome]) -> list[str]:
    """All operators of the standard's newest operator sets, and those that the cases use."""
    schemas = defs.get_all_schemas()
    standard = {s.name for s in schemas if s.domain == "" and not s.deprecated}
    return sorted(standard | {name for c in cases.values() for name in c["operators"]}, key=lambda n: ("." in n, n))


def _versions(name: str) -> str:
    domain, _, op_type = name.rpartition(".")
    found = {s.since_version for s in defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, op_type)}
    return ", ".join(map(str, sorted(found)))


def _reasons(name: str, cases: Sequence[Outcome]) -> str:
    """Why some are refused, without what differs between nodes."""
    texts = [excluded(c) or _short(name, c["reason"]) for c in cases if c["outcome"] == "refused"]
    return "; ".join(dict.fromkeys(texts))


def _short(name: str, reason: str) -> str:
    """What the reason says of this operator."""
    name = name.rpartition(".")[2]
    if match := re.search(re.escape(name) + r" in \d+ nodes? \([^)]*\): ([^(;]*)", reason):
        return match.group(1).strip()
    if re.search(rf"computed by {name} operator", reason):
        return "the shape of its outputs depends on what is computed at run time"
    if match := re.search(rf"\b{name} (?:operator|node) '[^']*':? ([^;]*)", reason):
        return match.group(1).strip()
    return "another operator of the model is refused"


def write(results: Mapping[str, Any]) -> None:
    lines = [f' "onnx": {json.dumps(results["onnx"])}']
    for suite in SUITES:
        cases = ",\n".join(f"  {json.dumps(name)}: {json.dumps(c)}" for name, c in results[suite].items())
        lines.append(f' "{suite}": {{\n{cases}\n }}')
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    PAGE.write_text(page(results))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--generated", action="store_true", help="also through generated code")
    parser.add_argument("--afresh", action="store_true", help="forget what ran through generated code before")
    arguments = parser.parse_args()
    before: dict[str, Any] = {} if arguments.afresh or not RESULTS.exists() else json.loads(RESULTS.read_text())
    results: dict[str, Any] = {"onnx": onnx.__version__}
    for suite in SUITES:
        results[suite] = {case.name: outcome_of(case) for case in load_cases(suite)}
        for name, outcome in results[suite].items():
            if "generated" in outcome:
                outcome["generated"] = bool(before.get(suite, {}).get(name, {}).get("generated"))
    write(results)
    for suite in SUITES if arguments.generated else ():
        for _ in generate(suite, results[suite]):
            write(results)
    failed = [(s, n, c["reason"]) for s in SUITES for n, c in results[s].items() if c["outcome"] == "failed"]
    for suite, name, reason in failed:
        print(f"{suite} {name}: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
