"""Target shapes computed by chains of ops: Shape -> Gather -> Add -> Concat -> Reshape.

Exporters write the target of a Reshape as such a chain. ONNX inference follows the shorter
ones; here a target is known where the shapes behind it are, by number or by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim
from memplan_cli.core.symbolic.polynomials import constant, floored
from memplan_cli.shapes.lattice import is_complete, with_shape
from memplan_cli.shapes.symbolic.rules import joined, padded, resized, tiled
from memplan_cli.shapes.symbolic.values import Walk, int_attribute, product, terms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto, NodeProto, TypeProto

    from memplan_cli.core.program import Dim, Shape


def shapes_of_targets(
    model: ModelProto, rules: Mapping[str, Rule] | None = None
) -> dict[str, TypeProto]:
    """Return types, better than the model's own, of what is shaped by a computed target."""
    graph, rules = model.graph, RULES if rules is None else rules
    if not any(node.op_type in rules for node in graph.node):
        return {}
    types = {v.name: v.type for v in (*graph.output, *graph.value_info, *graph.input)}
    if all(
        is_complete(types[node.output[0]])
        for node in graph.node
        if node.op_type in rules and node.output and node.output[0] in types
    ):
        return {}
    walk = Walk.over(graph, types)
    found: dict[str, TypeProto] = {}
    for node in graph.node:
        if not node.output or node.domain not in ("", "ai.onnx"):
            continue
        name = node.output[0]
        target = rules.get(node.op_type)
        kind = types.get(name)
        if target is not None and kind is not None and not is_complete(kind):
            shape = target(walk, node)
            if shape is not None and None not in shape:
                found[name] = types[name] = with_shape(kind, shape)
        walk.follow(node)
    return found


def _reshape_target(walk: Walk, node: NodeProto) -> Shape | None:
    """Return a Reshape's shape: 0 copies a dim, -1 takes what is left."""
    known, shape = walk.value(node, 1), walk.shape(node.input[0])
    if known is None:
        return None
    dims = list(known.elements)
    if not int_attribute(node, "allowzero", 0):
        for at, dim in enumerate(dims):
            if dim == 0:
                dims[at] = shape[at] if shape is not None and at < len(shape) else None
    if -1 in dims:
        rest = [dim for dim in dims if dim != -1]
        dims[dims.index(-1)] = None if shape is None else _quotient(shape, rest)
    return tuple(dims)


def _quotient(whole: Shape, parts: Sequence[Dim]) -> Dim:
    """Divide one product of dims by another, where that leaves a product."""
    if None in whole or None in parts:
        return None
    left = list(whole)
    divisors = []
    for part in parts:
        if isinstance(part, str) and part in left:
            left.remove(part)
        else:
            divisors.append(part)
    top, bottom = terms_of(product(left)), constant(terms_of(product(divisors)))
    if not bottom or any(value % bottom for value in top.values()):
        return None
    return as_dim(floored(top, bottom))


def _expand_target(walk: Walk, node: NodeProto) -> Shape | None:
    known, shape = walk.value(node, 1), walk.shape(node.input[0])
    if known is None or shape is None:
        return None
    rank = max(len(shape), len(known.elements))
    a = (1,) * (rank - len(shape)) + shape
    b = (1,) * (rank - len(known.elements)) + known.elements
    return tuple(
        y if x == 1 else x if y in (1, x) else None for x, y in zip(a, b, strict=True)
    )


def _filled_target(walk: Walk, node: NodeProto) -> Shape | None:
    known = walk.value(node, 0)
    return None if known is None else known.elements


Rule = Callable[["Walk", "NodeProto"], "Shape | None"]
"""From a node, and what is known above it, to the shape of its first result."""

RULES: Mapping[str, Rule] = {
    "Reshape": _reshape_target,
    "Expand": _expand_target,
    "ConstantOfShape": _filled_target,
    "Concat": joined,
    "Pad": padded,
    "Resize": resized,
    "Tile": tiled,
    "Upsample": resized,
}
"""The rule of each operator whose result is shaped by the values of an input."""
