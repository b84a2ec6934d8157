"""The standard of verification, the inputs it is applied to, and the reference evaluator."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from korch.errors import InvalidInput, KorchError
from korch.inputs import read_inputs, write_arrays
from korch.ir.types import DType, TensorType
from korch.reference import reference_outputs
from korch.verify import OutputError, compare, compare_output, random_inputs
from tests.pure.cases import F, build, cases, random


def reason(value: np.ndarray, reference: np.ndarray) -> str | None:
    return compare_output(value, reference).reason


def test_equal_outputs() -> None:
    x = random(2, 3, 4, 5)
    assert compare_output(x, x) == OutputError(0.0, 0.0)
    assert compare({"y": x, "z": x}, {"y": x, "z": x}).ok


def test_errors_are_measured() -> None:
    error = compare_output(np.array([3, 4.5], F), np.array([3, 4], F))
    assert error.max_abs_error == 0.5
    assert error.rel_l2_error == pytest.approx(0.1)
    assert error.reason == "the relative L2 error is 0.1"


@pytest.mark.parametrize(("share", "ok"), [(0.9e-4, True), (1.1e-4, False)])
def test_relative_l2_error(share: float, ok: bool) -> None:
    x = random(50, 50)
    assert (reason((x.astype(np.float64) * (1 + share)).astype(F), x) is None) == ok


@pytest.mark.parametrize(("dtype", "share", "ok"), [
    (np.float16, 0.8e-2, True), (np.float16, 1.4e-2, False),
    (ml_dtypes.bfloat16, 4e-2, True), (ml_dtypes.bfloat16, 6e-2, False),
    (np.float64, 0.9e-4, True), (np.float64, 1.1e-4, False),
])  # fmt: skip
def test_dtypes_have_their_own_standard(dtype: type, share: float, ok: bool) -> None:
    x = random(50, 50).astype(dtype)
    assert (reason((x.astype(np.float64) * (1 + share)).astype(dtype), x) is None) == ok


def test_largest_error_of_a_channel() -> None:
    """One element a hundredth off is nothing among many in L2, and yet wrong."""
    x = random(1, 4, 100, 100)
    y = x.copy()
    y[0, 2, 50, 50] += 0.01
    found = compare_output(y, x)
    assert found.rel_l2_error < 1e-4
    assert found.reason is not None and "of its channel's RMS" in found.reason


def test_a_faint_channel_is_held_to_one_percent_of_the_whole() -> None:
    x = random(1, 4, 100, 100)
    x[0, 1] *= F(1e-6)
    y = x.copy()
    y[0, 1, 3, 3] += F(5e-6)  # five times the channel's RMS, less than a thousandth of 1 % of the whole's
    assert reason(y, x) is None
    y[0, 1, 3, 3] += F(1e-3)
    assert reason(y, x) is not None


def test_matrices_have_channels_last() -> None:
    x = np.ones((1000, 3), F) * np.array([1, 1, 0.02], F)
    y = x.copy()
    y[7, 2] += F(1e-4)  # of 0.02: half a percent
    assert reason(y, x) is not None
    y = x.copy()
    y[7, 0] += F(1e-4)
    assert reason(y, x) is None


def test_masks_of_nan_and_infinities() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf, 2], F)
    assert reason(x, x) is None
    for k, wrong in ((0, np.nan), (1, 1), (2, np.nan), (2, -np.inf), (2, 3e38), (4, np.inf)):
        y = x.copy()
        y[k] = wrong
        assert reason(y, x) is not None
    nothing = np.full(3, np.nan, F)
    assert "proves nothing" in (reason(nothing, nothing) or "")


def test_types_must_agree() -> None:
    x = random(2, 3)
    assert "float32[3,2]" in (reason(x.T, x) or "")
    assert "float64" in (reason(x.astype(np.float64), x) or "")


def test_integers_and_booleans_are_equal() -> None:
    x = np.array([2**62 + 1, 5])
    assert reason(x, x) is None
    assert reason(x + np.array([1, 0]), x) == "1 elements differ"  # also where float64 cannot tell
    assert reason(np.array([True, False]), np.array([True, True])) == "1 elements differ"


def test_rank_zero_and_no_elements() -> None:
    assert reason(np.array(1, F), np.array(1, F)) is None
    assert reason(np.array(1.1, F), np.array(1, F)) is not None
    assert reason(np.array(0, F), np.array(0, F)) is None
    assert reason(np.array(1e-3, F), np.array(0, F)) is not None
    assert reason(np.zeros((0, 3), F), np.zeros((0, 3), F)) is None
    assert reason(np.zeros(0, np.int64), np.zeros(0, np.int64)) is None


def test_a_missing_output() -> None:
    found = compare({"y": random(2)}, {"y": random(2), "z": random(2)})
    assert not found.ok and found.outputs["y"].reason is None
    assert found.outputs["z"].reason == "is missing; the optimized model has y"


# --- inputs


TYPES = {
    "image": TensorType(DType.FLOAT32, (2, 3, 40, 33)),
    "half": TensorType(DType.FLOAT16, (5,)),
    "index": TensorType(DType.INT64, (100,)),
    "small": TensorType(DType.UINT8, (100,)),
    "mask": TensorType(DType.BOOL, (100,)),
    "scalar": TensorType(DType.FLOAT32, ()),
    "nothing": TensorType(DType.FLOAT32, (0, 3, 8, 8)),
    "none": TensorType(DType.INT32, (0,)),
}


def test_random_inputs() -> None:
    found = random_inputs(TYPES)
    assert {name: TensorType.of(array) for name, array in found.items()} == TYPES
    for name, array in random_inputs(TYPES).items():
        np.testing.assert_array_equal(array, found[name])
    assert not np.array_equal(random_inputs(TYPES, 1)["image"], found["image"])
    assert set(np.unique(found["index"])) == set(np.unique(found["small"])) == set(range(10))
    assert set(np.unique(found["mask"])) == {False, True}


def test_images_are_smooth_and_normalised() -> None:
    x = random_inputs({"x": TensorType(DType.FLOAT32, (1, 3, 64, 64))})["x"]
    assert abs(x.mean()) < 1e-5 and abs(x.std() - 1) < 1e-5
    assert np.abs(np.diff(x, axis=3)).mean() < 0.7 * np.abs(x).mean()  # 1.4 for white noise


def test_inputs_from_files(tmp_path: Path) -> None:
    types = {"x": TensorType(DType.FLOAT32, (2,)), "x=y": TensorType(DType.FLOAT32, (2,))}
    np.save(tmp_path / "a.npy", np.array([1, 2], F))
    np.save(tmp_path / "b=c.npy", np.array([3, 4], F))
    found = read_inputs([f"x={tmp_path / 'a.npy'}", f"x=y={tmp_path / 'b=c.npy'}"], types)
    assert found["x"].tolist() == [1, 2] and found["x=y"].tolist() == [3, 4]
    np.testing.assert_array_equal(read_inputs([], types, 5)["x"], random_inputs(types, 5)["x"])
    with pytest.raises(InvalidInput, match="one of: x, x=y"):
        read_inputs(["z=a.npy"], types)
    (tmp_path / "pickled.npy").write_bytes(b"")
    np.save(tmp_path / "pickled.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(InvalidInput, match=r"numpy\.save"):
        read_inputs([f"x={tmp_path / 'pickled.npy'}"], types)


def test_outputs_to_files(tmp_path: Path) -> None:
    files = write_arrays({"a/b": np.zeros(1), "a_b": np.ones(1), "": np.full(1, 2)}, tmp_path / "new" / "folder")
    assert [np.load(f)[0] for f in files.values()] == [0, 1, 2]
    assert len({*files.values()}) == 3


# --- the reference evaluator


def test_reference_takes_a_path_a_model_and_bytes(tmp_path: Path) -> None:
    x = random(2, 3)
    model = build("y = Neg(x)", {"x": x}, {"y": x})
    onnx.save(model, tmp_path / "model.onnx")
    for form in (tmp_path / "model.onnx", str(tmp_path / "model.onnx"), model, model.SerializeToString()):
        np.testing.assert_array_equal(reference_outputs(form, {"x": x})["y"], -x)


def test_softmax_before_opset_13() -> None:
    (case,) = (c for c in cases() if c.name == "softmax_before_opset_13")
    np.testing.assert_allclose(reference_outputs(case.model, case.inputs)["y"], case.expected["y"], rtol=1e-6)
    flat = case.inputs["x"].reshape(2, 12)
    results = {"l": np.log(case.expected["y"]), "h": (flat == flat.max(1, keepdims=True)).reshape(2, 3, 4).astype(F)}
    model = build("l = LogSoftmax(x) h = Hardmax(x)", case.inputs, results, opset=11)
    for name, found in reference_outputs(model, case.inputs).items():
        np.testing.assert_allclose(found, results[name], rtol=1e-5)


@pytest.mark.parametrize("opset", [9, 12, 13, 14, 15])
def test_batch_normalization_uses_the_given_statistics(opset: int) -> None:
    x = random(2, 3, 4)
    scale, bias, mean, variance = (np.array(v, F) for v in ([1, 2, 3], [0, 1, 0], [0, 0, 5], [1, 4, 9]))
    expected = (x - mean[:, None]) / np.sqrt(variance[:, None] + F(1e-5)) * scale[:, None] + bias[:, None]
    body = "y = BatchNormalization <momentum = 0.5> (x, scale, bias, mean, variance)"
    constants = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
    model = build(body, {"x": x}, {"y": x}, constants, opset)
    np.testing.assert_allclose(reference_outputs(model, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_lrn_of_one_image(size: int) -> None:
    x = random(1, 6, 2, 3)
    squares = x.astype(np.float64) ** 2
    sums = [squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1) for c in range(6)]
    expected = (x / (2 + 0.3 / size * np.stack(sums, 1)) ** 0.5).astype(F)
    model = build(f"y = LRN <size = {size}, alpha = 0.3, beta = 0.5, bias = 2.0> (x)", {"x": x}, {"y": x})
    np.testing.assert_allclose(reference_outputs(model, {"x": x})["y"], expected, rtol=1e-5)


def test_lp_normalization() -> None:
    x = np.array([[1, -3], [0, 0]], F)
    model = build("y = LpNormalization <p = 1> (x) z = LpNormalization <p = 2> (x)", {"x": x}, {"y": x, "z": x})
    found = reference_outputs(model, {"x": x})
    np.testing.assert_allclose(found["y"], [[0.25, -0.75], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(found["z"], np.array([[1, -3], [0, 0]]) / np.sqrt([[10], [1]]), rtol=1e-6)


def test_what_the_reference_cannot_run() -> None:
    x = random(2, 3)
    with pytest.raises(KorchError, match="cannot run the model") as caught:
        reference_outputs(build("y = Neg(x)", {"x": x}, {"y": x}), {"z": x})
    assert "\n" not in str(caught.value)
