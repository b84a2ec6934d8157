"""An optimized model, as users hold it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from korch.artifact.load import LoadedModel, load
from korch.errors import ArtifactError, InvalidInput
from korch.ir.types import TensorType

if TYPE_CHECKING:
    from korch.pipeline import Summary


class Model:
    """Runs one `.korch` file; safe to call from many threads.

    `inputs` and `outputs` map names to `TensorType` (dtype and shape), those of the first set of shapes where there
    are several; `signatures` has the inputs of all. `summaries` tells how each plan was found, `summary` the first;
    there are none for a loaded file, whose certificates `korch explain` shows.
    """

    def __init__(self, path: Path, summaries: tuple[Summary, ...] = (), *, owned: bool = False) -> None:
        self._loaded: LoadedModel = load(path)
        self._path = path
        self.summaries = summaries
        self.summary = summaries[0] if summaries else None
        if owned:
            weakref.finalize(self, _remove, path, os.getpid())

    @property
    def inputs(self) -> dict[str, TensorType]:
        return dict(self._loaded.inputs)

    @property
    def outputs(self) -> dict[str, TensorType]:
        return dict(self._loaded.outputs)

    @property
    def signatures(self) -> tuple[dict[str, TensorType], ...]:
        """The inputs of each plan: the shapes that the model may be called with."""
        return tuple(dict(plan.inputs) for plan in self._loaded.plans)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One inference: arrays by position, by keyword, or one mapping by name.

        One output is returned as an array, several as a dict in the model's order. `InvalidInput` says what does
        not fit before anything runs.
        """
        return result_of(self.run(bind_arguments(tuple(self._loaded.inputs), args, kwargs)))

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        out: Mapping[str, np.ndarray] | None = None,
        threads: int | None = None,
    ) -> dict[str, np.ndarray]:
        """One inference by name; all outputs, in the model's order.

        `out` gives arrays to write outputs into; `threads` overrides the plan's number. `InvalidInput` as for a call.
        """
        return self._loaded.run(dict(inputs), out=None if out is None else dict(out), threads=threads)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model as one file; an existing file is replaced as a whole or not at all."""
        target = Path(path)
        try:
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".korch-", delete=False) as file:
                temporary = Path(file.name)
            shutil.copyfile(self._path, temporary)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except OSError as error:
            raise ArtifactError(f"cannot write {target} ({error.strerror}); choose a folder that exists") from None

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n}: {t}" for n, t in self.inputs.items())
        outputs = ", ".join(f"{n}: {t}" for n, t in self.outputs.items())
        return f"korch.Model({inputs} -> {outputs})"


def bind_arguments(names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arrays by input: by position, by keyword, or one mapping by name. InvalidInput when one is given twice
    or there are too many; whether the names are the model's is for `run` to say."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
        return dict(args[0])
    if len(args) > len(names):
        raise InvalidInput(f"{len(args)} inputs given, the model takes {len(names)}: {', '.join(names)}")
    bound = dict(zip(names, args, strict=False))
    if twice := [name for name in kwargs if name in bound]:
        raise InvalidInput(f"input {twice[0]} is given by position and by keyword; give it once")
    return {**bound, **kwargs}


def result_of(results: dict[str, np.ndarray]) -> Any:
    """What a call returns: the only output, or all by name."""
    return next(iter(results.values())) if len(results) == 1 else results


def _remove(path: Path, owner: int) -> None:
    """Removes the file, unless this is a forked child of the process that owns it."""
    if os.getpid() == owner:
        path.unlink(missing_ok=True)
