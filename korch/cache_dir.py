"""Where Korch keeps what it may rebuild: measured costs and the compiler's own cache."""

from __future__ import annotations

import os
from pathlib import Path


def korch_cache_dir() -> Path:
    """The directory that the environment's KORCH_CACHE_DIR names, else the user's cache directory for korch.

    It may not exist yet.
    """
    named = os.environ.get("KORCH_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    import platformdirs  # only here: loading an artifact needs NumPy and the standard library alone

    return Path(platformdirs.user_cache_dir("korch"))
