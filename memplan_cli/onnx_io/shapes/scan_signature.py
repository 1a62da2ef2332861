"""How the inputs and outputs of a Scan node are divided into states and scanned tensors.

Shared by the inference of types inside subgraphs and the interpretation of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onnx import NodeProto

    from memplan_cli.core.program import Dim, Shape


@dataclass(frozen=True, slots=True)
class ScanSignature:
    """The division of a Scan's inputs and outputs; states come first in both.

    Attributes:
        states: number of state inputs, and of state outputs.
        input_axes: for each scanned input, the axis along which it is sliced.
        output_axes: for each stacked output, the axis along which it is stacked.
        is_reversed: whether any input is read, or output written, from its end (a direction that is not 0).
    """

    states: int
    input_axes: Sequence[int]
    output_axes: Sequence[int]
    is_reversed: bool

    @classmethod
    def of_node(cls, node: NodeProto) -> ScanSignature:
        """Read the attributes of a Scan node; axes that are left out are 0."""
        lists = {attribute.name: list(attribute.ints) for attribute in node.attribute}
        scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
        states = len(node.input) - scanned
        stacked = max(len(node.output) - states, 0)  # a node may leave out its last outputs
        input_axes = lists.get("scan_input_axes", [])
        output_axes = lists.get("scan_output_axes", [])
        directions = (
            *lists.get("scan_input_directions", ()),
            *lists.get("scan_output_directions", ()),
        )
        return cls(
            states,
            (*input_axes, *[0] * (scanned - len(input_axes))),
            (*output_axes, *[0] * (stacked - len(output_axes))),
            any(directions),
        )

    def length(self, shapes: Iterable[Shape | None]) -> Dim:
        """Return the number of iterations: the first known length of a scanned input along its axis.

        None if none is known. ``shapes`` are those of the scanned inputs, in order.
        """
        for shape, axis in zip(shapes, self.input_axes, strict=True):
            if shape and -len(shape) <= axis < len(shape) and shape[axis] is not None:
                return shape[axis]
        return None
