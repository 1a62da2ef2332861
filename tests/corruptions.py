"""Layouts with one mistake in them: a var on the bytes of another that is still to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import VIEWS
from memplan_cli.core.program import VarId, blocks, walk
from programs import random_program

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.program import Block, Op, Program

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
    elif op.type not in VIEWS:
        yield from (var for var in op.outputs if var)
