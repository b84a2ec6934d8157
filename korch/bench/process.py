"""The process of one engine: `python -m korch.bench.process ENGINE MODEL INPUTS.npz THREADS`.

It loads the model and then obeys lines on standard input: `run N` answers with N times in nanoseconds, `save FILE`
writes the outputs of one run as FILE (npz), `memory` answers with the peak resident memory in bytes. Every answer
is one JSON line on standard output.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from korch.bench.engines import ENGINES
from korch.errors import KorchError


def main() -> None:
    engine, model, inputs, threads = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an engine's own messages must not break the protocol
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    with np.load(inputs) as stored:
        names = stored["arr_0"].tolist()
        arrays = {name: stored[f"arr_{k}"] for k, name in enumerate(names, 1)}
    run = ENGINES[engine](model, arrays, threads)

    def answer(value: object) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    answer("ready")
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "run":
            times: list[int] = []
            for _ in range(int(argument)):
                start = time.perf_counter_ns()
                run()
                times.append(time.perf_counter_ns() - start)
            answer(times)
        elif command == "save":
            np.savez(argument, *[np.asarray(a) for a in run().values()])  # in the model's order
            answer("saved")
        elif command == "memory":
            answer(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    try:
        main()
    except KorchError as error:
        sys.exit(str(error))
