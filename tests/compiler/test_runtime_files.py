"""Artifacts that do not load, and C programs that load them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from korch.artifact.build import build_runtime
from korch.artifact.export import export_c
from korch.artifact.load import load
from korch.artifact.pack import pack
from korch.codegen.target import host_target
from korch.codegen.toolchain import find_toolchain
from korch.errors import ArtifactError
from tests.compiler.sample_artifact import expected_y, run_python, runtime, sample_artifact, sample_inputs

MUSL = Path(os.environ.get("KORCH_TEST_MUSL", "/lib/ld-musl-x86_64.so.1"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "sample.korch"
    pack(sample_artifact(), path)
    return path


# Files that do not fit


def test_what_does_not_fit_is_named(path, tmp_path):
    target = host_target()
    lacking = dataclasses.replace(target, features=(*target.features, "amx_magic", "sve9"))
    plan = sample_artifact().plans[0]
    broken = tmp_path / "broken.korch"
    pack(dataclasses.replace(sample_artifact(), plans=(dataclasses.replace(plan, target=lacking),)), broken)
    with pytest.raises(ArtifactError, match=r"needs CPU features that this machine lacks: amx_magic sve9; optimize"):
        load(broken)
    pack(sample_artifact(targets=("aarch64",)), broken)
    with pytest.raises(ArtifactError, match="is made for aarch64 and this machine is x86_64; optimize"):
        load(broken)
    data = bytearray(path.read_bytes())
    weights = load(path).manifest["sections"]["weights:0"]["offset"]
    data[weights + 5] ^= 1
    broken.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"broken\.korch is damaged: the hash of its weights:0 does not match"):
        load(broken)
    load(broken, verify=False)  # on request, weights are not read before they are used
    with pytest.raises(ArtifactError, match=r"is not a \.korch file"):
        load(__file__)


DAMAGE = """
import ctypes, hashlib, random, sys
from korch.artifact.format import open_artifact
from korch.artifact.load import load, _declared
from korch.errors import ArtifactError
path, broken = sys.argv[1:3]
data = open(path, "rb").read()
library = load(path)._library
head = 64 + int.from_bytes(data[8:16], "little") + int.from_bytes(data[16:24], "little")
sections = [(s.offset, s.offset + s.size, name) for name, s in open_artifact(path).sections.items()]
random = random.Random(int(sys.argv[3]))

def python(changed):
    open(broken, "wb").write(changed)
    try: load(broken)
    except ArtifactError as error: return str(error)

def native(changed):
    open(broken, "wb").write(changed)
    error = ctypes.create_string_buffer(512)
    model = library.korch_load(broken.encode(), error, 512)
    if not model: return error.value.decode(errors="replace")
    context = library.korch_context_new(model, 0, 0, error, 512)
    if context: library.korch_context_free(context)
    library.korch_free(model)

def changed_at(position, data=data):
    changed = bytearray(data)
    changed[position] ^= random.choice((1, 0x80, 0xff, random.randrange(1, 256)))
    return changed

def rehashed(changed):
    changed[32:64] = hashlib.sha256(changed[:32] + changed[64:head]).digest()
    return changed
"""


def test_damaged_files_are_errors(path, tmp_path):
    code = (
        DAMAGE
        + """
for position in [*range(64), *(random.randrange(64, head) for _ in range(60))]:
    changed = changed_at(position)
    assert python(changed) and native(changed), position
for _ in range(60):
    size = random.randrange(len(data))
    assert python(data[:size]) and native(data[:size]), size
for first, last, name in sections:
    for _ in range(8):
        changed = changed_at(random.randrange(first, last))
        assert name in python(changed)
        if name.startswith("code"): assert "hash of its code" in native(changed)
    assert "another format than 01" in native(b"KORCHv02" + data[8:])
"""
    )
    run_python(code, path, tmp_path / "broken.korch", 1)


def test_a_wrong_plan_table_is_an_error_or_harmless(path, tmp_path):
    # Here the hash of the header is right, so that what the table says is what is checked.
    code = (
        DAMAGE
        + """
table = 64 + int.from_bytes(data[8:16], "little")
said = set()
for k in range(700):
    position = random.randrange(table, head) if k >= head - table else table + k
    changed = changed_at(position)
    for _ in range(random.choice((0, 0, 3))): changed = changed_at(random.randrange(table, head), changed)
    said.add(native(rehashed(changed)))
assert any("plan table is not valid" in str(s) for s in said), said
for field in (8, 16, 24):
    for value in (0, 1, 8, 2**31, 2**63, 2**64 - 1, 2**64 - 8):
        changed = bytearray(data)
        changed[field:field + 8] = value.to_bytes(8, "little")
        assert python(rehashed(changed)) and native(rehashed(changed)), (field, value)
"""
    )
    run_python(code, path, tmp_path / "broken.korch", 2)


# C programs


def test_a_c_program_prints_the_right_numbers(path, tmp_path):
    folder = exported(path, tmp_path)
    compile_main(folder, "main.c", "-L.", "-lkorch", "-Wl,-rpath,$ORIGIN", "-ldl", "-lpthread")
    assert_prints_the_sample(folder, [str(folder / "main")])


@pytest.mark.skipif(not MUSL.exists(), reason="no musl on this machine")
def test_the_same_library_runs_under_musl(path, tmp_path):
    folder = exported(path, tmp_path)
    compile_main(folder, "main.c", "libkorch.so", target="x86_64-linux-musl")
    assert_prints_the_sample(folder, [str(MUSL), "--library-path", str(folder), str(folder / "main")])


def exported(path: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "new" / "c"
    export_c(path, folder)
    assert sorted(p.name for p in folder.iterdir()) == ["korch.h", "libkorch.so", "main.c", "model.korch"]
    assert (folder / "model.korch").read_bytes() == path.read_bytes()
    return folder


def compile_main(folder: Path, *arguments: str, target: str = "") -> None:
    toolchain = find_toolchain()
    command = [*toolchain.command, *(("cc",) if toolchain.kind == "zig" else ())]
    place = ["-target", target, "-dynamic"] if target else []
    done = subprocess.run(
        [*command, *place, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *arguments, "-o", "main"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def assert_prints_the_sample(folder: Path, command: list[str]) -> None:
    inputs = sample_inputs()
    files = [folder / f"{name}.bin" for name in inputs]
    for file, array in zip(files, inputs.values(), strict=True):
        file.write_bytes(array.tobytes())
    done = subprocess.run([*command, "model.korch", *map(str, files)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert list(lines)[1:4] == ["no bool, 3 bytes", "k float16, 2 bytes", "e2 float32, 0 bytes"]
    printed = [float(word) for word in lines["y float32, 160000 bytes"].split()]
    np.testing.assert_allclose(printed, expected_y(inputs["x"]).ravel()[:8], rtol=1e-5)
    (folder / "model.korch").write_bytes(b"KORCHv01")
    failed = subprocess.run([*command, "model.korch"], cwd=folder, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr == "model.korch is truncated: it has 8 bytes of 64; copy it again\n"


# The library itself


def test_the_runtime_needs_no_library(tmp_path):
    for machine in ("x86_64", "aarch64"):
        data = build_runtime(find_toolchain(), machine)
        assert data == runtime(machine)  # equal compilers give equal bytes
        assert data[:4] == b"\x7fELF" and b"libc.so" not in data and b"GLIBC" not in data
    with pytest.raises(ValueError, match="no runtime for 'riscv64'"):
        build_runtime(find_toolchain(), "riscv64")
