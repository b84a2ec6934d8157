"""Calls of single kernels through the runtime, timed in the state of a real run."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

# Calls one kernel again and again, with the argument lists in turn. p: the kernel, the argument lists, their number,
# the number of calls.
_REPEAT = """
__attribute__((visibility("default")))
void korch_repeat(const korch_runtime *runtime, char *const *p) {
  void (*kernel)(const korch_runtime *, char *const *) = (void (*)(const korch_runtime *, char *const *))p[0];
  char *const *const *lists = (char *const *const *)p[1];
  int64_t count = (int64_t)p[2], repeats = (int64_t)p[3];
  for (int64_t i = 0, k = 0; i < repeats; i++, k = k + 1 == count ? 0 : k + 1) kernel(runtime, lists[k]);
}
"""


def harness(symbols: Sequence[str]) -> str:
    """What follows the kernels in a library that is measured: `korch_repeat`, and a table of the kernels, since
    they are hidden themselves."""
    table = f"void (*const korch_kernels[])(const korch_runtime *, char *const *) = {{{', '.join(symbols)}}};\n"
    return f'{_REPEAT}__attribute__((visibility("default")))\n{table}'


class Session:
    """The runtime library in this process, with one table of workers for each size of worker scratch."""

    def __init__(self, runtime: Path, threads: int) -> None:
        self._library = ctypes.CDLL(str(runtime))
        self._library.korch_runtime_new.argtypes = [ctypes.c_int, ctypes.c_int64]
        self._library.korch_runtime_new.restype = ctypes.c_void_p
        self._library.korch_call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]
        self._library.korch_call.restype = ctypes.c_int
        self._threads = threads
        self._tables: dict[int, int] = {}

    def seconds(
        self, library: ctypes.CDLL, index: int, lists: ctypes.Array[ctypes.c_void_p], repeats: int, scratch: int = 0
    ) -> float:
        """The time of `repeats` calls of the library's kernel number `index`, whose argument lists are taken in turn.

        `lists` holds the addresses of arrays of pointers; `scratch` is the kernel's worker scratch in bytes.
        """
        kernel = (ctypes.c_void_p * (index + 1)).in_dll(library, "korch_kernels")[index]
        call = (ctypes.c_void_p * 4)(kernel, ctypes.addressof(lists), len(lists), repeats)
        repeat = ctypes.cast(library.korch_repeat, ctypes.c_void_p)
        taken = (ctypes.c_double * 1)()
        self._library.korch_call(self._table(scratch), repeat, call, 1, taken)
        return taken[0]

    def _table(self, scratch: int) -> int:
        if scratch not in self._tables:
            table = self._library.korch_runtime_new(self._threads, scratch)
            if not table:
                raise MemoryError(f"no memory for {self._threads} times {scratch} bytes of scratch")
            self._tables[scratch] = table
        return self._tables[scratch]
