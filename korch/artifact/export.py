"""What a C program needs to run a `.korch` file, as a folder."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from korch.artifact.format import open_artifact
from korch.artifact.runtime import example_text, header_text
from korch.errors import ArtifactError


def export_c(artifact_path: str | Path, directory: str | Path) -> None:
    """Fills `directory`, which is made if need be, with korch.h, libkorch.so, model.korch and main.c.

    The library is the one for this machine's architecture where the file holds plans for it, else for its first
    plan's. ArtifactError when the file is damaged or the folder cannot be written.
    """
    file = open_artifact(artifact_path)
    file.check()
    runtimes = {p["machine"]: p["runtime"] for p in file.manifest["plans"]}
    if not runtimes:
        raise ArtifactError(f"{file.path} holds no plan, so there is nothing to export")
    runtime = runtimes.get(platform.machine(), next(iter(runtimes.values())))
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "korch.h").write_text(header_text(), encoding="utf-8")
        (directory / "main.c").write_text(example_text(), encoding="utf-8")
        (directory / "libkorch.so").write_bytes(file.read(runtime))
        if not _same(file.path, directory / "model.korch"):
            shutil.copyfile(file.path, directory / "model.korch")
    except OSError as error:
        raise ArtifactError(f"{directory} cannot be written: {error.strerror}") from error


def _same(a: Path, b: Path) -> bool:
    return b.exists() and a.samefile(b)
