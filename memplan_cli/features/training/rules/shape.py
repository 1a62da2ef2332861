"""Gradients of operators that only move elements: move them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from memplan_cli.core.operators import Family, names_of
from memplan_cli.features.training.rules.broadcast import unbroadcast
from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Call, Rule, Tape

    Gradients = tuple[str, ...]


def reshape(call: Call) -> Gradients:
    """Y = X in another shape (Reshape, Flatten, Squeeze, Unsqueeze): dX = dY in X's shape."""
    return (call.tape.reshape_like(call.dy, call.input(0)),)


def transpose(call: Call) -> Gradients:
    """Y = X with axes permuted: dX = dY permuted back."""
    rank = call.tape.rank(call.input(0))
    if rank < 2:
        return (call.dy,)
    order = list(call.attribute("perm", range(rank - 1, -1, -1)))
    return (call.tape.emit("Transpose", call.dy, perm=[order.index(i) for i in range(rank)]),)


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
    sizes = tape.sizes(x, "Tile's copies are summed")
    apart = [part for pair in zip(repeats.tolist(), sizes, strict=True) for part in pair]
    split = tape.emit("Reshape", call.dy, tape.ints(*apart))
    axes = tape.ints(*range(0, 2 * len(sizes), 2))
    return (tape.emit("ReduceSum", split, axes, keepdims=0),)


def concat(call: Call) -> Gradients:
    """Y = inputs side by side: each gets its part of dY."""
    tape, names = call.tape, list(call.node.input)
    if len(names) == 1:
        return (call.dy,)
    axis = call.attribute("axis") % tape.rank(names[0])
    widths = [tape.shape(name)[axis] for name in names]
    numbers = [width for width in widths if isinstance(width, int)]
    if len(numbers) == len(widths) and all(call.wanted[: len(names)]):
        sizes = tape.ints(*numbers)
        return tape.emit_many("Split", [call.dy, sizes], len(names), axis=axis)
    lengths = [
        tape.ints(width) if isinstance(width, int) else _length(tape, name, axis)
        for width, name in zip(widths, names, strict=True)
    ]
    return _cut(call, lengths, axis)


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
    """Y = every s-th element of X from a to b: dX = dY at these places, else 0.

    Strides are undone by padding each element with s - 1 zeros; only slices whose bounds
    are not known scatter by index, which costs an integer for each element.
    """
    tape, x = call.tape, call.input(0)
    bounds = _slice_bounds(call)
    if bounds is None:
        return (_scatter_back(call, "Slice", list(call.node.input[1:]), {}),)
    result, full = call.dy, tape.sizes(x)
    if not all(count for _, count, _ in bounds.values()):
        return (tape.zeros_like(x),)
    lengths = [bounds[axis][1] if axis in bounds else n for axis, n in enumerate(full)]
    begin, end = [0] * len(full), [0] * len(full)
    for axis, (first, count, step) in bounds.items():
        start = first
        if step < 0:
            result = _reversed(tape, result, axis)
            start = first + (count - 1) * step
        if abs(step) > 1:
            result = _stuffed(tape, result, (axis, abs(step)), lengths)
            lengths[axis] = count * abs(step)
        begin[axis], end[axis] = start, full[axis] - start - lengths[axis]
    return (_padded(tape, result, (begin, end), x),)


def pad(call: Call) -> Gradients:
    """Y = X with a margin: dX = dY without it; copies in the margin (reflect, edge, wrap) add up.

    A trained value of the margin gets what dX does not.

    Raises:
        UnknownShapeError: the margin is of zeros or a value, and is not constant.
    """
    tape, x = call.tape, call.input(0)
    pads = call.constant_input(1)
    mode = call.attribute("mode", "constant")
    axes = call.constant_input(3)
    rank = tape.rank(x)
    if mode != "constant":
        indices = [call.input(1), "", *([call.input(3)] if call.input(3) else [])]
        return (_scatter_back(call, "Pad", indices, {"mode": mode}),)
    if pads is None or (call.input(3) and axes is None):
        raise UnknownShapeError(f"the pads of {call.node.name or call.output()!r} are dynamic")
    places = [int(a) % rank for a in axes.ravel()] if axes is not None else list(range(rank))
    values = [int(p) for p in pads.ravel()]
    begins, ends = values[: len(places)], values[len(places) :]
    used = [i for i, _ in enumerate(places) if begins[i] > 0 or ends[i] > 0]
    result = call.dy
    if used:
        result = tape.emit(
            "Slice",
            result,
            tape.ints(*(max(begins[i], 0) for i in used)),
            tape.ints(*(-max(ends[i], 0) or np.iinfo(np.int64).max for i in used)),
            tape.ints(*(places[i] for i in used)),
        )
    cut = ([0] * rank, [0] * rank)
    for i, axis in enumerate(places):
        cut[0][axis], cut[1][axis] = max(-begins[i], 0), max(-ends[i], 0)
    third = ""
    if call.wants(2):
        whole, kept = (tape.emit("ReduceSum", name, keepdims=0) for name in (call.dy, result))
        third = tape.reshape_like(tape.emit("Sub", whole, kept), call.input(2))
    return (_padded(tape, result, cut, x), "", third)


def depth_to_space(call: Call) -> Gradients:
    """Y = blocks of channels as positions: dX = SpaceToDepth of dY, channels in the mode's order."""
    tape, x, block = call.tape, call.input(0), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "DCR":
        return (tape.emit("SpaceToDepth", call.dy, blocksize=block),)
    n, channels, height, width = tape.sizes(x)
    apart = tape.ints(n, channels // block**2, height, block, width, block)
    moved = tape.emit(
        "Transpose", tape.emit("Reshape", call.dy, apart), perm=[0, 1, 3, 5, 2, 4]
    )
    return (tape.reshape_like(moved, x),)


def space_to_depth(call: Call) -> Gradients:
    """Y = blocks of positions as channels: dX = DepthToSpace of dY."""
    return (
        call.tape.emit(
            "DepthToSpace",
            call.dy,
            blocksize=call.attribute("blocksize"),
            mode=call.attribute("mode", "DCR"),
        ),
    )


def trilu(call: Call) -> Gradients:
    """Y = a triangle of X: dX = the same triangle of dY."""
    return (
        call.tape.emit(
            "Trilu", call.dy, *call.node.input[1:], upper=call.attribute("upper", 1)
        ),
    )


def reverse_sequence(call: Call) -> Gradients:
    """Y = the first n of each sequence turned round: dX = the same of dY."""
    back = call.tape.emit(
        "ReverseSequence",
        call.dy,
        call.input(1),
        batch_axis=call.attribute("batch_axis", 1),
        time_axis=call.attribute("time_axis", 0),
    )
    return (back,)


def _cut(call: Call, lengths: list[str], axis: int) -> Gradients:
    tape, start = call.tape, call.tape.ints(0)
    found = []
    for index, length in enumerate(lengths):
        end = tape.emit("Add", start, length) if index else length
        wanted = call.wants(index)
        found.append(
            tape.emit("Slice", call.dy, start, end, tape.ints(axis)) if wanted else ""
        )
        start = end
    return tuple(found)


def _length(tape: Tape, name: str, axis: int) -> str:
    return tape.emit("Gather", tape.shape_of(name), tape.ints(axis))


def _slice_bounds(call: Call) -> dict[int, tuple[int, int, int]] | None:
    """Return (start, count, step) of each sliced axis; None where they are not constant."""
    tape, x = call.tape, call.input(0)
    sizes = tape.tensor(x).sizes
    starts, ends = call.constant_input(1), call.constant_input(2)
    axes, steps = call.constant_input(3), call.constant_input(4)
    unread = (call.input(3) and axes is None) or (call.input(4) and steps is None)
    if sizes is None or starts is None or ends is None or unread:
        return None
    places = axes.ravel().tolist() if axes is not None else range(starts.size)
    strides = steps.ravel().tolist() if steps is not None else [1] * starts.size
    found = {}
    for place, a, b, step in zip(places, starts.tolist(), ends.tolist(), strides, strict=True):
        axis = place % len(sizes)
        chosen = range(*slice(*_clamped(a, b, sizes[axis], step)).indices(sizes[axis]))
        found[axis] = (chosen.start, len(chosen), step)
    return found


def _clamped(start: int, end: int, size: int, step: int) -> tuple[int, int | None, int]:
    """ONNX bounds as Python's: an end before the first element is None when going down."""
    if step < 0 and end < -size:
        return start, None, step
    return start, end, step


def _reversed(tape: Tape, name: str, axis: int) -> str:
    least = np.iinfo(np.int64).min
    return tape.emit(
        "Slice", name, tape.ints(-1), tape.ints(least), tape.ints(axis), tape.ints(-1)
    )


def _stuffed(tape: Tape, name: str, stride: tuple[int, int], lengths: list[int]) -> str:
    """Put ``step - 1`` zeros behind each element along an axis."""
    axis, step = stride
    apart = tape.emit("Unsqueeze", name, tape.ints(axis + 1))
    pads = [0] * (2 * len(lengths) + 2)
    pads[len(lengths) + 1 + axis + 1] = step - 1
    padded = tape.emit("Pad", apart, tape.ints(*pads))
    shape = [n * step if i == axis else n for i, n in enumerate(lengths)]
    return tape.emit("Reshape", padded, tape.ints(*shape))


def _padded(tape: Tape, name: str, margin: tuple[list[int], list[int]], like: str) -> str:
    """Add zeros (or, where negative, take elements away) at both ends of each axis."""
    begin, end = margin
    axes = [axis for axis, less in enumerate(end) if less < 0]
    if axes:
        cuts = tape.ints(*(end[axis] for axis in axes))
        starts = tape.ints(*[0] * len(axes))
        name = tape.emit("Slice", name, starts, cuts, tape.ints(*axes))
    pads = [max(n, 0) for n in (*begin, *end)]
    if not any(pads):
        return name
    return tape.emit("Pad", name, tape.ints(*pads), tape.scalar(0, like))


def _scatter_back(
    call: Call, kind: str, rest: list[str], attributes: dict[str, object]
) -> str:
    """Find out where each element went by moving their indices the same way; add them up."""
    tape, x = call.tape, call.input(0)
    shape, flat = tape.shape_of(x), tape.ints(-1)
    total = tape.emit("ReduceProd", shape, keepdims=0)
    whole = TensorProto.INT64
    places = tape.emit("Range", tape.constant(0, whole), total, tape.constant(1, whole))
    moved = tape.emit(kind, tape.emit("Reshape", places, shape), *rest, **attributes)
    zeros = tape.emit("Expand", tape.scalar(0, x), tape.emit("Reshape", total, tape.ints(1)))
    spread = tape.emit(
        "ScatterElements",
        zeros,
        tape.emit("Reshape", moved, flat),
        tape.emit("Reshape", call.dy, flat),
        axis=0,
        reduction="add",
    )
    return tape.reshape_like(spread, x)


RULES: Mapping[str, Rule] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Pad": pad,
    "ReverseSequence": reverse_sequence,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    **dict.fromkeys(names_of(lambda each: each.family is Family.RESHAPE), reshape),
}
"""The rule of each operator of this family."""
