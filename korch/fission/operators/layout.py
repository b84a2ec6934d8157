"""Operators that move elements: shapes, slices, padding, and constants made from shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from korch.fission.builder import Builder
from korch.fission.operators.elementwise import result_dtype
from korch.fission.reading import Refused, contents, integer, integers, listed, number, single, text
from korch.fission.tensor import Tensor, concat, constant, where
from korch.importers.operators import Operator
from korch.ir.types import DType


def Identity(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x


def OptionalGetElement(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x


def OptionalHasElement(b: Builder, op: Operator, x: Tensor | None = None) -> Tensor:
    return constant(b, np.array(x is not None))


def Dropout(
    b: Builder, op: Operator, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Inference: nothing is dropped, and the mask is true everywhere."""
    dropped = ratio is None or bool(np.any(contents(ratio, "ratio")))
    if training is not None and dropped and bool(np.any(contents(training, "training_mode"))):
        raise Refused("training mode drops elements at random")
    return (x, constant(b, np.broadcast_to(np.True_, x.shape)))


def Reshape(b: Builder, op: Operator, x: Tensor, shape: Tensor) -> Tensor:
    """0 keeps the input's dimension (unless `allowzero`), -1 is what remains."""
    wanted = list(listed(shape, "shape"))
    if not integer(op, "allowzero", 0):
        wanted = [x.shape[d] if n == 0 else n for d, n in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = x.type.elements // rest if rest else 0
    return x.reshape(wanted)


def Flatten(b: Builder, op: Operator, x: Tensor) -> Tensor:
    axis = integer(op, "axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def Squeeze(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = integers(op, "axes", ()) if axes is None else listed(axes, "axes")
    dropped = x.axes(given) if given else tuple(d for d, n in enumerate(x.shape) if n == 1)
    return x.reshape(n for d, n in enumerate(x.shape) if d not in dropped)


def Unsqueeze(b: Builder, op: Operator, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = integers(op, "axes") if axes is None else listed(axes, "axes")
    rank = x.rank + len(given)
    return x.unsqueeze(*(a % rank for a in given))


def Transpose(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return x.transpose(integers(op, "perm", tuple(reversed(range(x.rank)))))


def Concat(b: Builder, op: Operator, *xs: Tensor) -> Tensor:
    return concat(xs, xs[0].axis(integer(op, "axis", 1)))


def Split(b: Builder, op: Operator, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Given sizes, or equal parts of which the last may be smaller; how many, the declared size of one tells."""
    axis = x.axis(integer(op, "axis", 0))
    parts = integers(op, "split", ()) if sizes is None else listed(sizes, "split")
    if not parts and "num_outputs" in op.attributes:
        size = -(-x.shape[axis] // integer(op, "num_outputs"))
        parts = [max(0, min(size, x.shape[axis] - i * size)) for i in range(integer(op, "num_outputs"))]
    elif not parts:
        # Unused outputs may be missing, so their number says nothing.
        known = next((b.declared[v] for v in op.outputs if v in b.declared), None)
        size = x.shape[axis] // len(op.outputs) if known is None else known.shape[axis]
        parts = [size] * len(op.outputs)
    starts = np.cumsum((0, *parts)).tolist()
    return tuple(x.narrow(axis, start, size) for start, size in zip(starts, parts, strict=False))


def Slice(b: Builder, op: Operator, x: Tensor, *bounds: Tensor | None) -> Tensor:
    """From inputs (opset 10) or attributes. Unlike Python's, a backward slice from before the front begins at 0."""
    given: list[Sequence[int] | None]
    if op.version < 10:
        given = [integers(op, "starts"), integers(op, "ends"), integers(op, "axes", ()) or None, None]
    else:
        names = ("starts", "ends", "axes", "steps")
        given = [None if t is None else listed(t, n) for t, n in zip(bounds, names, strict=False)]
        given += [None] * (4 - len(given))
    starts, ends = given[0] or (), given[1] or ()
    axes = range(len(starts)) if given[2] is None else given[2]
    steps = (1,) * len(starts) if given[3] is None else given[3]
    offsets, strides, shape = [0] * x.rank, [1] * x.rank, list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise Refused("a step is 0")
        axis = x.axis(axis)
        n = x.shape[axis]
        low, high = (0, n) if step > 0 else (-1, n - 1)
        first = min(max(start + n if start < 0 else start, 0), high)
        last = min(max(end + n if end < 0 else end, low), high)
        offsets[axis], strides[axis], shape[axis] = first, step, len(range(first, last, step))
    return x.slice(offsets, strides, shape)


def Tile(b: Builder, op: Operator, x: Tensor, repeats: Tensor) -> Tensor:
    times = listed(repeats, "repeats")
    split = x.reshape(n for size in x.shape for n in (1, size))
    spread = split.expand([n for t, size in zip(times, x.shape, strict=True) for n in (t, size)])
    return spread.reshape(t * n for t, n in zip(times, x.shape, strict=True))


def Expand(b: Builder, op: Operator, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(np.broadcast_shapes(x.shape, listed(shape, "shape")))


def Pad(
    b: Builder,
    op: Operator,
    x: Tensor,
    pads: Tensor | None = None,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    """Negative padding cuts off first; what the other modes repeat is what remains."""
    amounts = integers(op, "pads") if pads is None else listed(pads, "pads")
    over = range(x.rank) if axes is None else [a % x.rank for a in listed(axes, "axes")]
    before, after = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(over):
        before[axis], after[axis] = amounts[i], amounts[len(amounts) // 2 + i]
    mode = text(op, "mode", "constant", ("constant", "reflect", "edge", "wrap"))
    if mode != "constant":
        return _repeated(x, mode, before, after)
    if value is None:
        return x.pad(before, after, number(op, "value", 0.0))
    if value.known is not None and value.type.elements:
        return x.pad(before, after, value.known.reshape(-1)[0].item())
    inside = constant(b, np.broadcast_to(np.True_, x.shape)).pad(before, after, False)
    return where(inside, x.pad(before, after), value.reshape(()))


def _repeated(x: Tensor, mode: str, before: Sequence[int], after: Sequence[int]) -> Tensor:
    x = x.pad([min(p, 0) for p in before], [min(p, 0) for p in after])
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        n = x.shape[axis]
        if max(first, last) <= 0:
            continue
        if n == 0:
            raise Refused(f"mode {mode} has nothing to repeat in an empty dimension")
        positions = range(-max(first, 0), n + max(last, 0))
        if mode == "reflect":
            period = max(2 * (n - 1), 1)
            indices = [min(p % period, period - p % period) if n > 1 else 0 for p in positions]
        elif mode == "edge":
            indices = [min(max(p, 0), n - 1) for p in positions]
        else:
            indices = [p % n for p in positions]
        x = x.take(axis, indices)
    return x


def DepthToSpace(b: Builder, op: Operator, x: Tensor) -> Tensor:
    size, (n, c, h, w) = integer(op, "blocksize"), x.shape
    depth = c // (size * size)
    if text(op, "mode", "DCR", ("DCR", "CRD")) == "DCR":
        blocks = x.reshape((n, size, size, depth, h, w)).transpose((0, 3, 4, 1, 5, 2))
    else:
        blocks = x.reshape((n, depth, size, size, h, w)).transpose((0, 1, 4, 2, 5, 3))
    return blocks.reshape((n, depth, h * size, w * size))


def SpaceToDepth(b: Builder, op: Operator, x: Tensor) -> Tensor:
    size, (n, c, h, w) = integer(op, "blocksize"), x.shape
    blocks = x.reshape((n, c, h // size, size, w // size, size))
    dcr = text(op, "mode", "DCR", ("DCR", "CRD")) == "DCR"
    return blocks.transpose((0, 3, 5, 1, 2, 4) if dcr else (0, 1, 3, 5, 2, 4)).reshape(
        (n, c * size * size, h // size, w // size)
    )


def Trilu(b: Builder, op: Operator, x: Tensor, k: Tensor | None = None) -> Tensor:
    """The upper or lower triangle, the rest 0."""
    diagonal = 0 if k is None else single(k, "k")
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    kept = columns - rows >= diagonal if integer(op, "upper", 1) else columns - rows <= diagonal
    return where(constant(b, kept), x, 0 if x.dtype is not DType.BOOL else False)


def CenterCropPad(b: Builder, op: Operator, x: Tensor, shape: Tensor) -> Tensor:
    """Each axis cropped or padded with zeros around its middle."""
    axes = [a % x.rank for a in integers(op, "axes", range(x.rank))]
    before, after = [0] * x.rank, [0] * x.rank
    for axis, size in zip(axes, listed(shape, "shape"), strict=True):
        difference = size - x.shape[axis]
        before[axis] = difference // 2 if difference >= 0 else -(-difference // 2)
        after[axis] = difference - before[axis]
    return x.pad(before, after)


def Shape(b: Builder, op: Operator, x: Tensor) -> Tensor:
    end = integer(op, "end", x.rank)
    return constant(b, np.array(x.shape[integer(op, "start", 0) : end], np.int64))


def Size(b: Builder, op: Operator, x: Tensor) -> Tensor:
    return constant(b, np.array(x.type.elements, np.int64))


def Constant(b: Builder, op: Operator) -> Tensor:
    for name, dtype in (
        ("value", None),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in op.attributes:
            return constant(b, np.asarray(op.attributes[name], dtype))
    raise Refused(f"a constant of this form is not supported: {', '.join(op.attributes)}")


def ConstantOfShape(b: Builder, op: Operator, shape: Tensor) -> Tensor:
    value = np.asarray(op.attributes.get("value", np.zeros(1, np.float32)))
    return constant(b, np.broadcast_to(value.reshape(()), listed(shape, "shape")))


def EyeLike(b: Builder, op: Operator, x: Tensor) -> Tensor:
    dtype = result_dtype(op, "dtype") if "dtype" in op.attributes else x.dtype
    return constant(b, np.eye(*x.shape, k=integer(op, "k", 0)).astype(dtype.numpy))


def Range(b: Builder, op: Operator, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """max(ceil((limit - start) / delta), 0) numbers; number i is start + i * delta."""
    first, last, step = (contents(t, n).reshape(()) for t, n in ((start, "start"), (limit, "limit"), (delta, "delta")))
    if start.dtype.is_float:
        count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
        return constant(b, (float(first) + np.arange(count) * float(step)).astype(first.dtype))
    return constant(b, np.arange(int(first), int(last), int(step)).astype(first.dtype))
