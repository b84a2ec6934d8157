"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from korch.fission.builder import Builder
from korch.fission.reading import Refused, integer, single
from korch.fission.tensor import Tensor, concat
from korch.importers.operators import Operator

LONGEST = 4096
"""The longest transform that is worth a matrix."""


def DFT(b: Builder, op: Operator, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Tensor:
    """x [..., n, ..., 1 or 2]: the last dimension holds the real and the imaginary part."""
    given = integer(op, "axis", 1) if op.version < 20 else -2 if axis is None else single(axis, "axis")
    along = x.axis(given)
    inverse, onesided = bool(integer(op, "inverse", 0)), bool(integer(op, "onesided", 0))
    returns_real = inverse and onesided
    default = 2 * (x.shape[along] - 1) if returns_real else x.shape[along]
    n = default if length is None else single(length, "dft_length")
    used = n // 2 + 1 if returns_real else n
    kept = min(x.shape[along], used)
    x = x.narrow(along, 0, kept)
    x = x.pad((0,) * x.rank, [used - kept if d == along else 0 for d in range(x.rank)])
    # The transformed axis goes last for the product, and back afterwards.
    order = [*(d for d in range(x.rank - 1) if d != along), along, x.rank - 1]
    moved = x.transpose(order)
    parts = [moved.narrow(x.rank - 1, i, 1).reshape(moved.shape[:-1]) for i in range(x.shape[-1])]
    y = _transform(parts, n, inverse, onesided)
    return y.transpose([order.index(d) for d in range(x.rank)])


def _transform(parts: list[Tensor], n: int, inverse: bool, onesided: bool) -> Tensor:
    """[real, imaginary] parts [..., used] -> [..., count, 2], or the real signal [..., n, 1] of half a spectrum."""
    if n > LONGEST:
        raise Refused(f"a transform over {n} elements is longer than the {LONGEST} supported")
    used = parts[0].shape[-1]
    count = n // 2 + 1 if onesided and not inverse else n
    # Reduced modulo n before the cosine: the products grow beyond what a float holds exactly.
    angles = np.outer(np.arange(used), np.arange(count)) % n * (2 * np.pi / n)
    scale = 1 / n if inverse else 1.0
    if inverse and onesided:
        # The half that is left out mirrors this one, except the first and (n even) the middle element.
        twice = np.full(used, 2.0)
        twice[0] = 1.0
        if n % 2 == 0:
            twice[-1] = 1.0
        weights = twice[:, None] * scale
        real = parts[0] @ parts[0].like(np.cos(angles) * weights)
        if len(parts) > 1:
            real = real - parts[1] @ parts[1].like(np.sin(angles) * weights)
        return real.unsqueeze(real.rank)
    sign = 1.0 if inverse else -1.0
    cosine, sine = parts[0].like(np.cos(angles) * scale), parts[0].like(np.sin(angles) * (sign * scale))
    real, imaginary = parts[0] @ cosine, parts[0] @ sine
    if len(parts) > 1:
        real, imaginary = real - parts[1] @ sine, imaginary + parts[1] @ cosine
    return concat([real.unsqueeze(real.rank), imaginary.unsqueeze(real.rank)], real.rank)


def STFT(
    b: Builder,
    op: Operator,
    x: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    length: Tensor | None = None,
) -> Tensor:
    """x [N, samples, 1 or 2] -> [N, frames, frequencies, 2]."""
    hop = single(step, "frame_step")
    default = x.shape[1] if window is None else window.shape[0]
    size = default if length is None else single(length, "frame_length")
    frames = (x.shape[1] - size) // hop + 1
    parts: list[Tensor] = []
    for i in range(x.shape[2]):
        part = x.narrow(2, i, 1).reshape(x.shape[:2])
        part = part.take(1, [f * hop + k for f in range(frames) for k in range(size)])
        part = part.reshape((x.shape[0], frames, size))
        parts.append(part if window is None else part * window)
    return _transform(parts, size, False, bool(integer(op, "onesided", 1)))
