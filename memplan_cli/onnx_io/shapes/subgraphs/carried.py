"""Types of the values that a Loop or Scan carries from one iteration to the next.

The subgraph is inferred with the initial types. Dims that differ in its results become unknown and it is
inferred again, until the types of inputs and results are equal. A dim that grows by a constant in each
iteration has its largest size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(slots=True)
class LoopBody:
    """The subgraph of a Loop or Scan.

    Attributes:
        outer: the graph around it.
        subgraph: the subgraph.
        leading: types of the inputs before the carried ones (Loop: iteration number and condition).
        skipped_outputs: number of outputs before the carried ones (Loop: the condition).
        trailing: types of the inputs after the carried ones (Scan: slices).
    """

    outer: OuterGraph
    subgraph: GraphProto
    leading: list[TypeProto]
    skipped_outputs: int
    trailing: list[TypeProto] = field(default_factory=list)

    def infer_all_iterations(
        self, initial: list[TypeProto], iterations: int | None
    ) -> tuple[GraphProto, list[TypeProto]]:
        """Return the subgraph inferred for every iteration, and the carried types after the last one.

        Args:
            initial: types of the initial values.
            iterations: number of iterations, None if unknown. If a dim grows by the same number in each
                iteration, the subgraph is inferred for the largest size that it has in any, because the arena
                must hold it, even if the loop may end earlier.
        """
        # For a Scan these include the trailing inputs, which `zip` leaves out.
        declared = [v.type for v in self.subgraph.input[len(self.leading) :]]
        state = [merged(a, b) for a, b in zip(initial, declared, strict=False)]
        start = state
        if iterations == 0:  # the outputs are the initial values
            return self.infer_iteration(start)[0], start
        for _ in range(_MAX_ROUNDS):
            inferred, results = self.infer_iteration(state)
            next_state = [
                self._type_of_both(*types)
                for types in zip(state, results, initial, declared, strict=False)
            ]
            if next_state == state:
                return inferred, state
            # A dim changes. Numbers that can be counted are better than an unknown dim.
            grown = self._with_constant_growth(start, iterations) if iterations else None
            if grown is not None:
                return grown
            state = next_state
        # Later iterations may still change any shape: a change may only have reached some values.
        without_shapes = [with_shape(type_proto, None) for type_proto in state]
        return self.infer_iteration(without_shapes)[0], without_shapes

    def infer_iteration(
        self, state: Sequence[TypeProto]
    ) -> tuple[GraphProto, list[TypeProto]]:
        """Return the subgraph inferred for these carried types, and the carried types that it returns."""
        inferred = self.outer.infer_subgraph(
            self.subgraph, [*self.leading, *state, *self.trailing]
        )
        carried = inferred.output[self.skipped_outputs :][: len(state)]
        return inferred, [value.type for value in carried]

    @staticmethod
    def _type_of_both(
        before: TypeProto, after: TypeProto, initial: TypeProto, declared: TypeProto
    ) -> TypeProto:
        """Return the part of a carried type that holds before and after an iteration.

        It is filled in from the declared type, without numbers that may hold for the first iteration only.
        If the subgraph's result has no shape, a complete declaration is believed: ``before`` stays.
        """
        if shape_in(after) is None and is_complete(declared):
            return before
        return merged(widened(before, after), _without_initial_dims(initial, declared))

    def _with_constant_growth(
        self, start: list[TypeProto], iterations: int
    ) -> tuple[GraphProto, list[TypeProto]] | None:
        """Return the body at its largest iteration, and the largest type of each carried value.

        None unless all dims grow by a constant per iteration. The growth is taken from the first two
        iterations and checked on the last one. A dim that shrinks is largest at the start.
        """
        after_one = self.infer_iteration(start)[1]
        growths = [_growth(a, b) for a, b in zip(start, after_one, strict=True)]
        after_two = self.infer_iteration(after_one)[1]
        if [_growth(a, b) for a, b in zip(after_one, after_two, strict=True)] != growths:
            return None
        if any(growth is None for growth in growths):
            return None
        pairs = list(zip(start, growths, strict=True))
        before_last = [_grown(a, growth, iterations - 1) for a, growth in pairs]
        after_last = [_grown(a, growth, iterations) for a, growth in pairs]
        if any(map(_is_negative, after_last)):
            return None
        if self.infer_iteration(before_last)[1] != after_last:
            return None
        largest_inputs = [_larger_dims(a, b) for a, b in zip(start, before_last, strict=True)]
        largest_results = [_larger_dims(a, b) for a, b in zip(start, after_last, strict=True)]
        return self.infer_iteration(largest_inputs)[0], largest_results


def _without_initial_dims(initial: TypeProto, declared: TypeProto) -> TypeProto:
    """Return a declared type without the numbers that the initial value has: they may hold for it only."""
    shape, other_shape = shape_in(initial), shape_in(declared)
    if shape is None or other_shape is None or len(shape) != len(other_shape):
        return declared
    pairs = zip(shape, other_shape, strict=True)
    return with_shape(
        declared, tuple(None if isinstance(b, int) and a == b else b for a, b in pairs)
    )


_Growth = tuple[int, ...]


def _growth(before: TypeProto, after: TypeProto) -> _Growth | None:
    """Return ``after - before`` for each dim; 0 for a name that stays.

    Empty if neither type has a shape. None if the ranks differ, or a dim is unknown or another name.
    """
    shape, other_shape = shape_in(before), shape_in(after)
    if shape is None or other_shape is None or len(shape) != len(other_shape):
        return None if shape != other_shape else ()
    growths = []
    for a, b in zip(shape, other_shape, strict=True):
        if isinstance(a, int) and isinstance(b, int):
            growths.append(b - a)
        elif a == b and a is not None:
            growths.append(0)
        else:
            return None
    return tuple(growths)


def _grown(type_proto: TypeProto, growth: _Growth | None, iterations: int) -> TypeProto:
    """Return a type after a number of iterations, in each of which its dims grow by ``growth``."""
    shape = shape_in(type_proto)
    if shape is None or growth is None:
        return type_proto
    return with_shape(
        type_proto,
        tuple(
            dim + by * iterations if isinstance(dim, int) else dim
            for dim, by in zip(shape, growth, strict=True)
        ),
    )


def _is_negative(type_proto: TypeProto) -> bool:
    """Whether a type has a dim below 0."""
    return any(isinstance(dim, int) and dim < 0 for dim in shape_in(type_proto) or ())


def _larger_dims(first: TypeProto, second: TypeProto) -> TypeProto:
    """Return the first type with the larger number of both wherever both have one."""
    shape, other_shape = shape_in(first), shape_in(second)
    if shape is None or other_shape is None:
        return first
    pairs = zip(shape, other_shape, strict=True)
    larger = tuple(
        max(a, b) if isinstance(a, int) and isinstance(b, int) else a for a, b in pairs
    )
    return with_shape(first, larger)
