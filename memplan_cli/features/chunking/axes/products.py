"""Matrix products: batches, rows and columns.

The summed axis is never split: adding partial sums would change the bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT
from memplan_cli.features.chunking.axes.split import AxisMap, Role, broadcast_axis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.split import Node, Split, SplitRule


def _matmul_splits(node: Node) -> tuple[Split, ...]:
    """Return the splits of ``[batch, M, K] x [batch, K, N]`` along batches, M and N.

    An operand that is broadcast along a batch axis stays whole. If the second operand is a vector
    ``[K]``, all axes before K are rows. FusedMatMul may transpose either matrix; if it transposes batch
    axes too, there are no splits. A transposed matrix times a vector is not split: ONNX Runtime reads
    the slices of such a matrix by other strides.
    """
    left, right = node.required_shape(0), node.required_shape(1)
    has_transposed_batches = any(
        node.int_attribute(name, 0) for name in ("transBatchA", "transBatchB")
    )
    if len(left) < 2 or has_transposed_batches:
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
    by_batch = (
        node.split(
            output[axis],
            {0: broadcast_axis(left, output, axis), 1: broadcast_axis(right, output, axis)},
            {0: AxisMap(axis)},
        )
        for axis in range(last - 1)
    )
    return (
        *by_batch,
        node.split(output[-2], {0: AxisMap(left_rows)}, {0: AxisMap(last - 1)}, Role.ROWS),
        node.split(output[-1], {1: AxisMap(right_columns)}, {0: AxisMap(last)}, Role.COLUMNS),
    )


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


def _recurrent_splits(node: Node) -> tuple[Split, ...]:
    """Return the split of a recurrent layer along samples, which are rows of its products.

    Samples are axis 1 of the input ``[steps, samples, width]`` and of initial states, and axis 2 of the
    output ``[steps, directions, samples, width]``. With ``layout`` they come first everywhere.
    """
    has_samples_first = bool(node.int_attribute("layout", 0))
    state = AxisMap(0 if has_samples_first else 1)
    output = AxisMap(0 if has_samples_first else 2)
    # The input, the number of steps of each sample, and initial states; weights and bias stay whole.
    inputs = {0: state, 4: AxisMap(0), 5: state, 6: state}
    present_inputs = {at: read for at, read in inputs.items() if node.input_shape(at)}
    outputs = (output, state, state)  # of all steps, and the last states
    present_outputs = {at: outputs[at] for at, shape in enumerate(node.outputs) if shape}
    extent = node.data_shape[state.axis]
    return (node.split(extent, present_inputs, present_outputs, Role.ROWS),)


RULES: Mapping[str, SplitRule] = {
    **dict.fromkeys(("RNN", "GRU", "LSTM"), _recurrent_splits),
    f"{MICROSOFT}.FusedGemm": _gemm_splits,
    "MatMul": _matmul_splits,
    "Gemm": _gemm_splits,
    f"{MICROSOFT}.FusedMatMul": _matmul_splits,
}
