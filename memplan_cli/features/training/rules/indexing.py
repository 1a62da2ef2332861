"""Gradients of reading and writing by index.

Repeated indices add up by ScatterElements: ScatterND races on the CPU provider when they
repeat, so it is used only where they cannot.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from onnx import TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.tape import UnknownShapeError
from memplan_cli.features.training.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Dim
    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def gather(call: Call) -> Gradients:
    """Y = rows of X by index: dX = dY added at these rows.

    A row is a slice at ``axis``, in place of which Y has the axes of the index. They are merged to one
    axis, of length n.
    """
    tape, x, index = call.tape, call.input(0), call.input(1)
    rank = tape.rank(x)
    axis = call.attribute("axis", 0) % rank
    dy = call.dy if tape.rank(index) == 1 else _with_merged_index_axes(call, axis)
    # [1, ..., n, ..., 1], with n at ``axis``.
    column_shape = [1] * rank
    column_shape[axis] = -1
    small_index = _as_int32_if_safe(tape, index, axis_size=tape.shape(x)[axis])
    index_column = tape.emit("Reshape", small_index, tape.ints(*column_shape))
    index_sizes = tape.tensor(index).sizes
    if tape.tensor(x).sizes is not None and index_sizes is not None:
        dy_sizes = list(tape.sizes(x))
        dy_sizes[axis] = prod(index_sizes)
        dy_shape = tape.ints(*dy_sizes)
    else:
        dy_shape = tape.emit("Shape", dy)
    # ScatterElements takes an index for each element, where Gather takes one for each row.
    indices = tape.emit("Expand", index_column, dy_shape)
    zeros = tape.zeros_like(x)
    return (tape.emit("ScatterElements", zeros, indices, dy, axis=axis, reduction="add"),)


def _with_merged_index_axes(call: Call, axis: int) -> str:
    """Return dY of a Gather along ``axis`` with the axes of the index, none or several, as one axis.

    With X [a, b, c], axis 1 and an index [i, j]: dY [a, i, j, c] is returned as [a, i * j, c].
    """
    tape, x, rank = call.tape, call.input(0), call.tape.rank(call.input(0))
    sizes = [dim if isinstance(dim, int) else 0 for dim in tape.shape(x)]
    sizes[axis] = -1
    if 0 not in sizes:
        return tape.emit("Reshape", call.dy, tape.ints(*sizes))
    # A dim is 0 or unknown. Beside a dim of 0, a Reshape cannot infer the -1, so the indices are counted.
    x_shape = tape.shape_of(x)
    index_count = tape.emit("Size", call.input(1))
    parts = [tape.emit("Reshape", index_count, tape.ints(1))]
    if axis > 0:
        parts.insert(0, tape.emit("Slice", x_shape, tape.ints(0), tape.ints(axis)))
    if axis + 1 < rank:
        parts.append(tape.emit("Slice", x_shape, tape.ints(axis + 1), tape.ints(rank)))
    return tape.emit("Reshape", call.dy, tape.emit("Concat", *parts, axis=0), allowzero=1)


def _as_int32_if_safe(tape: Tape, index: str, axis_size: Dim) -> str:
    """Return int64 indices into an axis as int32, half as large, if its size is known and below 2^31.

    The gradient expands them to an index for each element, which may be the largest tensor.
    """
    is_safe = isinstance(axis_size, int) and axis_size < 2**31
    if is_safe and tape.dtype(index) == TensorProto.INT64:
        return tape.emit("Cast", index, to=TensorProto.INT32)
    return index


def gather_elements(call: Call) -> Gradients:
    """Y[i] = X[index[i]] along an axis: dX = dY added at these places."""
    tape, x, axis = call.tape, call.input(0), call.attribute("axis", 0)
    zeros, index = tape.zeros_like(x), call.input(1)
    return (tape.emit("ScatterElements", zeros, index, call.dy, axis=axis, reduction="add"),)


def gather_nd(call: Call) -> Gradients:
    """Y = slices of X by tuples of indices: dX = dY added at these slices.

    dX is made of rows, one per slice of X; each tuple becomes a row number.

    Raises:
        ModelError: the node has batch axes.
        UnknownShapeError: the sizes of X or the length of a tuple are not known.
    """
    tape, x, index = call.tape, call.input(0), call.input(1)
    if call.attribute("batch_dims", 0):
        raise ModelError(
            f"GatherND {call.label!r} has batch_dims: it has no gradient rule for that"
        )
    sizes = tape.sizes(x, why="its indices are turned into row numbers")
    if 0 in sizes:  # the Reshapes below need elements
        return (tape.zeros_like(x),)
    # The axes that a tuple indexes make the row, the axes behind them its elements.
    tuple_length = tape.shape(index)[-1]
    if not isinstance(tuple_length, int):
        raise UnknownShapeError(f"the length of the index tuples {index!r} is not known")
    indexed_sizes = sizes[:tuple_length]
    width = prod(sizes[tuple_length:])
    rows = tape.emit("Reshape", _row_numbers(tape, index, indexed_sizes), tape.ints(-1, 1))
    dy = tape.emit("Reshape", call.dy, tape.ints(-1, width))
    indices = tape.emit("Expand", rows, tape.emit("Shape", dy))
    zeros = tape.emit("Expand", tape.scalar(0, x), tape.ints(prod(indexed_sizes), width))
    dx = tape.emit("ScatterElements", zeros, indices, dy, axis=0, reduction="add")
    return (tape.reshape_like(dx, x),)


def _row_numbers(tape: Tape, index: str, indexed_sizes: tuple[int, ...]) -> str:
    """Return the row number of each index tuple of a GatherND, as int64.

    Rows are counted in row-major order over the axes that a tuple indexes. Negative indices count from the
    end of their axis.
    """
    int64 = TensorProto.INT64
    strides = [prod(indexed_sizes[i + 1 :]) for i in range(len(indexed_sizes))]
    sizes_tensor = tape.constant(indexed_sizes, int64)
    is_negative = tape.emit("Less", index, tape.constant(0, int64))
    from_start = tape.emit("Where", is_negative, tape.emit("Add", index, sizes_tensor), index)
    products = tape.emit("Mul", from_start, tape.constant(strides, int64))
    return tape.emit("ReduceSum", products, tape.ints(-1), keepdims=0)


def scatter_elements(call: Call) -> Gradients:
    """Y = X with (or plus) U at places: dU = dY there, dX = dY, 0 where replaced.

    Raises:
        ModelError: the node multiplies, or takes a minimum or maximum.
    """
    tape, axis = call.tape, call.attribute("axis", 0)
    index, updates = call.input(1), call.input(2)
    adds = _adds_updates(call)
    dx = dupdates = ""
    if call.wants(2):
        dupdates = tape.emit("GatherElements", call.dy, index, axis=axis)
    if call.wants(0):
        dx = call.dy
        if not adds:
            dx = tape.emit("ScatterElements", dx, index, tape.zeros_like(updates), axis=axis)
    return (dx, "", dupdates)


def scatter_nd(call: Call) -> Gradients:
    """Y = X with (or plus) U at slices: dU = dY there, dX = dY, 0 where replaced.

    Raises:
        ModelError: the node multiplies, or takes a minimum or maximum.
    """
    tape, index, updates = call.tape, call.input(1), call.input(2)
    adds = _adds_updates(call)
    dx = dupdates = ""
    if call.wants(2):
        dupdates = tape.emit("GatherND", call.dy, index)
    if call.wants(0):
        dx = call.dy
        if not adds:  # repeated indices are no race here: all write zeros
            dx = tape.emit("ScatterND", dx, index, tape.zeros_like(updates))
    return (dx, "", dupdates)


def _adds_updates(call: Call) -> bool:
    """Whether a Scatter node adds its updates (True) or replaces elements by them (False).

    Raises:
        ModelError: it does neither, but multiplies, or takes a minimum or maximum.
    """
    reduction = call.attribute("reduction", "none")
    if reduction not in ("none", "add"):
        raise ModelError(
            f"{call.node.op_type} {call.node.name!r} reduces by {reduction!r},"
            " which has no gradient rule"
        )
    return bool(reduction == "add")


def top_k(call: Call) -> Gradients:
    """Y = the k largest, and where they are: dX = dY at these places, which are all different."""
    tape, x = call.tape, call.input(0)
    if not call.dy:  # only the indices are used, and they have no gradient
        return ("",)
    # The indices are added to the outputs of the TopK if it has none; they have the shape of Y.
    indices = call.optional_output(
        1, Tensor(TensorProto.INT64, tape.tensor(call.output()).shape)
    )
    axis = call.attribute("axis", -1)
    return (tape.emit("ScatterElements", tape.zeros_like(x), indices, call.dy, axis=axis),)


RULES: Mapping[str, Rule] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
}
"""The rule of each operator of this family."""
