"""Attention over caches with fewer heads than queries, without a copy for each query's head.

Exporters write grouped-query attention as keys that are repeated, ``Unsqueeze``, ``Expand``,
``Reshape``, before they are multiplied. A MatMul repeats them itself where queries have an axis
more: each product is of the same two matrices, so its bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.features.kv_cache.graph import Index, attribute
from memplan_cli.onnx_io.graph_editor import GraphEditor
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import ModelProto, NodeProto

_RANK = 4

_HEADS = 1
"""The axis of heads in a cache."""

_APART = 2
"""Heads from which each has a product of its own: of one, the runtime makes a product of all
queries, which rounds otherwise."""

_SWAP = (0, 1, 3, 2)

_NUMBERS = ("Identity", "Add", "Unsqueeze", "Gather", "Squeeze", "Slice", "Cast")
"""What makes one number of a shape; where they make more, a rank does not fit."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    """Keys or values of ``heads`` heads of ``size``, repeated ``times`` times, and a product."""

    unsqueezed: str
    times: int
    heads: int
    size: int
    moves: tuple[NodeProto, ...]
    """Between the repeated heads and the product, on the product's right."""
    product: NodeProto
    scale: NodeProto | None = None
    """What alone reads the product, and multiplies or divides it by one number."""


def without_repeats(model: ModelProto) -> ModelProto:
    """Return a copy of a model whose products repeat heads of caches themselves.

    The model itself comes back where there is nothing of the kind.
    """
    index = Index.of(model.graph)
    readers: dict[str, list[NodeProto]] = {}
    for node in index.nodes:
        for name in reads(node):
            readers.setdefault(name, []).append(node)
    found = list(_repeats(model, index, readers))
    if not found:
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    return _rewritten(copy, found)


def _repeats(
    model: ModelProto, index: Index, readers: dict[str, list[NodeProto]]
) -> Iterator[_Repeat]:
    dims = _cache_dims(model)
    for node in index.nodes:
        if node.op_type != "Slice" or node.input[0] not in dims:
            continue
        heads, size = dims[node.input[0]]
        for unsqueeze in readers.get(node.output[0], ()):
            if unsqueeze.op_type != "Unsqueeze" or _axes(index, unsqueeze) != (_HEADS + 1,):
                continue
            repeat = _expanded(unsqueeze, (heads, size), index, readers)
            if repeat is not None:
                yield repeat


def _expanded(
    unsqueeze: NodeProto,
    dims: tuple[int, int],
    index: Index,
    readers: dict[str, list[NodeProto]],
) -> _Repeat | None:
    """Return what an Unsqueeze leads to if that is one product and nothing else."""
    expand = _only(readers, unsqueeze.output[0], "Expand")
    reshape = expand and _only(readers, expand.output[0], "Reshape")
    if expand is None or reshape is None:
        return None
    heads, size = dims
    if heads < _APART:
        return None
    times = _elements(index, expand.input[1])[2:3]
    joined = _elements(index, reshape.input[1])
    if not times or times[0] is None or times[0] < 2 or len(joined) != _RANK:
        return None
    if joined[_HEADS] not in (heads * times[0], -1):
        return None
    moves, product = _to_product(reshape.output[0], index, readers)
    if product is None:
        return None
    scale = _scaled(product.output[0], index, readers)
    return _Repeat(unsqueeze.output[0], times[0], heads, size, moves, product, scale)


def _scaled(name: str, index: Index, readers: dict[str, list[NodeProto]]) -> NodeProto | None:
    """Return the one reader of a product if that is a scale.

    The runtime makes one operator of both, which rounds otherwise than the two: they stay
    side by side.
    """
    found = readers.get(name, [])
    if len(found) != 1 or found[0].op_type not in ("Mul", "Div"):
        return None
    by_one = len(index.constants.get(found[0].input[1], ())) == 1
    return found[0] if found[0].input[0] == name and by_one else None


def _to_product(
    name: str, index: Index, readers: dict[str, list[NodeProto]]
) -> tuple[tuple[NodeProto, ...], NodeProto | None]:
    """Follow repeated heads to the product that reads them, through moves that can be redone."""
    moves: list[NodeProto] = []
    while True:
        found = readers.get(name, [])
        if len(found) != 1:
            return (), None
        node = found[0]
        if node.op_type == "MatMul" and node.input[1] == name != node.input[0]:
            return tuple(moves), node
        swaps = node.op_type == "Transpose" and attribute(node, "perm") == _SWAP
        scales = node.op_type in ("Mul", "Div") and node.input[0] == name
        if not swaps and not (scales and len(index.constants.get(node.input[1], ())) == 1):
            return (), None
        moves.append(node)
        name = node.output[0]


def _rewritten(model: ModelProto, found: Sequence[_Repeat]) -> ModelProto:
    graph = model.graph
    edit = GraphEditor(model)
    nodes = {node.output[0]: node for node in graph.node}

    def made(kind: str, inputs: Sequence[str], like: str, **attributes: object) -> str:
        return edit.made(kind, inputs, f"{like}.grouped", **attributes)

    def numbers(like: str, values: Sequence[int]) -> str:
        return edit.constant(f"{like}.grouped", values)

    for each in found:
        product = nodes[each.product.output[0]]
        left, output, right = product.input[0], product.output[0], each.unsqueezed
        for move in each.moves:
            if move.op_type == "Transpose":
                right = made("Transpose", [right], right, perm=[0, 1, 2, 4, 3])
            else:
                right = made(move.op_type, [right, move.input[1]], right)
        rows = made("Shape", [left], left, start=2, end=4)
        split = numbers(left, [0, each.heads, each.times])
        apart = made("Reshape", [left, made("Concat", [split, rows], left, axis=0)], left)
        multiplied = made("MatMul", [apart, right], output)
        if each.scale is not None:
            scale = nodes[each.scale.output[0]]
            output = scale.output[0]
            multiplied = made(scale.op_type, [multiplied, scale.input[1]], output)
            graph.node.remove(scale)
        sizes = made("Shape", [multiplied], output, start=3, end=5)
        joined = numbers(output, [0, each.heads * each.times])
        target = made("Concat", [joined, sizes], output, axis=0)
        graph.node.remove(product)
        edit.node("Reshape", [multiplied, target], output)
    edit.set_nodes(graph.node)
    return model


def _cache_dims(model: ModelProto) -> dict[str, tuple[int, int]]:
    """Return heads and their size of the graph's outputs that may be caches."""
    found = {}
    for value in model.graph.output:
        shape = value.type.tensor_type.shape.dim
        if len(shape) == _RANK and shape[1].dim_value and shape[3].dim_value:
            found[value.name] = shape[1].dim_value, shape[3].dim_value
    return found


def _only(readers: dict[str, list[NodeProto]], name: str, kind: str) -> NodeProto | None:
    found = readers.get(name, [])
    fits = len(found) == 1 and found[0].op_type == kind and found[0].domain in STANDARD_DOMAINS
    return found[0] if fits else None


def _axes(index: Index, node: NodeProto) -> tuple[int | float, ...]:
    return index.constants.get(node.input[1], ()) if len(node.input) > 1 else ()


def _elements(index: Index, name: str) -> tuple[int | None, ...]:
    """Return the elements of a shape that are constants, and None for each of the others."""
    if name in index.constants:
        return tuple(int(value) for value in index.constants[name])
    node = index.made_by(name)
    kind = "" if node is None else node.op_type
    if node is None:
        found: tuple[int | None, ...] = ()
    elif kind == "Concat":
        parts = [_elements(index, part) for part in node.input]
        found = tuple(e for part in parts for e in part) if all(parts) else ()
    elif kind == "Shape" and (span := attribute(node, "end")):
        found = (None,) * (span[0] - (attribute(node, "start") or (0,))[0])
    elif kind == "Where":
        found = _elements(index, node.input[2])
    elif kind in _NUMBERS:
        found = (None,)
    else:
        one = kind == "Reshape" and index.constants.get(node.input[1], ()) in ((-1,), (1,))
        found = (None,) if one else ()
    return found
