"""Names such as ``unk__0`` that ONNX's inference makes up for unknown dims, and their removal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.core.operators import operator
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto, ValueInfoProto

_GENERATED_NAME = re.compile(r"unk__\d+")


def is_generated_name(dim: str) -> bool:
    """Whether a dim has a name that ONNX's inference generates, such as ``unk__0``."""
    return bool(_GENERATED_NAME.fullmatch(dim))


def clear_generated_names(model: ModelProto) -> None:
    """Remove dim names such as ``unk__0``, in place; a name of this form that an input of the model has is kept.

    Such a dim becomes unknown, or, if a node shows that it is equal to another dim (`_equal_dims`), gets the
    number or name of that one.
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
            elif replacement is not None:
                dim.dim_param = replacement


def _equal_dims(
    graph: GraphProto, values: Mapping[str, ValueInfoProto]
) -> dict[str, int | str]:
    """Return, by generated name, the number or other name that the same dim has elsewhere in the graph.

    The first node that shows it counts.
    """
    equal_dims: dict[str, int | str] = {}
    for first, second in _dims_of_input_and_output(graph, values):
        for dim, other in ((second, first), (first, second)):
            if not is_generated_name(dim.dim_param):
                continue
            if other.HasField("dim_value"):
                equal_dims.setdefault(dim.dim_param, other.dim_value)
            elif other.dim_param and not is_generated_name(other.dim_param):
                equal_dims.setdefault(dim.dim_param, other.dim_param)
    return equal_dims


def _dims_of_input_and_output(
    graph: GraphProto, values: Mapping[str, ValueInfoProto]
) -> Iterator[tuple[TensorShapeProto.Dimension, TensorShapeProto.Dimension]]:
    """Yield each dim of an input and the equal dim of the output, at nodes that keep or transpose the shape."""
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
            yield input_dims[axis], output_dim


def _permutation(node: NodeProto, rank: int) -> list[int]:
    """Return for each output axis the input axis; the identity for operators other than Transpose."""
    if node.op_type != "Transpose":
        return list(range(rank))
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
    return list(range(rank))[::-1] if perm is None else perm
