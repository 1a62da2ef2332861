"""Matrix products: batches, rows and columns.

The summed axis is never split: adding partial sums would change the bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT
from memplan_cli.features.chunking.axes.split import AxisMap, Role, broadcast_axis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.split import Dims, Node, Split, SplitRule


def _matmul_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of ``[batch, M, K] x [batch, K, N]`` along batches, M and N.

    If the second operand is a vector ``[K]``, all axes before K are rows. FusedMatMul may transpose
    either matrix. A transposed matrix times a vector is not split: ONNX Runtime reads the slices of such
    a matrix by other strides.
    """
    left, right = node.input_shape(0), node.input_shape(1)
    if left is None or right is None or len(left) < 2:
        return ()
    is_left_transposed = bool(node.int_attribute("transA", 0))
    if len(right) == 1:
        if is_left_transposed:
            return ()
        return tuple(
            node.split(dim, {0: AxisMap(axis)}, {0: AxisMap(axis)}, Role.ROWS)
            for axis, dim in enumerate(left[:-1])
        )
    left_rows = len(left) - (1 if is_left_transposed else 2)
    right_columns = len(right) - (2 if node.int_attribute("transB", 0) else 1)
    output, last = node.output_shape, len(node.output_shape) - 1
    return (
        *_batch_splits(node, (left, right)),
        node.split(output[-2], {0: AxisMap(left_rows)}, {0: AxisMap(last - 1)}, Role.ROWS),
        node.split(output[-1], {1: AxisMap(right_columns)}, {0: AxisMap(last)}, Role.COLUMNS),
    )


def _batch_splits(node: Node, operand_shapes: tuple[Dims, Dims]) -> list[Split]:
    """Return the splits along every batch axis; operands broadcast along it stay whole."""
    output = node.output_shape
    return [
        node.split(
            output[axis],
            {
                position: broadcast_axis(shape, output, axis)
                for position, shape in enumerate(operand_shapes)
            },
            {0: AxisMap(axis)},
        )
        for axis in range(len(output) - 2)
    ]


def _fused_matmul_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of a MatMul; none if the batch axes are transposed too."""
    if node.int_attribute("transBatchA", 0) or node.int_attribute("transBatchB", 0):
        return ()
    return _matmul_splits(node)


def _gemm_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of ``A B + C`` along the rows of A and along the columns of B.

    C is sliced along with them, except where it is broadcast.
    """
    output = node.output_shape
    rows = AxisMap(1 if node.int_attribute("transA", 0) else 0)
    columns = AxisMap(0 if node.int_attribute("transB", 0) else 1)
    bias_rows, bias_columns = (
        broadcast_axis(node.input_shape(2), output, axis) for axis in (0, 1)
    )
    return (
        node.split(output[0], {0: rows, 2: bias_rows}, {0: AxisMap(0)}, Role.ROWS),
        node.split(output[1], {1: columns, 2: bias_columns}, {0: AxisMap(1)}, Role.COLUMNS),
    )


def _einsum_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits along each index of the result: b, i and j of ``bik,bjk->bij``.

    Equations without ``->``, with an ellipsis, or with an index twice in one term are not split,
    and neither is an Einsum with an omitted operand.
    """
    equation = node.string_attribute("equation", "").replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    repeats_index = any(len(set(term)) < len(term) for term in (*terms, result))
    shapes = [shape for shape in node.inputs if shape is not None]
    one_term_per_operand = len(terms) == len(shapes) == len(node.inputs)
    if not arrow or "." in equation or repeats_index or not one_term_per_operand:
        return ()
    splits = []
    for axis, (index, dim) in enumerate(zip(result, node.output_shape, strict=True)):
        inputs = {
            position: AxisMap(term.index(index))
            for position, term in enumerate(terms)
            if index in term
        }
        lengths = [shapes[position][axis_map.axis] for position, axis_map in inputs.items()]
        # An operand that is broadcast along the index has length 1, and cannot be sliced.
        if all(length == dim for length in lengths):
            splits.append(node.split(dim, inputs, {0: AxisMap(axis)}, Role.COLUMNS))
    return tuple(splits)


def _recurrent_splits(node: Node) -> tuple[Split, ...]:
    """Return the split of a recurrent layer along samples, which are rows of its products.

    Samples are axis 1 of the input ``[steps, samples, width]`` and of initial states, and axis 2 of the
    output ``[steps, directions, samples, width]``. With ``layout`` they come first everywhere.
    """
    first = bool(node.int_attribute("layout", 0))
    state, output = AxisMap(0 if first else 1), AxisMap(0 if first else 2)
    inputs = {0: state, 4: AxisMap(0), 5: state, 6: state}
    return (
        node.split(
            node.data_shape[state.axis],
            {at: read for at, read in inputs.items() if node.input_shape(at)},
            {at: (output, state, state)[at] for at, shape in enumerate(node.outputs) if shape},
            Role.ROWS,
        ),
    )


RULES: Mapping[str, SplitRule] = {
    **dict.fromkeys(("RNN", "GRU", "LSTM"), _recurrent_splits),
    f"{MICROSOFT}.FusedGemm": _gemm_splits,
    "MatMul": _matmul_splits,
    "Gemm": _gemm_splits,
    "Einsum": _einsum_splits,
    f"{MICROSOFT}.FusedMatMul": _fused_matmul_splits,
}
