"""Buffers of a program with their sizes and live ranges: the planner's problem, from facts.

`live_peak` of these buffers is the number that ordering minimises and the report prints:
one definition, used by both.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan_cli.analysis.aliasing import SHARE_SAFELY, Aliasing, share_storage
from memplan_cli.analysis.liveness import Timeline, duration
from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, lower_bound, rows
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


Storage = tuple[dict["VarId", BufferId], dict[str, tuple[Buffer, ...]]]
"""The buffer of each var, and the buffers by unit (``"1"``, ``"batch"`` ...)."""


def storage_of(
    program: Program,
    sizes: Mapping[VarId, Size],
    pinned: Collection[VarId] = (),
    aliasing: Aliasing = SHARE_SAFELY,
    timeline: Timeline | None = None,
) -> Storage:
    """Return the buffer of each var, and the buffers by unit (``"1"``, ``"batch"`` ...).

    Args:
        program: The ops in the order in which they will run.
        sizes: The vars to plan; a buffer's size is the coefficient of its unit. What the
            graph gives may be among them: it has bytes of its own, from its producer on.
        pinned: Vars that keep storage of their own for the whole run.
        aliasing: The operators whose vars may share bytes.
        timeline: The program on the clock, if the caller has it.
    """
    timeline = timeline or Timeline(program)
    live, alone = timeline.live, frozenset(pinned)
    apart = alone.union(var for var in program.body.outputs if var in sizes)
    sharing = (
        {var: size for var, size in sizes.items() if var not in apart} if apart else sizes
    )
    buffer_of = share_storage(program, sharing, aliasing, live, timeline.steps)
    ranges = _ranges(buffer_of, live)
    if apart:
        buffer_of = {var: buffer_of.get(var, BufferId(var)) for var in sizes}
        whole_run = LiveRange(0, max(duration(program), 1))
        ranges.update(dict.fromkeys(alone, whole_run))
    units: dict[str, list[tuple[Any, ...]]] = {}
    for var, size in sizes.items():
        identity = buffer_of[var]
        if str(identity) != var:
            continue
        facts = program.vars[var]
        shape = facts.shape or ()  # what has a size has no dim that is not known
        buffer = identity, size.coefficient, ranges[identity], facts.dtype, shape
        units.setdefault(size.unit if size.symbols else "1", []).append(buffer)
    return buffer_of, {unit: tuple(rows(Buffer, fields)) for unit, fields in units.items()}


def _ranges(
    buffer_of: Mapping[VarId, BufferId], live: Mapping[VarId, LiveRange]
) -> dict[Any, LiveRange]:
    """Return when each buffer is live: from the first use of its vars to the last."""
    ranges: dict[Any, LiveRange] = dict(live)  # a buffer's id is that of its first var
    others: defaultdict[BufferId, list[LiveRange]] = defaultdict(list)
    for var, identity in buffer_of.items():
        if str(identity) != var:
            others[identity].append(live[var])
    for identity, found in others.items():
        starts, ends = zip(ranges[identity], *found, strict=True)
        ranges[identity] = LiveRange(min(starts), max(ends))
    return ranges


@dataclass(frozen=True, slots=True)
class Measured:
    """A program on the clock, and its storage where some operators share bytes."""

    timeline: Timeline
    aliasing: Aliasing
    storage: Storage

    @property
    def live_peak(self) -> int:
        """The most bytes of intermediates live at one tick, all sizes being numbers."""
        _, units = self.storage
        return lower_bound(Problem(units.get("1", ())))


def measured(
    program: Program,
    sizes: Mapping[VarId, Size],
    pinned: Collection[VarId] = (),
    aliasing: Aliasing = SHARE_SAFELY,
) -> Measured:
    """Return `storage_of` a program with what it was made from, for those who need it too."""
    timeline = Timeline(program)
    storage = storage_of(program, sizes, pinned, aliasing, timeline)
    return Measured(timeline, aliasing, storage)


def live_peak(
    program: Program,
    sizes: Mapping[VarId, Size],
    pinned: Collection[VarId] = (),
    aliasing: Aliasing = SHARE_SAFELY,
) -> int:
    """Return the most bytes of intermediates live at one tick, all sizes being numbers.

    What shares bytes counts once, what is pinned counts at every tick.
    """
    return measured(program, sizes, pinned, aliasing).live_peak


def result_sizes(program: Program) -> dict[VarId, Size]:
    """Return the bytes of what ops make for the graph's outputs, where a shape tells them.

    A runtime allocates them when they are made and holds them to the end: with them in its
    sizes, the `live_peak` of a program is its ``resident``.
    """
    found: dict[VarId, Size] = {}
    for var in program.body.outputs:
        facts = program.vars[var]
        if facts.origin is Origin.OP:
            size = size_of(facts.shape, facts.dtype)
            if size is not None:
                found[var] = size
    return found
