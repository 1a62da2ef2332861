"""ONNX's own shape inference, kept from the nodes on which it crashes or errs (onnx 1.23.2).

Each defect was found by trying every operator, or by comparing inference with a run:

- The inference functions of five operators (`TYPE_REQUIRED`) dereference the type of their first input
  without a check: with an untyped input the process dies of SIGSEGV.
- Attention: the scores get a number for the key length even if it is unknown (0 for a free length,
  and past keys are not counted). With heads merged into the last dim, a named width is taken for 0.
- STFT: the default of ``onesided``, 1, is taken for 0.
- Slice of a shape: a start that data propagation does not know is taken for 0.
- Cast to bool: data propagation keeps the elements, so that a dim cast to bool and back stays the dim.
- Range of constant float32s: the steps are counted in float32, but ONNX Runtime counts them in doubles.
  0.1 to 3.0 by 0.1 would be 30 instead of 29.

Such nodes are changed before inference, and the result has the original ones again. The types that are
then missing are found by `interpret`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS, canonical_domain
from memplan_cli.onnx_io.constants import constant_tensors
from memplan_cli.onnx_io.protobuf import compiled, messages
from memplan_cli.onnx_io.traversal import graphs, subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

TYPE_REQUIRED = ("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble")
"""Operators on which inference crashes unless their first input has a type."""

WRONG_TYPES = ("Attention", "STFT")
"""Operators for which inference may return wrong types."""

_MAY_BE_CHANGED = (*TYPE_REQUIRED, *WRONG_TYPES, "Slice", "Range", "Cast")

_CAST_TO_BOOL = b"\n\x02to\x18\x09"
"""The attribute ``to`` of such a Cast, serialized as far as its value, `_BOOL`."""

_SCORES = 3
"""Attention's output of scores: (batch, query heads, queries, past and new keys)."""

_STARTS, _ENDS = 1, 2
"""Inputs of Slice (opset 10 on)."""

_UNKNOWN_OPERATOR = ".hidden"
"""Appended to a node's operator: the result has no schema, so inference skips the node."""

_UNDEFINED = "memplan: undefined"
"""Name of an input that no node defines: data propagation stops at it."""

_FLOAT = 1
"""``TensorProto.FLOAT``, which is float32."""

_BOOL = 9
"""``TensorProto.BOOL``."""

_INT = 2
"""``AttributeProto.INT``."""

_IR_VERSION = 10
"""IR version for the inference of single nodes; from 4 on it makes no difference."""


def infer_shapes(data: bytes) -> ModelProto:
    """Parse a serialized model; return it with inferred types and shapes, values of shapes propagated.

    Nodes on which ONNX's inference crashes or errs are changed before (`_change_node_for_inference`); the result
    has the original nodes again.

    Raises:
        Exception: of many types; inference does not accept the model.
    """
    # A search for the names is much faster than decoding the model, and enough to see that no node of these
    # operators is in it. Most models have a Cast, but few have one to bool.
    rare = (op_type.encode() for op_type in _MAY_BE_CHANGED if op_type != "Cast")
    if not any(part in data for part in (*rare, _CAST_TO_BOOL)):
        return _infer(data)
    model = messages().ModelProto.FromString(data)
    originals = _change_for_inference(model)
    if not originals:
        del model  # inference makes two more copies
        return _infer(data)
    inferred = _infer(model.SerializeToString())
    # Inference returns the same graphs and nodes in the same order. So the graphs are listed as in
    # `_change_for_inference`, main graph first, to find them by the index that it returned.
    inferred_graphs = [graph for graph, _ in _with_typed_names(inferred.graph)]
    for (graph_index, node_index), original in originals.items():
        # None of these operators has subgraphs, in which types would be lost.
        inferred_graphs[graph_index].node[node_index].CopyFrom(original)
    return inferred


def _change_for_inference(model: ModelProto) -> dict[tuple[int, int], NodeProto]:
    """Change the nodes on which inference crashes or errs, in place; return the originals.

    The keys are the index of the graph in `_with_typed_names`, and the index of the node in the graph.
    """
    computed = _computed_values(model)
    float_names = _float_constants(model)
    originals = {}
    for graph_index, (graph, typed) in enumerate(_with_typed_names(model.graph)):
        for node_index, node in enumerate(graph.node):
            if node.op_type not in _MAY_BE_CHANGED:
                continue
            # Inference of these operators crashes if their first input has no type.
            crashes = node.op_type in TYPE_REQUIRED and not typed.issuperset(node.input[:1])
            # Inference of a Range of floats may return a wrong length.
            is_float_range = _is_standard(node, "Range") and node.input[0] in float_names
            original = deepcopy(node)
            if crashes or is_float_range:
                _hide_from_inference(node)
                is_changed = True
            else:
                is_changed = _change_node_for_inference(node, computed)
            if is_changed:
                originals[graph_index, node_index] = original
    return originals


def infer_node(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    tensors: Mapping[str, TensorProto],
    opsets: Mapping[str, int],
) -> Mapping[str, TypeProto]:
    """Return the types of one node's outputs by name, as far as ONNX infers them.

    Empty if inference does not accept the node.

    Args:
        node: a node without subgraphs, of a domain that ONNX defines.
        types: the types of its inputs; if one is empty, nothing is inferred, since inference might crash.
        tensors: the inputs whose values are known.
        opsets: the version of each domain.
    """
    if not all(type_proto.WhichOneof("value") for type_proto in types.values()):
        return {}
    try:
        domain = canonical_domain(node.domain)
        schema = compiled().defs.get_schema(node.op_type, opsets[domain], domain)
        # As ``onnx.shape_inference.infer_node_outputs``, for which the whole package would be imported.
        answer = schema._infer_node_outputs(  # noqa: SLF001
            node.SerializeToString(),
            {name: type_proto.SerializeToString() for name, type_proto in types.items()},
            {name: tensor.SerializeToString() for name, tensor in tensors.items()},
            {},  # sparse tensors
            dict(opsets),
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


def _has_merged_heads(node: NodeProto) -> bool:
    """Whether a node is an Attention whose inputs are (batch, length, heads * head size).

    Only then it has an attribute with the number of heads.
    """
    is_attention = _is_standard(node, "Attention")
    return is_attention and any(a.name == "q_num_heads" for a in node.attribute)


def _has_scores(node: NodeProto) -> bool:
    """Whether a node is an Attention that returns its scores."""
    is_attention = _is_standard(node, "Attention")
    return is_attention and len(node.output) > _SCORES and bool(node.output[_SCORES])


def _lacks_onesided(node: NodeProto) -> bool:
    """Whether a node is an STFT without the attribute ``onesided``."""
    is_stft = _is_standard(node, "STFT")
    return is_stft and all(a.name != "onesided" for a in node.attribute)


def _is_standard(node: NodeProto, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in STANDARD_DOMAINS


def _computed_values(model: ModelProto) -> frozenset[str]:
    """Return the names of all inputs and node outputs, those of Constant nodes excepted, at any depth."""
    names: set[str] = set()
    for graph in graphs(model.graph):
        names.update(value.name for value in graph.input)
        for node in graph.node:
            if node.op_type != "Constant":
                names.update(node.output)
    return frozenset(names)


def _with_typed_names(
    graph: GraphProto, outer_typed: frozenset[str] = frozenset()
) -> Iterator[tuple[GraphProto, frozenset[str]]]:
    """Yield a graph and all its subgraphs, each with the names of the readable values that have a type.

    ``outer_typed`` are those of the values around the graph; none for the main graph.
    """
    typed = outer_typed | {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.WhichOneof("value")
    }
    typed |= {tensor.name for tensor in graph.initializer}
    yield graph, typed
    for node in graph.node:
        for _, body in subgraphs(node):
            yield from _with_typed_names(body, typed)


def _float_constants(model: ModelProto) -> frozenset[str]:
    """Return the names of all constants of float32, at any depth."""
    return frozenset(
        name
        for graph in graphs(model.graph)
        for name, tensor in constant_tensors(graph)
        if tensor.data_type == _FLOAT
    )


def _hide_from_inference(node: NodeProto) -> None:
    """Rename a node's operator, in place, to one that inference does not know and skips."""
    node.op_type += _UNKNOWN_OPERATOR


def _change_node_for_inference(node: NodeProto, computed: Collection[str]) -> bool:
    """Change a node on which inference would crash or return a wrong type; return whether it was changed.

    For the changed node inference returns the right type, or none. The defects of ONNX are listed at the top
    of this file.

    Args:
        node: Changed in place.
        computed: Names of values that are not constant.
    """
    # Attention with merged heads: the types of all outputs would be wrong.
    if _has_merged_heads(node):
        _hide_from_inference(node)
    # Other Attention: only the type of the scores would be wrong, so they are omitted.
    elif _has_scores(node):
        node.output[_SCORES] = ""
    # STFT: inference would take an omitted attribute for 0, but its default is 1.
    elif _lacks_onesided(node):
        node.attribute.add(name="onesided", type=_INT, i=1)
    # Slice: data propagation would take an unknown start for 0. With ends that nothing defines it finds no values. The
    # type does not depend on the ends, since the starts are not constant.
    elif _has_computed_start(node, computed):
        node.input[_ENDS] = _UNDEFINED
    # Cast to bool: data propagation would keep the elements. An IsNaN has the same type and no values.
    elif _is_cast_to_bool(node):
        node.op_type = "IsNaN"
    else:
        return False
    return True


def _has_computed_start(node: NodeProto, computed: Collection[str]) -> bool:
    """Whether a node is a Slice whose starts are an input that is not constant."""
    return (
        _is_standard(node, "Slice")
        and len(node.input) > _ENDS  # before opset 10 starts and ends are attributes
        and node.input[_STARTS] in computed
    )


def _is_cast_to_bool(node: NodeProto) -> bool:
    return _is_standard(node, "Cast") and any(
        a.name == "to" and a.i == _BOOL for a in node.attribute
    )
