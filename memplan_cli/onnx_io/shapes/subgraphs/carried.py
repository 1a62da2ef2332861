"""Shapes of the values that an iteration of a subgraph passes to its next one.

It starts with the initial value's shape. Where the subgraph's result has another, that dim
becomes a hole and the subgraph is inferred again, until it says of its results what was said
of its inputs; a value that grows by a constant each turn is taken as in its last turn.
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

    from memplan_cli.onnx_io.shapes.subgraphs.scope import Level

_ROUNDS = 8
"""Rounds after which a value that still changes is one without a known shape."""


@dataclass(slots=True)
class Carried:
    """A subgraph whose results are its inputs on the next turn.

    ``lead`` and ``tail`` are the types of the inputs before and behind the carried ones;
    the subgraph gives ``skip`` results before the carried ones.
    """

    level: Level
    subgraph: GraphProto
    lead: list[TypeProto]
    skip: int
    tail: list[TypeProto] = field(default_factory=list)

    def settle(
        self, first: list[TypeProto], turns: int | None
    ) -> tuple[GraphProto, list[TypeProto]]:
        """Return the subgraph for the shapes of all turns, and the carried values behind them.

        A value that grows by the same number each turn is as large as in the last one; the
        arena must hold that, whether or not the loop ends earlier.
        """
        declared = [v.type for v in self.subgraph.input[len(self.lead) :]]
        state = [merged(a, b) for a, b in zip(first, declared, strict=False)]
        start = state
        if turns == 0:  # nothing is carried on: what comes out is what came in
            return self.turn(start)[0], start
        for _ in range(_ROUNDS):
            inferred, results = self.turn(state)
            wide = [
                self._both(*types)
                for types in zip(state, results, first, declared, strict=False)
            ]
            if wide == state:
                return inferred, state
            grown = self._grown(start, turns) if turns else None
            if grown is not None:
                return grown
            state = wide
        return self.turn([with_shape(kind, None) for kind in state])[0], state

    def turn(self, state: Sequence[TypeProto]) -> tuple[GraphProto, list[TypeProto]]:
        """Return the subgraph for these carried types, and what it passes on."""
        inferred = self.level.run(self.subgraph, [*self.lead, *state, *self.tail])
        return inferred, [v.type for v in inferred.output[self.skip :][: len(state)]]

    @staticmethod
    def _both(
        before: TypeProto, after: TypeProto, first: TypeProto, declared: TypeProto
    ) -> TypeProto:
        """Return what holds on every turn; what is declared fills the holes."""
        if shape_in(after) is None and is_complete(declared):
            return before
        return merged(widened(before, after), _beyond(first, declared))

    def _grown(
        self, start: list[TypeProto], turns: int
    ) -> tuple[GraphProto, list[TypeProto]] | None:
        """Settle values whose dims change by a constant each turn; None for others.

        The step is taken from the first turns and checked on the last.
        """
        second = self.turn(start)[1]
        steps = [_step(a, b) for a, b in zip(start, second, strict=True)]
        third = self.turn(second)[1]
        if [_step(a, b) for a, b in zip(second, third, strict=True)] != steps:
            return None
        if any(step is None for step in steps):
            return None
        entering = [_moved(a, step, turns - 1) for a, step in zip(start, steps, strict=True)]
        leaving = [_moved(a, step, turns) for a, step in zip(start, steps, strict=True)]
        if any(map(_is_negative, leaving)) or self.turn(entering)[1] != leaving:
            return None
        largest = [_larger(a, b) for a, b in zip(start, entering, strict=True)]
        ends = [_larger(a, b) for a, b in zip(start, leaving, strict=True)]
        return self.turn(largest)[0], ends


def _beyond(first: TypeProto, declared: TypeProto) -> TypeProto:
    """Keep what a declaration can mean of all turns: not the first turn's own number."""
    here, there = shape_in(first), shape_in(declared)
    if here is None or there is None or len(here) != len(there):
        return declared
    pairs = zip(here, there, strict=True)
    return with_shape(
        declared, tuple(None if isinstance(b, int) and a == b else b for a, b in pairs)
    )


_Step = tuple[int, ...]


def _step(before: TypeProto, after: TypeProto) -> _Step | None:
    """Return by how much each dim grows, or None where that is no number."""
    here, there = shape_in(before), shape_in(after)
    if here is None or there is None or len(here) != len(there):
        return None if here != there else ()
    steps = []
    for a, b in zip(here, there, strict=True):
        if isinstance(a, int) and isinstance(b, int):
            steps.append(b - a)
        elif a == b and a is not None:
            steps.append(0)
        else:
            return None
    return tuple(steps)


def _moved(kind: TypeProto, step: _Step | None, turns: int) -> TypeProto:
    shape = shape_in(kind)
    if shape is None or step is None:
        return kind
    return with_shape(
        kind,
        tuple(
            dim + by * turns if isinstance(dim, int) else dim
            for dim, by in zip(shape, step, strict=True)
        ),
    )


def _is_negative(kind: TypeProto) -> bool:
    return any(isinstance(dim, int) and dim < 0 for dim in shape_in(kind) or ())


def _larger(first: TypeProto, second: TypeProto) -> TypeProto:
    here, there = shape_in(first), shape_in(second)
    if here is None or there is None:
        return first
    pairs = zip(here, there, strict=True)
    larger = tuple(
        max(a, b) if isinstance(a, int) and isinstance(b, int) else a for a, b in pairs
    )
    return with_shape(first, larger)
