"""Operators that compute each element by itself, with broadcasting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import OPERATORS
from memplan_cli.features.chunking.axes.terms import Edit, Part, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.terms import Editor, Node, Range, Rule, Split


def elementwise(node: Node) -> tuple[Split, ...]:
    """Split along any axis of the result; inputs that are repeated along it are whole."""
    made = node.made
    return tuple(
        node.split(
            dim,
            {at: aligned(shape, made, axis) for at, shape in enumerate(node.inputs)},
            {at: Part(axis) for at, shape in enumerate(node.outputs) if shape == made},
        )
        for axis, dim in enumerate(made)
    )


def _first_input(node: Node) -> tuple[Split, ...]:
    """Split as elementwise; inputs behind the first only say how."""
    return tuple(
        split._replace(inputs=(split.inputs[0], *(None for _ in split.inputs[1:])))
        for split in elementwise(node)
    )


def piece_shape(node: Node, split: Split, piece: Range) -> Edit:
    """Say the shape of the piece where an operator is told the shape of its result."""
    part = split.outputs[0]
    shape = list(node.made)
    if part is not None:
        start, stop = part.range(piece, shape[part.axis])
        shape[part.axis] = stop - start
    return Edit(constants={1: tuple(shape)})


RULES: Mapping[str, Rule] = {
    **{each.qualified_name: elementwise for each in OPERATORS if each.is_elementwise},
    "CastLike": _first_input,
    "Dropout": _first_input,
    "Expand": elementwise,
}

EDITS: Mapping[str, Editor] = {"Expand": piece_shape}
