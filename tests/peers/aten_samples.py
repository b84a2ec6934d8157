"""Sample calls of every ATen operator that fission knows: at least one for each entry of the table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40, 3e38, -1.5, 0.5, 2.5)


@dataclass(frozen=True)
class Sample:
    """One call. Tensors among the arguments are the program's inputs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def s(*args: Any, **kwargs: Any) -> Sample:
    return Sample(args, kwargs)


def f(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float32).to(dtype)


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(SPECIAL).to(dtype)


def pairs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of special values, as a column and a row."""
    return special(dtype).reshape(-1, 1), special(dtype)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 1.8 - 0.9


def i(*shape: int, low: int = -5, high: int = 6, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def b(*shape: int, seed: int = 0) -> torch.Tensor:
    return i(*shape, low=0, high=2, seed=seed).bool()


def nonzero(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    x = i(*shape, seed=3, dtype=dtype)
    return torch.where(x == 0, torch.ones_like(x), x)


HALF = (torch.float16, torch.bfloat16)
MATH = [s(f(3, 4)), s(special()), s(i(3)), s(f(3, dtype=torch.float16)), s(f(3, dtype=torch.float64)), s(f(0, 2))]
WHOLE = [s(f(3, 4) * 3), s(special()), s(i(3)), s(torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])), s(torch.tensor(2.7))]
ARITHMETIC = [
    s(f(3, 4), f(4)),
    s(*pairs()),
    s(i(3), f(3)),
    s(i(3, dtype=torch.int8), i(3, dtype=torch.uint8, low=0)),
    s(f(3, dtype=torch.float16), torch.tensor(2.0)),
    s(f(3, dtype=torch.bfloat16), f(3)),
    s(torch.tensor(3), f(2, 2)),
]
QUOTIENTS = [
    s(f(3, 4), f(4)),
    s(*pairs()),
    s(i(6), nonzero(6)),
    s(f(3, dtype=torch.float16), f(3, dtype=torch.float16)),
]
SCALARS = [s(f(3), 2.5), s(i(3), 2), s(i(3), 1.5), s(special(), 3), s(f(3, dtype=torch.bfloat16), 0.1)]
WITH_ALPHA = [s(f(3), f(3), alpha=2.5), s(i(3), i(3), alpha=2)]
COMPARED = [s(f(3, 4), f(4)), s(*pairs()), s(i(3), f(3)), s(i(4), i(4, seed=1)), s(b(4), b(4, seed=1))]
COMPARED_SCALAR = [s(special(), 0.5), s(i(5), 1.5), s(i(5), 2), s(b(4), True), s(f(3, dtype=torch.float16), 0.1)]
LOGIC = [s(b(4), b(4, seed=1)), s(i(4), i(4, seed=1)), s(special(), b(10))]
BITS = [s(i(4), i(4, seed=1)), s(b(4), b(4, seed=1)), s(i(4, dtype=torch.int8), i(4, dtype=torch.int32))]
BITS_SCALAR = [s(i(4), 3), s(i(4, dtype=torch.uint8, low=0), 3)]
EXTREMA = [s(f(3, 4), f(4)), s(*pairs()), s(i(3), i(3, seed=1)), s(i(3), f(3)), s(b(3), b(3, seed=2))]
ACTIVATED = [s(f(3, 4) * 3), s(special()), s(f(3, dtype=torch.float16)), s(f(3, dtype=torch.bfloat16))]
REDUCED = [s(f(3, 4)), s(i(3, 4)), s(special()), s(torch.tensor(2.5)), s(f(3, 40, dtype=torch.float16))]
BY_DIM = [s(f(3, 4), 1), s(f(3, 4), -2, True), s(i(3, 4), 0), s(b(3, 4), 0)]
BY_DIMS = [s(f(2, 3, 4), [0, -1]), s(f(2, 3, 4), [1], True), s(f(3, 0), [1]), s(f(3, 4), [])]
NANS = torch.tensor([[1.0, math.nan, 3.0, math.nan], [2.0, 2.0, -math.inf, 1.0]])
PADDED = [s(f(2, 3, 7), [2, 1]), s(f(3, 7), [0, 3]), s(f(3, 7), [-1, 2])]
PADDED_2D = [s(f(2, 3, 5, 6), [2, 1, 0, 3]), s(f(3, 5, 6), [1, 1, 1, 1])]
PADDED_3D = [s(f(1, 2, 4, 5, 3), [1, 2, 0, 1, 1, 1])]
LIKE = [s(f(2, 3)), s(i(3), dtype=torch.float16)]
SIZES = [s([2, 3]), s([2], dtype=torch.int64), s([], dtype=torch.bool)]
NEW = [s(f(2), [2, 3]), s(f(2), [2], dtype=torch.int64)]
CPU = {"device": torch.device("cpu"), "pin_memory": False}

SAMPLES: dict[str, list[Sample]] = {
    "abs.default": [*MATH, s(i(4, dtype=torch.int8)), s(i(4, low=0, dtype=torch.uint8))],
    "acos.default": [s(unit(3, 4)), *MATH],
    "acosh.default": [s(f(3, 4).abs() + 1), *MATH],
    "add.Scalar": SCALARS,
    "add.Tensor": [*ARITHMETIC, *WITH_ALPHA, s(b(3), b(3, seed=1)), s(f(3), 2), s(i(3), 2.5)],
    "alias.default": [s(f(3))],
    "asin.default": [s(unit(3, 4)), *MATH],
    "asinh.default": MATH,
    "atan.default": MATH,
    "atan2.default": [s(f(3, 4), f(4)), s(*pairs())],
    "atanh.default": [s(unit(3, 4)), *MATH],
    "bitwise_and.Scalar": BITS_SCALAR,
    "bitwise_and.Tensor": BITS,
    "bitwise_left_shift.Tensor": [
        s(i(4), i(4, low=0, high=70)),
        s(i(4, dtype=torch.uint8, low=0), i(4, low=0, dtype=torch.uint8)),
    ],
    "bitwise_left_shift.Tensor_Scalar": [s(i(4), 3)],
    "bitwise_not.default": [s(i(4)), s(b(4))],
    "bitwise_or.Scalar": BITS_SCALAR,
    "bitwise_or.Tensor": BITS,
    "bitwise_right_shift.Tensor": [s(i(4, low=-90, high=90), i(4, low=0, high=70))],
    "bitwise_right_shift.Tensor_Scalar": [s(i(4, low=-90, high=90), 3)],
    "bitwise_xor.Scalar": BITS_SCALAR,
    "bitwise_xor.Tensor": BITS,
    "ceil.default": WHOLE,
    "clamp.Tensor": [s(f(3, 4), f(4) - 1, f(4) + 1), s(special(), torch.tensor(0.25)), s(f(3), max=torch.tensor(0.0))],
    "clamp.default": [
        s(special(), -1, 1),
        s(i(4), -1, 2),
        s(f(3), 2, -2),
        s(i(4), 0.5),
        s(f(3, dtype=torch.float16), 0.1),
    ],
    "clamp_max.default": [s(special(), 0.25)],
    "clamp_min.default": [s(special(), 0.25)],
    "clone.default": [s(f(3)), s(f(2, 3), memory_format=torch.contiguous_format)],
    "contiguous.default": [s(f(3, 4))],
    "cos.default": MATH,
    "cosh.default": MATH,
    "detach.default": [s(f(3))],
    "div.Scalar": [*SCALARS, s(i(3), 2)],
    "div.Scalar_mode": [s(f(4) * 9, 2.5, rounding_mode="floor"), s(i(4), 2, rounding_mode="trunc")],
    "div.Tensor": [*ARITHMETIC, s(i(6), nonzero(6))],
    "div.Tensor_mode": [
        *(Sample(q.args, {"rounding_mode": mode}) for q in QUOTIENTS for mode in (None, "trunc", "floor")),
    ],
    "eq.Scalar": COMPARED_SCALAR,
    "eq.Tensor": COMPARED,
    "erf.default": MATH,
    "exp.default": MATH,
    "exp2.default": [s(f(3, 4) * 20), *MATH],
    "expm1.default": MATH,
    "floor.default": WHOLE,
    "floor_divide.default": QUOTIENTS,
    "fmax.default": EXTREMA,
    "fmin.default": EXTREMA,
    "fmod.Scalar": [s(f(4) * 9, 2.5), s(i(4), 3), s(i(4), -3)],
    "fmod.Tensor": QUOTIENTS,
    "ge.Scalar": COMPARED_SCALAR,
    "ge.Tensor": COMPARED,
    "gt.Scalar": COMPARED_SCALAR,
    "gt.Tensor": COMPARED,
    "isinf.default": [s(special()), s(i(3))],
    "isnan.default": [s(special()), s(i(3)), s(special(torch.float16))],
    "le.Scalar": COMPARED_SCALAR,
    "le.Tensor": COMPARED,
    "lift_fresh_copy.default": [s(f(3))],
    "log.default": [s(f(3, 4).abs()), *MATH],
    "log10.default": [s(f(3, 4).abs()), s(torch.tensor([1.0, 10, 1000])), *MATH],
    "log1p.default": MATH,
    "log2.default": [s(f(3, 4).abs()), s(torch.tensor([1.0, 8, 1024])), *MATH],
    "logical_and.default": LOGIC,
    "logical_not.default": [s(b(4)), s(special()), s(i(4))],
    "logical_or.default": LOGIC,
    "logical_xor.default": LOGIC,
    "lt.Scalar": COMPARED_SCALAR,
    "lt.Tensor": COMPARED,
    "maximum.default": EXTREMA,
    "minimum.default": EXTREMA,
    "mul.Scalar": SCALARS,
    "mul.Tensor": [*ARITHMETIC, s(b(3), b(3, seed=1)), s(f(3, dtype=torch.float16), 0.1)],
    "ne.Scalar": COMPARED_SCALAR,
    "ne.Tensor": COMPARED,
    "neg.default": [*MATH, s(i(4, low=0, dtype=torch.uint8))],
    "pow.Scalar": [s(2, f(4)), s(2.5, i(4)), s(1, special()), s(0, special())],
    "pow.Tensor_Scalar": [
        *(s(special(), e) for e in (0, 0.5, 1, 2, 3, -0.5, -1, -2, 2.5, 4)),
        s(i(4), 3),
        s(i(4), 2.0),
        s(f(4, dtype=torch.float16), 3),
    ],
    "pow.Tensor_Tensor": [s(f(4).abs(), f(4)), s(*pairs()), s(i(4), i(4, low=0)), s(i(4), f(4).abs())],
    "reciprocal.default": MATH,
    "remainder.Scalar": [s(f(4) * 9, 2.5), s(i(4), 3), s(i(4), -3)],
    "remainder.Tensor": QUOTIENTS,
    "round.decimals": [s(f(4) * 99, decimals=1), s(f(4) * 99, decimals=-1)],
    "round.default": WHOLE,
    "rsqrt.default": [s(f(3, 4).abs()), *MATH],
    "rsub.Scalar": [s(f(3), 2.5), s(i(3), 2)],
    "rsub.Tensor": [s(f(3), f(3, seed=1), alpha=2)],
    "sign.default": [s(special()), s(i(4)), s(b(4))],
    "sin.default": MATH,
    "sinh.default": MATH,
    "sqrt.default": MATH,
    "sub.Scalar": SCALARS,
    "sub.Tensor": [*ARITHMETIC, *WITH_ALPHA, s(4, i(3)), s(f(3), 1)],
    "tan.default": MATH,
    "tanh.default": MATH,
    "_to_copy.default": [
        *(s(f(3, 4) * 5, dtype=d) for d in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool)),
        s(i(4, low=-300, high=300), dtype=torch.int8),
        s(b(4), dtype=torch.float32),
        s(special(), dtype=torch.float16),
        s(special(), dtype=torch.bool),
    ],
    "trunc.default": WHOLE,
    "where.self": [
        s(b(3, 1), f(3, 4), f(4)),
        s(b(4), i(4), f(4)),
        s(b(4), f(4, dtype=torch.float16), torch.tensor(0.5)),
    ],
    "_log_softmax.default": [
        s(f(3, 4), 1, False),
        s(f(3, 4) * 50, 0, False),
        s(special()[3:], 0, False),
        s(torch.tensor(1.0), 0, False),
    ],
    "_prelu_kernel.default": [s(f(2, 3, 4), f(1, 3, 1)), s(special(), torch.tensor([0.25]))],
    "_softmax.default": [
        s(f(3, 4), 1, False),
        s(f(3, 4) * 50, 0, False),
        s(special()[3:], 0, False),
        s(f(3, 4, dtype=torch.float16), -1, False),
    ],
    "elu.default": [*ACTIVATED, s(f(4), 0.5, 2.0, 1.5)],
    "gelu.default": [*ACTIVATED[:1], *ACTIVATED[2:], s(f(4), approximate="tanh")],
    "hardsigmoid.default": [s(f(9) * 3), s(special()), s(f(9, dtype=torch.float16))],
    "hardswish.default": [s(f(9) * 3), s(f(9, dtype=torch.float16))],
    "hardtanh.default": [*ACTIVATED, s(f(4), -0.5, 0.25)],
    "leaky_relu.default": [*ACTIVATED, s(f(4), 0.2)],
    "log_sigmoid_forward.default": [s(f(9) * 9)],
    "mish.default": [s(f(9) * 9), s(f(3, dtype=torch.float16))],
    "relu.default": [*ACTIVATED, s(i(4))],
    "relu6.default": [s(f(9) * 9)],
    "sigmoid.default": [*ACTIVATED, s(i(4))],
    "silu.default": [*ACTIVATED[:1], *ACTIVATED[2:], s(torch.tensor([math.inf, math.nan, 90.0, -90.0]))],
    "softplus.default": [*ACTIVATED, s(f(4) * 20, 2.0, 5.0)],
    "all.default": [s(b(3)), s(special()), s(b(0))],
    "all.dim": BY_DIM,
    "all.dims": [s(b(2, 3, 4), [0, 2]), s(b(2, 3), None, True)],
    "amax.default": [*BY_DIMS[:2], s(f(3, 4)), s(NANS, [1]), s(i(3, 4), [0])],
    "amin.default": [*BY_DIMS[:2], s(f(3, 4)), s(NANS, [1]), s(i(3, 4), [0])],
    "any.default": [s(b(3)), s(special()), s(b(0))],
    "any.dim": BY_DIM,
    "any.dims": [s(b(2, 3, 4), [0, 2]), s(b(2, 3), None, True)],
    "argmax.default": [
        s(f(3, 4)),
        s(f(3, 4), 1),
        s(i(3, 4), 0, True),
        s(NANS, 1),
        s(torch.tensor(1.0)),
        s(f(3, 4), None, True),
    ],
    "argmin.default": [s(f(3, 4)), s(f(3, 4), 1), s(i(3, 4), 0, True), s(NANS, 1)],
    "cumprod.default": [s(f(3, 5), 1), s(i(3, 4), 0), s(torch.tensor(2.0), 0)],
    "cumsum.default": [
        s(f(3, 5), 1),
        s(i(3, 4, dtype=torch.int32), 0),
        s(b(5), 0),
        s(torch.tensor(2.0), 0),
        s(f(9, dtype=torch.float16), 0),
    ],
    "linalg_vector_norm.default": [
        s(f(3, 4)),
        *(s(f(3, 4), p, [1]) for p in (0, 1, 3.0, math.inf, -math.inf)),
        s(f(3, 4), 2, None, True),
    ],
    "logsumexp.default": [s(f(3, 4) * 90, [1]), s(f(2, 3, 4), [0, 2], True), s(torch.tensor([math.inf, 1.0]), [0])],
    "max.default": REDUCED[:4],
    "max.dim": [s(f(3, 4), 1), s(i(3, 4), 0, True), s(NANS, 1)],
    "mean.default": [s(f(3, 4)), s(f(0)), s(i(3), dtype=torch.float32), s(f(90, dtype=torch.float16))],
    "mean.dim": [*BY_DIMS, s(i(3, 4), [1], dtype=torch.float64), s(f(2, 3), None)],
    "min.default": REDUCED[:4],
    "min.dim": [s(f(3, 4), 1), s(i(3, 4), 0, True), s(NANS, 1)],
    "prod.default": [s(f(3, 4)), s(i(3)), s(f(0))],
    "prod.dim_int": [s(f(3, 4), 1), s(i(3, 4, dtype=torch.int32), 0, True)],
    "sort.default": [s(f(3, 5)), s(i(3, 9), 1, True), s(NANS, 1)],
    "sort.stable": [s(i(3, 9), stable=True, dim=0), s(i(9), stable=True, descending=True)],
    "std.correction": [s(f(3, 4), [1]), s(f(3, 4), None, correction=0, keepdim=True)],
    "sum.default": [*REDUCED, s(b(4)), s(i(4, dtype=torch.int8))],
    "sum.dim_IntList": [
        *BY_DIMS,
        s(i(3, 4, dtype=torch.int8), [1]),
        s(f(3, 4), None),
        s(i(3), [0], dtype=torch.float32),
    ],
    "topk.default": [s(f(3, 9), 4), s(f(9, 3), 2, 0, False)],
    "var.correction": [
        s(f(3, 4), [1]),
        s(f(3, 4), [0], correction=2.5),
        s(f(1), [0]),
        s(f(2, 3, 4), None, keepdim=True),
    ],
    "var.dim": [s(f(3, 4), [1]), s(f(3, 4), [1], False, True)],
    "var_mean.correction": [s(f(3, 4), [1], correction=0, keepdim=True)],
    "_reshape_alias.default": [s(f(3, 4), [4, 3], [3, 1])],
    "_unsafe_view.default": [s(f(3, 4), [2, 6])],
    "as_strided.default": [s(f(12), [2, 3], [1, 2], 3), s(f(3, 4), [3, 3], [4, 1])],
    "cat.default": [s([f(2, 3), f(1, 3)]), s([f(0), f(2, 3)], 1), s([i(2), f(2)], -1), s([f(0), f(0)])],
    "constant_pad_nd.default": [
        s(f(2, 3), [1, 2]),
        s(f(2, 3), [1, -1, 0, 2], 5.0),
        s(i(3), [1, 1], -1),
        s(b(3), [1, 0], True),
    ],
    "diagonal.default": [s(f(4, 5)), s(f(4, 5), 2), s(f(4, 5), -1), s(f(2, 4, 5), 1, 2, 0), s(f(2, 2), 5)],
    "expand.default": [s(f(3, 1), [2, 3, 4]), s(f(3, 1), [-1, 2])],
    "flip.default": [s(f(3, 4), [0, -1]), s(f(0, 3), [0])],
    "im2col.default": [s(f(2, 3, 6, 7), [2, 3], [1, 2], [1, 0], [2, 1]), s(f(3, 6, 7), [2, 2], [1, 1], [0, 0], [1, 1])],
    "permute.default": [s(f(2, 3, 4), [2, 0, -2])],
    "pixel_shuffle.default": [s(f(2, 8, 3, 4), 2)],
    "pixel_unshuffle.default": [s(f(2, 2, 6, 4), 2)],
    "reflection_pad1d.default": PADDED[:2],
    "reflection_pad2d.default": PADDED_2D,
    "reflection_pad3d.default": PADDED_3D,
    "repeat.default": [s(f(2, 3), [2, 1, 3]), s(f(2), [0])],
    "replication_pad1d.default": PADDED,
    "replication_pad2d.default": PADDED_2D,
    "replication_pad3d.default": PADDED_3D,
    "reshape.default": [s(f(3, 4), [2, -1])],
    "roll.default": [s(f(3, 4), [1]), s(f(3, 4), [5, -1], [0, 1]), s(f(0, 2), [1], [0])],
    "select.int": [s(f(3, 4), 1, -1), s(f(3, 4), 0, 1)],
    "select_scatter.default": [s(f(3, 4), f(3), 1, -1), s(f(3, 4), f(4), 0, 2)],
    "slice.Tensor": [s(f(5, 4), 0, 1, 4, 2), s(f(5), 0, -3), s(f(5), 0, 2, 2**63 - 1), s(f(5), 0, 4, 1)],
    "slice_scatter.default": [
        s(f(5, 2), f(3, 2), 0, 1, 4),
        s(f(6), f(2), 0, 1, 5, 2),
        s(f(3), f(3)),
        s(f(3), f(0), 0, 1, 1),
    ],
    "split.Tensor": [s(f(5, 2), 2), s(f(2, 5), 3, 1)],
    "split_with_sizes.default": [s(f(5, 2), [1, 4]), s(f(2, 5), [2, 0, 3], -1)],
    "squeeze.default": [s(f(1, 3, 1))],
    "squeeze.dim": [s(f(1, 3, 1), 0), s(f(1, 3), 1)],
    "squeeze.dims": [s(f(1, 3, 1), [0, 2])],
    "stack.default": [s([f(2, 3), f(2, 3, seed=1)], -1), s([torch.tensor(1.0), torch.tensor(2.0)])],
    "t.default": [s(f(3, 4)), s(f(3))],
    "transpose.int": [s(f(2, 3, 4), 0, -1)],
    "tril.default": [s(f(3, 4)), s(f(2, 3, 3), -1)],
    "triu.default": [s(f(3, 4)), s(i(3, 3), 1)],
    "unbind.int": [s(f(3, 2)), s(f(2, 3), 1)],
    "unfold.default": [s(f(7), 0, 3, 2), s(f(2, 5, 3), 1, 2, 1)],
    "unsqueeze.default": [s(f(3), -1), s(torch.tensor(2.0), 0)],
    "view.default": [s(f(3, 4), [2, -1, 3]), s(f(1), [])],
    "arange.start_step": [s(0, 5, **CPU), s(1.5, 4, 0.5, **CPU), s(5, 0, -2, dtype=torch.int32, **CPU), s(0, 0, **CPU)],
    "empty.memory_format": [s([0, 3], **CPU)],
    "empty_like.default": [s(f(0, 3))],
    "empty_strided.default": [s([0, 3], [3, 1], **CPU)],
    "eye.default": [s(3, **CPU)],
    "eye.m": [s(3, 4, dtype=torch.int64, **CPU)],
    "fill.Scalar": [s(f(3), 2), s(i(3), 2)],
    "fill.Tensor": [s(f(3), torch.tensor(2.5))],
    "full.default": [
        s([2, 3], 1.5, **CPU),
        s([], 2, **CPU),
        s([2], True, **CPU),
        s([2], -math.inf, dtype=torch.float16, **CPU),
    ],
    "full_like.default": [s(f(2, 3), 2), s(f(2), 1, dtype=torch.int64)],
    "linspace.default": [s(0, 1, 7, **CPU), s(3.0, -2.0, 4, dtype=torch.float64, **CPU)],
    "new_empty.default": [s(f(2), [0, 3])],
    "new_full.default": [s(f(2), [2, 3], 1.5)],
    "new_ones.default": NEW,
    "new_zeros.default": NEW,
    "ones.default": [Sample(x.args, {**x.kwargs, **CPU}) for x in SIZES],
    "ones_like.default": LIKE,
    "scalar_tensor.default": [s(2.5, **CPU), s(3, dtype=torch.int32, **CPU)],
    "zeros.default": [Sample(x.args, {**x.kwargs, **CPU}) for x in SIZES],
    "zeros_like.default": LIKE,
    "bucketize.Tensor": [
        s(torch.tensor([-1.0, 1.0, 2.5, math.nan, 9.0]), torch.tensor([1.0, 2.0, 2.5])),
        s(i(4), torch.tensor([0, 2]), right=True),
    ],
    "embedding.default": [s(f(7, 3), i(2, 4, low=0, high=7)), s(f(7, 3), i(4, low=0, high=7, dtype=torch.int32), 2)],
    "gather.default": [
        s(f(3, 4), 1, i(2, 5, low=0, high=4)),
        s(f(3, 4), 0, i(2, 3, low=0, high=3)),
        s(torch.tensor(2.0), 0, torch.tensor([0])),
    ],
    "index.Tensor": [
        s(f(5, 4), [i(3, low=-5, high=5)]),
        s(f(5, 4), [None, i(2, 3, low=0, high=4)]),
        s(f(5, 4, 3), [i(2, low=0, high=5), i(3, 1, low=0, high=4)]),
        s(f(2, 5, 4, 3), [None, i(2, low=0, high=5), i(2, low=0, high=4)]),
        s(f(5, 4, 3), [i(2, low=0, high=5), None, i(2, low=0, high=3)]),
        s(f(2, 5, 4, 3), [None, i(2, low=0, high=5), None, i(3, 2, low=0, high=3)]),
    ],
    "index_put.default": [
        s(f(5, 4), [i(2, low=0, high=5)], f(2, 4)),
        s(f(5, 4), [i(3, low=-5, high=5)], f(4), True),
        s(f(5, 4), [None, torch.tensor([3, 0])], f(5, 2)),
        s(f(5, 4), [torch.tensor([3, 0]), torch.tensor([1, 1])], torch.tensor(7.0)),
        s(f(2, 5, 4), [None, torch.tensor([3, 0]), torch.tensor([1, 1])], f(2, 2)),
        s(f(5, 4), [b(5, 4)], torch.tensor(7.0)),
        s(f(5, 4), [b(5)], torch.tensor([7.0])),
        s(b(5), [i(3, low=0, high=5)], b(3), True),
    ],
    "index_select.default": [
        s(f(3, 4), 1, i(5, low=0, high=4)),
        s(f(3), 0, torch.tensor(2)),
        s(torch.tensor(2.0), 0, torch.tensor([0])),
    ],
    "kthvalue.default": [s(f(3, 9), 3), s(f(9, 2), 1, 0, True)],
    "masked_fill.Scalar": [s(f(3, 4), b(4), -math.inf), s(i(3), b(3), 2)],
    "masked_fill.Tensor": [s(f(3, 4), b(3, 1), torch.tensor(2.0))],
    "masked_scatter.default": [s(f(3, 4), b(3, 4), f(12, seed=1)), s(f(3, 4), b(4), f(3, 4, seed=1))],
    "scatter.src": [
        s(f(3, 4), 0, i(2, 4, low=0, high=1), f(2, 4)),
        s(f(3, 4), 1, torch.tensor([[0, 2]]), f(3, 4, seed=1)),
    ],
    "scatter.value": [s(f(3, 4), 1, torch.tensor([[0], [3], [1]]), 2.5), s(i(4), 0, torch.tensor([1, 3]), 7)],
    "scatter_add.default": [s(f(3, 4), 0, i(5, 4, low=0, high=3), f(5, 4)), s(i(3), 0, torch.tensor([0, 0]), i(2))],
    "scatter_reduce.two": [
        s(f(3, 4), 0, i(5, 4, low=0, high=3), f(5, 4), how, include_self=include)
        for how in ("sum", "prod", "amax", "amin")
        for include in (True, False)
    ],
    "_scaled_dot_product_flash_attention_for_cpu.default": [s(f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4, seed=2))],
    "addmm.default": [
        s(f(5), f(3, 4), f(4, 5)),
        s(f(3, 5), f(3, 4), f(4, 5), beta=0.5, alpha=2),
        s(torch.full((5,), math.nan), f(3, 4), f(4, 5), beta=0),
        s(i(5), i(3, 4), i(4, 5)),
    ],
    "addmv.default": [s(f(3), f(3, 4), f(4), beta=0.5, alpha=2)],
    "baddbmm.default": [s(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), beta=0.5, alpha=2)],
    "bmm.default": [s(f(2, 3, 4), f(2, 4, 5)), s(f(2, 3, 0), f(2, 0, 5))],
    "dot.default": [s(f(4), f(4, seed=1))],
    "linear.default": [s(f(2, 3, 4), f(5, 4), f(5)), s(f(4), f(5, 4)), s(f(2, 4), f(4))],
    "matmul.default": [s(f(3, 4), f(4)), s(f(4), f(2, 4, 3)), s(f(2, 1, 3, 4), f(5, 4, 2))],
    "mm.default": [
        s(f(3, 4), f(4, 5)),
        s(i(3, 4, dtype=torch.int8), i(4, 2, dtype=torch.int8)),
        s(f(3, 4, dtype=torch.float16), f(4, 5, dtype=torch.float16)),
    ],
    "mv.default": [s(f(3, 4), f(4))],
    "scaled_dot_product_attention.default": [
        s(f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4, seed=2)),
        s(f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4, seed=2), b(3, 5) | torch.eye(3, 5).bool()),
        s(f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4, seed=2), f(2, 3, 5), scale=0.3),
        s(f(2, 3, 4), f(2, 3, 4), f(2, 3, 4, seed=2), None, 0.0, True),
        s(f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4, seed=2), torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0]]).bool()),
        s(f(1, 4, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4, seed=2), enable_gqa=True),
    ],
    "_fused_rms_norm.default": [s(f(2, 3, 4), [4], f(4), 1e-5), s(f(2, 12), [12], None, None)],
    "_native_batch_norm_legit.no_stats": [s(f(2, 3, 4, 4), f(3), f(3), True, 0.1, 1e-5)],
    "_native_batch_norm_legit_functional.default": [s(f(2, 3, 4), f(3), f(3), f(3), f(3).abs(), False, 0.1, 1e-5)],
    "_native_batch_norm_legit_no_training.default": [
        s(f(2, 3, 4), f(3), f(3), f(3), f(3).abs(), 0.1, 1e-5),
        s(f(2, 3), None, None, f(3), f(3).abs(), 0.1, 1e-3),
    ],
    "native_group_norm.default": [
        s(f(2, 6, 4, 4), f(6), f(6), 2, 6, 16, 3, 1e-5),
        s(f(2, 6, 4), None, None, 2, 6, 4, 2, 1e-5),
    ],
    "native_layer_norm.default": [
        s(f(2, 3, 4), [4], f(4), f(4), 1e-5),
        s(f(2, 3, 4) + 3, [3, 4], None, None, 1e-5),
        s(f(2, 4, dtype=torch.bfloat16), [4], None, None, 1e-5),
    ],
    "_adaptive_avg_pool2d.default": [s(f(2, 3, 6, 8), [3, 4]), s(f(3, 7, 5), [3, 2]), s(f(1, 2, 3, 3), [5, 1])],
    "_adaptive_avg_pool3d.default": [s(f(1, 2, 4, 5, 6), [2, 2, 3])],
    "adaptive_avg_pool1d.default": [s(f(2, 3, 7), [3])],
    "avg_pool1d.default": [s(f(2, 3, 9), [3], [2], [1])],
    "avg_pool2d.default": [
        s(f(2, 3, 7, 8), [3, 2]),
        s(f(2, 3, 7, 8), [3, 3], [2, 2], [1, 1], True),
        s(f(3, 7, 8), [3, 3], [2, 2], [1, 1], False, False),
        s(f(1, 2, 7, 8), [3, 3], [2, 2], [1, 0], True, True, 5),
    ],
    "avg_pool3d.default": [s(f(1, 2, 4, 5, 6), [2, 2, 2], [1, 2, 2], [0, 1, 1])],
    "convolution.default": [
        s(f(2, 4, 7, 8), f(6, 4, 3, 3), f(6), [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
        s(f(2, 4, 9), f(4, 1, 3), None, [1], [1], [1], False, [0], 4),
        s(f(1, 2, 4, 5, 6), f(3, 2, 2, 2, 2), f(3), [1], [0], [1], False, [0], 1),
        s(f(2, 4, 5, 5), f(4, 3, 3, 3), f(6), [2, 2], [1, 1], [1, 1], True, [1, 1], 2),
        s(
            f(2, 4, 5, 5, dtype=torch.float16),
            f(2, 4, 1, 1, dtype=torch.float16),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
        ),
    ],
    "max_pool2d_with_indices.default": [
        s(f(2, 3, 7, 8), [3, 3], [2, 2], [1, 1]),
        s(f(3, 7, 8), [2, 2]),
        s(f(1, 2, 9, 9), [3, 2], [2, 2], [1, 0], [2, 1], True),
    ],
    "max_pool3d_with_indices.default": [s(f(1, 2, 4, 5, 6), [2, 2, 2])],
    "_upsample_nearest_exact1d.default": [s(f(1, 2, 5), [8])],
    "_upsample_nearest_exact1d.vec": [s(f(1, 2, 5), None, [1.7])],
    "_upsample_nearest_exact2d.default": [s(f(1, 2, 5, 4), [8, 3])],
    "_upsample_nearest_exact2d.vec": [s(f(1, 2, 5, 4), None, [1.7, 0.6])],
    "_upsample_nearest_exact3d.default": [s(f(1, 2, 3, 4, 5), [5, 3, 5])],
    "_upsample_nearest_exact3d.vec": [s(f(1, 2, 3, 4, 5), [5, 3, 5], None)],
    "col2im.default": [
        s(f(2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
        s(f(8, 6), [4, 5], [2, 2], [1, 1], [1, 0], [2, 2]),
    ],
    "grid_sampler_2d.default": [
        s(f(2, 3, 5, 6), f(2, 4, 4, 2), mode, padding, aligned)
        for mode, padding in ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0))
        for aligned in (False, True)
    ],
    "grid_sampler_3d.default": [s(f(1, 2, 3, 4, 5), f(1, 2, 2, 2, 3), 0, 0, False)],
    "upsample_bicubic2d.default": [s(f(1, 2, 5, 6), [8, 4], False)],
    "upsample_bicubic2d.vec": [s(f(1, 2, 5, 6), None, False, [1.5, 2.0]), s(f(1, 2, 5, 6), [7, 9], True, None)],
    "upsample_bilinear2d.default": [
        s(f(1, 2, 5, 6), [8, 4], False),
        s(f(1, 2, 5, 6), [1, 1], False),
        s(f(1, 2, 5, 6), [10, 12], False, 2.0, 2.0),
    ],
    "upsample_bilinear2d.vec": [
        s(f(1, 2, 5, 6), None, False, [2.0, 2.0]),
        s(f(1, 2, 5, 6), None, False, [1.7, 0.4]),
        s(f(1, 2, 5, 6), [7, 9], True, None),
    ],
    "upsample_linear1d.default": [s(f(1, 2, 5), [8], False)],
    "upsample_linear1d.vec": [s(f(1, 2, 5), None, False, [1.5])],
    "upsample_nearest1d.default": [s(f(1, 2, 5), [8])],
    "upsample_nearest1d.vec": [s(f(1, 2, 5), None, [2.0])],
    "upsample_nearest2d.default": [s(f(1, 2, 5, 6), [8, 3])],
    "upsample_nearest2d.vec": [s(f(1, 2, 5, 6), None, [2.0, 2.0]), s(f(1, 2, 5, 6), None, [1.7, 0.6])],
    "upsample_nearest3d.default": [s(f(1, 2, 3, 4, 5), [5, 3, 5])],
    "upsample_nearest3d.vec": [s(f(1, 2, 3, 4, 5), None, [2.0, 1.5, 1.0])],
    "upsample_trilinear3d.default": [s(f(1, 2, 3, 4, 5), [5, 3, 7], False)],
    "upsample_trilinear3d.vec": [s(f(1, 2, 3, 4, 5), None, False, [2.0, 1.5, 1.0])],
}
