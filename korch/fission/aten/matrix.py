"""Matrix products and attention of ATen."""

from __future__ import annotations

import math

import numpy as np

from korch.fission.aten.call import Call
from korch.fission.reading import Refused
from korch.fission.tensor import Number, Tensor, where
from korch.ir.types import DType


def matmul(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def addmm(call: Call, x: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * x + alpha * a @ b; where beta is 0, x does not count, whatever it holds."""
    product = (a @ b).cast(call.wide)
    product = product if alpha == 1 else product * call.tensor(alpha, call.wide)
    if beta == 0:
        return product
    added = x.cast(call.wide)
    return product + (added if beta == 1 else added * call.tensor(beta, call.wide))


def linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x @ (weight.transpose((1, 0)) if weight.rank == 2 else weight)
    return product if bias is None else product + bias


def attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q @ k^T * scale + mask) @ v; a row in which everything is masked gives 0."""
    if dropout_p:
        raise Refused("random dropout is not supported")
    if enable_gqa:
        k, v = (_repeated(t, q.shape[-3]) for t in (k, v))
    q = q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = (q @ k.transpose([*range(k.rank - 2), k.rank - 1, k.rank - 2])).cast(call.wide)
    mask = _causal(call, scores) if is_causal else attn_mask
    if mask is None:
        return _weights(scores).cast(call.dtype) @ v
    if mask.dtype is DType.BOOL:
        scores = where(mask, scores, -math.inf)
        nothing = ~mask.cast(DType.BOOL).max(-1, keepdims=True)
    else:
        scores = scores + mask.cast(call.wide)
        nothing = mask.equal(-math.inf).min(-1, keepdims=True)
    weights = _weights(scores)
    if nothing.known is None or nothing.known.any():
        weights = where(nothing, 0, weights)
    return weights.cast(call.dtype) @ v


def _weights(scores: Tensor) -> Tensor:
    e = (scores - scores.max(-1, keepdims=True)).exp()
    return e / e.sum(-1, keepdims=True)


def _causal(call: Call, scores: Tensor) -> Tensor:
    rows, columns = scores.shape[-2:]
    return call.constant(np.tri(rows, columns, dtype=np.bool_))


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Each head as often as several heads of queries share it."""
    *lead, kept, length, width = x.shape
    spread = x.reshape((*lead, kept, 1, length, width)).expand((*lead, kept, heads // kept, length, width))
    return spread.reshape((*lead, heads, length, width))


def flash_attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """The form that PyTorch chooses on the CPU; its second result serves training."""
    if call.uses(1):
        raise Refused("the sums of the softmax are not supported as a result")
    return (attention(call, q, k, v, attn_mask, dropout_p, is_causal, scale=scale),)
