"""What tests of several folders share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache directory of the whole session, apart from the user's.

    Kernels measured by one test are known to the next. KORCH_TEST_CACHE names a folder that outlives the session.
    """
    folder = Path(os.environ.get("KORCH_TEST_CACHE") or tmp_path_factory.mktemp("cache"))
    before = os.environ.get("KORCH_CACHE_DIR")
    os.environ["KORCH_CACHE_DIR"] = str(folder)
    yield folder
    del os.environ["KORCH_CACHE_DIR"]
    if before is not None:
        os.environ["KORCH_CACHE_DIR"] = before
