"""Rematerialisation within a budget: some orders, each with what it needs recomputed.

An order that is good for keeping everything is not good for computing again: there, what is
long kept will be dropped, and only what is needed together counts. So several orders are
tried, among them some in which values with long gaps weigh nothing, and the best result is
put in order once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import sub
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import total_cost
from memplan_cli.core.progress import Detail, silent
from memplan_cli.features.recompute.bound import Bound, number
from memplan_cli.features.recompute.prune import pruned
from memplan_cli.features.recompute.resident_bound import resident_bound
from memplan_cli.features.recompute.solve import Solver, Trial
from memplan_cli.features.recompute.tidy import tidy
from memplan_cli.ordering.best_order import DEFAULT_WORK, best_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.terms import Terms

ORDER_WORK = 100_000
"""Steps that each search for an order may look at; many are made."""

LARGE = 3_000
"""Ops from which on only the most promising orders are tried, once."""

LONG_GAP = 20
"""A gap is long if it is one part in so many of the schedule."""

LIGHT_SHARES = (0.06, 0.2)
"""How large, of the peak at the start, values may be that weigh nothing in an order."""

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Budgets on the way down the trade-off curve, of the peak at the start."""


@dataclass(frozen=True, slots=True)
class Point:
    """One program on the trade-off curve."""

    peak: int
    """`live_peak` in bytes, outputs counted: ``resident``."""
    extra: float
    """Work of the copies, as a share of the graph's modelled work."""
    nodes: int


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A program that fits a budget, or comes as near as was found."""

    program: Program
    sizes: Mapping[VarId, Size]
    """Of the planned vars, copies included."""
    copies: tuple[Op, ...]
    chosen: Point
    curve: tuple[Point, ...]
    """What was found on the way, none worse in both numbers than another; falling peaks."""
    budget: int | None
    bound: int
    """No order of the program, with whatever copies, has a smaller `live_peak` of
    intermediates alone."""
    resident_bound: int
    """None has less of intermediates and outputs together."""

    @property
    def met(self) -> bool:
        """Whether the budget is kept; always where none was given."""
        return self.budget is None or self.chosen.peak <= self.budget


def auto(
    program: Program,
    terms: Terms,
    phases: Phases,
    budget: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> Recomputation:
    """Choose what to compute again, jointly with the order.

    Where an order alone keeps the budget nothing is computed again.

    Args:
        program: With backward part or without.
        terms: What is planned, what is pinned, what may share bytes.
        phases: Which values wait for the backward part.
        budget: Bytes that intermediates and outputs may take together at one step; None for
            the knee of the trade-off curve.
        tell: Told in a line what was found so far.
    """
    search = _Search(program, terms, phases, tell or silent)
    if budget is None:
        search.descend()
        chosen = _knee(search.curve())
    else:
        # What no order can reach is not worth the work of trying.
        search.fit(max(budget, search.floor))
        chosen = search.best(budget)
    bound, floor = search.lower.least, search.floor
    if budget is not None and budget < chosen.peak and not search.is_large:
        bound = search.lower.below(chosen.peak)
        # A search that aims at what cannot be reached takes much for little.
        floor = max(floor, search.held.below(chosen.peak))
        search.fit(max(budget, floor))
        chosen = search.best(budget)
    chosen = search.prune(chosen, chosen.peak if budget is None else budget)
    return Recomputation(
        chosen.copied.program,
        {v: size for v, size in chosen.copied.sizes.items() if v not in terms.results},
        chosen.copied.copies,
        search.point(chosen),
        tuple(search.point(trial) for trial in search.curve()),
        budget,
        bound,
        floor,
    )


class _Search:
    """Every program tried so far, and the orders to start from."""

    def __init__(
        self, program: Program, terms: Terms, phases: Phases, tell: Callable[[str], None]
    ) -> None:
        self._program, self._phases, self._tell = program, phases, tell
        self._terms = terms.resident
        self._total = max(total_cost(program).work, 1)
        solver = Solver(program, self._terms)
        self.first = solver.as_it_is()
        self.lower = Bound(program, terms)
        self.held = Bound(program, replace(self._terms, sizes=terms.sizes))
        self.floor = resident_bound(self.held, terms)
        self._trials = [self.first]
        self._solvers: dict[str, Solver] = {"file": solver}
        self.is_large = len(program.body.ops) > LARGE

    def best(self, budget: int) -> Trial:
        """Return what keeps the budget with the least work, or comes nearest to it."""
        return min(self._trials, key=lambda trial: trial.rank(budget))

    def prune(self, trial: Trial, budget: int) -> Trial:
        """Return a trial without the copies that it does not need; it is one more trial.

        Where another has the same peak and work, the one with the fewest copies is taken.
        """
        fewer = pruned(trial, self._program, self._terms, budget)
        self._trials.append(fewer)
        alike = [t for t in self._trials if (t.peak, t.work) == (fewer.peak, fewer.work)]
        return min(alike, key=lambda each: len(each.copied.copies))

    def point(self, trial: Trial) -> Point:
        """Return where a program is on the curve."""
        nodes = len(trial.copied.copies)
        return Point(trial.peak, trial.work / self._total, nodes)

    def curve(self) -> list[Trial]:
        """Return the trials that no other beats in both peak and work."""
        front: list[Trial] = []
        copies = [
            (t.work, t.peak, len(t.copied.copies), at) for at, t in enumerate(self._trials)
        ]
        for *_, at in sorted(copies):
            trial = self._trials[at]
            if not front or trial.peak < front[-1].peak:
                front.append(trial)
        return front

    def fit(self, budget: int) -> None:
        """Try to keep a budget, from several orders."""
        self._order_alone()
        if self._keeps_for_nothing(budget):
            return
        for name in self._orders():
            self._measure(name)
            if self._keeps_for_nothing(budget):
                return
        for name in self._promising():
            self._try(name, budget)
        self._again(budget)

    def descend(self) -> None:
        """Go down the trade-off curve, once from each order."""
        budgets = [max(int(self.first.peak * share), self.floor) for share in SHARES]
        self._order_alone()
        for name in self._orders():
            self._measure(name)
        for name in self._promising():
            solver = self._solvers[name]
            found = solver.descend(dict.fromkeys(budgets), solver.start())
            self._trials += found
            least = min(trial.peak for trial in found)
            self._tell(Detail(f"from order {name!r}: down to {least} bytes"))

    def _order_alone(self) -> None:
        """Take the order that is found where nothing may be computed again.

        It is no start for dropping values; but a budget must not cost memory.
        """
        if "alone" not in self._solvers:
            ordered = self._ordered(self._program, self._terms, DEFAULT_WORK)
            self._solvers["alone"] = Solver(ordered, self._terms)
            self._trials.append(self._solvers["alone"].as_it_is())

    def _measure(self, name: str) -> None:
        """Make an order, if it is not there, and take it as it is."""
        if name not in self._solvers:
            self._solvers[name] = Solver(self._orders()[name](), self._terms)
            self._trials.append(self._solvers[name].as_it_is())

    def _promising(self) -> list[str]:
        names = list(self._orders())
        return names[-1:] if self.is_large else names

    def _keeps_for_nothing(self, budget: int) -> bool:
        best = self.best(budget)
        return best.peak <= budget and not best.work

    def _orders(self) -> dict[str, Callable[[], Program]]:
        """Return the orders to start from, the most promising one last."""
        in_order = {"ordered": lambda: self._ordered(self._program, self._terms)}
        light = {f"light {share}": partial(self._light, share) for share in LIGHT_SHARES}
        if self.is_large:
            return in_order | dict(list(light.items())[-1:])
        return {"file": lambda: self._program} | in_order | {"tidy": self._tidied} | light

    def _try(self, name: str, budget: int) -> None:
        solver = self._solvers[name]
        state = solver.start()
        half = (int(state.live.max(initial=0)) + budget) // 2
        found = solver.descend([half], state)
        found += solver.solve(budget, state)
        if not solver.is_huge:
            found += solver.solve(budget, solver.start())
        self._trials += found
        nearest = min(found, key=lambda trial: trial.rank(budget))
        extra = nearest.work / self._total
        self._tell(Detail(f"from order {name!r}: {nearest.peak} bytes, {extra:.2%} more work"))

    def _again(self, budget: int) -> None:
        """Order the best program with its copies, and start from that order once more."""
        if self.is_large:
            return
        best = self.best(budget)
        terms = replace(self._terms, sizes=best.copied.sizes)
        ordered = self._ordered(best.copied.program, terms)
        self._trials.append(best.reordered(ordered, terms))
        self._solvers["again"] = Solver(_firsts(self._program, ordered), self._terms)
        self._try("again", budget)

    def _tidied(self) -> Program:
        return tidy(self._solvers["ordered"].values.program, self._weights(()))

    def _light(self, share: float) -> Program:
        """Order as if what can be dropped for long, and is not too large, weighed nothing."""
        values = self._solvers["file"].values
        droppable = {
            value
            for value, times in enumerate(values.reads)
            if values.work[value] >= 0
            and values.size[value] <= share * self.first.peak
            and self._is_stored(times)
        }
        light = {var for var, value in values.of.items() if value in droppable}
        sizes = {var: size for var, size in self._terms.sizes.items() if var not in light}
        ordered = self._ordered(self._program, replace(self._terms, sizes=sizes))
        return tidy(ordered, self._weights(light))

    def _is_stored(self, times: tuple[int, ...]) -> bool:
        """Whether a value waits for the backward part, or for long where there is none."""
        if self._phases.kind == "test":
            long = max(len(self._program.body.ops) // LONG_GAP, 2)
            return max(map(sub, times[1:], times), default=0) >= long
        parts = [self._phases.part(self._program.body.ops[time]) for time in times]
        return parts[0] == "forward" and "backward" in parts

    def _weights(self, light: Collection[VarId]) -> dict[VarId, int]:
        sizes = self._terms.sizes
        return {var: number(sizes, var) for var in sizes if var not in light}

    def _ordered(self, program: Program, terms: Terms, work: int = ORDER_WORK) -> Program:
        return best_order(
            program,
            terms.sizes,
            pinned=terms.pinned,
            aliasing=terms.aliasing,
            work=work,
        ).program


def _firsts(program: Program, ordered: Program) -> Program:
    """Return a program's ops in the order in which they, or copies of them, first run."""
    first: dict[int, int] = {}
    for at, op in enumerate(ordered.body.ops):
        first.setdefault(op.source, at)
    ops = sorted(program.body.ops, key=lambda op: first[op.source])
    return program.with_ops(ops)


def _knee(curve: list[Trial]) -> Trial:
    """Return the point farthest below the line from the first to the last (Kneedle, 2011)."""
    first, last = curve[0], curve[-1]
    work = max(last.work - first.work, 1)
    peak = max(first.peak - last.peak, 1)
    return max(
        curve, key=lambda t: (first.peak - t.peak) / peak - (t.work - first.work) / work
    )
