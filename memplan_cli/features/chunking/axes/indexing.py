"""Operators that take and put elements by index: every axis whose places stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.features.chunking.axes.terms import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.terms import Node, Rule, Split

_DATA, _INDICES, _UPDATES = 0, 1, 2


def _gather(node: Node) -> tuple[Split, ...]:
    """Split along the indices, the data whole, or along an axis of the data that is kept."""
    data, indices = node.shape(_DATA) or (), node.shape(_INDICES) or ()
    at = node.integer("axis", 0) % len(data)
    shift = len(indices) - 1
    by_index = (
        node.split(dim, {_INDICES: Part(axis)}, {0: Part(at + axis)})
        for axis, dim in enumerate(indices)
    )
    by_data = (
        node.split(dim, {_DATA: Part(axis)}, {0: Part(axis if axis < at else axis + shift)})
        for axis, dim in enumerate(data)
        if axis != at
    )
    return *by_index, *by_data


def _gather_elements(node: Node) -> tuple[Split, ...]:
    """Split along every axis: the data is whole along the one that indices count along."""
    at = node.integer("axis", 0) % len(node.made)
    return tuple(
        node.split(
            dim,
            {_DATA: None if axis == at else Part(axis), _INDICES: Part(axis)},
            {0: Part(axis)},
        )
        for axis, dim in enumerate(node.made)
    )


def _scatter_elements(node: Node) -> tuple[Split, ...]:
    """Split off the axis that indices count along, where every place has indices."""
    data, indices = node.shape(_DATA) or (), node.shape(_INDICES) or ()
    at = node.integer("axis", 0) % len(data)
    return tuple(
        node.split(
            dim, {which: Part(axis) for which in (_DATA, _INDICES, _UPDATES)}, {0: Part(axis)}
        )
        for axis, dim in enumerate(data)
        if axis != at and indices[axis] == dim
    )


RULES: Mapping[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "ScatterElements": _scatter_elements,
}
