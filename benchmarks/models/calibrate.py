"""Seeded weights that keep a network alive: test images, initialisation and calibration.

A network with plain random weights often collapses: activations shrink or explode layer after layer, and
the output no longer depends on the input, so that comparing two implementations of it proves nothing.
`calibrated` draws the weights, then runs natural-like images through the network once, rescaling every
convolution and linear layer to a unit output deviation (or what `aim` asked for), centring those with a
bias, and setting the statistics of every batch normalisation.  The pass runs in double precision and its
results are rounded to ten bits, so that the weights do not depend on the order in which sums are computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CALIBRATION_SEED = 1000
"""Seed of the calibration images, far from the seeds used to check the networks."""

AFFINE_NORMS = (nn.BatchNorm2d, nn.InstanceNorm2d, nn.LayerNorm)
IDENTITIES = (nn.Dropout, nn.Identity)
STATISTIC_BITS = 10


def images(size: int, count: int = 1, seed: int = 0) -> Tensor:
    """Natural-like square images: smooth noise of several frequencies, normalised; [count, 3, size, size].

    The amplitude of an octave falls with its frequency, as in photographs; each image has its own balance
    of octaves, its own mean colour, and colour channels that are correlated.
    """
    rng = np.random.default_rng(seed)
    batch = []
    for _ in range(count):
        image = torch.from_numpy(rng.uniform(-0.15, 0.15, size=(1, 3, 1, 1)))
        cells = 4
        while cells <= size:
            noise = torch.from_numpy(rng.normal(size=(1, 1, cells, cells)))
            noise = noise + 0.4 * torch.from_numpy(rng.normal(size=(1, 3, cells, cells)))
            octave = functional.interpolate(noise, size=(size, size), mode="bicubic")
            image = image + octave * (rng.uniform(0.8, 1.2) * cells**-0.5 / octave.std())
            cells *= 2
        batch.append((image - image.mean()) / image.std() + rng.uniform(-0.15, 0.15))
    return torch.cat(batch).float()


def aim(module: nn.Module, deviation: float) -> None:
    """Ask for an output deviation other than one: of a convolution, a linear layer or a normalisation."""
    module.__dict__["target_deviation"] = deviation


def _target(module: nn.Module) -> float:
    return float(getattr(module, "target_deviation", 1.0))


def initialise(model: nn.Module, seed: int) -> None:
    """Draw every parameter: scaled uniform weights, small biases, normalisations near the identity.

    Half of the power of a spatial kernel is constant over its taps, as trained kernels are mostly smooth:
    kernels of independent taps respond to noise rather than to images, and amplify rounding errors.
    """
    rng = np.random.default_rng(seed)

    def fill(parameter: Tensor | None, low: float, high: float) -> None:
        if parameter is not None:
            values = low + (high - low) * rng.random(tuple(parameter.shape))
            parameter.data.copy_(torch.from_numpy(values))

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            bound = math.sqrt(6.0 / module.weight[0].numel())
            fill(module.weight, -bound, bound)
            if module.weight[0, 0].numel() > 1:
                smooth = torch.empty_like(module.weight[:, :, :1, :1])
                fill(smooth, -bound, bound)
                module.weight.data.add_(smooth)
            fill(module.bias, -0.3, 0.3)
        elif isinstance(module, AFFINE_NORMS):
            gain = _target(module)
            fill(module.weight, 0.7 * gain, 1.3 * gain)
            fill(module.bias, -0.7 * gain, 0.7 * gain)


def _rounded(tensor: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(mantissa * 2**STATISTIC_BITS) / 2**STATISTIC_BITS, exponent)


def _normalise_output(module: nn.Conv2d | nn.Linear, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook: scale the layer's parameters, and this output, to about the deviation it should have.

    A bias also takes up the mean of its channel, so that the outputs are centred on the drawn bias.
    """
    channels = 1 if isinstance(module, nn.Conv2d) else output.ndim - 1
    if module.bias is not None:
        others = [axis for axis in range(output.ndim) if axis != channels]
        excess = _rounded(output.mean(others) - module.bias)
        module.bias.data.sub_(excess)
        output = output - excess.reshape([-1] + [1] * (output.ndim - 1 - channels))
    scale = float(_rounded(output.std() / _target(module)))
    for parameter in module.parameters(recurse=False):
        parameter.data.div_(scale)
    return output / scale


def _leave_rounded(module: nn.BatchNorm2d, inputs: tuple[Tensor, ...], _output: Tensor) -> Tensor:
    """Forward hook: round the statistics just measured and normalise with them, as inference will."""
    assert module.running_mean is not None and module.running_var is not None
    module.running_mean.copy_(_rounded(module.running_mean))
    module.running_var.copy_(_rounded(module.running_var))
    return functional.batch_norm(
        inputs[0], module.running_mean, module.running_var, module.weight, module.bias, eps=module.eps
    )


@contextmanager
def _one_image_at_a_time(model: nn.Module) -> Iterator[None]:
    """Convolve image by image: in double precision PyTorch unfolds the whole batch, many gigabytes.

    It unfolds the groups of a grouped convolution in turn, so those are left as they are.
    """
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.groups == 1]
    for module in convolutions:
        whole = module.forward
        module.__dict__["forward"] = lambda x, whole=whole: torch.cat([whole(image) for image in x.split(1)])
    try:
        yield
    finally:
        for module in convolutions:
            del module.__dict__["forward"]


def calibrated(model: nn.Module, size: int, seed: int = 1) -> nn.Module:
    """The model in evaluation mode with seeded weights calibrated on images of the given size."""
    normalised = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    batch = 16 if normalised else 2  # statistics of a batch need several images
    initialise(model, seed)
    model.double().eval()
    hooks = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            hooks.append(module.register_forward_hook(_normalise_output))
        elif isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # the statistics become those of the calibration batch
            module.train()
            hooks.append(module.register_forward_hook(_leave_rounded))
    with torch.no_grad(), _one_image_at_a_time(model):
        model(images(size, batch, CALIBRATION_SEED + seed).double())
    for hook in hooks:
        hook.remove()
    return model.float().eval()


def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The outputs of a model as a tuple, without gradients."""
    with torch.no_grad():
        y = model(x)
    return y if isinstance(y, tuple) else (y,)


def deviations(model: nn.Module, x: Tensor) -> Iterator[tuple[str, str, float]]:
    """Name, type and standard deviation of the output of every leaf module (identities excepted)."""
    found: list[tuple[str, str, float]] = []
    hooks = []
    for name, module in model.named_modules():
        if next(module.children(), None) is None and not isinstance(module, IDENTITIES):

            def record(m: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
                found.append((name, type(m).__name__, float(output.std())))

            hooks.append(module.register_forward_hook(record))
    outputs(model, x)
    for hook in hooks:
        hook.remove()
    return iter(found)


def relative_difference(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> list[float]:
    """Relative L2 difference of each pair of outputs."""
    return [float((p - q).norm() / q.norm()) for p, q in zip(a, b, strict=True)]
