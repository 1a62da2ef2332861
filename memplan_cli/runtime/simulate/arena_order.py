"""A search for the order of ops with the lowest arena, at an unchanged peak of live tensors.

Many orders share the lowest peak, but they differ in how tensors of different sizes follow each
other in memory. Ops are moved one at a time, at random from a seed, between their producers and
their consumers. A move is kept if the height of the simulated arena does not grow and no more bytes
are live.

Without this search, the arenas of 13 of 25 searched models held up to 20 % more
(docs/measurements/removed.md).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import predecessors, successors
from memplan_cli.core.results.observations import CPU
from memplan_cli.runtime.profile.workspace import workspace_by_rule
from memplan_cli.runtime.simulate.arena import (
    ArenaSettings,
    best_fit_height,
    held_after_runs,
)
from memplan_cli.runtime.simulate.execution import trace_session
from memplan_cli.runtime.simulate.predict import (
    ARENA_REUSE_ONLY,
    ExecutedGraph,
    served_runs,
    simulated_model,
)
from memplan_cli.runtime.simulate.regions import best_arena, is_tight, regions
from memplan_cli.runtime.simulate.trace import CHUNK, UnknownBytesError, rounded_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.core.program import Program
    from memplan_cli.runtime.profile.workspace import Workspace
    from memplan_cli.runtime.simulate.trace import AllocationTrace

_WORK = 160_000
"""Requests simulated in a search: two or three seconds."""

_MAX_MOVES = 800

_MIN_MOVES = 40
"""A search with fewer moves is not worth its time."""

_DRAWS_PER_MOVE = 50
"""Random draws for each move, at most: ops that cannot move are drawn too."""


def order_for_arena(
    program: Program,
    is_allowed: Callable[[Program], bool],
    dims: Mapping[str, int],
    provider: str = CPU,
) -> Program:
    """Return the program with its top ops in an order for which the arena holds less, or else the program itself.

    The search compares orders by the bytes of an arena that is quick to simulate (`_arena_height`). The order that is
    found is returned if the arena of a session (`best_arena`) holds less too. The peak of live tensors does not grow.

    Args:
        program: in an order of the lowest peak.
        is_allowed: returns whether an order is acceptable; called for every order of the search.
        dims: values of symbolic dims.
        provider: ONNX Runtime's name of the execution provider.
    """
    tracer = _Tracer(dims, provider, workspace_by_rule(program, dims))
    try:
        start = tracer.trace(program)
    except UnknownBytesError:  # a tensor of unknown size cannot be simulated
        return program
    requests = 2 * len(start.sizes)  # each tensor is allocated and freed
    moves = min(_MAX_MOVES, _WORK // max(requests, 1))
    if moves < _MIN_MOVES:  # the graph is too large
        return program
    held_before = best_arena(start).held
    if is_tight(held_before, start.rounded_peak):  # no order makes it lower
        return program
    search = _OrderSearch(
        program,
        is_allowed,
        tracer,
        max_live=start.rounded_peak,
        best_height=_arena_height(start),
    )
    ordered = search.run(moves)
    held_after = best_arena(tracer.trace(ordered)).held
    return ordered if held_after < held_before else program


def arena_bytes(program: Program, dims: Mapping[str, int], provider: str = CPU) -> int | None:
    """Return the bytes that an arena holds after simulated runs of a program; None if a size is unknown.

    ``dims`` are values of symbolic dims, and ``provider`` is ONNX Runtime's name of the provider.
    """
    executed = ExecutedGraph(program, dims, provider=provider)
    # The ops run in the order of the program, and each tensor is allocated from the arena and freed again.
    model = simulated_model(executed, ARENA_REUSE_ONLY)
    workspace = workspace_by_rule(program, dims)  # bytes that kernels allocate besides outputs
    try:
        traces = trace_session(model, workspace)
    except UnknownBytesError:  # raised in simulated runs only
        return None
    # Several settings of the arena are simulated. The one under which the arena holds the fewest bytes is used.
    return best_arena(served_runs(executed, traces)).held


@dataclass(frozen=True, slots=True)
class _Tracer:
    """Simulates the allocations of a program whose ops run in their order."""

    dims: Mapping[str, int]
    provider: str
    workspace: Workspace

    def trace(self, program: Program) -> AllocationTrace:
        """Return the trace of one run."""
        executed = ExecutedGraph(program, self.dims, provider=self.provider)
        return trace_session(simulated_model(executed, ARENA_REUSE_ONLY), self.workspace).first


def _arena_height(trace: AllocationTrace) -> int:
    """Return the bytes that an arena holds after one run, if its first region is as large as `best_fit_height`.

    `best_fit_height` assumes a region without end. In a region with an end, a small request may get the free memory
    at the end, because that fits best, and a larger request needs another region. The result counts all regions.
    """
    height = rounded_up(best_fit_height(trace))
    later_regions = CHUNK  # the smallest size, which is doubled until the request fits
    settings = ArenaSettings.from_settings(regions(max(height, CHUNK), later_regions))
    return held_after_runs(trace, settings, runs=1)


@dataclass(slots=True)
class _OrderSearch:
    """A local search over orders.

    Attributes:
        program: the program in its first order.
        is_allowed: returns whether an order is acceptable.
        tracer: simulates an order.
        max_live: the most live bytes that an order may have.
        best_height: the height of the best order so far.
    """

    program: Program
    is_allowed: Callable[[Program], bool]
    tracer: _Tracer
    max_live: int
    best_height: int

    def run(self, moves: int) -> Program:
        """Return the program in the best order found with this many moves; update ``best_height``.

        A move is kept if the arena gets no higher: moves of equal height lead out of local minima. The
        search ends early if the arena is as low as the live bytes.
        """
        before = predecessors(self.program.body)
        after = successors(before)
        order = list(range(len(before)))
        generator = random.Random(0)  # noqa: S311 - a seeded search, no secret
        # A draw of an op and a position where the op is already is no move. The draws are limited too, because a
        # chain of ops allows no move.
        moves_left, draws_left = moves, moves * _DRAWS_PER_MOVE
        while moves_left and draws_left and self.best_height > self.max_live:
            draws_left -= 1
            position = {op: index for index, op in enumerate(order)}
            source = generator.randrange(len(order))
            op = order[source]
            first = max((position[other] for other in before[op]), default=-1) + 1
            last = min((position[other] for other in after[op]), default=len(order)) - 1
            target = generator.randint(first, last)
            if target == source:  # the op stays where it is
                continue
            moves_left -= 1
            changed = _with_move(order, source, target)
            height = self._height_if_kept(changed)
            if height is not None:
                order, self.best_height = changed, height
        return _in_order(self.program, order)

    def _height_if_kept(self, order: Sequence[int]) -> int | None:
        """Return the arena's height for an order; None if the order is not kept.

        An order is kept if its peak of live bytes and its height are no higher than the limits, and it is allowed.
        """
        changed = _in_order(self.program, order)
        trace = self.tracer.trace(changed)
        if trace.rounded_peak > self.max_live:
            return None
        height = _arena_height(trace)
        if height > self.best_height or not self.is_allowed(changed):
            return None
        return height


def _with_move(order: Sequence[int], source: int, target: int) -> list[int]:
    """Return the order with the op at one position moved to another."""
    rest = [*order[:source], *order[source + 1 :]]
    return [*rest[:target], order[source], *rest[target:]]


def _in_order(program: Program, order: Sequence[int]) -> Program:
    ops = tuple(program.body.ops[index] for index in order)
    return program.with_ops(ops)
