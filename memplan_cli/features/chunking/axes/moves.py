"""Operators that put elements elsewhere: axes that they keep in one piece."""

from __future__ import annotations

from math import gcd, prod
from typing import TYPE_CHECKING

from memplan_cli.features.chunking.axes.elementwise import piece_shape
from memplan_cli.features.chunking.axes.terms import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.features.chunking.axes.terms import Dims, Editor, Node, Rule, Split


def _reshape(node: Node) -> tuple[Split, ...]:
    """Split along the outermost axis of each group of axes that a reshape joins or parts.

    ``[2, 8, 64] -> [16, 64]``: 2 pieces of the first group, by its samples; the second group
    is one axis, which is kept.
    """
    read, made = node.shape(0) or (), node.made
    if 0 in read or 0 in made or prod(read) != prod(made):
        return ()
    found = []
    for ins, outs in _groups(read, made):
        extent = gcd(read[ins], made[outs])
        parts = Part(ins, read[ins] // extent), Part(outs, made[outs] // extent)
        found.append(node.split(extent, {0: parts[0]}, {0: parts[1]}))
    return tuple(found)


def _groups(read: Dims, made: Dims) -> Iterator[tuple[int, int]]:
    """Yield the first axes, axes of 1 left out, of groups of the same elements."""
    ins = [axis for axis, dim in enumerate(read) if dim != 1]
    outs = [axis for axis, dim in enumerate(made) if dim != 1]
    while ins and outs:
        yield ins[0], outs[0]
        taken = [1, 1]
        while taken[0] != taken[1] or taken[0] == 1:
            if taken[0] <= taken[1]:
                taken[0] *= prod(read[axis] for axis in ins[:1])
                del ins[:1]
            else:
                taken[1] *= prod(made[axis] for axis in outs[:1])
                del outs[:1]


def _squeeze(node: Node) -> tuple[Split, ...]:
    """Split as a reshape: not where every axis of 1 goes, as a piece's own may be one."""
    is_said = node.integers("axes") is not None or node.shape(1) is not None
    return _reshape(node) if is_said else ()


def _transpose(node: Node) -> tuple[Split, ...]:
    rank = len(node.made)
    order = node.integers("perm") or tuple(reversed(range(rank)))
    return tuple(
        node.split(dim, {0: Part(order[axis])}, {0: Part(axis)})
        for axis, dim in enumerate(node.made)
    )


def _off(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Split all inputs and all outputs along every axis but some."""
    read = node.shape(0) or ()
    gone = {axis % len(read) for axis in axes}
    return tuple(
        node.split(
            dim,
            {at: Part(axis) for at in range(len(node.inputs))},
            {at: Part(axis) for at, shape in enumerate(node.outputs) if shape},
        )
        for axis, dim in enumerate(read)
        if axis not in gone
    )


def _concat(node: Node) -> tuple[Split, ...]:
    return _off(node, (node.integer("axis", 1),))


def _first_off(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Split the first input and all outputs along every axis but some."""
    return tuple(
        split._replace(inputs=(split.inputs[0], *(None for _ in split.inputs[1:])))
        for split in _off(node, axes)
    )


def _of_axis(node: Node) -> tuple[Split, ...]:
    return _first_off(node, (node.integer("axis", 0),))


def _of_last_axis(node: Node) -> tuple[Split, ...]:
    return _first_off(node, (node.integer("axis", -1),))


def _slice(node: Node) -> tuple[Split, ...]:
    """Split along the axes that are not sliced: those that its constants do not name."""
    axes = node.integers("axes")
    starts = node.integers("starts")
    count = len(starts) if starts is not None else (node.shape(1) or (0,))[0]
    if axes is None and node.shape(3) is not None:
        if 3 not in node.constants:
            return ()
        axes = tuple(int(axis) for axis in node.constants[3])
    return _first_off(node, range(count) if axes is None else axes)


def _pad(node: Node) -> tuple[Split, ...]:
    """Split along the axes that are not padded."""
    rank = len(node.made)
    pads = node.integers("pads") or node.constants.get(1)
    if not pads or node.shape(3) is not None or len(pads) != 2 * rank:
        return ()
    return _first_off(node, (at for at in range(rank) if pads[at] or pads[at + rank]))


def _cumsum(node: Node) -> tuple[Split, ...]:
    axis = node.constants.get(1)
    return _first_off(node, (int(axis[0]),)) if axis else ()


def _trilu(node: Node) -> tuple[Split, ...]:
    return _first_off(node, (-1, -2))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Reshape", "Flatten", "Unsqueeze"), _reshape),
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _of_axis,
    "Slice": _slice,
    "Pad": _pad,
    "CumSum": _cumsum,
    "TopK": _of_last_axis,
    "Trilu": _trilu,
}

EDITS: Mapping[str, Editor] = {"Reshape": piece_shape}
