"""Replay of programs in their arenas: as planned at every level, and with one mistake put in.

Every op writes a fresh token into each cell of its results. Reading a var means finding in its cells
the token that it was given when it was made, so that an early overwrite in any block and iteration is
caught. The replay shares nothing with the planner but the plan.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builders import allocated_at_each_level, var_sizes
from memplan_cli.core.operators import operator
from memplan_cli.core.program import VarId, blocks, walk
from memplan_cli.planning.allocation import Needs
from programs import random_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.planning.allocation import Allocation

Spans = dict[VarId, tuple[int, int]]


@dataclass(frozen=True)
class Corruption:
    """``intruder`` is written over ``victim`` between the victim's making and a read of it.

    The intruder comes after the victim in the same block, or in a body there, so that
    whenever it is written, the victim is read wrong.
    """

    spans: Spans
    victim: VarId
    intruder: VarId


def nested_programs(count: int) -> Iterator[tuple[int, Program]]:
    """Yield programs that have bodies, with their seeds: the first ``count`` of them."""
    seed = 0
    while count:
        made = random_program(seed)
        if any(op.bodies for _, op in walk(made.body)):
            yield seed, made
            count -= 1
        seed += 1


def corrupted(
    made: Program, spans: Mapping[VarId, tuple[int, int]], rng: random.Random
) -> Corruption | None:
    """Put one var onto another; None where the program has no two that can clash."""
    pairs = [
        (victim, intruder)
        for block in blocks(made.body)
        for victim, intruder in _clashes(block)
        if _is_placed(victim, spans) and _is_placed(intruder, spans)
    ]
    if not pairs:
        return None
    victim, intruder = rng.choice(pairs)
    moved = {**spans, intruder: (spans[victim][0], spans[intruder][1])}
    return Corruption(moved, victim, intruder)


def _is_placed(var: VarId, spans: Mapping[VarId, tuple[int, int]]) -> bool:
    return var in spans and spans[var][1] > 0


def _clashes(block: Block) -> Iterator[tuple[VarId, VarId]]:
    """Yield a var with what is written after it and before an op of its block reads it."""
    for made, op in enumerate(block.ops):
        for victim in op.outputs:
            reads = [
                at for at, other in enumerate(block.ops) if victim and victim in other.inputs
            ]
            for between in block.ops[made + 1 : reads[-1]] if reads else ():
                yield from ((victim, intruder) for intruder in _written(between))


def _written(op: Op) -> Iterator[VarId]:
    """Yield what an op, or its bodies, surely write with values of their own.

    A view, or what a body is handed, may carry the victim's very value: that is no clash.
    """
    if op.bodies:
        for body in op.bodies:
            for inner in body.ops:
                yield from _written(inner)
    elif not operator(op).is_view:
        yield from (var for var in op.outputs if var)


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
    if operator(op).is_view:
        # A view has no bytes of its own to write: it says the same about the same cells,
        # or is a copy where the plan gave it other cells.
        arena.copy(op.inputs[0], op.outputs[0])
        arena.read(op.inputs[0], op.outputs[0])
        return
    arena.write(*outputs)
    # An operand that the definition of the op lets go, element by element, may lie exactly
    # under the result. Everything else is read after the first write.
    freed = operator(op).in_place
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


RUNS = 6
MOST_RUNS = 400
"""A body deep inside may need many random runs until it is run at all."""


@dataclass(frozen=True)
class ProbeResult:
    """How many layouts of a program held, and how many corruptions were caught.

    Attributes:
        held: layouts that were replayed without a clobbered read.
        made: corruptions whose intruder was written in some run.
        caught: those that a read found out.
        unreached: corruptions that no run came to.
    """

    held: int
    made: int
    caught: int
    unreached: int


def spans_of(allocation: Allocation, needs: Needs) -> dict[VarId, tuple[int, int]]:
    (arena,) = allocation.arenas or (None,)
    if arena is None:
        return {}
    return {
        var: (arena.layout.offsets[allocation.buffers[var]], size.coefficient)
        for var, size in needs.sizes.items()
    }


def replay(made: Program, spans: Mapping[VarId, tuple[int, int]], seed: int) -> None:
    for turn in range(RUNS):
        once(made, spans, f"{seed}:{turn}")


def once(made: Program, spans: Mapping[VarId, tuple[int, int]], seed: str) -> Arena:
    arena = Arena(spans, random.Random(seed))
    arena.write(*made.body.inputs)
    run(made.body, arena)
    arena.read(*made.body.inputs, *made.body.outputs)
    return arena


def tried(seed: int, made: Program) -> ProbeResult:
    """Replay a program at the three levels; raises where a layout as planned fails."""
    needs = Needs(made, var_sizes(made), alignment=None)
    held = caught = reached = unreached = 0
    for level, placed in enumerate(allocated_at_each_level(needs)):
        spans = spans_of(placed, needs)
        replay(made, spans, seed)
        held += 1
        wrong = corrupted(made, spans, random.Random(f"{seed}:{level}"))
        if wrong is None:
            continue
        outcome = _outcome(made, wrong, f"{seed}:{level}")
        reached += outcome is not None
        caught += outcome is True
        unreached += outcome is None
    return ProbeResult(held, reached, caught, unreached)


def _outcome(made: Program, wrong: Corruption, seed: str) -> bool | None:
    """Return whether a read found out; None where the intruder was never written."""
    for turn in range(MOST_RUNS):
        try:
            arena = once(made, wrong.spans, f"{seed}:{turn}")
        except ClobberedError:
            return True
        if wrong.intruder in arena.held and wrong.victim in arena.held:
            return False
    return None
