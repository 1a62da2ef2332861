"""Gradients of reading and writing by index.

Repeated indices add up by ScatterElements: ScatterND races on the CPU provider when they
repeat, so it is used only where they cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from memplan_cli.errors import ModelError
from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def gather(call: Call) -> Gradients:
    """Y = rows of X by index: dX = dY added at these rows."""
    tape, x, index = call.tape, call.input(0), call.input(1)
    rank = tape.rank(x)
    axis = call.attribute("axis", 0) % rank
    dims = tape.shape(x)
    dy = call.dy if tape.rank(index) == 1 else _flat_index_axis(call, axis)
    column = [1] * rank
    column[axis] = -1
    where = tape.emit("Reshape", _narrow(tape, index, dims[axis]), tape.ints(*column))
    if tape.tensor(x).sizes is not None and tape.tensor(index).sizes is not None:
        sizes = list(tape.sizes(x))
        sizes[axis] = _product(tape.sizes(index))
        shape = tape.ints(*sizes)
    else:
        shape = tape.emit("Shape", dy)
    rows = tape.emit("Expand", where, shape)
    zeros = tape.zeros_like(x)
    return (tape.emit("ScatterElements", zeros, rows, dy, axis=axis, reduction="add"),)


def gather_elements(call: Call) -> Gradients:
    """Y[i] = X[index[i]] along an axis: dX = dY added at these places."""
    tape, x = call.tape, call.input(0)
    axis = call.attribute("axis", 0)
    back = tape.emit(
        "ScatterElements",
        tape.zeros_like(x),
        call.input(1),
        call.dy,
        axis=axis,
        reduction="add",
    )
    return (back,)


def gather_nd(call: Call) -> Gradients:
    """Y = slices of X by tuples of indices: dX = dY added at these slices.

    The tuples are turned into numbers of slices, as rows of [slices, elements].

    Raises:
        UnknownShapeError: the sizes of X or the length of a tuple are not known.
    """
    tape, x, index = call.tape, call.input(0), call.input(1)
    sizes = tape.sizes(x, "its indices are turned into row numbers")
    batch = call.attribute("batch_dims", 0)
    depth = tape.shape(index)[-1]
    if not isinstance(depth, int):
        raise UnknownShapeError(f"the length of the index tuples {index!r} is not known")
    covered = sizes[: batch + depth]
    rows, width = _product(covered), _product(sizes[batch + depth :])
    number = _row_numbers(call, covered, batch)
    flat = tape.emit("Reshape", number, tape.ints(-1, 1))
    dy = tape.emit("Reshape", call.dy, tape.ints(-1, width))
    where = tape.emit("Expand", flat, tape.emit("Shape", dy))
    zeros = tape.emit("Expand", tape.scalar(0, x), tape.ints(rows, width))
    spread = tape.emit("ScatterElements", zeros, where, dy, axis=0, reduction="add")
    return (tape.reshape_like(spread, x),)


def scatter_elements(call: Call) -> Gradients:
    """Y = X with (or plus) U at places: dU = dY there, dX = dY, 0 where replaced."""
    tape, axis = call.tape, call.attribute("axis", 0)
    added = _only_add_or_replace(call)
    second = first = ""
    if call.wants(2):
        second = tape.emit("GatherElements", call.dy, call.input(1), axis=axis)
    if call.wants(0):
        first = call.dy
        if not added:
            zeros = tape.zeros_like(call.input(2))
            first = tape.emit("ScatterElements", first, call.input(1), zeros, axis=axis)
    return (first, "", second)


def scatter_nd(call: Call) -> Gradients:
    """Y = X with (or plus) U at slices: dU = dY there, dX = dY, 0 where replaced."""
    tape = call.tape
    added = _only_add_or_replace(call)
    second = first = ""
    if call.wants(2):
        second = tape.emit("GatherND", call.dy, call.input(1))
    if call.wants(0):
        first = call.dy
        if not added:  # writing zeros twice is no race: both writers agree
            zeros = tape.zeros_like(call.input(2))
            first = tape.emit("ScatterND", first, call.input(1), zeros)
    return (first, "", second)


def top_k(call: Call) -> Gradients:
    """Y = the k largest, and where they are: dX = dY at these places, which are all different."""
    tape, x = call.tape, call.input(0)
    indices = call.saved(1, tape.tensor(call.output(1)))
    axis = call.attribute("axis", -1)
    if not call.dy:
        return ("",)
    return (tape.emit("ScatterElements", tape.zeros_like(x), indices, call.dy, axis=axis),)


def one_hot(call: Call) -> Gradients:
    """Y = V[1] at each index, else V[0]: dV[1] = sum of dY at the indices, dV[0] = the rest's."""
    tape, values = call.tape, call.input(2)
    ends = tape.constant([0, 1], tape.dtype(values))
    axis = call.attribute("axis", -1)
    mask = tape.emit("OneHot", call.input(0), call.input(1), ends, axis=axis)
    hit = tape.emit("ReduceSum", tape.emit("Mul", call.dy, mask), keepdims=0)
    missed = tape.emit("Sub", tape.emit("ReduceSum", call.dy, keepdims=0), hit)
    both = [tape.emit("Reshape", part, tape.ints(1)) for part in (missed, hit)]
    return ("", "", tape.emit("Concat", *both, axis=0))


def range_(call: Call) -> Gradients:
    """Y[i] = A + i D: dA = sum of dY, dD = sum of dY i, with i = (Y - A) / D."""
    tape, start, step = call.tape, call.input(0), call.input(2)
    first = third = ""
    if call.wants(0):
        first = tape.reshape_like(tape.emit("ReduceSum", call.dy, keepdims=0), start)
    if call.wants(2):
        place = tape.emit("Div", tape.emit("Sub", call.output(), start), step)
        total = tape.emit("ReduceSum", tape.emit("Mul", call.dy, place), keepdims=0)
        third = tape.reshape_like(total, step)
    return (first, "", third)


def _flat_index_axis(call: Call, axis: int) -> str:
    """Return dY with the index's axes as one, at ``axis``."""
    tape, x, index = call.tape, call.input(0), call.input(1)
    dims = tape.shape(x)
    before, behind = dims[:axis], dims[axis + 1 :]
    known = [dim for dim in (*before, *behind) if isinstance(dim, int)]
    if len(known) == len(before) + len(behind) and 0 not in known:
        shape = tape.ints(*known[: len(before)], -1, *known[len(before) :])
        return tape.emit("Reshape", call.dy, shape)
    lengths = tape.shape_of(x)
    parts = [tape.ints(-1)]
    if before:
        parts.insert(0, tape.emit("Slice", lengths, tape.ints(0), tape.ints(axis)))
    if behind:
        parts.append(tape.emit("Slice", lengths, tape.ints(axis + 1), tape.ints(len(dims))))
    shape = tape.emit("Concat", *parts, axis=0)
    return tape.emit("Reshape", call.dy, shape) if index else call.dy


def _narrow(tape: Tape, index: str, size: int | str | None) -> str:
    """Return indices in 32 bits where they fit: they are repeated along every row."""
    if isinstance(size, int) and size < 2**31 and tape.dtype(index) == TensorProto.INT64:
        return tape.emit("Cast", index, to=TensorProto.INT32)
    return index


def _row_numbers(call: Call, covered: tuple[int, ...], batch: int) -> str:
    """Return the number of the row that each index tuple names, counted from the front."""
    tape, index = call.tape, call.input(1)
    whole = TensorProto.INT64
    own = covered[batch:]
    strides = [_product(own[i + 1 :]) for i in range(len(own))]
    lengths = tape.constant(own, whole)
    negative = tape.emit("Less", index, tape.constant(0, whole))
    upwards = tape.emit("Where", negative, tape.emit("Add", index, lengths), index)
    weighted = tape.emit("Mul", upwards, tape.constant(strides, whole))
    number = tape.emit("ReduceSum", weighted, tape.ints(-1), keepdims=0)
    if not batch:
        return number
    samples = _product(covered[:batch])
    grouped = tape.emit("Reshape", number, tape.ints(samples, -1))
    starts = [[sample * _product(own)] for sample in range(samples)]
    return tape.emit("Add", grouped, tape.constant(starts, whole))


def _only_add_or_replace(call: Call) -> bool:
    """Whether the node adds; other reductions have no rule."""
    reduction = call.attribute("reduction", "none")
    if reduction not in ("none", "add"):
        raise ModelError(
            f"{call.node.op_type} {call.node.name!r} reduces by {reduction!r},"
            " which has no gradient rule"
        )
    return bool(reduction == "add")


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


RULES: Mapping[str, Rule] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "Range": range_,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
}
"""The rule of each operator of this family."""
