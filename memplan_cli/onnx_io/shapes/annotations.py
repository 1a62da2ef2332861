"""Declarations of results, which are believed only where inference knows less.

What a node makes goes before what the file says that it makes. So dims of results that have
names, not numbers, are taken away before inference, and all declarations where its own nodes
contradict one; what inference leaves open is filled with them. A name that no input has
(``LayerNormalizationhidden_dim_0``), and that inference has an expression for in one place,
stands for that expression in all.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import bind_dim, binding_text, canonical_dim, symbols_of
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.shapes.lattice import agrees, merged, shape_in, with_shape
from memplan_cli.onnx_io.shapes.subgraphs.infer import declare
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from onnx import ModelProto, TypeProto

    from memplan_cli.core.program import Dim

    Annotations = Sequence[Mapping[str, TypeProto]]
    """Types of values by name, of each graph of a model."""


@dataclass(frozen=True, slots=True)
class Names:
    """What names of dims are known: those of the inputs, and what is bound."""

    inputs: frozenset[str]
    dims: Mapping[str, int]


def take_annotations(model: ModelProto, untrusted: Collection[str]) -> Annotations:
    """Take away, in place, what inference may know better of results; return it, by graph.

    Where types are untrusted that is all types, and those are not returned; else it is what
    has dims with names.
    """
    if not untrusted:
        return _take_named(model)
    annotations = []
    for graph in graphs(model.graph):
        types: dict[str, TypeProto] = {}
        for value in (*graph.value_info, *graph.output):
            if value.name not in untrusted:
                types[value.name] = deepcopy(value.type)
        del graph.value_info[:]
        for value in graph.output:
            value.ClearField("type")
        annotations.append(types)
    return annotations


def _take_named(model: ModelProto) -> Annotations:
    annotations = []
    for graph in graphs(model.graph):
        types: dict[str, TypeProto] = {}
        # A Loop may end before its trip count: what it collects is as long as its name says.
        collected = {o for node in graph.node if node.op_type == "Loop" for o in node.output}
        for value in (*graph.value_info, *graph.output):
            named = [dim for dim in value.type.tensor_type.shape.dim if dim.dim_param]
            if value.name in collected:
                continue
            if named:
                types[value.name] = deepcopy(value.type)
            for dim in named:
                dim.ClearField("dim_param")
        annotations.append(types)
    return annotations


def restore_annotations(
    model: ModelProto,
    annotations: Annotations,
    found: ModelProto,
    names: Names,
) -> bool:
    """Declare, in place, what was taken away and says more than inference found; is there any?

    ``found`` is what inference made of the model, whose graphs stand in the same order.

    Raises:
        SettingsError: a name is bound to another value than inference has for it.
    """
    inferred = [
        {v.name: v.type for v in (*g.value_info, *g.output)} for g in graphs(found.graph)
    ]
    meanings = _meanings(annotations, inferred, names.inputs)
    _reject_contradicted(meanings, names.dims)
    more = False
    for graph, types, known in zip(graphs(model.graph), annotations, inferred, strict=True):
        better: dict[str, TypeProto] = {}
        for name, declared in types.items():
            mine, kind = known.get(name), _expressed(declared, meanings, names.dims)
            if mine is None or (agrees(mine, kind) and merged(mine, kind) != mine):
                better[name] = kind if mine is None else merged(mine, kind)
        declare(graph, better)
        more = more or bool(better)
    return more


def _meanings(
    annotations: Annotations, inferred: Annotations, inputs: frozenset[str]
) -> dict[str, Dim]:
    """Return what inference says for names that no input has, where it says one thing only."""
    found: dict[str, set[Dim]] = {}
    for name, dim in _pairs(annotations, inferred):
        if name not in inputs and dim is not None and symbols_of(dim) <= inputs:
            found.setdefault(name, set()).add(dim)
    return {name: dims.pop() for name, dims in found.items() if len(dims) == 1}


def _pairs(annotations: Annotations, inferred: Annotations) -> Iterator[tuple[str, Dim]]:
    """Yield each name that is all of a declared dim, with what inference found in its place."""
    for types, known in zip(annotations, inferred, strict=True):
        for value, kind in types.items():
            declared, made = shape_in(kind), shape_in(known[value]) if value in known else None
            if declared is None or made is None or len(declared) != len(made):
                continue
            for dim, answer in zip(declared, made, strict=True):
                names = symbols_of(dim)
                if len(names) == 1 and dim in names:
                    yield (
                        str(dim),
                        canonical_dim(answer) if isinstance(answer, str) else answer,
                    )


def _expressed(
    kind: TypeProto, meanings: Mapping[str, Dim], dims: Mapping[str, int]
) -> TypeProto:
    """Return a type with meanings for names, and numbers for what is bound."""
    shape = shape_in(kind)
    if shape is None:
        return kind
    return with_shape(
        kind, tuple(bind_dim(meanings.get(str(dim), dim), dims) for dim in shape)
    )


def _reject_contradicted(meanings: Mapping[str, Dim], dims: Mapping[str, int]) -> None:
    for name, value in dims.items():
        meaning = meanings.get(name, value)
        if meaning != value:
            free = sorted(symbols_of(meaning))
            others = {other: number for other, number in dims.items() if other != name}
            raise SettingsError(
                f"dim {name!r} is {meaning}, which is not bound to {value}"
                if free
                else f"dim {name!r} is {meaning} at {binding_text(others)}, not {value}",
                hint=f"bind {', '.join(free)} in its place" if free else "leave it out",
            )


def names_of_inputs(model: ModelProto) -> frozenset[str]:
    """Return the names in the dims of a model's inputs, before any is bound."""
    dims = (d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim)
    return frozenset().union(*(symbols_of(dim or None) for dim in dims))
