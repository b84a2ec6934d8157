"""Measuring: kernels that misbehave are dropped and named, and the run ends well."""

from __future__ import annotations

import subprocess
import sys

import pytest

from korch.codegen.target import host_target
from korch.codegen.toolchain import find_toolchain
from korch.costs.database import Cost, Database
from korch.costs.generators import FEW, Generators, implementations_of
from korch.costs.measure import C_BACKEND, Measurer, Setting
from korch.costs.runtime import runtime_library
from korch.errors import KorchError
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition, Graph
from korch.ir.layout import Layout
from korch.ir.types import DType, TensorType


def fragment(primitive: str = "neg", size: int = 1000) -> Fragment:
    t = TensorType(DType.FLOAT32, (size,))
    graph = Graph({"i0": t, "t0": t}, (("i0", "i0"),), (("t0", "t0"),), (Definition(primitive, ("i0",), ("t0",)),))
    return Fragment(graph, frozenset(), {v: Layout.row_major(t.shape) for v in ("i0", "t0")})


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> Setting:
    toolchain, target = find_toolchain(), host_target()
    runtime = runtime_library(toolchain, target, tmp_path_factory.mktemp("runtime"))
    return Setting("test", toolchain, target, 2, runtime, backend="tests.compiler.faults:implementations",
                   seconds_per_kernel=3.0)  # fmt: skip


def test_misbehaving_kernels_are_dropped_and_named(setting, tmp_path):
    with Database(tmp_path / "costs.sqlite") as database:
        measurer = Measurer(setting, database)
        choice = measurer.measure([fragment()])[fragment().key]
        assert choice is not None and choice.offer.label == "right"
        reasons = {d.label: d.reason for d in measurer.dropped}
        assert reasons.keys() == {
            "crashes", "hangs", "wrong", "wrong at the end", "wrong for NaN", "overruns", "does not compile"
        }  # fmt: skip
        assert "signal 11" in reasons["crashes"]
        assert reasons["hangs"] == "took longer than 3 s"
        assert "wrong result" in reasons["wrong"] and "wrong result" in reasons["wrong at the end"]
        assert "NaN" in reasons["wrong for NaN"]
        assert "past the end" in reasons["overruns"]
        assert "does not compile" in reasons["does not compile"]

        again = Measurer(setting, database)  # from the database: nothing is measured, the same is dropped
        found = again.measure([fragment()])[fragment().key]
        assert again.measured == 0 and found is not None
        assert (found.offer.label, found.microseconds) == ("right", choice.microseconds)
        assert {d.label: d.reason for d in again.dropped} == reasons


def test_a_fragment_that_nothing_computes(setting, tmp_path):
    with Database(tmp_path / "costs.sqlite") as database:
        measurer = Measurer(setting, database)
        assert measurer.measure([fragment("abs")]) == {fragment("abs").key: None}
        assert [d.reason for d in measurer.dropped] == ["only negation"]


def test_two_processes_share_one_database(tmp_path):
    path = tmp_path / "costs.sqlite"
    code = (
        "import sys; from pathlib import Path; from korch.costs.database import Cost, Database\n"
        "with Database(Path(sys.argv[1])) as d:\n"
        "    for i in range(200): d.store([Cost(f'f{i}', sys.argv[2], 's', 'l', 1.0 + i)])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("a", "b")]
    assert [w.wait(timeout=60) for w in writers] == [0, 0]
    with Database(path) as database:
        assert database.counts() == {"costs": 400, "dropped": 0}
        assert database.costs("f7", "s")["a"].microseconds == 8.0


def test_a_killed_writer_loses_nothing_it_stored(tmp_path):
    path = tmp_path / "costs.sqlite"
    code = (
        "import os, signal, sys; from pathlib import Path; from korch.costs.database import Cost, Database\n"
        "d = Database(Path(sys.argv[1])); d.store([Cost('f', 'k', 's', 'l', 2.0)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    with Database(path) as database:
        assert database.costs("f", "s")["k"].microseconds == 2.0


def test_export_and_import(tmp_path):
    with Database(tmp_path / "a.sqlite") as a, Database(tmp_path / "b.sqlite") as b:
        a.store([Cost("f", "k", "s", "l", 2.0), Cost("f", "j", "s", "l", None, "wrong")])
        b.store([Cost("f", "k", "s", "l", 9.0)])
        assert a.export_to(tmp_path / "costs.json") == 2
        assert b.import_from(tmp_path / "costs.json") == 1
        assert b.costs("f", "s")["k"].microseconds == 9.0  # what is known stays
        assert b.costs("f", "s")["j"].failure == "wrong"
        (tmp_path / "bad.json").write_text("{}")
        with pytest.raises(KorchError, match="holds no costs"):
            b.import_from(tmp_path / "bad.json")


def test_a_database_that_is_none(tmp_path):
    (tmp_path / "costs.sqlite").write_bytes(b"not a database at all, not a database at all")
    with pytest.raises(KorchError, match="KORCH_CACHE_DIR"):
        Database(tmp_path / "costs.sqlite")


def test_kernels_generated_by_several_processes_are_those_generated_here():
    target = host_target()
    fragments = [fragment(p, n) for n in range(1, FEW) for p in ("neg", "exp")]
    expected = [implementations_of(C_BACKEND)(f, target) for f in fragments]
    with Generators(C_BACKEND, target) as generators:
        generators._count = 2  # pyright: ignore[reportPrivateUsage]
        assert list(generators.generate(fragments)) == expected
        for process in generators._processes:  # pyright: ignore[reportPrivateUsage]
            process.kill()
            process.wait()
        assert list(generators.generate(fragments)) == expected
