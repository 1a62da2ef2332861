"""ONNX's own shape inference, called so that it cannot crash the process.

In onnx 1.23.2 the inference functions of five operators dereference the type of their first input
without a check (found by trying every operator with an untyped input): the process dies of SIGSEGV.
Such nodes are hidden under another operator's name until their input has a type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.protobuf import compiled, messages
from memplan_cli.onnx_io.shapes.workarounds import infer_with_workarounds
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto

TYPE_REQUIRED = ("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble")
"""Operators on which inference crashes unless their first input has a type."""

_HIDDEN = ".untyped"
"""Suffix of a hidden node's operator: it has no schema, so inference skips the node."""

_IR_VERSION = 10
"""IR version for the inference of single nodes; from 4 on it makes no difference."""

_MAX_ROUNDS = 8
"""Rounds of inference; each can give a type to the inputs of more hidden nodes."""


def infer_shapes(data: bytes) -> ModelProto:
    """Return a serialized model with inferred types and shapes, values of shapes propagated.

    Nodes on which inference would crash are hidden. Each round of inference may give their inputs types; then
    they are shown, and the next round infers them.

    Raises:
        Exception: of many types; inference does not accept the model.
    """
    if not any(op_type.encode() in data for op_type in TYPE_REQUIRED):
        return infer_with_workarounds(data, _infer)
    model = messages().ModelProto.FromString(data)
    hidden = [node for node, typed in _crash_candidates(model.graph, frozenset()) if not typed]
    for node in hidden:
        node.op_type += _HIDDEN
    for _ in range(_MAX_ROUNDS):
        inferred = infer_with_workarounds(model.SerializeToString(), _infer)
        # Inference keeps the nodes and their order.
        is_typed = [typed for _, typed in _crash_candidates(inferred.graph, frozenset())]
        nodes = [node for node, _ in _crash_candidates(model.graph, frozenset())]
        ready = [
            node
            for node, typed in zip(nodes, is_typed, strict=True)
            if typed and node.op_type.endswith(_HIDDEN)
        ]
        if not ready:
            break
        for node in ready:
            node.op_type = node.op_type.removesuffix(_HIDDEN)
    for node, _ in _crash_candidates(inferred.graph, frozenset()):
        node.op_type = node.op_type.removesuffix(_HIDDEN)
    return inferred


def infer_unguarded(data: bytes) -> ModelProto | None:
    """Return a serialized model with inferred types, None if inference raises.

    The caller makes sure that nodes of `TYPE_REQUIRED` operators have typed inputs.
    """
    try:
        return infer_with_workarounds(data, _infer)
    except Exception:  # noqa: BLE001 - of many types
        return None


def infer_node(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    arrays: Mapping[str, NDArray[Any]],
    opset: int,
) -> Mapping[str, TypeProto]:
    """Return the types of one node's outputs by name, as far as ONNX infers them.

    Empty if inference does not accept the node.

    Args:
        node: a node of the standard domain without subgraphs.
        types: the types of its inputs; if one is empty, nothing is inferred, since inference might crash.
        arrays: values of the inputs that are known.
        opset: version of the standard domain.
    """
    from onnx import numpy_helper

    if not all(type_proto.WhichOneof("value") for type_proto in types.values()):
        return {}
    tensors = {name: numpy_helper.from_array(array, name) for name, array in arrays.items()}
    try:
        schema = compiled().defs.get_schema(node.op_type, opset, "")
        # The public function needs the whole onnx package.
        answer = schema._infer_node_outputs(  # noqa: SLF001
            node.SerializeToString(),
            {name: type_proto.SerializeToString() for name, type_proto in types.items()},
            {name: tensor.SerializeToString() for name, tensor in tensors.items()},
            {},
            {"": opset},
            _IR_VERSION,
        )
    except Exception:  # noqa: BLE001 - of many types
        return {}
    outputs = {name: messages().TypeProto.FromString(data) for name, data in answer.items()}
    return {name: output for name, output in outputs.items() if output.WhichOneof("value")}


def _infer(data: bytes) -> ModelProto:
    """Return a serialized model with the types that ONNX's inference finds; it may crash the process."""
    # Positional arguments: no type check, no strict mode, data propagation.
    inferred = compiled().shape_inference.infer_shapes(data, False, False, True)  # noqa: FBT003
    model: ModelProto = messages().ModelProto.FromString(inferred)
    return model


def _crash_candidates(
    graph: GraphProto, outer_typed: frozenset[str]
) -> Iterator[tuple[NodeProto, bool]]:
    """Yield each node of a `TYPE_REQUIRED` operator, hidden or not, and whether its first input has a type.

    Subgraphs are included; ``outer_typed`` are the values around the graph that have a type.
    """
    typed = outer_typed | {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.WhichOneof("value")
    }
    typed |= {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type.removesuffix(_HIDDEN) in TYPE_REQUIRED:
            yield node, bool(node.input) and node.input[0] in typed
        for _, body in subgraphs(node):
            yield from _crash_candidates(body, typed)
