"""Attention of ONNX Runtime's domain: heads, caches, and the layers around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.made import Made, Node, Rule, last_as, like, part
from memplan_cli.onnx_io.shapes.symbolic.elements import larger
from memplan_cli.onnx_io.shapes.symbolic.rules import summed
from memplan_cli.onnx_io.shapes.symbolic.values import INT32, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Dim, Shape

_PACKED = 5
"""Dims of queries, keys and values in one: batch, length, heads, three, size of a head."""

_HEADS_APART = 4
_IN_ROWS = 3


def _self(past: int, element: int) -> Rule:
    """Return the rule of an attention whose queries, keys and values are made of one input."""

    def rule(node: Node) -> Sequence[Made]:
        shape, weights = node.ranked(0, 3), node.ranked(1, 2)
        heads, sizes = node.number("num_heads"), node.numbers("qkv_hidden_sizes")
        hidden: Dim = sizes[2] if len(sizes) == len("qkv") else None
        if not sizes and weights is not None:
            hidden = part(weights[1], 3)
        kind = node.element(element)
        before = node.ranked(past, 5) if node.has(past) else None
        if shape is None or len(set(sizes)) > 1 or (node.has(past) and before is None):
            return [Made(kind, last_as(shape, hidden)), Made(kind, None)]
        length = shape[1] if before is None else summed((before[3], shape[1]))
        if node.number("past_present_share_buffer"):
            length = before[3] if before is not None else None
        present = (2, shape[0], heads or None, length, part(hidden, heads))
        return [Made(kind, last_as(shape, hidden)), Made(kind, present)]

    return rule


def _several(node: Node) -> Sequence[Made]:
    """MultiHeadAttention: queries, keys and values, each in rows or by heads."""
    heads, kind = node.number("num_heads"), node.element(0)
    query, key, value = (node.shape(at) for at in range(3))
    if query is None or not heads or (node.has(1) and key is None):
        return [Made(kind, None)] * 4
    if len(query) == _PACKED:
        hidden = product((query[2], query[4]))
        return [Made(kind, (*query[:2], hidden)), *[Made(kind, None)] * 3]
    wide, length = _values_and_length(key, value, heads)
    head, wide_head = part(query[-1], heads), part(wide, heads)
    past = node.ranked(6, 4) if node.has(6) else None
    if node.has(7 + 1) or (node.has(6) and past is None):  # a buffer that is shared
        whole = None
    else:
        whole = length if past is None else summed((past[2], length))
    return [
        Made(kind, last_as(query, wide)),
        Made(kind, (query[0], heads, whole, head)),
        Made(kind, (query[0], heads, whole, wide_head)),
        Made(kind, (query[0], heads, query[1], whole)),
    ]


def _values_and_length(key: Shape | None, value: Shape | None, heads: int) -> tuple[Dim, Dim]:
    """Return how wide the values of all heads are together, and how many keys there are."""
    if key is not None and len(key) == _PACKED:  # keys and values in one
        return product((key[2], key[4])), key[1]
    if value is None:
        return None, None
    if len(value) == _HEADS_APART:
        return product((heads, value[3])), value[2]
    return (value[2], value[1]) if len(value) == _IN_ROWS else (None, None)


def standard(node: Node) -> Sequence[Made]:
    """Attention of ONNX's own domain; heads are a dim, or side by side."""
    query, key, value = (node.ranked(at, _IN_ROWS, _HEADS_APART) for at in range(3))
    heads, few = node.number("q_num_heads"), node.number("kv_num_heads")
    if (
        query is None
        or key is None
        or value is None
        or not len(query) == len(key) == len(value)
    ):
        return []
    if len(query) == _IN_ROWS:
        if not heads or not few:
            return []
        keys: Shape = (key[0], few, key[1], part(key[2], few))
        wide = part(value[2], few)
        result = last_as(query, value[2] if heads == few else product((heads, wide)))
        rows: Shape = (query[0], heads, query[1])
    else:
        keys, wide, rows = key, value[3], query[:3]
        result = (*query[:3], wide)
    past = node.ranked(4, _HEADS_APART)
    length = keys[2] if not node.has(4) else summed((past[2], keys[2])) if past else None
    return [
        Made(node.element(0), result),
        Made(node.element(1), (*keys[:2], length, keys[3])),
        Made(node.element(2), (*keys[:2], length, wide)),
        Made(node.element(0), (*rows, length)),
    ]


def _grouped(node: Node) -> Sequence[Made]:
    """GroupQueryAttention: fewer heads of keys and values than of queries, and a cache of them."""
    heads, few = node.number("num_heads"), node.number("kv_num_heads")
    query, kind = node.ranked(0, 3), node.element(0)
    past, past_kind = node.ranked(3, 4), node.element(3) or kind
    if query is None or not heads or not few:
        return [Made(kind, None)]
    is_packed = not node.has(1)
    head = part(query[2], heads + 2 * few if is_packed else heads)
    output = product((heads, head)) if is_packed else query[2]
    total = node.scalar(6)
    if not node.has(3):
        length = total
    else:
        longer = None if past is None or total is None else larger(past[2], total)
        length = longer if isinstance(longer, int | str) else None
    is_plain = not node.number("sliding_window_cache") and not node.number(
        "kv_cache_bit_width"
    )
    present = (query[0], few, length if is_plain else None, head if is_plain else None)
    return [
        Made(kind, (*query[:2], output)),
        Made(past_kind, present),
        Made(past_kind, present),
    ]


def _decoding(node: Node) -> Sequence[Made]:
    """DecoderMaskedMultiHeadAttention: one query, and caches in buffers that are shared."""
    query, value = node.ranked(0, 3), node.shape(2)
    wide = None
    if value is not None and query is not None:
        heads = node.number("num_heads")
        wide = value[2] if len(value) == _IN_ROWS else product((heads, value[-1]))
    kind = node.element(0)
    return [
        Made(kind, last_as(query, wide)),
        Made(kind, node.shape(5) if node.number("past_present_share_buffer") else None),
        Made(kind, node.shape(6) if node.number("past_present_share_buffer") else None),
    ]


def _packed(node: Node) -> Sequence[Made]:
    """PackedAttention: as Attention, its batch and its length in one dim."""
    shape, weights = node.ranked(0, 2), node.ranked(1, 2)
    sizes = node.numbers("qkv_hidden_sizes")
    hidden = sizes[2] if len(sizes) == len("qkv") else part(weights[1], 3) if weights else None
    return [Made(node.element(0), last_as(shape, hidden))]


def _packed_several(node: Node) -> Sequence[Made]:
    """PackedMultiHeadAttention: as MultiHeadAttention, its batch and its length in one dim."""
    query, value = node.ranked(0, 2, 4), node.ranked(2, 2)
    if query is not None and len(query) == _HEADS_APART:
        return [Made(node.element(0), (query[0], product((query[1], query[3]))))]
    return [Made(node.element(0), last_as(query, value[1] if value else None))]


def _embedded(words: int, scale: int) -> Rule:
    """Return the rule of words looked up and normalised, with a count of those that are no padding."""

    def rule(node: Node) -> Sequence[Made]:
        ids, table = node.ranked(0, 2), node.ranked(words, 2)
        if ids is None or table is None:
            return []
        kind, shape = node.element(scale), (*ids, table[1])
        return [Made(kind, shape), Made(INT32, (ids[0],)), Made(kind, shape)]

    return rule


def _normalized(node: Node) -> Sequence[Made]:
    """SkipLayerNormalization: the sum, normalised, and the sum itself."""
    shape, kind = node.shape(0), node.element(0)
    ones = Made(1, last_as(shape, 1))
    return [Made(kind, shape), ones, ones, Made(kind, shape)]


def _biases(node: Node) -> Sequence[Made]:
    """RelativePositionBias: one for each head, each query and each key."""
    table = node.ranked(0, 2)
    heads = table[1] if table else None
    return [Made(node.element(0), (1, heads, node.scalar(1), node.scalar(2)))]


def _gated_biases(node: Node) -> Sequence[Made]:
    """GatedRelativePositionBias: biases of each row of a batch."""
    query, heads = node.ranked(0, 3), node.number("num_heads")
    if query is None or node.has(6) or not heads:
        return [Made(node.element(0), None)]
    return [Made(node.element(0), (query[0], heads, query[1], query[1]))]


def _unpacked(node: Node) -> Sequence[Made]:
    """RestorePadding: rows back in their batch."""
    rows, offsets = node.ranked(0, 2), node.ranked(1, 2)
    if rows is None or offsets is None:
        return []
    return [Made(node.element(0), (*offsets, rows[1]))]


def _linear(node: Node) -> Sequence[Made]:
    """LinearAttention: rows of all heads, and the state that is kept of each."""
    query, value, key = (node.ranked(at, 3) for at in (0, 2, 1))
    heads, few = node.number("q_num_heads"), node.number("kv_num_heads")
    if query is None or value is None or key is None or not heads or not few:
        return []
    wide, kind = part(value[2], few), node.element(0)
    state = None if node.number("state_window") else (query[0], few, part(key[2], few), wide)
    result = (*query[:2], product((max(heads, few), wide)))
    return [Made(kind, result), Made(node.element(3) or kind, state)]


RULES: Mapping[str, Rule] = {
    "Attention": _self(past=4, element=0),
    "DecoderMaskedMultiHeadAttention": _decoding,
    "DecoderMaskedSelfAttention": lambda node: [
        *_self(past=99, element=0)(node)[:1],
        Made(node.element(0), node.shape(4)),
    ],
    "EmbedLayerNormalization": _embedded(words=2, scale=5),
    "GatedRelativePositionBias": _gated_biases,
    "GemmaRotaryEmbedding": like(1, 3),
    "GroupQueryAttention": _grouped,
    "LinearAttention": _linear,
    "LongformerAttention": like(0),
    "MRotaryEmbedding": like(0),
    "MultiHeadAttention": _several,
    "PackedAttention": _packed,
    "PackedMultiHeadAttention": _packed_several,
    "QAttention": _self(past=8, element=3),
    "QEmbedLayerNormalization": lambda node: _embedded(words=2, scale=8)(node)[:2],
    "RelativePositionBias": _biases,
    "RestorePadding": _unpacked,
    "RotaryEmbedding": like(0),
    "SkipLayerNormalization": _normalized,
    "SkipSimplifiedLayerNormalization": _normalized,
}
"""Of com.microsoft."""
