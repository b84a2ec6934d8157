"""What `korch explain --rules` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def rules_text(title: str, rules: Sequence[Mapping[str, Any]]) -> str:
    """Each rule with its equation, where it fired, and where it refused and why."""
    fired = sum(rule["fired"]["count"] for rule in rules)
    lines = [f"{title}: {len(rules)} rules, fired {fired} times"]
    for rule in rules:
        lines += ["", f"{rule['rule']} ({rule['label']}): {rule['equation']}"]
        count = rule["fired"]["count"]
        lines.append(f"  fired {count} times: {_places(rule['fired'])}" if count else "  did not fire")
        lines += [f"  refused {r['count']} times, {r['reason']}: {_places(r)}" for r in rule["refused"]]
    return "\n".join(lines)


def _places(counted: Mapping[str, Any]) -> str:
    names = ", ".join(counted["where"])
    return names + (", ..." if counted["count"] > len(counted["where"]) else "")
