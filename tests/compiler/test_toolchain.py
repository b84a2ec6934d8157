"""The compiler: what it makes, how it fails, which one is taken."""

from __future__ import annotations

import ctypes
import stat
import subprocess
import sys
import time

import pytest

from korch.codegen.target import TARGETS, host_target, target_named
from korch.codegen.toolchain import Toolchain, compile_shared, find_toolchain, warm_up
from korch.errors import ToolchainError

DOUBLE = '__attribute__((visibility("default"))) int twice(int x) { return 2 * x; }\n'


@pytest.fixture(scope="module")
def toolchain():
    return find_toolchain()


def test_compiled_code_runs_and_equal_texts_give_equal_bytes(toolchain, tmp_path):
    first, second = tmp_path / "a.so", tmp_path / "b.so"
    compile_shared(toolchain, DOUBLE, host_target(), first)
    compile_shared(toolchain, DOUBLE, host_target(), second)
    assert ctypes.CDLL(str(first)).twice(21) == 42
    assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.so", "b.so"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_every_target_needs_no_library(toolchain, target, tmp_path):
    output = tmp_path / "a.so"
    compile_shared(toolchain, DOUBLE, target, output)
    data = output.read_bytes()
    machine = int.from_bytes(data[18:20], "little")
    assert data[:4] == b"\x7fELF" and machine == {"x86_64": 62, "aarch64": 183}[target.triple.split("-")[0]]
    assert b".so" not in data  # the name of a needed library would be in the dynamic strings


def test_vectors_of_64_bytes_stay_whole(toolchain, tmp_path):
    source = """
    typedef float vector __attribute__((vector_size(64), aligned(4)));
    void scale(float *x, long n) { for (long i = 0; i < n; i += 16) *(vector *)(x + i) *= 2.0f; }
    """
    exported = source.replace("void scale", '__attribute__((visibility("default"))) void scale')
    output = tmp_path / "a.so"
    compile_shared(toolchain, exported, target_named("x86_64_v4"), output)
    # 0x62 opens an EVEX instruction, and bits 5 and 6 of its fourth byte give the vector length: 2 is 64 bytes
    code = output.read_bytes()
    lengths = {code[k + 3] >> 5 & 3 for k in range(len(code) - 5) if code[k] == 0x62 and code[k + 4] in (0x58, 0x59)}
    assert lengths == {2}  # vaddps or vmulps, and never of 32 bytes


def test_contraction_is_off(toolchain, tmp_path):
    source = "float f(float a, float b, float c) { return a * b + c; }\n"
    output = tmp_path / "a.so"
    compile_shared(toolchain, '__attribute__((visibility("default")))' + source, host_target(), output)
    f = ctypes.CDLL(str(output)).f
    f.restype, f.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    assert f(1 + 2**-12, 1 + 2**-12, -(1 + 2**-11)) == 0.0  # fused, it would be 2**-24


def test_the_first_error_is_one_line(toolchain, tmp_path):
    with pytest.raises(
        ToolchainError, match=r"^the C compiler failed: korch\.c:2:\d+: error: .*undeclared.*nowhere"
    ) as e:
        compile_shared(toolchain, "int f(void) {\n  return nowhere; }\nint g(\n", host_target(), tmp_path / "a.so")
    assert "\n" not in str(e.value)
    assert not list(tmp_path.iterdir())


def test_an_undefined_symbol_is_an_error(toolchain, tmp_path):
    source = 'double sin(double); __attribute__((visibility("default"))) double f(double x) { return sin(x) + 1; }'
    with pytest.raises(ToolchainError, match="undefined symbol: sin"):
        compile_shared(toolchain, source, host_target(), tmp_path / "a.so")
    compile_shared(toolchain, source, host_target(), tmp_path / "a.so", libc=True)


def test_headers_are_there_with_libc_only(toolchain, tmp_path):
    source = "#include <string.h>\nunsigned long f(const char *s) { return strlen(s); }\n"
    with pytest.raises(ToolchainError, match=r"string\.h"):
        compile_shared(toolchain, source, host_target(), tmp_path / "a.so")
    compile_shared(toolchain, source, host_target(), tmp_path / "a.so", libc=True)


def test_a_failure_keeps_the_former_output(toolchain, tmp_path):
    output = tmp_path / "a.so"
    output.write_bytes(b"before")
    with pytest.raises(ToolchainError):
        compile_shared(toolchain, "nonsense", host_target(), output)
    assert output.read_bytes() == b"before"


def test_an_endless_compiler_is_stopped_with_its_children(tmp_path):
    script = tmp_path / "cc"
    script.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/child; wait\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    endless = Toolchain((str(script),), "clang", "endless")
    start = time.monotonic()
    with pytest.raises(ToolchainError, match="did not finish in time"):
        compile_shared(endless, DOUBLE, host_target(), tmp_path / "a.so", timeout=1.0)
    assert time.monotonic() - start < 10
    child = int((tmp_path / "child").read_text())
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True).stdout
    assert state.strip()[:1] in ("", "Z")


def test_an_unwritable_cache_is_named(toolchain, tmp_path, monkeypatch):
    if toolchain.kind != "zig":
        pytest.skip("only zig has a cache")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KORCH_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ToolchainError, match=r"cannot be written.*KORCH_CACHE_DIR"):
        compile_shared(toolchain, "int x;", host_target(), tmp_path / "a.so", libc=True)


def test_the_compiler_of_the_environment_is_taken(monkeypatch, tmp_path):
    script = tmp_path / "mycc"
    script.write_text("#!/bin/sh\necho my clang version 99\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("KORCH_CC", f"{script} -pipe")
    assert find_toolchain() == Toolchain((str(script), "-pipe"), "clang", "my clang version 99")
    monkeypatch.setenv("KORCH_CC", "/nowhere/cc")
    with pytest.raises(ToolchainError, match=r"'/nowhere/cc' does not run.*set KORCH_CC"):
        find_toolchain()


def test_without_any_compiler_the_remedy_is_named(monkeypatch):
    monkeypatch.delenv("KORCH_CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"pip install ziglang.*KORCH_CC"):
        find_toolchain()


def test_gcc_compiles_too(monkeypatch, tmp_path):
    if subprocess.run(["sh", "-c", "command -v gcc"], capture_output=True).returncode:
        pytest.skip("no gcc")
    monkeypatch.setenv("KORCH_CC", "gcc")
    gcc = find_toolchain()
    assert gcc.kind == "gcc"
    compile_shared(gcc, DOUBLE, host_target(), tmp_path / "a.so")
    assert ctypes.CDLL(str(tmp_path / "a.so")).twice(4) == 8
    other = next(t for t in TARGETS if not t.triple.startswith(host_target().triple.split("-")[0]))
    with pytest.raises(ToolchainError, match=f"not for {other.name}"):
        compile_shared(gcc, DOUBLE, other, tmp_path / "b.so")


def test_warming_up_reports(toolchain):
    lines: list[str] = []
    warm_up(toolchain, host_target(), lines.append)
    assert len(lines) == 2 and "ready for" in lines[1]


def test_importing_korch_does_not_look_for_a_compiler():
    code = "import korch, sys; assert not {'ziglang', 'korch.codegen.toolchain'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
