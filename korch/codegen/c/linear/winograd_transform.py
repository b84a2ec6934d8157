"""The transforms of Winograd's minimal filtering F(m x m, 3x3), as matrices and as C statements.

    Y = A' [ (G g G') . (B' d B) ] A        (Lavin and Gray, 2016)

They evaluate polynomials at m + 1 points and at infinity: at 0, 1 and -1 for m = 2, and at 0, NEAR, -NEAR, FAR and
-FAR for m = 4. The usual points 1 and 2 have twice the error (relative RMS 2.3e-6 instead of 1.0e-6 for 128
channels); these are the best of the multiples of 1/16, and their powers are exact in float32. Points that come in
pairs of opposite sign share half of each sum.
"""

from __future__ import annotations

import numpy as np

NEAR, FAR = 11 / 16, 3 / 2

# A file has it once: k * a + b.
SCALED = (
    "static inline __attribute__((always_inline)) vf32 KERNEL_scaled(float k, vf32 a, vf32 b) "
    "{ return korch_fma_f32(korch_splat_f32(k), a, b); }"
)


def filters(m: int) -> np.ndarray:
    """G of the formula, float64 [m + 2, 3]; the constants that interpolation divides by are in it."""
    if m == 2:
        return np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]])
    near, far = NEAR**2, FAR**2
    scales = [1 / (2 * near * (near - far))] * 2 + [1 / (2 * far * (far - near))] * 2
    points = [NEAR, -NEAR, FAR, -FAR]
    rows = [[k, k * p, k * p * p] for k, p in zip(scales, points, strict=True)]
    return np.array([[1 / (near * far), 0, 0], *rows, [0, 0, 1]])


def transformed_weights(m: int, weights: np.ndarray) -> np.ndarray:
    """G g G' of weights [O, C, 3, 3], computed in float64: float32 [(m + 2)^2, C, O]."""
    g = filters(m)
    found = np.einsum("xa,ocab,yb->xyco", g, weights.astype(np.float64), g, optimize=True)
    return found.reshape((m + 2) ** 2, *found.shape[2:]).astype(np.float32)


def input_sums(m: int, d: list[str]) -> list[str]:
    """B' d for m + 2 vectors, as C expressions."""
    if m == 2:
        return [f"{d[0]} - {d[2]}", f"{d[1]} + {d[2]}", f"{d[2]} - {d[1]}", f"{d[1]} - {d[3]}"]
    near, far = NEAR**2, FAR**2
    even, odd = _scaled(-far, d[2], d[4]), _scaled(-far, d[1], d[3])
    even2, odd2 = _scaled(-near, d[2], d[4]), _scaled(-near, d[1], d[3])
    return [
        _scaled(near * far, d[0], _scaled(-near - far, d[2], d[4])),
        _scaled(NEAR, odd, even),
        _scaled(-NEAR, odd, even),
        _scaled(FAR, odd2, even2),
        _scaled(-FAR, odd2, even2),
        _scaled(near * far, d[1], _scaled(-near - far, d[3], d[5])),
    ]


def output_sums(m: int, d: list[str]) -> list[str]:
    """A' d for m + 2 vectors, as C expressions."""
    if m == 2:
        return [f"{d[0]} + {d[1]} + {d[2]}", f"{d[1]} - {d[2]} - {d[3]}"]
    sum1, sum2 = f"({d[1]} + {d[2]})", f"({d[3]} + {d[4]})"
    odd1, odd2 = f"({d[1]} - {d[2]})", f"({d[3]} - {d[4]})"
    return [
        f"{d[0]} + {sum1} + {sum2}",
        _scaled(NEAR, odd1, f"{FAR!r}f * {odd2}"),
        _scaled(NEAR**2, sum1, f"{FAR**2!r}f * {sum2}"),
        _scaled(NEAR**3, odd1, _scaled(FAR**3, odd2, d[5])),
    ]


def _scaled(k: float, a: str, b: str) -> str:
    return f"KERNEL_scaled({k!r}f, {a}, {b})"


def input_statements(m: int, load: str, store: str) -> list[str]:
    """C statements that transform one tile for one vector of channels.

    `load` is the expression of the vector at `{row}`, `{column}`; `store` the statement that keeps `{value}` as
    position `{at}` of the transformed tile.
    """
    side = m + 2
    lines: list[str] = []
    for column in range(side):
        d = [f"d{row}_{column}" for row in range(side)]
        lines += [f"const vf32 {d[row]} = {load.format(row=row, column=column)};" for row in range(side)]
        lines += [f"const vf32 e{row}_{column} = {text};" for row, text in enumerate(input_sums(m, d))]
    for row in range(side):
        found = input_sums(m, [f"e{row}_{column}" for column in range(side)])
        lines += [store.format(at=row * side + column, value=text) for column, text in enumerate(found)]
    return lines


def output_statements(m: int, load: str, store: str) -> list[str]:
    """C statements that transform one tile's products back for one vector of channels.

    `load` is the expression of the product at position `{at}`; `store` the statement that keeps `{value}` as the
    output at `{row}`, `{column}`.
    """
    side = m + 2
    lines: list[str] = []
    for column in range(side):
        d = [f"d{row}_{column}" for row in range(side)]
        lines += [f"const vf32 {d[row]} = {load.format(at=row * side + column)};" for row in range(side)]
        lines += [f"const vf32 e{row}_{column} = {text};" for row, text in enumerate(output_sums(m, d))]
    for row in range(m):
        found = output_sums(m, [f"e{row}_{column}" for column in range(side)])
        lines += [store.format(row=row, column=column, value=text) for column, text in enumerate(found)]
    return lines
