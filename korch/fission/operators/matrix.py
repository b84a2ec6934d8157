"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from korch.fission.builder import Builder
from korch.fission.reading import Refused, integer, number, text
from korch.fission.tensor import Tensor
from korch.importers.operators import Operator


def MatMul(b: Builder, op: Operator, x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def Gemm(b: Builder, op: Operator, x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """alpha * x @ y + beta * bias."""
    x = x.transpose((1, 0)) if integer(op, "transA", 0) else x
    y = y.transpose((1, 0)) if integer(op, "transB", 0) else y
    alpha, beta = number(op, "alpha", 1.0), number(op, "beta", 1.0)
    product = x @ y
    if not x.dtype.is_float:
        alpha, beta = int(alpha), int(beta)
    product = product * alpha
    return product if bias is None or beta == 0 else product + bias * beta


def Det(b: Builder, op: Operator, x: Tensor) -> Tensor:
    """Determinants of matrices up to 3 x 3, by their rows."""
    n, batch = x.shape[-1], x.shape[:-2]
    if n > 3:
        raise Refused(f"determinants of {n} x {n} matrices are not supported")
    m = [[x.narrow(x.rank - 2, i, 1).narrow(x.rank - 1, j, 1).reshape(batch) for j in range(n)] for i in range(n)]
    if n < 2:
        return m[0][0] if n else x.like(1).expand(batch)
    if n == 2:
        return m[0][0] * m[1][1] - m[0][1] * m[1][0]
    minors = [m[1][(j + 1) % 3] * m[2][(j + 2) % 3] - m[1][(j + 2) % 3] * m[2][(j + 1) % 3] for j in range(3)]
    return m[0][0] * minors[0] + m[0][1] * minors[1] + m[0][2] * minors[2]


def Einsum(b: Builder, op: Operator, *xs: Tensor) -> Tensor:
    """Sums of products over named dimensions, two operands at a time: each step is a matmul or a product.

    The dimensions of an ellipsis are named `-1`, `-2`… from its end, so that they align as in a broadcast.
    """
    terms, result = _named(text(op, "equation", "").replace(" ", ""), xs)
    operands = [_diagonal(x, names) for x, names in zip(xs, terms, strict=True)]
    tensor, names = operands[0]
    for i, (other, others) in enumerate(operands[1:], 2):
        later = {name for _, more in operands[i:] for name in more}
        tensor, names = _contract(tensor, names, other, others, later | set(result))
    tensor, names = _summed(tensor, names, set(result))
    return tensor.transpose([names.index(name) for name in result])


def _named(equation: str, xs: Sequence[Tensor]) -> tuple[list[list[str]], list[str]]:
    """The names of each operand's dimensions and of the result's."""
    left, arrow, right = equation.partition("->")
    written = left.split(",")
    if len(written) != len(xs):
        raise Refused(f"the equation has {len(written)} terms for {len(xs)} inputs")
    widest = 0
    terms: list[list[str]] = []
    for term, x in zip(written, xs, strict=True):
        before, dots, after = term.partition("...")
        hidden = x.rank - len(before) - len(after) if dots else 0
        widest = max(widest, hidden)
        terms.append([*before, *_ellipsis(hidden), *after])
        if len(terms[-1]) != x.rank:
            raise Refused(f"the term {term!r} does not fit a tensor of rank {x.rank}")
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(_ellipsis(widest) if dots else []), *after]
    letters = left.replace("...", "").replace(",", "")
    return terms, [*_ellipsis(widest), *sorted(c for c in set(letters) if letters.count(c) == 1)]


def _ellipsis(count: int) -> list[str]:
    return [f"-{count - i}" for i in range(count)]


def _diagonal(x: Tensor, names: list[str]) -> tuple[Tensor, list[str]]:
    """Where a name is repeated, the two dimensions' diagonal: every (n + 1)-th element of them flattened."""
    while len(set(names)) < len(names):
        first = next(i for i, name in enumerate(names) if name in names[i + 1 :])
        second = names.index(names[first], first + 1)
        rest = [d for d in range(x.rank) if d not in (first, second)]
        n = x.shape[first]
        flat = x.transpose([*rest, first, second]).reshape((*(x.shape[d] for d in rest), n * n))
        x = flat.narrow(len(rest), 0, n, n + 1)
        names = [*(names[d] for d in rest), names[first]]
    return x, names


def _summed(x: Tensor, names: list[str], kept: set[str]) -> tuple[Tensor, list[str]]:
    """Without the dimensions whose names are not kept."""
    dropped = [d for d, name in enumerate(names) if name not in kept]
    return x.sum(dropped), [name for name in names if name in kept]


def _contract(x: Tensor, xs: list[str], y: Tensor, ys: list[str], kept: set[str]) -> tuple[Tensor, list[str]]:
    """The product of two operands, summed over the names that nothing else needs."""
    x, xs = _summed(x, xs, kept | set(ys))
    y, ys = _summed(y, ys, kept | set(xs))
    sizes = {name: max(x.shape[xs.index(name)], y.shape[ys.index(name)]) for name in xs if name in ys}
    x = x.expand([sizes.get(name, n) for name, n in zip(xs, x.shape, strict=True)])
    y = y.expand([sizes.get(name, n) for name, n in zip(ys, y.shape, strict=True)])
    batch = [name for name in xs if name in ys and name in kept]
    inner = [name for name in xs if name in ys and name not in kept]
    rows = [name for name in xs if name not in ys]
    columns = [name for name in ys if name not in xs]
    names = [*batch, *rows, *columns]
    if not inner:
        x = x.transpose([xs.index(name) for name in [*batch, *rows]])
        y = y.transpose([ys.index(name) for name in [*batch, *columns]])
        places = [names.index(name) for name in [*batch, *columns]]
        return x.along(range(len(batch) + len(rows)), len(names)) * y.along(places, len(names)), names
    lead = [sizes[name] for name in batch]
    left = x.transpose([xs.index(name) for name in [*batch, *rows, *inner]])
    right = y.transpose([ys.index(name) for name in [*batch, *inner, *columns]])
    depth = math.prod(sizes[name] for name in inner)
    row_shape = [x.shape[xs.index(name)] for name in rows]
    column_shape = [y.shape[ys.index(name)] for name in columns]
    left = left.reshape((*lead, math.prod(row_shape), depth))
    right = right.reshape((*lead, depth, math.prod(column_shape)))
    product = (left @ right).cast(x.dtype)
    return product.reshape((*lead, *row_shape, *column_shape)), names
