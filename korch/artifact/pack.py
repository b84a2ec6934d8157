"""Writing a `.korch` file (docs/artifact.md)."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from korch.artifact.format import (
    FORMAT,
    HEADER,
    SECTION_ALIGNMENT,
    Section,
    TablePlan,
    TableTensor,
    header_bytes,
    table_bytes,
)
from korch.codegen.target import Target


@dataclass(frozen=True)
class Tensor:
    """An input or output of the model: the name, and the dtype as in NumPy."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Weights:
    """The constant block of a plan: `size` bytes, zero but for the arrays, each at its offset.

    The arrays are in ascending order of offset and do not overlap.
    """

    size: int = 0
    arrays: tuple[tuple[int, np.ndarray], ...] = ()


@dataclass(frozen=True)
class Plan:
    """One way to run the model: for one target and one shape of each input.

    `code` is a shared library that exports `korch_run` (docs/kernels.md); `source` is what it was compiled from.
    `kernels` and `certificate` are what JSON can hold; they are for the reader.
    """

    target: Target
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    code: bytes
    weights: Weights = Weights()
    source: str = ""
    threads: int = 1
    arena_bytes: int = 0
    worker_scratch_bytes: int = 0
    kernels: tuple[Mapping[str, Any], ...] = ()
    certificate: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Artifact:
    """What a file holds. `runtimes` maps an architecture (`x86_64`, `aarch64`) to libkorch.so for it; every
    plan's must be there. `model` names what was optimized (`name`, `sha256`)."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    plans: tuple[Plan, ...]
    runtimes: Mapping[str, bytes]
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])


def pack(artifact: Artifact, path: str | Path) -> None:
    """Writes the file: equal artifacts give equal bytes, and the path holds the whole file or what it held before.

    Sections with equal bytes are stored once. ValueError when a plan's shapes do not go with the tensors, a name
    is given twice, or a runtime is missing; OSError when the file cannot be written.
    """
    _check(artifact)
    contents = _contents(artifact)
    placed = _place(artifact, contents)
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            _write(file, placed)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _check(artifact: Artifact) -> None:
    for tensors in (artifact.inputs, artifact.outputs):
        names = [t.name for t in tensors]
        if len(set(names)) < len(names):
            raise ValueError(f"a name is given twice: {', '.join(names)}")
    for plan in artifact.plans:
        if len(plan.inputs) != len(artifact.inputs) or len(plan.outputs) != len(artifact.outputs):
            raise ValueError("a plan needs one shape for each input and each output of the model")
        if _machine(plan) not in artifact.runtimes:
            raise ValueError(f"the runtime for {_machine(plan)} is missing")


def _machine(plan: Plan) -> str:
    return plan.target.triple.split("-")[0]


@dataclass(frozen=True)
class _Content:
    """A section's bytes, in pieces, with their hash. `names`: which sections these are."""

    size: int
    sha256: str
    weights: Weights
    names: list[str]


def _contents(artifact: Artifact) -> list[_Content]:
    """The distinct sections in the order of the file."""
    found: dict[str, _Content] = {}
    shared = {id(plan.weights): plan.weights for plan in artifact.plans}  # plans may hold the same object: hash it once
    hashes = {key: _sha256(weights) for key, weights in shared.items()}

    def add(name: str, weights: Weights) -> None:
        sha256 = hashes.get(id(weights)) or _sha256(weights)
        found.setdefault(sha256, _Content(weights.size, sha256, weights, [])).names.append(name)

    for architecture in sorted({_machine(plan) for plan in artifact.plans}):
        add(f"runtime:{architecture}", _whole(artifact.runtimes[architecture]))
    for index, plan in enumerate(artifact.plans):
        add(f"code:{index}", _whole(plan.code))
        add(f"source:{index}", _whole(plan.source.encode()))
        add(f"weights:{index}", plan.weights)
    return list(found.values())


def _sha256(weights: Weights) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(weights):
        digest.update(piece)
    return digest.hexdigest()


def _whole(data: bytes) -> Weights:
    return Weights(len(data), ((0, np.frombuffer(data, np.uint8)),))


def _pieces(weights: Weights) -> Iterator[bytes | memoryview]:
    """The bytes of a section, gaps filled with zeros."""
    at = 0
    for offset, array in weights.arrays:
        if offset < at or offset + array.nbytes > weights.size:
            raise ValueError(f"the array at {offset} overlaps another or exceeds the {weights.size} bytes")
        yield bytes(offset - at)
        if array.nbytes:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        at = offset + array.nbytes
    yield bytes(weights.size - at)


@dataclass(frozen=True)
class _Placed:
    head: bytes  # header, manifest, plan table
    contents: tuple[tuple[int, _Content], ...]  # with their offsets
    size: int


def _place(artifact: Artifact, contents: list[_Content]) -> _Placed:
    """Offsets for the sections. The manifest, which comes first, grows with the digits of the offsets."""
    start = SECTION_ALIGNMENT
    while True:
        at, offsets = start, list[int]()
        for content in contents:
            offsets.append(at)
            at = _aligned(at + content.size)
        end = max((o + c.size for o, c in zip(offsets, contents, strict=True)), default=start)
        sections = {
            name: Section(offset, content.size, content.sha256)
            for offset, content in zip(offsets, contents, strict=True)
            for name in content.names
        }
        manifest, table = _manifest(artifact, sections), _table(artifact, sections)
        head = header_bytes(manifest, table, end) + manifest + table
        if len(head) <= start:
            return _Placed(head, tuple(zip(offsets, contents, strict=True)), end)
        start = _aligned(len(head))


def _aligned(size: int) -> int:
    return -(-size // SECTION_ALIGNMENT) * SECTION_ALIGNMENT


def _write(file: BinaryIO, placed: _Placed) -> None:
    file.write(placed.head)
    for offset, content in placed.contents:
        file.write(bytes(offset - file.tell()))
        for piece in _pieces(content.weights):
            file.write(piece)
    file.write(bytes(placed.size - file.tell()))


def _manifest(artifact: Artifact, sections: Mapping[str, Section]) -> bytes:
    """UTF-8 JSON, padded with spaces to a multiple of 8 bytes."""
    plans = [
        {
            "target": plan.target.name,
            "machine": _machine(plan),
            "features": plan.target.features,
            "threads": plan.threads,
            "inputs": plan.inputs,
            "outputs": plan.outputs,
            "arena_bytes": plan.arena_bytes,
            "worker_scratch_bytes": plan.worker_scratch_bytes,
            "code": f"code:{index}",
            "source": f"source:{index}",
            "weights": f"weights:{index}",
            "runtime": f"runtime:{_machine(plan)}",
            "kernels": plan.kernels,
            "certificate": plan.certificate,
        }
        for index, plan in enumerate(artifact.plans)
    ]
    value = {
        "format": FORMAT,
        "korch": _version(),
        "model": artifact.model,
        "inputs": [{"name": t.name, "dtype": t.dtype} for t in artifact.inputs],
        "outputs": [{"name": t.name, "dtype": t.dtype} for t in artifact.outputs],
        "sections": {name: {"offset": s.offset, "size": s.size, "sha256": s.sha256} for name, s in sections.items()},
        "plans": plans,
    }
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return data + b" " * (-(HEADER.size + len(data)) % 8)


def _version() -> str:
    try:
        return metadata.version("korch-compiler")
    except metadata.PackageNotFoundError:
        return "unknown"


def _table(artifact: Artifact, sections: Mapping[str, Section]) -> bytes:
    def tensors(some: Iterable[Tensor]) -> list[TableTensor]:
        return [TableTensor(t.name, t.dtype) for t in some]

    plans = [
        TablePlan(
            machine=_machine(plan),
            features=plan.target.features,
            threads=plan.threads,
            arena_bytes=plan.arena_bytes,
            worker_scratch_bytes=plan.worker_scratch_bytes,
            code=sections[f"code:{index}"],
            weights=sections[f"weights:{index}"],
            shapes=(*plan.inputs, *plan.outputs),
        )
        for index, plan in enumerate(artifact.plans)
    ]
    return table_bytes(tensors(artifact.inputs), tensors(artifact.outputs), plans)
