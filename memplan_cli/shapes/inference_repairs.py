"""What does ONNX inference leave out or make up? Mended in its answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import graphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

_INVENTED = re.compile(r"unk__\d+")

_SAME_DIMS = frozenset(
    {
        "Abs", "Cast", "Ceil", "Clip", "Dropout", "Erf", "Exp", "Floor", "Gelu", "Identity",
        "LayerNormalization", "LeakyRelu", "Log", "Neg", "Not", "Reciprocal", "Relu", "Round",
        "Sigmoid", "Sign", "Softmax", "Sqrt", "Tanh",
    }
)  # fmt: skip
"""Ops whose first result has the dims of their first input."""


def is_invented(dim: str) -> bool:
    """Whether a dim has a name that inference made up."""
    return bool(_INVENTED.fullmatch(dim))


def add_masks(model: ModelProto) -> bool:
    """Add the mask of each Dropout, which inference leaves out; say if anything changed."""
    from onnx import TensorProto

    changed = False
    old = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0) < 10
    for graph in graphs(model.graph):
        values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        for data, mask in _unknown_masks(graph, values):
            fixed = graph.value_info.add()
            fixed.CopyFrom(values[data])
            fixed.name = mask
            if not old:
                fixed.type.tensor_type.elem_type = TensorProto.BOOL
            changed = True
    return changed


def _unknown_masks(
    graph: GraphProto, values: Mapping[str, ValueInfoProto]
) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        if node.op_type != "Dropout" or len(node.output) < 2 or not node.output[1]:
            continue
        if node.output[1] not in values and node.input[0] in values:
            yield node.input[0], node.output[1]


def forget_invented(model: ModelProto) -> None:
    """Clear the dims that inference made a name up for, or say them by a name in the file.

    A name of the form ``unk__0`` stays only where an input of the model has it.
    """
    if b"unk__" not in model.SerializeToString():  # far quicker than looking at each dim
        return
    given = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    for graph in graphs(model.graph):
        values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        invented = [
            dim
            for value in values.values()
            for dim in value.type.tensor_type.shape.dim
            if _INVENTED.fullmatch(dim.dim_param) and dim.dim_param not in given
        ]
        meant = _meanings(graph, values) if invented else {}
        for dim in invented:
            meaning = meant.get(dim.dim_param)
            dim.ClearField("dim_param")
            if isinstance(meaning, int):
                dim.dim_value = meaning
            elif meaning:
                dim.dim_param = meaning


def _meanings(graph: GraphProto, values: Mapping[str, ValueInfoProto]) -> dict[str, int | str]:
    """Return what the file says of made-up names, where an op only moves dims around."""
    found: dict[str, int | str] = {}
    for node in graph.node:
        if node.op_type != "Transpose" and node.op_type not in _SAME_DIMS:
            continue
        if node.input[0] not in values or node.output[0] not in values:
            continue
        before = values[node.input[0]].type.tensor_type.shape.dim
        after = values[node.output[0]].type.tensor_type.shape.dim
        places = _permutation(node, len(before))
        if len(before) != len(after) or sorted(places) != list(range(len(before))):
            continue
        for mine, place in zip(after, places, strict=True):
            theirs = before[place]
            for a, b in ((mine, theirs), (theirs, mine)):
                if _INVENTED.fullmatch(a.dim_param) and not _INVENTED.fullmatch(b.dim_param):
                    found.setdefault(
                        a.dim_param,
                        b.dim_param or (b.dim_value if b.HasField("dim_value") else ""),
                    )
    return found


def _permutation(node: NodeProto, rank: int) -> list[int]:
    if node.op_type != "Transpose":
        return list(range(rank))
    ints = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
    return list(range(rank))[::-1] if ints is None else ints
