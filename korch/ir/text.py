"""The text form of a graph: one definition a line, so that graphs diff.

    input x = v0 : float32[1,3]
    constant c0 : float32[] = 0.5
    constant c1 : float32[3,64] = sha256:9f86d081884c7d659a2feaa0c55ad015
    v1 = broadcast(c0; axes=(), shape=(1, 3)) : float32[1,3]
    v2 = mul(v0, v1) : float32[1,3]  # Mul_0
    output y = v2

Constants of at most 8 elements are written out; larger ones by the hash of their dtype, shape and bytes.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Mapping

import numpy as np

from korch.ir.graph import Attribute, Definition, Graph
from korch.ir.types import CODES, DType, TensorType

INLINE_ELEMENTS = 8


def print_graph(graph: Graph) -> str:
    """The graph as text; `parse_graph` reads it back."""
    types = graph.types
    lines = [f"input {_name(name)} = {value} : {types[value]}" for name, value in graph.inputs]
    lines += [f"constant {value} : {types[value]} = {_print_constant(a)}" for value, a in graph.constants.items()]
    lines += [print_definition(graph, d) for d in graph.definitions]
    lines += [f"output {_name(name)} = {value}" for name, value in graph.outputs]
    return "\n".join(lines) + "\n"


def print_definition(graph: Graph, d: Definition) -> str:
    """One definition as a line."""
    attributes = ", ".join(f"{k}={print_attribute(a)}" for k, a in d.attributes)
    operands = ", ".join(d.inputs) + (f"; {attributes}" if attributes else "")
    outputs = ", ".join(str(graph.types[v]) for v in d.outputs)
    origin = f"  # {_one_line(d.origin)}" if d.origin else ""
    return f"{', '.join(d.outputs)} = {d.primitive}({operands}) : {outputs}{origin}"


def print_attribute(value: Attribute) -> str:
    """As a Python literal; infinities and NaN as `inf` and `nan`."""
    if isinstance(value, tuple):
        inner = ", ".join(map(print_attribute, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def parse_attribute(text: str) -> Attribute:
    """The inverse of `print_attribute`; ValueError on anything else."""
    try:
        return _literal(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"not an attribute: {text!r}") from None


def parse_graph(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Reads `print_graph`'s text. ValueError names the line that does not parse.

    Large constants are taken from `constants` (by value name), and must have the hash that is written.
    """
    reader = _Reader(constants or {})
    for number, line in enumerate(text.splitlines(), 1):
        try:
            reader.line(line)
        except (ValueError, KeyError) as error:
            raise ValueError(f"line {number}: {error}: {line.strip()!r}") from None
    return reader.graph()


def constant_hash(array: np.ndarray) -> str:
    """What a large constant is known by: a hash of its dtype, shape and row-major bytes."""
    digest = hashlib.sha256(f"{TensorType.of(array)}:".encode())
    digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()[:32]


_PLAIN = re.compile(r"[^\s='\"#]+")


def _name(name: str) -> str:
    """An interface name: bare when it has no blanks or signs that the text uses, else quoted."""
    return name if _PLAIN.fullmatch(name) else repr(name)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print_constant(array: np.ndarray) -> str:
    if array.size > INLINE_ELEMENTS:
        return f"sha256:{constant_hash(array)}"
    # Floats print in float64, whose shortest form reads back to the same narrower value; NaN by its bits.
    items = [_print_element(e) for e in array.reshape(-1)]
    return items[0] if array.shape == () else f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _print_element(element: np.generic) -> str:
    dtype = DType.of(element.dtype)
    if dtype.is_float:
        return repr(float(element))
    if dtype in CODES:
        return repr(int(element.view(np.uint8)))
    return repr(bool(element)) if dtype is DType.BOOL else repr(int(element))


def _literal(node: ast.expr) -> Attribute:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Tuple(elts=items):
            return tuple(map(_literal, items))
        case ast.Name(id="inf" | "nan" as word):
            return math.inf if word == "inf" else math.nan
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _literal(operand)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value
        case _:
            pass
    raise ValueError("not a literal")


_LINE = {
    "input": re.compile(r"input (?P<name>\S.*?) = (?P<value>\S+) : (?P<type>\S+)"),
    "output": re.compile(r"output (?P<name>\S.*?) = (?P<value>\S+)"),
    "constant": re.compile(r"constant (?P<value>\S+) : (?P<type>\S+) = (?P<data>.+)"),
}
_DEFINITION = re.compile(
    r"(?P<outputs>[^=()]+) = (?P<primitive>\w+)\((?P<inside>.*)\) : (?P<types>[^#]+?)(?:  # (?P<origin>.*))?"
)


def _unquote(name: str) -> str:
    if name[0] not in "'\"":
        return name
    value = ast.literal_eval(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is no name")
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(w.strip() for w in text.split(",") if w.strip())


def _split_types(text: str) -> list[TensorType]:
    """Types separated by commas, which shapes have inside as well."""
    return [TensorType.parse(t) for t in re.findall(r"[a-z0-9_]+\[[^\]]*\]", text)]


def _attributes(text: str) -> tuple[tuple[str, Attribute], ...]:
    """`k=v, k=v`, read as the keywords of a call that is never made."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        raise ValueError("the attributes do not parse") from None
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise ValueError("the attributes are not name=value")
    return tuple(sorted((str(k.arg), _literal(k.value)) for k in call.keywords))


class _Reader:
    """Collects the parts of a graph line by line."""

    def __init__(self, constants: Mapping[str, np.ndarray]) -> None:
        self._given = constants
        self._types: dict[str, TensorType] = {}
        self._inputs: list[tuple[str, str]] = []
        self._outputs: list[tuple[str, str]] = []
        self._constants: dict[str, np.ndarray] = {}
        self._definitions: list[Definition] = []

    def line(self, line: str) -> None:
        line = line.strip()
        if not line or line.startswith("#"):
            return
        word = line.split(" ", 1)[0]
        # A value may be named `input`; then an equals sign follows it at once.
        keyword = word in _LINE and not line.startswith((f"{word} =", f"{word},"))
        match = (_LINE[word] if keyword else _DEFINITION).fullmatch(line)
        if match is None:
            raise ValueError("not understood")
        if not keyword:
            self._define(match)
        elif word == "input":
            self._type(match["value"], TensorType.parse(match["type"]))
            self._inputs.append((_unquote(match["name"]), match["value"]))
        elif word == "output":
            self._known(match["value"])
            self._outputs.append((_unquote(match["name"]), match["value"]))
        else:
            self._constant(match["value"], TensorType.parse(match["type"]), match["data"])

    def graph(self) -> Graph:
        return Graph(self._types, tuple(self._inputs), tuple(self._outputs), tuple(self._definitions), self._constants)

    def _known(self, value: str) -> None:
        if value not in self._types:
            raise ValueError(f"{value} is used before it is defined")

    def _type(self, value: str, declared: TensorType) -> None:
        if self._types.setdefault(value, declared) != declared:
            raise ValueError(f"{value} has the type {self._types[value]} above")

    def _define(self, match: re.Match[str]) -> None:
        inputs, _, attributes = match["inside"].partition(";")
        outputs, types = _words(match["outputs"]), _split_types(match["types"])
        for value in _words(inputs):
            self._known(value)
        if len(outputs) != len(types):
            raise ValueError(f"{len(outputs)} outputs, but {len(types)} types")
        for value, declared in zip(outputs, types, strict=True):
            self._type(value, declared)
        self._definitions.append(
            Definition(match["primitive"], _words(inputs), outputs, _attributes(attributes), match["origin"] or "")
        )

    def _constant(self, value: str, declared: TensorType, data: str) -> None:
        self._type(value, declared)
        if data.startswith("sha256:"):
            if value not in self._given:
                raise ValueError(f"the constant {value} is not given")
            if constant_hash(self._given[value]) != data.removeprefix("sha256:"):
                raise ValueError(f"the constant {value} that is given has another hash")
            self._constants[value] = self._given[value]
            return
        literal = parse_attribute(data)
        items = literal if isinstance(literal, tuple) else (literal,)
        stored = np.uint8 if declared.dtype in CODES else declared.dtype.numpy
        self._constants[value] = np.array(items, stored).reshape(declared.shape).view(declared.dtype.numpy)
