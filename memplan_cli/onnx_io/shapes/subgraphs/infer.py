"""Shape inference inside the subgraphs of If, Loop and Scan; those of SequenceMap are left to ONNX.

ONNX's inference enters subgraphs, but it gives a Loop's carried values no shape and does not see
constants of the outer graph. So each subgraph with an unknown type is inferred as a model of its own:
captured values become its inputs, and captured constants its initializers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial, reduce
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.lattice import (
    has_holes,
    is_complete,
    merged,
    shape_in,
    slice_of,
    stack_of,
    widened,
    with_shape,
)
from memplan_cli.onnx_io.shapes.never_run import NEVER_RUN
from memplan_cli.onnx_io.shapes.subgraphs.carried import infer_all_iterations
from memplan_cli.onnx_io.shapes.subgraphs.scope import Infer, OuterGraph
from memplan_cli.onnx_io.traversal import graphs, subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

    from memplan_cli.core.program import Dim, Shape


_MAX_ROUNDS = 8
"""Rounds of inference; each can give types to more subgraphs."""

_MAX_TRIP_COUNT = 1 << 20
"""A larger trip count, such as the largest int64, means that the condition alone ends the Loop."""


def infer_nested(model: ModelProto, infer: Infer) -> ModelProto:
    """Return a copy of a model with inferred types, those in subgraphs at any depth included.

    ``infer`` infers one level and keeps known types. Types that `_MAX_ROUNDS` rounds do not reach stay unknown.
    """
    given = deepcopy(model)
    for _ in range(_MAX_ROUNDS):
        inferred = infer(given)
        # Writes the types in subgraphs into ``inferred``. From these types follow those of the outputs of If,
        # Loop and Scan, which are replaced if `infer` found wrong ones.
        new_output_types = _infer_subgraphs(given, inferred, infer)
        if not new_output_types:
            break
        declare(given.graph, new_output_types)  # for the consumers, in the next round
    return inferred


def _infer_subgraphs(
    given: ModelProto, inferred: ModelProto, infer: Infer
) -> dict[str, TypeProto]:
    """Infer the subgraphs of all control-flow nodes; return the types of outputs that were unknown or wrong.

    ``inferred`` is the result of ``infer`` for ``given``, so nodes have the same index in both models. Changes:

    - In ``inferred``, subgraphs get their types, or a mark if they are never run.
    - In ``given``, which the caller infers again, wrong shapes are removed from *states*: the values that a Loop
      or Scan carries from one iteration to the next.
    """
    node_pairs = [
        (node, inferred.graph.node[index])
        for index, node in enumerate(given.graph.node)
        if node.op_type in _RULES
    ]
    if not node_pairs:
        return {}
    outer = OuterGraph.of(inferred, partial(infer_nested, infer=infer))
    output_types: dict[str, TypeProto] = {}
    for node, inferred_node in node_pairs:
        wrong_states = _wrongly_declared_states(node, inferred_node, outer)
        if wrong_states or not _has_all_types(inferred_node, outer):
            results = _infer_subgraphs_of(node, inferred_node, outer)
            # From wrong states, ONNX has inferred wrong types of the outputs. Such types do not count as known:
            # they are replaced by ``results``, and not merged with ``results``.
            known_types = {} if wrong_states else outer.types
            new_types = _new_types(node.output, results, known_types)
            outer.types.update(new_types)  # for later nodes that read the outputs
            output_types |= new_types
        _mark_never_run(inferred_node, _never_run_branch(node, outer))
        for state in wrong_states:  # of ``node``, so in ``given``
            state.type.CopyFrom(with_shape(state.type, None))
    return output_types


def _infer_subgraphs_of(
    node: NodeProto, inferred_node: NodeProto, outer: OuterGraph
) -> Sequence[TypeProto]:
    """Infer the subgraphs of an If, Loop or Scan, and return the types of its outputs that follow from them.

    The inferred subgraphs replace those in ``inferred_node``. Only ``node`` is read: it has the declared types.
    """
    subgraphs_by_attribute, output_types = _RULES[node.op_type](node, outer)
    for attribute in inferred_node.attribute:
        if attribute.name in subgraphs_by_attribute:
            attribute.g.CopyFrom(subgraphs_by_attribute[attribute.name])
    return output_types


def _new_types(
    names: Iterable[str], results: Iterable[TypeProto], known_types: Mapping[str, TypeProto]
) -> dict[str, TypeProto]:
    """Return the types of outputs, known and inferred parts merged, that differ from the known types.

    An invalid model may have more or fewer outputs than results: those without a partner are left out.
    """
    new_types = {}
    for name, result in zip(names, results, strict=False):
        known = known_types.get(name)
        combined = result if known is None else merged(known, result)
        if name and combined != known:
            new_types[name] = combined
    return new_types


def _has_all_types(node: NodeProto, outer: OuterGraph) -> bool:
    """Whether all types are fully known of the outputs of a node and of the values in its subgraphs."""
    output_types = [outer.type_of(name) for name in node.output if name]
    bodies = [graph for _, body in subgraphs(node) for graph in graphs(body)]
    input_types = [value.type for body in bodies for value in body.input]
    # `has_holes` is about the outputs of the nodes in a body, not about the inputs of the body.
    some_node_lacks_types = any(has_holes(body) for body in bodies)
    return all(map(is_complete, (*output_types, *input_types))) and not some_node_lacks_types


def _wrongly_declared_states(
    node: NodeProto, inferred_node: NodeProto, outer: OuterGraph
) -> list[ValueInfoProto]:
    """Return the inputs of a Loop's or Scan's subgraph whose declared dims hold for the first iteration only.

    Such an input has a declared dim, a number or name, which the initial value has too, while the subgraph
    returns a value with another dim. ONNX's inference keeps the declared dim, and infers wrong types from
    it. ``inferred_node`` is the node after inference.
    """
    if node.op_type == "Loop":
        leading_inputs, leading_outputs = 2, 1  # iteration number and condition; condition
        initial = node.input[2:]
    elif node.op_type == "Scan":
        leading_inputs = leading_outputs = 0
        initial = node.input[: len(node.input) - _scanned_count(node)]
    else:
        return []
    ((_, subgraph),) = subgraphs(node)
    ((_, inferred),) = subgraphs(inferred_node)
    wrong = []
    for index, name in enumerate(initial):
        declared = subgraph.input[leading_inputs + index]
        result = inferred.output[leading_outputs + index]
        dims = zip(
            shape_in(outer.type_of(name)) or (),
            shape_in(declared.type) or (),
            shape_in(result.type) or (),
            strict=False,
        )
        if any(
            initial_dim == declared_dim != result_dim
            for initial_dim, declared_dim, result_dim in dims
            if declared_dim is not None and result_dim is not None
        ):
            wrong.append(declared)
    return wrong


def declare(graph: GraphProto, new_types: Mapping[str, TypeProto]) -> None:
    """Set the types of node outputs of a graph, in place; outputs that it does not list are added."""
    known = {v.name: v for v in (*graph.output, *graph.value_info)}
    for name, type_proto in new_types.items():
        value = known.get(name)
        if value is None:
            value = graph.value_info.add()
            value.name = name
        value.type.CopyFrom(type_proto)


SubgraphResults = tuple[Mapping[str, "GraphProto"], Sequence["TypeProto"]]
"""The inferred subgraphs by attribute, and the types of their control-flow node's outputs."""


def _if(node: NodeProto, outer: OuterGraph) -> SubgraphResults:
    """Return the inferred branches, and the types that their outputs have in common.

    A branch that is never run is left out.
    """
    never_run = _never_run_branch(node, outer)
    inner = {
        name: outer.infer_subgraph(g, ()) for name, g in subgraphs(node) if name != never_run
    }
    types_by_branch = [[value.type for value in graph.output] for graph in inner.values()]
    # Each branch has an output for each output of the If. Not strict, as the model may be invalid.
    results = [reduce(widened, types) for types in zip(*types_by_branch, strict=False)]
    return inner, results


def _never_run_branch(node: NodeProto, outer: OuterGraph) -> str:
    """Return the attribute with the subgraph that is never run, or ``""``.

    For an If with a constant condition it is the other branch; for a Loop the body if the trip count is the
    constant 0 or the condition is false at the start.
    """
    if node.op_type == "If":
        condition = outer.constant_scalar(node.input[0])
        if condition is None:
            return ""
        return "else_branch" if condition else "then_branch"
    if node.op_type == "Loop":
        trip_count_and_condition = [
            outer.constant_scalar(name) for name in node.input[:2] if name
        ]
        ((attribute, _),) = subgraphs(node)
        # A false condition is equal to 0.
        return attribute if 0 in trip_count_and_condition else ""
    return ""


def _mark_never_run(node: NodeProto, never_run: str) -> None:
    """Mark the subgraph in this attribute as never run, in place, by its doc string; none for ``""``."""
    for attribute in node.attribute:
        if attribute.name == never_run:
            attribute.g.doc_string = NEVER_RUN


def _loop(node: NodeProto, outer: OuterGraph) -> SubgraphResults:
    """Return the inferred body; outputs are the final states and the stacked rows (trip count, ..).

    A constant trip count is taken for the number of rows. A run may have fewer, because the condition may end
    the Loop earlier, but a plan must hold the most.
    """
    (attribute, subgraph), *_ = subgraphs(node)
    initial = [outer.type_of(name) for name in node.input[2:]]
    iteration_and_condition = [value.type for value in subgraph.input[:2]]
    inferred, final = infer_all_iterations(
        outer,
        subgraph,
        initial,
        leading=iteration_and_condition,
        skipped_outputs=1,  # the condition
    )
    trip_count = outer.constant_scalar(node.input[0]) if node.input and node.input[0] else None
    if trip_count == 0:
        final = initial
    if trip_count is not None and not 0 <= trip_count <= _MAX_TRIP_COUNT:
        trip_count = None  # "until the condition is false", for any number of rows
    rows = inferred.output[1 + len(initial) :]
    return {attribute: inferred}, [*final, *(stack_of(v.type, 0, trip_count) for v in rows)]


def _scan(node: NodeProto, outer: OuterGraph) -> SubgraphResults:
    """Return the inferred body; outputs are the final states and the stacked rows of all iterations.

    Raises:
        ValueError: the node has axes for another number of inputs than it scans.
    """
    (body_name, subgraph), *_ = subgraphs(node)
    states = len(node.input) - _scanned_count(node)  # the first inputs, and the first outputs
    axes = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    scanned = [outer.type_of(name) for name in node.input[states:]]
    input_axes = axes.get("scan_input_axes", [0] * len(scanned))
    slices = [
        merged(slice_of(type_proto, axis), value.type)
        for type_proto, axis, value in zip(
            scanned, input_axes, subgraph.input[states:], strict=True
        )
    ]
    initial = [outer.type_of(name) for name in node.input[:states]]
    inferred, final = infer_all_iterations(outer, subgraph, initial, trailing=slices)
    rows = inferred.output[states:]
    output_axes = axes.get("scan_output_axes", [0] * len(rows))
    length = _scan_length(map(shape_in, scanned), input_axes)
    stacked = [
        stack_of(value.type, axis, length)
        for value, axis in zip(rows, output_axes, strict=False)
    ]
    return {body_name: inferred}, [*final, *stacked]


def _scanned_count(node: NodeProto) -> int:
    """Return how many inputs of a Scan are sliced; the ones before them are states."""
    return next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)


def _scan_length(shapes: Iterable[Shape | None], axes: Iterable[int]) -> Dim:
    """Return the first known length of a scanned input along its axis; None if none is known."""
    for shape, axis in zip(shapes, axes, strict=True):
        if shape and -len(shape) <= axis < len(shape) and shape[axis] is not None:
            return shape[axis]
    return None


_RULES: Mapping[str, Callable[[NodeProto, OuterGraph], SubgraphResults]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
