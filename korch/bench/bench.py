"""Engines timed against each other on one model and one input."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from korch.bench.engines import ENGINES, engine_of, missing_package
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
    """The timings of all engines from one interleaved run, and their outputs in the model's order."""

    timings: Mapping[str, Timing]
    outputs: Mapping[str, tuple[np.ndarray, ...]]

    def speedup(self, over: str, of: str = "korch") -> float:
        """How many times faster `of` is than `over`, by medians."""
        return self.timings[over].median_ms / self.timings[of].median_ms


def check_engines(labels: Iterable[str]) -> None:
    """InvalidInput names an engine that is unknown or not installed. A label is `ENGINE` or `ENGINE:ANYTHING`."""
    for name in map(engine_of, labels):
        if name not in ENGINES:
            raise InvalidInput(f"unknown engine {name!r}; the engines are: {', '.join(ENGINES)}")
        if package := missing_package(name):
            raise InvalidInput(f"the engine {name} needs the package {package}; install it, or leave it out")


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
    engine that is unknown or not installed.
    """
    check_engines(files)
    with tempfile.TemporaryDirectory(prefix="korch-bench-") as folder:
        stored = Path(folder) / "inputs.npz"
        np.savez(stored, np.array(list(inputs)), *inputs.values())
        engines: dict[str, _Engine] = {}
        try:
            for done, (name, path) in enumerate(files.items()):
                progress(f"start {name}", done, len(files))
                engines[name] = _Engine(name, path, stored, threads)
                engines[name].stop()
            times = _alternate(engines, rounds, progress)
            outputs: dict[str, tuple[np.ndarray, ...]] = {}
            peaks: dict[str, int] = {}
            for k, (name, engine) in enumerate(engines.items()):
                with engine:
                    file = Path(folder) / f"{k}.npz"
                    engine.ask(f"save {file}")
                    peaks[name] = engine.ask("memory")
                with np.load(file) as data:
                    outputs[name] = tuple(data[f"arr_{k}"] for k in range(len(data.files)))
        finally:
            for engine in engines.values():
                engine.kill()
    return Comparison({name: Timing(tuple(times[name]), peaks[name]) for name in files}, outputs)


def _alternate(
    engines: Mapping[str, _Engine], rounds: int, progress: Callable[[str, int, int], None]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in engines}
    burst: dict[str, int] = {}
    names: Sequence[str] = list(engines)
    for r in range(rounds):
        for name in names if r % 2 == 0 else list(reversed(names)):
            progress(f"time {name}", r, rounds)
            with engines[name] as engine:
                if name not in burst:  # warm up, then choose the burst's length
                    first = engine.ask("run 2")
                    burst[name] = max(2, min(200, round(SECONDS_PER_BURST * 1e9 / first[1])))
                found = engine.ask(f"run {burst[name] + 1}")
                times[name].extend(t / 1e6 for t in found[1:])
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
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip().splitlines()
            raise KorchError(f"the engine {self.label} failed: {said[-1] if said else 'no message'}")
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()
