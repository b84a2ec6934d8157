"""Where sliding windows lie: the sizes and paddings that pooling and convolution share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from korch.fission.reading import integer, integers, text
from korch.importers.operators import Operator

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class Windows:
    """Windows over the spatial dimensions; every tuple has one entry for each.

    Output o looks at the positions o * strides + k * dilations - before for k in 0..kernel-1. Positions from
    -before to size + after belong to the padded input; a window may reach beyond it (ceil_mode).
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    shape: tuple[int, ...]

    def counts(self, padding: bool) -> np.ndarray:
        """How many positions of each output's window lie in the input, or with `padding` in the padded input."""
        result = np.ones((), np.int64)
        for d, n in enumerate(self.size):
            first, last = (-self.before[d], n + self.after[d]) if padding else (0, n)
            taps = np.arange(self.kernel[d]) * self.dilations[d] - self.before[d]
            positions = np.arange(self.shape[d])[:, None] * self.strides[d] + taps
            inside = ((positions >= first) & (positions < last)).sum(1)
            result = result[..., None] * inside
        return result


def windows(op: Operator, size: Sequence[int], kernel: Sequence[int]) -> Windows:
    """The windows of a pooling or convolution operator over an input of spatial `size`."""
    rank = len(kernel)
    ones = (1,) * rank
    strides, dilations = integers(op, "strides", ones), integers(op, "dilations", ones)
    pads = integers(op, "pads", (0,) * (2 * rank))
    auto_pad = text(op, "auto_pad", "NOTSET", AUTO_PADS)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    before, after, shape = [0] * rank, [0] * rank, [0] * rank
    for d, n in enumerate(size):
        if auto_pad.startswith("SAME"):
            shape[d] = -(-n // strides[d])
            total = max(0, (shape[d] - 1) * strides[d] + reach[d] - n)
            before[d] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            after[d] = total - before[d]
            continue
        if auto_pad == "NOTSET":
            before[d], after[d] = pads[d], pads[rank + d]
        room = n + before[d] + after[d] - reach[d]
        shape[d] = room // strides[d] + 1
        if integer(op, "ceil_mode", 0) and auto_pad == "NOTSET":
            shape[d] = -(-room // strides[d]) + 1
            # A window that would begin in the padding at the end is left out.
            if (shape[d] - 1) * strides[d] >= n + before[d]:
                shape[d] -= 1
    return Windows(tuple(size), tuple(kernel), strides, dilations, tuple(before), tuple(after), tuple(shape))
