"""Softmax, normalisations and reductions: every axis off the one that they mix."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, Family, names_of
from memplan_cli.features.chunking.axes.terms import Edit, Part, aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.features.chunking.axes.terms import Editor, Node, Range, Rule, Split

_SINGLE_AXIS = 13
"""The opset since which Softmax normalises one axis; before, all from the given one on."""


def _along(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Split along axes of the first input, and of all that is broadcast to it or laid out so."""
    read = node.shape(0) or ()
    return tuple(
        node.split(
            read[axis],
            {at: aligned(shape, read, axis) for at, shape in enumerate(node.inputs)},
            {at: _kept(read, shape, axis) for at, shape in enumerate(node.outputs) if shape},
        )
        for axis in axes
    )


def _kept(read: tuple[int, ...], made: tuple[int, ...], axis: int) -> Part | None:
    is_there = len(made) == len(read) and made[axis] == read[axis]
    return Part(axis) if is_there else None


def _softmax(node: Node) -> tuple[Split, ...]:
    rank = len(node.shape(0) or ())
    is_single = node.opset >= _SINGLE_AXIS
    axis = node.integer("axis", -1 if is_single else 1)
    axis += rank if axis < 0 else 0
    return _along(node, (at for at in range(rank) if at < axis or (is_single and at > axis)))


def _before_axis(node: Node) -> tuple[Split, ...]:
    """Split a normalisation of all axes from one on."""
    rank = len(node.shape(0) or ())
    axis = node.integer("axis", -1)
    return _along(node, range(axis + rank if axis < 0 else axis))


def _before_last(node: Node) -> tuple[Split, ...]:
    return _along(node, range(len(node.shape(0) or ()) - 1))


def _off_axis(node: Node) -> tuple[Split, ...]:
    """Split an operator of one axis that keeps the shape."""
    rank = len(node.shape(0) or ())
    axis = node.integer("axis", -1)
    return _along(node, (at for at in range(rank) if at != axis % rank))


def _first_axes(node: Node, *, count: int) -> tuple[Split, ...]:
    """Split along samples, and channels where nothing belongs to one of them."""
    read, made = node.shape(0) or (), node.made
    return tuple(
        node.split(read[axis], {0: Part(axis)}, {0: Part(axis)})
        for axis in range(min(count, len(read), len(made)))
    )


def _instance_normalisation(node: Node) -> tuple[Split, ...]:
    """Split along samples and channels, each with its own factor and shift."""
    channels = (node.shape(0) or (0, 0))[1]
    reads = {0: Part(1), 1: Part(0), 2: Part(0)}
    return *_first_axes(node, count=1), node.split(channels, reads, {0: Part(1)})


def _group_normalisation(node: Node) -> tuple[Split, ...]:
    """Split along samples and groups of channels; factors are a channel's or a group's."""
    groups = node.integer("num_groups", 0)
    channels = (node.shape(0) or (0, 0))[1]
    if groups < 1 or channels % groups:
        return _first_axes(node, count=1)
    own = {at: Part(0, (node.shape(at) or (0,))[0] // groups) for at in (1, 2)}
    part = Part(1, channels // groups)
    return *_first_axes(node, count=1), node.split(groups, {0: part, **own}, {0: part})


def _fewer_groups(node: Node, split: Split, piece: Range) -> Edit:
    part = split.outputs[0]
    if part is None or part.axis != 1 or node.op.type != "GroupNormalization":
        return Edit()
    return Edit({"num_groups": piece[1] - piece[0]})


def _batch_normalisation(node: Node) -> tuple[Split, ...]:
    if node.integer("training_mode", 0) or len(node.outputs) > 1:
        return ()
    read = node.shape(0) or ()
    return tuple(
        node.split(dim, {0: Part(axis)}, {0: Part(axis)})
        for axis, dim in enumerate(read)
        if axis != 1
    )


def _reduce(node: Node) -> tuple[Split, ...]:
    read, made = node.shape(0) or (), node.made
    gone = reduced_axes(node)
    if gone is None:
        return ()
    left = [axis for axis in range(len(read)) if axis not in gone]
    keeps = len(made) == len(read)
    return tuple(
        node.split(read[axis], {0: Part(axis)}, {0: Part(axis if keeps else at)})
        for at, axis in enumerate(left)
    )


def reduced_axes(node: Node) -> frozenset[int] | None:
    """Return the axes that a reduction sums over; None where only a run tells."""
    rank = len(node.shape(0) or ())
    axes = node.integers("axes")
    if axes is None and node.shape(1) is not None:
        if 1 not in node.constants:
            return None
        axes = tuple(int(axis) for axis in node.constants[1])
    if not axes:
        return (
            frozenset() if node.integer("noop_with_empty_axes", 0) else frozenset(range(rank))
        )
    return frozenset(axis % rank for axis in axes)


def _picked(node: Node) -> tuple[Split, ...]:
    """Split an operator that picks from one axis, along the others."""
    read, rank = node.shape(0) or (), len(node.shape(0) or ())
    gone = node.integer("axis", 0) % rank
    left = [axis for axis in range(rank) if axis != gone]
    keeps = len(node.made) == rank
    return tuple(
        node.split(read[axis], {0: Part(axis)}, {0: Part(axis if keeps else at)})
        for at, axis in enumerate(left)
    )


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(names_of(lambda each: each.family is Family.SOFTMAX), _softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _before_axis),
    "SimplifiedLayerNormalization": _before_axis,
    f"{MICROSOFT}.SkipLayerNormalization": _before_last,
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": _before_last,
    "LpNormalization": _off_axis,
    "BatchNormalization": _batch_normalisation,
    "InstanceNormalization": _instance_normalisation,
    "GroupNormalization": _group_normalisation,
    **dict.fromkeys(
        names_of(lambda each: each.family is Family.GLOBAL_POOLING),
        partial(_first_axes, count=2),
    ),
    **dict.fromkeys(names_of(lambda each: each.family is Family.REDUCTION), _reduce),
    **dict.fromkeys(names_of(lambda each: each.family is Family.ARG_REDUCTION), _picked),
}

EDITS: Mapping[str, Editor] = {"GroupNormalization": _fewer_groups}
