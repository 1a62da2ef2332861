"""Attention: the standard operator and ONNX Runtime's fused ones.

All are split along batches, along heads (a head of keys and values together with its group of
query heads) and along query rows, for which keys and values stay whole:

    query rows of [B, H, Q, D]     query, mask and output are sliced; key and value are whole
    heads                          everything is sliced; masks that are broadcast stay whole

Fused operators that project queries and keys themselves, or pack them into one tensor, are
split along batches only: a chunk of heads would need three slices of one input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT
from memplan_cli.features.chunking.axes.split import AxisMap, CausalMask, ChunkEdit, Role

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

_QUERY, _KEY, _VALUE = 0, 1, 2

# Positions of the standard operator's other inputs and outputs.
_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = 3, 4, 5, 6
_PRESENT_KEY, _PRESENT_VALUE, _SCORES = 1, 2, 3


def _attention_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of the standard Attention along batches, heads and query rows."""
    query = node.input_shape(_QUERY)
    if query is None or node.input_shape(_KEY) is None:
        return ()
    return (
        _attention_batch_split(node, query[0]),
        *_attention_head_splits(node),
        *_attention_query_splits(node),
    )


def _attention_batch_split(node: Node, count: int) -> Split:
    """Return the split along ``count`` batches; the mask may lack the batch axis."""
    batched = (_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _LENGTHS)
    inputs = {position: AxisMap(0) for position in batched if node.input_shape(position)}
    outputs = {position: AxisMap(0) for position, shape in enumerate(node.outputs) if shape}
    return node.split(count, {**inputs, _MASK: _mask_axis_map(node, 0, 1)}, outputs)


def _attention_head_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the heads of keys, each with its group of query heads.

    Heads are axis 1 of ``[B, H, S, D]``, and blocks of the last axis of ``[B, S, H * D]``.
    """
    query_heads, key_heads = _head_counts(node)
    if not key_heads or query_heads % key_heads:
        return ()
    group = query_heads // key_heads
    shapes = {
        position: node.input_shape(position) or () for position in (_QUERY, _KEY, _VALUE)
    }
    inputs: dict[int, AxisMap | None] = {
        position: AxisMap(1)
        for position in (_PAST_KEY, _PAST_VALUE)
        if node.input_shape(position)
    }
    if len(shapes[_QUERY]) == 4:
        inputs |= {_QUERY: AxisMap(1, group), _KEY: AxisMap(1), _VALUE: AxisMap(1)}
        output = AxisMap(1, group)
    else:
        inputs |= {
            position: AxisMap(2, shape[2] // key_heads) for position, shape in shapes.items()
        }
        output = AxisMap(2, node.output_shape[2] // key_heads)
    inputs[_MASK] = _mask_axis_map(node, 1, group)
    outputs = {
        0: output,
        _PRESENT_KEY: AxisMap(1),
        _PRESENT_VALUE: AxisMap(1),
        _SCORES: AxisMap(1, group),
    }
    return (node.split(key_heads, inputs, outputs),)


def _head_counts(node: Node) -> tuple[int, int]:
    """Return the number of query heads and of key heads; 0 if unknown."""
    query, key = node.input_shape(_QUERY) or (), node.input_shape(_KEY) or ()
    if len(query) == 4:
        return query[1], key[1]
    return node.int_attribute("q_num_heads", 0), node.int_attribute("kv_num_heads", 0)


def _attention_query_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along the query rows.

    With ``is_causal`` the kernel counts rows from the first of its input, so each chunk gets
    the causal mask of its own rows as an input instead (`_attention_edit`). That needs a free
    mask input, no cached keys (they shift the mask), and no output of the masked scores.
    """
    query, is_causal = node.input_shape(_QUERY) or (), node.int_attribute("is_causal", 0)
    shifts_mask = (_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS)
    if is_causal and any(map(node.input_shape, shifts_mask)):
        return ()
    if is_causal and any(node.outputs[_SCORES:]):
        return ()
    rows = len(query) - 2
    inputs = {_QUERY: AxisMap(rows), _MASK: _mask_axis_map(node, 2, 1)}
    outputs = {0: AxisMap(rows), _SCORES: AxisMap(2)}
    return (node.split(query[rows], inputs, outputs, Role.QUERIES),)


def _mask_axis_map(node: Node, axis: int, scale: int) -> AxisMap | None:
    """Return the mask's slice for an axis of ``[batch, heads, queries, keys]``.

    None if the mask is omitted or broadcast along the axis.
    """
    mask = node.input_shape(_MASK)
    mask_axis = axis - (4 - len(mask)) if mask else -1
    is_sliced = mask and mask_axis >= 0 and mask[mask_axis] > 1
    return AxisMap(mask_axis, scale) if is_sliced else None


def _attention_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return what a chunk has in place of ``is_causal`` or of the numbers of heads.

    A chunk of query rows of a causal attention gets a mask. A chunk of heads gets its numbers
    of heads, if these are attributes (inputs of rank 3).
    """
    if split.role is Role.QUERIES and node.int_attribute("is_causal", 0):
        keys = (node.input_shape(_KEY) or ())[-2]
        return ChunkEdit({"is_causal": 0}, masks={_MASK: CausalMask(chunk, keys)})
    query_heads, key_heads = _head_counts(node)
    keys_axis = split.inputs[_KEY]
    has_head_attributes = len(node.input_shape(_QUERY) or ()) != 4
    if keys_axis is None or keys_axis.axis != 2 or not has_head_attributes:
        return ChunkEdit()
    count = chunk[1] - chunk[0]
    return ChunkEdit(
        {"q_num_heads": count * (query_heads // key_heads), "kv_num_heads": count}
    )


# Positions of com.microsoft.Attention.
_DATA, _MASK_INDEX, _PAST, _BIAS = 0, 3, 4, 5


def _projecting_attention_splits(node: Node) -> tuple[Split, ...]:
    """Return the split of com.microsoft.Attention along batches.

    Past keys and values are one tensor ``[2, batch, ...]``; the present ones too.
    """
    data, mask = node.input_shape(_DATA) or (0,), node.input_shape(_MASK_INDEX)
    if mask is not None and mask[0] != data[0]:
        return ()  # some kinds of mask do not begin with the batch axis
    inputs = {
        _DATA: AxisMap(0),
        _MASK_INDEX: AxisMap(0),
        _PAST: AxisMap(1),
        _BIAS: _bias_axis_map(node.input_shape(_BIAS), 0),
    }
    return (node.split(data[0], inputs, {0: AxisMap(0), 1: AxisMap(1)}),)


def _bias_axis_map(shape: Dims | None, axis: int, scale: int = 1) -> AxisMap | None:
    """Return the map of a bias ``[batch, heads, queries, keys]`` along one of its axes.

    None if it is omitted or broadcast along the axis.
    """
    return AxisMap(axis, scale) if shape is not None and shape[axis] > 1 else None


# Positions of com.microsoft.MultiHeadAttention.
_MHA_BIAS, _MHA_PADDING, _MHA_SCORES_BIAS, _MHA_PAST_KEY, _MHA_PAST_VALUE = 3, 4, 5, 6, 7
_MHA_CACHE_INDIRECTION = 9


def _multi_head_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of com.microsoft.MultiHeadAttention.

    They are along batches, heads and query rows; if queries, keys or values are packed into one
    input, or with beam search (a cache indirection), along batches only.
    """
    query, key, value = (node.input_shape(position) for position in (_QUERY, _KEY, _VALUE))
    padding = node.input_shape(_MHA_PADDING)
    if query is None or (padding is not None and padding[0] != query[0]):
        return ()
    batched = (_QUERY, _KEY, _VALUE, _MHA_PADDING, _MHA_PAST_KEY, _MHA_PAST_VALUE)
    inputs: dict[int, AxisMap | None] = {position: AxisMap(0) for position in batched}
    inputs[_MHA_SCORES_BIAS] = _bias_axis_map(node.input_shape(_MHA_SCORES_BIAS), 0)
    batches = _fused_batch_split(node, query[0], inputs)
    is_packed = len(query) != 3 or key is None or value is None
    if is_packed or node.input_shape(_MHA_CACHE_INDIRECTION) is not None:
        return (batches,)
    heads = _multi_head_head_splits(
        node, {_QUERY: query, _KEY: key or (), _VALUE: value or ()}
    )
    return batches, *heads, *_multi_head_query_splits(node, query)


def _fused_batch_split(node: Node, count: int, inputs: Mapping[int, AxisMap | None]) -> Split:
    """Return a split along batches, which are axis 0 of every output."""
    outputs = {position: AxisMap(0) for position, shape in enumerate(node.outputs) if shape}
    return node.split(count, inputs, outputs)


def _multi_head_head_splits(node: Node, shapes: Mapping[int, Dims]) -> tuple[Split, ...]:
    """Return the splits along the heads; none if the op has a bias of queries, keys and values.

    That bias is one tensor of which a chunk of heads would need three slices. ``shapes`` are
    those of queries, keys and values, by position.
    """
    heads = node.int_attribute("num_heads", 0)
    if heads < 1 or shapes[_QUERY][2] % heads or node.input_shape(_MHA_BIAS) is not None:
        return ()
    inputs: dict[int, AxisMap | None] = {
        position: AxisMap(2, shape[2] // heads) if len(shape) == 3 else AxisMap(1)
        for position, shape in shapes.items()
    }
    inputs[_MHA_SCORES_BIAS] = _bias_axis_map(node.input_shape(_MHA_SCORES_BIAS), 1)
    inputs |= {_MHA_PAST_KEY: AxisMap(1), _MHA_PAST_VALUE: AxisMap(1)}
    output = AxisMap(2, node.output_shape[2] // heads)
    outputs = {0: output, 1: AxisMap(1), 2: AxisMap(1), 3: AxisMap(1)}
    return (node.split(heads, inputs, outputs),)


def _multi_head_query_splits(node: Node, query: Dims) -> tuple[Split, ...]:
    """Return the splits along the query rows, unless ``unidirectional`` masks them by position."""
    if node.int_attribute("unidirectional", 0):
        return ()
    padding = node.input_shape(_MHA_PADDING) or ()
    inputs = {
        _QUERY: AxisMap(1),
        _MHA_PADDING: AxisMap(1) if len(padding) == 3 and padding[1] > 1 else None,
        _MHA_SCORES_BIAS: _bias_axis_map(node.input_shape(_MHA_SCORES_BIAS), 2),
    }
    outputs = {0: AxisMap(1), 3: AxisMap(2)}
    return (node.split(query[1], inputs, outputs, Role.QUERIES),)


# Positions of com.microsoft.GroupQueryAttention.
_GQA_PAST_KEY, _GQA_PAST_VALUE, _GQA_LENGTHS = 3, 4, 5
_GQA_POSITIONS, _GQA_SCORES_BIAS, _GQA_HEAD_SINK = 9, 10, 11


def _grouped_query_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of com.microsoft.GroupQueryAttention along batches and key heads.

    Its causal mask counts rows from the first, so query rows are not split.
    """
    query, key = node.input_shape(_QUERY), node.input_shape(_KEY)
    query_heads = node.int_attribute("num_heads", 0)
    key_heads = node.int_attribute("kv_num_heads", 0)
    if query is None or not key_heads or query_heads % key_heads:
        return ()
    bias = node.input_shape(_GQA_SCORES_BIAS)
    batched = (_QUERY, _KEY, _VALUE, _GQA_PAST_KEY, _GQA_PAST_VALUE, _GQA_LENGTHS)
    inputs: dict[int, AxisMap | None] = {position: AxisMap(0) for position in batched}
    positions = node.input_shape(_GQA_POSITIONS)  # may be shared by all batches
    if positions and positions[0] == query[0]:
        inputs[_GQA_POSITIONS] = AxisMap(0)
    inputs[_GQA_SCORES_BIAS] = _bias_axis_map(bias, 0)
    batches = _fused_batch_split(node, query[0], inputs)
    if key is None:  # queries, keys and values are packed into one input
        return (batches,)
    group = query_heads // key_heads
    width = query[2] // query_heads
    inputs = {
        _QUERY: AxisMap(2, group * width),
        _KEY: AxisMap(2, width),
        _VALUE: AxisMap(2, width),
        _GQA_PAST_KEY: AxisMap(1),
        _GQA_PAST_VALUE: AxisMap(1),
        _GQA_SCORES_BIAS: _bias_axis_map(bias, 1, group),
        _GQA_HEAD_SINK: AxisMap(0, group),
    }
    outputs = {
        0: AxisMap(2, group * width),
        1: AxisMap(1),
        2: AxisMap(1),
        3: AxisMap(1, group),
    }
    return batches, node.split(key_heads, inputs, outputs)


def _fused_attention_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return the numbers of heads of a chunk of heads, which replace the op's; else no edit.

    A chunk of heads is a slice along axis 2 of the output ``[batch, queries, heads * width]``.
    """
    output, count = split.outputs[0], chunk[1] - chunk[0]
    if output is None or output.axis != 2:
        return ChunkEdit()
    if node.op.type == "MultiHeadAttention":
        return ChunkEdit({"num_heads": count})
    group = node.int_attribute("num_heads", 0) // node.int_attribute("kv_num_heads", 1)
    return ChunkEdit({"num_heads": count * group, "kv_num_heads": count})


RULES: Mapping[str, SplitRule] = {
    "Attention": _attention_splits,
    f"{MICROSOFT}.Attention": _projecting_attention_splits,
    f"{MICROSOFT}.GroupQueryAttention": _grouped_query_splits,
    f"{MICROSOFT}.MultiHeadAttention": _multi_head_splits,
}

EDITS: Mapping[str, EditRule] = {
    "Attention": _attention_edit,
    f"{MICROSOFT}.GroupQueryAttention": _fused_attention_edit,
    f"{MICROSOFT}.MultiHeadAttention": _fused_attention_edit,
}
