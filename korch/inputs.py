"""Model inputs given on the command line as NAME=FILE.npy, the others made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from korch.errors import InvalidInput
from korch.ir.types import TensorType
from korch.verify import random_inputs


def read_inputs(
    options: Sequence[str], types: Mapping[str, TensorType], seed: int = 0
) -> dict[str, np.ndarray]:
    """An array for each input: from its file, or random (`korch.verify.random_inputs`)."""
    found = random_inputs(types, seed)
    for option in options:
        name, equals, file = option.partition("=")
        if not equals or name not in types:
            raise InvalidInput(
                f"cannot read --input {option}; write NAME=FILE.npy with NAME one of: {', '.join(types)}"
            )
        try:
            found[name] = np.load(Path(file), allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read {file} ({error}); give an array written by numpy.save") from None
    return found
