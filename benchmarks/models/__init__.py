"""The five networks of the paper's end-to-end evaluation, written in PyTorch and exported to ONNX.

The architectures are the published ones, at the published sizes; the weights are seeded and calibrated
(see `calibrate`), so nothing is downloaded.  Export them with `python -m benchmarks.models`.
"""

from __future__ import annotations

from pathlib import Path

NAMES = ("candy", "yolox_nano", "yolov4", "segformer_b0", "efficientvit_b1")
"""Names of the networks."""

DIRECTORY = Path(__file__).resolve().parent / "onnx"
"""Where the exported files are kept by default."""


def path(name: str) -> Path:
    """The ONNX file of a network, exported now if it is missing (which needs PyTorch)."""
    if name not in NAMES:
        raise ValueError(f"unknown network {name!r}; known: {', '.join(NAMES)}")
    file = DIRECTORY / f"{name}.onnx"
    if not file.exists():
        from .export import export

        export(name, DIRECTORY)
    return file
