"""YOLOv4 (Bochkovskiy et al., 2020) for the 80 COCO classes.

CSPDarknet53 with Mish, spatial pyramid pooling, a path-aggregation neck with leaky ReLU, and three heads
whose raw maps (255 = 3 anchors x 85) are the outputs, at strides 8, 16 and 32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZE = 416
"""Side of the square input image."""

PARAMETERS = 64_363_101
"""Published number of parameters (64.4 M)."""

OUTPUTS = 3 * (5 + 80)


def _conv(cin: int, cout: int, kernel: int, stride: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout), activation
    )


def mish(cin: int, cout: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution, batch normalisation and Mish (the backbone)."""
    return _conv(cin, cout, kernel, stride, nn.Mish())


def leaky(cin: int, cout: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution, batch normalisation and leaky ReLU (the neck and the heads)."""
    return _conv(cin, cout, kernel, stride, nn.LeakyReLU(0.1))


class Residual(nn.Module):
    """A pointwise and a 3x3 convolution added to the input."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(mish(channels, hidden), mish(hidden, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return x + self.body(x)


class Stage(nn.Module):
    """A cross-stage partial stage of CSPDarknet53: halve the resolution, then residual blocks."""

    def __init__(self, cin: int, cout: int, depth: int, first: bool = False) -> None:
        super().__init__()
        width = cout if first else cout // 2
        self.down = mish(cin, cout, 3, 2)
        self.bypass = mish(cout, width)
        blocks = (Residual(width, cin if first else width) for _ in range(depth))
        self.main = nn.Sequential(mish(cout, width), *blocks, mish(width, width))
        self.merge = mish(2 * width, cout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the stage."""
        x = self.down(x)
        return self.merge(torch.cat((self.main(x), self.bypass(x)), 1))


class SPP(nn.Module):
    """Spatial pyramid pooling with windows of 13, 9 and 5, between two three-convolution groups."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(leaky(1024, 512), leaky(512, 1024, 3), leaky(1024, 512))
        self.pools = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in (13, 9, 5))
        self.after = nn.Sequential(leaky(2048, 512), leaky(512, 1024, 3), leaky(1024, 512))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        x = self.before(x)
        return self.after(torch.cat([*(pool(x) for pool in self.pools), x], 1))


def five(cin: int, cout: int) -> nn.Sequential:
    """Five alternating pointwise and 3x3 convolutions."""
    wide = 2 * cout
    return nn.Sequential(
        leaky(cin, cout), leaky(cout, wide, 3), leaky(wide, cout), leaky(cout, wide, 3), leaky(wide, cout)
    )


def head(cin: int) -> nn.Sequential:
    """The prediction layers of one level."""
    return nn.Sequential(leaky(cin, 2 * cin, 3), nn.Conv2d(2 * cin, OUTPUTS, 1))


class Yolov4(nn.Module):
    """The whole detector: image in, three maps of raw predictions out (fine to coarse)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(mish(3, 32, 3), Stage(32, 64, 1, first=True), Stage(64, 128, 2))
        self.stage3 = Stage(128, 256, 8)
        self.stage4 = Stage(256, 512, 8)
        self.stage5 = Stage(512, 1024, 4)
        self.spp = SPP()
        self.up5 = nn.Sequential(leaky(512, 256), nn.Upsample(scale_factor=2.0, mode="nearest"))
        self.lateral4 = leaky(512, 256)
        self.top_down4 = five(512, 256)
        self.up4 = nn.Sequential(leaky(256, 128), nn.Upsample(scale_factor=2.0, mode="nearest"))
        self.lateral3 = leaky(256, 128)
        self.top_down3 = five(256, 128)
        self.head3 = head(128)
        self.down3 = leaky(128, 256, 3, 2)
        self.bottom_up4 = five(512, 256)
        self.head4 = head(256)
        self.down4 = leaky(256, 512, 3, 2)
        self.bottom_up5 = five(1024, 512)
        self.head5 = head(512)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Detect objects in a batch of images."""
        c3 = self.stage3(self.stem(x))
        c4 = self.stage4(c3)
        f5 = self.spp(self.stage5(c4))
        f4 = self.top_down4(torch.cat((self.lateral4(c4), self.up5(f5)), 1))
        p3 = self.top_down3(torch.cat((self.lateral3(c3), self.up4(f4)), 1))
        p4 = self.bottom_up4(torch.cat((self.down3(p3), f4), 1))
        p5 = self.bottom_up5(torch.cat((self.down4(p4), f5), 1))
        return self.head3(p3), self.head4(p4), self.head5(p5)


def network() -> nn.Module:
    """The network with PyTorch's initial weights."""
    return Yolov4()
