"""Declared types of node outputs, which are used only where inference knows less.

What a node computes wins over what the file declares. So named dims of node outputs are removed before
inference, or all declarations if nodes contradict one, and what inference leaves open is filled in from
them. If no input has a name (``LayerNormalizationhidden_dim_0``), and inference finds an expression for
it in one place, the name is replaced by the expression everywhere.
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
class DimNames:
    """The names in the dims of a model's inputs, and the sizes of bound names."""

    inputs: frozenset[str]
    bound_sizes: Mapping[str, int]


def take_types(model: ModelProto, never_restored: Collection[str]) -> Annotations:
    """Remove the declared types of all node outputs, in place.

    Returns the removed types of each graph, except those of values in ``never_restored``.
    """
    annotations = []
    for graph in graphs(model.graph):
        types: dict[str, TypeProto] = {}
        for value in (*graph.value_info, *graph.output):
            if value.name not in never_restored:
                types[value.name] = deepcopy(value.type)
        del graph.value_info[:]
        for value in graph.output:
            value.ClearField("type")
        annotations.append(types)
    return annotations


def take_named_dims(model: ModelProto) -> Annotations:
    """Remove the names of dims of node outputs, in place, so that inference infers the dims anew.

    Returns the original types of each graph. The stacked outputs of Loops keep their names: inference would take
    the trip count for their length, but a Loop may end earlier.
    """
    annotations = []
    for graph in graphs(model.graph):
        types: dict[str, TypeProto] = {}
        stacked = {
            output
            for node in graph.node
            if node.op_type == "Loop"
            # The first outputs are the states: all inputs but trip count and condition.
            for output in node.output[max(0, len(node.input) - 2) :]
        }
        for value in (*graph.value_info, *graph.output):
            if value.name in stacked:
                continue
            named = [dim for dim in value.type.tensor_type.shape.dim if dim.dim_param]
            if named:
                types[value.name] = deepcopy(value.type)
            for dim in named:
                dim.ClearField("dim_param")
        annotations.append(types)
    return annotations


def restore_annotations(
    model: ModelProto,
    annotations: Annotations,
    inferred_model: ModelProto,
    names: DimNames,
) -> bool:
    """Declare removed types again, in place, where they tell more than inference; return whether any does.

    A removed type may have dim names that no input has. Such a name is replaced by the dim that inference found
    in its place, if this is the same dim everywhere (`_unique_expressions`). Bound names are replaced by their
    sizes. The result is declared unless it contradicts the inferred type.

    Args:
        model: the model given to inference.
        annotations: the types that were removed before inference, by graph (`take_types`, `take_named_dims`).
        inferred_model: the inferred model, with its graphs in the same order.
        names: the dim names of the inputs, and the sizes of bound names.

    Raises:
        SettingsError: a name is bound to a size that inference contradicts.
    """
    inferred = [
        {v.name: v.type for v in (*g.value_info, *g.output)}
        for g in graphs(inferred_model.graph)
    ]
    expressions = _unique_expressions(annotations, inferred, names.inputs)
    _reject_wrong_bindings(expressions, names.bound_sizes)
    is_any_improved = False
    for graph, removed_types, inferred_types in zip(
        graphs(model.graph), annotations, inferred, strict=True
    ):
        improved_types: dict[str, TypeProto] = {}
        for name, removed in removed_types.items():
            declared = _with_expressions(removed, expressions, names.bound_sizes)
            improved = _improved_type(declared, inferred_types.get(name))
            if improved is not None:
                improved_types[name] = improved
        declare(graph, improved_types)
        is_any_improved |= bool(improved_types)
    return is_any_improved


def _improved_type(declared: TypeProto, inferred: TypeProto | None) -> TypeProto | None:
    """Return the inferred type with the dims that only the declared one tells.

    None if the declared type adds nothing, or contradicts the inferred one.
    """
    if inferred is None:
        return declared
    if not agrees(inferred, declared):
        return None
    improved = merged(inferred, declared)
    return None if improved == inferred else improved


def _unique_expressions(
    annotations: Annotations, inferred: Annotations, input_dims: frozenset[str]
) -> dict[str, Dim]:
    """Return the inferred dim of each name of a declared dim, if inference finds exactly one dim for the name.

    Names in the dims of inputs are left out. Inferred dims count only if they are numbers, or expressions in
    names of ``input_dims``: nobody could bind others.
    """
    candidates: dict[str, set[Dim]] = {}
    for name, dim in _named_dims(annotations, inferred):
        is_bindable = dim is not None and symbols_of(dim) <= input_dims
        if is_bindable and name not in input_dims:
            expression = canonical_dim(dim) if isinstance(dim, str) else dim
            candidates.setdefault(name, set()).add(expression)
    return {name: dims.pop() for name, dims in candidates.items() if len(dims) == 1}


def _named_dims(annotations: Annotations, inferred: Annotations) -> Iterator[tuple[str, Dim]]:
    """Yield each declared dim that is a single name, with the inferred dim at its place.

    Values whose declared and inferred ranks differ are left out.
    """
    for declared_types, inferred_types in zip(annotations, inferred, strict=True):
        for value in [name for name in declared_types if name in inferred_types]:
            declared_shape = shape_in(declared_types[value]) or ()
            inferred_shape = shape_in(inferred_types[value]) or ()
            if len(declared_shape) != len(inferred_shape):
                continue
            for declared, inferred_dim in zip(declared_shape, inferred_shape, strict=True):
                is_single_name = symbols_of(declared) == {declared}
                if is_single_name:
                    yield str(declared), inferred_dim


def _with_expressions(
    type_proto: TypeProto, expressions: Mapping[str, Dim], dims: Mapping[str, int]
) -> TypeProto:
    """Return a type with names replaced by their expressions, and bound symbols by numbers."""
    shape = shape_in(type_proto)
    if shape is None:
        return type_proto
    return with_shape(
        type_proto, tuple(bind_dim(expressions.get(str(dim), dim), dims) for dim in shape)
    )


def _reject_wrong_bindings(expressions: Mapping[str, Dim], dims: Mapping[str, int]) -> None:
    """Refuse to bind a name to another size than follows from the dims of the inputs.

    Args:
        expressions: For dim names that are in no input's shape, the dims that follow from the inputs, such as
            ``n + 1``. Bound names in them are replaced by sizes, so they are numbers if all are bound.
        dims: The bound sizes by name.

    Raises:
        SettingsError: a name is bound to another number, or while its expression has free names.
    """
    for name, size in dims.items():
        expression = expressions.get(name, size)  # without an expression any size is right
        if expression == size:
            continue
        free_names = sorted(symbols_of(expression))
        if free_names:
            raise SettingsError(
                f"dim {name!r} is {expression}, which is not bound to {size}",
                hint=f"bind {', '.join(free_names)} in its place",
            )
        others = {other: number for other, number in dims.items() if other != name}
        condition = f" at {binding_text(others)}" if others else ""
        raise SettingsError(
            f"dim {name!r} is {expression}{condition}, not {size}", hint="leave it out"
        )


def names_of_inputs(model: ModelProto) -> frozenset[str]:
    """Return the names in the dims of a model's inputs."""
    dims = (d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim)
    return frozenset().union(*(symbols_of(dim or None) for dim in dims))
