"""Types of the values that a Loop or Scan carries from one iteration to the next.

The subgraph is inferred with the initial types. Dims that differ in its results become unknown and it is
inferred again, until the types of inputs and results are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.lattice import (
    is_complete,
    merged,
    shape_in,
    widened,
    with_shape,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto, TypeProto

    from memplan_cli.onnx_io.shapes.subgraphs.scope import OuterGraph

_MAX_ROUNDS = 8
"""Rounds after which shapes that still change are unknown."""


def infer_all_iterations(
    outer: OuterGraph,
    body: GraphProto,
    initial: Sequence[TypeProto],
    *,
    leading: Sequence[TypeProto] = (),
    trailing: Sequence[TypeProto] = (),
    skipped_outputs: int = 0,
) -> tuple[GraphProto, list[TypeProto]]:
    """Return the subgraph of a Loop or Scan inferred for any iteration, and the final carried types.

    Args:
        outer: the graph around it.
        body: the subgraph.
        initial: types of the initial carried values.
        leading: types of the inputs before the carried ones (Loop: iteration number and condition).
        trailing: types of the inputs after the carried ones (Scan: slices).
        skipped_outputs: number of outputs before the carried ones (Loop: the condition).
    """

    def infer_iteration(state: Sequence[TypeProto]) -> tuple[GraphProto, list[TypeProto]]:
        """Return the subgraph inferred for these carried types, and those that it returns."""
        inferred = outer.infer_subgraph(body, [*leading, *state, *trailing])
        return inferred, [v.type for v in inferred.output[skipped_outputs:][: len(state)]]

    declared = [value.type for value in body.input[len(leading) :][: len(initial)]]
    state = list(map(merged, initial, declared))
    for _ in range(_MAX_ROUNDS):
        inferred, results = infer_iteration(state)
        next_state = list(map(_widened_state, state, results, initial, declared))
        if next_state == state:
            return inferred, state
        state = next_state
    # A change may not have reached all values yet, so that no shape is certain.
    without_shapes = [with_shape(type_proto, None) for type_proto in state]
    return infer_iteration(without_shapes)[0], without_shapes


def _widened_state(
    before: TypeProto, after: TypeProto, initial: TypeProto, declared: TypeProto
) -> TypeProto:
    """Return the type of a carried value that holds before and after an iteration.

    A dim that the iteration changes becomes the declared one, or unknown if the declared number is only the initial
    one: before ``[1]``, after ``[2]``, initial and declared ``[1]`` give ``[?]``.

    Args:
        before: The type before the iteration, in which unknown parts are filled in from ``declared``.
        after: The type that the subgraph returns for it.
        initial: The type of the initial value.
        declared: The type that the subgraph declares for its input.
    """
    if shape_in(after) is None and is_complete(declared):
        return before  # an unknown returned shape does not contradict the declared type
    unchanged_dims = widened(before, after)  # others are unknown, and filled in
    declared_for_all_iterations = _without_initial_dims(initial, declared)
    return merged(unchanged_dims, declared_for_all_iterations)


def _without_initial_dims(initial: TypeProto, declared: TypeProto) -> TypeProto:
    """Return the declared type of a carried value; a dim with the number of the initial dim becomes unknown.

    Exporters declare the numbers of the first iteration. Such a number may be wrong in the second one.
    """
    initial_shape, declared_shape = shape_in(initial), shape_in(declared)
    if initial_shape is None or declared_shape is None:
        return declared
    if len(initial_shape) != len(declared_shape):
        return declared
    return with_shape(
        declared,
        tuple(
            None if isinstance(dim, int) and dim == initial_dim else dim
            for initial_dim, dim in zip(initial_shape, declared_shape, strict=True)
        ),
    )
