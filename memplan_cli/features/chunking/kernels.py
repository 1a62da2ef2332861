"""Which splits keep the bits in ONNX Runtime's CPU kernels.

By definition of the operators every split of `axes` gives the same values. A kernel may still
round differently for a narrow chunk. Measured with ONNX Runtime, float32, one thread
(`tests/features/test_chunk_kernels.py` runs every entry):

=========================  ==============================================================
rows of a product          one row uses another kernel (gemv); 4 and more the same
columns of a product       one column uses another kernel; few are summed in longer blocks
query rows of attention    as rows of a product
tiles of a convolution     positions are columns of a product: the same where sums have the
                           blocks of the whole (`_summing_block`); never less than 4 rows.
                           Those of a transposed convolution likewise, by its input positions
tiles of blocked channels  the same from one row or column on: each position is summed alone
samples of a recurrent     rows of its products: one sample can differ; 4 and more the same
layer
quantized operators        the same from one element on, as sums of integers are exact
sums over the last axis    rows are summed from where registers are aligned: the same if a row,
                           or what lies before a chunk, fills whole registers; from 4 rows on
Group- and                 a group, or a channel, of a sample is a summed row: as sums over the
InstanceNormalization      last axis
sums over other axes       a single sample is summed in another order; 4 and more the same
Eigen's functions          elements are computed 4 to 16 at a time, and the remaining ones by
                           another formula: only if no chunk has remaining ones
everything else            the same from one element on
=========================  ==============================================================

The gradient of a weight is summed over samples. That is the summed axis of its product, along
which `axes` has no split.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import (
    MICROSOFT,
    NCHWC,
    Exactness,
    Family,
    operator,
    qualified_name,
)
from memplan_cli.features.chunking.axes.normalization import reduced_axes
from memplan_cli.features.chunking.axes.split import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.program import Op
    from memplan_cli.features.chunking.axes.split import Node, Range, Split

_MIN_LENGTHS: Mapping[Role, int] = {
    Role.FREE: 1,
    Role.ROWS: 4,
    Role.COLUMNS: 8,
    Role.QUERIES: 4,
    Role.TILES: 4,
}
"""The shortest chunk that keeps the bits, by role of the axis."""

_MIN_LENGTH_OF_SUMS = 4
"""The shortest chunk of a sum that keeps the bits, in rows or samples."""

_CONVOLUTIONS = frozenset({"Conv", f"{MICROSOFT}.FusedConv"})
"""Convolutions that are computed as a matrix product."""

_REGISTER_ELEMENTS = 64
"""A multiple of the float32 elements of every vector register."""


def keeps_bits(node: Node, split: Split, chunks: Iterable[Range]) -> bool:
    """Whether the kernel gives the same bits in these chunks as for the whole op."""
    chunks = tuple(chunks)
    if not _rows_begin_aligned(node, split, chunks):
        return False
    if not _has_same_summing_blocks(node, split, chunks):
        return False
    shortest = min_chunk_length(node, split)
    if any(stop - start < shortest for start, stop in chunks):
        return False
    if not operator(node.op).has_scalar_tail:
        return True
    # The last elements of a computation, which do not fill a register, have another formula. At the end of a
    # chunk these would be other elements than in the whole op. So each chunk must fill its registers.
    elements_per_index = prod(node.output_shape) // split.extent
    return all(
        (stop - start) * elements_per_index % _REGISTER_ELEMENTS == 0 for start, stop in chunks
    )


def min_chunk_length(node: Node, split: Split) -> int:
    """Return the fewest indices along the split axis that a chunk may have.

    Measured, a sum over the last axes keeps its bits if a chunk has 4 rows or more. A row is what is
    summed into one element of the output. The sum ``[8, 16, 64] -> [8, 16]`` has 16 rows at each
    index of axis 0, so one index is enough. Sums over other axes need 4 indices.
    """
    if node.op.domain == NCHWC:  # rows and columns of images, which no kernel mixes
        return 1
    if not _is_sum(node.op):
        return _MIN_LENGTHS[split.role]
    # ``split.extent`` is the length of the split axis in the output too.
    rows_per_index = prod(node.output_shape) // split.extent
    if _sums_last_axes(node) and rows_per_index >= _MIN_LENGTH_OF_SUMS:
        return 1
    return _MIN_LENGTH_OF_SUMS


def _is_sum(op: Op) -> bool:
    """Whether an op is a reduction whose result depends on the order of its additions."""
    traits = operator(op)
    return traits.family is Family.REDUCTION and traits.exact is Exactness.NONE


def _sums_last_axes(node: Node) -> bool:
    """Whether the summed elements are contiguous, so that all axes before are rows of a matrix."""
    reduced, rank = reduced_axes(node), len(node.data_shape)
    return reduced is not None and sorted(reduced) == list(range(rank - len(reduced), rank))


def _has_same_summing_blocks(node: Node, split: Split, chunks: Sequence[Range]) -> bool:
    """Whether SGEMM adds the products of each chunk in the same blocks as those of the whole op.

    The length of the blocks depends on the numbers of columns and of summed elements of the matrix
    product (`_summing_block`). A chunk may have fewer columns, but it has as many summed elements.
    """
    data, data_map, name = node.data_shape, split.inputs[0], qualified_name(node.op)
    # The whole op and each chunk, as ranges of an axis with ``columns_per_index`` columns at each index.
    ranges = [(0, split.extent), *chunks]
    if split.role is Role.TILES and name in _CONVOLUTIONS:
        # A product with a column for each position in the output. ``split.extent`` is the length of its split axis.
        columns_per_index = prod(node.output_shape[2:]) // split.extent
        summed = prod(node.required_shape(1)[1:])  # weight [M, C / group, *kernel]
    elif split.role is Role.TILES and name == "ConvTranspose" and data_map is not None:
        # A product with a column for each position in the input, so ranges are mapped to those of the input. All splits
        # of a ConvTranspose slice the data: ``data_map`` is never None here, only its type allows it.
        length = data[data_map.axis]
        ranges = [data_map.range(chunk, length) for chunk in ranges]
        columns_per_index = prod(data[2:]) // length
        summed = data[1] // node.int_attribute("group", 1)
    elif split.role is Role.COLUMNS and len(data) > 1:  # MatMul or Gemm of [M, K] and [K, N]
        columns_per_index = 1
        summed = data[-2] if node.int_attribute("transA", 0) else data[-1]
    else:
        # Each chunk has all columns of the product, or there is no product in blocks: a tile of a pooling is not
        # multiplied, and a vector (MatMul of [K] and [K, N]) is multiplied without blocks.
        return True
    columns = {(stop - start) * columns_per_index for start, stop in ranges}
    return len({_summing_block(count, summed) for count in columns}) == 1


def _summing_block(columns: int, summed: int) -> int:
    """Return how many products ONNX Runtime's SGEMM adds before it adds their sum to the result.

    It works on blocks of 128 columns and 128 summed elements. While there are few columns, it
    halves the width of a block and doubles its depth. ``summed`` is the length of the summed axis.
    """
    width, depth = 128, 128
    while columns < summed and width > 16 and width // 2 >= columns:
        width, depth = width // 2, depth * 2
    return min(depth, summed)


def _rows_begin_aligned(node: Node, split: Split, chunks: Sequence[Range]) -> bool:
    """Whether a row that is summed begins at the same place of a vector register in a chunk as in the whole op.

    From another place, its elements would be added in another order, which rounds differently.
    """
    length_divisor = _divisor_of_summed_row(node)  # divides the number of elements of each row
    if length_divisor is None:
        return True  # the operator sums no rows
    if length_divisor % _REGISTER_ELEMENTS == 0:
        return True  # each row fills whole registers, so all rows begin at the first place
    data, data_map = node.data_shape, split.inputs[0]
    # ``data_map`` is not None, as all splits of operators that sum rows slice the data.
    if data_map is None or prod(data[: data_map.axis]) > 1:
        return False  # the chunk is not contiguous, so its rows lie otherwise than in the op
    # A contiguous chunk is aligned as in the op if the elements before it fill whole registers.
    elements_per_index = prod(data[data_map.axis + 1 :])
    starts = [data_map.range(chunk, data[data_map.axis])[0] for chunk in chunks]
    return all(start * elements_per_index % _REGISTER_ELEMENTS == 0 for start in starts)


def _divisor_of_summed_row(node: Node) -> int | None:
    """Return a divisor of the number of elements of each summed row; None if there are no rows.

    A row is a contiguous block of elements that the kernel sums into one: in GroupNormalization a group
    of channels of a sample, in InstanceNormalization a channel. A reduction sums rows if its last axis
    is reduced; the length of this axis divides that of a row. If the last axis has length 1, an earlier
    axis may be the contiguous one that is summed, of which no divisor is sure but 1.
    """
    data = node.data_shape
    match qualified_name(node.op):
        case "GroupNormalization":
            return prod(data[1:]) // max(node.int_attribute("num_groups", 1), 1)
        case "InstanceNormalization":
            return prod(data[2:])
    if not _is_sum(node.op):
        return None
    if data[-1] == 1:
        return 1
    reduced = reduced_axes(node)  # None: not known, so any axis may be
    sums_rows = reduced is None or len(data) - 1 in reduced
    return data[-1] if sums_rows else None
