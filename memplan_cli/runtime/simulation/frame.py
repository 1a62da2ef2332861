"""The arena's view of one run: every request and release, op by op.

A frame is one execution of one block. Subgraphs run in frames of their own (`control_flow`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId, captures
from memplan_cli.runtime.simulation.ledger import Ledger, UnknownBytesError
from memplan_cli.runtime.simulation.pattern import Pattern
from memplan_cli.runtime.simulation.reuse import BlockPlan, Kind, Rules, plan_block

if TYPE_CHECKING:
    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.runtime.measuring.observed import Observed, Written


Given = Mapping[VarId, VarId | None]
"""Results of a subgraph that lie in the memory of its control-flow node; with that node's
output where that is made only when the subgraph makes the result."""

ControlFlow = Callable[["Frame", "Op"], None]
"""Runs the subgraphs of one op in frames of their own."""

_NO_TENSORS = ("sequence", "optional", "map")


@dataclass(frozen=True, slots=True)
class Model:
    """What is run: the executed graph, its bytes, and what one run was seen to do.

    ``packed`` are the weights that are gone once their kernels have packed them.
    """

    program: Program
    bytes: Mapping[VarId, int]
    rules: Rules
    with_pattern: bool
    observed: Observed | None = None
    packed: frozenset[VarId] = frozenset()


@dataclass(slots=True)
class Runner:
    """Runs frames of one model against one ledger; patterns last from run to run.

    Attributes:
        model, ledger: what is run, and who is asked for memory.
        control_flow: how ops run their subgraphs, by op type.
        plans: the planner's decisions, by block.
        patterns: by block and key of the feeds.
        frames: how many frames of each block this run has seen.
        keys: the exclusive or of the dims of each var, as it was written last.
    """

    model: Model
    ledger: Ledger
    control_flow: Mapping[str, ControlFlow]
    plans: dict[str, BlockPlan] = field(default_factory=dict)
    patterns: dict[tuple[str, int], Pattern] = field(default_factory=dict)
    frames: Counter[str] = field(default_factory=Counter)
    keys: dict[VarId, int] = field(default_factory=dict)
    feeds: dict[str, tuple[VarId, ...]] = field(default_factory=dict)

    def run(self) -> None:
        """Run the top block once; its results are given back when it is over."""
        self.frames.clear()
        self.keys.clear()
        results = self.frame(self.model.program.body, None, {})
        for ticket in results.values():
            self.ledger.free(ticket)

    def frame(
        self, block: Block, node: Op | None, given: Given, outer: Frame | None = None
    ) -> dict[VarId, int]:
        """Run a block; return tickets of its results that are not ``given`` memory."""
        plan = self.plans.get(block.path)
        if plan is None:
            plan = plan_block(self.model.program, block, node, self.model.rules)
            self.plans[block.path] = plan
        frame = Frame(self, block, plan, given, outer, self.frames[block.path])
        self.frames[block.path] += 1
        return frame.execute()

    def is_alike(self, block: Block, turns: int) -> bool:
        """Whether the next turns of a subgraph make what the last one made."""
        if any(op.bodies for op in block.ops):
            return False
        observed, last = self.model.observed, self.frames[block.path] - 1
        if observed is None:
            return True
        made = (observed.written.get(var, ()) for op in block.ops for var in op.outputs)
        parts = (entries[last : last + 1 + turns] for entries in made if entries)
        return all(len(part) == 1 + turns == part.count(part[0]) for part in parts)

    def key(self, block: Block) -> int | None:
        """Return what the runtime finds a pattern by; None where feeds forbid one.

        What never changes its shape within a run is left out: it changes no key. A weight
        of an outer block that its kernels have packed is gone, and what is fed to the subgraph
        in its place is no tensor (measured on 1.31.1).
        """
        feeds = self.feeds.get(block.path)
        if feeds is None:
            outer = captures(block) if block.path else ()
            feeds = self.feeds[block.path] = (*block.inputs, *outer)
        types = self.model.program.vars
        packed = self.model.packed
        if any(types[var].dtype.startswith(_NO_TENSORS) or var in packed for var in feeds):
            return None
        return reduce(xor, (self.keys.get(var, 0) for var in feeds), 0)


@dataclass(slots=True)
class Frame:
    """One execution of one block.

    Attributes:
        runner, block, plan: what is run, and by which decisions.
        given: results that lie in the control-flow node's memory.
        outer: the frame of the control-flow node.
        number: how many frames of this block came before, in this run.
    """

    runner: Runner
    block: Block
    plan: BlockPlan
    given: Given
    outer: Frame | None
    number: int
    key: int | None = None
    tickets: dict[VarId, int] = field(default_factory=dict)
    known: Pattern | None = None
    trace: Pattern | None = None

    def execute(self) -> dict[VarId, int]:
        """Run every op; return the tickets of the results in memory of their own."""
        ledger = self.runner.ledger
        whole = None
        if self.runner.model.with_pattern:
            whole = self._use_pattern()
        for op, freed in zip(self.plan.order, self.plan.freed, strict=True):
            self._op(op)
            ledger.sample(op)
            for var in freed:
                self._free(var)
        return self._close(whole)

    def _use_pattern(self) -> int | None:
        """Take the block that an earlier frame of the same feeds traced, or trace one."""
        self.key = self.runner.key(self.block)
        if self.key is None:
            return None
        self.known = self.runner.patterns.get((self.block.path, self.key))
        if self.known is None:
            self.trace = Pattern()
        elif self.known.height:
            return self.runner.ledger.allocate(self.known.height)
        return None

    def _close(self, whole: int | None) -> dict[VarId, int]:
        """Free what is left, and pass on the results."""
        ledger = self.runner.ledger
        results = {}
        for var, ticket in list(self.tickets.items()):
            if self.plan.kind[var] is Kind.OUTPUT:
                results[var] = ticket
            else:
                ledger.free(ticket)
        if whole is not None:
            ledger.free(whole)
        if self.trace is not None and self.key is not None:
            self.runner.patterns[self.block.path, self.key] = self.trace
        return results

    def _op(self, op: Op) -> None:
        run = self.runner.control_flow.get(op.type) if op.bodies else None
        if run is not None:
            run(self, op)
            return
        for var in op.outputs:
            self.make(var)

    def make(self, var: VarId) -> None:
        """Ask for the memory of a result, where it has none yet."""
        if not var:
            return
        seen = self.seen(var)
        if seen is not None:
            self.runner.keys[var] = seen.key
        if var in self.given:
            late = self.given[var]
            if late is not None and self.outer is not None:
                self.outer.make(late)
            return
        kind = self.plan.kind.get(var)
        if var in self.tickets or kind not in (Kind.NEW, Kind.OUTPUT):
            return
        size = self.size(var)
        if kind is Kind.NEW:
            if self.known is not None and self.known.holds(var, size):
                return
            if self.trace is not None and self._is_traced(var):
                self.trace.allocate(var, size)
        self.tickets[var] = self.runner.ledger.allocate(size)

    def _is_traced(self, var: VarId) -> bool:
        return self.runner.model.program.vars[var].dtype != "string"

    def seen(self, var: VarId) -> Written | None:
        """Return what the observed run wrote into a var in this very frame."""
        observed = self.runner.model.observed
        entries = observed.written.get(var, ()) if observed else ()
        return entries[self.number] if self.number < len(entries) else None

    def size(self, var: VarId) -> int:
        """Return the bytes of a var in this frame.

        Raises:
            UnknownBytesError: they depend on data, and nobody saw them.
        """
        seen = self.seen(var)
        size = self.runner.model.bytes.get(var) if seen is None else seen.bytes
        if size is None:
            raise UnknownBytesError(str(var))
        return size

    def _free(self, var: VarId) -> None:
        ticket = self.tickets.pop(var, None)
        if ticket is not None:
            self.runner.ledger.free(ticket)
        if self.trace is not None:
            self.trace.free(var)

    def turns(self, body: Block) -> int | None:
        """Return how often a subgraph ran for its node in this frame; None if nobody saw."""
        observed = self.runner.model.observed
        counts = observed.turns.get(body.path, ()) if observed else ()
        return counts[self.number] if self.number < len(counts) else None
