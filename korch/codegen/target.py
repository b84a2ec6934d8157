"""What machine code is made for: an instruction set with its vector width, and the sizes of its caches."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from pathlib import Path

from korch.errors import ToolchainError


@dataclass(frozen=True, slots=True)
class Target:
    """`triple` and `cpu` are passed to the compiler; sizes are bytes."""

    name: str
    triple: str
    cpu: str
    vector_bytes: int
    vector_registers: int
    features: tuple[str, ...]  # as /proc/cpuinfo names them; the loader checks that the machine has all
    has_fma: bool
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 16 << 20

    def lanes(self, size: int = 4) -> int:
        """Elements of `size` bytes in one vector."""
        return self.vector_bytes // size


_V3 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

TARGETS: tuple[Target, ...] = (
    Target("x86_64", "x86_64-linux-gnu.2.17", "x86_64", 16, 16, ("sse2",), False),
    Target("x86_64_v3", "x86_64-linux-gnu.2.17", "x86_64_v3", 32, 16, _V3, True),
    Target("x86_64_v4", "x86_64-linux-gnu.2.17", "x86_64_v4", 64, 32, _V4, True),
    Target("aarch64", "aarch64-linux-gnu.2.17", "generic", 16, 32, ("asimd",), True),
)


def target_named(name: str) -> Target:
    """The target of that name; `host` is this machine's best. ToolchainError names the known ones otherwise."""
    if name == "host":
        return host_target()
    for target in TARGETS:
        if target.name == name:
            return target
    known = ", ".join(t.name for t in TARGETS)
    raise ToolchainError(f"unknown target {name!r}; the targets are: host, {known}")


def host_features() -> frozenset[str]:
    """The CPU's features as Linux names them."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def host_target() -> Target:
    """The most capable target whose features this machine has, with this machine's cache sizes."""
    features, machine = host_features(), platform.machine()
    fitting = [t for t in TARGETS if t.triple.startswith(machine) and features.issuperset(t.features)]
    if not fitting:
        raise ToolchainError(f"no target for this machine ({machine}); Korch runs on Linux x86-64 and aarch64")
    return replace(fitting[-1], **_cache_sizes())


def _cache_sizes() -> dict[str, int]:
    """L1 data, L2 and L3 sizes of the first processor, where Linux tells them."""
    found: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind = int((index / "level").read_text()), (index / "type").read_text().strip()
            size = int((index / "size").read_text().strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and level in (1, 2, 3):
            found[f"l{level}_bytes"] = size
    return found
