"""Nodes that only move elements, evaluated on the elements' indices.

Where each element comes from is all that such an operator knows of it, so an element may be an
expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.operators import operator
from memplan_cli.onnx_io.reference import try_evaluate_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from onnx import NodeProto

    Array = NDArray[np.generic]
    Objects = NDArray[np.object_]


def moved(
    node: NodeProto, inputs: Sequence[Objects | Array | None], opset: int
) -> list[Objects] | None:
    """Return the results of an operator that moves elements; its other inputs are numbers."""
    places = operator(node).moves
    if any(a.name == "reduction" and a.s not in (b"", b"none") for a in node.attribute):
        return None
    elements: list[object] = [0]  # what a Pad fills with
    given: list[Array | None] = []
    for at, value in enumerate(inputs):
        if value is None or at not in places:
            given.append(value)
            continue
        numbers = np.arange(len(elements), len(elements) + value.size, dtype=np.int64)
        elements.extend(value.reshape(-1).tolist())
        given.append(numbers.reshape(value.shape))
    results = try_evaluate_node(node, given, {"": opset})
    if results is None:
        return None
    table = np.empty(len(elements), dtype=object)
    table[:] = elements
    return [np.asarray(table[result.astype(np.int64)], dtype=object) for result in results]
