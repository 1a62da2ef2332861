"""Attention: batches, heads, and query rows.

    query rows of [B, H, Q, D]     query, mask and output are sliced; key and value are whole
    heads                          everything is sliced; masks that are broadcast stay whole

A head of keys and values is sliced together with its group of query heads. ONNX Runtime's fused
operators have no rules: their scores never leave the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.features.chunking.axes.split import AxisMap, ChunkEdit, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.split import (
        Dims,
        EditRule,
        Node,
        Range,
        Split,
        SplitRule,
    )

# Positions of inputs and outputs.
_QUERY, _KEY, _VALUE, _MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = 0, 1, 2, 3, 4, 5, 6
_SCORES = 3  # the outputs before are the result, and the keys and values with the past ones

_BATCH_AXIS, _HEAD_AXIS, _ROW_AXIS = 0, 1, 2
"""Axes of ``[batch, heads, query rows, keys]``: of the scores, and of a mask before broadcasting."""


def _attention_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along batches, heads and query rows."""
    query = node.required_shape(_QUERY)
    return (
        _attention_batch_split(node, query[0]),
        *_attention_head_splits(node),
        *_attention_query_splits(node, query),
    )


def _attention_batch_split(node: Node, count: int) -> Split:
    """Return the split along ``count`` batches; the mask may lack the batch axis."""
    batched = (_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _LENGTHS)
    inputs = {position: AxisMap(0) for position in batched if node.input_shape(position)}
    outputs = {position: AxisMap(0) for position, shape in enumerate(node.outputs) if shape}
    return node.split(count, {**inputs, _MASK: _mask_axis_map(node, _BATCH_AXIS)}, outputs)


def _attention_head_splits(node: Node) -> tuple[Split, ...]:
    """Return the split along the heads of keys; none unless each has equally many query heads.

    A head of keys is sliced together with the group of query heads that reads it.
    """
    query_heads, key_heads = _head_counts(node)
    if not key_heads or query_heads % key_heads:
        return ()
    query_heads_per_key_head = query_heads // key_heads
    inputs: dict[int, AxisMap | None] = {
        position: _axis_of_heads(shape, key_heads)
        for position in (_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE)
        if (shape := node.input_shape(position))
    }
    inputs[_MASK] = _mask_axis_map(node, _HEAD_AXIS, scale=query_heads_per_key_head)
    outputs = {
        position: _axis_of_heads(shape, key_heads)
        for position, shape in enumerate(node.outputs)  # scores are [B, H, Q, keys]
        if shape  # not omitted
    }
    return (node.split(extent=key_heads, inputs=inputs, outputs=outputs),)


def _axis_of_heads(shape: Dims, key_heads: int) -> AxisMap:
    """Return the axis of the heads of a tensor, of keys or of queries, for a split of ``key_heads`` elements.

    The axis is 1 of ``[B, H, S, D]``, and the last of ``[B, S, H * D]``. With 8 query heads and 2 key heads, an
    element of the split is 4 query heads.
    """
    axis = 1 if len(shape) == 4 else 2
    return AxisMap(axis, scale=shape[axis] // key_heads)


def _head_counts(node: Node) -> tuple[int, int]:
    """Return the number of query heads and of key heads; 0 if unknown."""
    query, key = node.required_shape(_QUERY), node.required_shape(_KEY)
    if len(query) == 4:
        return query[1], key[1]
    return node.int_attribute("q_num_heads", 0), node.int_attribute("kv_num_heads", 0)


def _attention_query_splits(node: Node, query: Dims) -> tuple[Split, ...]:
    """Return the split along the query rows; none if the attention is causal.

    The rows are axis 2 of a query ``[B, H, Q, D]``, axis 1 of a query ``[B, Q, H * D]``, and the same
    axis of the output. With ``is_causal`` the kernel counts rows from the first one of its input, so a
    chunk would get the mask of the first rows.
    """
    if node.int_attribute("is_causal", 0):
        return ()
    row_axis = len(query) - 2
    inputs = {_QUERY: AxisMap(row_axis), _MASK: _mask_axis_map(node, _ROW_AXIS)}
    outputs = {0: AxisMap(row_axis), _SCORES: AxisMap(_ROW_AXIS)}
    return (node.split(query[row_axis], inputs, outputs, Role.QUERIES),)


def _mask_axis_map(node: Node, axis: int, scale: int = 1) -> AxisMap | None:
    """Return the mask's slice for an axis of ``[batch, heads, query rows, keys]``.

    A mask of lower rank lacks the first axes. ``scale`` is the number of elements along the axis
    for each element of the split. None if the mask is omitted or broadcast along the axis.
    """
    mask = node.input_shape(_MASK)  # None only for an omitted mask
    mask_axis = axis - (4 - len(mask)) if mask else -1
    is_sliced = mask and mask_axis >= 0 and mask[mask_axis] > 1
    return AxisMap(mask_axis, scale) if is_sliced else None


def _attention_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return the head-count attributes of the node for one chunk; empty if it needs none.

    A node has these attributes for keys ``[batch, rows, heads * size]``. If such keys are sliced along
    axis 2, ``chunk`` is a range of key heads. Keys ``[batch, heads, rows, size]`` are never sliced along
    axis 2, and splits along other axes leave the number of heads as it is.
    """
    keys_axis = split.inputs[_KEY]
    if keys_axis is None or keys_axis.axis != 2:
        return ChunkEdit()
    query_heads, key_heads = _head_counts(node)
    chunk_key_heads = chunk[1] - chunk[0]
    chunk_query_heads = chunk_key_heads * (query_heads // key_heads)
    return ChunkEdit({"q_num_heads": chunk_query_heads, "kv_num_heads": chunk_key_heads})


RULES: Mapping[str, SplitRule] = {"Attention": _attention_splits}

EDITS: Mapping[str, EditRule] = {"Attention": _attention_edit}
