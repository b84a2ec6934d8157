"""Operators that move elements, and indexing, against the reference evaluator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from korch.errors import UnsupportedModel
from korch.ir.evaluate import evaluate
from tests.pure.fission_reference import check, compare, graph_of, model_of, normal

F = np.float32
I = np.int64
X = normal(2, 3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, I)


@pytest.mark.parametrize("shape", [(6, 4), (0, -1), (-1,), (2, 0, 2, 2), (1, 24), (2, 3, 4)])
def test_reshape(shape: tuple[int, ...]) -> None:
    compare("y = Reshape(x, s)", {"x": X}, {"s": ints(*shape)})


def test_reshape_of_nothing() -> None:
    empty = np.zeros((0, 3), F)
    compare("y = Reshape<allowzero=1>(x, s)", {"x": empty}, {"s": ints(3, 0)})
    compare("y = Reshape(x, s)", {"x": empty}, {"s": ints(0, 3, 1)})


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
def test_flatten(axis: int) -> None:
    compare(f"y = Flatten<axis={axis}>(x)", {"x": X})


def test_squeeze_and_unsqueeze() -> None:
    x = normal(1, 3, 1, 2)
    compare("y = Squeeze(x)", {"x": x})
    compare("y = Squeeze(x, a)", {"x": x}, {"a": ints(-2)})
    compare("y = Squeeze<axes=[0, 2]>(x)", {"x": x}, opset=11)
    compare("y = Unsqueeze(x, a)", {"x": X}, {"a": ints(0, -1)})
    compare("y = Unsqueeze<axes=[1, 3]>(x)", {"x": X}, opset=11)


def test_transpose() -> None:
    compare("y = Transpose(x)", {"x": X})
    for perm in itertools.permutations(range(3)):
        compare(f"y = Transpose<perm={list(perm)}>(x)", {"x": X})
        compare(f"y = Transpose<perm={list(perm)}>(x)", {"x": normal(1, 3, 4)})


def test_concat_and_split() -> None:
    compare("y = Concat<axis=-2>(x, z, x)", {"x": X, "z": normal(2, 5, 4)})
    compare("y = Concat<axis=0>(x, z)", {"x": X, "z": np.zeros((0, 3, 4), F)})
    outputs = ("a", "b", "c")
    compare("a, b, c = Split<axis=1>(x, s)", {"x": X}, {"s": ints(1, 0, 2)}, outputs)
    compare("a, b, c = Split<axis=1, num_outputs=3>(x)", {"x": normal(2, 8)}, None, outputs)
    compare("a, b = Split<axis=2>(x)", {"x": X}, None, ("a", "b"), opset=13)
    compare("a, b = Split<axis=2, split=[1, 3]>(x)", {"x": X}, None, ("a", "b"), opset=11)


def test_split_of_which_a_part_is_used() -> None:
    graph = compare("a, b, c = Split<axis=1>(x)", {"x": X}, None, ("a",), opset=13)
    assert [d.primitive for d in graph] == ["slice"]


BOUNDS = [-(2**62), -9, -4, -1, 0, 2, 4, 9, 2**62]


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_slice(step: int) -> None:
    x = np.arange(4, dtype=F)
    for start, end in itertools.product(BOUNDS, BOUNDS):
        body = "y = Slice(x, s, e, a, t)"
        constants = {"s": ints(start), "e": ints(end), "a": ints(-1), "t": ints(step)}
        graph = graph_of(model_of(body, {"x": x}, constants))
        # The standard clamps the start of a backward slice to the first element; Python goes before it.
        begin = max(start, -4) if step < 0 else start
        check(evaluate(graph, {"x": x})["y"], x[slice(begin, end, step)])


def test_slice_of_several_axes() -> None:
    compare("y = Slice(x, s, e)", {"x": X}, {"s": ints(0, 1), "e": ints(2, -1)})
    compare("y = Slice(x, s, e, a)", {"x": X}, {"s": ints(1, 1), "e": ints(3, 9), "a": ints(2, 0)})
    compare("y = Slice<starts=[1], ends=[3], axes=[2]>(x)", {"x": X}, opset=9)


def test_tile_and_expand() -> None:
    compare("y = Tile(x, r)", {"x": X}, {"r": ints(1, 2, 3)})
    compare("y = Tile(x, r)", {"x": normal(2, 1)}, {"r": ints(3, 0)})
    for shape in ((2, 3, 4), (5, 1, 3, 1), (1,)):
        compare("y = Expand(x, s)", {"x": normal(3, 1)[None, :, :]}, {"s": ints(*shape)})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0, 2, 3), (0, 0, 0, 0, 0, 0), (1, 0, 0, 0, 0, 1)])
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    compare(f'y = Pad<mode="{mode}">(x, p)', {"x": X}, {"p": ints(*pads)}, opset=19)


def test_other_pads() -> None:
    graph = graph_of(model_of("y = Pad(x, p)", {"x": X}, {"p": ints(0, -1, 2, 0, 1, -2)}))
    check(evaluate(graph, {"x": X})["y"], np.pad(X[:, 1:, :2], ((0, 0), (0, 1), (2, 0))))
    compare("y = Pad(x, p, v)", {"x": X}, {"p": ints(0, 1, 2, 0, 1, 0), "v": np.array(-np.inf, F)})
    compare("y = Pad(x, p, v, a)", {"x": X}, {"p": ints(1, 2), "v": np.array(3, F), "a": ints(-1)})
    compare("y = Pad(x, p, v)", {"x": X, "v": np.array(7, F)}, {"p": ints(1, 0, 0, 0, 0, 1)})
    compare("y = Pad(x, p)", {"x": np.array([3, -4], np.int8)}, {"p": ints(1, 2)})
    graph = graph_of(model_of("y = Pad<pads=[1, 0, 0, 0, 1, 0], value=2.5>(x)", {"x": X}, opset=10))
    check(evaluate(graph, {"x": X})["y"], np.pad(X, ((1, 0), (0, 1), (0, 0)), constant_values=2.5))
    with pytest.raises(UnsupportedModel, match="nothing to repeat"):
        graph_of(model_of('y = Pad<mode="edge">(x, p)', {"x": np.zeros((0, 2), F)}, {"p": ints(1, 0, 0, 0)}))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    compare(f'y = DepthToSpace<blocksize=2, mode="{mode}">(x)', {"x": normal(2, 8, 2, 3)})
    compare("y = SpaceToDepth<blocksize=2>(x)", {"x": normal(2, 3, 4, 6)})


def test_triangles_and_eyes() -> None:
    for upper, k in itertools.product((0, 1), (-2, 0, 1, 5)):
        compare(f"y = Trilu<upper={upper}>(x, k)", {"x": X}, {"k": np.array(k)})
    compare("y = Trilu(x)", {"x": np.arange(6).reshape(2, 3)})
    compare("y = EyeLike<k=1>(x)", {"x": normal(3, 4)})


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_gather(axis: int) -> None:
    size = X.shape[axis]
    for places in (np.array(1), ints(0, -1, 1), ints(-size), np.array([[0, 1], [1, 0]]), np.zeros((2, 0), I)):
        compare(f"y = Gather<axis={axis}>(x, i)", {"x": X}, {"i": places})
        compare(f"y = Gather<axis={axis}>(x, i)", {"x": X, "i": places})
        compare(f"y = Gather<axis={axis}>(x, i)", {"x": X, "i": places.astype(np.int32)})


def test_gather_of_known_places_is_layout() -> None:
    graph = compare("y = Gather<axis=1>(x, i)", {"x": X}, {"i": ints(2, 1, 0)})
    assert [d.primitive for d in graph] == ["slice"]
    graph = compare("y = Gather<axis=1>(x, i)", {"x": X}, {"i": ints(2, 0, 0)})
    assert [d.primitive for d in graph] == ["take"]
    with pytest.raises(UnsupportedModel, match="an index leaves the dimension of 3"):
        graph_of(model_of("y = Gather<axis=1>(x, i)", {"x": X}, {"i": ints(3)}))


def test_other_gathers_and_scatters() -> None:
    places = np.array([[[0, -1], [1, 1]]])
    compare("y = GatherElements<axis=2>(x, i)", {"x": X[:1, :2], "i": places})
    compare("y = GatherND(x, i)", {"x": X, "i": np.array([[0, 1], [1, -1]])})
    compare("y = GatherND<batch_dims=1>(x, i)", {"x": X, "i": np.array([[0], [2]])})
    updates = normal(1, 2, 2, seed=3)
    compare("y = ScatterElements<axis=2>(x, i, u)", {"x": X, "i": places * 0 + [[[0, 1], [2, 3]]], "u": updates})
    for reduction in ("add", "mul", "max", "min"):
        body = f'y = ScatterElements<axis=2, reduction="{reduction}">(x, i, u)'
        compare(body, {"x": X, "i": places, "u": updates})
        body = f'y = ScatterND<reduction="{reduction}">(x, i, u)'
        compare(body, {"x": X, "i": ints(1, 1).reshape(2, 1), "u": normal(2, 3, 4)})
    compare("y = ScatterND(x, i, u)", {"x": X, "i": np.array([[0, 1], [1, 2]]), "u": normal(2, 4)})


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis: int) -> None:
    places = np.array([[0, -1], [2, 5]])
    constants = {"d": np.array(3), "v": np.array([0.5, 2], F)}
    graph = graph_of(model_of(f"y = OneHot<axis={axis}>(i, d, v)", {"i": places}, constants))
    expected = np.full((2, 2, 3), 0.5, F)
    for where, place in (((0, 0), 0), ((0, 1), 2), ((1, 0), 2)):
        expected[(*where, place)] = 2
    check(evaluate(graph, {"i": places})["y"], np.moveaxis(expected, -1, axis))


def test_sorting_and_sums() -> None:
    x = np.array([[3, 1, 2, 1], [0, -1, 5, 5]], F)
    for largest, axis in itertools.product((0, 1), (0, 1, -1)):
        body = f"v, i = TopK<axis={axis}, largest={largest}>(x, k)"
        compare(body, {"x": x}, {"k": ints(2)}, ("v", "i"))
    for exclusive, reverse in itertools.product((0, 1), (0, 1)):
        body = f"y = CumSum<exclusive={exclusive}, reverse={reverse}>(x, a)"
        compare(body, {"x": x}, {"a": np.array(1)})
        body = f"y = CumProd<exclusive={exclusive}, reverse={reverse}>(x, a)"
        compare(body, {"x": normal(2, 5)}, {"a": np.array(-1)}, opset=26)


def test_attributes_of_older_opsets() -> None:
    """What later became an input was an attribute."""
    x = np.array([[3, 1, 2, 1], [0, -1, 5, 4]], F)
    found = evaluate(graph_of(model_of("v, i = TopK<k=2, axis=1>(x)", {"x": x}, None, ("v", "i"), opset=9)), {"x": x})
    check(found["v"], np.array([[3, 2], [5, 4]], F))
    check(found["i"], np.array([[0, 2], [2, 3]]))
    found = evaluate(graph_of(model_of("y, m = Dropout<ratio=0.7>(x)", {"x": x}, None, ("y", "m"), opset=10)), {"x": x})
    check(found["y"], x)
    check(found["m"], np.ones((2, 4), bool))
    graph = graph_of(
        model_of("y = Scatter<axis=1>(x, i, u)", {"x": x, "i": ints(0, 3).reshape(2, 1), "u": x[:, :1]}, opset=9)
    )
    inputs = {"x": x, "i": ints(0, 3).reshape(2, 1), "u": np.array([[8], [9]], F)}
    check(evaluate(graph, inputs)["y"], np.array([[8, 1, 2, 1], [0, -1, 5, 9]], F))


def test_compress_and_reverse_sequence() -> None:
    compare("y = Compress<axis=1>(x, c)", {"x": X}, {"c": np.array([True, False, True])})
    compare("y = Compress(x, c)", {"x": X}, {"c": np.array([False, True, False, True])})
    compare("y = ReverseSequence<time_axis=1, batch_axis=0>(x, n)", {"x": X, "n": ints(2, 3)})


def test_sizes_that_depend_on_data_are_refused_together() -> None:
    """Every refusal is named at once, with the nodes; what fails only because of another one is not."""
    body = """
        a = Trilu(x, k)
        b = Trilu(x, k)
        r = RandomUniformLike(x)
        s = ReduceSum<keepdims=0>(r)
        t = Cast<to=7>(s)
        c = Trilu(x, t)
        y = Add(a, c)
    """
    model = model_of(body, {"x": normal(3, 3), "k": np.array(1)}, outputs=("y", "b"))
    with pytest.raises(UnsupportedModel) as error:
        graph_of(model)
    message = str(error.value)
    assert "Trilu in 2 nodes (Trilu_0, Trilu_1): its k must be a constant" in message
    assert "RandomUniformLike in 1 node (RandomUniformLike_0): it has no decomposition" in message
    assert "Add" not in message
    assert "\n" not in message
