"""The C runtime: sources, and one text of them all."""

from __future__ import annotations

import re
from importlib.resources import files

HEADER = "korch.h"  # the public interface
_SOURCES = ("processors.c", "sha256.c", "pool.c", "model.c")


def header_text() -> str:
    """The text of korch.h."""
    return _read(HEADER)


def example_text() -> str:
    """The text of main.c, a program that runs a file."""
    return _read("main.c")


def runtime_source() -> str:
    """All sources as one C11 text, which includes headers of libc only."""
    included: set[str] = set()

    def expand(name: str) -> str:
        def replace(match: re.Match[str]) -> str:
            header = match.group(1)
            if header in included:
                return ""
            included.add(header)
            return expand(header)

        return re.sub(r'^#include "([\w.]+)"\n', replace, _read(name), flags=re.MULTILINE)

    return "\n".join(expand(name) for name in _SOURCES)


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
