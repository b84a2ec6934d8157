"""`korch doctor`: does this machine have what Korch needs?"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys

import typer

from korch.cli.common import JsonOption, errors_in_one_line, print_json, say


def doctor(json: JsonOption = False) -> None:
    """Report the compiler, the CPU's features, the cache and the GPU; exit code 1 when something needed is missing."""
    from korch.cache_dir import korch_cache_dir
    from korch.codegen.target import host_target
    from korch.codegen.toolchain import find_toolchain, warm_up
    from korch.costs.database import Database, database_path
    from korch.errors import KorchError

    with errors_in_one_line(json=json):
        found: dict[str, str] = {
            "python": f"{platform.python_version()} on {sys.platform} {platform.machine()}",
            "threads": str(len(os.sched_getaffinity(0))),
        }
        problems: list[str] = []
        try:
            target = host_target()
            caches = f"L1 {target.l1_bytes >> 10} KiB, L2 {target.l2_bytes >> 10} KiB, L3 {target.l3_bytes >> 20} MiB"
            found["target"] = f"{target.name}: {target.vector_bytes * 8}-bit vectors, {caches}"
            toolchain = find_toolchain()
            warm_up(toolchain, target, lambda text: None)
            found["compiler"] = f"{toolchain.version} ({' '.join(toolchain.command)})"
        except KorchError as error:
            problems.append(str(error))
        try:
            with Database(database_path()) as database:
                found["cache"] = f"{korch_cache_dir()}: {database.counts()['costs']} measured kernels"
        except (KorchError, OSError) as error:
            problems.append(f"the cache {korch_cache_dir()} is not usable ({error}); set KORCH_CACHE_DIR")
        torch = importlib.util.find_spec("torch") is not None
        found["gpu"] = "not used by this version" + ("" if torch else " (PyTorch is not installed either)")
        if json:
            print_json({"ok": not problems, **found, "problems": problems})
        else:
            for key, text in found.items():
                say(f"{key}: {text}")
            for problem in problems:
                say(f"PROBLEM: {problem}")
        if problems:
            raise typer.Exit(1)
