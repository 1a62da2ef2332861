"""ONNX's own shape inference, called so that it cannot crash the process.

The inference functions of five operators follow the type of their first input without
looking whether there is one (onnx 1.23.2; each tried with an untyped input, as all
operators were): the process dies of SIGSEGV. Such nodes are kept from it under another
operator's name until their input has a type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.protobuf import compiled, messages
from memplan_cli.onnx_io.shapes.workarounds import NEED_WORKAROUND, infer_with_workarounds
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto

NEED_A_TYPE = ("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble")
"""Operators whose inference function needs the type of the first input, or the process."""

_HIDDEN = ".untyped"
"""Behind an operator's name: no schema is called so, and inference passes the node over."""

_IR_VERSION = 10
"""Of the models that single nodes are inferred in; from 4 on, all are alike to inference."""

_ROUNDS = 8
"""What one round makes known can give the next one's nodes their types."""


def infer_shapes(data: bytes) -> ModelProto:
    """Infer the types and shapes of a serialised model, sizes that it computes included.

    Raises:
        Exception: many types; the model is not what inference takes.
    """
    if not any(kind.encode() in data for kind in NEED_A_TYPE):
        return _inferred(data)
    model = messages().ModelProto.FromString(data)
    hidden = [node for node, typed in _risky(model.graph, frozenset()) if not typed]
    for node in hidden:
        node.op_type += _HIDDEN
    for _ in range(_ROUNDS):
        inferred = _inferred(model.SerializeToString())
        # The same nodes in the same order: inference adds values and leaves nodes alone.
        known = [typed for _, typed in _risky(inferred.graph, frozenset())]
        nodes = [node for node, _ in _risky(model.graph, frozenset())]
        ready = [
            node
            for node, typed in zip(nodes, known, strict=True)
            if typed and node.op_type.endswith(_HIDDEN)
        ]
        if not ready:
            break
        for node in ready:
            node.op_type = node.op_type.removesuffix(_HIDDEN)
    for node, _ in _risky(inferred.graph, frozenset()):
        node.op_type = node.op_type.removesuffix(_HIDDEN)
    return inferred


def answered(data: bytes) -> ModelProto | None:
    """Infer once, without a look at what it would crash on; None where it cannot."""
    try:
        return _inferred(data)
    except Exception:  # noqa: BLE001 - many types; what it cannot infer, it cannot deny
        return None


def infer_node(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    data: Mapping[str, NDArray[Any]],
    opset: int,
) -> Mapping[str, TypeProto]:
    """Infer the results of one node from its inputs' types, and from the numbers in some.

    All inputs must have a type. What cannot be inferred is left out.
    """
    from onnx import numpy_helper

    if not all(kind.WhichOneof("value") for kind in types.values()):
        return {}
    arrays = {name: numpy_helper.from_array(array, name) for name, array in data.items()}
    try:
        schema = compiled().defs.get_schema(node.op_type, opset, "")
        answer = schema._infer_node_outputs(  # noqa: SLF001 - onnx's own way needs its package
            node.SerializeToString(),
            {name: kind.SerializeToString() for name, kind in types.items()},
            {name: tensor.SerializeToString() for name, tensor in arrays.items()},
            {},
            {"": opset},
            _IR_VERSION,
        )
    except Exception:  # noqa: BLE001 - many types; what it cannot infer stays open
        return {}
    kinds = {name: messages().TypeProto.FromString(said) for name, said in answer.items()}
    return {name: kind for name, kind in kinds.items() if kind.WhichOneof("value")}


def _inferred(data: bytes) -> ModelProto:
    if not any(kind.encode() in data for kind in NEED_WORKAROUND):
        return _said(data)
    model = messages().ModelProto.FromString(data)
    return infer_with_workarounds(model, lambda changed: _said(changed.SerializeToString()))


def _said(data: bytes) -> ModelProto:
    # By position: check no types, be lenient, propagate the values of shapes.
    found = compiled().shape_inference.infer_shapes(data, False, False, True)  # noqa: FBT003
    inferred: ModelProto = messages().ModelProto.FromString(found)
    return inferred


def _risky(graph: GraphProto, outside: frozenset[str]) -> Iterator[tuple[NodeProto, bool]]:
    """Yield each node of these operators, and whether its first input has a type."""
    typed = outside | {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.WhichOneof("value")
    }
    typed |= {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type.removesuffix(_HIDDEN) in NEED_A_TYPE:
            yield node, bool(node.input) and node.input[0] in typed
        for _, body in subgraphs(node):
            yield from _risky(body, typed)
