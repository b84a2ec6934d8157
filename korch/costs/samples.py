"""Inputs to try a kernel on, and the comparison of what it returns with the primitives' NumPy meaning."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from korch.ir.fragment import Fragment
from korch.ir.graph import Graph
from korch.ir.layout import Layout
from korch.ir.types import CODES, DType, TensorType

_INDEXED = {"gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd"}
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -3e38, 1.0, -1.0)
# For fragments that add: huge numbers of both signs would cancel or overflow depending on the order of the sum.
_SPECIAL_TO_ADD = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e30, 1.0, -1.0)
# For those that multiply many: what underflows, and so 0 times infinity, depends on the order of the product.
_SPECIAL_TO_MULTIPLY = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0)
_ADDS = {"reduce_sum", "window_sum", "cumsum"}


def sample_inputs(fragment: Fragment, *, adversarial: bool = False) -> dict[str, np.ndarray]:
    """One array for each input of the fragment, the same each time for one type and position.

    Floats are normal; `adversarial` strews NaN, infinities, signed zeros, denormals and huge numbers among them
    (such that the result does not hang on the order of a sum or a product), and the extreme integers among
    integers. Integers used as indices stay in range.
    """
    graph = fragment.graph
    limits = _index_limits(graph)
    special = _special(graph) if adversarial else ()
    found: dict[str, np.ndarray] = {}
    for value in graph.input_values:
        t = graph.types[value]
        seed = int.from_bytes(hashlib.sha256(f"{value}:{t}".encode()).digest()[:8], "little")
        found[value] = _sample(t, np.random.default_rng(seed), limits.get(value), special)
    return found


def _special(graph: Graph) -> tuple[float, ...]:
    primitives = {d.primitive for d in graph.definitions}
    if "reduce_prod" in primitives:
        return _SPECIAL_TO_MULTIPLY
    return _SPECIAL_TO_ADD if primitives & _ADDS else _SPECIAL


def _index_limits(graph: Graph) -> dict[str, int]:
    """The least size of the axes that each index input selects from."""
    found: dict[str, int] = {}
    for d in graph.definitions:
        if d.primitive in _INDEXED:
            shape = graph.types[d.inputs[0]].shape
            attributes = dict(d.attributes)
            axis = attributes.get("axis")
            sizes = [shape[int(axis)]] if isinstance(axis, int) else list(shape)
            limit = max(min(sizes, default=1), 1)
            found[d.inputs[1]] = min(found.get(d.inputs[1], limit), limit)
    return found


def _sample(t: TensorType, rng: np.random.Generator, limit: int | None, special: tuple[float, ...]) -> np.ndarray:
    """Random elements, with some of the `special` numbers among them where there are any."""
    if t.dtype.is_float:
        array = rng.standard_normal(t.shape, np.float32).astype(t.dtype.numpy)
        if special and array.size:
            flat = array.reshape(-1)
            places = rng.integers(0, array.size, min(array.size, max(3, array.size // 50)))
            with np.errstate(over="ignore"):
                flat[places] = rng.choice(np.array(special), len(places)).astype(t.dtype.numpy)
        return array
    if t.dtype.is_integer:
        if limit is not None:
            return rng.integers(0, limit, t.shape).astype(t.dtype.numpy)
        array = rng.integers(-8 if t.dtype.is_signed else 0, 9, t.shape).astype(t.dtype.numpy)
        if special and array.size:
            info = np.iinfo(t.dtype.numpy)
            places = rng.integers(0, array.size, max(1, array.size // 20))
            array.reshape(-1)[places] = rng.choice(np.array([info.min, info.max], t.dtype.numpy), len(places))
        return array
    if t.dtype in CODES:
        return rng.integers(0, 256, t.shape, np.uint8).view(t.dtype.numpy)
    return rng.integers(0, 2, t.shape).astype(bool)


def place(array: np.ndarray, layout: Layout) -> np.ndarray:
    """The memory of a resource: a flat array in which `array` lies in the layout."""
    if layout.strides is None:
        return np.ascontiguousarray(array.transpose(layout.order)).reshape(-1)
    memory = np.zeros(layout.span(array.shape), array.dtype)
    view(memory, array.shape, layout)[...] = array
    return memory


def view(memory: np.ndarray, shape: tuple[int, ...], layout: Layout) -> np.ndarray:
    """The value that lies in a flat array, without a copy."""
    size = memory.dtype.itemsize
    strides = tuple(s * size for s in layout.strides_of(shape))
    return np.ndarray(shape, memory.dtype, memory.view(np.uint8).data, 0, strides)


def mismatch(
    got: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    double: Mapping[str, np.ndarray] | None = None,
    *,
    adversarial: bool = False,
) -> str | None:
    """None when the outputs agree with the reference, else what differs, in one line.

    Floats: the masks of NaN and of infinities agree, the relative L2 error is at most 1e-4 (1e-2 for 16 bits) and
    the largest error at most 1e-3 of the RMS (1e-1); or both are at most 8 times the error that NumPy's own
    evaluation in the same precision has against float64 (`double`), for a fragment that cancels. Where float64
    stays finite but float32 overflows, float32's word counts. Integers that do not come from floats are exact.
    `adversarial` inputs hold huge numbers, which would drown all others in an RMS: there, each error is taken
    relative to the greater of its own element and the median magnitude.
    """
    for name, reference in expected.items():
        value = got[name]
        exact = None if double is None else double[name]
        if DType.of(reference.dtype) in CODES:
            value, reference = value.view(np.uint8), reference.view(np.uint8)
            exact = None if exact is None else exact.view(np.uint8)
        if np.issubdtype(reference.dtype, np.inexact) or reference.dtype.kind == "V" or reference.dtype.itemsize == 2:
            reason = _float_mismatch(value, reference, exact, adversarial)
        else:
            same = value == reference
            if exact is not None and exact.dtype == reference.dtype:
                same |= value == exact
            wrong = int(np.size(same) - np.count_nonzero(same))
            reason = f"{wrong} of {np.size(same)} elements differ" if wrong else None
        if reason:
            return f"output {name}: {reason}"
    return None


def _float_mismatch(
    value: np.ndarray, reference: np.ndarray, double: np.ndarray | None, adversarial: bool
) -> str | None:
    half = reference.dtype.itemsize == 2
    v, r = value.astype(np.float64), reference.astype(np.float64)
    if not np.array_equal(np.isnan(v), np.isnan(r)):
        return f"NaN at {_first(np.isnan(v) != np.isnan(r))} in one of result and reference only"
    infinite = np.isinf(v) | np.isinf(r)
    if not np.array_equal(v[infinite], r[infinite]):
        return f"an infinity at {_first(infinite & (v != r))} in one of result and reference only"
    finite = np.isfinite(r)
    v, r = v[finite], r[finite]
    if r.size == 0:
        return None
    scale: np.ndarray | float
    if adversarial:
        scale = np.maximum(np.abs(r), float(np.median(np.abs(r))) or 1e-6)
    else:
        scale = math.sqrt(float(np.mean(np.square(r)))) or 1.0
    l2, largest = _errors(v, r, scale)
    own_l2 = own_largest = 0.0
    if double is not None:
        d = double.astype(np.float64)[finite]
        known = np.isfinite(d)
        own_scale = scale[known] if isinstance(scale, np.ndarray) else scale
        own_l2, own_largest = _errors(r[known], d[known], own_scale)
    if l2 <= max(1e-2 if half else 1e-4, 8 * own_l2) and largest <= max(1e-1 if half else 1e-3, 8 * own_largest):
        return None
    return f"relative L2 error {l2:.2g}, largest error {largest:.2g} of the RMS"


def _errors(v: np.ndarray, r: np.ndarray, scale: np.ndarray | float) -> tuple[float, float]:
    if v.size == 0:
        return 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(v - r) / scale
        return math.sqrt(float(np.mean(np.square(error)))), float(error.max())


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
