"""The Python interface: what `korch.optimize` takes, how a model is called, what a saved file needs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

import korch
from korch.codegen.toolchain import find_toolchain
from korch.ir.types import TensorType
from tests.pure.cases import F, build, random

ROOT = Path(__file__).resolve().parents[2]
A, B = random(4, 6), random(6, 3, seed=1)
SUM, PRODUCT = A.sum(1, dtype=np.float64).astype(F), (A.astype(np.float64) @ B.astype(np.float64)).astype(F)


def two_outputs() -> onnx.ModelProto:
    body = "total = ReduceSum <keepdims = 0> (a, axes) product = MatMul(a, b)"
    return build(body, {"a": A, "b": B}, {"total": SUM, "product": PRODUCT}, {"axes": np.array([1])})


def one_output() -> onnx.ModelProto:
    return build("y = MatMul(a, b)", {"a": A, "b": B}, {"y": PRODUCT})


@pytest.fixture(scope="module")
def model(cache) -> korch.Model:
    return korch.optimize(two_outputs(), budget=0)


@pytest.fixture(scope="module")
def file(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.korch"
    model.save(path)
    return path


def agree(results: dict[str, np.ndarray]) -> bool:
    close = np.allclose(results["total"], SUM, rtol=1e-5) and np.allclose(results["product"], PRODUCT, rtol=1e-5)
    return list(results) == ["total", "product"] and close


@pytest.mark.parametrize("form", ["path", "text", "proto", "bytes"])
def test_forms_of_a_model(form: str, cache, tmp_path) -> None:
    proto, path = one_output(), tmp_path / "model.onnx"
    onnx.save(proto, path)
    given = {"path": path, "text": str(path), "proto": proto, "bytes": proto.SerializeToString()}[form]
    np.testing.assert_allclose(korch.optimize(given, budget=0)(A, B), PRODUCT, rtol=1e-5)


def test_what_is_no_model(cache, tmp_path) -> None:
    for wrong in (42, None, [1, 2], b"not a model", tmp_path / "missing.onnx"):
        with pytest.raises(korch.InvalidModel) as caught:
            korch.optimize(wrong)
        assert "\n" not in str(caught.value)


def test_unbound_dimensions_are_bound_by_any_sequence(cache) -> None:
    proto = one_output()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    with pytest.raises(korch.UnsupportedModel, match="--shape"):
        korch.optimize(proto)
    model = korch.optimize(proto, shapes={"a": [2, 6]}, budget=0)
    assert model(A[:2], B).shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"numerics": "sloppy"}, korch.InvalidInput, "strict"),
        ({"target": "pdp11"}, korch.ToolchainError, "the targets are"),
        ({"threads": -1}, korch.InvalidInput, "threads"),
        ({"budget": -1.0}, korch.InvalidInput, "budget"),
        ({"budget": float("nan")}, korch.InvalidInput, "budget"),
        ({"shapes": {"z": (1,)}}, korch.InvalidInput, "a .*b"),
        ({"shapes": {"a": (5, 6)}}, korch.InvalidInput, "dimension 0"),
    ],
)
def test_wrong_options(options, error, words: str, cache) -> None:
    with pytest.raises(error, match=words) as caught:
        korch.optimize(one_output(), **options)
    assert "\n" not in str(caught.value)


def test_a_target_that_is_not_here(cache) -> None:
    other = "x86_64" if os.uname().machine == "aarch64" else "aarch64"
    with pytest.raises(korch.ToolchainError, match="cannot be measured on this machine"):
        korch.optimize(one_output(), target=other)


def test_description(model, file) -> None:
    for m in (model, korch.load(file)):
        assert {n: str(t) for n, t in m.inputs.items()} == {"a": "float32[4,6]", "b": "float32[6,3]"}
        assert m.outputs == {"total": TensorType.of(SUM), "product": TensorType.of(PRODUCT)}
        assert list(m.inputs) == ["a", "b"]
        assert repr(m) == ("korch.Model(a: float32[4,6], b: float32[6,3] -> total: float32[4], product: float32[4,3])")
    assert model.summary.kernels >= 1 and model.summary.operators == 2
    assert model.summary.objective_us > 0 and model.summary.bound_us <= model.summary.objective_us
    assert korch.load(file).summary is None


def test_ways_to_call(model) -> None:
    assert agree(model(A, B))
    assert agree(model(A, b=B))
    assert agree(model(b=B, a=A))
    assert agree(model({"b": B, "a": A}))
    assert agree(model(np.asfortranarray(A), B[::-1][::-1]))
    assert agree(model.run({"a": A, "b": B}, threads=1))


def test_one_output_is_an_array(cache) -> None:
    y = korch.optimize(one_output(), budget=0)(A, B)
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, PRODUCT, rtol=1e-5)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((A,), {}, "float32\\[6,3\\]"),
        ((A, B, A), {}, "3 inputs given"),
        ((A, B), {"b": B}, "by position and by keyword"),
        ((A,), {"c": B}, "a float32"),
        ((A, B.T), {}, "have shapes"),
        ((A.astype(np.float64), B), {}, "dtype float64"),
        (({"a": A},), {}, "a float32"),
        ((), {}, "nothing"),
    ],
)
def test_wrong_calls(args, kwargs, words: str, model) -> None:
    with pytest.raises(korch.InvalidInput, match=words) as caught:
        model(*args, **kwargs)
    assert "\n" not in str(caught.value)


def test_outputs_are_fresh_or_the_callers(model) -> None:
    first, second = model(A, B), model(A, B)
    assert not np.shares_memory(first["product"], second["product"])
    mine = np.full_like(PRODUCT, np.nan)
    results = model.run({"a": A, "b": B}, out={"product": mine})
    assert results["product"] is mine and agree(results)
    with pytest.raises(korch.InvalidInput, match="no output"):
        model.run({"a": A, "b": B}, out={"z": mine})
    with pytest.raises(korch.InvalidInput, match="overlaps"):
        model.run({"a": A, "b": B}, out={"total": A[0, :4]})


def test_inputs_are_not_changed(model) -> None:
    a, b = A.copy(), B.copy()
    model(a, b)
    assert np.array_equal(a, A) and np.array_equal(b, B)


def test_many_threads(model) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        a = random(4, 6, seed=seed)
        expected = a.astype(np.float64) @ B
        for _ in range(50):
            if not np.allclose(model(a, B)["product"], expected, rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_saving(model, file, tmp_path) -> None:
    again = tmp_path / "again.korch"
    again.write_bytes(b"something else")
    korch.load(file).save(again)
    assert again.read_bytes() == file.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["again.korch"]
    with pytest.raises(korch.ArtifactError, match="choose"):
        model.save(tmp_path / "missing" / "model.korch")


def test_an_optimized_model_leaves_no_file(cache, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = korch.optimize(one_output(), budget=0)
    assert [p.suffix for p in tmp_path.iterdir()] == [".korch"]
    del model
    assert list(tmp_path.iterdir()) == []


def test_damaged_files(file, tmp_path) -> None:
    data = file.read_bytes()
    copy = tmp_path / "damaged.korch"
    for content in (b"", b"KORCH", data[:1000], data[:-1], data[:5000] + b"\xff" + data[5001:], b"PK" + data[2:]):
        copy.write_bytes(content)
        with pytest.raises(korch.ArtifactError) as caught:
            korch.load(copy)
        assert str(copy) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(korch.ArtifactError, match="cannot be read"):
        korch.load(tmp_path / "missing.korch")


def python(code: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_running_needs_numpy_and_the_standard_library_only(file, tmp_path) -> None:
    code = """
        import sys
        before = set(sys.modules)  # what the environment loads at every start
        for name in ("onnx", "highspy", "ziglang", "rich", "typer", "click", "platformdirs", "ml_dtypes"):
            sys.modules[name] = None  # importing it fails
        import numpy as np
        import korch
        model = korch.load(sys.argv[1])
        given = np.load(sys.argv[2])
        print(repr(model(given["a"], given["b"])["product"].tolist()))
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before if sys.modules[name] is not None}
        assert {n for n in loaded if n not in sys.stdlib_module_names} == {"numpy", "korch"}, loaded
    """
    np.savez(tmp_path / "inputs.npz", a=A, b=B)
    product = np.array(eval(python(code, str(file), str(tmp_path / "inputs.npz"))), F)
    np.testing.assert_allclose(product, PRODUCT, rtol=1e-5)


def test_a_forked_child_leaves_the_parents_file(cache) -> None:
    code = """
        import os, sys, numpy as np, onnx, korch
        model = korch.optimize(sys.argv[1], budget=0)
        a, b = np.ones((4, 6), np.float32), np.ones((6, 3), np.float32)
        child = os.fork()
        if child == 0:
            assert (model(a, b) == 6).all()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        model.save(sys.argv[2])
        print((korch.load(sys.argv[2])(a, b) == 6).all())
    """
    folder = cache / "fork"
    folder.mkdir(exist_ok=True)
    onnx.save(one_output(), folder / "model.onnx")
    assert python(code, str(folder / "model.onnx"), str(folder / "model.korch")) == "True\n"


def test_a_c_program(file, tmp_path) -> None:
    from korch.artifact.export import export_c

    toolchain = find_toolchain()
    if toolchain.kind != "zig":
        pytest.skip("KORCH_CC names another compiler")
    folder = tmp_path / "c"
    export_c(file, folder)
    libraries = ["-L.", "-lkorch", "-Wl,-rpath,$ORIGIN", "-ldl", "-lpthread"]
    subprocess.run([*toolchain.command, "cc", "main.c", "-o", "main", *libraries], cwd=folder, check=True, timeout=300)
    A.tofile(folder / "a.bin")
    B.tofile(folder / "b.bin")
    command = ["./main", "model.korch", "a.bin", "b.bin"]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
    total, product = (line.partition("bytes: ")[2].split() for line in printed.splitlines())
    np.testing.assert_allclose([float(v) for v in total], SUM, rtol=1e-4)
    np.testing.assert_allclose([float(v) for v in product], PRODUCT.reshape(-1)[:8], rtol=1e-4)
