"""Recomputation of a training step's forward part between named checkpoints.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", in the form of Paddle
Fluid's RecomputeOptimizer.

The forward part is cut into segments, each of which ends with a checkpoint. A segment runs
again in its backward part, each op where its result is first read. Checkpoints, and values that cross
segments, are kept, so that each segment can run again without another one. Ops after the last
checkpoint do not run again, as their backward part follows at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.errors import SettingsError
from memplan_cli.features.recompute.build import write_copies
from memplan_cli.features.recompute.values import find_values

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.analysis.phase import Phase, Phases
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.recompute.values import Place, ValueNumber, Values
    from memplan_cli.ordering.records import PlannedVars


@dataclass(frozen=True, slots=True)
class CheckpointedProgram:
    """A program whose segments run again.

    Attributes:
        sizes: the sizes of its planned vars, copies included.
        copies: the ops that run in addition.
        ineffective: the names of checkpoints that save nothing, each with the reason.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    copies: tuple[Op, ...]
    ineffective: Mapping[str, str]


def recompute_segments(
    program: Program, planned_vars: PlannedVars, names: Sequence[str], phases: Phases
) -> CheckpointedProgram:
    """Return a training step in which each segment runs again in its backward part.

    ``names`` are the tensors that end segments, in any order.

    Raises:
        SettingsError: the program has no backward part, or a name is no tensor that an op
            of the forward part makes.
    """
    if not phases.has_backward:
        raise SettingsError(
            "checkpoints need a backward part, and this graph has none",
            hint="--recompute auto with a budget works on inference graphs too",
        )
    checkpoint_vars = tuple(
        _forward_var(program, name, phases) for name in dict.fromkeys(names)
    )
    values = find_values(
        program, planned_vars.sizes, planned_vars.pinned, planned_vars.aliasing
    )
    segments = _Segments(values, phases, checkpoint_vars)
    recomputed_at = segments.recomputed_at()
    written = write_copies(values, recomputed_at, planned_vars.sizes)
    return CheckpointedProgram(
        written.program,
        written.sizes,
        written.copies,
        ineffective=segments.ineffective_checkpoints(recomputed_at),
    )


def _forward_var(program: Program, name: str, phases: Phases) -> VarId:
    """Return the var of a forward tensor by name.

    Raises:
        SettingsError: there is none; the hint names the nearest.
    """
    forward_vars = {
        program.vars[var].name or str(var): var
        for op in program.body.ops
        if phases.phase(op) == "forward"
        for var in op.outputs
        if var and program.vars[var].origin is Origin.OP
    }
    if name in forward_vars:
        return forward_vars[name]
    nearest = get_close_matches(name, forward_vars, n=3, cutoff=0.0)
    raise SettingsError(
        f"the checkpoint {name!r} is not a tensor of the forward part",
        hint=f"the nearest names are {', '.join(nearest)}",
    )


class _Segments:
    """The segments of a training step, numbered from 0, and the values that stay in memory.

    A value is a var with all its views, and a place is the index of an op (see `Values`).

    Attributes:
        _phases: the phase of the op at each place.
        _checkpoints: the tensors that end segments. The loss may be one, but ends none, as its
        backward part follows at once.
        _loss: the tensor of the loss, if there is one.
        _ends: the ascending places of the last op of each segment.
        _kept: the values that are not dropped: checkpoints, values that cross segments, and
        those that must not be computed twice.
    """

    def __init__(self, values: Values, phases: Phases, checkpoints: tuple[VarId, ...]) -> None:
        self._values, self._loss = values, phases.loss
        self._phases: list[Phase] = [phases.phase(op) for op in values.dataflow.ops]
        self._checkpoints = checkpoints
        producer = values.dataflow.producer
        self._ends = sorted({producer[var] for var in checkpoints if var != phases.loss})
        self._kept = self._find_kept()

    def _find_kept(self) -> frozenset[ValueNumber]:
        """Return the values that stay in memory (`_kept`), for one of three reasons."""
        values = self._values
        # `value_of` lacks graph outputs, which are never dropped.
        checkpoints = {
            values.value_of[var] for var in self._checkpoints if var in values.value_of
        }
        return frozenset(
            value
            for value, accesses in enumerate(values.accesses)
            if value in checkpoints
            or not values.can_recompute(value)  # such as random numbers
            or self._crosses_segments(accesses)  # made in one segment, read in a later one
        )

    def _segment(self, place: Place) -> int:
        """Return the segment of a forward op; ``len(self._ends)`` after the last checkpoint."""
        return bisect_left(self._ends, place)

    def _crosses_segments(self, accesses: tuple[Place, ...]) -> bool:
        """Whether a value is accessed in several segments of the forward part."""
        # Accesses are in order, and so are the segments of the forward ones.
        segments = [
            self._segment(place) for place in accesses if self._phases[place] == "forward"
        ]
        return bool(segments) and segments[0] != segments[-1]

    def recomputed_at(self) -> list[set[Place]]:
        """Return for each value the places (indices of ops) at which it is computed again: one, or none.

        Values that only one segment of the forward part uses are dropped at its end. All values of a segment that
        the backward part needs again are computed at one place: the first backward op that reads any of them.
        """
        values = self._values
        # For each segment, its dropped values, each with the place where the backward part first reads it.
        first_reads: defaultdict[int, dict[ValueNumber, Place]] = defaultdict(dict)
        for value, accesses in enumerate(values.accesses):
            segment = self._segment_of_dropped(value)
            if segment is None:
                continue
            end = self._ends[segment]
            backward_reads = [p for p in accesses if p > end and self._phases[p] != "forward"]
            if backward_reads:
                first_reads[segment][value] = min(backward_reads)
        recomputed_at: list[set[Place]] = [set() for _ in values.sizes]
        for reads in first_reads.values():
            place = min(reads.values())
            # The dropped inputs are of the same segment, so no value gets a second place.
            for value in self._with_dropped_inputs(reads):
                recomputed_at[value].add(place)
        return recomputed_at

    def _segment_of_dropped(self, value: ValueNumber) -> int | None:
        """Return the segment that makes a value; None if the value is not dropped after it.

        Not dropped are kept values, values of the backward part, and those after the last checkpoint.
        """
        made_at = self._values.made_at[value]
        if value in self._kept or self._phases[made_at] != "forward":
            return None
        segment = self._segment(made_at)
        return segment if segment < len(self._ends) else None

    def _with_dropped_inputs(self, wanted: Collection[ValueNumber]) -> set[ValueNumber]:
        """Return ``wanted`` and all dropped values that must be computed again for them.

        These are the inputs of the producer of each value, and so on, up to inputs in `_kept`, which are
        still in memory. All are of one segment, as values that cross segments are kept.
        """
        stack, recomputed = list(wanted), set(wanted)
        while stack:
            for input_value in self._values.inputs[stack.pop()]:
                if input_value not in recomputed and input_value not in self._kept:
                    recomputed.add(input_value)
                    stack.append(input_value)
        return recomputed

    def ineffective_checkpoints(self, recomputed_at: Sequence[set[Place]]) -> dict[str, str]:
        """Return the names of checkpoints that save nothing, each with the reason.

        ``recomputed_at`` is the result of the method of that name: for each value the places from which on
        a copy is read; empty if the value is not recomputed.
        """
        values = self._values
        recomputed_segments = {
            self._segment(made_at)
            for made_at, places in zip(values.made_at, recomputed_at, strict=True)
            if places
        }
        reasons = {}
        for var in self._checkpoints:
            name = values.program.vars[var].name or str(var)
            if var == self._loss:
                reasons[name] = "it is the loss: its backward part comes at once"
            elif self._segment(values.dataflow.producer[var]) not in recomputed_segments:
                reasons[name] = "the backward part reads nothing of the segment that it ends"
        return reasons
