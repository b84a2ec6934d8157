"""Several shapes: one file with a plan for each, weights stored once; shapes optimized when they are first seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import korch
from korch.artifact.format import open_artifact
from korch.cli.common import one_shape_set, parse_shapes
from korch.errors import InvalidInput
from tests.pure.cases import F, build, random

WEIGHT, BIAS = random(64, 96, seed=1), random(96, seed=2)


def unbound() -> onnx.ModelProto:
    """y = relu(x @ w + b) for x of any number of rows."""
    body = "z = MatMul(x, w) s = Add(z, b) y = Relu(s)"
    model = build(body, {"x": random(2, 64)}, {"y": np.zeros((2, 96), F)}, {"w": WEIGHT, "b": BIAS})
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return model


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x.astype(np.float64) @ WEIGHT + BIAS, 0).astype(F)


@pytest.fixture(scope="module")
def model(cache) -> korch.Model:
    return korch.optimize(unbound(), shapes=[{"x": (1, 64)}, {"x": (7, 64)}, {"x": (1, 64)}, {"x": (0, 64)}], budget=0)


def test_each_shape_has_a_plan(model) -> None:
    assert [s["x"].shape for s in model.signatures] == [(1, 64), (7, 64), (0, 64)]
    assert [s.inputs for s in model.summaries] == [{"x": (1, 64)}, {"x": (7, 64)}, {"x": (0, 64)}]
    for rows in (7, 1, 0, 7):
        x = random(rows, 64, seed=rows)
        np.testing.assert_allclose(model(x), expected(x), rtol=1e-4, atol=1e-4)


def test_another_shape_is_refused_with_those_held(model) -> None:
    with pytest.raises(InvalidInput, match=r"x \(2, 64\).*float32\[1,64\].*float32\[7,64\]"):
        model(random(2, 64))


def test_weights_are_stored_once(model, tmp_path) -> None:
    path = tmp_path / "several.korch"
    korch.optimize(unbound(), shapes=[{"x": (7, 64)}, {"x": (6, 64)}, {"x": (5, 64)}], budget=0).save(path)
    sections = open_artifact(path).sections
    assert sections["weights:0"] == sections["weights:1"] == sections["weights:2"]
    assert sections["weights:0"].size < 3 * WEIGHT.nbytes  # at most two forms: row-major, and packed


def test_the_command_line(cache, tmp_path, monkeypatch, capsys) -> None:
    from korch.cli import main

    def run(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["korch", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    onnx.save(unbound(), tmp_path / "m.onnx")
    file = tmp_path / "m.korch"
    assert run("optimize", tmp_path / "m.onnx", "-o", file, "--shape", "x=1..3x64", "--shape", "x=9x64",
               "--budget", 0) == 0  # fmt: skip
    assert [s["x"].shape[0] for s in korch.load(file).signatures] == [1, 2, 3, 9]
    out = capsys.readouterr().out
    assert "plan for x 1x64" in out and "plan for x 9x64" in out
    assert run("verify", tmp_path / "m.onnx", file) == 0
    assert capsys.readouterr().out.count(": ok") == 4
    np.save(tmp_path / "x.npy", random(5, 64))
    assert run("verify", tmp_path / "m.onnx", file, "--input", f"x={tmp_path / 'x.npy'}") == 1
    assert "float32[9,64]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sets"),
    [
        (None, [{}]),
        (["x=1x3"], [{"x": (1, 3)}]),
        (["x="], [{"x": ()}]),
        (["a=b=2"], [{"a=b": (2,)}]),
        (["x=1", "y=2", "x=3", "y=4"], [{"x": (1,), "y": (2,)}, {"x": (3,), "y": (4,)}]),
        (["x=1..2x4"], [{"x": (1, 4)}, {"x": (2, 4)}]),
        (["x=1..2x4", "y=1..2"], [{"x": (1, 4), "y": (1,)}, {"x": (2, 4), "y": (2,)}]),
        (["x=1..2x3..4"], [{"x": (a, b)} for a in (1, 2) for b in (3, 4)]),
    ],
)
def test_options(options: list[str] | None, sets: list[dict[str, tuple[int, ...]]]) -> None:
    assert list(parse_shapes(options)) == sets


@pytest.mark.parametrize("option", ["x", "=1", "x=1x", "x=-1", "x=a", "x=1..", "x=4..2", "x=1..100000", "x=1.5"])
def test_options_that_cannot_be_read(option: str) -> None:
    with pytest.raises(InvalidInput, match="--shape"):
        parse_shapes([option])


def test_one_set_where_only_one_makes_sense() -> None:
    assert one_shape_set(["x=1x3"]) == {"x": (1, 3)}
    with pytest.raises(InvalidInput, match="2 sets"):
        one_shape_set(["x=1x3", "x=2x3"])


def test_dynamic(cache, tmp_path) -> None:
    model = korch.optimize(unbound(), budget=0, dynamic=True)
    assert model.shapes == ()
    with pytest.raises(InvalidInput, match="seen no shapes"):
        model.save(tmp_path / "none.korch")
    for rows in (3, 5, 3):
        x = random(rows, 64, seed=rows)
        np.testing.assert_allclose(model(x), expected(x), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(model({"x": x}), expected(x), rtol=1e-4, atol=1e-4)
    assert model.shapes == ({"x": (3, 64)}, {"x": (5, 64)})
    with pytest.raises(InvalidInput, match="rank 2"):
        model(random(3))
    with pytest.raises(InvalidInput, match="float64"):
        model(x=random(3, 64).astype(np.float64))
    with pytest.raises(InvalidInput, match="was given nothing"):
        model()
    model.save(tmp_path / "m.korch")
    assert [s["x"].shape for s in korch.load(Path(tmp_path / "m.korch")).signatures] == [(3, 64), (5, 64)]


def test_dynamic_with_shapes_given(cache) -> None:
    model = korch.optimize(unbound(), shapes={"x": (4, 64)}, budget=0, dynamic=True)
    assert model.shapes == ({"x": (4, 64)},)


def test_a_model_that_was_searched_before_is_not_searched_again(cache, tmp_path, monkeypatch) -> None:
    first, second = tmp_path / "first.korch", tmp_path / "second.korch"
    korch.optimize(unbound(), shapes={"x": (13, 64)}).save(first)

    def not_again(graph: object) -> None:
        raise AssertionError("candidates are enumerated again")

    monkeypatch.setattr("korch.pipeline.enumerate_candidates", not_again)
    korch.optimize(unbound(), shapes={"x": (13, 64)}).save(second)
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(AssertionError, match="again"):
        korch.optimize(unbound(), shapes={"x": (14, 64)})
    with pytest.raises(AssertionError, match="again"):
        korch.optimize(unbound(), shapes={"x": (13, 64)}, threads=1)
