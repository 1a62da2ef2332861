"""Attention: batches, heads and query rows; keys and values are read whole by each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.features.chunking.axes.terms import Causal, Edit, Part, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.terms import Editor, Node, Range, Rule, Split

_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = 3, 4, 5, 6
_PRESENT_KEY, _PRESENT_VALUE, _SCORES = 1, 2, 3


def _attention(node: Node) -> tuple[Split, ...]:
    query, key = node.shape(0), node.shape(1)
    if query is None or key is None:
        return ()
    return (_batches(node, query[0]), *_heads(node), *_queries(node))


def _batches(node: Node, count: int) -> Split:
    first = Part(0)
    reads = {at: first for at in (0, 1, 2, _PAST_KEY, _PAST_VALUE, _LENGTHS) if node.shape(at)}
    makes = {at: first for at, shape in enumerate(node.outputs) if shape}
    return node.split(count, {**reads, _MASK: _of_mask(node, 0, 1)}, makes)


def _heads(node: Node) -> tuple[Split, ...]:
    """Split along the heads of keys; several heads of queries may share one of them."""
    query, key = _heads_of(node)
    if not key or query % key:
        return ()
    group = query // key
    reads: dict[int, Part | None] = {
        at: Part(1) for at in (_PAST_KEY, _PAST_VALUE) if node.shape(at)
    }
    shapes = [node.shape(at) or () for at in (0, 1, 2)]
    if len(shapes[0]) == 4:
        reads |= {0: Part(1, group), 1: Part(1), 2: Part(1)}
        out = Part(1, group)
    else:
        reads |= {0: Part(2, shapes[0][2] // key)}
        reads |= {at: Part(2, shapes[at][2] // key) for at in (1, 2)}
        out = Part(2, node.made[2] // key)
    reads[_MASK] = _of_mask(node, 1, group)
    makes = {0: out, _PRESENT_KEY: Part(1), _PRESENT_VALUE: Part(1), _SCORES: Part(1, group)}
    return (node.split(key, reads, makes),)


def _heads_of(node: Node) -> tuple[int, int]:
    query, key = node.shape(0) or (), node.shape(1) or ()
    if len(query) == 4:
        return query[1], key[1]
    return node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)


def _queries(node: Node) -> tuple[Split, ...]:
    """Split along the query rows; a causal mask of the operator's own counts from the first.

    A piece is given that mask as one of its rows, where it takes the place of no other, no keys
    of earlier runs shift it, and nobody reads the masked scores.
    """
    query, is_causal = node.shape(0) or (), node.integer("is_causal", 0)
    if is_causal and any(map(node.shape, (_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS))):
        return ()
    if is_causal and any(node.outputs[_SCORES:]):
        return ()
    rows = len(query) - 2
    reads = {0: Part(rows), _MASK: _of_mask(node, 2, 1)}
    makes = {0: Part(rows), _SCORES: Part(2)}
    return (node.split(query[rows], reads, makes, Role.QUERIES),)


def _of_mask(node: Node, axis: int, scale: int) -> Part | None:
    """Return an axis of batch, heads, queries, keys in a mask that is broadcast to them."""
    mask = node.shape(_MASK)
    at = axis - (4 - len(mask)) if mask else -1
    return Part(at, scale) if mask and at >= 0 and mask[at] > 1 else None


def _piece(node: Node, split: Split, piece: Range) -> Edit:
    """Say what a piece's sizes and mask are."""
    if split.role is Role.QUERIES and node.integer("is_causal", 0):
        keys = (node.shape(1) or ())[-2]
        return Edit({"is_causal": 0}, masks={_MASK: Causal(piece, keys)})
    return _fewer_heads(node, split, piece)


def _fewer_heads(node: Node, split: Split, piece: Range) -> Edit:
    """Say how many heads a piece has, where they lie side by side in one axis."""
    query, key = _heads_of(node)
    part = split.inputs[1]
    if part is None or part.axis != 2 or len(node.shape(0) or ()) == 4:
        return Edit()
    count = piece[1] - piece[0]
    return Edit({"q_num_heads": count * (query // key), "kv_num_heads": count})


RULES: Mapping[str, Rule] = {"Attention": _attention}

EDITS: Mapping[str, Editor] = {"Attention": _piece}
