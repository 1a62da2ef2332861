"""The requests to the arena, in order, of the first run and of those after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.bfc import CHUNK
from memplan_cli.runtime.simulation.control_flow import CONTROL_FLOW
from memplan_cli.runtime.simulation.frame import Runner
from memplan_cli.runtime.simulation.ledger import Ledger
from memplan_cli.runtime.simulation.trace import Request, Trace, held_by
from memplan_cli.runtime.simulation.workspace import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.program import Op
    from memplan_cli.runtime.simulation.bfc import ArenaRules
    from memplan_cli.runtime.simulation.frame import Model
    from memplan_cli.runtime.simulation.workspace import Workspace


WORKSPACE_FIRST = frozenset({"Einsum", "Where"})
"""Ops whose kernels ask for workspace before their outputs (1.31.1); others do it afterwards."""


@dataclass(slots=True)
class _Recorder(Ledger):
    """A ledger that writes down what it is asked, kernels' workspace included.

    Workspace is given back with the kernel; ``mark`` is where the requests of the next op begin.
    """

    found: list[Request] = field(default_factory=list)
    mark: int = 0

    def allocate(self, size: int) -> int:
        ticket = Ledger.allocate(self, size)
        self.found.append(Request(ticket, size))
        return ticket

    def free(self, ticket: int) -> None:
        Ledger.free(self, ticket)
        self.found.append(Request(ticket, -1))
        self.mark = len(self.found)

    def sample(self, op: Op) -> None:
        Ledger.sample(self, op)
        if workspace := self.scratch.get(key_of(op)):
            tickets = range(self._count + 1, self._count + 1 + len(workspace))
            self._count += len(workspace)
            at = self.mark if op.type in WORKSPACE_FIRST else len(self.found)
            self.found[at:at] = map(Request, tickets, workspace)
            self.found += (Request(ticket, -1) for ticket in reversed(tickets))
        self.mark = len(self.found)


@dataclass(frozen=True, slots=True)
class Run:
    """What runs ask for, and the peaks of their tensors.

    Attributes:
        requests: of the first run.
        peak: of the first run.
        then: the requests of the next runs; with a memory pattern one block is most of them.
        steady: the peak of the next runs.
    """

    requests: tuple[Request, ...]
    peak: int
    then: tuple[Request, ...]
    steady: int

    @property
    def traces(self) -> tuple[Trace, Trace]:
        """What the first two runs ask for."""
        return Trace.of(self.requests), Trace.of(self.then)

    @property
    def saved(self) -> int:
        """How many times less a later run asks the arena for memory than the first."""
        return (len(self.requests) - len(self.then)) // 2


def run_of(model: Model, scratch: Workspace) -> Run:
    """Return the first run and later ones; ``scratch`` is what kernels ask for besides.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    first = _Recorder(scratch=scratch)
    runner = Runner(model, first, CONTROL_FLOW)
    runner.run()
    found = tuple(first.found)
    if not model.with_pattern:
        return Run(found, first.peak, found, first.peak)
    later = _Recorder(scratch=scratch)
    runner.ledger = later
    runner.run()
    return Run(found, first.peak, tuple(later.found), later.peak)


def requests_of(model: Model, scratch: Workspace) -> tuple[Request, ...]:
    """Return the requests of one run; ``scratch`` is what kernels ask for besides.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    return run_of(model, scratch).requests


def held_after(requests: Sequence[Request], rules: ArenaRules, runs: int = 2) -> int:
    """Return what an arena holds after some runs of the same requests."""
    return held_by(Trace.of(requests), rules, runs)


def most_in_use(requests: Sequence[Request], chunk: int = CHUNK) -> int:
    """Return the most bytes given out at once, in whole chunks: no region is smaller."""
    live = high = 0
    sizes: dict[int, int] = {}
    for request in requests:
        if request.size < 0:
            live -= sizes.pop(request.ticket)
        else:
            sizes[request.ticket] = -(-request.size // chunk) * chunk
            live += sizes[request.ticket]
            high = max(high, live)
    return high
