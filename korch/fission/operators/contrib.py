"""The fused operators of the domain `com.microsoft` that exporters and optimizers write."""

from __future__ import annotations

import math

import numpy as np

from korch.fission.builder import Builder
from korch.fission.operators import activation
from korch.fission.operators.convolution import Conv
from korch.fission.operators.normalization import standardized
from korch.fission.operators.pooling import AveragePool
from korch.fission.operators.quantization import (
    DequantizeLinear,
    centered,
    integer_matmul,
    shifted,
)
from korch.fission.reading import Refused, has, integer, integers, number, text, wide
from korch.fission.tensor import Tensor, concat, constant, where
from korch.importers.operators import Operator
from korch.ir.types import DType

# --- activations


def Gelu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """x * Φ(x), Φ being the normal distribution's."""
    return _gelu(wide(x)).cast(x.dtype)


def BiasGelu(b: Builder, op: Operator, x: Tensor, bias: Tensor) -> Tensor:
    return _gelu(wide(x) + wide(bias)).cast(x.dtype)


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + (x * math.sqrt(0.5)).erf())


def FastGelu(b: Builder, op: Operator, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """The approximation 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    w = wide(x) if bias is None else wide(x) + wide(bias)
    inner = w * (w * w * 0.044715 + 1) * math.sqrt(2 / math.pi)
    return (w * 0.5 * (1 + inner.tanh())).cast(x.dtype)


def QuickGelu(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """x * sigmoid(alpha x)."""
    w = wide(x)
    return (w * activation.sigmoid(w * number(op, "alpha", 1.702))).cast(x.dtype)


# --- normalizations


def SkipLayerNormalization(
    b: Builder,
    op: Operator,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The layer normalization of x + skip + bias over the last axis."""
    total = _skipped(x, skip, bias)
    y, mean, inverse = standardized(total, (x.rank - 1,), number(op, "epsilon", 1e-12))
    y = y * gamma.cast(y.dtype)
    y = y if beta is None else y + beta.cast(y.dtype)
    return (y.cast(x.dtype), mean.cast(DType.FLOAT32), inverse.cast(DType.FLOAT32), total.cast(x.dtype))


def SkipSimplifiedLayerNormalization(
    b: Builder, op: Operator, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The same without a mean: divided by the root of the mean square. It has no mean to return."""
    total = _skipped(x, skip, bias)
    inverse = _inverse_root_mean_square(total, (x.rank - 1,), number(op, "epsilon", 1e-12))
    if len(op.outputs) > 1 and op.outputs[1]:
        raise Refused("its second output, a mean, is not defined")
    y = (total * inverse * gamma.cast(total.dtype)).cast(x.dtype)
    return (y, inverse.cast(DType.FLOAT32), inverse.cast(DType.FLOAT32), total.cast(x.dtype))


def SimplifiedLayerNormalization(b: Builder, op: Operator, x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    w = wide(x)
    axes = tuple(range(x.axis(integer(op, "axis", -1)), x.rank))
    inverse = _inverse_root_mean_square(w, axes, number(op, "epsilon", 1e-5))
    return ((w * inverse * scale.cast(w.dtype)).cast(x.dtype), inverse.cast(DType.FLOAT32))


def _skipped(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    total = wide(x) + wide(skip)
    return total if bias is None else total + wide(bias)


def _inverse_root_mean_square(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    return 1 / ((x * x).mean(axes, keepdims=True) + epsilon).sqrt()


def EmbedLayerNormalization(
    b: Builder,
    op: Operator,
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segment_table: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    places: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The layer normalization of the sum of a word's, a position's and a segment's vector.

    The second output counts the ones of each row of the mask (without one: 0).
    """
    if integer(op, "mask_index_type", 0) not in (0, 1):
        raise Refused("only mask indices of type 0 and 1 are supported")
    batch, length = ids.shape
    where_ = constant(b, np.arange(length, dtype=np.int64)) if places is None else places
    total = wide(words.apply("gather", ids, axis=0)) + wide(positions.apply("gather", where_, axis=0))
    if segments is not None and segment_table is not None:
        total = total + wide(segment_table.apply("gather", segments, axis=0))
    y, _, _ = standardized(total, (2,), number(op, "epsilon", 1e-12))
    y = y * gamma.cast(y.dtype) + beta.cast(y.dtype)
    count = constant(b, np.zeros(batch, np.int32)) if mask is None else mask.cast(DType.INT32).sum(1)
    return (y.cast(words.dtype), count, total.cast(words.dtype))


# --- attention


def Attention(
    b: Builder,
    op: Operator,
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    scores_bias: Tensor | None = None,
    *others: Tensor | None,
) -> Tensor:
    """Self-attention with the projections of queries, keys and values in one matrix."""
    if past is not None or any(t is not None for t in others) or integer(op, "do_rotary", 0):
        raise Refused("past keys and values and rotary embeddings are supported in MultiHeadAttention only")
    heads, width = integer(op, "num_heads"), weights.shape[1] // 3
    sizes = integers(op, "qkv_hidden_sizes", (width,) * 3)
    projected = x @ weights
    projected = projected if bias is None else projected + bias
    ends = [sum(sizes[:k]) for k in range(4)]
    q, k, v = (_by_heads(projected.narrow(2, ends[i], sizes[i]), heads) for i in range(3))
    return _attended(op, q, k, v, mask, scores_bias)


def MultiHeadAttention(
    b: Builder,
    op: Operator,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scores_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *others: Tensor | None,
) -> tuple[Tensor, ...]:
    """Keys and values as [batch, length, width] or by heads, past ones before them."""
    if key is None or value is None or query.rank != 3 or 5 in (key.rank, value.rank):
        raise Refused("packed queries, keys and values are not supported")
    if any(t is not None for t in others):
        raise Refused("past sequence lengths are not supported")
    heads = integer(op, "num_heads")
    if bias is not None:
        widths = [query.shape[2], query.shape[2], bias.shape[0] - 2 * query.shape[2]]
        parts = [bias.narrow(0, sum(widths[:k]), n) for k, n in enumerate(widths)]
        query = query + parts[0]
        key, value = (t + p if t.rank == 3 else t for t, p in zip((key, value), parts[1:], strict=True))
    q, k, v = (_by_heads(t, heads) if t.rank == 3 else t for t in (query, key, value))
    if past_key is not None and past_value is not None:
        k, v = concat([past_key, k], 2), concat([past_value, v], 2)
    return (_attended(op, q, k, v, mask, scores_bias), k, v)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, length, width] as [batch, heads, length, size]."""
    batch, length, width = x.shape
    return x.reshape((batch, length, heads, width // heads)).transpose((0, 2, 1, 3))


def _attended(op: Operator, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scores_bias: Tensor | None) -> Tensor:
    """softmax(scale * q kᵀ + what is masked) v, with the heads beside each other again."""
    scale = number(op, "scale", 0.0) or 1 / math.sqrt(q.shape[3])
    scores = wide(q @ k.transpose((0, 1, 3, 2))) * scale
    if scores_bias is not None:
        scores = scores + wide(scores_bias)
    filler = number(op, "mask_filter_value", -10000.0)
    queries, keys = scores.shape[2:]
    if mask is not None:
        scores = scores + where(_visible(mask, q.shape[0], queries, keys), scores.like(0), filler)
    if integer(op, "unidirectional", 0):
        earlier = np.arange(keys) <= np.arange(keys - queries, keys)[:, None]
        scores = where(constant(q.builder, earlier), scores, float(np.finfo(np.float32).min))
    e = (scores - scores.max(3, keepdims=True)).exp()
    weights = (e / e.sum(3, keepdims=True)).cast(v.dtype)
    batch, heads, length, size = (*q.shape[:3], v.shape[3])
    return (weights @ v).transpose((0, 2, 1, 3)).reshape((batch, length, heads * size))


def _visible(mask: Tensor, batch: int, queries: int, keys: int) -> Tensor:
    """Which keys count, broadcast to [batch, heads, queries, keys].

    A mask of one dimension holds the number of keys that count of each row, or all ends and then all starts.
    """
    if mask.rank == 1 and mask.shape[0] in (batch, 2 * batch):
        places = constant(mask.builder, np.arange(keys).astype(mask.dtype.numpy))
        seen = places < mask.narrow(0, 0, batch).reshape((batch, 1, 1, 1))
        if mask.shape[0] == 2 * batch:
            seen = seen & (places >= mask.narrow(0, batch, batch).reshape((batch, 1, 1, 1)))
        return seen
    shape = {2: (batch, 1, 1, keys), 3: (batch, 1, queries, keys)}.get(mask.rank)
    if shape is None or mask.type.elements != math.prod(shape):
        raise Refused(f"a mask of shape {list(mask.shape)} is not supported")
    return mask.reshape(shape).cast(DType.BOOL)


def RotaryEmbedding(b: Builder, op: Operator, x: Tensor, places: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs of elements turned by the angle of their position; what lies beyond the turned ones stays.

    x is [batch, length, width] or [batch, heads, length, size]; one position stands for the first of a row.
    """
    turned = 2 * cosines.shape[1]
    heads = integer(op, "num_heads", 0)
    if x.rank == 3:
        size = x.shape[2] // heads if heads else turned
        split = x.reshape((*x.shape[:2], x.shape[2] // size, size))
    else:
        split = x.transpose((0, 2, 1, 3))
    batch, length, heads, size = split.shape
    if integer(op, "rotary_embedding_dim", turned) not in (0, turned):
        raise Refused("rotary_embedding_dim is not what the tables hold")
    if places.type.elements == 1 and batch * length > 1:
        places = places.reshape((1, 1)) + constant(b, np.arange(length, dtype=np.int64)[None])
    cosine, sine = (
        wide(t.apply("gather", places, axis=0)).reshape((places.shape[0], length, 1, turned // 2))
        for t in (cosines, sines)
    )
    w = wide(split).narrow(3, 0, turned)
    interleaved = bool(integer(op, "interleaved", 0))
    half = turned // 2
    first, second = (
        (w.narrow(3, 0, half, 2), w.narrow(3, 1, half, 2))
        if interleaved
        else (w.narrow(3, 0, half), w.narrow(3, half, half))
    )
    ahead, aside = first * cosine - second * sine, first * sine + second * cosine
    if interleaved:
        done = concat([ahead.unsqueeze(4), aside.unsqueeze(4)], 4).reshape(w.shape)
    else:
        done = concat([ahead, aside], 3)
    result = concat([done, wide(split).narrow(3, turned, size - turned)], 3).cast(x.dtype)
    return result.reshape(x.shape) if x.rank == 3 else result.transpose((0, 2, 1, 3))


# --- linear


def FusedMatMul(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    """alpha * x @ y, either of them transposed."""
    if integer(op, "transBatchA", 0) or integer(op, "transBatchB", 0):
        raise Refused("transposed batch dimensions are not supported")
    x = _transposed(x) if integer(op, "transA", 0) else x
    y = _transposed(y) if integer(op, "transB", 0) else y
    product, alpha = x @ y, number(op, "alpha", 1.0)
    return product if alpha == 1 else (wide(product) * alpha).cast(product.dtype)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose((*range(x.rank - 2), x.rank - 1, x.rank - 2))


ACTIVATIONS = ("", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")


def FusedConv(
    b: Builder, op: Operator, x: Tensor, w: Tensor, bias: Tensor | None = None, added: Tensor | None = None
) -> Tensor:
    """The convolution, plus `added`, through an activation."""
    y = Conv(b, op, x, w, bias)
    y = y if added is None else y + added
    parameters = op.attributes.get("activation_params", ())
    first, second = (*(float(p) for p in parameters), 0.0, 0.0)[:2] if isinstance(parameters, tuple) else (0.0, 0.0)
    match text(op, "activation", "", ACTIVATIONS):
        case "Relu":
            return y.maximum(0)
        case "Tanh":
            return y.tanh()
        case "Sigmoid":
            return activation.sigmoid(wide(y)).cast(y.dtype)
        case "LeakyRelu":
            return where(y < 0, y * first, y)
        case "Clip":
            return y.maximum(first).minimum(second)
        case "HardSigmoid":
            return (y * first + second).minimum(1).maximum(0)
        case _:
            return y


# --- quantized


def _real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    return centered(x, _scalar(zero)).cast(DType.FLOAT32) * scale.reshape(())


def _levels(x: Tensor, scale: Tensor, zero: Tensor | None, to: DType) -> Tensor:
    """Rounded to nearest even, saturated."""
    return shifted((x / scale.reshape(())).round(), _scalar(zero), to)


def QLinearAdd(
    b: Builder,
    op: Operator,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    return _levels(_real(x, x_scale, x_zero) + _real(y, y_scale, y_zero), scale, zero, x.dtype)


def QLinearMul(
    b: Builder,
    op: Operator,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    return _levels(_real(x, x_scale, x_zero) * _real(y, y_scale, y_zero), scale, zero, x.dtype)


def _scalar(zero: Tensor | None) -> Tensor | None:
    return None if zero is None else zero.reshape(())


def QLinearSigmoid(
    b: Builder,
    op: Operator,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    return _levels(activation.sigmoid(_real(x, x_scale, x_zero)), scale, zero, x.dtype)


def QLinearLeakyRelu(
    b: Builder,
    op: Operator,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    w = _real(x, x_scale, x_zero)
    return _levels(where(w < 0, w * number(op, "alpha", 0.01), w), scale, zero, x.dtype)


def QLinearGlobalAveragePool(
    b: Builder, op: Operator, x: Tensor, x_scale: Tensor, x_zero: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
    last = bool(integer(op, "channels_last", 0))
    axes = range(1, x.rank - 1) if last else range(2, x.rank)
    return _levels(_real(x, x_scale, x_zero).mean(axes, keepdims=True), scale, zero, x.dtype)


def QLinearAveragePool(
    b: Builder,
    op: Operator,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    w, last = _real(x, x_scale, x_zero), bool(integer(op, "channels_last", 0))
    w = w.transpose((0, x.rank - 1, *range(1, x.rank - 1))) if last else w
    y = AveragePool(b, op, w)
    y = y.transpose((0, *range(2, x.rank), 1)) if last else y
    return _levels(y, scale, zero, x.dtype)


def QLinearConcat(b: Builder, op: Operator, scale: Tensor, zero: Tensor, *parts: Tensor) -> Tensor:
    """`parts` are a tensor, its scale and its zero point, again and again."""
    moved = [
        _levels(_real(x, s, z), scale, zero, zero.dtype) for x, s, z in zip(*[iter(parts)] * 3, strict=True)
    ]
    return concat(moved, moved[0].axis(integer(op, "axis")))


def QuantizeLinear(b: Builder, op: Operator, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """As the standard's; without an axis it is for the whole tensor."""
    if has(op, "axis") and scale.type.elements > 1:
        axis = x.axis(integer(op, "axis"))
        scale = scale.along((axis,), x.rank)
        zero = None if zero is None else zero.along((axis,), x.rank)
        return shifted((wide(x) / wide(scale)).round(), zero, DType.UINT8 if zero is None else zero.dtype)
    return _levels(wide(x), wide(scale), zero, DType.UINT8 if zero is None else zero.dtype)


def MatMulIntegerToFloat(
    b: Builder,
    op: Operator,
    x: Tensor,
    y: Tensor,
    x_scale: Tensor,
    y_scale: Tensor,
    x_zero: Tensor | None = None,
    y_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    product = integer_matmul(x, y, x_zero, y_zero).cast(DType.FLOAT32) * (x_scale.reshape(()) * y_scale)
    return product if bias is None else product + bias


def DynamicQuantizeMatMul(
    b: Builder,
    op: Operator,
    x: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """x is quantized to uint8 by its own range, 0 included, as DynamicQuantizeLinear does."""
    low, high = x.min().minimum(0), x.max().maximum(0)
    scale = (high - low) / 255
    scale = where(scale.equal(0), 1.0, scale)
    zero = (-low / scale).maximum(0).minimum(255).round()
    levels = ((x / scale).round() + zero).cast(DType.UINT8)
    return MatMulIntegerToFloat(b, op, levels, y, scale, y_scale, zero.cast(DType.UINT8), y_zero, bias)


CONTRIB = (
    Attention,
    BiasGelu,
    DequantizeLinear,
    DynamicQuantizeMatMul,
    EmbedLayerNormalization,
    FastGelu,
    FusedConv,
    FusedMatMul,
    Gelu,
    MatMulIntegerToFloat,
    MultiHeadAttention,
    QLinearAdd,
    QLinearAveragePool,
    QLinearConcat,
    QLinearGlobalAveragePool,
    QLinearLeakyRelu,
    QLinearMul,
    QLinearSigmoid,
    QuantizeLinear,
    QuickGelu,
    RotaryEmbedding,
    SimplifiedLayerNormalization,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
"""The operators of this domain that fission knows."""
