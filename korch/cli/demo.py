"""`korch demo`: a trained model, optimized, verified and timed against ONNX Runtime."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from korch.cli.common import JsonOption, errors_in_one_line, print_json, progress_bar, say, say_on_stderr

_PACKAGE = "rapidocr_onnxruntime"
_FILE = "models/ch_PP-OCRv4_det_infer.onnx"


def demo_model() -> Path:
    """PP-OCRv4 text detection, from the wheel rapidocr-onnxruntime (which is not imported)."""
    from korch.errors import InvalidInput

    spec = importlib.util.find_spec(_PACKAGE)
    path = Path(spec.origin).parent / _FILE if spec is not None and spec.origin else None
    if path is None or not path.exists():
        raise InvalidInput("the demo's model is not installed; run: pip install 'korch-compiler[demo]'")
    return path


def page_image(size: int) -> np.ndarray:
    """A page of printed lines, normalised as the network was trained: float32[1, 3, size, size].

    Noise would not do: the network finds no text in it, and its output is almost zero everywhere.
    """
    from PIL import Image, ImageDraw

    page = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(page)
    for k, y in enumerate(range(size // 16, size - size // 16, size // 12)):
        draw.text((size // 16 + 7 * (k % 3), y), f"{k + 1}. The quick brown fox jumps over the lazy dog", fill="black")
    pixels = np.asarray(page, np.float32) / 255
    mean, deviation = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    return np.ascontiguousarray(((pixels - mean) / deviation).transpose(2, 0, 1)[None])


def demo(
    size: Annotated[int, typer.Option(min=32, help="Height and width of the image, a multiple of 32.")] = 640,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("ppocr-det.korch"),
    budget: Annotated[float, typer.Option(min=0, help="Seconds for measuring and selection.")] = 120.0,
    json: JsonOption = False,
) -> None:
    """Optimize PP-OCRv4 text detection, verify it against the reference, and time it against ONNX Runtime."""
    from korch.bench.report import bench_model, bench_text
    from korch.errors import InvalidInput
    from korch.pipeline import Options, optimize_to_file, verify_model
    from korch.report.text import summary_text

    with errors_in_one_line(json=json):
        if size % 32:
            raise InvalidInput(f"--size {size} is no multiple of 32; the network halves the image five times")
        model = demo_model()
        options = Options(shapes=({"x": (1, 3, size, size)},), budget=budget)
        tell = say_on_stderr if json else say
        tell(f"PP-OCRv4 text detection, {size}x{size}: optimizing, for some {budget:.0f} s when nothing is cached")
        with progress_bar() as progress:
            (summary,) = optimize_to_file(model, output, options, progress)
            tell(summary_text(summary))
            with tempfile.TemporaryDirectory(prefix="korch-") as folder:
                page = Path(folder) / "page.npy"
                np.save(page, page_image(size))
                (verification,) = verify_model(model, output, options, [f"x={page}"], 0, progress).values()
            for name, e in verification.outputs.items():
                verdict = "ok" if e.reason is None else f"FAILED: {e.reason}"
                tell(f"verified {name}: relative L2 error {e.rel_l2_error:.2g}: {verdict}")
            peers = ["onnxruntime"] if importlib.util.find_spec("onnxruntime") else []
            report = bench_model(model, output, peers, options, progress)
        tell(bench_text(report))
        if json:
            print_json({"optimize": summary.json(), "verified": verification.ok, "bench": report})
        else:
            say(f"wrote {output}; try: korch explain {output}")
        if not verification.ok:
            raise typer.Exit(1)
