"""A model's inputs: which dimensions are symbols, and what the caller's shapes bind them to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import GraphProto, TypeProto, ValueInfoProto, helper

from korch.errors import InvalidInput, UnsupportedModel
from korch.importers.attributes import dimensions, type_text
from korch.ir.types import shape_text

Shape = tuple[int, ...]


def free_inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """The inputs that the caller gives: an input with an initializer is a constant."""
    initialized = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    return [i for i in graph.input if i.name not in initialized]


def bind_inputs(graph: GraphProto, shapes: Mapping[str, Shape]) -> tuple[dict[str, TypeProto], dict[str, int]]:
    """The type of every input with its dimensions bound, and the sizes that the symbols stand for.

    `shapes` gives inputs their whole shape; a symbol bound in one input is bound in all. InvalidInput when a
    shape does not fit, UnsupportedModel naming every dimension that stays unbound.
    """
    inputs = free_inputs(graph)
    _refuse_unknown(shapes, inputs)
    symbols: dict[str, int] = {}
    for i in inputs:
        if i.name in shapes:
            symbols = {**_bind(i, shapes[i.name]), **symbols}
    types: dict[str, TypeProto] = {}
    for i in inputs:
        if i.name in shapes:
            types[i.name] = helper.make_tensor_type_proto(i.type.tensor_type.elem_type, shapes[i.name])
        else:
            types[i.name] = bind_symbols(i.type, symbols)
    _refuse_unbound(types)
    return types, symbols


def bind_symbols(type_: TypeProto, symbols: Mapping[str, int]) -> TypeProto:
    dims = dimensions(type_)
    if dims is None:
        return type_
    bound = [symbols.get(d, d or None) if isinstance(d, str) else d for d in dims]
    return helper.make_tensor_type_proto(type_.tensor_type.elem_type, bound)


def unbound_dimensions(type_: TypeProto) -> tuple[str, ...] | None:
    """The symbols of a tensor type, "?" for one without a name; None when not even the rank is known."""
    dims = dimensions(type_)
    if dims is None:
        return None if type_.HasField("tensor_type") else ()
    return tuple(d or "?" for d in dims if isinstance(d, str))


def _bind(value: ValueInfoProto, shape: Shape) -> dict[str, int]:
    """What a shape given for an input makes of the symbols in its type."""
    if not value.type.HasField("tensor_type"):
        raise InvalidInput(f"input {value.name!r} is a {type_text(value.type)} and has no shape to give")
    if any(n < 0 for n in shape):
        raise InvalidInput(f"input {value.name!r} cannot have the shape {shape_text(shape)}: a dimension is negative")
    dims = dimensions(value.type)
    if dims is None:
        return {}
    if len(dims) != len(shape):
        raise InvalidInput(
            f"input {value.name!r} has rank {len(dims)} ({type_text(value.type)}), "
            f"not {len(shape)} ({shape_text(shape)})"
        )
    for k, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise InvalidInput(
                f"input {value.name!r}: dimension {k} is {dim} in the model ({type_text(value.type)}), not {size}"
            )
    return {dim: size for dim, size in zip(dims, shape, strict=True) if isinstance(dim, str) and dim}


def _refuse_unknown(shapes: Mapping[str, Shape], inputs: Iterable[ValueInfoProto]) -> None:
    known = {i.name: type_text(i.type) for i in inputs}
    unknown = [name for name in shapes if name not in known]
    if unknown:
        listing = ", ".join(f"{name} ({type_})" for name, type_ in known.items()) or "none"
        raise InvalidInput(f"no input is named {', '.join(map(repr, unknown))}; the model's inputs are: {listing}")


def _refuse_unbound(types: Mapping[str, TypeProto]) -> None:
    unbound = {name: type_ for name, type_ in types.items() if unbound_dimensions(type_) != ()}
    if not unbound:
        return
    listing = "; ".join(f"{name!r}: {_unbound_text(type_)}" for name, type_ in unbound.items())
    example = " ".join(f"--shape {name}={shape_text(_example(type_))}" for name, type_ in unbound.items())
    raise UnsupportedModel(f"unbound dimensions of inputs: {listing}; bind them, for example with {example}")


def _unbound_text(type_: TypeProto) -> str:
    dims = dimensions(type_)
    if dims is None:
        return "all (the rank is not known)"
    return ", ".join(f"{d or '?'} (dimension {k})" for k, d in enumerate(dims) if isinstance(d, str))


def _example(type_: TypeProto) -> Shape:
    """A shape that fits: as of one image where the rank is 4, else of one short sequence."""
    dims = dimensions(type_)
    if dims is None:
        return (1, 3, 224, 224)
    usual = (1, 3, 224, 224) if len(dims) == 4 else (1, *[128] * len(dims))
    return tuple(usual[k] if isinstance(d, str) else d for k, d in enumerate(dims))
