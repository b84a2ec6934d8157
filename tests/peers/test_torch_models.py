"""Networks of `transformers` (small seeded configurations) through both frontends, against PyTorch.

The fast tests take the primitives' NumPy meaning, the slow ones (KORCH_SLOW_TESTS=1) generated kernels.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the networks are PyTorch's")
transformers = pytest.importorskip("transformers", reason="the networks are defined there")

import korch  # noqa: E402
from korch.fission.aten.fission import fission as fission_aten  # noqa: E402
from korch.fission.fission import fission  # noqa: E402
from korch.importers.onnx import import_onnx  # noqa: E402
from korch.importers.torch import import_module  # noqa: E402
from korch.ir.evaluate import evaluate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
slow = pytest.mark.skipif(
    os.environ.get("KORCH_SLOW_TESTS") != "1", reason="kernels of whole networks are measured; set KORCH_SLOW_TESTS=1"
)
slow_export = pytest.mark.skipif(
    os.environ.get("KORCH_SLOW_TESTS") != "1", reason="PyTorch's ONNX exporter is slow; set KORCH_SLOW_TESTS=1"
)

SIZE = 32
CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet": ("ResNet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}),
    "MobileNetV2": ("MobileNetV2", {"depth_multiplier": 0.1, "image_size": SIZE}),
    "EfficientNet": (
        "EfficientNet",
        {
            "image_size": SIZE,
            "width_coefficient": 0.25,
            "hidden_dim": 320,
            "kernel_sizes": [3, 5],
            "in_channels": [16, 16],
            "out_channels": [16, 24],
            "depthwise_padding": [],
            "strides": [1, 2],
            "num_block_repeats": [1, 1],
            "expand_ratios": [1, 6],
        },
    ),
    "ConvNeXt": ("ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": SIZE}),
    "ViT": (
        "ViT",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "image_size": SIZE,
            "patch_size": 8,
        },
    ),
    "Swin": (
        "Swin",
        {"image_size": SIZE, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4},
    ),
    "RegNet": (
        "RegNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4, "layer_type": "y"},
    ),
    "MobileViT": (
        "MobileViT",
        {
            "image_size": SIZE,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
            "num_attention_heads": 2,
        },
    ),
    "LeViT": (
        "Levit",
        {
            "image_size": SIZE,
            "hidden_sizes": [16, 24],
            "num_attention_heads": [1, 2],
            "depths": [1, 1],
            "key_dim": [8, 8],
            "mlp_ratio": [2, 2],
            "attention_ratio": [2, 2],
            "down_ops": [["Subsample", 8, 2, 2, 2, 2]],
            "kernel_size": 3,
            "stride": 2,
            "padding": 1,
            "patch_size": 16,
            "num_channels": 3,
        },
    ),
    "PoolFormer": (
        "PoolFormer",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
            "mlp_ratio": 2.0,
        },
    ),
}


class Logits(torch.nn.Module):
    """The one output of a classifier, as a tensor."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Any) -> Any:
        return self.model(pixel_values, return_dict=False)[0]


def classifier(name: str) -> Any:
    family, options = CLASSIFIERS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**options, num_labels=7)
    model = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    with torch.no_grad():
        for module in model.modules():  # statistics that a trained network would have
            if isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm1d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return Logits(model).eval()


def image() -> Any:
    return torch.randn(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def exported(module: Any, inputs: tuple[Any, ...]) -> Any:
    """The module as an ONNX model."""
    pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter needs onnxscript")
    onnx = pytest.importorskip("onnx")
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, dynamo=True, verbose=False).save(buffer)
    return onnx.load_model_from_string(buffer.getvalue())


def close(got: np.ndarray, expected: Any, exact: Any) -> None:
    """As near to float64 as PyTorch's own float32, within a factor, or within rounding of the largest."""
    expected, exact = np.asarray(expected.detach()), np.asarray(exact.detach())
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    scale = np.abs(exact).max()
    assert np.isfinite(exact).all() and scale > 0
    error, own = np.abs(got - exact).max(), np.abs(expected - exact).max()
    assert error <= max(8 * own, 2e-6 * scale), (error, own, scale)


def double(module: Any, *inputs: Any) -> Any:
    """The result in float64. The module itself is left as it is."""
    import copy

    wide = copy.deepcopy(module).double()
    return wide(*(x.double() if x.is_floating_point() else x for x in inputs))


def meaning(graph: Any, inputs: Mapping[str, Any]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return list(evaluate(graph, {name: np.asarray(x) for name, x in inputs.items()}).values())


@torch.no_grad()
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier_from_pytorch(name: str) -> None:
    module, x = classifier(name), image()
    graph = fission_aten(import_module(module, (x,)))
    (got,) = meaning(graph, {"pixel_values": x})
    close(got, module(x), double(module, x))


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [n if n in ("ResNet", "Swin") else pytest.param(n, marks=slow_export) for n in CLASSIFIERS]
)
def test_classifier_from_onnx(name: str) -> None:
    module, x = classifier(name), image()
    graph = fission(import_onnx(exported(module, (x,)), {}))
    (got,) = meaning(graph, {graph.inputs[0][0]: x})
    close(got, module(x), double(module, x))


@slow
@torch.no_grad()
@pytest.mark.parametrize("frontend", ["pytorch", "onnx"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier_in_kernels(name: str, frontend: str, cache: Any) -> None:
    module, x = classifier(name), image()
    source = (module, (x,)) if frontend == "pytorch" else (exported(module, (x,)),)
    got = korch.optimize(*source, budget=5)(x.numpy())
    close(got, module(x), double(module, x))


class Decoder(torch.nn.Module):
    """One step of a GPT-2-like decoder: tokens and the cache of keys and values in, logits and the new cache out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2)
        self.model = transformers.GPT2LMHeadModel(config).eval()

    def forward(self, tokens: Any, cache: Any) -> Any:
        past = transformers.DynamicCache()
        for layer, (key, value) in enumerate(cache):
            past.update(key, value, layer)
        out = self.model(tokens, past_key_values=past, use_cache=True)
        kept = out.past_key_values
        return out.logits, [(layer.keys, layer.values) for layer in kept.layers]


def decoder_inputs(past: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(past)
    cache = [tuple(torch.randn(1, 2, past, 8, generator=generator) for _ in range(2)) for _ in range(2)]
    return torch.randint(50, (1, 1), generator=generator), cache


@torch.no_grad()
def test_decoder_with_its_cache() -> None:
    module = Decoder()
    for past in (1, 5):
        tokens, cache = decoder_inputs(past)
        program = import_module(module.eval(), (tokens, cache))
        flat = [tokens, *(t for pair in cache for t in pair)]
        got = meaning(fission_aten(program), {n: x for (n, _), x in zip(program.inputs, flat, strict=True)})
        logits, kept = module(tokens, cache)
        assert [name for name, _ in program.outputs] == ["output_0", *(f"output_1.{i}.{j}" for i in "01" for j in "01")]
        for a, b in zip(got, [logits, *(t for pair in kept for t in pair)], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@slow
@torch.no_grad()
def test_decoder_in_kernels(cache: Any) -> None:
    module, (tokens, past) = Decoder().eval(), decoder_inputs(3)
    got = korch.optimize(module, (tokens, past), budget=5)(*(np.asarray(t) for t in (tokens, *sum(past, ()))))
    logits, kept = module(tokens, past)
    for a, b in zip(got.values(), [logits, *(t for pair in kept for t in pair)], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def whisper() -> Any:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=50,
        num_mel_bins=8,
        encoder_layers=2,
        encoder_attention_heads=2,
        decoder_layers=1,
        decoder_attention_heads=2,
        d_model=16,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperModel(config).eval().encoder


@torch.no_grad()
def test_speech_encoder() -> None:
    encoder, x = whisper(), torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(1))
    program = import_module(encoder, (x,))
    (got,) = meaning(fission_aten(program), {program.inputs[0][0]: x})
    close(got, encoder(x)[0], double(encoder, x)[0])


@slow
@torch.no_grad()
def test_speech_encoder_in_kernels(cache: Any) -> None:
    encoder, x = whisper(), torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(1))
    close(korch.optimize(encoder, (x,), budget=5)(x.numpy()), encoder(x)[0], double(encoder, x)[0])
