"""Single nodes evaluated by ONNX's reference evaluator: on numbers, and on places of elements.

What only moves elements is evaluated on their places: where each comes from is all that the
operator knows of it, so an element may be an expression.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.operators import operator
from memplan_cli.onnx_io.protobuf import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from onnx import NodeProto

    Array = NDArray[np.generic]
    Objects = NDArray[np.object_]


def evaluated(
    node: NodeProto, inputs: Sequence[Array | None], opset: int
) -> list[Array] | None:
    """Return the results of a node of the default domain; None where there are none."""
    from onnx.reference import ReferenceEvaluator

    proto = messages()
    copy = deepcopy(node)
    copy.domain = ""
    # Names of its own: one value may be two inputs, of which only one is moved.
    copy.input[:] = [f"i{at}" if value is not None else "" for at, value in enumerate(inputs)]
    copy.output[:] = [f"o{at}" for at in range(len(node.output))]
    feeds = {f"i{at}": value for at, value in enumerate(inputs) if value is not None}
    graph = proto.GraphProto(
        name="node",
        node=[copy],
        input=[proto.ValueInfoProto(name=name) for name in feeds],
        output=[proto.ValueInfoProto(name=name) for name in copy.output],
    )
    versions = [proto.OperatorSetIdProto(domain="", version=opset)]
    model = proto.ModelProto(ir_version=8, opset_import=versions, graph=graph)
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # noqa: BLE001 - a node that is wrong fails in many ways, and has no result
        return None
    arrays = [np.asarray(result) for result in results]
    return arrays if all(array.dtype != np.object_ for array in arrays) else None


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
    results = evaluated(node, given, opset)
    if results is None:
        return None
    table = np.empty(len(elements), dtype=object)
    table[:] = elements
    return [np.asarray(table[result.astype(np.int64)], dtype=object) for result in results]
