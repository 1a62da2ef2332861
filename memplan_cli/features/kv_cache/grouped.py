"""Grouped-query attention without copies of the cached heads.

Exporters repeat keys and values for each query head of a group (``Unsqueeze``, ``Expand``, ``Reshape``)
before a MatMul. A MatMul repeats its right operand itself if the queries have one more axis:

    MatMul(q[B, G*R, S, D], repeat(k)[B, G*R, D, T])  ->  MatMul(q[B, G, R, S, D], k[B, G, 1, D, T])

Each product has the same two matrices as before, so its bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.features.kv_cache.find import GraphIndex, attribute
from memplan_cli.onnx_io.graph_editor import GraphEditor, consumers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import ModelProto, NodeProto

_RANK = 4

_HEADS = 1
"""The axis of heads in a cache of rank `_RANK`."""

_SWAP = (0, 1, 3, 2)
"""The Transpose of keys before a product."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    """Repeated keys or values, and the product that reads them.

    Attributes:
        unsqueezed: the keys or values before the repetition, ``[B, heads, 1, ..]``.
        times: how often each head is repeated.
        heads: number of heads in the cache.
        moves: the Transposes and scalings between the repetition and the product.
        product: the MatMul, whose right operand is repeated.
        scale: the only consumer of the product, if that scales it by one number.
    """

    unsqueezed: str
    times: int
    heads: int
    moves: tuple[NodeProto, ...]
    product: NodeProto
    scale: NodeProto | None = None


def without_repeated_heads(model: ModelProto) -> ModelProto:
    """Return a copy of a model without the nodes that repeat cached heads for each query head.

    The MatMuls that read the repeated heads broadcast each cached head instead. Returns the model
    itself if it repeats no heads.
    """
    index = GraphIndex.of(model.graph)
    repeats = list(_repeats(model, index, consumers(index.nodes)))
    if not repeats:
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    _rewrite(copy, repeats)
    return copy


def _repeats(
    model: ModelProto, index: GraphIndex, readers: dict[str, list[NodeProto]]
) -> Iterator[_Repeat]:
    """Yield the places where each key or value head of a cache is repeated, for a group of query heads.

    Such nodes follow each other: Slice, Unsqueeze, Expand, Reshape. The Slice cuts the valid part from the
    cache, a graph output. `_repeat_after` checks the nodes behind the Unsqueeze.
    """
    new_axes = (_HEADS + 1,)  # of the Unsqueeze: the axis behind that of the heads
    head_counts = _heads_of_outputs(model)
    for node in index.nodes:
        if node.op_type != "Slice" or node.input[0] not in head_counts:
            continue
        heads = head_counts[node.input[0]]
        for reader in readers.get(node.output[0], ()):
            # In the opsets here, 24 or later, the axes of an Unsqueeze are its input 1.
            if (
                reader.op_type != "Unsqueeze"
                or index.constants.get(reader.input[1]) != new_axes
            ):
                continue
            repeat = _repeat_after(reader, heads, index, readers)
            if repeat is not None:
                yield repeat


def _repeat_after(
    unsqueeze: NodeProto,
    heads: int,
    index: GraphIndex,
    readers: dict[str, list[NodeProto]],
) -> _Repeat | None:
    """Return the repetition of heads that begins with ``unsqueeze``; None if none does.

    The caller has checked that the Unsqueeze inserts axis 2 into keys or values with ``heads`` heads. The next
    two nodes repeat each head, and a MatMul reads the result. ``readers``: consumers by value.

        Unsqueeze   [batch, heads, 1, length, size]
        Expand      [batch, heads, times, length, size]
        Reshape     [batch, heads * times, length, size]
    """
    # A single head stays repeated: without that, ONNX Runtime would compute one large product of all
    # queries, which rounds differently than one product for each query head.
    if heads < 2:
        return None
    expand = _only(readers, unsqueeze.output[0], "Expand")
    reshape = expand and _only(readers, expand.output[0], "Reshape")
    if expand is None or reshape is None:
        return None
    expanded = _elements(index, expand.input[1])
    joined = _elements(index, reshape.input[1])
    if len(expanded) != _RANK + 1 or len(joined) != _RANK:
        return None
    # Only these two elements are checked: exporters compute the others, such as the batch, at run time.
    times, joined_heads = expanded[_HEADS + 1], joined[_HEADS]
    # In the shape of a Reshape, -1 is the dim that follows from the others.
    if times is None or times < 2 or joined_heads not in (heads * times, -1):
        return None
    path = _path_to_product(reshape.output[0], index, readers)
    if path is None:
        return None
    moves, product = path  # Transposes and scalings before the MatMul, and the MatMul
    # A Mul or Div right behind the MatMul is rewritten with it, or results would be rounded differently.
    scale = _scaling_of_product(product.output[0], index, readers)
    return _Repeat(unsqueeze.output[0], times, heads, moves, product, scale)


def _scaling_of_product(
    product: str, index: GraphIndex, readers: dict[str, list[NodeProto]]
) -> NodeProto | None:
    """Return the node that scales a product by one number, if that is the product's only consumer.

    ONNX Runtime fuses a MatMul and such a node right behind it into one operator. It rounds differently
    than the two nodes do, so the rewritten graph must have the scaling right behind the MatMul too.
    """
    nodes = readers.get(product, [])
    if len(nodes) == 1 and _scales_by_one_number(nodes[0], product, index):
        return nodes[0]
    return None


def _scales_by_one_number(node: NodeProto, name: str, index: GraphIndex) -> bool:
    """Return whether a node multiplies or divides the value of a name by a constant scalar."""
    if node.op_type not in ("Mul", "Div") or node.input[0] != name:
        return False
    return len(index.constants.get(node.input[1], ())) == 1


def _path_to_product(
    name: str, index: GraphIndex, readers: dict[str, list[NodeProto]]
) -> tuple[tuple[NodeProto, ...], NodeProto] | None:
    """Return the nodes between repeated heads and the MatMul that reads them, and this MatMul.

    ``name`` is the value with the repeated heads, which must end up as the right operand only. The
    nodes between may be Transposes of the last two axes and scalings by one number. None if there
    are others, or if a value on the path has several consumers.
    """
    moves: list[NodeProto] = []
    while True:
        nodes = readers.get(name, [])
        if len(nodes) != 1:
            return None
        node = nodes[0]
        if node.op_type == "MatMul" and node.input[1] == name != node.input[0]:
            return tuple(moves), node
        swaps = node.op_type == "Transpose" and attribute(node, "perm") == _SWAP
        if not swaps and not _scales_by_one_number(node, name, index):
            return None
        moves.append(node)
        name = node.output[0]


def _rewrite(model: ModelProto, repeats: Sequence[_Repeat]) -> None:
    """Replace products with repeated heads by products that broadcast them, in the main graph, in place.

        before  output = MatMul(left[B, heads * times, ..], repeat(right[B, heads, 1, ..]))
        after   output = Reshape(MatMul(Reshape(left)[B, heads, times, ..], right[B, heads, 1, ..]))

    A node that scales the MatMul's result is replaced too: by one before the last Reshape. The nodes
    that repeated the heads have no consumer then, and are dropped.
    """
    edit = GraphEditor(model)
    replaced: set[str] = set()  # results of the nodes that are replaced
    for repeat in repeats:
        grouped = _add_grouped_product(edit, repeat)
        last = repeat.product if repeat.scale is None else repeat.scale
        output, query_heads = last.output[0], repeat.heads * repeat.times
        # From [B, heads, times, rows, columns], of rank 5, to [B, query_heads, rows, columns].
        _add_reshape(edit, grouped, (query_heads,), rank=_RANK + 1, result=output)
        replaced |= {repeat.product.output[0], output}
    # The added nodes are not in the graph yet: `set_nodes` puts them in order, and drops unused ones.
    edit.set_nodes([node for node in model.graph.node if node.output[0] not in replaced])


def _add_grouped_product(edit: GraphEditor, repeat: _Repeat) -> str:
    """Add the MatMul with broadcast heads, and its scaling; return the result, ``[B, heads, times, ..]``.

    The result has a new name. `_rewrite` reshapes it to the result of the MatMul with repeated heads.
    """
    left = repeat.product.input[0]  # [B, heads * times, ..]
    grouped_left = _add_reshape(edit, left, (repeat.heads, repeat.times), rank=_RANK)
    right = _unrepeated_operand(edit, repeat)  # [B, heads, 1, ..]
    result = _add_node(edit, "MatMul", [grouped_left, right], like=repeat.product.output[0])
    if (scale := repeat.scale) is None:
        return result
    return _add_node(edit, scale.op_type, [result, scale.input[1]], like=scale.output[0])


def _unrepeated_operand(edit: GraphEditor, repeat: _Repeat) -> str:
    """Return the right operand of a MatMul without the repetition of its heads, ``[B, heads, 1, ..]``.

    Adds the Transposes and scalings that the model applies to the repeated heads (``repeat.moves``).
    """
    heads = repeat.unsqueezed
    for move in repeat.moves:
        if move.op_type == "Transpose":  # swaps the last two axes, here of five
            heads = _add_node(edit, "Transpose", [heads], heads, perm=[0, 1, 2, 4, 3])
        else:  # a Mul or Div by the number in input 1
            heads = _add_node(edit, move.op_type, [heads, move.input[1]], heads)
    return heads


def _add_reshape(
    edit: GraphEditor, name: str, heads: Sequence[int], *, rank: int, result: str = ""
) -> str:
    """Add a Reshape of the value ``name`` to ``[batch, *heads, rows, columns]``, and return its result.

    The batch, and rows and columns, the last two dims, stay. ``rank`` is that of the value before. The
    result is named ``result``, or gets a fresh name if that is empty.
    """
    like = result or name
    matrix_dims = _add_node(edit, "Shape", [name], like, start=rank - 2, end=rank)
    # In the shape of a Reshape, 0 keeps the batch.
    head_dims = edit.add_constant(f"{like}.grouped", [0, *heads])
    shape = _add_node(edit, "Concat", [head_dims, matrix_dims], like, axis=0)
    if not result:
        return _add_node(edit, "Reshape", [name, shape], like)
    edit.add_named_node("Reshape", [name, shape], result)
    return result


def _add_node(
    edit: GraphEditor, op_type: str, inputs: Sequence[str], like: str, **attributes: object
) -> str:
    """Add a node whose result is named after ``like``, and return the result."""
    return edit.add_node(op_type, inputs, f"{like}.grouped", **attributes)


def _heads_of_outputs(model: ModelProto) -> dict[str, int]:
    """Return the number of heads of the graph outputs that have the shape of a cache.

    A cache is ``[batch, heads, length, head size]`` with fixed heads and head size.
    """
    heads = {}
    for value in model.graph.output:
        shape = value.type.tensor_type.shape.dim
        if len(shape) == _RANK and shape[_HEADS].dim_value and shape[3].dim_value:
            heads[value.name] = shape[_HEADS].dim_value
    return heads


def _only(readers: dict[str, list[NodeProto]], name: str, op_type: str) -> NodeProto | None:
    """Return the only consumer of a value if it is this standard operator."""
    nodes = readers.get(name, [])
    if len(nodes) != 1 or nodes[0].domain not in STANDARD_DOMAINS:
        return None
    return nodes[0] if nodes[0].op_type == op_type else None


def _elements(index: GraphIndex, name: str) -> tuple[int | None, ...]:
    """Return the elements of a shape, None for those that are not constant.

    The shape is a constant, the result of a Concat, or that of a Where (`_elements_of_where`), as exporters
    compute it. Each operand of the Concat that is not constant counts as one element. Returns an empty tuple
    for any other shape.
    """
    if name in index.constants:
        return tuple(int(value) for value in index.constants[name])
    node = index.producer_of(name)
    if node is not None and node.op_type == "Where":
        return _elements_of_where(index, node)
    if node is None or node.op_type != "Concat":
        return ()
    elements: list[int | None] = []
    for operand in node.input:
        values = index.constants.get(operand)
        elements += [None] if values is None else [int(value) for value in values]
    return tuple(elements)


def _elements_of_where(index: GraphIndex, node: NodeProto) -> tuple[int | None, ...]:
    """Return the elements of ``shape`` if a node is Where(Equal(shape, -1), 1, shape); else empty.

    PyTorch exports the shape of an Expand in this form, which equals ``shape`` if no element is -1.
    """
    # That the constants are -1 and 1 is not checked: with others the rewritten model computes other outputs, and
    # is refused when its outputs are compared with the original's (`decode_loop`).
    equal, shape = index.producer_of(node.input[0]), node.input[2]
    compares_shape = equal is not None and equal.op_type == "Equal" and shape in equal.input
    return _elements(index, shape) if compares_shape else ()
