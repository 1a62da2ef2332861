"""Replay one program at every level as it was planned, then with one mistake put in."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builders import allocated_at_each_level, var_sizes
from corruptions import corrupted
from memplan_cli.planning.choosing.allocation import Needs
from replay import Arena, ClobberedError, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corruptions import Corruption
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.planning.choosing.allocation import Allocation

RUNS = 6
MOST_RUNS = 400
"""A body deep inside may need many random runs until it is run at all."""


@dataclass(frozen=True)
class Tried:
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


def tried(seed: int, made: Program) -> Tried:
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
    return Tried(held, reached, caught, unreached)


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
