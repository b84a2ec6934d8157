"""Tensors made of nothing: all are constants."""

from __future__ import annotations

import numpy as np

from korch.fission.aten.call import Call
from korch.fission.reading import Refused
from korch.fission.tensor import Number, Tensor


def full(call: Call, size: object, fill_value: Number | Tensor, **_: object) -> Tensor:
    return call.tensor(fill_value, call.dtype).reshape(()).expand(call.shape)


def new_full(call: Call, x: Tensor, size: object, fill_value: Number | Tensor, **_: object) -> Tensor:
    return full(call, size, fill_value)


def fill(call: Call, x: Tensor, value: Number | Tensor) -> Tensor:
    return call.tensor(value, call.dtype).reshape(()).expand(call.shape)


def scalar_tensor(call: Call, s: Number, **_: object) -> Tensor:
    return call.tensor(s, call.dtype)


def zeros(call: Call, *_: object, **__: object) -> Tensor:
    """Also for memory that PyTorch leaves uninitialized."""
    return call.tensor(0, call.dtype).expand(call.shape)


def ones(call: Call, *_: object, **__: object) -> Tensor:
    return call.tensor(1, call.dtype).expand(call.shape)


def arange(call: Call, start: Number, end: Number, step: Number = 1, **_: object) -> Tensor:
    """start + i * step, computed in int64 or float64 and rounded once."""
    if isinstance(start, Tensor) or isinstance(end, Tensor) or isinstance(step, Tensor):
        raise Refused("its bounds depend on the model's inputs")
    whole = call.dtype.is_integer
    places = np.arange(call.shape[0], dtype=np.int64 if whole else np.float64)
    values = int(start) + places * int(step) if whole else start + places * step
    return call.constant(values.astype(call.dtype.numpy))


def iota(call: Call, length: int, *, start: int = 0, step: int = 1, **_: object) -> Tensor:
    return arange(call, start, start + length * step, step)


def linspace(call: Call, start: float, end: float, steps: int, **_: object) -> Tensor:
    return call.constant(np.linspace(start, end, steps).astype(call.dtype.numpy))


def eye(call: Call, *_: object, **__: object) -> Tensor:
    return call.constant(np.eye(*call.shape, dtype=call.dtype.numpy))
