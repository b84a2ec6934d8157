"""Compiling the C runtime, which an artifact holds so that loading needs no compiler."""

from __future__ import annotations

import tempfile
from pathlib import Path

from korch.artifact.runtime import runtime_source
from korch.codegen.target import Target, target_named
from korch.codegen.toolchain import Toolchain, compile_shared

_TARGETS = ("x86_64", "aarch64")  # the least instruction set of each architecture


def architecture_of(target: Target) -> str:
    """`x86_64` or `aarch64`: what Linux calls the machine."""
    return target.triple.split("-")[0]


def build_runtime(toolchain: Toolchain, architecture: str) -> bytes:
    """libkorch.so for `x86_64` or `aarch64`, as bytes; equal compilers give equal bytes.

    It has no needed libraries: libc's symbols are found in the loading process, under glibc and musl alike. Once
    loaded it stays (`nodelete`), because its threads run its code. ToolchainError when compiling fails.
    """
    if architecture not in _TARGETS:
        raise ValueError(f"no runtime for {architecture!r}; there are: {', '.join(_TARGETS)}")
    with tempfile.TemporaryDirectory(prefix="korch-") as directory:
        output = Path(directory) / "libkorch.so"
        linker = ("-z", "nodelete", "-soname", "libkorch.so")
        compile_shared(toolchain, runtime_source(), target_named(architecture), output, libc=True, linker=linker)
        return output.read_bytes()
