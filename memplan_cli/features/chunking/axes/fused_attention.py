"""ONNX Runtime's fused attention: batches, heads of keys with their queries, query rows.

An operator that projects its queries and keys itself, or packs them in one tensor, has its
weights or its input in three parts, of which a piece would need a range each: it is split by
batches alone. Where rows are masked by their place, a piece of rows would count from its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT
from memplan_cli.features.chunking.axes.terms import Edit, Part, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.terms import (
        Dims,
        Editor,
        Node,
        Range,
        Rule,
        Split,
    )

_QUERY, _KEY, _VALUE = 0, 1, 2


def _broadcast(shape: Dims | None, axis: int, scale: int = 1) -> Part | None:
    """Return an axis of batch, heads, rows, keys in a bias that is broadcast to them."""
    return Part(axis, scale) if shape is not None and shape[axis] > 1 else None


def _whole(count: int, at: Mapping[int, Part | None], node: Node) -> Split:
    """Return a split by batches, each of whose results has them first."""
    makes = {place: Part(0) for place, shape in enumerate(node.outputs) if shape}
    return node.split(count, at, makes)


def _attention(node: Node) -> tuple[Split, ...]:
    """Split the operator that projects by batches; past keys and values lie in one tensor."""
    read, mask = node.shape(_QUERY) or (0,), node.shape(3)
    if mask is not None and mask[0] != read[0]:
        return ()
    reads = {_QUERY: Part(0), 3: Part(0), 4: Part(1), 5: _broadcast(node.shape(5), 0)}
    makes = {0: Part(0), 1: Part(1)}
    return (node.split(read[0], reads, makes),)


def _multi_head(node: Node) -> tuple[Split, ...]:
    query, key, value = (node.shape(at) for at in (_QUERY, _KEY, _VALUE))
    if query is None or _mask_is_packed(node):
        return ()
    reads = {at: Part(0) for at in (_QUERY, _KEY, _VALUE, 4, 6, 7)}
    samples = _whole(query[0], {**reads, 5: _broadcast(node.shape(5), 0)}, node)
    if len(query) != 3 or key is None or value is None or node.shape(9) is not None:
        return (samples,)
    return samples, *_multi_heads(node, query, key, value), *_rows(node, query)


def _mask_is_packed(node: Node) -> bool:
    """Whether a mask of lengths has more than one for each batch."""
    mask, query = node.shape(4), node.shape(_QUERY) or (0,)
    return mask is not None and mask[0] != query[0]


def _multi_heads(node: Node, query: Dims, key: Dims, value: Dims) -> tuple[Split, ...]:
    """Split along the heads; a bias is that of queries, of keys and of values in a row."""
    heads = node.integer("num_heads", 0)
    if heads < 1 or query[2] % heads or node.shape(3) is not None:
        return ()
    beside = {
        at: Part(2, shape[2] // heads) if len(shape) == 3 else Part(1)
        for at, shape in ((_QUERY, query), (_KEY, key), (_VALUE, value))
    }
    bias = _broadcast(node.shape(5), 1)
    makes = {0: Part(2, node.made[2] // heads), 1: Part(1), 2: Part(1), 3: Part(1)}
    return (node.split(heads, {**beside, 5: bias, 6: Part(1), 7: Part(1)}, makes),)


def _rows(node: Node, query: Dims) -> tuple[Split, ...]:
    """Split along the query rows, where none is masked by its place."""
    if node.integer("unidirectional", 0):
        return ()
    mask = node.shape(4) or ()
    own = Part(1) if len(mask) == 3 and mask[1] > 1 else None
    reads = {_QUERY: Part(1), 4: own, 5: _broadcast(node.shape(5), 2)}
    return (node.split(query[1], reads, {0: Part(1), 3: Part(2)}, Role.QUERIES),)


def _grouped(node: Node) -> tuple[Split, ...]:
    """Split by batches and by heads of keys, each with its group of queries."""
    query, key = node.shape(_QUERY), node.shape(_KEY)
    heads, shared = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    if query is None or not shared or heads % shared:
        return ()
    own = {at: Part(0) for at in (_QUERY, _KEY, _VALUE, 3, 4, 5)}
    places = node.shape(9)
    own |= {9: Part(0)} if places and places[0] == query[0] else {}
    samples = _whole(query[0], {**own, 10: _broadcast(node.shape(10), 0)}, node)
    if key is None:
        return (samples,)
    group = heads // shared
    width = query[2] // heads
    reads = {_QUERY: Part(2, group * width), _KEY: Part(2, width), _VALUE: Part(2, width)}
    reads |= {3: Part(1), 4: Part(1), 11: Part(0, group)}
    bias = _broadcast(node.shape(10), 1, group)
    makes = {0: Part(2, group * width), 1: Part(1), 2: Part(1), 3: Part(1, group)}
    return samples, node.split(shared, {**reads, 10: bias}, makes)


def _fewer_heads(node: Node, split: Split, piece: Range) -> Edit:
    """Say how many heads a piece has."""
    part, count = split.outputs[0], piece[1] - piece[0]
    if part is None or part.axis != 2:
        return Edit()
    if node.op.type == "MultiHeadAttention":
        return Edit({"num_heads": count})
    group = node.integer("num_heads", 0) // node.integer("kv_num_heads", 1)
    return Edit({"num_heads": count * group, "kv_num_heads": count})


RULES: Mapping[str, Rule] = {
    f"{MICROSOFT}.Attention": _attention,
    f"{MICROSOFT}.GroupQueryAttention": _grouped,
    f"{MICROSOFT}.MultiHeadAttention": _multi_head,
}

EDITS: Mapping[str, Editor] = {
    f"{MICROSOFT}.{kind}": _fewer_heads
    for kind in ("GroupQueryAttention", "MultiHeadAttention")
}
