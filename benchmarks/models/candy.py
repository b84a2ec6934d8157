"""Candy: the fast neural style transfer network (Johnson et al., 2016, with instance normalisation).

Reflection-padded convolutions, five residual blocks, and nearest-neighbour upsampling followed by a
convolution, as in the `fast_neural_style` network distributed with the PyTorch examples.
"""

from __future__ import annotations

from torch import Tensor, nn

SIZE = 224
"""Side of the square input image."""

PARAMETERS = 1_679_235
"""Published number of parameters."""


def padded_conv(cin: int, cout: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the spatial size (divided by the stride) by reflecting the border."""
    return nn.Sequential(nn.ReflectionPad2d(kernel // 2), nn.Conv2d(cin, cout, kernel, stride))


def stage(cin: int, cout: int, kernel: int, stride: int = 1, upsample: int = 1) -> nn.Sequential:
    """Optional upsampling, then a padded convolution, instance normalisation and a ReLU."""
    layers: list[nn.Module] = []
    if upsample > 1:
        layers.append(nn.Upsample(scale_factor=float(upsample), mode="nearest"))
    layers += [padded_conv(cin, cout, kernel, stride), nn.InstanceNorm2d(cout, affine=True), nn.ReLU()]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Two padded 3x3 convolutions with instance normalisation, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = stage(channels, channels, 3)
        self.conv = padded_conv(channels, channels, 3)
        self.norm = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return self.norm(self.conv(self.first(x))) + x


class Candy(nn.Module):
    """The style transfer network: image in, stylised image of the same size out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(stage(3, 32, 9), stage(32, 64, 3, 2), stage(64, 128, 3, 2))
        self.body = nn.Sequential(*(Residual(128) for _ in range(5)))
        self.decoder = nn.Sequential(stage(128, 64, 3, upsample=2), stage(64, 32, 3, upsample=2))
        self.output = padded_conv(32, 3, 9)

    def forward(self, x: Tensor) -> Tensor:
        """Stylise a batch of images."""
        return self.output(self.decoder(self.body(self.encoder(x))))


def network() -> nn.Module:
    """The network with PyTorch's initial weights."""
    return Candy()
