"""Shape rules of attention operators and the layers around them, most of them of ``com.microsoft``.

In the shapes below n is the batch, s the number of queries, t of keys, p of past keys, h of heads,
g of heads of keys and values, d the size of a head, e that of a value head.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.rule_node import (
    OutputType,
    Rule,
    RuleNode,
    last_as,
    quotient,
)
from memplan_cli.onnx_io.shapes.domains.rule_node import like as same_type
from memplan_cli.onnx_io.shapes.symbolic.dim_rules import larger_dim, sum_dims
from memplan_cli.onnx_io.shapes.symbolic.values import FLOAT, INT32, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Dim, Shape

_PACKED_RANK = 5
"""Dims of packed queries, keys and values: (batch, length, heads, 3, head size)."""

_SEPARATE_HEADS_RANK = 4
"""Dims of (batch, heads, length, head size)."""

_MERGED_HEADS_RANK = 3
"""Dims of (batch, length, heads * head size)."""


def _fused_attention(node: RuleNode, *, past: int, like: int) -> Sequence[OutputType]:
    """An attention that computes queries, keys and values from one input.

    x (n, s, i), weights (i, 3 h d) -> (n, s, h d), present cache (2, n, h, p + s, d). With
    ``past_present_share_buffer`` the cache keeps the length of the past buffer. The attribute
    ``qkv_hidden_sizes`` has the width of queries, keys and values; the cache is unknown if they differ.

    (n: batch, s: queries, p: past keys, h: heads, d: head size)

    Args:
        node: the node.
        past: index of the past cache (2, n, h, p, d), which may be left out.
        like: index of the input whose element type the outputs have.
    """
    shape, weights = node.shape_of_rank(0, 3), node.shape_of_rank(1, 2)
    heads, sizes = node.int_attribute("num_heads"), node.ints_attribute("qkv_hidden_sizes")
    hidden: Dim = sizes[2] if len(sizes) == 3 else None
    if not sizes and weights is not None:
        hidden = quotient(weights[1], 3)
    elem_type = node.elem_type(like)
    past_shape = node.shape_of_rank(past, 5) if node.has_input(past) else None
    if shape is None or len(set(sizes)) > 1 or (node.has_input(past) and past_shape is None):
        return [OutputType(elem_type, last_as(shape, hidden)), OutputType(elem_type, None)]
    length = shape[1] if past_shape is None else sum_dims((past_shape[3], shape[1]))
    if node.int_attribute("past_present_share_buffer"):
        length = past_shape[3] if past_shape is not None else None
    present = (2, shape[0], heads or None, length, quotient(hidden, heads))
    return [OutputType(elem_type, last_as(shape, hidden)), OutputType(elem_type, present)]


def _multi_head_attention(node: RuleNode) -> Sequence[OutputType]:
    """MultiHeadAttention: q (n, s, h d), k (n, t, h d), v (n, t, h e) -> (n, s, h e).

    Further outputs: present keys (n, h, p + t, d), present values (n, h, p + t, e), and scores
    (n, h, s, p + t). For other layouts of keys and values see `_values_and_length`.

    (n: batch, s: queries, t: keys, p: past keys, h: heads, d: head size, e: value head size)
    """
    heads, elem_type = node.int_attribute("num_heads"), node.elem_type(0)
    query, key, value = (node.input_shape(index) for index in range(3))
    if query is None or not heads or (node.has_input(1) and key is None):
        return [OutputType(elem_type, None)] * 4
    if len(query) == _PACKED_RANK:  # with keys and values, and without further outputs
        batch, queries, head_count, _, head_size = query
        result = (batch, queries, product((head_count, head_size)))
        return [OutputType(elem_type, result), *[OutputType(elem_type, None)] * 3]
    batch, queries = query[:2]
    value_width, length = _values_and_length(key, value, heads)
    head_size, value_head_size = quotient(query[-1], heads), quotient(value_width, heads)
    has_past_keys, is_in_shared_buffer = node.has_input(6), node.has_input(8)
    past = node.shape_of_rank(6, 4) if has_past_keys else None
    if is_in_shared_buffer or (has_past_keys and past is None):
        total_length = None  # the size of the buffer, or the number of past keys, is unknown
    else:
        total_length = length if past is None else sum_dims((past[2], length))
    return [
        OutputType(elem_type, last_as(query, value_width)),
        OutputType(elem_type, (batch, heads, total_length, head_size)),
        OutputType(elem_type, (batch, heads, total_length, value_head_size)),
        OutputType(elem_type, (batch, heads, queries, total_length)),
    ]


def _values_and_length(key: Shape | None, value: Shape | None, heads: int) -> tuple[Dim, Dim]:
    """Return (h e, t) of MultiHeadAttention: the width of all value heads, and the number of keys.

    Each is None if it is unknown. Keys and values may be packed (n, t, h, 2, d), in heads (n, h, t, e)
    or merged (n, t, h e).

    (n: batch, t: keys, h: heads, d: head size, e: value head size)
    """
    if key is not None and len(key) == _PACKED_RANK:  # keys and values in one
        return product((key[2], key[4])), key[1]
    if value is None:
        return None, None
    if len(value) == _SEPARATE_HEADS_RANK:
        return product((heads, value[3])), value[2]
    return (value[2], value[1]) if len(value) == _MERGED_HEADS_RANK else (None, None)


def onnx_attention(node: RuleNode) -> Sequence[OutputType]:
    """Attention of the standard domain, with heads as a dim or merged into the last one.

    Query, key and value are (batch, heads, length, head size) or merged (batch, length, heads * head size), and
    so is the result. Key and value have ``kv_heads``, and value has a head size of its own. The present keys and
    values are never merged. Past keys are input 4.
    """
    query, key, value = (
        node.shape_of_rank(index, _MERGED_HEADS_RANK, _SEPARATE_HEADS_RANK)
        for index in range(3)
    )
    heads: Dim = node.int_attribute("q_num_heads")
    kv_heads: Dim = node.int_attribute("kv_num_heads")
    unknown_shapes = [OutputType(node.elem_type(index), None) for index in (0, 1, 2, 0)]
    if query is None or key is None or value is None:
        return unknown_shapes
    if not len(query) == len(key) == len(value):
        return unknown_shapes
    if len(query) == _MERGED_HEADS_RANK:
        if not heads or not kv_heads:
            return unknown_shapes
        batch, queries, _ = query
        kv_batch, new_keys, key_width = key
        head_size = quotient(key_width, kv_heads)
        value_head_size = quotient(value[2], kv_heads)
        # With equal numbers of heads, the result is as wide as the values, even if that cannot be divided.
        width = value[2] if heads == kv_heads else product((heads, value_head_size))
        result: Shape = (batch, queries, width)
    else:
        batch, heads, queries, _ = query
        kv_batch, kv_heads, new_keys, head_size = key
        value_head_size = value[3]
        result = (batch, heads, queries, value_head_size)
    total_keys = new_keys
    if node.has_input(4):
        past = node.shape_of_rank(4, _SEPARATE_HEADS_RANK)
        total_keys = None if past is None else sum_dims((past[2], new_keys))
    return [
        OutputType(node.elem_type(0), result),
        # Present keys, present values, and scores.
        OutputType(node.elem_type(1), (kv_batch, kv_heads, total_keys, head_size)),
        OutputType(node.elem_type(2), (kv_batch, kv_heads, total_keys, value_head_size)),
        OutputType(node.elem_type(0), (batch, heads, queries, total_keys)),
    ]


def _group_query_attention(node: RuleNode) -> Sequence[OutputType]:
    """GroupQueryAttention: q (n, s, h d), or q, k and v packed (n, s, (h + 2 g) d) -> (n, s, h d).

    The present caches of keys and values are (n, g, l, d). l is the total length in input 6, the past and
    the new keys. If input 3, a past cache, is longer, l is its length. l and d are unknown if the cache is
    quantized or slides with a window.

    (n: batch, s: queries, h: heads, g: key and value heads, d: head size)
    """
    heads, kv_heads = node.int_attribute("num_heads"), node.int_attribute("kv_num_heads")
    query, elem_type = node.shape_of_rank(0, 3), node.elem_type(0)
    past, past_elem_type = node.shape_of_rank(3, 4), node.elem_type(3) or elem_type
    if query is None or not heads or not kv_heads:
        return [OutputType(elem_type, None)]  # and the caches are unknown
    is_packed = not node.has_input(1)
    heads_in_query = heads + 2 * kv_heads if is_packed else heads
    head_size = quotient(query[2], heads_in_query)
    output_width = product((heads, head_size)) if is_packed else query[2]
    length = node.scalar_dim(6)
    if node.has_input(3):
        length = None if past is None else larger_dim(past[2], length)
    if node.int_attribute("sliding_window_cache") or node.int_attribute("kv_cache_bit_width"):
        length = head_size = None
    present = (query[0], kv_heads, length, head_size)
    return [
        OutputType(elem_type, (*query[:2], output_width)),
        OutputType(past_elem_type, present),
        OutputType(past_elem_type, present),
    ]


def _embed_layer_norm(node: RuleNode) -> Sequence[OutputType]:
    """EmbedLayerNormalization: ids (n, s), table (v, w) in input 2 -> (n, s, w).

    Further outputs: the mask index (n), and the sum of embeddings (n, s, w).

    The element type is that of the scale, input 5.

    (n: batch, s: length)
    """
    ids, table = node.shape_of_rank(0, 2), node.shape_of_rank(2, 2)
    if ids is None or table is None:
        return []
    elem_type, shape = node.elem_type(5), (*ids, table[1])
    return [
        OutputType(elem_type, shape),
        OutputType(INT32, (ids[0],)),
        OutputType(elem_type, shape),
    ]


def _skip_layer_norm(node: RuleNode) -> Sequence[OutputType]:
    """SkipLayerNormalization: x (.., w) -> y as x, mean and inverse deviation (.., 1), sum as x."""
    shape, elem_type = node.input_shape(0), node.elem_type(0)
    ones = OutputType(FLOAT, last_as(shape, 1))
    return [OutputType(elem_type, shape), ones, ones, OutputType(elem_type, shape)]


RULES: Mapping[str, Rule] = {
    "Attention": partial(_fused_attention, past=4, like=0),
    "EmbedLayerNormalization": _embed_layer_norm,
    "GroupQueryAttention": _group_query_attention,
    "MultiHeadAttention": _multi_head_attention,
    "QAttention": partial(_fused_attention, past=8, like=3),
    "RotaryEmbedding": same_type(0),
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_layer_norm,
}
"""The rules of attention operators of ``com.microsoft``, by operator."""
