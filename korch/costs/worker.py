"""The measuring process: `python -m korch.costs.worker`.

It reads pickled `Batch`es from standard input and writes, for each kernel as soon as it is known, a pickled
`Outcome` to standard output. A kernel that crashes or hangs takes only this process down; the parent
(`korch.costs.measure`) sees which kernel it was, drops it, and starts another worker. Standard output carries
nothing else.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from korch.codegen.kernel import Kernel
from korch.costs.bounds import flops_of
from korch.costs.protocol import Batch, Job, Outcome, receive, send
from korch.costs.samples import mismatch, place, sample_inputs, view
from korch.costs.session import Session
from korch.ir.evaluate import evaluate
from korch.ir.fragment import Fragment
from korch.ir.primitives import TABLE

ALIGNMENT = 64
FLOPS_IN_DOUBLE = 2e8  # above this the reference is computed once, in the tensor's own precision
SECONDS_PER_SAMPLE = 1.5e-3
SAMPLES = 7
SLOW, SAMPLES_WHEN_SLOW = 0.01, 3  # seconds per call above which fewer samples must do
HOPELESS = 2.0  # a kernel whose first call takes so much longer than another's for the fragment is timed no further


def main() -> None:
    """Serves batches until standard input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints must not break the protocol
    source = os.fdopen(os.dup(0), "rb")
    with np.errstate(all="ignore"):
        while (batch := receive(source)) is not None:
            assert isinstance(batch, Batch)
            _serve(batch, out)


def _serve(batch: Batch, out: BinaryIO) -> None:
    library = ctypes.CDLL(str(batch.library))
    session = Session(batch.runtime, batch.threads)
    trial: Trial | None = None
    for job in batch.jobs:
        try:
            if trial is None or trial.fragment.key != job.fragment.key:
                trial = Trial(job.fragment)
            send(out, Outcome(started=True))
            send(out, _measure(library, session, job, trial, batch.cold_bytes))
        except Exception as error:  # a kernel's failure is a result, not the end of the run
            send(out, Outcome(failure=f"{type(error).__name__}: {error}"))
    send(out, None)


class Trial:
    """A fragment's sample inputs and reference outputs, made once for all its implementations, and the best time."""

    def __init__(self, fragment: Fragment) -> None:
        graph = fragment.graph
        self.fragment = fragment
        self.best = math.inf  # seconds of the fastest kernel so far
        heavy = sum(flops_of(graph, d) for d in graph.definitions) > FLOPS_IN_DOUBLE
        kinds = {TABLE[d.primitive].kind for d in graph.definitions}
        self.rounds = [Round(fragment, adversarial=False, in_double=not heavy)]
        if "linear" not in kinds:
            self.rounds.append(Round(fragment, adversarial=True, in_double=True))


class Round:
    """Inputs to try kernels on. The reference in float64 is made when a kernel differs from the one in the tensors'
    own precision, and not for a fragment that takes long (`in_double`)."""

    def __init__(self, fragment: Fragment, *, adversarial: bool, in_double: bool) -> None:
        graph = self._graph = fragment.graph
        self.kind = "adversarial" if adversarial else "random"
        self.values = sample_inputs(fragment, adversarial=adversarial)
        self._named = {name: self.values[value] for name, value in graph.inputs}
        self._expected = evaluate(graph, self._named)
        self._double: Mapping[str, np.ndarray] | None = None
        self._in_double = in_double

    def mismatch(self, got: Mapping[str, np.ndarray]) -> str | None:
        """What is wrong with a kernel's results, None when nothing is."""
        adversarial = self.kind == "adversarial"
        wrong = mismatch(got, self._expected, self._double, adversarial=adversarial)
        if wrong is None or not self._in_double or self._double is not None:
            return wrong
        self._double = evaluate(self._graph, self._named, double=True)
        return mismatch(got, self._expected, self._double, adversarial=adversarial)


def _measure(library: ctypes.CDLL, session: Session, job: Job, trial: Trial, cold_bytes: int) -> Outcome:
    fragment, kernel, scratch = job.fragment, job.kernel, job.kernel.worker_scratch_bytes
    for attempt in reversed(trial.rounds):
        call = Call(fragment, kernel, attempt.values)
        session.seconds(library, job.position, call.pointers([call.arrays]), 1, scratch)
        wrong = attempt.mismatch(call.results()) or call.overrun()
        if wrong:
            return Outcome(failure=f"wrong result on {attempt.kind} inputs: {wrong}")
    call = Call(fragment, kernel, trial.rounds[0].values)
    lists = call.pointers(call.copies(cold_bytes))

    def timed(repeats: int) -> float:
        return session.seconds(library, job.position, lists, repeats, scratch) / repeats

    once = timed(len(lists))
    if once > HOPELESS * trial.best:
        return Outcome(microseconds=once * 1e6)
    repeats = max(1, round(SECONDS_PER_SAMPLE / max(once, 1e-8)))
    timed(repeats)
    times = sorted(timed(repeats) for _ in range(SAMPLES if once < SLOW else SAMPLES_WHEN_SLOW))
    median = times[len(times) // 2]
    trial.best = min(trial.best, median)
    return Outcome(microseconds=median * 1e6)


GUARD = 64  # bytes behind each output that a kernel must leave alone


class Call:
    """The memory of one kernel call."""

    def __init__(self, fragment: Fragment, kernel: Kernel, values: Mapping[str, np.ndarray]) -> None:
        self.fragment, self.kernel = fragment, kernel
        graph = fragment.graph
        self.arrays: list[np.ndarray] = []
        self.outputs: dict[str, tuple[np.ndarray, int]] = {}
        self.weights: list[int] = []  # positions in `arrays` that hold weights
        self.kept: list[list[np.ndarray]] = []
        self._memory: list[object] = []
        for a in kernel.arguments:
            if a.kind == "input":
                if a.value in fragment.weights:
                    self.weights.append(len(self.arrays))
                self.arrays.append(_aligned(place(values[a.value], fragment.layouts[a.value])))
            elif a.kind == "packed":
                packed = kernel.packed[a.index]
                self.weights.append(len(self.arrays))
                self.arrays.append(_aligned(packed.packer(*(values[w] for w in packed.weights)).reshape(-1)))
            elif a.kind == "output":
                t = graph.types[a.value]
                size = fragment.layouts[a.value].span(t.shape) * t.dtype.size
                buffer = _aligned(np.full(size + GUARD, 0xA5, np.uint8))
                self.outputs[a.value] = (buffer, size)
                self.arrays.append(buffer)
            else:
                self.arrays.append(_aligned(np.full(kernel.scratch_bytes, 0xA5, np.uint8)))

    def copies(self, cold_bytes: int) -> list[list[np.ndarray]]:
        """Argument lists whose weights are in different places, enough to fill `cold_bytes`."""
        size = sum(self.arrays[i].nbytes for i in self.weights)
        count = 1 if not cold_bytes or not size else min(64, max(1, -(-cold_bytes // size)))
        if size * count > 1 << 30:
            count = max(1, (1 << 30) // size)
        found = [list(self.arrays)]
        for _ in range(count - 1):
            found.append([_aligned(a) if i in self.weights else a for i, a in enumerate(self.arrays)])
        return found

    def pointers(self, sets: list[list[np.ndarray]]) -> ctypes.Array[ctypes.c_void_p]:
        self.kept = sets
        tables = [(ctypes.c_void_p * max(1, len(s)))(*(a.ctypes.data for a in s)) for s in sets]
        array = (ctypes.c_void_p * len(tables))(*(ctypes.addressof(t) for t in tables))
        self._memory = [tables, array]
        return array

    def results(self) -> dict[str, np.ndarray]:
        graph = self.fragment.graph
        found: dict[str, np.ndarray] = {}
        for name, value in graph.outputs:
            buffer, size = self.outputs[value]
            t = graph.types[value]
            found[name] = view(buffer[:size].view(t.dtype.numpy), t.shape, self.fragment.layouts[value])
        return found

    def overrun(self) -> str | None:
        for value, (buffer, size) in self.outputs.items():
            if not np.all(buffer[size:] == 0xA5):
                return f"writes past the end of output {value}"
        return None


def _aligned(array: np.ndarray) -> np.ndarray:
    """A flat copy that starts at a multiple of 64 bytes."""
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    result = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


if __name__ == "__main__":
    main()
