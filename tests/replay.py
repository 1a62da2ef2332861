"""Run a program in its arena with tokens for values, and miss none that was clobbered.

Every op writes a fresh token into each cell of its results. Reading a var means finding
in its cells the token that it was given when it was made: whoever wrote over it too early,
in whatever block, on whatever turn, is caught. This shares nothing with the planner but
the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import IN_PLACE, VIEWS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.program import Block, Op, VarId


class ClobberedError(AssertionError):
    """A read found another value than the one that was put there."""


@dataclass
class Arena:
    """Cells of memory; a var that has no place here (an input) has cells of its own."""

    spans: Mapping[VarId, tuple[int, int]]
    """Var -> (offset, size)."""
    rng: random.Random
    cells: dict[object, int] = field(default_factory=dict)
    held: dict[VarId, int] = field(default_factory=dict)
    tokens: int = 0

    def span(self, var: VarId) -> list[object]:
        if var not in self.spans:
            return [(var, 0)]
        offset, size = self.spans[var]
        return list(range(offset, offset + size))

    def write(self, *variables: VarId) -> None:
        for var in variables:
            self.tokens += 1
            self.put(var, self.tokens)

    def put(self, var: VarId, token: int) -> None:
        self.held[var] = token
        self.cells.update(dict.fromkeys(self.span(var), token))

    def read(self, *variables: VarId) -> None:
        for var in variables:
            found = {self.cells.get(cell) for cell in self.span(var)}
            if found != {self.held[var]} and self.span(var):
                raise ClobberedError(f"{var} was overwritten before it was read")

    def copy(self, source: VarId, target: VarId) -> None:
        self.read(source)
        self.put(target, self.held[source])


def run(block: Block, arena: Arena) -> None:
    """Run the ops of a block: branches at random, bodies zero to three times."""
    for op in block.ops:
        arena.read(*_there(op.inputs))
        if op.bodies and op.repeats:
            _repeat(op, arena)
        elif op.bodies:
            body = arena.rng.choice(op.bodies)
            run(body, arena)
            _hand_on(body.outputs, op.outputs, arena)
            arena.read(*op.outputs)
        else:
            _compute(op, arena)
    arena.read(*block.outputs)


def _compute(op: Op, arena: Arena) -> None:
    outputs = _there(op.outputs)
    if op.type in VIEWS:
        # A view has no bytes of its own to write: it says the same about the same cells,
        # or is a copy where the plan gave it other cells.
        arena.copy(op.inputs[0], op.outputs[0])
        arena.read(op.inputs[0], op.outputs[0])
        return
    arena.write(*outputs)
    # An operand that the definition of the op lets go, element by element, may lie exactly
    # under the result. Everything else is read after the first write.
    freed = IN_PLACE.get(op.type, ())
    under = arena.span(outputs[0]) if outputs else []
    for position, var in enumerate(op.inputs):
        if var and (position not in freed or arena.span(var) != under):
            arena.read(var)
    arena.read(*outputs)


def _repeat(op: Op, arena: Arena) -> None:
    (body,) = op.bodies
    carried = body.inputs
    _hand_on(op.inputs, carried, arena)
    arena.write(*_there(op.outputs))
    for _ in range(arena.rng.randint(0, 3)):
        # What repeats takes from its inputs and gives to its outputs on every turn.
        arena.read(*_there(op.inputs), *_there(op.outputs))
        run(body, arena)
        _hand_on(body.outputs[: len(carried)], carried, arena)
        arena.read(*body.outputs[len(carried) :])
    arena.read(*_there(op.inputs), *_there(op.outputs))


def _hand_on(sources: Iterable[VarId], targets: Iterable[VarId], arena: Arena) -> None:
    """Copy one value after the other: a value must outlast the copies before its own."""
    for source, target in zip(sources, targets, strict=True):
        arena.copy(source, target)


def _there(variables: Iterable[VarId]) -> list[VarId]:
    return [var for var in variables if var]
