"""Recomputation for one order and one budget: choose, write, measure, and choose again.

Choosing works on estimates: copies have no place of their own, and in-place results of copies
are unknown. So each round writes the program, measures it with the planner's `storage_of`, and
goes on from the measured bytes. Once the budget is met, drops with room for their value are
undone. Last, `without_needless_copies` removes copies one by one as long as the peak allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.analysis.cost import op_cost
from memplan_cli.analysis.liveness import steps
from memplan_cli.analysis.storage import storage_of
from memplan_cli.core.symbolic.sizes import FIXED_UNIT
from memplan_cli.features.recompute.build import (
    RecomputedProgram,
    with_names,
    write_copies,
)
from memplan_cli.features.recompute.greedy import DropSchedule, GreedyChooser
from memplan_cli.features.recompute.values import find_values
from memplan_cli.ordering.records import PlannedVars

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from memplan_cli.core.program import Op, Program, VarId

_MAX_ROUNDS = 12
"""Programs that are written and measured for one budget."""

_HUGE = 8_000
"""Ops from which on half as many rounds are made."""

_STAGE_ROUNDS = 2
"""Programs that are written and measured for a budget on the way to a smaller one."""

_PRUNING_WORK = 200_000
"""Most copies times ops of a program from which copies are removed one by one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A program that was written and measured.

    Attributes:
        peak: its live peak in bytes.
        work: the work of its copies.
    """

    written: RecomputedProgram
    peak: int
    work: int

    def rank(self, budget: int) -> tuple[int, int, int, int]:
        """Return a sort key: the excess over a budget, then the work, the peak, and the number of copies."""
        return max(self.peak, budget), self.work, self.peak, len(self.written.copies)


def live_at(program: Program, planned_vars: PlannedVars) -> NDArray[np.int64]:
    """Return the most bytes live during each op of the top block.

    Only sizes that are numbers count; recomputation refuses programs with others.
    """
    _, buffers_by_unit = storage_of(
        program, planned_vars.sizes, planned_vars.pinned, planned_vars.aliasing
    )
    op_steps = [step for step in steps(program) if step.block is program.body]
    ticks = max((step.end for step in op_steps), default=0) + 1
    change = np.zeros(ticks + 1, np.int64)  # of the live bytes, at each tick
    for buffer in buffers_by_unit.get(FIXED_UNIT, ()):
        change[buffer.live.start] += buffer.size
        change[min(buffer.live.end, ticks)] -= buffer.size
    starts = [step.start for step in op_steps]
    # An op with subgraphs lasts several ticks: take the maximum up to the next op's start.
    return np.maximum.reduceat(np.cumsum(change), starts) if starts else change[:0]


class Solver:
    """Fits a program in one order to budgets.

    Attributes:
        values: the values of the program.
        _live: most bytes live during each op, without copies.
    """

    def __init__(self, program: Program, planned_vars: PlannedVars) -> None:
        self._planned_vars = planned_vars
        self.values = find_values(
            program, planned_vars.sizes, planned_vars.pinned, planned_vars.aliasing
        )
        self._live = live_at(program, planned_vars)

    @property
    def is_huge(self) -> bool:
        """Whether the program is so large that only few rounds are made."""
        return len(self._live) >= _HUGE

    @property
    def peak(self) -> int:
        """The live peak without copies."""
        return int(self._live.max(initial=0))

    def new_schedule(self) -> DropSchedule:
        """Return a schedule without copies: no value is dropped and computed again."""
        return DropSchedule(self.values, self._live)

    def unchanged(self) -> Trial:
        """Return the program without copies as a trial."""
        return self._write(self.new_schedule())

    def solve(self, budget: int, *, first_budget: int | None = None) -> list[Trial]:
        """Return the programs tried on the way to a budget, in order.

        A schedule that begins without copies is changed until its program fits ``budget``. If
        ``first_budget``, a larger one, is given, the schedule is first changed to fit that.
        """
        schedule = self.new_schedule()
        trials: list[Trial] = []
        if first_budget is not None:  # `_change_to_fit` changes `schedule` in place
            trials += self._change_to_fit(schedule, first_budget, _STAGE_ROUNDS)
        rounds = _MAX_ROUNDS // 2 if self.is_huge else _MAX_ROUNDS
        return trials + self._change_to_fit(schedule, budget, rounds)

    def descend(self, budgets: Iterable[int]) -> list[Trial]:
        """Return the programs tried for falling budgets, in order.

        One schedule of copies is changed from budget to budget: copies that pay off for a large budget
        mostly do for a smaller one, so the programs lie on the curve of memory and work.
        """
        schedule = self.new_schedule()
        trials: list[Trial] = []
        for budget in budgets:
            trials += self._change_to_fit(schedule, budget, _STAGE_ROUNDS)
        return trials

    def _change_to_fit(self, schedule: DropSchedule, budget: int, rounds: int) -> list[Trial]:
        """Change a schedule in place until its program meets a budget; return the programs tried, in order.

        Values are dropped by estimated bytes until the measured peak of the written program meets the budget.
        Then values for which there is room are kept again. At most ``rounds`` programs are written.
        """
        trials: list[Trial] = []
        while len(trials) < rounds:
            dropped_count = GreedyChooser(schedule, budget).run()
            trials.append(self._write(schedule))  # sets `schedule.live` to measured bytes
            if trials[-1].peak > budget and not dropped_count:
                return trials  # no drop helps any more
            # If too many values are kept again, the peak exceeds the budget: the outer loop drops some of them.
            while trials[-1].peak <= budget and len(trials) < rounds:
                kept_count = schedule.keep_again(budget)
                if not kept_count:
                    return trials  # the budget is met, and there is no room for another value
                trials.append(self._write(schedule))
        return trials

    def _write(self, schedule: DropSchedule) -> Trial:
        """Write and measure the program of a schedule, and change the schedule to what is measured.

        The bytes and copies in the schedule are estimates: the written program lacks copies that nothing
        reads, and writes some results of copies in place.
        """
        written = write_copies(self.values, schedule.recomputed_at, self._planned_vars.sizes)
        planned_vars = replace(self._planned_vars, sizes=written.sizes)
        live_at_written_ops = live_at(written.program, planned_vars)
        # A schedule counts a copy with the op that it runs right before. With a copy before op 1, for example,
        # the places of the written ops are 0, 1, 1, 2, and op 1 gets the larger live bytes of the copy and itself.
        original_ops = np.asarray(written.places, np.int64)
        live_at_original_ops = np.zeros(len(self._live), np.int64)
        np.maximum.at(live_at_original_ops, original_ops, live_at_written_ops)
        schedule.set_measured(written, live_at_original_ops)
        peak = int(live_at_written_ops.max(initial=0))
        return Trial(written, peak, _work_of_copies(written))


def _work_of_copies(written: RecomputedProgram) -> int:
    variables = written.program.vars
    return sum(op_cost(op, variables).work for op in written.copies)


def without_needless_copies(trial: Trial, planned_vars: PlannedVars, budget: int) -> Trial:
    """Return a trial without needless copies, those without which the peak meets the budget as well.

    If the trial exceeds the budget, its own peak counts instead. Copies are removed one by one, those with
    most work first. The trial is returned as it is if that would take too long.
    """
    max_peak = max(trial.peak, budget)
    copies = trial.written.copies
    if len(copies) * len(trial.written.program.body.ops) > _PRUNING_WORK:
        return trial
    variables = trial.written.program.vars
    for copy in sorted(copies, key=lambda op: -op_cost(op, variables).work):
        trial = _without_copy_if_fits(trial, copy, planned_vars, max_peak)
    return trial


def _without_copy_if_fits(
    trial: Trial, copy: Op, planned_vars: PlannedVars, max_peak: int
) -> Trial:
    """Return the trial without a copy, or the trial itself if the copy has to stay.

    It has to stay if no earlier run of its node can stand in for it, if the peak would be above
    ``max_peak``, or if the peak would rise without a gain in work.
    """
    written = _without_copy(trial.written, copy)
    if written is None:
        return trial
    remaining_planned_vars = PlannedVars(
        written.sizes, planned_vars.pinned, planned_vars.aliasing
    )
    peak = int(live_at(written.program, remaining_planned_vars).max(initial=0))
    work = _work_of_copies(written)
    saves_no_work = work >= trial.work  # a copy of a Reshape, say, has no work to save
    if peak > max_peak or (peak > trial.peak and saves_no_work):
        return trial
    return Trial(written, peak, work)


def _without_copy(written: RecomputedProgram, copy: Op) -> RecomputedProgram | None:
    """Return the program whose ops read an earlier run of the same node instead of a copy.

    None if no earlier run can stand in for the copy (`_names_of_earlier_run`). Other copies that
    are unused then are removed too.
    """
    names = _names_of_earlier_run(written, copy)
    if names is None:
        return None
    new_ops = [
        with_names(op, names) if op.outputs != copy.outputs else None
        for op in written.program.body.ops
    ]
    _drop_unread_copies(new_ops, written)
    return _with_new_ops(written, new_ops)


def _names_of_earlier_run(written: RecomputedProgram, copy: Op) -> dict[VarId, VarId] | None:
    """Return, by output of a copy, the output of the op's first run that can replace it; None if none can.

    If ``a = Relu(x)`` is copied as ``a__recompute = Relu(x)``, the result is ``{"a__recompute": "a"}``.
    """
    ops = written.program.body.ops
    if all(op.outputs != copy.outputs for op in ops):
        return None  # the copy was removed already
    # The vars that the copied op makes. A var that is no copy is its own original.
    copied_vars = {written.originals[var] for var in copy.outputs if var}
    first_run = next(  # the copied op or the first of its copies
        op
        for op in ops
        if any(written.originals.get(var, var) in copied_vars for var in op.outputs)
    )
    if first_run.outputs == copy.outputs:
        return None  # the copied op was removed, and ``copy`` is now the first run itself
    outputs = zip(copy.outputs, first_run.outputs, strict=True)
    names = {of_copy: of_first_run for of_copy, of_first_run in outputs if of_copy}
    if not all(names.values()):
        return None  # the first run omits an output that the copy makes
    return names


def _drop_unread_copies(ops: list[Op | None], written: RecomputedProgram) -> None:
    """Replace copies in ``ops`` that nothing reads any more by None, from the last to the first."""
    graph_outputs = set(written.program.body.outputs)
    readers = Counter(var for op in ops if op is not None for var in op.reads)
    copies = {op.outputs for op in written.copies}
    for index in reversed(range(len(ops))):
        op = ops[index]
        if op is None or op.outputs not in copies:
            continue
        if not any(readers[var] or var in graph_outputs for var in op.outputs if var):
            readers.subtract(op.reads)
            ops[index] = None


def _with_new_ops(written: RecomputedProgram, new_ops: list[Op | None]) -> RecomputedProgram:
    """Return the program with new ops in place of its own; None removes an op and its outputs.

    ``new_ops`` has one entry for each op, in the same order and with the same outputs.
    """
    program = written.program
    is_kept = [op is not None for op in new_ops]
    removed_vars = {
        var
        for op, kept in zip(program.body.ops, is_kept, strict=True)
        if not kept
        for var in op.outputs
    }
    ops = tuple(op for op in new_ops if op is not None)
    variables = {
        var: record for var, record in program.vars.items() if var not in removed_vars
    }
    copies = {op.outputs for op in written.copies}
    return replace(
        written,
        program=program.with_ops(ops, variables),
        sizes={var: size for var, size in written.sizes.items() if var not in removed_vars},
        places=tuple(compress(written.places, is_kept)),
        copies=tuple(op for op in ops if op.outputs in copies),
    )
