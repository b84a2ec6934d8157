"""Engines timed against each other on one model and one input."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from korch.bench.engines import ENGINES, engine_of, lacking
from korch.errors import InvalidInput, KorchError

SECONDS_PER_BURST = 0.4
ROUNDS = 8


@dataclass(frozen=True)
class Timing:
    """Times of single inferences in milliseconds, and the peak resident memory in bytes."""

    times_ms: tuple[float, ...]
    peak_bytes: int

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    def json(self) -> dict[str, object]:
        return {
            "median_ms": self.median_ms,
            "min_ms": min(self.times_ms),
            "runs": len(self.times_ms),
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Comparison:
    """The timings of all engines from one interleaved run, and their outputs in the model's order.

    `failed` holds the reason of each peer that could not convert, load or run the model; it is in neither of the two.
    """

    timings: Mapping[str, Timing]
    outputs: Mapping[str, tuple[np.ndarray, ...]]
    failed: Mapping[str, str] = field(default_factory=dict[str, str])

    def speedup(self, over: str, of: str = "korch") -> float:
        """How many times faster `of` is than `over`, by medians."""
        return self.timings[over].median_ms / self.timings[of].median_ms


def check_engines(labels: Iterable[str]) -> None:
    """InvalidInput names an engine that is unknown or not installed. A label is `ENGINE` or `ENGINE:ANYTHING`."""
    for name in map(engine_of, labels):
        if name not in ENGINES:
            raise InvalidInput(f"unknown engine {name!r}; the engines are: {', '.join(ENGINES)}")
        if lack := lacking(name):
            raise InvalidInput(f"the engine {name} needs {lack}; install it, or leave it out")


def compare_engines(
    files: Mapping[str, Path],
    inputs: Mapping[str, np.ndarray],
    threads: int,
    *,
    rounds: int = ROUNDS,
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> Comparison:
    """Times each engine in `files` (label -> its model file), one process each, in alternating bursts.

    A label is the name of an engine, or `ENGINE:ANYTHING` so that one engine can be timed with several files, such as
    `korch:full` and `korch:greedy`; timings and outputs are by label. Idle engines are stopped (SIGSTOP), so that
    spinning threads of one never slow another. The first inference of a burst is not counted. InvalidInput names an
    engine that is unknown or not installed; KorchError says why Korch itself failed.
    """
    check_engines(files)
    with tempfile.TemporaryDirectory(prefix="korch-bench-") as folder:
        stored = Path(folder) / "inputs.npz"
        np.savez(stored, np.array(list(inputs)), *inputs.values())
        engines: dict[str, _Engine] = {}
        failed: dict[str, str] = {}
        outputs: dict[str, tuple[np.ndarray, ...]] = {}
        peaks: dict[str, int] = {}
        try:
            for done, (label, path) in enumerate(files.items()):
                progress(f"start {label}", done, len(files))
                engines[label] = _Engine(label, path, stored, threads)
                with _peers_may_fail(label, failed):
                    engines[label].wait()
                engines[label].stop()
            times = _alternate(engines, rounds, failed, progress)
            for k, (label, engine) in enumerate(engines.items()):
                file = Path(folder) / f"{k}.npz"
                if label in failed:
                    continue
                with _peers_may_fail(label, failed), engine:
                    engine.ask(f"save {file}")
                    peaks[label] = engine.ask("memory")
                    with np.load(file) as data:
                        outputs[label] = tuple(data[f"arr_{j}"] for j in range(len(data.files)))
        finally:
            for engine in engines.values():
                engine.kill()
    timings = {label: Timing(tuple(times[label]), peaks[label]) for label in files if label not in failed}
    return Comparison(timings, outputs, failed)


@contextmanager
def _peers_may_fail(label: str, failed: dict[str, str]) -> Generator[None]:
    """What a peer cannot do is noted; what Korch cannot do is an error."""
    try:
        yield
    except KorchError as error:
        if engine_of(label) == "korch":
            raise
        failed[label] = str(error)


def _alternate(
    engines: Mapping[str, _Engine],
    rounds: int,
    failed: dict[str, str],
    progress: Callable[[str, int, int], None],
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {label: [] for label in engines}
    burst: dict[str, int] = {}
    labels: Sequence[str] = list(engines)
    for r in range(rounds):
        for label in labels if r % 2 == 0 else list(reversed(labels)):
            if label in failed:
                continue
            progress(f"time {label}", r, rounds)
            with _peers_may_fail(label, failed), engines[label] as engine:
                if label not in burst:  # warm up, then choose the burst's length
                    first = engine.ask("run 2")
                    burst[label] = max(2, min(200, round(SECONDS_PER_BURST * 1e9 / first[1])))
                found = engine.ask(f"run {burst[label] + 1}")
                times[label].extend(t / 1e6 for t in found[1:])
    return times


class _Engine:
    """One engine's process. As a context it is awake, outside it is stopped."""

    def __init__(self, label: str, model: Path, inputs: Path, threads: int) -> None:
        self.label = label
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        environment.update(OMP_NUM_THREADS=str(threads))
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `kill`)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "korch.bench.process", engine_of(label), str(model), str(inputs), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )

    def wait(self) -> None:
        """Until the model is loaded."""
        self._answer()

    def __enter__(self) -> _Engine:
        self.process.send_signal(signal.SIGCONT)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `_answer` says why it ended
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()  # its last words may come after its output has ended
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()
            reason = f"killed by {signal.Signals(-code).name}" if code < 0 else said[-1] if said else "no message"
            raise KorchError(f"the engine {self.label} failed: {reason}")
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
