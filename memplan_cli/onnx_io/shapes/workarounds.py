"""Workarounds for ONNX's shape inference: what it reads wrongly, leaves out or makes up.

What it reads wrongly is kept from it or rephrased; what it leaves out, and names that it
makes up, are repaired in its answer.

Three operators are read wrongly (onnx 1.23.2, each found by holding inference against what
runs): Attention's scores get the length of the keys as a number where it is not known, 0 for a
free one and the past's left out, and where its heads lie side by side, a width that has a name is
taken for 0 (a rule of ours says these shapes); STFT's default for ``onesided``, 1, is taken for 0;
a Slice of a shape takes a start for 0 if data propagation does not know it.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import STANDARD_DOMAINS, operator
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from onnx import (
        GraphProto,
        ModelProto,
        NodeProto,
        TensorShapeProto,
        TypeProto,
        ValueInfoProto,
    )

    Dim = TensorShapeProto.Dimension

WRONG_TYPES = ("Attention", "STFT")
"""Operators for which inference may return wrong types."""

NEED_WORKAROUND = (*WRONG_TYPES, "Slice")
"""Operators for which inference may return wrong types or propagate wrong values."""

_STARTS, _ENDS = 1, 2
"""Inputs of Slice (opset 10 on)."""

_UNKNOWN = "memplan: unknown"
"""Name of a value that no node defines: data propagation stops at it."""

_SCORES = 3
"""Attention's output of scores: batch, heads of the queries, queries, keys with the past."""

_PAST = 4
"""Attention's input of past keys."""

_HIDDEN = ".in rows"
"""Behind an operator's name: no schema is called so, and inference passes the node over."""

_INT = 2
"""``AttributeProto.INT``."""

_INVENTED = re.compile(r"unk__\d+")


class _Touched(NamedTuple):
    graph: int
    node: int
    original: NodeProto


class _Level(NamedTuple):
    """A graph, what it declares, and the types of what was inferred in it."""

    graph: GraphProto
    said: Mapping[str, ValueInfoProto]
    types: Mapping[str, TypeProto]

    @classmethod
    def of(cls, graph: GraphProto, inferred: GraphProto) -> _Level:
        said = {value.name: value for value in (*graph.value_info, *graph.output)}
        found = (*inferred.input, *inferred.value_info, *inferred.output)
        return cls(graph, said, {value.name: value.type for value in found})


def infer_with_workarounds(
    model: ModelProto, infer: Callable[[ModelProto], ModelProto]
) -> ModelProto:
    """Infer a model, which is changed, so that nothing that it reads wrongly gets into the answer.

    The answer has the model's own nodes. Scores whose length is not known get no number for
    it; what is said of scores is inferred on, as often as there are Attentions in a row.
    """
    computed = _computed_names(model)
    touched = [
        _Touched(at, index, original)
        for at, graph in enumerate(graphs(model.graph))
        for index, node in enumerate(graph.node)
        if (original := _rephrased(node, computed)) is not None
    ]
    inferred = infer(model)
    for _ in touched:
        levels = tuple(
            _Level.of(graph, answer)
            for graph, answer in zip(graphs(model.graph), graphs(inferred.graph), strict=True)
        )
        if not [entry for entry in touched if _say_scores(entry, levels[entry.graph])]:
            break
        inferred = infer(model)
    found = tuple(graphs(inferred.graph))
    for entry in touched:
        found[entry.graph].node[entry.node].CopyFrom(entry.original)
    return inferred


def unreliable_values(graph: GraphProto) -> frozenset[str]:
    """Return what one block makes of nodes that need a workaround: no inference elsewhere is believed there.

    ONNX Runtime asks the same functions.
    """
    found: set[str] = set()
    for node in graph.node:
        found.update(node.output[at] for at in _unreliable_outputs(node))
        if not found.isdisjoint(node.input):
            found.update(node.output)
    return frozenset(found - {""})


def _unreliable_outputs(node: NodeProto) -> Sequence[int]:
    """Return which outputs of a node inference would say wrongly."""
    if node.domain not in STANDARD_DOMAINS:
        return ()
    if _is_in_rows(node):
        return range(len(node.output))
    if node.op_type == "Attention" and len(node.output) > _SCORES and node.output[_SCORES]:
        return (_SCORES,)
    if node.op_type == "STFT" and all(a.name != "onesided" for a in node.attribute):
        return (0,)
    return ()


def _is_in_rows(node: NodeProto) -> bool:
    """Whether an Attention has the heads of its inputs side by side."""
    return node.op_type == "Attention" and any(a.name == "q_num_heads" for a in node.attribute)


def _computed_names(model: ModelProto) -> frozenset[str]:
    """Return the names of all values that are not constants, subgraphs included."""
    names: set[str] = set()
    for graph in graphs(model.graph):
        names.update(value.name for value in graph.input)
        for node in graph.node:
            if node.op_type != "Constant":
                names.update(node.output)
    return frozenset(names)


def _rephrased(node: NodeProto, computed: Collection[str]) -> NodeProto | None:
    """Change a node that needs a workaround; return what it was, None where it stays so.

    A Slice whose starts are computed gets unknown ends. The inferred type stays the same: it
    depends on the ends only if the starts are constant.
    """
    if node.op_type == "Slice" and node.domain in STANDARD_DOMAINS:
        if len(node.input) <= _ENDS or node.input[_STARTS] not in computed:
            return None
        original = deepcopy(node)
        node.input[_ENDS] = _UNKNOWN
        return original
    if not _unreliable_outputs(node):
        return None
    original = deepcopy(node)
    if _is_in_rows(node):
        node.op_type += _HIDDEN
    elif node.op_type == "Attention":
        node.output[_SCORES] = ""
    else:
        node.attribute.add(name="onesided", type=_INT, i=1)
    return original


def _say_scores(entry: _Touched, level: _Level) -> bool:
    """Declare the scores of an Attention in a graph, if that is news."""
    node = entry.original
    if node.op_type != "Attention" or _is_in_rows(node):
        return False
    name, said = node.output[_SCORES], level.said
    if name in said and said[name].type.tensor_type.HasField("shape"):
        return False
    made = _scores(node, level.types)
    if made is None:
        return False
    value = said.get(name) or level.graph.value_info.add(name=name)
    value.type.CopyFrom(made)
    return True


def _scores(node: NodeProto, types: Mapping[str, TypeProto]) -> TypeProto | None:
    """Return the type of an Attention's scores; None where that of what it reads is not known."""
    query, key = (types.get(name) for name in node.input[:2])
    if query is None or key is None:
        return None
    queries, keys = query.tensor_type.shape.dim, key.tensor_type.shape.dim
    rank = len(queries)
    if rank != 4 or len(keys) != rank:
        return None
    made = type(query)()
    made.tensor_type.elem_type = query.tensor_type.elem_type
    dims = made.tensor_type.shape.dim
    dims.add().CopyFrom(queries[0])
    dims.add().CopyFrom(queries[1])
    dims.add().CopyFrom(queries[-2])
    past = node.input[_PAST] if len(node.input) > _PAST else ""
    if not past:
        dims.add().CopyFrom(keys[-2])
        return made
    before = types[past].tensor_type.shape.dim if past in types else ()
    lengths = [keys[-2], *(dim for dim in before[2:3])]
    if len(before) == 4 and all(dim.HasField("dim_value") for dim in lengths):
        dims.add(dim_value=sum(dim.dim_value for dim in lengths))
    else:
        dims.add()
    return made


def is_invented(dim: str) -> bool:
    """Whether a dim has a name that inference made up."""
    return bool(_INVENTED.fullmatch(dim))


def add_masks(model: ModelProto) -> bool:
    """Add the mask of each Dropout, which inference leaves out; say if anything changed."""
    from onnx import TensorProto

    changed = False
    old = standard_opset(model) < 10
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
        # An output may be there twice.
        every = (*graph.input, *graph.output, *graph.value_info)
        values = {value.name: value for value in every}
        invented = [
            dim
            for value in every
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
        if node.op_type != "Transpose" and not operator(node).keeps_shape:
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
