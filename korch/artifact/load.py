"""Loading and running a `.korch` file. Needs NumPy and the standard library only.

The work is done by the C runtime that the file holds; here the inputs are checked and pointers are passed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from korch.artifact.format import ArtifactFile, open_artifact
from korch.errors import ArtifactError, InvalidInput
from korch.ir.types import DType, TensorType

_ERROR_BYTES = 1024


@dataclass(frozen=True)
class _Context:
    """One caller's memory: the C context, and the pointers that are passed to it."""

    handle: int
    inputs: ctypes.Array[ctypes.c_void_p]
    outputs: ctypes.Array[ctypes.c_void_p]


_Contexts = dict[tuple[int, int], list[_Context]]  # by plan and threads: those that nobody uses now


@dataclass(frozen=True)
class LoadedPlan:
    """One set of shapes that the model runs with; `record` is the plan's entry in the manifest."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    record: Mapping[str, Any]


class LoadedModel:
    """A loaded file. It may be called from many threads at once and after fork.

    `plans` are those for this machine, one for each set of input shapes; `inputs` and `outputs` are the first
    one's, in the model's order; `manifest` is the file's.
    """

    def __init__(self, file: ArtifactFile, library: ctypes.CDLL, handle: int) -> None:
        self.path = file.path
        self.manifest = file.manifest
        self.plans = tuple(
            _plan(file.manifest, library.korch_plan_position(handle, k))
            for k in range(library.korch_plan_count(handle))
        )
        self.inputs, self.outputs = self.plans[0].inputs, self.plans[0].outputs
        self._library, self._handle = library, handle
        self._by_shapes = {tuple(t.shape for t in p.inputs.values()): k for k, p in enumerate(self.plans)}
        self._dtypes = {name: t.dtype.numpy for name, t in (*self.inputs.items(), *self.outputs.items())}
        self._contexts: _Contexts = {}
        # Not at exit: daemon threads may still be running the model.
        weakref.finalize(self, _free, library, handle, self._contexts).atexit = False

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        out: Mapping[str, np.ndarray] | None = None,
        threads: int | None = None,
    ) -> dict[str, np.ndarray]:
        """The outputs by name, in the model's order.

        Inputs are not copied where they are row-major and aligned, and not changed. An output is a fresh array,
        or `out`'s of that name: row-major, writable, and apart from all other arrays. `threads` is the most that
        take part; None for what the plan was made for, or what the process may use where that is less. InvalidInput
        lists what is expected when a name, shape or dtype does not fit; then nothing has run.
        """
        arrays = self._input_arrays(inputs)
        index = self._by_shapes[tuple(a.shape for a in arrays)]
        outputs = self.plans[index].outputs
        given = out or {}
        self._check_out(given, outputs, arrays)
        results = {
            name: given[name] if name in given else np.empty(t.shape, self._dtypes[name]) for name, t in outputs.items()
        }
        self._run(index, threads or 0, arrays, results.values())
        return results

    def _input_arrays(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if inputs.keys() != self.inputs.keys():
            given = ", ".join(inputs) or "nothing"
            raise InvalidInput(f"the model takes {_listed(self.plans)}; it was given {given}")
        arrays: list[np.ndarray] = []
        for name in self.inputs:
            array = np.asarray(inputs[name])
            if array.dtype != self._dtypes[name]:
                raise InvalidInput(f"input {name} has dtype {array.dtype}; the model takes {_listed(self.plans)}")
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                array = np.array(array, order="C", copy=True)
            arrays.append(array)
        if tuple(a.shape for a in arrays) not in self._by_shapes:
            given = ", ".join(f"{name} {a.shape}" for name, a in zip(self.inputs, arrays, strict=True))
            raise InvalidInput(f"the inputs have shapes {given}; the model takes {_listed(self.plans)}")
        return arrays

    def _check_out(
        self, out: Mapping[str, np.ndarray], outputs: Mapping[str, TensorType], arrays: list[np.ndarray]
    ) -> None:
        taken = list(arrays)
        for name, array in out.items():
            expected = outputs.get(name)
            if expected is None:
                raise InvalidInput(f"out has {name!r}, which is no output; the outputs are: {', '.join(outputs)}")
            if array.shape != expected.shape or array.dtype != self._dtypes[name]:
                raise InvalidInput(f"out {name} is {array.dtype}{list(array.shape)}; expected {expected}")
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned and flags.writeable):
                raise InvalidInput(f"out {name} must be row-major, aligned and writable")
            if any(np.may_share_memory(array, other) for other in taken):
                raise InvalidInput(f"out {name} overlaps an input or another output; give it memory of its own")
            taken.append(array)

    def _run(self, index: int, threads: int, inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray]) -> None:
        free = self._contexts.setdefault((index, threads), [])
        try:
            context = free.pop()  # one step under the interpreter's lock, so no other lock is needed
        except IndexError:
            context = self._new_context(index, threads)
        for k, array in enumerate(inputs):
            context.inputs[k] = array.ctypes.data
        for k, array in enumerate(outputs):
            context.outputs[k] = array.ctypes.data
        try:
            self._library.korch_run(context.handle, context.inputs, context.outputs)
        finally:
            free.append(context)

    def _new_context(self, index: int, threads: int) -> _Context:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        handle = self._library.korch_context_new(self._handle, index, threads, error, _ERROR_BYTES)
        if not handle:
            raise MemoryError(error.value.decode(errors="replace"))
        pointers = ctypes.c_void_p * len(self.inputs), ctypes.c_void_p * len(self.outputs)
        return _Context(handle, pointers[0](), pointers[1]())


def load(path: str | os.PathLike[str], *, verify: bool = True) -> LoadedModel:
    """Loads a file for this machine. It holds native code: load only files whose origin you trust.

    With `verify` the whole file is read and compared with its hashes; without, all but weights and sources is.
    ArtifactError says in one line what does not fit: not a `.korch` file, truncated, damaged, another format,
    another architecture, missing CPU features.
    """
    file = open_artifact(Path(path))
    if sys.platform != "linux":
        raise ArtifactError(f"{file.path} runs on Linux only, and this is {sys.platform}")
    machine = platform.machine()
    runtimes = [p["runtime"] for p in file.manifest["plans"] if p["machine"] == machine]
    if not runtimes:
        made_for = ", ".join(sorted({p["machine"] for p in file.manifest["plans"]})) or "no machine at all"
        raise ArtifactError(
            f"{file.path} is made for {made_for} and this machine is {machine}; optimize the model for it"
        )
    if verify:
        file.check()
    library = _runtime(file, runtimes[0])
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    handle = library.korch_load(os.fsencode(file.path), error, _ERROR_BYTES)
    if not handle:
        raise ArtifactError(error.value.decode(errors="replace"))
    return LoadedModel(file, library, handle)


# One thread pool belongs to the process, so the loaded runtimes do as well: by the hash of their section. The
# first one's pool serves all.
_runtimes: dict[str, ctypes.CDLL] = {}
_runtimes_lock = threading.Lock()


def _runtime(file: ArtifactFile, section: str) -> ctypes.CDLL:
    key = file.sections[section].sha256
    with _runtimes_lock:
        if key not in _runtimes:
            library = _declared(_open_library(file.read(section), file.path))
            if _runtimes:
                first = next(iter(_runtimes.values()))
                library.korch_set_parallel_for(ctypes.cast(first.korch_pool_parallel_for, ctypes.c_void_p), None)
            _runtimes[key] = library
        return _runtimes[key]


def _open_library(data: bytes, path: Path) -> ctypes.CDLL:
    """Loads a library that is in memory: through an anonymous file, or a temporary one where that is refused."""
    try:
        descriptor = os.memfd_create("libkorch.so")
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        # It stays open: libraries are told apart by /proc/self/fd/N, so N must not be given to another file.
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except (OSError, AttributeError):
        pass
    try:
        with tempfile.NamedTemporaryFile(prefix="libkorch-", suffix=".so") as file:
            file.write(data)
            file.flush()
            return ctypes.CDLL(file.name)
    except OSError as error:
        raise ArtifactError(f"{path}: its runtime cannot be loaded ({error})") from error


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Says once what the functions take (without, a call costs several times as much)."""
    pointer, integer, text, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "korch_load": (pointer, (text, text, size)),
        "korch_free": (None, (pointer,)),
        "korch_plan_count": (integer, (pointer,)),
        "korch_plan_position": (integer, (pointer, integer)),
        "korch_context_new": (pointer, (pointer, integer, integer, text, size)),
        "korch_context_free": (None, (pointer,)),
        "korch_run": (integer, (pointer, pointer, pointer)),
        "korch_set_parallel_for": (None, (pointer, pointer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _free(library: ctypes.CDLL, handle: int, contexts: _Contexts) -> None:
    for free in contexts.values():
        for context in free:
            library.korch_context_free(context.handle)
    library.korch_free(handle)


def _plan(manifest: Mapping[str, Any], position: int) -> LoadedPlan:
    record = manifest["plans"][position]

    def types(kind: str) -> Mapping[str, TensorType]:
        tensors = zip(manifest[kind], record[kind], strict=True)
        return MappingProxyType({t["name"]: TensorType(DType(t["dtype"]), tuple(s)) for t, s in tensors})

    return LoadedPlan(types("inputs"), types("outputs"), record)


def _listed(plans: tuple[LoadedPlan, ...]) -> str:
    """What the model takes: `x float32[1,3], mask bool[3]`, for each plan."""
    return " or ".join(", ".join(f"{n} {t}" for n, t in p.inputs.items()) or "no inputs" for p in plans)
