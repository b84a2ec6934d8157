"""The command line: exit codes, what goes to which stream, and errors of one line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from korch.cli import main
from tests.pure.cases import F, build, random

ROOT = Path(__file__).resolve().parents[2]
X, W = random(2, 6), random(6, 4, seed=1)
Y = (X.astype(np.float64) @ W).astype(F)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output."""
        assert self.out.endswith("\n") and self.out.count("\n") == 1
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def fails(self, *words: str, code: int = 1) -> bool:
        """One line on standard error that has the words, nothing on standard output."""
        assert self.code == code, self
        assert self.out == "" and self.err.startswith("error: ") and self.err.count("\n") == 1, self
        assert all(word in self.err for word in words), self
        return True


Korch = Callable[..., Done]


@pytest.fixture
def korch(cache, capsys, monkeypatch) -> Korch:
    """Runs the command in this process."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["korch", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return run


def model_with(body: str, outputs: dict[str, np.ndarray], **constants: np.ndarray) -> onnx.ModelProto:
    return build(body, {"x": X}, outputs, constants)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`model.onnx`, its optimized form `model.korch`, `dynamic.onnx` with an unbound dimension, arrays."""
    path = tmp_path_factory.mktemp("cli")
    model = model_with("z = MatMul(x, w) y = Relu(z)", {"y": np.maximum(Y, 0), "z": Y}, w=W)
    onnx.save(model, path / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, path / "dynamic.onnx")
    np.save(path / "x.npy", X)
    (path / "text.onnx").write_text("not a model, but long enough to be read as one")
    return path


@pytest.fixture
def optimized(folder, korch) -> Path:
    path = folder / "model.korch"
    if not path.exists():
        assert korch("optimize", folder / "model.onnx", "--budget", 0).code == 0
    return path


# --- optimize


def test_optimize(korch, folder) -> None:
    done = korch("optimize", folder / "model.onnx", "-o", folder / "new.korch", "--budget", "0")
    assert done.code == 0
    for word in ("2 operators", "kernels", "gap", "greedy fusion", "one kernel per operator", "new.korch"):
        assert word in done.out


def test_optimize_as_json(korch, folder) -> None:
    done = korch("optimize", folder / "model.onnx", "-o", folder / "new.korch", "--budget", "0", "--json")
    found = done.json
    assert done.code == 0
    assert found.keys() >= {
        "operators", "primitives", "candidates", "measured", "kernels", "objective_us", "bound_us", "gap",
        "greedy_us", "per_operator_us", "seconds",
    }  # fmt: skip
    assert found["operators"] == 2 and found["primitives"] >= 2 and found["kernels"] >= 1
    assert found["objective_us"] > 0 and 0 <= found["bound_us"] <= found["objective_us"]
    assert 0 <= found["gap"] <= 1 and found["seconds"] > 0


def test_optimize_beside_the_model(korch, optimized) -> None:
    assert optimized.exists()


def test_optimize_with_all_options(korch, folder) -> None:
    done = korch(
        "optimize", folder / "dynamic.onnx", "--output", folder / "five.korch", "--shape", "x=5x6", "--target", "host",
        "--threads", 1, "--numerics", "strict", "--budget", 0,
    )  # fmt: skip
    assert done.code == 0
    assert "y: float32[5,4]" in korch("run", folder / "five.korch").out


def test_optimize_refuses(korch, folder, tmp_path) -> None:
    def optimize(model: str, *options: object) -> Done:
        return korch("optimize", folder / model, "-o", tmp_path / "y.korch", *options)

    assert optimize("missing.onnx").fails("missing.onnx", "no such file")
    assert optimize("text.onnx").fails("text.onnx", "not an ONNX model")
    assert optimize(".").fails("cannot be read")
    assert optimize("dynamic.onnx").fails("unbound", "batch", "--shape x=")
    assert optimize("dynamic.onnx", "--shape", "x=5x7").fails("dimension 1", "6")
    assert optimize("dynamic.onnx", "--shape", "x=5").fails("rank")
    assert optimize("dynamic.onnx", "--shape", "x5x6").fails("--shape x5x6", "for example")
    assert optimize("dynamic.onnx", "--shape", "x=fivexsix").fails("--shape x=fivexsix", "for example")
    assert optimize("dynamic.onnx", "--shape", "z=5x6").fails("'z'", "x (")
    assert optimize("dynamic.onnx", "--shape", "x=6..5x6").fails("the range 6..5 in --shape is empty")
    assert optimize("model.onnx", "--target", "pdp11").fails("'pdp11'", "x86_64_v3", "aarch64")
    assert optimize("model.onnx", "--numerics", "sloppy").fails("'sloppy'", "strict", "default")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_outputs(korch, folder, tmp_path) -> None:
    model = folder / "model.onnx"
    assert korch("optimize", model, "-o", tmp_path / "no" / "y.korch").fails("y.korch", "choose another")
    assert korch("optimize", model, "-o", tmp_path).fails(str(tmp_path), "it is a folder")
    assert list(tmp_path.iterdir()) == []


def test_unsupported_operators_are_named_at_once(korch, tmp_path) -> None:
    nodes = [
        helper.make_node("Twirl", ["x"], ["a"], name="first", domain="com.example"),
        helper.make_node("RandomUniformLike", ["a"], ["b"], name="second"),
        helper.make_node("Twirl", ["b"], ["y"], name="third", domain="com.example"),
    ]
    value = helper.make_tensor_value_info
    a = value("a", TensorProto.FLOAT, (2, 6))
    graph = helper.make_graph(nodes, "g", [value("x", 1, (2, 6))], [value("y", 1, (2, 6))], value_info=[a])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.example", 1)]
    file = tmp_path / "twirl.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), file)
    words = "com.example.Twirl", "first", "third", "RandomUniformLike", "second"
    assert korch("optimize", file, "-o", tmp_path / "y.korch").fails(*words)
    done = korch("check", file)
    assert done.code == 1 and all(word in done.out for word in words)
    done = korch("check", file, "--json")
    assert done.code == 1
    assert done.json["ok"] is False
    assert {u["operator"]: u["nodes"] for u in done.json["unsupported"]} == {
        "Twirl": ["first", "third"],
        "RandomUniformLike": ["second"],
    }


# --- run


def test_run(korch, optimized, tmp_path) -> None:
    done = korch("run", optimized, "--input", f"x={optimized.parent / 'x.npy'}", "--output", tmp_path / "out")
    assert done.code == 0 and done.err == ""
    assert done.out.splitlines() == [
        f"y: float32[2,4] -> {tmp_path / 'out' / 'y.npy'}",
        f"z: float32[2,4] -> {tmp_path / 'out' / 'z.npy'}",
    ]
    np.testing.assert_allclose(np.load(tmp_path / "out" / "z.npy"), Y, rtol=1e-5)


def test_run_as_json(korch, optimized, tmp_path) -> None:
    assert korch("run", optimized, "--json").json == {
        "outputs": {"y": "float32[2,4]", "z": "float32[2,4]"},
        "files": {},
    }
    done = korch("run", optimized, "--output", tmp_path, "--json")
    assert done.json["files"] == {n: str(tmp_path / f"{n}.npy") for n in ("y", "z")}


def test_run_refuses(korch, optimized, tmp_path) -> None:
    def run(*options: object) -> Done:
        return korch("run", optimized, *options)

    for name, array in {"wide": X.astype(np.float64), "short": X[:1], "text": np.array(["a"])}.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "several.npz", x=X)
    (tmp_path / "empty.npy").write_bytes(b"")
    assert run("--input", f"x={tmp_path / 'wide.npy'}").fails("float64", "x float32[2,6]")
    assert run("--input", f"x={tmp_path / 'short.npy'}").fails("(1, 6)", "x float32[2,6]")
    assert run("--input", f"x={tmp_path / 'text.npy'}").fails("dtype", "x float32[2,6]")
    assert run("--input", f"x={tmp_path / 'several.npz'}").fails("several arrays", "numpy.save")
    assert run("--input", f"x={tmp_path / 'empty.npy'}").fails("empty.npy", "numpy.save")
    assert run("--input", f"x={tmp_path / 'missing.npy'}").fails("missing.npy", "No such file", "numpy.save")
    assert run("--input", f"z={tmp_path / 'wide.npy'}").fails("NAME=FILE.npy", "one of: x")
    assert run("--input", "x").fails("NAME=FILE.npy")
    x = f"x={optimized.parent / 'x.npy'}"
    assert run("--input", x, "--input", x).fails("twice")
    assert run("--output", tmp_path / "wide.npy").fails("wide.npy", "choose another folder")


def test_damaged_artifacts(korch, optimized, tmp_path) -> None:
    data, file = optimized.read_bytes(), tmp_path / "y.korch"
    for content, word in (
        (b"", "not a .korch file"),
        (data[:2000], "truncated"),
        (data[:-100], "truncated"),
        (data[:4200] + bytes([data[4200] ^ 1]) + data[4201:], "damaged"),
        (b"KORCHv99" + data[8:], "format"),
    ):
        file.write_bytes(content)
        assert korch("run", file).fails(str(file), word)
    for command in ("run", "explain"):
        assert korch(command, tmp_path / "missing.korch").fails("missing.korch", "cannot be read")
        assert korch(command, optimized.parent / "model.onnx").fails("not a .korch file")
    assert korch("export", file, "--c", tmp_path / "c").fails(str(file))


# --- check


def test_check(korch, folder) -> None:
    done = korch("check", folder / "model.onnx")
    assert done.code == 0 and done.err == ""
    for word in ("MatMul 1", "x float[2,6]", "parameters: 24", "supported: all 2 operators"):
        assert word in done.out


def test_check_as_json(korch, folder) -> None:
    found = korch("check", folder / "model.onnx", "--json").json
    assert found == {
        "ok": True, "opsets": {"": 18}, "operators": {"MatMul": 1, "Relu": 1}, "inputs": {"x": "float[2,6]"},
        "outputs": {"y": "float[2,4]", "z": "float[2,4]"}, "unbound": {}, "parameters": 24, "parameter_bytes": 96,
        "remaining_operators": 2, "unsupported": [], "problem": None,
    }  # fmt: skip


def test_check_of_unbound_dimensions(korch, folder) -> None:
    done = korch("check", folder / "dynamic.onnx", "--json")
    assert done.code == 0
    assert done.json["ok"] is False and done.json["unbound"] == {"x": ["batch"]}
    assert "--shape x=" in done.json["problem"]
    assert "unbound in the model: x (batch)" in korch("check", folder / "dynamic.onnx").out
    assert korch("check", folder / "dynamic.onnx", "--shape", "x=5x6", "--json").json["ok"] is True


def test_check_refuses(korch, folder) -> None:
    assert korch("check", folder / "missing.onnx").fails("missing.onnx", "no such file")
    assert korch("check", folder / "text.onnx").fails("not an ONNX model")
    assert korch("check", folder / "model.onnx", "--shape", "x=3x6").fails("dimension 0")


# --- verify


def test_verify(korch, folder, optimized) -> None:
    done = korch("verify", folder / "model.onnx", optimized, "--input", f"x={folder / 'x.npy'}", "--json")
    assert done.code == 0
    assert done.json["ok"] is True and list(done.json["outputs"]) == ["y", "z"]
    for errors in done.json["outputs"].values():
        assert errors.keys() >= {"max_abs_error", "rel_l2_error"}
        assert 0 <= errors["rel_l2_error"] < 1e-4
    done = korch("verify", folder / "dynamic.onnx", "--shape", "x=3x6", "--budget", 0, "--seed", 3)
    assert done.code == 0 and done.out.count(": ok") == 2


def test_verify_finds_a_wrong_model(korch, folder, optimized, tmp_path) -> None:
    other = model_with("z = MatMul(x, w) y = Relu(z)", {"y": np.maximum(Y, 0), "z": Y}, w=W * F(1.001))
    onnx.save(other, tmp_path / "other.onnx")
    done = korch("verify", tmp_path / "other.onnx", optimized)
    assert done.code == 1 and done.out.count("FAILED: the relative L2 error is 0.001") == 2
    done = korch("verify", tmp_path / "other.onnx", optimized, "--json")
    assert done.code == 1 and done.json["ok"] is False
    assert done.json["outputs"]["z"]["rel_l2_error"] == pytest.approx(1e-3, rel=0.01)


def test_verify_finds_what_is_not_finite(korch, tmp_path) -> None:
    onnx.save(model_with("y = Log(x)", {"y": X}), tmp_path / "log.onnx")
    onnx.save(model_with("a = Abs(x) y = Log(a)", {"y": X}), tmp_path / "other.onnx")
    assert korch("optimize", tmp_path / "log.onnx", "--budget", 0).code == 0
    assert korch("verify", tmp_path / "log.onnx", tmp_path / "log.korch").code == 0
    done = korch("verify", tmp_path / "other.onnx", tmp_path / "log.korch", "--json")
    assert done.code == 1
    found = done.json["outputs"]["y"]
    assert found["max_abs_error"] is None and found["rel_l2_error"] is None and "NaN" in found["reason"]


def test_verify_refuses(korch, folder, optimized, tmp_path) -> None:
    assert korch("verify", folder / "missing.onnx", optimized).fails("missing.onnx")
    assert korch("verify", folder / "model.onnx", folder / "missing.korch").fails("missing.korch")
    onnx.save(model_with("q = Neg(x)", {"q": X}), tmp_path / "neg.onnx")
    done = korch("verify", tmp_path / "neg.onnx", optimized)
    assert done.code == 1 and "FAILED: is missing; the optimized model has y, z" in done.out


# --- bench


def test_bench(korch, folder, optimized) -> None:
    peers = "onnxruntime" if importlib.util.find_spec("onnxruntime") else "korch"
    done = korch("bench", folder / "model.onnx", optimized, "--against", peers, "--threads", 1, "--json")
    found = done.json
    assert done.code == 0
    assert found.keys() >= {"model", "threads", "shape", "engines", "speedup", "max_rel_error"}
    assert (found["model"], found["threads"], found["shape"]) == ("model.onnx", 1, {"x": [2, 6]})
    assert "korch" in found["engines"]
    for timing in found["engines"].values():
        assert timing.keys() >= {"median_ms", "min_ms", "runs"}
        assert 0 < timing["min_ms"] <= timing["median_ms"] and timing["runs"] > 1
    if peers == "onnxruntime":
        ours, theirs = (found["engines"][name]["median_ms"] for name in ("korch", "onnxruntime"))
        assert found["speedup"] == {"onnxruntime": pytest.approx(theirs / ours)}
        assert 0 <= found["max_rel_error"] < 1e-4


def test_bench_alone(korch, folder) -> None:
    done = korch("bench", folder / "dynamic.onnx", "--against", "", "--shape", "x=4x6", "--budget", 0)
    assert done.code == 0
    assert "dynamic.onnx (x 4x6)" in done.out and "median ms" in done.out


def test_bench_refuses(korch, folder, optimized) -> None:
    model = folder / "model.onnx"
    assert korch("bench", model, optimized, "--against", "tensorrt").fails("'tensorrt'", "onnxruntime, openvino")
    assert korch("bench", folder / "missing.onnx", "--against", "").fails("missing.onnx")
    if importlib.util.find_spec("torch"):
        assert korch("bench", model, optimized, "--against", "torch").fails("model.pt2", "torch.export.save")


# --- explain and export


def test_explain(korch, optimized, tmp_path) -> None:
    done = korch("explain", optimized)
    assert done.code == 0 and done.err == ""
    for word in ("plan for x 2x6", "kernel_0", "certificate: objective", "greedy fusion", "one kernel per operator"):
        assert word in done.out
    done = korch("explain", optimized, "--kernel", "kernel_0")
    assert done.code == 0 and "korch_runtime" in done.out and "output t" in done.out
    assert korch("explain", optimized, "--kernel", "kernel_99").fails("kernel_99", "kernel_0")


def test_explain_as_json(korch, optimized) -> None:
    found = korch("explain", optimized, "--json").json
    assert found["plans"][0]["kernels"][0].keys() >= {"name", "family", "cost_us", "operators", "fragment"}
    assert found["plans"][0]["certificate"].keys() >= {"objective_us", "bound_us", "gap", "greedy_us", "caps"}
    kernel = korch("explain", optimized, "--kernel", "kernel_0", "--json").json
    assert "kernel_0" in kernel["source"] and "MatMul" in str(kernel["operators"])


def test_explain_rules(korch, optimized, folder) -> None:
    done = korch("explain", optimized, "--rules")
    assert done.code == 0
    assert "affine_into_weights (reassociates): " in done.out
    recorded, tried = (korch("explain", f, "--rules", "--json").json for f in (optimized, folder / "model.onnx"))
    assert recorded["rules"][0]["rules"] == tried["rules"][0]["rules"]
    assert recorded["rules"][0]["rules"][0]["rule"] == "tanh_of_softplus"


def test_explain_as_page(korch, optimized, tmp_path) -> None:
    page = tmp_path / "plan.html"
    assert korch("explain", optimized, "--html", page).code == 0
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
    assert "greedy fusion" in text and "korch_runtime" in text and "http" not in text
    assert korch("explain", optimized, "--html", tmp_path / "no" / "p.html").fails("p.html", "No such file")


def test_export(korch, optimized, tmp_path) -> None:
    done = korch("export", optimized, "--c", tmp_path / "c", "--json")
    names = ["korch.h", "libkorch.so", "main.c", "model.korch"]
    assert done.code == 0 and done.json == {"files": [str(tmp_path / "c" / n) for n in names]}
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == names
    (tmp_path / "file").write_text("")
    assert korch("export", optimized, "--c", tmp_path / "file").fails("file", "cannot be written")
    assert korch("export", optimized).fails("--c", code=2)


# --- doctor and cache


def test_doctor(korch, cache, monkeypatch) -> None:
    done = korch("doctor")
    assert done.code == 0 and "PROBLEM" not in done.out
    found = korch("doctor", "--json").json
    assert found["ok"] is True and found["problems"] == []
    assert found.keys() >= {"python", "threads", "target", "compiler", "cache", "gpu"}
    monkeypatch.setenv("KORCH_CC", "/no/such/compiler")
    done = korch("doctor", "--json")
    assert done.code == 1 and done.json["ok"] is False
    assert "KORCH_CC" in done.json["problems"][0]


def test_cache(korch, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KORCH_CACHE_DIR", str(folder))
    assert korch("cache", "show", "--json").json == {
        "path": str(folder / "costs.sqlite"), "bytes": 0, "costs": 0, "dropped": 0
    }  # fmt: skip
    assert "nothing to clear" in korch("cache", "clear").out
    onnx.save(model_with("y = Neg(x)", {"y": -X}), tmp_path / "neg.onnx")
    first = korch("optimize", tmp_path / "neg.onnx", "--budget", 0, "--json").json
    known = korch("cache", "show", "--json").json
    assert known["costs"] > 0 and known["bytes"] > 0 and first["measured"] > 0
    assert korch("cache", "export", tmp_path / "costs.json", "--json").json["costs"] == known["costs"]
    (folder / "mine.txt").write_text("stays")
    assert korch("cache", "clear", "--json").json == {"path": str(folder), "cleared": True}
    assert [p.name for p in folder.iterdir()] == ["mine.txt"]
    assert korch("cache", "import", tmp_path / "costs.json", "--json").json["costs"] == known["costs"]
    assert korch("cache", "import", tmp_path / "costs.json").out.startswith("added 0 costs")
    assert f"{known['costs']} measured kernels" in korch("cache", "show").out


def test_cache_refuses(korch, folder, tmp_path, monkeypatch) -> None:
    assert korch("cache", "import", tmp_path / "missing.json").fails("missing.json", "korch cache export")
    assert korch("cache", "import", folder / "text.onnx").fails("text.onnx", "export them again")
    assert korch("cache", "export", tmp_path / "no" / "costs.json").fails("costs.json", "No such file")
    monkeypatch.setenv("KORCH_CACHE_DIR", str(folder / "text.onnx"))
    assert korch("cache", "show").code == 0
    assert korch("optimize", folder / "model.onnx", "-o", tmp_path / "y.korch").fails("KORCH_CACHE_DIR")
    assert korch("doctor").code == 1


# --- demo


def test_demo(korch, tmp_path) -> None:
    if not importlib.util.find_spec("rapidocr_onnxruntime"):
        pytest.skip("the demo's model comes with the package rapidocr-onnxruntime")
    file = tmp_path / "det.korch"
    done = korch("demo", "--size", 32, "-o", file, "--budget", 0, "--json")
    assert done.code == 0 and file.exists()
    found = done.json
    assert found["verified"] is True
    assert found["optimize"]["kernels"] > 10 and found["bench"]["engines"]["korch"]["median_ms"] > 0
    assert "verified" in done.err and "ok" in done.err


def test_demo_refuses(korch, tmp_path, monkeypatch) -> None:
    assert korch("demo", "--size", 100).fails("100", "multiple of 32")
    monkeypatch.setattr(sys.modules["korch.cli.demo"], "_PACKAGE", "no_such_package")
    assert korch("demo", "-o", tmp_path / "y.korch").fails("not installed", "pip install")


# --- all commands


COMMANDS = ("optimize", "run", "check", "verify", "bench", "explain", "export", "demo", "doctor", "cache")


@pytest.mark.parametrize("command", [(), *((c,) for c in COMMANDS), ("cache", "show"), ("cache", "import")])
def test_help(command: tuple[str, ...], korch) -> None:
    done = korch(*command, "--help")
    assert done.code == 0 and "Usage:" in done.out and done.err == ""
    if not command:
        assert all(name in done.out for name in COMMANDS)


def test_wrong_command_lines(korch, folder) -> None:
    assert korch("optimise").fails("optimise", "korch --help", code=2)
    assert korch("optimize").fails("korch optimize --help", code=2)
    assert korch("optimize", "a.onnx", "--frobnicate").fails("--frobnicate", code=2)
    assert korch("optimize", "a.onnx", "--threads", "-1").fails("--threads", code=2)
    assert korch("optimize", "a.onnx", "--budget", "soon").fails("--budget", code=2)


def test_errors_as_json(korch, folder) -> None:
    done = korch("check", folder / "missing.onnx", "--json")
    assert done.code == 1 and done.err.count("\n") == 1
    assert "no such file" in done.json["error"]
    done = korch("check", "--json")
    assert done.code == 2 and "korch check --help" in done.json["error"]


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "korch", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, **options)


def test_as_a_process(cache, folder, optimized) -> None:
    version = process("--version")
    assert (version.returncode, version.stderr) == (0, "") and version.stdout.startswith("korch ")
    done = process("run", str(optimized), "--json")
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["outputs"]
    done = process("optimize", "missing.onnx")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: missing.onnx: no such file\n")


def test_a_reader_that_has_seen_enough(cache, optimized) -> None:
    """`korch explain FILE --json | head -c 1` ends without a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "korch", "explain", str(optimized), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert done.returncode != 0 and "Traceback" not in done.stderr
