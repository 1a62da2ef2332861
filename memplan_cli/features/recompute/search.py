"""Recomputation within a budget, searched from several orders of the program.

An order that is good if everything is kept is not good for recomputation: values that are kept
for long will be dropped there, so only what is needed together counts. So three orders are tried:
that of the file, the one that is best without copies, and the one that is best if values with
long gaps weigh nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import sub
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import total_cost
from memplan_cli.core.progress import Detail, silent
from memplan_cli.core.results.rewrites import CurvePoint
from memplan_cli.features.recompute.bound import resident_bound, step_bytes
from memplan_cli.features.recompute.solve import Solver, Trial, without_needless_copies
from memplan_cli.ordering.best_order import DEFAULT_WORK, best_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.records import PlannedVars

_LIGHT_ORDER_WORK = 100_000
"""Search steps for the order in which some values weigh nothing."""

_LARGE = 3_000
"""Ops from which on copies are searched from the most promising order only."""

_LONG_GAP = 20
"""A gap is long if it is at least as long as the program divided by this."""

_LIGHT_SHARE = 0.2
"""Share of the first peak. Values up to it with a long gap weigh nothing in an order."""

_CURVE_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Budgets along the curve of memory and work, as shares of the first peak."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The best program that was found.

    Attributes:
        sizes: the sizes of its planned vars, copies included.
        chosen: its point on the curve. The peaks of points count intermediates and outputs.
        curve: the programs found that no other beats in both memory and work.
        budget: bytes; None: no budget, and ``chosen`` is the knee of the curve.
        bound: a lower bound of the live peak of intermediates, for any order and any copies.
        resident_bound: the same for intermediates and outputs together.
    """

    program: Program
    sizes: Mapping[VarId, Size]
    copies: tuple[Op, ...]
    chosen: CurvePoint
    curve: tuple[CurvePoint, ...]
    budget: int | None
    bound: int
    resident_bound: int

    @property
    def met(self) -> bool:
        """Whether the budget is met; True without a budget."""
        return self.budget is None or self.chosen.peak <= self.budget


def search_recomputation(
    program: Program,
    planned_vars: PlannedVars,
    phases: Phases,
    budget: int | None,
    progress: Callable[[str], None] | None = None,
) -> Recomputation:
    """Choose an order of a program, and the values to recompute in it.

    Args:
        program: an inference graph or a training step.
        planned_vars: its intermediates, and in ``results`` its graph outputs, which the search counts too.
        phases: the forward and backward ops, if it is a training step.
        budget: most bytes of intermediates and outputs that may be live at one step. If an order alone meets
            it, nothing is recomputed; if no program meets it, the one that exceeds it least is returned.
            None: the knee of the curve of memory and work.
        progress: called with a line for each result.
    """
    search = _Search(program, planned_vars, phases, progress or silent)
    if budget is None:
        search.descend()
        best = _knee(search.curve())
        max_peak = best.peak
    else:
        max_peak = max(budget, search.floor)  # no program is below the floor
        search.fit(max_peak)
        best = search.best(max_peak)
    # Copies are chosen by estimates: some prove needless for the measured peak.
    pruned = search.prune(best, max_peak)
    written = pruned.written
    return Recomputation(
        program=written.program,
        # Without the graph outputs, which the planner does not place.
        sizes={
            var: size for var, size in written.sizes.items() if var not in planned_vars.results
        },
        copies=written.copies,
        chosen=search.point(pruned),
        curve=tuple(search.point(trial) for trial in search.curve()),
        budget=budget,
        bound=max(step_bytes(program, planned_vars), default=0),  # without the graph outputs
        resident_bound=search.floor,  # with them, as in the budget
    )


class _Search:
    """All programs tried so far, and the orders to start from.

    Attributes:
        floor: a lower bound of intermediates and outputs together, for any order and any copies.
        _resident_vars: the planned vars and the graph outputs (`PlannedVars.resident`).
        _total_work: the work of the program without copies.
        _first_peak: the peak in the order of the file, without copies.
        _trials: all programs that were written and measured.
        _promising_solvers: the solvers of the orders that copies are searched from.
    """

    def __init__(
        self,
        program: Program,
        planned_vars: PlannedVars,
        phases: Phases,
        progress: Callable[[str], None],
    ) -> None:
        """Measure the program without copies in three orders, from which the search will start.

        These are the order of the file, the order that needs least memory, and the *light order*: the one that
        needs least memory if values that will likely be dropped count as 0 bytes.
        """
        self._program, self._phases, self._progress = program, phases, progress
        # Intermediates and graph outputs in one: both count in the budget, and in the orders below.
        self._resident_vars = resident = planned_vars.resident
        self._total_work = max(total_cost(program).work, 1)
        in_file_order = Solver(program, resident)
        light_vars = self._without_light_values(in_file_order)
        light_program = self._in_best_order(light_vars, _LIGHT_ORDER_WORK)
        in_light_order = Solver(light_program, resident)  # which counts the light values again
        in_best_order = Solver(self._in_best_order(resident), resident)
        solvers = [in_file_order, in_best_order, in_light_order]
        self._trials = [solver.unchanged() for solver in solvers]
        self._first_peak = in_file_order.peak
        # In a large program copies are searched in the light order only, as it is made for them.
        is_large = len(program.body.ops) > _LARGE
        self._promising_solvers = [in_light_order] if is_large else solvers
        # Recomputation cannot lower the peak below this. The bound counts graph outputs by other rules than
        # intermediates, so it gets `planned_vars`, which has two tables, and not their union `_resident_vars`.
        self.floor = resident_bound(program, planned_vars)

    def best(self, budget: int) -> Trial:
        """Return the trial that meets the budget with the least work, or exceeds it least."""
        return min(self._trials, key=lambda trial: trial.rank(budget))

    def prune(self, trial: Trial, budget: int) -> Trial:
        """Return a trial without needless copies, and add that to the trials."""
        pruned = without_needless_copies(trial, self._resident_vars, budget)
        self._trials.append(pruned)
        return pruned

    def point(self, trial: Trial) -> CurvePoint:
        """Return the trial's point on the curve."""
        return CurvePoint(trial.peak, trial.work / self._total_work, len(trial.written.copies))

    def curve(self) -> list[Trial]:
        """Return the trials that no other beats in both peak and work, by falling peak."""
        curve: list[Trial] = []
        for trial in sorted(
            self._trials, key=lambda trial: (trial.work, trial.peak, len(trial.written.copies))
        ):
            if not curve or trial.peak < curve[-1].peak:
                curve.append(trial)
        return curve

    def fit(self, budget: int) -> None:
        """Add trials for a budget from several orders, unless an order alone meets it."""
        best = self.best(budget)
        if best.peak > budget or best.work:
            for solver in self._promising_solvers:
                self._try_budget(solver, budget)

    def descend(self) -> None:
        """Add trials for falling budgets, `_CURVE_SHARES` of the first peak, from each promising order of the ops."""
        budgets = {max(int(self._first_peak * share), self.floor) for share in _CURVE_SHARES}
        for solver in self._promising_solvers:  # each adds copies to the program in one order
            trials = solver.descend(sorted(budgets, reverse=True))  # at least one per budget
            self._trials += trials
            lowest = min(trial.peak for trial in trials)
            self._progress(Detail(f"copies: down to {lowest} bytes"))

    def _try_budget(self, solver: Solver, budget: int) -> None:
        """Add trials for a budget from one order.

        One search first meets the budget halfway between the order's peak and ``budget``, and
        goes on from there. The other, which is left out for huge programs, goes straight to it.
        """
        trials = solver.solve(budget, first_budget=(solver.peak + budget) // 2)
        if not solver.is_huge:
            trials += solver.solve(budget)
        self._trials += trials
        nearest = min(trials, key=lambda trial: trial.rank(budget))
        added = nearest.work / self._total_work
        self._progress(Detail(f"copies: {nearest.peak} bytes, {added:.2%} more work"))

    def _without_light_values(self, in_file_order: Solver) -> PlannedVars:
        """Return the resident vars without *light* values, which are likely to be dropped and computed again.

        Such a value can be computed twice, has at most `_LIGHT_SHARE` of the peak in the file's order, and a
        long time passes between two of its reads (`_has_long_gap`).
        """
        values, max_size = in_file_order.values, _LIGHT_SHARE * in_file_order.peak
        light_values = {
            value
            for value, accesses in enumerate(values.accesses)
            if values.can_recompute(value)
            and values.sizes[value] <= max_size
            and self._has_long_gap(accesses)
        }
        sizes = {
            var: size
            for var, size in self._resident_vars.sizes.items()
            if values.value_of.get(var) not in light_values
        }
        return replace(self._resident_vars, sizes=sizes)

    def _has_long_gap(self, accesses: tuple[int, ...]) -> bool:
        """Whether dropping a value between two accesses, and recomputing it for the second, is likely to pay off.

        ``accesses`` are the indices of the ops that make the value (the first access) and read it.
        """
        ops = self._program.body.ops
        if self._phases.has_backward:  # a training step
            phases = [self._phases.phase(ops[index]) for index in accesses]
            return phases[0] == "forward" and "backward" in phases
        gaps = map(sub, accesses[1:], accesses)  # none if no op reads the value
        return max(gaps, default=0) >= max(len(ops) // _LONG_GAP, 2)

    def _in_best_order(self, planned_vars: PlannedVars, work: int = DEFAULT_WORK) -> Program:
        """Return the program in the order with the lowest peak that ``work`` search steps find."""
        return best_order(
            self._program,
            planned_vars.sizes,
            pinned=planned_vars.pinned,
            aliasing=planned_vars.aliasing,
            work=work,
        ).program


def _knee(curve: list[Trial]) -> Trial:
    """Return the knee of a curve of rising work and falling peak (Kneedle, 2011).

    It is the trial farthest below the line from the first to the last: with the largest
    difference of saved peak and added work, each as a share of the whole curve's.
    """
    first, last = curve[0], curve[-1]
    work_range = max(last.work - first.work, 1)
    peak_range = max(first.peak - last.peak, 1)

    def distance_below_line(trial: Trial) -> float:
        saved_share = (first.peak - trial.peak) / peak_range
        return saved_share - (trial.work - first.work) / work_range

    return max(curve, key=distance_below_line)
