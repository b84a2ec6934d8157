"""Arrays on the command line: inputs given as NAME=FILE.npy, the others made up; outputs written to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from korch.errors import InvalidInput
from korch.ir.types import TensorType
from korch.verify import random_inputs


def read_inputs(options: Sequence[str], types: Mapping[str, TensorType], seed: int = 0) -> dict[str, np.ndarray]:
    """An array for each input: from its file, or random (`korch.verify.random_inputs`).

    `options` are texts `NAME=FILE.npy`. InvalidInput when one names no input or an input twice, or its file is no
    array; whether shape and dtype fit is for the model to say.
    """
    given: dict[str, np.ndarray] = {}
    for option in options:
        name = _name_in(option, types)
        if name in given:
            raise InvalidInput(f"--input gives {name} twice; give it once")
        given[name] = _read_array(option[len(name) + 1 :])
    return {**random_inputs(types, seed), **given}


def _name_in(option: str, types: Mapping[str, TensorType]) -> str:
    """The input that an option begins with; names may hold equal signs."""
    for name in sorted(types, key=len, reverse=True):
        if option.startswith(f"{name}="):
            return name
    known = ", ".join(types) or "none, the model takes no inputs"
    raise InvalidInput(f"cannot read --input {option}; write NAME=FILE.npy with NAME one of: {known}")


def _read_array(file: str) -> np.ndarray:
    try:
        array = np.load(Path(file), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no NumPy array"
        raise InvalidInput(f"cannot read {file} ({reason}); give an array written by numpy.save") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InvalidInput(f"{file} holds several arrays; give one written by numpy.save")
    return array


def write_arrays(arrays: Mapping[str, np.ndarray], folder: Path) -> dict[str, str]:
    """Writes each array to `folder`, which is made if need be, as NAME.npy; the files by name.

    In file names, slashes become underscores, and a name that is taken then gets a number. InvalidInput when the
    folder cannot be written.
    """
    files: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            stem = name.replace("/", "_")
            path = folder / f"{stem}.npy"
            for number in range(1, len(files) + 1):
                if str(path) in files.values():
                    path = folder / f"{stem}_{number}.npy"
            np.save(path, array)
            files[name] = str(path)
    except OSError as error:
        raise InvalidInput(f"cannot write to {folder} ({error.strerror}); choose another folder") from None
    return files
