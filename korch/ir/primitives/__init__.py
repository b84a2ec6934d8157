"""The closed table of primitives (docs/primitives.md says what each means)."""

from korch.ir.primitives.elementwise import ELEMENTWISE
from korch.ir.primitives.gather import GATHER
from korch.ir.primitives.layout import BROADCAST, LAYOUT
from korch.ir.primitives.linear import LINEAR
from korch.ir.primitives.opaque import OPAQUE
from korch.ir.primitives.primitive import Domain, Primitive
from korch.ir.primitives.reduce import REDUCE

ROWS: tuple[Primitive, ...] = (
    *ELEMENTWISE,
    *BROADCAST,
    *REDUCE,
    *LAYOUT,
    *LINEAR,
    *GATHER,
    *OPAQUE,
)

TABLE: dict[str, Primitive] = {row.name: row for row in ROWS}

__all__ = ["ROWS", "TABLE", "Domain", "Primitive"]
