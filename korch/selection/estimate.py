"""Guesses at costs that are not measured yet, from the costs of similar structures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from korch.ir.fragment import Fragment
from korch.ir.primitives import TABLE
from korch.selection.program import Vector

_LEAST = 4  # measured structures of one family from which it speaks for itself


def estimated(
    bounds: Vector, costs: Vector, measured: NDArray[np.bool_], family: NDArray[np.int64], quantile: float
) -> Vector:
    """For each structure, its lower bound times how much longer than their bounds the measured ones of its family
    took: the given quantile of it (of all families together, where its own has too few)."""
    usable = measured & np.isfinite(costs) & (bounds > 0)
    ratio = np.ones(len(bounds))
    ratio[usable] = np.maximum(costs[usable] / bounds[usable], 1.0)
    if not usable.any():
        return bounds.copy()
    factor = np.full(len(bounds), np.quantile(ratio[usable], quantile))
    for f in np.unique(family[usable]):
        own = usable & (family == f)
        if own.sum() >= _LEAST:
            factor[family == f] = np.quantile(ratio[own], quantile)
    return bounds * factor


def family_of(fragment: Fragment) -> str:
    """Structures alike: the linear and window primitives among them, whether they reduce or move elements, and
    whether their inputs and outputs lie row-major, otherwise, or some each."""
    graph = fragment.graph
    kinds = {d.primitive: TABLE[d.primitive].kind for d in graph.definitions}
    named = sorted(p for p, kind in kinds.items() if kind in ("linear", "opaque", "gather") or "window" in p)
    rough = sorted({kind for kind in kinds.values() if kind in ("reduce", "layout")})
    placed = {
        fragment.layouts[v].is_row_major(graph.types[v].shape)
        for v in (*graph.input_values, *graph.output_values)
        if v not in fragment.weights and graph.types[v].rank > 1
    }
    layout = "mixed" if len(placed) > 1 else "row-major" if placed != {False} else "other"
    return " ".join((*named, *rough, layout))
