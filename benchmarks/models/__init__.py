"""The five networks of the paper's end-to-end evaluation, written in PyTorch and exported to ONNX.

The architectures are the published ones, at the published sizes; the weights are seeded and calibrated
(see `calibrate`), so nothing is downloaded.  Export them with `python -m benchmarks.models`.
"""

from __future__ import annotations

from pathlib import Path

from . import packaged

NAMES = ("candy", "yolox_nano", "yolov4", "segformer_b0", "efficientvit_b1")
"""Names of the five networks."""

ALL = (*NAMES, *packaged.NAMES)
"""Those, and the ones that come with packages (see `packaged`)."""

DIRECTORY = Path(__file__).resolve().parent / "onnx"
"""Where the exported files are kept by default."""


def path(name: str) -> Path:
    """The ONNX file of a network, written now if it is missing (the five need PyTorch)."""
    if name not in ALL:
        raise ValueError(f"unknown network {name!r}; known: {', '.join(ALL)}")
    file = DIRECTORY / f"{name}.onnx"
    if not file.exists() and name in packaged.NAMES:
        packaged.write(name, file)
    elif not file.exists():
        from .export import export

        export(name, DIRECTORY)
    return file
