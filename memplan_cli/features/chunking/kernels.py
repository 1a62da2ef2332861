"""Which splits keep the bits in ONNX Runtime's CPU kernels.

What the axis table allows is the same by the operator's definition; a kernel may still round
another way for a narrow piece. Measured with ONNX Runtime, float32, one thread
(`tests/features/test_chunk_kernels.py` runs every entry):

=========================  ==============================================================
rows of a product          one row takes another kernel (gemv); from 4 the same
columns of a product       one takes another kernel; narrow ones are summed in longer blocks
query rows of attention    as rows of a product; MultiHeadAttention takes blocks of rows, as many
                           as a head of queries and one of values have elements: no rest of one
tiles of a convolution     positions are columns of a product: the same where its sum is cut
                           into blocks as for the whole (`_block`); never less than 4 rows
sums over the last axis    rows are summed from where registers are aligned: other rows of a
                           piece lie otherwise unless a row, or what lies before a piece,
                           fills whole registers; from 4 rows the same
sums over other axes       one sample alone is summed in another order; from 4 the same
Eigen's functions          elements are computed 4 to 16 at a time and the rest one by one,
                           by another formula: only where pieces have no such rest
everything else            the same from one element on
=========================  ==============================================================

The sum over samples of a weight's gradient is no split of the axis table: it is the axis that
the product sums over.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, Exactness, Family, operator, qualified_name
from memplan_cli.features.chunking.axes.normalisation import reduced_axes
from memplan_cli.features.chunking.axes.terms import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.program import Op
    from memplan_cli.features.chunking.axes.terms import Node, Range, Split

_LEAST: Mapping[Role, int] = {
    Role.FREE: 1,
    Role.ROWS: 4,
    Role.COLUMNS: 8,
    Role.QUERIES: 4,
    Role.TILES: 4,
}
"""The narrowest piece that keeps the bits, by what is split."""

_LEAST_OF_SUMS = 4

_PRODUCTS = frozenset({"Conv", f"{MICROSOFT}.FusedConv"})
"""Convolutions that are computed as a product."""

_REGISTERS = 64
"""Elements: a multiple of what any register has."""


def _block(columns: int, summed: int) -> int:
    """Return how many elements SGEMM sums at a time: more where there are few columns."""
    width, depth = 128, 128
    while columns < summed and width > 16 and width // 2 >= columns:
        width, depth = width // 2, depth * 2
    return min(depth, summed)


def _is_sum(op: Op) -> bool:
    """Whether an op adds up elements along axes, so that its result depends on their order."""
    traits = operator(op)
    return traits.family is Family.REDUCTION and traits.exact is Exactness.NONE


def least(node: Node, split: Split) -> int:
    """Return how narrow a piece may be."""
    if _is_sum(node.op):
        rows = prod(node.made) // split.extent
        return 1 if _sums_rows(node) and rows >= _LEAST_OF_SUMS else _LEAST_OF_SUMS
    return _LEAST[split.role]


def _sums_rows(node: Node) -> bool:
    """Whether what is summed lies together, so that any axes before are rows of one matrix."""
    gone, rank = reduced_axes(node), len(node.shape(0) or ())
    return gone is not None and sorted(gone) == list(range(rank - len(gone), rank))


def keeps_bits(node: Node, split: Split, pieces: Iterable[Range]) -> bool:
    """Whether a kernel gives the same bits in these pieces as for the whole."""
    narrowest, has_scalar_tail = least(node, split), operator(node.op).has_scalar_tail
    row = prod(node.made) // split.extent
    pieces = tuple(pieces)
    if _is_sum(node.op) and not _begin_alike(node, split, pieces):
        return False
    if not _has_same_blocks(node, split, pieces) or _leaves_one_row(node, split, pieces):
        return False
    return all(
        stop - start >= narrowest
        and not (has_scalar_tail and (stop - start) * row % _REGISTERS)
        for start, stop in pieces
    )


def _has_same_blocks(node: Node, split: Split, pieces: Iterable[Range]) -> bool:
    """Whether a product's sums are cut into the same blocks as those of the whole."""
    read, weight = node.shape(0) or (), node.shape(1) or ()
    if split.role is Role.TILES and qualified_name(node.op) in _PRODUCTS:
        beside, summed = prod(node.made[2:]) // split.extent, prod(weight[1:])
    elif split.role is Role.COLUMNS and len(read) > 1:
        beside, summed = 1, read[-2] if node.integer("transA", 0) else read[-1]
    else:
        return True
    whole = _block(split.extent * beside, summed)
    return all(_block((stop - start) * beside, summed) == whole for start, stop in pieces)


def _leaves_one_row(node: Node, split: Split, pieces: Iterable[Range]) -> bool:
    """Whether a fused attention computes one row alone, in the whole or in a piece."""
    is_blocked = qualified_name(node.op) == f"{MICROSOFT}.MultiHeadAttention"
    if not is_blocked or split.role is not Role.QUERIES:
        return False
    elements = (node.shape(0) or (0,))[-1] + node.made[-1]
    block = elements // node.integer("num_heads", 1)
    counts = (split.extent, *(stop - start for start, stop in pieces))
    return any(count % block == 1 for count in counts)


def _begin_alike(node: Node, split: Split, pieces: Iterable[Range]) -> bool:
    """Whether the rows that are summed begin alike in registers, whole and in pieces."""
    read, made, part = node.shape(0) or (), node.made, split.inputs[0]
    is_kept = len(made) == len(read) and made[-1] == read[-1] > 1
    if is_kept or read[-1] % _REGISTERS == 0:
        return True
    if part is None or prod(read[: part.axis]) > 1:
        return False
    below = prod(read[part.axis + 1 :])
    return all(part.reach(piece)[0] * below % _REGISTERS == 0 for piece in pieces)
