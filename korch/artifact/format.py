"""The bytes of a `.korch` file: header, manifest, plan table, sections (docs/artifact.md).

Only the standard library is needed. Writing is in `korch.artifact.pack`, loading in `korch.artifact.load`; the
C runtime reads the header and the plan table on its own (`runtime/model.c`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from korch.errors import ArtifactError

MAGIC = b"KORCHv01"
FORMAT = 1
HEADER = struct.Struct("<8sQQQ32s")  # magic; bytes of manifest, table and file; SHA-256 of all that but itself
HASHED_HEADER = 32  # bytes of the header before the hash
SECTION_ALIGNMENT = 4096
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Section:
    """Bytes of the file: where, how many, and their SHA-256 in hexadecimal digits."""

    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class ArtifactFile:
    """A file whose header, manifest and plan table are sound. Sections are read and checked on demand."""

    path: Path
    manifest: Mapping[str, Any]
    sections: Mapping[str, Section]

    def read(self, name: str) -> bytes:
        """The bytes of a section; ArtifactError when there is none of that name or its hash does not match."""
        section = self._section(name)
        with self.path.open("rb") as file:
            file.seek(section.offset)
            data = file.read(section.size)
        if hashlib.sha256(data).hexdigest() != section.sha256:
            raise _damaged(self.path, name)
        return data

    def check(self) -> None:
        """Reads the whole file; ArtifactError names the first section whose hash does not match."""
        buffer = memoryview(bytearray(_CHUNK))
        with self.path.open("rb") as file:
            for name, section in self.sections.items():
                file.seek(section.offset)
                digest, left = hashlib.sha256(), section.size
                while left and (got := file.readinto(buffer[: min(left, _CHUNK)])):
                    digest.update(buffer[:got])
                    left -= got
                if digest.hexdigest() != section.sha256:
                    raise _damaged(self.path, name)

    def _section(self, name: str) -> Section:
        if name not in self.sections:
            known = ", ".join(self.sections)
            raise ArtifactError(f"{self.path} has no section {name!r}; it has: {known}")
        return self.sections[name]


def open_artifact(path: str | Path) -> ArtifactFile:
    """Reads the header and the manifest.

    ArtifactError, in one line, when the file cannot be read, is not a `.korch` file, is truncated or damaged, or
    has another format.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _read(path, file.read(HEADER.size), file)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, head: bytes, file: Any) -> ArtifactFile:
    if head[:6] != MAGIC[:6]:
        raise ArtifactError(f"{path} is not a .korch file")
    if len(head) >= 8 and head[:8] != MAGIC:
        found = head[6:8].decode("ascii", "replace")
        raise ArtifactError(
            f"{path} has format {found!r} and this Korch reads '01'; update korch, or optimize the model again"
        )
    size = path.stat().st_size
    if len(head) < HEADER.size:
        raise ArtifactError(f"{path} is truncated: it has {size} bytes of at least {HEADER.size}; copy it again")
    _, manifest_size, table_size, file_size, digest = HEADER.unpack(head)
    if file_size > size:
        raise ArtifactError(f"{path} is truncated: it has {size} bytes of {file_size}; copy it again")
    body = b""
    if file_size == size and manifest_size + table_size <= size:
        body = file.read(manifest_size + table_size)
    if hashlib.sha256(head[:HASHED_HEADER] + body).digest() != digest:
        raise _damaged(path, "header")
    manifest = json.loads(body[:manifest_size])
    sections = {name: Section(**fields) for name, fields in manifest["sections"].items()}
    return ArtifactFile(path, manifest, sections)


def _damaged(path: Path, part: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: the hash of its {part} does not match; write it again")


# The plan table: little-endian 64-bit numbers; strings padded with at least one zero byte to a multiple of 8.


@dataclass(frozen=True)
class TableTensor:
    name: str
    dtype: str


@dataclass(frozen=True)
class TablePlan:
    """`shapes` are those of the inputs, then of the outputs."""

    machine: str
    features: tuple[str, ...]
    threads: int
    arena_bytes: int
    worker_scratch_bytes: int
    code: Section
    weights: Section
    shapes: tuple[tuple[int, ...], ...]


def table_bytes(inputs: Iterable[TableTensor], outputs: Iterable[TableTensor], plans: Iterable[TablePlan]) -> bytes:
    """The plan table, from which the C runtime learns all it needs."""
    first, last, plans = tuple(inputs), tuple(outputs), tuple(plans)
    parts = [_numbers(len(first), len(last), len(plans))]
    parts += [_string(text) for tensor in (*first, *last) for text in (tensor.name, tensor.dtype)]
    for plan in plans:
        parts += [_string(plan.machine), _string(" ".join(plan.features))]
        parts.append(_numbers(plan.threads, plan.arena_bytes, plan.worker_scratch_bytes))
        parts += [_section(plan.code), _section(plan.weights)]
        parts += [_numbers(len(shape), *shape) for shape in plan.shapes]
    return b"".join(parts)


def header_bytes(manifest: bytes, table: bytes, file_size: int) -> bytes:
    """The header of a file with this manifest and table."""
    head = HEADER.pack(MAGIC, len(manifest), len(table), file_size, bytes(32))[:HASHED_HEADER]
    return head + hashlib.sha256(head + manifest + table).digest()


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _string(text: str) -> bytes:
    data = text.encode()
    if b"\0" in data:
        raise ValueError(f"a name holds a zero byte: {text!r}")
    return _numbers(len(data)) + data + bytes(8 - len(data) % 8)


def _section(section: Section) -> bytes:
    return _numbers(section.offset, section.size) + bytes.fromhex(section.sha256)
