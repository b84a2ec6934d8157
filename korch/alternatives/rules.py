"""All rules, in the order in which they are tried on a definition."""

from __future__ import annotations

from korch.alternatives.folding import FOLDING
from korch.alternatives.functions import FUNCTIONS
from korch.alternatives.layout import LAYOUT
from korch.alternatives.merging import MERGING
from korch.alternatives.resampling import RESAMPLING
from korch.alternatives.rule import EXACT, Rule

RULES: tuple[Rule, ...] = (*FUNCTIONS, *LAYOUT, *FOLDING, *RESAMPLING, *MERGING)


def rules_for(numerics: str) -> tuple[Rule, ...]:
    """`strict` takes only exact rules."""
    return tuple(r for r in RULES if numerics != "strict" or r.label == EXACT)
