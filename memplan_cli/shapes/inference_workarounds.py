"""What does ONNX inference say wrongly, whoever asks it? Kept from it, or told another way.

Two operators (onnx 1.23.2, each found by holding inference against what runs): Attention's
scores get the length of the keys as a number where it is not known, 0 for a free one and the
past's left out; STFT's default for ``onesided``, 1, is taken for 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.onnx_io.load import graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onnx import (
        GraphProto,
        ModelProto,
        NodeProto,
        TensorShapeProto,
        TypeProto,
        ValueInfoProto,
    )

    Dim = TensorShapeProto.Dimension

MISREAD = ("Attention", "STFT")
"""Operators that inference reads wrongly."""

_SCORES = 3
"""Attention's output of scores: batch, heads of the queries, queries, keys with the past."""

_PAST = 4
"""Attention's input of past keys."""

_INT = 2
"""``AttributeProto.INT``."""


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


def infer_rightly(model: ModelProto, infer: Callable[[ModelProto], ModelProto]) -> ModelProto:
    """Infer a model, which is changed, so that no misreading gets into the answer.

    The answer has the model's own nodes. Scores whose length is not known get no number for
    it; what is said of scores is inferred on, as often as there are Attentions in a row.
    """
    touched = [
        _Touched(at, index, original)
        for at, graph in enumerate(graphs(model.graph))
        for index, node in enumerate(graph.node)
        if (original := _reworded(node)) is not None
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


def misread_values(graph: GraphProto) -> frozenset[str]:
    """Return what one block makes of misread nodes: no inference elsewhere is believed there.

    ONNX Runtime asks the same functions.
    """
    found: set[str] = set()
    for node in graph.node:
        misread = _misread(node)
        if misread is not None:
            found.add(node.output[misread])
        if not found.isdisjoint(node.input):
            found.update(node.output)
    return frozenset(found - {""})


def _misread(node: NodeProto) -> int | None:
    """Return which output of a node inference would say wrongly, if any."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Attention" and len(node.output) > _SCORES and node.output[_SCORES]:
        return _SCORES
    if node.op_type == "STFT" and all(a.name != "onesided" for a in node.attribute):
        return 0
    return None


def _reworded(node: NodeProto) -> NodeProto | None:
    """Change a node that would be misread; return what it was, None where it stays so."""
    if _misread(node) is None:
        return None
    original = type(node)()
    original.CopyFrom(node)
    if node.op_type == "Attention":
        node.output[_SCORES] = ""
    else:
        node.attribute.add(name="onesided", type=_INT, i=1)
    return original


def _say_scores(entry: _Touched, level: _Level) -> bool:
    """Declare the scores of an Attention in a graph, if that is news."""
    node = entry.original
    if node.op_type != "Attention":
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
    if rank not in (3, 4) or len(keys) != rank:
        return None
    made = type(query)()
    made.tensor_type.elem_type = query.tensor_type.elem_type
    dims = made.tensor_type.shape.dim
    dims.add().CopyFrom(queries[0])
    heads = next((a.i for a in node.attribute if a.name == "q_num_heads"), 0)
    if rank == 4:
        dims.add().CopyFrom(queries[1])
    elif heads:
        dims.add(dim_value=heads)
    else:
        return None
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
