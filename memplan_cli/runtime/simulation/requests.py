"""The requests to the arena, in order, of the first run and of those after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.bfc import CHUNK
from memplan_cli.runtime.simulation.control_flow import CONTROL_FLOW
from memplan_cli.runtime.simulation.frame import Runner
from memplan_cli.runtime.simulation.ledger import Ledger
from memplan_cli.runtime.simulation.trace import Request, Trace, held_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Op
    from memplan_cli.runtime.simulation.bfc import ArenaRules
    from memplan_cli.runtime.simulation.frame import Model


WORKSPACE_FIRST = frozenset({"Einsum", "Where"})
"""Ops whose kernels ask for workspace before their outputs (1.31.1); others do it afterwards."""


@dataclass(slots=True)
class _Recorder(Ledger):
    """A ledger that writes down what it is asked, kernels' workspace included."""

    found: list[Request] = field(default_factory=list)

    def allocate(self, size: int) -> int:
        ticket = Ledger.allocate(self, size)
        self.found.append(Request(ticket, size))
        return ticket

    def free(self, ticket: int) -> None:
        Ledger.free(self, ticket)
        self.found.append(Request(ticket, -1))

    def sample(self, op: Op) -> None:
        Ledger.sample(self, op)
        workspace = self.scratch.get(op.name, 0)
        if workspace:
            # Asked for beside inputs and outputs, and given back with the kernel.
            self._count += 1
            self.found += (Request(self._count, workspace), Request(self._count, -1))


@dataclass(slots=True)
class _TimedRecorder(_Recorder):
    """The same, by when each kernel asks for its workspace: before its outputs or after them."""

    mark: int = 0

    def free(self, ticket: int) -> None:
        _Recorder.free(self, ticket)
        self.mark = len(self.found)

    def sample(self, op: Op) -> None:
        if op.type in WORKSPACE_FIRST and (workspace := self.scratch.get(op.name, 0)):
            Ledger.sample(self, op)
            self._count += 1
            self.found.insert(self.mark, Request(self._count, workspace))
            self.found.append(Request(self._count, -1))
        else:
            _Recorder.sample(self, op)
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


def run_of(model: Model, scratch: Mapping[str, int]) -> Run:
    """Return the first run and later ones; ``scratch`` is each op's workspace, by name.

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


def requests_of(model: Model, scratch: Mapping[str, int]) -> tuple[Request, ...]:
    """Return the requests of one run; ``scratch`` is each op's workspace, by name.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    return run_of(model, scratch).requests


def requests_twice(
    model: Model, scratch: Mapping[str, int]
) -> tuple[tuple[Request, ...], tuple[Request, ...]]:
    """Return the requests of the first run at some sizes, and of every later one.

    They differ where a memory pattern is traced in the first and used from then on.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    first, later = _TimedRecorder(scratch=scratch), _TimedRecorder(scratch=scratch)
    runner = Runner(model, first, CONTROL_FLOW)
    runner.run()
    runner.ledger = later
    runner.run()
    return tuple(first.found), tuple(later.found)


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
