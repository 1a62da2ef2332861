"""A search for the order of the same peak that leaves the fewest holes in the arena.

Many orders share the lowest peak, but not the way in which tensors of different sizes
follow each other in memory. Ops are moved one at a time, at random from a seed, between
what they need and what needs them; a move stays where the arena, simulated as one
region, holds no more and no more is live. The region is simulated without an end, and with
one: either finds orders that the other misses. In the end the arena chosen for the new
order has to hold less than the one for the old.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import predecessors, successors
from memplan_cli.core.results.observations import CPU
from memplan_cli.runtime.graph.offline import FREED_AT_ONCE
from memplan_cli.runtime.profile.workspace import workspace_by_rule
from memplan_cli.runtime.simulate.arena import (
    ArenaSettings,
    best_fit_height,
    held_after_runs,
)
from memplan_cli.runtime.simulate.execution import trace_session
from memplan_cli.runtime.simulate.predict import Executed, simulated_model
from memplan_cli.runtime.simulate.regions import best_arena, is_tight, refined_arena, regions
from memplan_cli.runtime.simulate.trace import CHUNK, UnknownBytesError, rounded_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.program import Program
    from memplan_cli.runtime.profile.workspace import Workspace
    from memplan_cli.runtime.simulate.trace import AllocationTrace

_WORK = 80_000
"""Requests simulated in one search: a second or two."""

_MOST_MOVES = 400

_FEWEST_MOVES = 20
"""Fewer moves than this find nothing in a graph of that size."""

_MISSES = 50
"""Ops that cannot move are drawn too: at most so many draws for each move."""


def settled(
    program: Program,
    is_allowed: Callable[[Program], bool],
    dims: Mapping[str, int],
    provider: str = CPU,
) -> Program:
    """Return the ops of the top block in an order for which the arena holds least.

    Every step on the way there is an order that ``is_allowed``. The peak of the run's
    tensors is never higher, and the program comes back as it is where nothing was gained,
    where a size is unknown or where the graph is too large for a search. The same program
    gives the same order.
    """
    asked = _Asked(dims, provider, workspace_by_rule(program, dims))
    try:
        start = asked.by(program)
    except UnknownBytesError:
        return program
    moves = min(_MOST_MOVES, _WORK // max(2 * len(start.sizes), 1))
    if moves < _FEWEST_MOVES:
        return program
    before, lowest = best_arena(start), start.peak
    if is_tight(before.held, lowest) or is_tight(refined_arena(start, before).held, lowest):
        return program
    best = before.held, program
    for height in (best_fit_height, _height):
        found = _Search(program, is_allowed, asked, height).run(start, moves)
        held = best_arena(asked.by(found)).held
        best = min(best, (held, found), key=lambda item: item[0])
    return best[1]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the ops of a program ask an arena for, in one order or another."""

    dims: Mapping[str, int]
    provider: str
    workspace: Workspace

    def by(self, program: Program) -> AllocationTrace:
        """Return the requests of one run."""
        executed = Executed(program, self.dims, provider=self.provider)
        return trace_session(simulated_model(executed, FREED_AT_ONCE), self.workspace).first


def _height(requests: AllocationTrace) -> int:
    """Return what an arena holds whose first region is as tall as an endless one gets.

    The last gap of a region has an end, and best fit may prefer it to another one: then
    the region has to grow after all.
    """
    tall = rounded_up(best_fit_height(requests))
    rules = ArenaSettings.from_settings(regions(max(tall, CHUNK), CHUNK))
    return held_after_runs(requests, rules, runs=1)


@dataclass(slots=True)
class _Search:
    program: Program
    is_allowed: Callable[[Program], bool]
    asked: _Asked
    height: Callable[[AllocationTrace], int]
    most: int = 0
    least: int = 0

    def run(self, start: AllocationTrace, moves: int) -> Program:
        """Try so many moves, and stop where the arena is as low as what is live."""
        self.most, self.least = start.peak, self.height(start)
        before = predecessors(self.program.body)
        after = successors(before)
        order = list(range(len(before)))
        generator = random.Random(0)  # noqa: S311 - a seeded search, no secret
        for _ in range(moves * _MISSES):
            if not moves or self.least <= self.most:
                break
            place = {op: index for index, op in enumerate(order)}
            at = generator.randrange(len(order))
            low = max((place[op] for op in before[order[at]]), default=-1) + 1
            high = min((place[op] for op in after[order[at]]), default=len(order)) - 1
            to = generator.randint(low, high)
            if to == at:
                continue
            moves -= 1
            changed = _moved(order, at, to)
            if self._is_as_good(changed):
                order = changed
        return _ordered(self.program, order)

    def _is_as_good(self, order: Sequence[int]) -> bool:
        changed = _ordered(self.program, order)
        requests = self.asked.by(changed)
        if requests.peak > self.most:
            return False
        height = self.height(requests)
        if height > self.least or not self.is_allowed(changed):
            return False
        self.least = height
        return True


def _moved(order: Sequence[int], at: int, to: int) -> list[int]:
    rest = [*order[:at], *order[at + 1 :]]
    return [*rest[:to], order[at], *rest[to:]]


def _ordered(program: Program, order: Sequence[int]) -> Program:
    ops = tuple(program.body.ops[index] for index in order)
    return dataclasses.replace(program, body=dataclasses.replace(program.body, ops=ops))
