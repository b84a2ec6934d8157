"""YOLOX-Nano: the smallest anchor-free YOLOX detector (Ge et al., 2021).

A depthwise-separable CSPDarknet with a Focus stem, a path-aggregation feature pyramid and one decoupled
head per level.  The output concatenates the three levels as in the official ONNX export: one row per
location with four box offsets, the objectness and 80 class scores (boxes are decoded outside).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .calibrate import aim

SIZE = 416
"""Side of the square input image."""

PARAMETERS = 910_000
"""Published number of parameters (0.91 M)."""

CLASSES = 80


def conv(cin: int, cout: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch normalisation and SiLU."""
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout, eps=1e-3),
        nn.SiLU(),
    )


def separable(cin: int, cout: int, stride: int = 1) -> nn.Sequential:
    """A 3x3 depthwise convolution followed by a pointwise one, each normalised and activated."""
    return nn.Sequential(conv(cin, cin, 3, stride, groups=cin), conv(cin, cout))


class Focus(nn.Module):
    """Space-to-depth by strided slices, then a 3x3 convolution."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = conv(4 * cin, cout, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Halve the resolution."""
        corners = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        return self.conv(torch.cat(corners, 1))


class Bottleneck(nn.Module):
    """A pointwise and a separable convolution, with an optional shortcut."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(channels, channels), separable(channels, channels))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.body(x)
        return y + x if self.shortcut else y


class CSP(nn.Module):
    """Cross-stage partial block: bottlenecks on one half of the channels, the other half bypasses them."""

    def __init__(self, cin: int, cout: int, depth: int = 1, shortcut: bool = True) -> None:
        super().__init__()
        hidden = cout // 2
        self.main = conv(cin, hidden)
        self.bypass = conv(cin, hidden)
        self.blocks = nn.Sequential(*(Bottleneck(hidden, shortcut) for _ in range(depth)))
        self.merge = conv(2 * hidden, cout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return self.merge(torch.cat((self.blocks(self.main(x)), self.bypass(x)), 1))


class SPP(nn.Module):
    """Spatial pyramid pooling with windows of 5, 9 and 13."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.reduce = conv(cin, cin // 2)
        self.pools = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in (5, 9, 13))
        self.expand = conv(2 * cin, cout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        x = self.reduce(x)
        return self.expand(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class Head(nn.Module):
    """Decoupled head of one pyramid level: [N, 4 + 1 + classes, H, W]."""

    def __init__(self, cin: int, width: int = 64) -> None:
        super().__init__()
        self.stem = conv(cin, width)
        self.class_tower = nn.Sequential(separable(width, width), separable(width, width))
        self.box_tower = nn.Sequential(separable(width, width), separable(width, width))
        self.classes = nn.Conv2d(width, CLASSES, 1)
        self.boxes = nn.Conv2d(width, 4, 1)
        self.objectness = nn.Conv2d(width, 1, 1)
        self.score = nn.Sigmoid()
        for layer in (self.classes, self.objectness):
            aim(layer, 2.5)  # confident scores, as in a trained detector

    def forward(self, x: Tensor) -> Tensor:
        """Predict boxes and scores."""
        x = self.stem(x)
        classes = self.classes(self.class_tower(x))
        features = self.box_tower(x)
        boxes, objectness = self.boxes(features), self.objectness(features)
        return torch.cat((boxes, self.score(objectness), self.score(classes)), 1)


class YoloxNano(nn.Module):
    """The whole detector: image in, [N, locations, 85] out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Focus(3, 16)
        self.dark2 = nn.Sequential(separable(16, 32, 2), CSP(32, 32))
        self.dark3 = nn.Sequential(separable(32, 64, 2), CSP(64, 64, 3))
        self.dark4 = nn.Sequential(separable(64, 128, 2), CSP(128, 128, 3))
        self.dark5 = nn.Sequential(separable(128, 256, 2), SPP(256, 256), CSP(256, 256, shortcut=False))
        self.upsample = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.lateral5 = conv(256, 128)
        self.top_down4 = CSP(256, 128, shortcut=False)
        self.lateral4 = conv(128, 64)
        self.top_down3 = CSP(128, 64, shortcut=False)
        self.down3 = separable(64, 64, 2)
        self.bottom_up4 = CSP(128, 128, shortcut=False)
        self.down4 = separable(128, 128, 2)
        self.bottom_up5 = CSP(256, 256, shortcut=False)
        self.heads = nn.ModuleList(Head(cin) for cin in (64, 128, 256))

    def forward(self, x: Tensor) -> Tensor:
        """Detect objects in a batch of images."""
        c3 = self.dark3(self.dark2(self.stem(x)))
        c4 = self.dark4(c3)
        f5 = self.lateral5(self.dark5(c4))
        f4 = self.lateral4(self.top_down4(torch.cat((self.upsample(f5), c4), 1)))
        p3 = self.top_down3(torch.cat((self.upsample(f4), c3), 1))
        p4 = self.bottom_up4(torch.cat((self.down3(p3), f4), 1))
        p5 = self.bottom_up5(torch.cat((self.down4(p4), f5), 1))
        levels = [head(p).flatten(2) for head, p in zip(self.heads, (p3, p4, p5), strict=True)]
        return torch.cat(levels, 2).permute(0, 2, 1)


def network() -> nn.Module:
    """The network with PyTorch's initial weights."""
    return YoloxNano()
