"""What the measuring process and its parent say to each other: pickled messages with their length before them."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from korch.codegen.kernel import Kernel
from korch.ir.fragment import Fragment


@dataclass(frozen=True)
class Job:
    """Measure a kernel of `fragment`, which is the library's number `position`."""

    fragment: Fragment
    kernel: Kernel
    position: int


@dataclass(frozen=True)
class Batch:
    """Jobs whose kernels are in one library. `cold_bytes`: weights rotate over at least that much memory, so that
    they come from beyond the last cache, as in a plan whose weights exceed it; 0 leaves them warm."""

    library: Path
    runtime: Path
    threads: int
    cold_bytes: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Outcome:
    """`microseconds` per call, or why the kernel is dropped. `started` is sent before a kernel runs."""

    microseconds: float | None = None
    failure: str | None = None
    started: bool = False


def spawn(module: str, **variables: str) -> subprocess.Popen[bytes]:
    """`python -m MODULE`, which finds what this process finds, with pipes to it; `variables` go to its environment."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=path, **variables),
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that `spawn` started, whatever it is doing."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def send(stream: BinaryIO, message: object) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> object | None:
    """The next message; None at the end of the stream."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))
