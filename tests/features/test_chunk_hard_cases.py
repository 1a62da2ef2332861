"""The axes of nodes at the edges of the table: old opsets, vectors, dims of one, two weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from features.chunk_cases import Case, differences
from memplan_cli.features.chunking.axes.table import splits_of

if TYPE_CHECKING:
    from memplan_cli.features.chunking.axes.split import Node

DRAW = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return DRAW.integers(1, 5, shape).astype(np.float32)


CUBE = real(3, 4, 5)
SOME = np.array([[0, 2], [1, 4], [3, 2]], np.int64)
AXES: tuple[tuple[str, Case, set[int]], ...] = (
    ("one axis", Case("Softmax", (CUBE,), {"axis": 1}, opset=13), {0, 2}),
    ("the last by itself", Case("Softmax", (CUBE,), opset=13), {0, 1}),
    ("all from an axis on", Case("Softmax", (CUBE,), {"axis": 2}, opset=11), {0, 1}),
    ("all from the second on", Case("Softmax", (CUBE,), opset=11), {0}),
    ("all from a negative on", Case("LogSoftmax", (CUBE,), {"axis": -1}, opset=12), {0, 1}),
    ("a vector by a matrix", Case("MatMul", (real(4), real(4, 5))), set()),
    ("a matrix by a vector", Case("MatMul", (real(3, 4), real(4))), {0}),
    ("a product", Case("MatMul", (real(2, 3, 4), real(4, 5))), {0, 1, 2}),
    ("updates of some rows", Case("ScatterElements", (real(6, 5), SOME, real(3, 2)),
                                  {"axis": 1}), set()),
    ("updates of all rows", Case("ScatterElements", (real(3, 5), SOME, real(3, 2)),
                                 {"axis": 1}), {0}),
    ("rows of one", Case("Conv", (real(1, 2, 1, 9), real(3, 2, 1, 3))), {3}),
    ("one sample", Case("InstanceNormalization", (real(1, 3, 4), real(3), real(3))), {1}),
)  # fmt: skip


def seen(case: Case) -> Node:
    return case.node(case.run())


@pytest.mark.parametrize(
    ("case", "axes"), [each[1:] for each in AXES], ids=[n for n, *_ in AXES]
)
def test_a_node_is_cut_along_these_axes(case: Case, axes: set[int]) -> None:
    node = seen(case)
    splits = splits_of(node)
    assert {part.axis for split in splits for part in split.outputs if part} == axes
    for split in splits:
        assert split.extent > 1
        assert not differences(case, node, split, [1], Case.run)
