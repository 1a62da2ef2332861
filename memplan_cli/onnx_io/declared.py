"""The types that a graph declares for its values, and whether any are left to infer."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import canonical_dim
from memplan_cli.onnx_io.types import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import GraphProto, ValueInfoProto

    from memplan_cli.core.program import Program, Shape

Facts = tuple[str, "Shape | None"]
"""A value's dtype in words, and its dims as far as they are known."""

UNKNOWN: Facts = ("unknown", None)


def declared_types(graph: GraphProto) -> dict[str, Facts]:
    """Return what a graph, subgraphs left out, declares of its values, by name.

    Where a value is declared twice, as an input counts before as a value, and that before
    as an output.
    """
    read: dict[bytes, Facts] = {}
    found: dict[str, Facts] = {}
    for value in (*graph.output, *graph.value_info, *graph.input):
        kind = value.type
        # Large graphs have few types, and to read one, each dim becomes an object.
        text = kind.SerializeToString()
        facts = read.get(text)
        if facts is None:
            facts = read[text] = (type_name(kind), read_shape(value))
        found[value.name] = facts
    return found


def read_shape(value: ValueInfoProto) -> Shape | None:
    """Return a tensor type's dims: numbers, canonical expressions, None where unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value")
        else canonical_dim(dim.dim_param)
        if dim.dim_param
        else None
        for dim in tensor.shape.dim
    )


def declares_enough(graph: GraphProto, types: Mapping[str, Facts]) -> bool:
    """Whether what a graph declares could be all: as many values as nodes, all in numbers."""
    # Values of one type share their facts: each is looked at once.
    kinds = {id(facts): facts for facts in types.values()}
    return len(types) >= len(graph.node) and all(map(_is_fixed, kinds.values()))


def leaves_nothing_to_infer(program: Program) -> bool:
    """Whether every value has a dtype, and numbers for dims, and no op has subgraphs."""
    kinds = set(map(itemgetter(1, 2), program.vars.values()))
    return all(map(_is_fixed, kinds)) and not any(op.bodies for op in program.body.ops)


def _is_fixed(facts: Facts) -> bool:
    dtype, shape = facts
    return (
        dtype != UNKNOWN[0]
        and shape is not None
        and all(isinstance(dim, int) and dim >= 0 for dim in shape)
    )
