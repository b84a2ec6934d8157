"""Opaque primitives in plain C: top_k, cumsum, scatter_elements, scatter_nd. Each is a kernel of its own.

Rows are tasks where rows do not meet; updates of a scatter are applied in their order, by one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from korch.codegen.c.prelude import literal, storage_tag
from korch.codegen.kernel import Argument, Kernel
from korch.codegen.target import Target
from korch.ir.fragment import Fragment
from korch.ir.graph import Definition
from korch.ir.layout import Layout
from korch.ir.types import DType, TensorType

_NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})
_ROW_NANOSECONDS = 20_000  # of work in one task, below which handing it out costs too much


@dataclass(frozen=True)
class _Operand:
    """A value in memory: `pointer` is a C expression of the type of its elements."""

    type: TensorType
    pointer: str
    strides: tuple[int, ...]

    @property
    def tag(self) -> str:
        return storage_tag(self.type.dtype)

    def at(self, names: list[str]) -> str:
        """The offset of the element with these C expressions as index."""
        parts = [n if s == 1 else f"({n})*{s}" for n, s in zip(names, self.strides, strict=True) if s]
        return "+".join(parts) or "0"


@dataclass(frozen=True)
class _Text:
    """What a primitive's generator gives: functions for file scope, the statements of the entry, and scratch."""

    functions: str
    entry: str
    scratch_bytes: int = 0
    worker_scratch_bytes: int = 0


def opaque_implementations(fragment: Fragment, target: Target) -> tuple[Kernel, ...] | str:
    """The kernel of a fragment that is one opaque primitive, or the reason why there is none."""
    graph = fragment.graph
    if len(graph.definitions) != 1:
        return "an opaque primitive stands alone in its kernel"
    d = graph.definitions[0]
    if d.primitive not in _GENERATORS:
        return f"no kernel for {d.primitive}"
    arguments: list[Argument] = []
    constants: list[str] = []
    operands: list[_Operand] = []
    for v in d.inputs:
        t = graph.types[v]
        if v in graph.constants:
            name = f"KERNEL_constant{len(constants)}"
            number = literal(graph.constants[v].reshape(-1)[0].astype(t.dtype.numpy))
            if t.dtype in _NARROW:
                number = str(int(graph.constants[v].reshape(-1)[:1].view(np.uint16)[0]))
            constants.append(f"static const {storage_tag(t.dtype)} {name}[1] = {{{number}}};")
            operands.append(_Operand(t, name, (0,) * t.rank))
            continue
        operands.append(_operand(fragment, v, len(arguments), "const "))
        arguments.append(Argument("input", v))
    results: list[_Operand] = []
    for v in d.outputs:
        if v in graph.output_values:
            results.append(_operand(fragment, v, len(arguments), ""))
            arguments.append(Argument("output", v))
        else:
            results.append(_Operand(graph.types[v], "", ()))
    scratch = f"p[{len(arguments)}]"
    if all(t.elements == 0 for t in (r.type for r in results)):
        text = _Text("", "")
    else:
        text = _GENERATORS[d.primitive](d, operands, results, scratch)
    if text.scratch_bytes:
        arguments.append(Argument("scratch"))
    source = "\n".join(
        [
            "typedef struct { const korch_runtime *runtime; char *const *p; } KERNEL_context;",
            *constants,
            text.functions,
            "void KERNEL(const korch_runtime *runtime, char *const *p) {",
            "KERNEL_context context = {runtime, p};",
            text.entry,
            "}\n",
        ]
    )
    kernel = Kernel("opaque", source, tuple(arguments), (), (), text.scratch_bytes, text.worker_scratch_bytes)
    return (kernel,)


def _operand(fragment: Fragment, value: str, number: int, qualifier: str) -> _Operand:
    t = fragment.graph.types[value]
    pointer = f"(({qualifier}{storage_tag(t.dtype)} *)p[{number}])"
    return _Operand(t, pointer, fragment.layouts[value].strides_of(t.shape))


# Rows: all elements along one axis.


def _rows(shape: tuple[int, ...], axis: int, nanoseconds: float, body: str) -> tuple[str, str]:
    """A task function that runs `body` for its rows, with i0, i1… in scope (not the axis's), and its call."""
    count = math.prod(n for d, n in enumerate(shape) if d != axis)
    tasks = max(1, min(count, 32, int(count * nanoseconds / _ROW_NANOSECONDS)))
    decode = "".join(
        f"const int64_t i{d} = rest % {shape[d]}; rest /= {shape[d]};\n"
        for d in reversed(range(len(shape)))
        if d != axis
    )
    function = f"""static void KERNEL_rows(void *context, int64_t task, int64_t worker) {{
char *const *p = ((KERNEL_context *)context)->p;
const korch_runtime *runtime = ((KERNEL_context *)context)->runtime;
for (int64_t row = task * {count} / {tasks}; row < (task + 1) * {count} / {tasks}; ++row) {{
int64_t rest = row;
{decode}{body}}}
}}"""
    return function, f"korch_parallel(runtime, {tasks}, KERNEL_rows, &context);"


def _names(rank: int, axis: int, along: str) -> list[str]:
    return [along if d == axis else f"i{d}" for d in range(rank)]


# top_k


def _key(dtype: DType) -> str:
    """C statements that return a uint64_t which orders elements as NumPy's sort does: NaN last, zeros equal."""
    size, tag = dtype.size, storage_tag(dtype)
    if dtype.is_integer:
        flip = f" ^ (1ull << {8 * size - 1})" if dtype.is_signed else ""
        return f"return (uint64_t)(u{8 * size})*x{flip};"
    infinity = {"f16": "0x7c00", "bf16": "0x7f80", "f32": "0x7f800000", "f64": "0x7ff0000000000000"}[tag]
    sign, bits = f"(1ull << {8 * size - 1})", f"u{8 * size}"
    return (
        f"uint64_t b = *(const {bits} *)x, a = b & ~{sign};\n"
        f"if (a > {infinity}ull) return ~0ull;\n"
        f"return a == 0 ? {sign} : b & {sign} ? ({bits})~b : b | {sign};"
    )


def _top_k(d: Definition, operands: list[_Operand], results: list[_Operand], scratch: str) -> _Text:
    """A heap of the k best, the worst of them on top; at the end it is taken apart from the worst on."""
    (x,), (values, positions) = operands, results
    axis, k = d.int("axis"), d.int("k")
    n, rank = x.type.shape[axis], x.type.rank
    invert = "" if d.attribute("largest") else "~"
    name = _names(rank, axis, "j")
    stores = [
        f"{r.pointer}[{r.at(name)}] = {text};"
        for r, text in ((values, f"{x.pointer}[{x.at(_names(rank, axis, 'e.at'))}]"), (positions, "e.at"))
        if r.pointer
    ]
    helpers = f"""typedef struct {{ uint64_t key; int64_t at; }} KERNEL_entry;
static uint64_t KERNEL_key(const {x.tag} *x) {{
{_key(x.type.dtype)}
}}
static int KERNEL_worse(KERNEL_entry a, KERNEL_entry b) {{ return a.key != b.key ? a.key < b.key : a.at > b.at; }}
static void KERNEL_sink(KERNEL_entry *heap, int64_t size, int64_t i, KERNEL_entry e) {{
for (int64_t c; (c = 2 * i + 1) < size; i = c) {{
c += c + 1 < size && KERNEL_worse(heap[c + 1], heap[c]);
if (!KERNEL_worse(heap[c], e)) break;
heap[i] = heap[c];
}}
heap[i] = e;
}}
"""
    body = f"""KERNEL_entry *heap = (KERNEL_entry *)(runtime->scratch + worker * runtime->scratch_stride);
for (int64_t j = 0; j < {n}; ++j) {{
KERNEL_entry e = {{{invert}KERNEL_key(&{x.pointer}[{x.at(name)}]), j}};
if (j < {k}) heap[j] = e;
if (j == {k - 1}) for (int64_t i = {k} / 2; i-- > 0;) KERNEL_sink(heap, {k}, i, heap[i]);
if (j >= {k} && KERNEL_worse(heap[0], e)) KERNEL_sink(heap, {k}, 0, e);
}}
for (int64_t j = {k}; j-- > 0;) {{
KERNEL_entry e = heap[0];
KERNEL_sink(heap, j, 0, heap[j]);
{" ".join(stores)}
}}
"""
    function, call = _rows(x.type.shape, axis, 4.0 * n, body)
    return _Text(helpers + function, call, worker_scratch_bytes=16 * max(k, 1))


# cumsum


def _cumsum(d: Definition, operands: list[_Operand], results: list[_Operand], scratch: str) -> _Text:
    """Floats are summed in double precision, in order; integers wrap."""
    (x,), (y,) = operands, results
    axis, rank = d.int("axis"), x.type.rank
    n, dtype = x.type.shape[axis], x.type.dtype
    name = _names(rank, axis, "j")
    kind = "f64" if dtype.is_float else f"u{8 * dtype.size}"
    step = f"const {kind} v = {_get(x, x.at(name))};"
    add, store = "sum += v;", _put(y, y.at(name), "sum")
    order = f"{store} {add}" if d.attribute("exclusive") else f"{add} {store}"
    loop = f"for (int64_t j = {n}; j-- > 0;)" if d.attribute("reverse") else f"for (int64_t j = 0; j < {n}; ++j)"
    body = f"{kind} sum = 0;\n{loop} {{ {step} {order} }}\n"
    function, call = _rows(x.type.shape, axis, 2.0 * n, body)
    return _Text(function, call)


def _get(x: _Operand, at: str) -> str:
    """C text of one element, float16 and bfloat16 as float."""
    if x.type.dtype in _NARROW:
        return f"korch_broadcast_{x.tag}(&{x.pointer}[{at}])[0]"
    return f"{x.pointer}[{at}]"


def _put(y: _Operand, at: str, value: str) -> str:
    """A C statement that stores one element."""
    if y.type.dtype in _NARROW:
        return f"{y.pointer}[{at}] = korch_narrow_{y.tag}(korch_splat_f32((f32){value}))[0];"
    return f"{y.pointer}[{at}] = ({y.tag}){value};"


# scatter


def _scatter_elements(d: Definition, operands: list[_Operand], results: list[_Operand], scratch: str) -> _Text:
    _, indices, updates = operands
    axis, shape = d.int("axis"), indices.type.shape
    names = [f"i{k}" for k in range(len(shape))]
    size = results[0].type.shape[axis]
    body = [
        f"int64_t at = {indices.pointer}[{indices.at(names)}];",
        f"at = at < 0 ? at + {size} : at;",
        f"if (at < 0 || at >= {size}) continue;",
    ]
    target = ["at" if k == axis else f"i{k}" for k in range(len(shape))]
    return _scatter(d, operands, results[0], scratch, shape, body, target, updates.at(names))


def _scatter_nd(d: Definition, operands: list[_Operand], results: list[_Operand], scratch: str) -> _Text:
    data, indices, updates = operands
    depth, lead = indices.type.shape[-1], indices.type.rank - 1
    shape = updates.type.shape
    names = [f"i{k}" for k in range(len(shape))]
    body: list[str] = []
    for k in range(depth):
        size = data.type.shape[k]
        body += [
            f"int64_t at{k} = {indices.pointer}[{indices.at([*names[:lead], str(k)])}];",
            f"at{k} = at{k} < 0 ? at{k} + {size} : at{k};",
            f"if (at{k} < 0 || at{k} >= {size}) continue;",
        ]
    target = [*(f"at{k}" for k in range(depth)), *names[lead:]]
    return _scatter(d, operands, results[0], scratch, shape, body, target, updates.at(names))


def _scatter(
    d: Definition,
    operands: list[_Operand],
    result: _Operand,
    scratch: str,
    loops: tuple[int, ...],
    body: list[str],
    target: list[str],
    update_at: str,
) -> _Text:
    """The data copied, then every update; narrow floats are combined in float32 and rounded at the end."""
    data, _, updates = operands
    reduction = str(d.attribute("reduction"))
    shape = result.type.shape
    wide = result.type.dtype in _NARROW and reduction != "none"
    names = [f"i{k}" for k in range(len(shape))]
    held = result
    if wide:
        row_major = Layout.row_major(shape).strides_of(shape)
        held = _Operand(TensorType(DType.FLOAT32, shape), f"((f32 *){scratch})", row_major)
    copy = _put(held, held.at(names), _get(data, data.at(names)))
    old, new = f"{held.pointer}[to]", _get(updates, update_at)
    combined = _combined(reduction, held.type.dtype)
    apply = [*body, f"const int64_t to = {held.at(target)};"]
    if reduction == "none":
        apply.append(f"{held.pointer}[to] = {updates.pointer}[{update_at}];")
    else:
        kind = held.tag
        apply.append(f"const {kind} a = {old}, b = {new}; {held.pointer}[to] = {combined};")
    lines = [*_nest(shape, [copy]), *(_nest(loops, apply) if math.prod(loops) else [])]
    if wide:
        lines += _nest(shape, [_put(result, result.at(names), f"{held.pointer}[{held.at(names)}]")])
    return _Text("", "\n".join(lines), 4 * math.prod(shape) if wide else 0)


def _nest(shape: tuple[int, ...], body: list[str]) -> list[str]:
    heads = [f"for (int64_t i{d} = 0; i{d} < {n}; ++i{d})" for d, n in enumerate(shape)]
    if not heads:
        return ["do {", *body, "} while (0);"]
    return [*(f"{h} {{" for h in heads), *body, "}" * len(heads)]


def _combined(reduction: str, dtype: DType) -> str:
    """C text of the combination of a and b."""
    if reduction in ("max", "min"):
        sign = ">" if reduction == "max" else "<"
        return f"a {sign} b || a != a ? a : b"
    sign = "+" if reduction == "add" else "*"
    if dtype.is_integer and dtype.is_signed:
        wide = "u64" if dtype.size == 8 else "u32"
        return f"({storage_tag(dtype)})(({wide})a {sign} ({wide})b)"
    return f"a {sign} b"


_Generator = Callable[[Definition, list[_Operand], list[_Operand], str], _Text]

_GENERATORS: dict[str, _Generator] = {
    "top_k": _top_k,
    "cumsum": _cumsum,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
}
