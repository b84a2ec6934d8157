"""Measured costs of fragments: look up, generate, compile, and measure what is not yet known.

Compiling and measuring are separate phases, so that a compiler never runs beside a measurement. Measuring runs in
a spawned worker process (`korch.costs.worker`) with a time limit: a kernel that crashes, hangs or returns wrong
numbers is dropped and named, and the run goes on.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import select
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import korch.codegen
from korch.codegen.c.backend import kernel_hash, library_source
from korch.codegen.kernel import Kernel
from korch.codegen.target import Target
from korch.codegen.toolchain import Toolchain, compile_shared
from korch.costs.database import Cost, Database
from korch.costs.generators import Generators
from korch.costs.protocol import Batch, Job, Outcome, end, send, spawn
from korch.costs.session import harness
from korch.errors import KorchError, ToolchainError
from korch.ir.fragment import Fragment

C_BACKEND = "korch.codegen.c.backend:implementations"
KERNELS_PER_LIBRARY = 24
SECONDS_PER_KERNEL = 30.0
SECONDS_PER_REFERENCE = 300.0


@dataclass(frozen=True)
class Setting:
    """The state that costs are measured in."""

    device: str
    toolchain: Toolchain
    target: Target
    threads: int
    runtime: Path
    cold_bytes: int = 0
    backend: str = C_BACKEND
    seconds_per_kernel: float = SECONDS_PER_KERNEL
    numerics: str = "default"

    @property
    def text(self) -> str:
        weights = "cold" if self.cold_bytes else "warm"
        return f"{self.device}|{self.target.name}|{self.toolchain.version}|{self.threads} threads|weights {weights}"


def generator_version() -> str:
    """Changes whenever the sources of code generation do."""
    return sources_version("codegen", "ir")


@cache
def sources_version(*folders: str) -> str:
    """Changes whenever the sources in these folders of the package do, or any of the package's when none is named."""
    root = Path(korch.codegen.__file__).parent.parent
    digest = hashlib.sha256()
    for folder in folders or (".",):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Offer:
    """One implementation of a fragment: its place among them, its hash, what it is called, and whether it computes
    exactly what the definition says (`strict` numerics takes no other)."""

    index: int
    kernel: str
    label: str
    exact: bool


@dataclass(frozen=True)
class Choice:
    """The cheapest implementation of a fragment that works, and its microseconds per call."""

    microseconds: float
    offer: Offer


@dataclass(frozen=True)
class Dropped:
    """An implementation that misbehaved (`broken`), or a fragment that the backend offers none for, and why."""

    fragment: Fragment
    label: str
    reason: str
    broken: bool = True


@dataclass
class Measurer:
    """Measures fragments in one setting; `choices` accumulates by fragment key (None: nothing computes it), `ranked`
    all that work. A context, which ends the processes that generate kernels."""

    setting: Setting
    database: Database
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None
    choices: dict[str, Choice | None] = field(default_factory=dict[str, Choice | None])
    ranked: dict[str, tuple[Choice, ...]] = field(default_factory=dict[str, tuple[Choice, ...]])
    dropped: list[Dropped] = field(default_factory=list[Dropped])
    measured: int = 0
    _kernels: dict[str, tuple[Kernel, ...]] = field(default_factory=dict[str, tuple[Kernel, ...]])

    def __post_init__(self) -> None:
        self._generators = Generators(self.setting.backend, self.setting.target)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._generators.__exit__()

    def measure(self, fragments: Iterable[Fragment]) -> dict[str, Choice | None]:
        """The best implementation of each fragment, by its key."""
        wanted = {f.key: f for f in fragments}
        missing = [f for key, f in wanted.items() if key not in self.choices]
        offers = self._offers(missing)
        costs = {f.key: self.database.costs(f.key, self.setting.text) for f in missing}
        unknown = {f.key: [o for o in offers[f.key] if o.kernel not in costs[f.key]] for f in missing}
        self._generate([f for f in missing if unknown[f.key]])
        todo = [(f, o.index, self._kernels[f.key][o.index]) for f in missing for o in unknown[f.key]]
        for cost in self._measure_all(todo):
            costs[cost.fragment][cost.kernel] = cost
        for fragment in missing:
            ranked = self._ranked(fragment, offers[fragment.key], costs[fragment.key])
            self.ranked[fragment.key], self.choices[fragment.key] = ranked, ranked[0] if ranked else None
        self._kernels.clear()  # sources of thousands take much memory; the few that are chosen are made again
        return {key: self.choices[key] for key in wanted}

    def kernel(self, fragment: Fragment, weights: Mapping[str, np.ndarray]) -> Kernel:
        """The cheapest implementation of a measured fragment that accepts these weights, by their names in it.

        Those that do not are listed in `dropped`. KorchError when all refuse.
        """
        self._generate([fragment])
        refusals: list[str] = []
        for choice in self.ranked[fragment.key]:
            kernel = self._kernels[fragment.key][choice.offer.index]
            refusal = next(
                (r for p in kernel.packed if p.guard and (r := p.guard(*(weights[w] for w in p.weights)))), None
            )
            if refusal is None:
                return kernel
            refusals.append(refusal)
            self.dropped.append(Dropped(fragment, choice.offer.label, refusal))
        raise KorchError(f"no kernel takes the weights of the model: {'; '.join(refusals) or 'none was measured'}")

    def prepare(self, fragments: Iterable[Fragment]) -> None:
        """Generates the kernels of fragments for `kernel`, in several processes."""
        self._generate({f.key: f for f in fragments}.values())

    def _generate(self, fragments: Iterable[Fragment]) -> dict[str, tuple[Kernel, ...] | str]:
        """What the backend offers for those fragments that are not generated yet."""
        missing = [f for f in fragments if f.key not in self._kernels]
        found: dict[str, tuple[Kernel, ...] | str] = {}
        for fragment, offered in zip(missing, self._generators.generate(missing), strict=True):
            self.progress("generate", len(found), len(missing))
            found[fragment.key] = offered
            self._kernels[fragment.key] = () if isinstance(offered, str) else offered
        return found

    def _offers(self, fragments: Sequence[Fragment]) -> dict[str, list[Offer]]:
        """What the backend offers for each fragment: remembered, or generated."""
        generator = f"{self.setting.backend}|{self.setting.target}|{generator_version()}"
        known = {f.key: self.database.offers(f.key, generator) for f in fragments}
        fresh: dict[str, object] = {
            key: offered if isinstance(offered, str) else [[kernel_hash(k), k.label, k.exact] for k in offered]
            for key, offered in self._generate(f for f in fragments if known[f.key] is None).items()
        }
        found: dict[str, list[Offer]] = {}
        for fragment in fragments:
            stored = fresh.get(fragment.key, known[fragment.key])
            if isinstance(stored, str):
                self.dropped.append(Dropped(fragment, "none", stored, broken=False))
                stored = []
            assert isinstance(stored, list)
            offers = [Offer(i, str(row[0]), str(row[1]), bool(row[2])) for i, row in enumerate(stored)]
            found[fragment.key] = [o for o in offers if o.exact or self.setting.numerics != "strict"]
        if fresh:
            self.database.store_offers(generator, fresh)
        return found

    def _ranked(self, fragment: Fragment, offers: Sequence[Offer], costs: dict[str, Cost]) -> tuple[Choice, ...]:
        """The implementations that work, the cheapest first."""
        found: list[Choice] = []
        for offer in offers:
            cost = costs[offer.kernel]
            if cost.microseconds is None:
                self.dropped.append(Dropped(fragment, offer.label, cost.failure or "unknown"))
            else:
                found.append(Choice(cost.microseconds, offer))
        return tuple(sorted(found, key=lambda c: c.microseconds))

    def _measure_all(self, todo: list[tuple[Fragment, int, Kernel]]) -> list[Cost]:
        """Compiles, then measures; every result is stored as soon as it is known."""
        if not todo:
            return []
        found: list[Cost] = []
        with tempfile.TemporaryDirectory(prefix="korch-") as folder, _Workers(self.setting) as workers:
            groups = [todo[i : i + KERNELS_PER_LIBRARY] for i in range(0, len(todo), KERNELS_PER_LIBRARY)]
            compiled, failed = self._compile_all(groups, Path(folder))
            found.extend(failed)
            self.database.store(failed)
            done = len(failed)
            for library, group in compiled:
                for (fragment, _, kernel), outcome in zip(group, workers.run(library, group), strict=True):
                    cost = self._cost(fragment, kernel, outcome.microseconds, outcome.failure)
                    self.database.store([cost])
                    found.append(cost)
                    done += 1
                    self.measured += 1
                    self.progress("measure", done, len(todo))
        return found

    def _cost(self, fragment: Fragment, kernel: Kernel, us: float | None, failure: str | None) -> Cost:
        return Cost(fragment.key, kernel_hash(kernel), self.setting.text, kernel.label, us, failure)

    def _compile_all(
        self, groups: list[list[tuple[Fragment, int, Kernel]]], folder: Path
    ) -> tuple[list[tuple[Path, list[tuple[Fragment, int, Kernel]]]], list[Cost]]:
        """One library a group. A group that does not compile is tried kernel by kernel."""
        compiled: list[tuple[Path, list[tuple[Fragment, int, Kernel]]]] = []
        failed: list[Cost] = []

        def build(item: tuple[str, list[tuple[Fragment, int, Kernel]]]) -> Path | str:
            name, group = item
            names = [f"kernel_{i}" for i in range(len(group))]
            kernels = [(n, k) for n, (_, _, k) in zip(names, group, strict=True)]
            source = library_source(kernels, self.setting.target, harness(names))
            try:
                output = folder / f"{name}.so"
                compile_shared(self.setting.toolchain, source, self.setting.target, output)
                return output
            except ToolchainError as error:
                return str(error)

        named = [(f"library{n}", group) for n, group in enumerate(groups)]
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
            for done, ((name, group), result) in enumerate(zip(named, pool.map(build, named), strict=True)):
                self.progress("compile", done + 1, len(groups))
                if isinstance(result, Path):
                    compiled.append((result, group))
                    continue
                for k, one in enumerate(group):
                    alone = build((f"{name}_{k}", [one]))
                    if isinstance(alone, Path):
                        compiled.append((alone, [one]))
                    else:
                        failed.append(self._cost(one[0], one[2], None, f"does not compile: {alone}"))
        return compiled, failed


class _Workers:
    """The worker process, started again whenever it dies."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, library: Path, group: list[tuple[Fragment, int, Kernel]]) -> Iterator[Outcome]:
        """The kernels' outcomes, in order. After a crash the kernels that remain go to a new worker."""
        jobs = [Job(f, k, n) for n, (f, _, k) in enumerate(group)]
        while jobs:
            for outcome in self._attempt(library, tuple(jobs)):
                jobs.pop(0)
                yield outcome

    def _attempt(self, library: Path, jobs: tuple[Job, ...]) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs; ends early, with a failure for the culprit, when the worker dies."""
        s = self.setting
        batch = Batch(library, s.runtime, s.threads, s.cold_bytes, jobs)
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        limit = SECONDS_PER_REFERENCE
        done = 0
        try:
            send(process.stdin, batch)  # type: ignore[arg-type]
            while (outcome := _receive(process.stdout.fileno(), limit)) is not None:
                assert isinstance(outcome, Outcome)
                limit = s.seconds_per_kernel if outcome.started else SECONDS_PER_REFERENCE
                if not outcome.started:
                    done += 1
                    yield outcome
            return
        except TimeoutError:
            self._stop()
            how = f"took longer than {limit:g} s"
        except (EOFError, BrokenPipeError):
            code = process.wait()
            self._stop()
            how = f"crashed the process (signal {-code})" if code < 0 else f"ended the process (exit code {code})"
        if done < len(jobs):
            yield Outcome(failure=how)

    def _start(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            self.process = spawn("korch.costs.worker", **one)
        return self.process

    def _stop(self) -> None:
        if self.process is not None:
            end(self.process)
            self.process = None


def _receive(descriptor: int, seconds: float) -> object | None:
    """The worker's next message; TimeoutError when none comes in time, EOFError when the worker is gone."""
    deadline = time.monotonic() + seconds

    def read(count: int) -> bytes:
        data = b""
        while len(data) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(descriptor, count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    return pickle.loads(read(struct.unpack("<Q", read(8))[0]))
