"""Single nodes computed by ONNX's reference evaluator."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from memplan_cli.core.operators import canonical_domain
from memplan_cli.onnx_io.protobuf import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from onnx import NodeProto

    Array = NDArray[Any]


def evaluate_node(
    node: NodeProto, inputs: Sequence[Array | None], opsets: Mapping[str, int]
) -> list[Array]:
    """Return the results of a node without subgraphs, one for each of its outputs.

    An omitted input is None. ``opsets`` has the version of each domain; ``""`` is the standard one.

    Raises:
        Exception: of any type, if the operator is unknown or does not accept its inputs.
    """
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    proto = messages()
    copy = deepcopy(node)
    copy.domain = canonical_domain(node.domain)  # as in the keys of ``opsets``
    # Names by position: the node may read a value twice.
    copy.input[:] = ["" if value is None else f"i{i}" for i, value in enumerate(inputs)]
    copy.output[:] = [f"o{i}" for i in range(len(node.output))]
    feeds = {f"i{i}": value for i, value in enumerate(inputs) if value is not None}
    graph = proto.GraphProto(
        name="node",
        node=[copy],
        input=[proto.ValueInfoProto(name=name) for name in feeds],
        output=[proto.ValueInfoProto(name=name) for name in copy.output],
    )
    versions = [
        proto.OperatorSetIdProto(domain=domain, version=version)
        for domain, version in opsets.items()
    ]
    model = proto.ModelProto(ir_version=8, opset_import=versions, graph=graph)
    # Overflow gives infinity without a warning, as in kernels.
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model).run(None, feeds)
    return [np.asarray(result) for result in results]


def try_evaluate_node(
    node: NodeProto, inputs: Sequence[Array | None], opsets: Mapping[str, int]
) -> list[Array] | None:
    """Return the results of a node like `evaluate_node`; None if it fails or results are text."""
    import numpy as np

    try:
        results = evaluate_node(node, inputs, opsets)
    except Exception:  # noqa: BLE001 - see `evaluate_node`
        return None
    return results if all(array.dtype != np.object_ for array in results) else None
