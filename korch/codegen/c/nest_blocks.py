"""Blocks of W x W elements, transposed between memory that is contiguous along another axis and the vectors.

Vectors run along one axis; where memory strides along it but is contiguous along a second axis (`tile`), a block
of both is loaded or stored in rows along the second axis and transposed in registers, through a small array.
"""

from __future__ import annotations

from collections.abc import Sequence

from korch.codegen.c.emit import Memory, Writer, storage_tag
from korch.codegen.c.nest_reads import Indices
from korch.codegen.c.nest_values import Node, Read
from korch.ir.types import DType


class Block:
    """The text of one block. The C variables `TILE_block` and `TILE_n` are its first row and its rows; `lanes` is
    the number of its columns (None: W). Kinds that need a transposition are added to `kinds`."""

    def __init__(
        self, out: Writer, width: int, tile: str, vector: str, lanes: int | str | None, kinds: set[str]
    ) -> None:
        self.out, self.width, self.tile, self.vector, self.lanes = out, width, tile, vector, lanes
        self.kinds = kinds
        self.first, self.rows = f"{tile}_block", f"{tile}_n"
        self.columns = str(width if lanes is None else lanes)
        self._loaded: list[tuple[Node, str, str]] = []
        self._stores: list[str] = []
        self._outside = out.levels[-1]

    def read(self, roots: Sequence[Node]) -> None:
        """Loads, ahead of the rows, what the nodes read across the vectors."""
        for node in _reachable(roots):
            if not isinstance(node, Read) or node.guards or node.offset.stride(self.tile) != 1:
                continue
            stride = node.offset.stride(self.vector)
            if stride is None or stride in (0, 1):
                continue
            kind, array = self._kind(node.dtype), self._array(node.dtype)
            at = self.out.index(node.offset, {self.tile: self.first})
            self.out.add(
                f"KERNEL_transpose_{kind}((const {kind} *)({node.memory.pointer}) + ({at}), {stride}, "
                f"{self.columns}, {self.rows}, {array}, {self.width});"
            )
            self._loaded.append((node, storage_tag(node.dtype), array))

    def open(self) -> None:
        """Opens the loop over the rows."""
        out, tile = self.out, self.tile
        out.open(f"for (int64_t {tile} = {self.first}; {tile} < {self.first} + {self.rows}; ++{tile})", (tile,))
        for node, tag, array in self._loaded:
            text = f"korch_load_{tag}((const {tag} *){array} + {self._row()})"
            name = out.declare("f32" if tag in ("f16", "bf16") else tag, text)
            out.levels[-1].known[(node, self.vector, self.lanes)] = name

    def takes(self, text: str, dtype: DType, memory: Memory, index: Indices) -> bool:
        """Keeps a register for the end of the block, when it goes to memory across the vectors."""
        offset = memory.offset(index)
        stride = offset.stride(self.vector)
        if stride is None or stride in (0, 1) or offset.stride(self.tile) != 1:
            return False
        tag, kind, array = storage_tag(dtype), self._kind(dtype), self._array(dtype)
        self.out.add(f"korch_store_{tag}(({tag} *){array} + {self._row()}, {text});")
        at = self.out.index(offset, {self.tile: self.first})
        self._stores.append(
            f"KERNEL_transpose_{kind}({array}, {self.width}, {self.rows}, {self.columns}, "
            f"({kind} *)({memory.pointer}) + ({at}), {stride});"
        )
        return True

    def close(self) -> None:
        """Closes the loop and stores what was kept."""
        self.out.close()
        for line in self._stores:
            self.out.add(line)

    def _row(self) -> str:
        return f"({self.tile} - {self.first}) * {self.width}"

    def _kind(self, dtype: DType) -> str:
        """The unsigned integer that stands for elements of this size."""
        kind = f"u{dtype.size * 8}"
        self.kinds.add(kind)
        return kind

    def _array(self, dtype: DType) -> str:
        name, size = self.out.name("t"), self.width * self.width
        self._outside.lines.append(f"{self._kind(dtype)} {name}[{size}] __attribute__((aligned(64)));")
        return name


def transpose(kind: str, lanes: int) -> str:
    """A C function: q[j * step + i] = p[i * stride + j] for rows i and columns j.

    Whole blocks go through registers: rows i and i + s exchange their blocks of s elements, for s = W/2 … 1.
    Large parts of blocks are made whole ones; of small ones, each element goes its own way.
    """
    rows = range(lanes)
    lines = [f"v{kind} a{i} = korch_load_{kind}(p + {i} * stride);" for i in rows]
    step = lanes // 2
    while step:
        low = ",".join(str(j if not j & step else lanes + j - step) for j in rows)
        high = ",".join(str(j + step if not j & step else lanes + j) for j in rows)
        for i in rows:
            if not i & step:
                a, b = f"a{i}", f"a{i + step}"
                lines.append(
                    f"{{ v{kind} x = __builtin_shufflevector({a}, {b}, {low}); "
                    f"{b} = __builtin_shufflevector({a}, {b}, {high}); {a} = x; }}"
                )
        step //= 2
    lines += [f"korch_store_{kind}(q + {i} * step, a{i});" for i in rows]
    body = "\n".join(lines)
    size, name = lanes * lanes, f"KERNEL_transpose_{kind}"
    return f"""static __attribute__((noinline)) void {name}(const {kind} *p, int64_t stride, int64_t rows,
    int64_t columns, {kind} *q, int64_t step) {{
if (rows == {lanes} && columns == {lanes}) {{
{body}
return;
}}
if (rows * columns < {size // 4}) {{
for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < columns; ++j) q[j * step + i] = p[i * stride + j];
return;
}}
{kind} from[{size}] __attribute__((aligned(64))), to[{size}] __attribute__((aligned(64)));
for (int64_t i = 0; i < rows; ++i) korch_store_{kind}(from + i * {lanes}, korch_load_n_{kind}(p + i * stride, columns));
{name}(from, {lanes}, {lanes}, {lanes}, to, {lanes});
for (int64_t j = 0; j < columns; ++j) korch_store_n_{kind}(q + j * step, korch_load_{kind}(to + j * {lanes}), rows);
}}"""


def _reachable(roots: Sequence[Node]) -> list[Node]:
    seen: dict[int, Node] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            pending.extend(node.args)
    return list(seen.values())
