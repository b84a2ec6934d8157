"""The C text that opens each generated file: types, loads and stores, conversions, vector mathematics.

The text lies in `mathematics/*.c` as blocks separated by empty lines, each one definition or a few that belong
together. A block whose first line is `//@ T = f32 f64; S = i32:0:1` stands for its copies, one for each choice of
the variables: `$T` is replaced by the choice (`$S.0`, `$S.1` by its parts), `$T.signed` by the signed integer of
the same size. A file gets the blocks that it uses, and those that these use: unused ones would cost compile time.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np

from korch.codegen.target import Target
from korch.ir.graph import Definition
from korch.ir.primitives import TABLE
from korch.ir.types import CODES, DType, TensorType

# In this order: a block may use what stands above it. All of `base` is in every file.
_FILES = ("base", "memory", "arithmetic", "convert", "float64", "float32")

_TAGS: dict[DType, str] = {
    DType.FLOAT64: "f64",
    DType.FLOAT32: "f32",
    DType.FLOAT16: "f16",
    DType.BFLOAT16: "bf16",
    DType.INT64: "i64",
    DType.INT32: "i32",
    DType.INT16: "i16",
    DType.INT8: "i8",
    DType.UINT64: "u64",
    DType.UINT32: "u32",
    DType.UINT16: "u16",
    DType.UINT8: "u8",
    DType.BOOL: "b8",
    **dict.fromkeys(CODES, "u8"),
}


def storage_tag(dtype: DType) -> str:
    """The C type of an element in memory: `f32`, `bf16`, `b8`…"""
    return _TAGS[dtype]


def register_tag(dtype: DType) -> str:
    """`v` + this is the C type of W elements in registers: float16 and bfloat16 are computed in float32."""
    return "f32" if dtype in (DType.FLOAT16, DType.BFLOAT16) else _TAGS[dtype]


def expression(d: Definition, operands: Sequence[str], types: Sequence[TensorType], result: TensorType) -> str:
    """The C expression of an elementwise definition over vectors; `operands` are names or in parentheses.

    A result of float16 or bfloat16 is not rounded to it, except by `cast`: storing does that.
    """
    data = types[1:] if d.primitive == "where" else types
    tags = {
        "T": register_tag(data[0].dtype),
        "U": register_tag(data[-1].dtype),
        "Q": storage_tag(data[0].dtype),
        "R": register_tag(result.dtype),
        "S": storage_tag(result.dtype),
    }
    attributes = {k: int(v) if isinstance(v, bool) else v for k, v in d.attributes}
    return TABLE[d.primitive].c.format(*operands, **tags, **attributes)


def literal(value: np.generic) -> str:
    """A C constant of exactly this value, for the register type of its dtype (bool: 0 or 1)."""
    dtype = DType.of(value.dtype)
    if dtype is DType.BOOL:
        return str(int(bool(value)))
    if dtype in CODES:
        return str(int(value.view(np.uint8)))
    if dtype.is_integer:
        return _integer_literal(int(value), dtype)
    number = float(value)
    suffix = "" if dtype is DType.FLOAT64 else "f"
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
    return f"{number.hex()}{suffix}"


def prelude(target: Target, used: str | Iterable[str] | None = None) -> str:
    """The text for a file that uses what `used` names: C text, or names; None stands for everything."""
    lanes = target.lanes()
    blocks = _blocks(lanes)
    head = f"#define W {lanes}\n#define KORCH_FMA {int(target.has_fma)}\n"
    if used is None:
        return head + "\n".join(b.text for b in blocks)
    text = used if isinstance(used, str) else " ".join(used)
    chosen = _closure(blocks, set(_IDENTIFIER.findall(text)))
    return head + "\n".join(b.text for i, b in enumerate(blocks) if b.always or i in chosen)


@dataclass(frozen=True)
class _Block:
    """Some definitions, the names they define, and the names they mention."""

    text: str
    always: bool
    defines: tuple[str, ...]
    mentions: frozenset[str]


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_DEFINED = re.compile(
    r"""^\#define\ (\w+)
      | ^typedef\ .*?(\w+)(?:\ __attribute__\(\(.*)?;$
      | ^(?:FN|KORCH_SCALAR|static\ const)\ .*?(\w+)(?:\(|\[|\ =)""",
    re.MULTILINE | re.VERBOSE,
)


def _closure(blocks: Sequence[_Block], names: set[str]) -> set[int]:
    """The blocks that define the names, and whatever these blocks mention in turn."""
    where = {name: i for i, b in enumerate(blocks) for name in b.defines}
    chosen: set[int] = set()
    waiting = [where[n] for n in names if n in where]
    while waiting:
        i = waiting.pop()
        if i not in chosen:
            chosen.add(i)
            waiting += [where[n] for n in blocks[i].mentions if n in where]
    return chosen


@lru_cache
def _blocks(lanes: int) -> tuple[_Block, ...]:
    folder = files("korch.codegen.c") / "mathematics"
    found: list[_Block] = []
    for name in _FILES:
        for block in re.split(r"\n\n+", (folder / f"{name}.c").read_text()):
            found += [_block(text, name == "base", lanes) for text in _copies(block)]
    return tuple(found)


def _block(text: str, always: bool, lanes: int) -> _Block:
    text = text.replace("$LANES", ", ".join(map(str, range(lanes))))
    text = re.sub(r"\$HALVES\((.*)\)$", lambda m: _halves(m[1], lanes), text, flags=re.MULTILINE)
    defines = tuple(next(filter(None, m)) for m in _DEFINED.findall(text))
    return _Block(text, always, defines, frozenset(_IDENTIFIER.findall(text)).difference(defines))


def _halves(statement: str, lanes: int) -> str:
    """The statement once for each step of a tree over the lanes, `@` being v with its halves exchanged."""
    steps: list[str] = []
    distance = lanes // 2
    while distance:
        order = ", ".join(str(i ^ distance) for i in range(lanes))
        steps.append(statement.replace("@", f"__builtin_shufflevector(v, v, {order})"))
        distance //= 2
    return "\n  ".join(steps)


def _copies(block: str) -> Iterator[str]:
    """The block for each choice of the variables in its first line."""
    if not block.startswith("//@"):
        yield block
        return
    directive, body = block.removeprefix("//@").split("\n", 1)
    variables = [part.split("=") for part in directive.split(";")]
    names = [name.strip() for name, _ in variables]
    for choice in itertools.product(*(values.split() for _, values in variables)):
        yield _replaced(body, dict(zip(names, choice, strict=True)))


def _replaced(body: str, choice: Mapping[str, str]) -> str:
    """`$T`, its parts `$T.0`, `$T.1`… and the signed integer of its size, `$T.signed`, filled in."""

    def value(match: re.Match[str]) -> str:
        parts = choice[match["name"]].split(":")
        part = parts[int(match["part"] or 0)]
        return f"i{re.sub(r'[a-z]+', '', part)}" if match["signed"] else part

    names = "|".join(choice)
    return re.sub(rf"\$(?P<name>{names})(?:\.(?P<part>\d))?(?P<signed>\.signed)?", value, body)


def _integer_literal(value: int, dtype: DType) -> str:
    if dtype is DType.INT64:
        return "(-0x7fffffffffffffffll - 1)" if value == -(2**63) else f"{value}ll"
    if dtype is DType.INT32 and value == -(2**31):
        return "(-0x7fffffff - 1)"
    return f"{value}{ {DType.UINT64: 'ull', DType.UINT32: 'u'}.get(dtype, '') }"
