"""The C compiler: the pinned `ziglang` wheel's clang, or the one that KORCH_CC names.

The wheel's `zig` program holds clang and lld. For header-free files they are called directly (`zig clang`,
then `zig ld.lld`): some 50 ms for a small kernel, 15 to 20 ms less than `zig cc -shared`, which starts the
same two as children, and nothing is written to zig's cache. `zig cc -c` is used where libc's headers are
needed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from korch.cache_dir import korch_cache_dir
from korch.codegen.target import Target
from korch.errors import ToolchainError

# What a generated file relies on. Arena memory is reused with other types, so no strict aliasing; no stack
# protector and no fortified routines, which musl lacks. Signed overflow stays undefined (generated code adds
# integers as unsigned ones): -fwrapv keeps loops from being unrolled.
_DIALECT = (
    "-std=gnu11",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fomit-frame-pointer",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-fno-semantic-interposition",
    "-U_FORTIFY_SOURCE",
    "-g0",
    "-w",
)
_VERSION_TIMEOUT = 30.0  # seconds; the first call reads some 200 MB from disk


@dataclass(frozen=True)
class Toolchain:
    """A C compiler: the words that start it, its kind (`zig`, `clang` or `gcc`), and its version as text."""

    command: tuple[str, ...]
    kind: str
    version: str


def find_toolchain() -> Toolchain:
    """The compiler that KORCH_CC names (a command, possibly with options), else that of the `ziglang` wheel.

    ToolchainError when there is neither.
    """
    named = os.environ.get("KORCH_CC", "").strip()
    return _named_toolchain(named) if named else _zig_toolchain()


def compile_shared(
    toolchain: Toolchain,
    source: str,
    target: Target,
    output: Path,
    *,
    optimize: str = "-O2",
    libc: bool = False,
    linker: tuple[str, ...] = (),
    timeout: float = 120.0,
) -> None:
    """Compiles one C11 text to the shared library `output`, which is replaced as a whole or not at all.

    Without `libc` the text includes no headers and the library has no needed libraries and no undefined
    symbols. With `libc` it may include libc's headers; the symbols stay undefined and are found in the
    loading process, so that one library serves glibc and musl. `linker` adds options of the linker. Equal texts
    give equal bytes. ToolchainError, one line with the compiler's first error, when it fails or takes more than
    `timeout` seconds in all.
    """
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix=".korch-", dir=output.parent) as directory:
        work = Path(directory)
        (work / "korch.c").write_text(source)
        for command in _steps(toolchain, target, optimize, libc, linker):
            _run(command, work, deadline, _zig_environment() if toolchain.kind == "zig" and libc else None)
        os.replace(work / "korch.so", output)


def warm_up(toolchain: Toolchain, target: Target, report: Callable[[str], None]) -> None:
    """Compiles a tiny file with and without libc's headers, and reports how long that took.

    The first calls read the compiler from disk and fill its cache; this makes them visible, and finds a
    compiler that does not work for the target before any work depends on it.
    """
    report(f"{toolchain.version}: preparing the compiler for {target.name}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="korch-") as directory:
        output = Path(directory) / "probe.so"
        compile_shared(toolchain, "int korch_probe(void) { return 1; }\n", target, output)
        text = "#include <stdlib.h>\nvoid *korch_probe(void) { return malloc(1); }\n"
        compile_shared(toolchain, text, target, output, libc=True)
    report(f"{toolchain.version}: ready for {target.name} after {time.monotonic() - start:.1f} s")


def _zig_toolchain() -> Toolchain:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise ToolchainError(
            "no C compiler: the ziglang package is not installed; install it (pip install ziglang==0.17.1) "
            "or set KORCH_CC to a C compiler"
        )
    command = (str(Path(spec.origin).parent / "zig"),)
    return Toolchain(command, "zig", f"zig {_first_line([*command, 'version'])}")


def _named_toolchain(named: str) -> Toolchain:
    command = tuple(shlex.split(named))
    version = _first_line([*command, "--version"])
    return Toolchain(command, "clang" if "clang" in version else "gcc", version)


def _first_line(command: list[str]) -> str:
    """The first line that a command prints."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=null, stdout=pipe, stderr=null, text=True, timeout=_VERSION_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = " ".join(str(error).split())
        raise ToolchainError(
            f"the C compiler {command[0]!r} does not run ({reason}); set KORCH_CC to a working C compiler"
        ) from error
    return done.stdout.strip().split("\n")[0]


def _steps(toolchain: Toolchain, target: Target, optimize: str, libc: bool, linker: tuple[str, ...]) -> list[list[str]]:
    """The commands that make korch.so from korch.c in the current directory."""
    architecture = target.triple.split("-")[0]
    cc, flags = list(toolchain.command), [*_DIALECT, optimize]
    if target.vector_bytes == 64:
        flags.append("-mprefer-vector-width=512")  # else explicit 64-byte vectors are split into two of 32
    if architecture == "aarch64":
        flags.append("-mno-outline-atomics")  # else atomics call routines of the compiler's library
    # zig spells x86_64_v3 what clang and gcc spell x86-64-v3; on aarch64 -mcpu names the processor.
    cpu = target.cpu.replace("_", "-")
    machine = f"-march={cpu}" if architecture == "x86_64" else f"-mcpu={cpu}"
    triple = target.triple.rsplit(".2.", 1)[0]  # only `zig cc` takes glibc's version in the triple
    options = ["--hash-style=both", "--build-id=none", *([] if libc else ["-z", "defs"]), *linker]
    if toolchain.kind == "zig":
        direct = ["clang", "--no-default-config", "-nostdinc", "-target", triple, machine]
        with_headers = ["cc", "-target", target.triple, f"-mcpu={target.cpu}"]
        return [
            [*cc, *(with_headers if libc else direct), *flags, "-c", "korch.c", "-o", "korch.o"],
            [*cc, "ld.lld", "-shared", *options, "korch.o", "-o", "korch.so"],
        ]
    if toolchain.kind == "gcc" and architecture != platform.machine():
        raise ToolchainError(
            f"{toolchain.version} compiles for {platform.machine()} only, not for {target.name}; "
            "unset KORCH_CC to use the ziglang package"
        )
    place = [machine] if toolchain.kind == "gcc" else ["-target", triple, machine]
    link = ["-shared", "-nostdlib", f"-Wl,{','.join(options)}"]
    return [[*cc, *place, *flags, *link, "korch.c", "-o", "korch.so"]]


def _zig_environment() -> dict[str, str]:
    """The environment of `zig cc`, its cache under Korch's: an unusable one makes zig spin for minutes."""
    cache = korch_cache_dir() / "zig"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache) as probe:
            probe.write(b"probe")
    except OSError as error:
        raise ToolchainError(
            f"the compiler's cache {cache} cannot be written ({error.strerror}); "
            "set KORCH_CACHE_DIR to a directory that can"
        ) from error
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}


def _run(command: list[str], directory: Path, deadline: float, environment: dict[str, str] | None) -> None:
    """Runs one step in `directory`; a step that runs past the deadline is killed with its children."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # one group, so that the children end with it
    )
    try:
        _, errors = process.communicate(timeout=max(deadline - time.monotonic(), 0.01))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ToolchainError(
                f"the C compiler ({Path(command[0]).name}) did not finish in time; "
                "allow it more, or set KORCH_CC to another compiler"
            ) from None
        raise
    if process.returncode:
        raise ToolchainError(f"the C compiler failed: {_first_error(errors, process.returncode)}")


def _first_error(text: str, code: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else f"exit code {code}")
