"""EfficientViT-B1 (Cai et al., 2023: multi-scale linear attention) with its ImageNet classification head.

Inverted bottlenecks with hard swish, and in the last two stages lightweight multi-scale linear attention:
queries, keys and values at two scales (as projected, and aggregated by a 5x5 depthwise and a grouped
pointwise convolution), a ReLU kernel, and the normaliser computed by a column of ones beside the values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .calibrate import aim

SIZE = 512
"""Side of the square input image."""

PARAMETERS = 9_100_000
"""Published number of parameters (9.1 M)."""

WIDTHS = (16, 32, 64, 128, 256)
DEPTHS = (1, 2, 3, 3, 4)
HEAD_DIM = 16
EPSILON = 1e-15
"""Added to the normaliser, which is zero where the kernel zeroes a whole query."""

BRANCH_DEVIATION = 0.3
"""Deviation of a residual branch with random weights: attention maps vary little over one image, and a
branch as strong as its shortcut would let the differences between images grow from block to block."""


def conv(
    cin: int,
    cout: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    norm: bool = True,
    act: bool = True,
) -> nn.Sequential:
    """A convolution (with a bias when not normalised), then batch normalisation and hard swish if asked."""
    layers: list[nn.Module] = [
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=not norm)
    ]
    if norm:
        layers.append(nn.BatchNorm2d(cout))
    if act:
        layers.append(nn.Hardswish())
    return nn.Sequential(*layers)


def separable(cin: int, cout: int) -> nn.Sequential:
    """Depthwise then linear pointwise convolution."""
    return nn.Sequential(conv(cin, cin, 3, groups=cin), conv(cin, cout, act=False))


def inverted(cin: int, cout: int, stride: int = 1, fewer_norms: bool = False) -> nn.Sequential:
    """Inverted bottleneck of expansion 4; `fewer_norms` normalises the last convolution only."""
    mid, norm = 4 * cin, not fewer_norms
    return nn.Sequential(
        conv(cin, mid, norm=norm),
        conv(mid, mid, 3, stride, groups=mid, norm=norm),
        conv(mid, cout, act=False),
    )


class Residual(nn.Module):
    """A block added to its input, whose last normalisation starts small as is usual in residual networks."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        norms = [module for module in body.modules() if isinstance(module, nn.BatchNorm2d)]
        aim(norms[-1], BRANCH_DEVIATION)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return x + self.body(x)


class LinearAttention(nn.Module):
    """Lightweight multi-scale attention, linear in the number of locations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        heads = channels // HEAD_DIM
        wide = 3 * channels
        self.qkv = nn.Conv2d(channels, wide, 1, bias=False)
        self.aggregate = nn.Sequential(
            nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False),
            nn.Conv2d(wide, wide, 1, groups=3 * heads, bias=False),
        )
        self.kernel = nn.ReLU()
        self.project = conv(2 * channels, channels, act=False)
        self.groups = 2 * heads  # heads over both scales
        # A vector, because PyTorch's exporter takes the addition of a scalar below 1e-8 for one of zero.
        self.register_buffer("epsilon", torch.full((1,), EPSILON), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over all locations."""
        batch, channels, height, width = (int(n) for n in x.shape)
        qkv = self.qkv(x)
        scales = torch.cat((qkv, self.aggregate(qkv)), 1)
        rows = scales.reshape(batch, self.groups, 3 * HEAD_DIM, height * width).transpose(-1, -2)
        query = self.kernel(rows[..., :HEAD_DIM])
        key = self.kernel(rows[..., HEAD_DIM : 2 * HEAD_DIM])
        value = functional.pad(rows[..., 2 * HEAD_DIM :], (0, 1), value=1.0)
        out = query @ (key.transpose(-1, -2) @ value)
        out = out[..., :HEAD_DIM] / (out[..., HEAD_DIM:] + self.epsilon)
        return self.project(out.transpose(-1, -2).reshape(batch, 2 * channels, height, width))


def attention_stage(cin: int, cout: int, depth: int) -> nn.Sequential:
    """Halve the resolution, then alternate linear attention and inverted bottlenecks."""
    blocks: list[nn.Module] = [inverted(cin, cout, 2, fewer_norms=True)]
    for _ in range(depth):
        blocks += [Residual(LinearAttention(cout)), Residual(inverted(cout, cout, fewer_norms=True))]
    return nn.Sequential(*blocks)


def conv_stage(cin: int, cout: int, depth: int) -> nn.Sequential:
    """Halve the resolution, then residual inverted bottlenecks."""
    blocks = [Residual(inverted(cout, cout)) for _ in range(depth - 1)]
    return nn.Sequential(inverted(cin, cout, 2), *blocks)


class EfficientVitB1(nn.Module):
    """The classifier: image in, 1000 logits out."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        w, d = WIDTHS, DEPTHS
        self.stem = nn.Sequential(
            conv(3, w[0], 3, 2), *(Residual(separable(w[0], w[0])) for _ in range(d[0]))
        )
        self.stages = nn.Sequential(
            conv_stage(w[0], w[1], d[1]),
            conv_stage(w[1], w[2], d[2]),
            attention_stage(w[2], w[3], d[3]),
            attention_stage(w[3], w[4], d[4]),
        )
        self.head = nn.Sequential(
            conv(w[4], 1536),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(1536, 1600, bias=False),
            nn.LayerNorm(1600),
            nn.Hardswish(),
            nn.Linear(1600, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Classify a batch of images."""
        return self.head(self.stages(self.stem(x)))


def network() -> nn.Module:
    """The network with PyTorch's initial weights."""
    return EfficientVitB1()
