"""Rematerialisation of one order within one budget: choose, build, measure, choose again.

Choosing works on an estimate of what is live: places of the base schedule, and nothing
shared in place by copies. Each round builds the program, measures it exactly with the
planner's own `storage_of`, and goes on from there. When it fits, copies that turn out not to
be needed are taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.analysis.cost import op_cost
from memplan_cli.analysis.liveness import steps
from memplan_cli.analysis.storage import storage_of
from memplan_cli.features.recompute.build import Copied, build
from memplan_cli.features.recompute.choose import Chooser
from memplan_cli.features.recompute.state import State
from memplan_cli.features.recompute.values import find_values
from memplan_cli.ordering.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from memplan_cli.core.program import Program

ROUNDS = 12
"""Programs that are built and measured for one budget, at most."""

HALF_AT = 8_000
"""Ops from which on there are half as many rounds."""

STAGE_ROUNDS = 2
"""Programs that are built and measured for a budget on the way to a smaller one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A program that was tried: its exact peak in bytes, and the work of its copies."""

    copied: Copied
    peak: int
    work: int

    def rank(self, budget: int) -> tuple[int, int, int]:
        """Return a key: what keeps a budget before what does not, then less work."""
        return max(self.peak, budget), self.work, self.peak

    def reordered(self, program: Program, terms: Terms) -> Trial:
        """Return the same ops in another order."""
        peak = int(live_at(program, terms).max(initial=0))
        return replace(self, copied=replace(self.copied, program=program), peak=peak)


def live_at(program: Program, terms: Terms) -> NDArray[np.int64]:
    """Return the most bytes live during each op of the top block."""
    _, units = storage_of(program, terms.sizes, terms.pinned, terms.aliasing)
    clock = [step for step in steps(program) if step.block is program.body]
    ticks = max((step.end for step in clock), default=0) + 1
    change = np.zeros(ticks + 1, np.int64)
    for buffer in units.get("1", ()):
        change[buffer.live.start] += buffer.size
        change[min(buffer.live.end, ticks)] -= buffer.size
    starts = [step.start for step in clock]
    return np.maximum.reduceat(np.cumsum(change), starts) if starts else change[:0]


class Solver:
    """Fits one order of a program to budgets."""

    def __init__(self, program: Program, terms: Terms) -> None:
        self._terms = terms
        self.values = find_values(program, terms.sizes, terms.pinned, terms.aliasing)
        self._live = live_at(program, terms)

    def start(self) -> State:
        """Return the state in which nothing is computed again."""
        return State(self.values, self._live)

    def as_it_is(self) -> Trial:
        """Return the order with nothing computed again."""
        return self._measure(self.start())

    def solve(self, budget: int, state: State) -> list[Trial]:
        """Return every program tried on the way from a state to a budget.

        The state is left where the last of them is.
        """
        return self._solve(budget, state, ROUNDS // (2 if self.is_huge else 1))

    @property
    def is_huge(self) -> bool:
        """Whether a round takes so long that there can only be few."""
        return len(self._live) >= HALF_AT

    def descend(self, budgets: Iterable[int], state: State) -> list[Trial]:
        """Return every program tried while the budget falls, each from the one before.

        What is worth its work under a large budget mostly is under a smaller one too, so
        this is one search, and its programs lie on the trade-off curve.
        """
        return [
            trial for budget in budgets for trial in self._solve(budget, state, STAGE_ROUNDS)
        ]

    def _solve(self, budget: int, state: State, rounds: int) -> list[Trial]:
        trials: list[Trial] = []
        while len(trials) < rounds:
            taken = Chooser(state, budget).run()
            trials.append(self._measure(state))
            if trials[-1].peak > budget and not taken:
                break
            # What is taken back may turn out to be too much: then some is chosen again.
            while trials[-1].peak <= budget and len(trials) < rounds:
                if not state.undo(budget):
                    return trials
                trials.append(self._measure(state))
        return trials

    def _measure(self, state: State) -> Trial:
        """Build and measure a state, and put what is found into it."""
        copied = build(self.values, state.copies, self._terms.sizes)
        terms = Terms(copied.sizes, self._terms.pinned, self._terms.aliasing)
        exact = live_at(copied.program, terms)
        live = np.zeros(len(self._live), np.int64)
        np.maximum.at(live, np.asarray(copied.places, np.int64), exact)
        state.replace_estimates(copied, live)
        variables = copied.program.vars
        work = sum(op_cost(op, variables).work for op in copied.copies)
        return Trial(copied, int(live.max(initial=0)), work)
