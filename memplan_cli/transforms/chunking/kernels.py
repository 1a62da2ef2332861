"""Which splits keep the bits in ONNX Runtime's CPU kernels.

What the axis table allows is the same by the operator's definition; a kernel may still round
another way for a narrow piece. Measured with ONNX Runtime 1.31.1, float32, one thread
(`tests/transforms/test_chunk_kernels.py` runs every entry):

=========================  ==============================================================
rows of a product          one row takes another kernel (gemv); from 4 the same
columns of a product       one takes another kernel, narrow ones may; from 8 the same
query rows of attention    as rows of a product
tiles of a convolution     1 or 2 rows may take another path; from 4 the same
sums over the last axis    rows are summed from where registers are aligned: other rows of a
                           piece lie otherwise unless a row fills whole registers
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

from memplan_cli.transforms.chunking.axes.normalisation import REDUCTIONS
from memplan_cli.transforms.chunking.axes.table import operator
from memplan_cli.transforms.chunking.axes.terms import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.transforms.chunking.axes.terms import Node, Range, Split

_LEAST: Mapping[Role, int] = {
    Role.FREE: 1,
    Role.ROWS: 4,
    Role.COLUMNS: 8,
    Role.QUERIES: 4,
    Role.TILES: 4,
}
"""The narrowest piece that keeps the bits, by what is split."""

_LEAST_OF_SUMS = 4

_SUMS = frozenset(REDUCTIONS) - {"ReduceMax", "ReduceMin"}

_TOGETHER = frozenset({"Acos", "Asin", "Atan", "Cos", "Log", "Mish", "Sin", "Softplus", "Tan"})
"""Functions whose last elements, those that fill no register, have another formula."""

_REGISTERS = 64
"""Elements: a multiple of what any register has."""


def least(node: Node, split: Split) -> int:
    """Return how narrow a piece may be."""
    if operator(node.op) in _SUMS:
        return _LEAST_OF_SUMS
    return _LEAST[split.role]


def keeps_bits(node: Node, split: Split, pieces: Iterable[Range]) -> bool:
    """Whether a kernel gives the same bits in these pieces as for the whole."""
    kind, narrowest = operator(node.op), least(node, split)
    row = prod(node.made) // split.extent
    if kind in _SUMS and not _fills_registers(node):
        return False
    return all(
        stop - start >= narrowest
        and not (kind in _TOGETHER and (stop - start) * row % _REGISTERS)
        for start, stop in pieces
    )


def _fills_registers(node: Node) -> bool:
    """Whether the rows that are summed begin alike, wherever in a tensor they lie."""
    read, made = node.shape(0) or (), node.made
    is_kept = len(made) == len(read) and made[-1] == read[-1] > 1
    return is_kept or read[-1] % _REGISTERS == 0
