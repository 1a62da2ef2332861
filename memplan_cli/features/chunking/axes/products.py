"""Products of matrices: their batches, rows and columns; the axis that is summed mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT
from memplan_cli.features.chunking.axes.terms import Part, Role, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.terms import Dims, Node, Rule, Split


def _matmul(node: Node) -> tuple[Split, ...]:
    left, right = node.shape(0), node.shape(1)
    if left is None or right is None or len(left) < 2:
        return ()
    if len(right) == 1:
        return tuple(
            node.split(dim, {0: Part(axis)}, {0: Part(axis)}, Role.ROWS)
            for axis, dim in enumerate(left[:-1])
        )
    rows = len(left) - (1 if node.integer("transA", 0) else 2)
    columns = len(right) - (2 if node.integer("transB", 0) else 1)
    made, last = node.made, len(node.made) - 1
    return (
        *_batches(node, (left, right)),
        node.split(made[-2], {0: Part(rows)}, {0: Part(last - 1)}, Role.ROWS),
        node.split(made[-1], {1: Part(columns)}, {0: Part(last)}, Role.COLUMNS),
    )


def _batches(node: Node, shapes: tuple[Dims, Dims]) -> list[Split]:
    made = node.made
    return [
        node.split(
            made[axis],
            {at: aligned((*shape[:-2], 1, 1), made, axis) for at, shape in enumerate(shapes)},
            {0: Part(axis)},
        )
        for axis in range(len(made) - 2)
    ]


def _fused_matmul(node: Node) -> tuple[Split, ...]:
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        return ()
    return _matmul(node)


def _gemm(node: Node) -> tuple[Split, ...]:
    made = node.made
    left, right = node.integer("transA", 0), node.integer("transB", 0)
    added = [aligned(node.shape(2), made, axis) for axis in (0, 1)]
    return (
        node.split(made[0], {0: Part(1 if left else 0), 2: added[0]}, {0: Part(0)}, Role.ROWS),
        node.split(
            made[1], {1: Part(0 if right else 1), 2: added[1]}, {0: Part(1)}, Role.COLUMNS
        ),
    )


def _einsum(node: Node) -> tuple[Split, ...]:
    """Split along each index of the result, where each stands for one axis."""
    equation = node.text("equation", "").replace(" ", "")
    reads, arrow, made = equation.partition("->")
    terms = reads.split(",")
    plain = all(len(set(term)) == len(term) for term in (*terms, made))
    if not arrow or "." in equation or not plain or len(terms) != len(node.inputs):
        return ()
    return tuple(
        node.split(
            dim,
            {
                at: Part(term.index(index)) if index in term else None
                for at, term in enumerate(terms)
            },
            {0: Part(axis)},
            Role.COLUMNS,
        )
        for axis, (index, dim) in enumerate(zip(made, node.made, strict=True))
        if _has_one_size(node, terms, index, dim)
    )


def _has_one_size(node: Node, terms: list[str], index: str, dim: int) -> bool:
    """Whether an index is as long in every input: one of 1 would be broadcast."""
    shapes = zip(terms, node.inputs, strict=True)
    return all(
        (shape or ())[term.index(index)] == dim for term, shape in shapes if index in term
    )


RULES: Mapping[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    f"{MICROSOFT}.FusedMatMul": _fused_matmul,
}
