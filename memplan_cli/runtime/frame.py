"""What does the arena see during one run? Every request and release, op by op.

A frame is one execution of one block. Bodies run in frames of their own: an If's branch
writes straight into the If's outputs, a Loop's turn makes results that the next turn (or
the concatenation at the end) reads, a Scan's turn writes into slices of its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.pattern import Pattern
from memplan_cli.runtime.reuse import BlockPlan, Kind, Rules, plan_block

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.ir import Block, Op, Program, VarId
    from memplan_cli.runtime.bfc import Arena


_TURN_NUMBER = 8
_CONDITION = 1
"""A Loop keeps both in the arena while it runs."""

_SETTLED = 3
"""After a turn that traces and one that starts from its state, turns are all alike."""


class UnknownBytesError(Exception):
    """A tensor's size is not known before the run: nothing can be predicted."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is run: the executed graph, its bytes, and how often its loops turn."""

    program: Program
    bytes: Mapping[VarId, int]
    rules: Rules
    with_pattern: bool
    trips: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Ledger:
    """Bytes asked for and not given back, at every step, with and without an arena.

    ``peak`` is sampled as the profile does: after each op, before its inputs are freed.
    """

    arena: Arena | None = None
    live: int = 0
    peak: int = 0
    _sizes: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    _count: int = 0

    def allocate(self, size: int) -> int:
        """Ask for memory; the number returned gives it back."""
        self._count += 1
        address = self.arena.allocate(size) if self.arena else None
        self._sizes[self._count] = (size, address)
        self.live += size
        return self._count

    def free(self, ticket: int) -> None:
        """Give memory back."""
        size, address = self._sizes.pop(ticket)
        self.live -= size
        if self.arena:
            self.arena.free(address)

    def sample(self, op: Op) -> None:  # noqa: ARG002 - a recorder wants to know
        """Look at what is live when an op is done."""
        self.peak = max(self.peak, self.live)


@dataclass(slots=True)
class Runner:
    """Runs frames of one model against one ledger; patterns last from run to run."""

    model: Model
    ledger: Ledger
    plans: dict[str, BlockPlan] = field(default_factory=dict)
    patterns: dict[str, Pattern] = field(default_factory=dict)

    def run(self) -> None:
        """Run the top block once; its results are given back when it is over."""
        results = self.frame(self.model.program.body, None, {})
        for ticket in results.values():
            self.ledger.free(ticket)

    def frame(
        self, block: Block, owner: Op | None, given: Mapping[VarId, int]
    ) -> dict[VarId, int]:
        """Run a block; return tickets of its results that are not ``given`` memory."""
        plan = self.plans.get(block.path)
        if plan is None:
            plan = plan_block(self.model.program, block, owner, self.model.rules)
            self.plans[block.path] = plan
        frame = _Frame(self, block, plan, given)
        return frame.execute()

    def size(self, var: VarId) -> int:
        """Return the bytes of a var.

        Raises:
            UnknownBytesError: they depend on data.
        """
        size = self.model.bytes.get(var)
        if size is None:
            raise UnknownBytesError(str(var))
        return size


@dataclass(slots=True)
class _Frame:
    runner: Runner
    block: Block
    plan: BlockPlan
    given: Mapping[VarId, int]
    tickets: dict[VarId, int] = field(default_factory=dict)
    known: Pattern | None = None
    trace: Pattern | None = None

    def execute(self) -> dict[VarId, int]:
        ledger = self.runner.ledger
        whole = None
        if self.runner.model.with_pattern:
            self.known = self.runner.patterns.get(self.block.path)
            if self.known is None:
                self.trace = Pattern()
            elif self.known.height:
                whole = ledger.allocate(self.known.height)
        for op, freed in zip(self.plan.order, self.plan.freed, strict=True):
            self._op(op)
            ledger.sample(op)
            for var in freed:
                self._free(var)
        return self._close(whole)

    def _close(self, whole: int | None) -> dict[VarId, int]:
        """Free what is left, and hand on the results."""
        ledger = self.runner.ledger
        results = {}
        for var, ticket in list(self.tickets.items()):
            if self.plan.kind[var] is Kind.OUTPUT:
                results[var] = ticket
            else:
                ledger.free(ticket)
        if whole is not None:
            ledger.free(whole)
        if self.trace is not None:
            self.runner.patterns[self.block.path] = self.trace
        return results

    def _op(self, op: Op) -> None:
        match op.type if op.bodies else "":
            case "If":
                self._branches(op)
            case "Loop":
                self._loop(op)
            case "Scan":
                self._scan(op)
            case _:
                for var in op.outputs:
                    self._make(var)

    def _make(self, var: VarId) -> None:
        kind = self.plan.kind.get(var)
        if not var or var in self.tickets or var in self.given:
            return
        if kind is Kind.NEW:
            if self.known is not None:
                return
            size = self.runner.size(var)
            self.tickets[var] = self.runner.ledger.allocate(size)
            if self.trace is not None:
                self.trace.allocate(var, size)
        elif kind is Kind.OUTPUT:
            self.tickets[var] = self.runner.ledger.allocate(self.runner.size(var))

    def _free(self, var: VarId) -> None:
        ticket = self.tickets.pop(var, None)
        if ticket is not None:
            self.runner.ledger.free(ticket)
        if self.trace is not None:
            self.trace.free(var)

    def _branches(self, op: Op) -> None:
        """Make the outputs, and run the branch that needs more: which one is data."""
        for var in op.outputs:
            self._make(var)
        needs = [self._trial(body, op) for body in op.bodies]
        body = op.bodies[needs.index(max(needs))]
        extra = self.runner.frame(body, op, dict.fromkeys(body.outputs, 0))
        for ticket in extra.values():
            self.runner.ledger.free(ticket)

    def _trial(self, body: Block, op: Op) -> int:
        """Return the most bytes a branch needs, without running it for good."""
        ledger = Ledger()
        runner = Runner(self.runner.model, ledger, self.runner.plans, {})
        runner.frame(body, op, dict.fromkeys(body.outputs, 0))
        return ledger.peak

    def _loop(self, op: Op) -> None:
        """Run the turns: two make the next one's state, all keep their scan outputs."""
        (body,) = op.bodies
        ledger = self.runner.ledger
        states = frozenset(body.outputs[: len(op.inputs) - 1])
        own = ledger.allocate(_TURN_NUMBER), ledger.allocate(_CONDITION)
        state: list[int] = []
        slices: list[int] = []
        for _ in range(self._turns(op)):
            results = self.runner.frame(body, op, {})
            for ticket in state:
                ledger.free(ticket)
            state = [ticket for var, ticket in results.items() if var in states]
            slices += [ticket for var, ticket in results.items() if var not in states]
        for var in op.outputs:
            self._make(var)
        for ticket in (*state, *slices, *own):
            ledger.free(ticket)

    def _turns(self, op: Op) -> int:
        """Return how often a Loop turns; what it collects cannot do without knowing."""
        turns = self.runner.model.trips.get(op.label)
        if turns is None and len(op.bodies[0].outputs) > len(op.inputs) - 1:
            raise UnknownBytesError(f"turns of {op.label}")
        return _SETTLED if turns is None else turns

    def _scan(self, op: Op) -> None:
        """Run a few turns between two buffers a state; outputs are written in slices."""
        (body,) = op.bodies
        ledger = self.runner.ledger
        for var in op.outputs:
            self._make(var)
        states = len(op.inputs) - int(str(op.attributes["num_scan_inputs"]))
        turns = self.runner.model.trips.get(op.label, _SETTLED)
        spare = min(max(turns - 1, 0), 2)
        own = [
            ledger.allocate(self.runner.size(var))
            for var in body.outputs[:states]
            for _ in range(spare)
        ]
        for _ in range(min(turns, _SETTLED)):
            results = self.runner.frame(body, op, dict.fromkeys(body.outputs, 0))
            for ticket in results.values():
                ledger.free(ticket)
        for ticket in own:
            ledger.free(ticket)
