"""Checkpoints by name: the forward part in segments, each run again before its backward part.

Chen et al. 2016 ("Training Deep Nets with Sublinear Memory Cost"), in the form of Paddle
Fluid's RecomputeOptimizer: a segment ends with a checkpoint; checkpoints and what crosses
segments are kept; what follows the last checkpoint is not run again, for its backward part
comes at once.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.errors import SettingsError
from memplan_cli.features.recompute.build import build
from memplan_cli.features.recompute.values import find_values

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.analysis.phase import Part, Phases
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.recompute.values import Values
    from memplan_cli.ordering.terms import Terms


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A program whose segments run again."""

    program: Program
    sizes: Mapping[VarId, Size]
    """Of the planned vars, copies included."""
    copies: tuple[Op, ...]
    useless: tuple[tuple[str, str], ...]
    """Checkpoints that buy nothing, each with the reason."""


def checkpoints(
    program: Program, terms: Terms, names: Sequence[str], phases: Phases
) -> Checkpointed:
    """Run each segment of the forward part again just before its backward part.

    Args:
        program: A training step.
        terms: What is planned.
        names: The tensors that end segments, in any order.
        phases: The program's parts.

    Raises:
        SettingsError: the program has no backward part, or a name is no tensor that an op
            of the forward part makes.
    """
    if phases.kind == "test":
        raise SettingsError(
            "checkpoints need a backward part, and this graph has none",
            hint="--recompute auto with a budget works on inference graphs too",
        )
    named = [_named(program, name, phases) for name in dict.fromkeys(names)]
    values = find_values(program, terms.sizes, terms.pinned, terms.aliasing)
    segments = _Segments(values, phases, tuple(named))
    copies = segments.copies()
    copied = build(values, copies, terms.sizes, segments.due(copies))
    return Checkpointed(
        copied.program, copied.sizes, copied.copies, tuple(segments.useless(copies))
    )


def _named(program: Program, name: str, phases: Phases) -> VarId:
    forward = {
        program.vars[var].name or str(var): var
        for op in program.body.ops
        if phases.part(op) == "forward"
        for var in op.outputs
        if var and program.vars[var].origin is Origin.OP
    }
    if name in forward:
        return forward[name]
    near = get_close_matches(name, forward, 3, 0.0)
    raise SettingsError(
        f"the checkpoint {name!r} is no tensor that the forward part computes",
        hint=f"the nearest names are {', '.join(near)}",
    )


class _Segments:
    """Where the forward part is cut, and what each piece has to make again."""

    def __init__(self, values: Values, phases: Phases, named: tuple[VarId, ...]) -> None:
        self._values, self._loss = values, phases.loss
        self._parts: list[Part] = [phases.part(op) for op in values.flow.ops]
        self._named = named
        producer = values.flow.producer
        self._ends = sorted({producer[var] for var in named if var != phases.loss})
        self._stored = {values.of[var] for var in named if var in values.of}
        self._stored.update(
            value
            for value, times in enumerate(values.reads)
            if values.work[value] < 0 or self._crosses(times)
        )

    def _segment(self, place: int) -> int:
        """Return the segment of a forward op; one past the last where none runs again."""
        return bisect_left(self._ends, place)

    def _crosses(self, times: tuple[int, ...]) -> bool:
        forward = [time for time in times if self._parts[time] == "forward"]
        return bool(forward) and self._segment(forward[0]) != self._segment(forward[-1])

    def copies(self) -> list[set[int]]:
        """Return the places at which each value is made again."""
        values = self._values
        wanted: dict[int, dict[int, int]] = {}
        for value, times in enumerate(values.reads):
            segment = self._segment(times[0])
            if self._parts[times[0]] != "forward" or value in self._stored:
                continue
            # What is read before its segment has ended is still there.
            late = [
                t for t in times if segment < len(self._ends) and self._is_late(t, segment)
            ]
            if late:
                wanted.setdefault(segment, {})[value] = late[0]
        found: list[set[int]] = [set() for _ in values.size]
        for direct in wanted.values():
            place = min(direct.values())
            for value in self._closed(direct):
                found[value].add(place)
        return found

    def _is_late(self, time: int, segment: int) -> bool:
        return self._parts[time] != "forward" and time > self._ends[segment]

    def _closed(self, direct: Collection[int]) -> set[int]:
        """Add what is needed to make values again, up to what is kept."""
        stack, found = list(direct), set(direct)
        while stack:
            for need in self._values.needs[stack.pop()]:
                if need not in found and need not in self._stored:
                    found.add(need)
                    stack.append(need)
        return found

    def due(self, copies: Sequence[set[int]]) -> dict[int, list[VarId]]:
        """Return what to copy at each place: whole segments, in order."""
        found: dict[int, list[VarId]] = {}
        for var, value in self._values.of.items():
            for place in copies[value]:
                if self._values.made[value] == self._values.flow.producer[var]:
                    found.setdefault(place, []).append(var)
        return found

    def useless(self, copies: Sequence[set[int]]) -> list[tuple[str, str]]:
        """Return the checkpoints that nothing is saved by."""
        found = []
        segments = {
            self._segment(self._values.made[value]) for value, at in enumerate(copies) if at
        }
        for var in self._named:
            name = self._values.program.vars[var].name or str(var)
            if var == self._loss:
                found.append((name, "it is the loss: its backward part comes at once"))
            elif self._segment(self._values.flow.producer[var]) not in segments:
                reason = "the backward part reads nothing of the segment that it ends"
                found.append((name, reason))
        return found
