"""What the rules did on one model, for the reader: where each fired, and where it refused and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from korch.alternatives.rule import Firing, Rule

# So many places are named for each rule and reason; all are counted.
_NAMED = 4


def summary_of(rules: Sequence[Rule], firings: Iterable[Firing]) -> list[dict[str, Any]]:
    """One entry for each rule, in their order: `rule`, `label`, `equation`, `fired` and `refused`.

    `fired` has `count` and `where`: the first few operators of the model, by name. `refused` is a list of the same,
    each with its `reason`, the most frequent first; a reason that begins with "cap:" is a bound on growth.
    """
    places: dict[str, dict[str | None, list[str]]] = {rule.name: {} for rule in rules}
    for f in firings:
        places[f.rule].setdefault(f.reason, []).append(f.origin or f.value)
    return [_entry(rule, places[rule.name]) for rule in rules]


def _entry(rule: Rule, places: dict[str | None, list[str]]) -> dict[str, Any]:
    refused = sorted((item for item in places.items() if item[0] is not None), key=lambda item: -len(item[1]))
    return {
        "rule": rule.name,
        "label": rule.label,
        "equation": rule.equation,
        "fired": _counted(places.get(None, [])),
        "refused": [{"reason": reason, **_counted(where)} for reason, where in refused],
    }


def _counted(where: list[str]) -> dict[str, Any]:
    return {"count": len(where), "where": list(dict.fromkeys(where))[:_NAMED]}
