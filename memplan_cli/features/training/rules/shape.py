"""Gradients of operators that only move elements: move them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from memplan_cli.core.operators import Family, names_of
from memplan_cli.features.training.rules.broadcast import unbroadcast
from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def reshape(call: Call) -> Gradients:
    """Y = X in another shape (Reshape, Flatten, Squeeze, Unsqueeze): dX = dY in X's shape."""
    return (call.tape.reshape_like(call.dy, call.input(0)),)


def transpose(call: Call) -> Gradients:
    """Y = X with axes permuted: dX = dY permuted back."""
    rank = call.tape.rank(call.input(0))
    if rank < 2:  # nothing was permuted
        return (call.dy,)
    # The default reverses the axes.
    perm = list(call.attribute("perm", range(rank - 1, -1, -1)))
    inverse = [perm.index(axis) for axis in range(rank)]
    return (call.tape.emit("Transpose", call.dy, perm=inverse),)


def expand(call: Call) -> Gradients:
    """Y = X repeated: dX = dY summed over the repeats."""
    return (unbroadcast(call.tape, call.dy, call.output(), call.input(0)),)


def tile(call: Call) -> Gradients:
    """Y = X in r copies along each axis: dX = dY as [r, n, ...], summed over the r.

    Raises:
        UnknownShapeError: the sizes of X are not known, or the repeats are not constant.
    """
    tape, x = call.tape, call.input(0)
    repeats = call.constant_input(1)
    if repeats is None:
        raise UnknownShapeError(f"the repeats of Tile {call.node.name!r} are not constant")
    sizes = tape.sizes(x, why="Tile's copies are summed")
    dims = [dim for pair in zip(repeats.tolist(), sizes, strict=True) for dim in pair]
    split = tape.emit("Reshape", call.dy, tape.ints(*dims))
    repeat_axes = tape.ints(*range(0, 2 * len(sizes), 2))
    return (tape.emit("ReduceSum", split, repeat_axes, keepdims=0),)


def concat(call: Call) -> Gradients:
    """Y = inputs side by side: each gets its part of dY."""
    tape, names = call.tape, list(call.node.input)
    if len(names) == 1:
        return (call.dy,)
    axis = call.attribute("axis") % tape.rank(names[0])
    dims = [tape.shape(name)[axis] for name in names]
    sizes = [dim for dim in dims if isinstance(dim, int)]
    if len(sizes) == len(dims) and all(call.wanted[: len(names)]):
        return tape.emit_many("Split", [call.dy, tape.ints(*sizes)], len(names), axis=axis)
    return _wanted_parts(call, axis)


def _wanted_parts(call: Call, axis: int) -> Gradients:
    """Return for each input of a Concat a Slice of dY, empty if the input's gradient is not wanted.

    Lengths of inputs that are no numbers are computed in the run.
    """
    tape = call.tape
    lengths = [
        tape.ints(dim)
        if isinstance(dim := tape.shape(name)[axis], int)
        else tape.emit("Gather", tape.shape_of(name), tape.ints(axis))
        for name in call.node.input
    ]
    gradients = []
    start = tape.ints(0)
    for index, length in enumerate(lengths):
        end = tape.emit("Add", start, length) if index else length
        part = ""
        if call.wants(index):
            part = tape.emit("Slice", call.dy, start, end, tape.ints(axis))
        gradients.append(part)
        start = end
    return tuple(gradients)


def split(call: Call) -> Gradients:
    """Y_i = parts of X: dX = their gradients side by side, zeros where none flows."""
    tape = call.tape
    axis = call.attribute("axis", 0) % tape.rank(call.input(0))
    parts = [
        gradient or tape.zeros_like(name)
        for gradient, name in zip(call.gradients, call.node.output, strict=True)
    ]
    return (tape.emit("Concat", *parts, axis=axis),)


def slice_(call: Call) -> Gradients:
    """Y = X from a to b, every s-th element: dX = dY at these places, else 0.

    Zeros are padded at both ends of dY. If s is not 1, or the bounds are not constant, dY is scattered by
    index instead, which takes an integer for each element.
    """
    tape, x = call.tape, call.input(0)
    spans = _sliced_spans(call)
    if spans is None:
        return (_scatter_to_origins(call, "Slice", list(call.node.input[1:]), {}),)
    sizes = tape.sizes(x)
    if any(len(span) == 0 for span in spans.values()):
        return (tape.zeros_like(x),)
    begins, ends = [0] * len(sizes), [0] * len(sizes)
    for axis, span in spans.items():
        begins[axis], ends[axis] = span.start, sizes[axis] - span.stop
    return (_padded(tape, call.dy, begins, ends, x),)


def _sliced_spans(call: Call) -> dict[int, range] | None:
    """Return the elements that a Slice takes along each of its axes.

    None if sizes or bounds are not constant, or if a step is not 1.
    """
    sizes = call.tape.tensor(call.input(0)).sizes
    starts, ends = call.constant_input(1), call.constant_input(2)
    axes, steps = call.constant_input(3), call.constant_input(4)
    if sizes is None or starts is None or ends is None:
        return None
    if (call.input(3) and axes is None) or (call.input(4) and steps is None):
        return None
    if steps is not None and (steps != 1).any():
        return None
    axis_list = list(range(starts.size)) if axes is None else axes.ravel().tolist()
    spans = {}
    for axis, start, end in zip(axis_list, starts.tolist(), ends.tolist(), strict=True):
        spans[axis % len(sizes)] = range(sizes[axis])[start:end]
    return spans


def _padded(
    tape: Tape, name: str, begins: Sequence[int], ends: Sequence[int], like: str
) -> str:
    """Return a tensor with zeros added at both ends of each axis; ``like`` has its element type."""
    if not any((*begins, *ends)):
        return name
    return tape.emit("Pad", name, tape.ints(*begins, *ends), tape.scalar(0, like))


def pad(call: Call) -> Gradients:
    """Y = X with a margin: dX = dY without it; copies in the margin (reflect, edge, wrap) add up.

    Raises:
        UnknownShapeError: the mode is "constant", and the pads are not known before a run.
    """
    tape, x = call.tape, call.input(0)
    mode = call.attribute("mode", "constant")
    if mode != "constant":
        # The inputs of a Pad behind X: pads, no value, axes.
        inputs = [call.input(1), "", *([call.input(3)] if call.input(3) else [])]
        return (_scatter_to_origins(call, "Pad", inputs, {"mode": mode}),)
    begins, ends = _constant_pads(call)
    inner_dy = _without_margin(tape, call.dy, begins, ends)
    # Negative pads removed elements of X: their gradient is 0.
    removed_begins, removed_ends = ([max(-n, 0) for n in side] for side in (begins, ends))
    return (_padded(tape, inner_dy, removed_begins, removed_ends, x),)


def _without_margin(tape: Tape, name: str, begins: Sequence[int], ends: Sequence[int]) -> str:
    """Return a tensor without the elements that a Pad has added at both ends of each axis.

    Negative numbers in ``begins`` and ``ends``, with which the Pad removed elements, are ignored.
    """
    axes = [axis for axis in range(len(begins)) if begins[axis] > 0 or ends[axis] > 0]
    if not axes:
        return name
    to_end = np.iinfo(np.int64).max  # in place of -0, which would be the first element
    starts = tape.ints(*(max(begins[axis], 0) for axis in axes))
    stops = tape.ints(*(-max(ends[axis], 0) or to_end for axis in axes))
    return tape.emit("Slice", name, starts, stops, tape.ints(*axes))


def _constant_pads(call: Call) -> tuple[list[int], list[int]]:
    """Return the elements that a Pad adds at the begin and at the end of each axis; negative: removes.

    Raises:
        UnknownShapeError: they are not constant.
    """
    pads, axes = call.constant_input(1), call.constant_input(3)
    if pads is None or (call.input(3) and axes is None):
        raise UnknownShapeError(f"the pads of {call.label!r} are dynamic")
    rank = call.tape.rank(call.input(0))
    begins, ends = [0] * rank, [0] * rank
    padded_axes = range(rank) if axes is None else [int(axis) % rank for axis in axes.ravel()]
    values = [int(value) for value in pads.ravel()]
    for index, axis in enumerate(padded_axes):
        begins[axis], ends[axis] = values[index], values[index + len(padded_axes)]
    return begins, ends


def _scatter_to_origins(
    call: Call, kind: str, inputs: Sequence[str], attributes: Mapping[str, object]
) -> str:
    """Return dX of an operator that copies elements: each dY is added where its element came from.

    The operator ``kind``, with the node's other inputs and attributes, is applied to the flat indices of
    X, which gives the origin of each element of Y.
    """
    tape, x, int64 = call.tape, call.input(0), TensorProto.INT64
    shape, flat = tape.shape_of(x), tape.ints(-1)
    count = tape.emit("ReduceProd", shape, keepdims=0)
    indices = tape.emit("Range", tape.constant(0, int64), count, tape.constant(1, int64))
    origins = tape.emit(kind, tape.emit("Reshape", indices, shape), *inputs, **attributes)
    zeros = tape.emit("Expand", tape.scalar(0, x), tape.emit("Reshape", count, tape.ints(1)))
    dx = tape.emit(
        "ScatterElements",
        zeros,
        tape.emit("Reshape", origins, flat),
        tape.emit("Reshape", call.dy, flat),
        axis=0,
        reduction="add",
    )
    return tape.reshape_like(dx, x)


def depth_to_space(call: Call) -> Gradients:
    """Y = blocks of channels as positions: dX = SpaceToDepth of dY, channels in the mode's order."""
    tape, x, block = call.tape, call.input(0), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "DCR":
        return (tape.emit("SpaceToDepth", call.dy, blocksize=block),)
    n, channels, height, width = tape.sizes(x)
    dims = tape.ints(n, channels // block**2, height, block, width, block)
    split = tape.emit("Reshape", call.dy, dims)
    moved = tape.emit("Transpose", split, perm=[0, 1, 3, 5, 2, 4])
    return (tape.reshape_like(moved, x),)


def space_to_depth(call: Call) -> Gradients:
    """Y = blocks of positions as channels: dX = DepthToSpace of dY."""
    return (call.tape.emit("DepthToSpace", call.dy, blocksize=call.attribute("blocksize")),)


def trilu(call: Call) -> Gradients:
    """Y = a triangle of X: dX = the same triangle of dY."""
    diagonal = call.node.input[1:]
    return (call.tape.emit("Trilu", call.dy, *diagonal, upper=call.attribute("upper", 1)),)


RULES: Mapping[str, Rule] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Pad": pad,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    **dict.fromkeys(names_of(lambda traits: traits.family is Family.RESHAPE), reshape),
}
"""The rule of each operator of this family."""
