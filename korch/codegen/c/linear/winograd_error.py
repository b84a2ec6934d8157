"""How much accuracy Winograd's filtering loses on given weights, found by doing it in NumPy."""

from __future__ import annotations

import numpy as np

from korch.codegen.c.linear.winograd_transform import FAR, NEAR, transformed_weights

TILES, OUTPUTS = 16, 32  # sampled; the error is an average over tens of thousands of sums


def input_matrix(m: int) -> np.ndarray:
    """B' of the formula, float64 [m + 2, m + 2]: what `input_sums` computes."""
    if m == 2:
        return np.array([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    near, far = NEAR**2, FAR**2
    ends = [near * far, 0, -near - far, 0, 1]
    inner = [[0, -p * other, -other, p, 1, 0] for p, other in ((NEAR, far), (-NEAR, far), (FAR, near), (-FAR, near))]
    return np.array([[*ends, 0], *inner, [0, *ends]])


def output_matrix(m: int) -> np.ndarray:
    """A' of the formula, float64 [m, m + 2]: what `output_sums` computes."""
    points = [1.0, -1.0] if m == 2 else [NEAR, -NEAR, FAR, -FAR]
    last = -1.0 if m == 2 else 1.0
    return np.array([[k == 0, *(p**k for p in points), last * (k == m - 1)] for k in range(m)], dtype=np.float64)


def error_ratio(m: int, weights: np.ndarray) -> float:
    """The RMS error of F(m x m, 3x3) over that of the direct sum, both in float32 against float64.

    `weights` is [O, C, 3, 3]; at most `OUTPUTS` of the O are tried, with `TILES` tiles of normal inputs rectified, as
    activations are. 1 where both are exact; NaN and infinities in the weights are for the sums to carry: then 0.
    """
    rng = np.random.default_rng(0)
    chosen = weights[:: max(1, len(weights) // OUTPUTS)][:OUTPUTS].astype(np.float32)
    if not np.isfinite(chosen).all():
        return 0.0
    side, channels = m + 2, chosen.shape[1]
    tiles = np.maximum(rng.standard_normal((TILES, side, side, channels)), 0).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(tiles, (3, 3), axis=(1, 2)).reshape(-1, channels * 9)
    flat = chosen.reshape(len(chosen), -1).T
    exact = windows.astype(np.float64) @ flat.astype(np.float64)
    direct = windows @ flat
    into, back = input_matrix(m).astype(np.float32), output_matrix(m).astype(np.float32)
    moved = np.einsum("xa,tabc,yb->xytc", into, tiles, into, optimize=True)
    products = moved.reshape(side * side, TILES, channels) @ transformed_weights(m, chosen)
    shaped = products.reshape(side, side, TILES, len(chosen))
    found = np.einsum("px,xyto,qy->tpqo", back, shaped, back, optimize=True).reshape(exact.shape)
    own, theirs = (float(np.sqrt(np.mean(np.square(v - exact)))) for v in (found, direct))
    if theirs == 0.0:
        return 1.0 if own == 0.0 else np.inf
    return own / theirs
