"""The runtime library that measuring processes load: built once, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from korch.artifact.build import architecture_of, build_runtime
from korch.artifact.runtime import runtime_source
from korch.codegen.target import Target
from korch.codegen.toolchain import Toolchain


def runtime_library(toolchain: Toolchain, target: Target, folder: Path) -> Path:
    """The path of libkorch.so for the target's architecture, in `folder`; compiled when it is not there yet."""
    architecture = architecture_of(target)
    digest = hashlib.sha256(f"{toolchain.version}|{architecture}|{runtime_source()}".encode()).hexdigest()[:16]
    path = folder / f"libkorch-{digest}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        temporary.write_bytes(build_runtime(toolchain, architecture))
        os.replace(temporary, path)
    return path
