"""Which depthwise and 1x1 convolutions become one kernel."""

from __future__ import annotations

from korch.codegen.c.fusible import FusionRules, fusible
from korch.codegen.c.linear import linear_implementations
from korch.codegen.target import target_named
from tests.compiler.linear_cases import Build
from tests.compiler.test_linear import LAST, separable

EAGER = FusionRules(pair_bytes=0)


def test_large_pairs_are_fused_and_their_parts_too():
    graph = separable((1, 256, 64, 64), 64).graph
    everything = range(len(graph.definitions))
    assert fusible(graph, everything) is None
    second = next(i for i in everything if graph.definitions[i].primitive == "conv" and i)
    assert fusible(graph, range(second)) is None and fusible(graph, range(1, len(everything))) is None


def test_small_pairs_are_not_fused():
    graph = separable((1, 16, 12, 14), 24).graph
    assert "little between" in (fusible(graph, range(len(graph.definitions))) or "")
    assert fusible(graph, range(len(graph.definitions)), EAGER) is None


def test_other_pairs_are_refused():
    g = Build()
    x = g.input(1, 8, 9, 9, order=LAST)

    def conv(value: str, outputs: int, kernel: int, groups: int = 1) -> str:
        weights = g.weight(outputs, g.shape(value)[1] // groups, kernel, kernel)
        return g.op("conv", value, weights, strides=(1, 1), dilations=(1, 1), pads=(kernel // 2,) * 4, groups=groups)

    graph = g.fragment(conv(conv(x, 8, 1), 8, 1)).graph
    assert "no depthwise" in (fusible(graph, range(len(graph.definitions)), EAGER) or "")
    g = Build()
    x = g.input(1, 8, 9, 9, order=LAST)
    graph = g.fragment(conv(conv(x, 8, 3, 8), 8, 3)).graph
    assert "no 1x1" in (fusible(graph, range(len(graph.definitions)), EAGER) or "")


def test_an_input_that_must_be_copied_is_refused():
    """Row-major images are not read channel by channel."""
    fragment = separable((1, 16, 12, 14), 24, order=None)
    assert isinstance(linear_implementations(fragment, target_named("x86_64_v3")), str)
