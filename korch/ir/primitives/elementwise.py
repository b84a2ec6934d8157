"""Elementwise primitives: inputs of one shape, an output of that shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from korch.ir.primitives.primitive import (
    ANY,
    BOOL,
    FLOAT,
    INTEGER,
    NUMBER,
    UNSIGNED,
    Arrays,
    Attributes,
    Domain,
    Primitive,
    Types,
    flag,
    one_dtype,
    one_shape,
    require,
    widen,
    word,
)
from korch.ir.types import CODES, DType, TensorType

Function = Callable[..., np.ndarray]
Meaning = Callable[[Arrays, Attributes], tuple[np.ndarray, ...]]

_WIDE = Domain(((-1e4, 1e4),))
_POSITIVE = Domain(((0.0, 1e4),))
_UNIT = Domain(((-1.0, 1.0),))


def _same(function: Function) -> Meaning:
    """The function computed in float32 for narrower floats; the result has the first operand's dtype."""

    def meaning(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
        result = np.asarray(function(*map(widen, arrays)))
        return (result.astype(arrays[0].dtype, copy=False),)

    return meaning


def _truth(function: Function) -> Meaning:
    """A function that gives booleans."""

    def meaning(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
        return (np.asarray(function(*map(widen, arrays))).astype(np.bool_, copy=False),)

    return meaning


@lru_cache
def _erf_table() -> np.ndarray:
    """Taylor coefficients of erf at 0, 1/64, 2/64… 6, to the eighth order: [order, point].

    erf' = 2/sqrt(pi) exp(-x^2), whose n-th derivative is (-1)^n H_n(x) times it, with Hermite's polynomials
    H_0 = 1, H_1 = 2 x, H_(n+1) = 2 x H_n - 2 n H_(n-1).
    """
    x = np.arange(6 * 64 + 1) / 64
    slope = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    hermite = [np.ones_like(x), 2 * x]
    for n in range(1, 7):
        hermite.append(2 * x * hermite[n] - 2 * n * hermite[n - 1])
    orders = [(-1) ** n * h * slope / math.factorial(n + 1) for n, h in enumerate(hermite)]
    return np.stack([np.array([math.erf(v) for v in x.tolist()]), *orders])


def _erf(x: np.ndarray) -> np.ndarray:
    """In float64: the Taylor polynomial at the nearest point of the table."""
    size = np.minimum(np.abs(x.astype(np.float64)), 6.0)
    point = np.rint(np.where(np.isnan(size), 0.0, size) * 64).astype(np.intp)
    step, table = size - point / 64, _erf_table()
    result = table[-1][point]
    for order in table[-2::-1]:
        result = result * step + order[point]
    return np.copysign(result, x)


def _nonzero(b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, b.dtype.type(1), b)


def _div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    # The least integer by -1 overflows, so -1 is set apart.
    minus_one = (b == -1) if b.dtype.kind == "i" else np.zeros(b.shape, np.bool_)
    safe = np.where(minus_one, b.dtype.type(1), _nonzero(b))
    # Without its remainder the dividend divides evenly, so flooring is truncating.
    quotient = (a - np.fmod(a, safe)) // safe
    quotient = np.where(minus_one, np.negative(a), quotient)
    return np.where(b == 0, a.dtype.type(0), quotient)


def _mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.mod(a, b)
    return np.where(b == 0, a.dtype.type(0), np.mod(a, _nonzero(b)))


def _fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, a.dtype.type(0), np.fmod(a, _nonzero(b)))


def _integer_power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By squaring, with wrapping; a negative exponent gives the reciprocal's integer part (of zero: 0)."""
    result = np.ones(np.shape(a), a.dtype)
    base, exponent = a.copy(), np.where(b < 0, 0, b).astype(np.uint64)
    while exponent.any():
        result = np.where(exponent & np.uint64(1), result * base, result)
        base, exponent = base * base, exponent >> np.uint64(1)
    if b.dtype.kind != "i":
        return result
    odd = (b & b.dtype.type(1)) != 0
    minus_one = (a == -1) if a.dtype.kind == "i" else np.zeros(np.shape(a), np.bool_)
    reciprocal = np.where((a == 1) | (minus_one & ~odd), 1, np.where(minus_one, -1, 0)).astype(a.dtype)
    return np.where(b < 0, reciprocal, result)


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind != "f" and b.dtype.kind != "f":
        return _integer_power(a, b)
    if a.dtype == b.dtype:
        return np.power(a, b)
    result = np.power(a.astype(np.float64), b.astype(np.float64))
    return convert(result, DType.of(a.dtype))


def _logical(boolean: Function, bitwise: Function) -> Function:
    return lambda *arrays: (boolean if arrays[0].dtype == np.bool_ else bitwise)(*arrays)


def _shift(direction: Function) -> Function:
    def shift(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = a.dtype.type(a.dtype.itemsize * 8)
        return np.where(b < width, direction(a, np.minimum(b, width - a.dtype.type(1))), a.dtype.type(0))

    return shift


def _round_to_odd(x: np.ndarray) -> np.ndarray:
    """float64 to float32 such that rounding the result again to fewer bits rounds only once in effect."""
    nearest = x.astype(np.float32)
    back = nearest.astype(np.float64)
    bits = nearest.view(np.uint32) - (np.abs(back) > np.abs(x)).astype(np.uint32)
    inexact = (back != x) & np.isfinite(x)
    return np.where(inexact, bits | np.uint32(1), nearest.view(np.uint32)).view(np.float32)


def convert(x: np.ndarray, to: DType) -> np.ndarray:
    """The meaning of `cast`: to floats it rounds to nearest even, floats saturate as integers, integers wrap."""
    x = widen(x)
    if to is DType.BOOL:
        return np.asarray(x != 0)
    if to is DType.BFLOAT16:
        exact = x if x.dtype == np.float32 or x.dtype.itemsize <= 2 else _round_to_odd(x.astype(np.float64))
        return exact.astype(np.float32).astype(to.numpy)
    if x.dtype.kind != "f" or to.is_float:
        return x.astype(np.float64).astype(to.numpy) if to is DType.FLOAT16 else x.astype(to.numpy)
    limits = np.iinfo(to.numpy)
    # The greatest integer may round up as a float; what reaches it is set apart, so no conversion overflows.
    low, high = x.dtype.type(limits.min), x.dtype.type(limits.max)
    inside = (x >= low) & (x < high)
    result = np.where(inside, x, 0).astype(to.numpy)
    result = np.where(x >= high, to.numpy.type(limits.max), result)
    return np.where(x < low, to.numpy.type(limits.min), result)


def _target(attributes: Attributes) -> DType:
    return DType(word(attributes, "to", tuple(d.value for d in DType)))


def _cast(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (convert(arrays[0], _target(attributes)),)


def _bitcast(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (np.ascontiguousarray(arrays[0]).reshape(arrays[0].shape).view(_target(attributes).numpy),)


def _isinf(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    x, found = widen(arrays[0]), np.zeros(arrays[0].shape, np.bool_)
    if flag(attributes, "positive"):
        found = found | (x == np.inf)
    if flag(attributes, "negative"):
        found = found | (x == -np.inf)
    return (np.asarray(found),)


def _where(arrays: Arrays, attributes: Attributes) -> tuple[np.ndarray, ...]:
    return (np.where(arrays[0], arrays[1], arrays[2]),)


def _elementwise(
    name: str,
    arity: int,
    dtypes: frozenset[DType],
    meaning: Meaning,
    c: str,
    triton: str,
    domain: Domain = _WIDE,
    tolerance: float = 0.0,
    truth: bool = False,
) -> Primitive:
    def rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        dtype = one_dtype(types, dtypes)
        return (TensorType(DType.BOOL if truth else dtype, one_shape(types)),)

    return Primitive(name, "elementwise", (arity, arity), dtypes, rule, meaning, c, triton, (), domain, tolerance)


def _float_function(
    name: str, function: Function, tolerance: float, triton: str = "", domain: Domain = _WIDE
) -> Primitive:
    text = triton or f"libdevice.{name}({{0}})"
    c = f"korch_{name}_{{T}}({{0}})"
    return _elementwise(name, 1, FLOAT, _same(function), c, text, domain, tolerance)


def _cast_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    to = _target(attributes)
    one_dtype(types, ANY)
    require(to not in CODES, f"the dtype {to.value} is not supported")
    return (TensorType(to, types[0].shape),)


def _bitcast_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    to = _target(attributes)
    require(to.size == types[0].dtype.size, f"{to.value} has another size")
    require(to is not DType.BOOL, "bits do not make a bool")
    return (TensorType(to, types[0].shape),)


def _isinf_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    one_dtype(types, FLOAT)
    flag(attributes, "positive")
    flag(attributes, "negative")
    return (TensorType(DType.BOOL, types[0].shape),)


def _pow_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    one_dtype(types[:1], NUMBER)
    one_dtype(types[1:], NUMBER)
    return (TensorType(types[0].dtype, one_shape(types)),)


def _where_rule(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    require(types[0].dtype is DType.BOOL, "the condition must be bool")
    return (TensorType(one_dtype(types[1:], ANY), one_shape(types)),)


def _row(
    name: str,
    arity: int,
    dtypes: frozenset[DType],
    rule: Callable[[Types, Attributes], tuple[TensorType, ...]],
    meaning: Meaning,
    c: str,
    triton: str,
    attributes: tuple[str, ...] = (),
    domain: Domain = _WIDE,
    tolerance: float = 0.0,
) -> Primitive:
    return Primitive(
        name, "elementwise", (arity, arity), dtypes, rule, meaning, c, triton, attributes, domain, tolerance
    )


UNARY: tuple[Primitive, ...] = (
    _elementwise("neg", 1, NUMBER, _same(np.negative), "-{0}", "-{0}"),
    _elementwise("abs", 1, NUMBER, _same(np.abs), "korch_abs_{T}({0})", "tl.abs({0})"),
    _elementwise(
        "sign",
        1,
        NUMBER,
        _same(np.sign),
        "korch_sign_{T}({0})",
        "tl.where({0} > 0, 1, tl.where({0} < 0, -1, tl.where({0} == 0, 0, {0}))).to({0}.dtype)",
    ),
    _float_function("sqrt", np.sqrt, 0.5, "tl.sqrt_rn({0})", _POSITIVE),
    _float_function("exp", np.exp, 2, "tl.exp({0})", Domain(((-100.0, 90.0),))),
    _float_function("log", np.log, 2, "tl.log({0})", _POSITIVE),
    _float_function("log1p", np.log1p, 2, domain=Domain(((-1.0, 100.0),))),
    _float_function("expm1", np.expm1, 2, domain=Domain(((-20.0, 80.0),))),
    _float_function("erf", _erf, 2, "tl.erf({0})", Domain(((-5.0, 5.0),))),
    _float_function("tanh", np.tanh, 2, domain=Domain(((-10.0, 10.0),))),
    _float_function("sin", np.sin, 2, "tl.sin({0})"),
    _float_function("cos", np.cos, 2, "tl.cos({0})"),
    _float_function("tan", np.tan, 2),
    _float_function("asin", np.arcsin, 2, domain=_UNIT),
    _float_function("acos", np.arccos, 2, domain=_UNIT),
    _float_function("atan", np.arctan, 2),
    _float_function("sinh", np.sinh, 2, domain=Domain(((-90.0, 90.0),))),
    _float_function("cosh", np.cosh, 2, domain=Domain(((-90.0, 90.0),))),
    _float_function("asinh", np.arcsinh, 2),
    _float_function("acosh", np.arccosh, 2, domain=Domain(((1.0, 1e4),))),
    _float_function("atanh", np.arctanh, 2, domain=_UNIT),
    _float_function("floor", np.floor, 0, "tl.floor({0})"),
    _float_function("ceil", np.ceil, 0, "tl.ceil({0})"),
    _float_function("round", np.rint, 0, "libdevice.rint({0})"),
    _elementwise("isnan", 1, FLOAT, _truth(np.isnan), "korch_isnan_{T}({0})", "({0} != {0})", truth=True),
    _row(
        "isinf",
        1,
        FLOAT,
        _isinf_rule,
        _isinf,
        "korch_isinf_{T}({0}, {positive}, {negative})",
        "(({0} == float('inf')) & {positive}) | (({0} == float('-inf')) & {negative})",
        ("positive", "negative"),
    ),
    _elementwise(
        "not",
        1,
        INTEGER | BOOL,
        _same(_logical(np.logical_not, np.invert)),
        "~{0}",
        "~{0}",
    ),
    _row("cast", 1, ANY, _cast_rule, _cast, "korch_cast_{T}_{S}({0})", "korch_cast({0}, tl.{to})", ("to",)),
    _row(
        "bitcast",
        1,
        NUMBER,
        _bitcast_rule,
        _bitcast,
        "korch_bitcast_{Q}_{S}({0})",
        "{0}.to(tl.{to}, bitcast=True)",
        ("to",),
    ),
)

BINARY: tuple[Primitive, ...] = (
    _elementwise("add", 2, NUMBER, _same(np.add), "{0} + {1}", "{0} + {1}"),
    _elementwise("sub", 2, NUMBER, _same(np.subtract), "{0} - {1}", "{0} - {1}"),
    _elementwise("mul", 2, NUMBER, _same(np.multiply), "{0} * {1}", "{0} * {1}"),
    _elementwise("div", 2, NUMBER, _same(_div), "korch_div_{T}({0}, {1})", "korch_div({0}, {1})"),
    _elementwise("mod", 2, NUMBER, _same(_mod), "korch_mod_{T}({0}, {1})", "korch_mod({0}, {1})"),
    _elementwise("fmod", 2, NUMBER, _same(_fmod), "korch_fmod_{T}({0}, {1})", "korch_fmod({0}, {1})"),
    _row(
        "pow",
        2,
        NUMBER,
        _pow_rule,
        _same(_pow),
        "korch_pow_{T}_{U}({0}, {1})",
        "korch_pow({0}, {1})",
        (),
        Domain(((0.0, 20.0), (-6.0, 6.0))),
        2,
    ),
    _elementwise(
        "max",
        2,
        ANY,
        _same(np.maximum),
        "korch_max_{T}({0}, {1})",
        "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    ),
    _elementwise(
        "min",
        2,
        ANY,
        _same(np.minimum),
        "korch_min_{T}({0}, {1})",
        "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    ),
    _elementwise(
        "atan2",
        2,
        FLOAT,
        _same(np.arctan2),
        "korch_atan2_{T}({0}, {1})",
        "libdevice.atan2({0}, {1})",
        tolerance=2,
    ),
    _elementwise("eq", 2, ANY, _truth(np.equal), "korch_eq_{T}({0}, {1})", "{0} == {1}", truth=True),
    _elementwise("lt", 2, ANY, _truth(np.less), "korch_lt_{T}({0}, {1})", "{0} < {1}", truth=True),
    _elementwise("le", 2, ANY, _truth(np.less_equal), "korch_le_{T}({0}, {1})", "{0} <= {1}", truth=True),
    _elementwise("and", 2, INTEGER | BOOL, _same(np.bitwise_and), "{0} & {1}", "{0} & {1}"),
    _elementwise("or", 2, INTEGER | BOOL, _same(np.bitwise_or), "{0} | {1}", "{0} | {1}"),
    _elementwise("xor", 2, INTEGER | BOOL, _same(np.bitwise_xor), "{0} ^ {1}", "{0} ^ {1}"),
    _elementwise(
        "shift_left",
        2,
        UNSIGNED,
        _same(_shift(np.left_shift)),
        "korch_shift_left_{T}({0}, {1})",
        "tl.where({1} < {0}.dtype.primitive_bitwidth, {0} << {1}, 0).to({0}.dtype)",
    ),
    _elementwise(
        "shift_right",
        2,
        UNSIGNED,
        _same(_shift(np.right_shift)),
        "korch_shift_right_{T}({0}, {1})",
        "tl.where({1} < {0}.dtype.primitive_bitwidth, {0} >> {1}, 0).to({0}.dtype)",
    ),
)

TERNARY: tuple[Primitive, ...] = (
    _row("where", 3, ANY, _where_rule, _where, "korch_where_{R}({0}, {1}, {2})", "tl.where({0}, {1}, {2})"),
)

ELEMENTWISE: tuple[Primitive, ...] = UNARY + BINARY + TERNARY
