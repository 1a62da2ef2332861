"""Workarounds for errors and gaps of ONNX's shape inference (onnx 1.23.2).

Each error was found by comparing inference with a run:

- Attention: the scores get a number for the key length even if it is unknown (0 for a free length,
  and past keys are not counted). With heads merged into the last dim, a named width is taken for 0.
- STFT: the default of ``onesided``, 1, is taken for 0.
- Slice of a shape: a start that data propagation does not know is taken for 0.

Inference is kept from these nodes, or they are rephrased; memplan's own rules infer the outputs.
Gaps are repaired in the result: masks of Dropout are missing, and dims get generated names.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import STANDARD_DOMAINS, operator
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from onnx import (
        GraphProto,
        ModelProto,
        NodeProto,
        TypeProto,
        ValueInfoProto,
    )

WRONG_TYPES = ("Attention", "STFT")
"""Operators for which inference may return wrong types."""

NEED_WORKAROUND = (*WRONG_TYPES, "Slice")
"""Operators for which inference may return wrong types or propagate wrong values."""

_SCORES = 3
"""Attention's output of scores: (batch, query heads, queries, past and new keys)."""

_PAST_KEYS = 4
"""Attention's input of past keys: (batch, key heads, past keys, head size)."""

_STARTS, _ENDS = 1, 2
"""Inputs of Slice (opset 10 on)."""

_HIDDEN = ".merged_heads"
"""Suffix of a hidden node's operator: it has no schema, so inference skips the node."""

_UNDEFINED = "memplan: undefined"
"""Name of an input that no node defines: data propagation stops at it."""

_INT = 2
"""``AttributeProto.INT``."""

_GENERATED_NAME = re.compile(r"unk__\d+")


class _ChangedNode(NamedTuple):
    """A node that was changed for inference.

    Attributes:
        graph: position of its graph in `graphs`.
        node: position of the node in its graph.
        original: a copy of the node before the change.
    """

    graph: int
    node: int
    original: NodeProto


class _GraphTypes(NamedTuple):
    """A graph, the values that it declares, and the types that were inferred for it, by name."""

    graph: GraphProto
    declared: Mapping[str, ValueInfoProto]
    inferred: Mapping[str, TypeProto]

    @classmethod
    def of(cls, graph: GraphProto, inferred: GraphProto) -> _GraphTypes:
        """Collect the types of a graph before inference, and of the same graph after it."""
        declared = {value.name: value for value in (*graph.value_info, *graph.output)}
        values = (*inferred.input, *inferred.value_info, *inferred.output)
        return cls(graph, declared, {value.name: value.type for value in values})


def infer_with_workarounds(data: bytes, infer: Callable[[bytes], ModelProto]) -> ModelProto:
    """Return a serialized model inferred without the errors that the head of this file lists.

    Nodes are changed for inference; the result has the original ones again. The scores of an Attention are
    declared from its inferred queries and keys, and inference is repeated, because they may lead to
    further scores.

    Args:
        data: the model.
        infer: infers a serialized model.
    """
    # Much faster than decoding the model, and enough to see that no such node is in it.
    if not any(op_type.encode() in data for op_type in NEED_WORKAROUND):
        return infer(data)
    model = messages().ModelProto.FromString(data)
    computed = _computed_values(model)
    changed_nodes = [
        _ChangedNode(graph_index, node_index, original)
        for graph_index, graph in enumerate(graphs(model.graph))
        for node_index, node in enumerate(graph.node)
        if (original := _change_for_inference(node, computed)) is not None
    ]
    if not changed_nodes:
        del model  # inference makes two more copies
        return infer(data)
    inferred = infer(model.SerializeToString())
    for _ in changed_nodes:  # each repetition declares the scores of at least one more node
        types = tuple(
            _GraphTypes.of(graph, inferred_graph)
            for graph, inferred_graph in zip(
                graphs(model.graph), graphs(inferred.graph), strict=True
            )
        )
        is_new = [_declare_scores(n.original, types[n.graph]) for n in changed_nodes]
        if not any(is_new):
            break
        inferred = infer(model.SerializeToString())
    inferred_graphs = tuple(graphs(inferred.graph))
    for changed in changed_nodes:
        inferred_graphs[changed.graph].node[changed.node].CopyFrom(changed.original)
    return inferred


def unreliable_values(graph: GraphProto) -> frozenset[str]:
    """Return the values of one block whose types no inference function of ONNX gets right.

    These are the wrong outputs of nodes, and all that is computed from them. ONNX Runtime uses the same
    inference functions.
    """
    unreliable: set[str] = set()
    for node in graph.node:
        unreliable.update(node.output[output] for output in _wrong_outputs(node))
        if not unreliable.isdisjoint(node.input):
            unreliable.update(node.output)
    return frozenset(unreliable - {""})


def _wrong_outputs(node: NodeProto) -> Sequence[int]:
    """Return the output positions for which inference would return wrong types."""
    if node.domain not in STANDARD_DOMAINS:
        return ()
    if _has_merged_heads(node):  # a named width is taken for 0
        return range(len(node.output))
    if node.op_type == "Attention" and len(node.output) > _SCORES and node.output[_SCORES]:
        return (_SCORES,)
    if node.op_type == "STFT" and all(a.name != "onesided" for a in node.attribute):
        return (0,)  # the default is taken for 0
    return ()


def _has_merged_heads(node: NodeProto) -> bool:
    """Whether a node is an Attention whose inputs are (batch, length, heads * head size).

    Only then it has an attribute with the number of heads.
    """
    return node.op_type == "Attention" and any(a.name == "q_num_heads" for a in node.attribute)


def _computed_values(model: ModelProto) -> frozenset[str]:
    """Return the names of all inputs and node outputs, those of Constant nodes excepted, at any depth."""
    names: set[str] = set()
    for graph in graphs(model.graph):
        names.update(value.name for value in graph.input)
        for node in graph.node:
            if node.op_type != "Constant":
                names.update(node.output)
    return frozenset(names)


def _change_for_inference(node: NodeProto, computed: Collection[str]) -> NodeProto | None:
    """Change a node that inference would misread, in place; return a copy of the original, None if unchanged.

    A Slice whose starts are computed gets undefined ends, at which data propagation stops. The inferred type
    stays the same, since it depends on the ends only if the starts are constant. An Attention with merged
    heads is hidden, another one loses its output of scores, and an STFT gets the default of
    ``onesided`` as an attribute.
    """
    if node.op_type == "Slice" and node.domain in STANDARD_DOMAINS:
        # Before opset 10 starts and ends are attributes.
        if len(node.input) <= _ENDS or node.input[_STARTS] not in computed:
            return None
        original = deepcopy(node)
        node.input[_ENDS] = _UNDEFINED
        return original
    if not _wrong_outputs(node):
        return None
    original = deepcopy(node)
    if _has_merged_heads(node):
        node.op_type += _HIDDEN
    elif node.op_type == "Attention":
        node.output[_SCORES] = ""
    else:
        node.attribute.add(name="onesided", type=_INT, i=1)
    return original


def _declare_scores(node: NodeProto, types: _GraphTypes) -> bool:
    """Declare the scores of an Attention in its graph, in place; return whether that is new information.

    Not for a node with merged heads, which is hidden as a whole, nor if the scores have a shape or their type
    cannot be computed yet.
    """
    if node.op_type != "Attention" or _has_merged_heads(node):
        return False
    name = node.output[_SCORES]
    value = types.declared.get(name)
    if value is not None and value.type.tensor_type.HasField("shape"):
        return False
    scores = _scores_type(node, types.inferred)
    if scores is None:
        return False
    value = value or types.graph.value_info.add(name=name)
    value.type.CopyFrom(scores)
    return True


def _scores_type(node: NodeProto, types: Mapping[str, TypeProto]) -> TypeProto | None:
    """Return the type of scores: q (n, h, s, d), k (n, g, t, d), past k (n, g, p, d) -> (n, h, s, p + t).

    n is the batch, h and g are numbers of heads, s, t and p of queries, keys and past keys. The last dim
    is unknown if there are past keys and p or t is not a number. None if q or k is unknown.
    """
    query_type, key_type = (types.get(name) for name in node.input[:2])
    if query_type is None or key_type is None:
        return None
    queries, keys = query_type.tensor_type.shape.dim, key_type.tensor_type.shape.dim
    if len(queries) != 4 or len(keys) != 4:
        return None
    scores = type(query_type)()
    scores.tensor_type.elem_type = query_type.tensor_type.elem_type
    dims = scores.tensor_type.shape.dim
    for dim in queries[:3]:
        dims.add().CopyFrom(dim)
    past_name = node.input[_PAST_KEYS] if len(node.input) > _PAST_KEYS else ""
    if not past_name:
        dims.add().CopyFrom(keys[2])
        return scores
    past = types[past_name].tensor_type.shape.dim if past_name in types else ()
    lengths = [keys[2], *past[2:3]]
    if len(past) == 4 and all(dim.HasField("dim_value") for dim in lengths):
        dims.add(dim_value=sum(dim.dim_value for dim in lengths))
    else:
        dims.add()
    return scores


def is_generated_name(dim: str) -> bool:
    """Whether a dim has a name that ONNX's inference generates, such as ``unk__0``."""
    return bool(_GENERATED_NAME.fullmatch(dim))


def add_dropout_masks(model: ModelProto) -> bool:
    """Add the type of each Dropout's mask, which inference leaves out, in place; return whether there was one."""
    from onnx import TensorProto

    is_changed = False
    has_float_masks = standard_opset(model) < 10  # masks have the element type of the data
    for graph in graphs(model.graph):
        values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        for data, mask in _untyped_masks(graph, values):
            value = graph.value_info.add()
            value.CopyFrom(values[data])
            value.name = mask
            if not has_float_masks:
                value.type.tensor_type.elem_type = TensorProto.BOOL
            is_changed = True
    return is_changed


def _untyped_masks(
    graph: GraphProto, values: Mapping[str, ValueInfoProto]
) -> Iterator[tuple[str, str]]:
    """Yield the names of data and mask of each Dropout whose mask has no type but whose data has."""
    for node in graph.node:
        if node.op_type != "Dropout" or len(node.output) < 2 or not node.output[1]:
            continue
        if node.output[1] not in values and node.input[0] in values:
            yield node.input[0], node.output[1]


def clear_generated_names(model: ModelProto) -> None:
    """Clear the dims with names such as ``unk__0``, in place, or replace them by a dim of the file.

    A name of this form that an input of the model has is kept.
    """
    if b"unk__" not in model.SerializeToString():  # much faster than a look at each dim
        return
    input_names = {
        d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim
    }
    for graph in graphs(model.graph):
        # An output of the graph may also be in ``value_info``: both entries are cleared.
        all_values = (*graph.input, *graph.output, *graph.value_info)
        values = {value.name: value for value in all_values}
        generated_dims = [
            dim
            for value in all_values
            for dim in value.type.tensor_type.shape.dim
            if is_generated_name(dim.dim_param) and dim.dim_param not in input_names
        ]
        replacements = _equal_dims(graph, values) if generated_dims else {}
        for dim in generated_dims:
            replacement = replacements.get(dim.dim_param)
            dim.ClearField("dim_param")
            if isinstance(replacement, int):
                dim.dim_value = replacement
            elif replacement:
                dim.dim_param = replacement


def _equal_dims(
    graph: GraphProto, values: Mapping[str, ValueInfoProto]
) -> dict[str, int | str]:
    """Return the dims of the file to which generated names are equal.

    They are found at Transpose and at operators that keep the shape: if one side of the node has a
    generated name and the other a number or name, both are the same dim. The first such node counts.
    The dim is ``""`` if the other side is unknown there.
    """
    equal_dims: dict[str, int | str] = {}
    for node in graph.node:
        if node.op_type != "Transpose" and not operator(node).keeps_shape:
            continue
        if node.input[0] not in values or node.output[0] not in values:
            continue
        input_dims = values[node.input[0]].type.tensor_type.shape.dim
        output_dims = values[node.output[0]].type.tensor_type.shape.dim
        permutation = _permutation(node, len(input_dims))
        is_valid = sorted(permutation) == list(range(len(input_dims)))
        if len(input_dims) != len(output_dims) or not is_valid:
            continue
        for output_dim, axis in zip(output_dims, permutation, strict=True):
            input_dim = input_dims[axis]
            for dim, other in ((output_dim, input_dim), (input_dim, output_dim)):
                if is_generated_name(dim.dim_param) and not is_generated_name(other.dim_param):
                    number = other.dim_value if other.HasField("dim_value") else ""
                    equal_dims.setdefault(dim.dim_param, other.dim_param or number)
    return equal_dims


def _permutation(node: NodeProto, rank: int) -> list[int]:
    """Return for each output axis the input axis; the identity for operators other than Transpose."""
    if node.op_type != "Transpose":
        return list(range(rank))
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
    return list(range(rank))[::-1] if perm is None else perm
