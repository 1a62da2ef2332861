"""Lower bounds on what a program needs in any order, whatever is recomputed.

What one op touches is there at once. And more: what an op makes is kept until an op reads
it. If it is large, some ops do not fit beside it, so what these would make must be there
beforehand, or something made of it. How little that can be is a minimum cut in the graph.

    X makes y ......... Z reads y          between X and Z, only ops that fit beside y run;
              ^ what else Z reads          so while X runs, a cut between what they cannot
                                           make and what Z reads is live beside X's own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.max_flow import INFINITE, SINK, SOURCE, Network
from memplan_cli.core.operators import operator
from memplan_cli.core.results.certificate import NOT_CHECKABLE, Passage, RecomputeProof, Way
from memplan_cli.features.recompute.values import find_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.recompute.values import Values
    from memplan_cli.ordering.terms import Terms

LARGEST = 16
"""How many of the ops that need most are looked at together with what they keep out."""

HALVINGS = 24
"""Budgets that are tried for the greatest that cannot be kept."""

_WANTED = -1
"""Stands for what a value is needed for at the end."""

FLOW_WORK = 100_000
"""Edges that are looked at for one cut; a flow that is cut short is a bound too."""


class Bound:
    """Lower bounds on `live_peak` over all orders of a program with whatever copies."""

    def __init__(self, program: Program, terms: Terms) -> None:
        values = find_values(program, terms.sizes, terms.pinned, terms.aliasing)
        self._values = values
        self._touched = [_touched(values, op, at) for at, op in enumerate(values.flow.ops)]
        self._overwritten = [_overwritten(values, op, terms) for op in values.flow.ops]
        self._need = [self._takes(at, there) for at, there in enumerate(self._touched)]
        self._again = [_touched_again(values, value) for value in range(len(values.made))]
        self._always = sum(number(terms.sizes, var) for var in dict.fromkeys(terms.pinned))
        self.least = self._always + max(self._need, default=0)
        """What some op needs at once, in bytes, whatever the order: its inputs and outputs,
        less what the first output may overwrite; and what is pinned."""

    def _takes(self, at: int, touched: Iterable[int]) -> int:
        """Return the bytes of what an op touches, less what it may overwrite."""
        return sum(self._values.size[value] for value in touched) - self._overwritten[at]

    @property
    def ops(self) -> tuple[Op, ...]:
        """Return the ops of the top block."""
        return tuple(self._values.flow.ops)

    def need_at(self, at: int) -> int:
        """Return what the op at a place touches, and what is pinned."""
        return self._always + self._need[at]

    def below(self, reached: int) -> int:
        """Return a bound that is at least `least` and at most a peak that was reached.

        By halving: what cannot be kept under a budget cannot be kept under a smaller one.
        """
        low, high = self.least, reached
        for _ in range(HALVINGS):
            if high - low < 1:
                break
            budget = (low + high) // 2
            if self.excludes(budget):
                low = budget + 1
            else:
                high = budget
        return low

    def excludes(self, budget: int) -> bool:
        """Whether it is proved that no order, with whatever copies, keeps a budget."""
        if budget < self.least:
            return True
        room = budget - self._always
        return any(self._kept_out(value, room) for value in self._largest())

    def witness(self, bound: int) -> RecomputeProof:
        """Return what shows that no order, with whatever copies, has a peak below ``bound``."""
        if bound <= self.least:
            need = [self._always + each for each in self._need] or [0]
            ops = self._values.flow.ops
            node = _called(ops[need.index(max(need))]) if ops else ""
            return RecomputeProof(bound, "step", node)
        room = bound - 1 - self._always
        for value in self._largest():
            if self._kept_out(value, room):
                return RecomputeProof(
                    bound, "kept", "", self._name(value), self._ways(value, room)
                )
        why = "the search that proved it cannot be found again"
        return RecomputeProof(bound, NOT_CHECKABLE, why=why)

    def _ways(self, value: int, room: int) -> tuple[Way, ...]:
        """Return what flows in each case that `_kept_out` looks at."""
        found = []
        for alone, free in enumerate(self._made_by(value)):
            for consumer in self._consumers(value):
                cut = self._cut(value, self._touched_before(consumer), free, room)
                cut.network.flow(FLOW_WORK)
                passages = tuple(
                    Passage(self._name(one), "" if other < 0 else self._name(other), much)
                    for one, other, much in cut.passages()
                )
                found.append(
                    Way(_called(self._values.flow.ops[consumer]), bool(alone), passages)
                )
        return tuple(found)

    def _name(self, value: int) -> str:
        """Return the var whose bytes a value is."""
        return next(str(var) for var, number in self._values.of.items() if number == value)

    def _largest(self) -> Sequence[int]:
        made = self._values.made
        return sorted(range(len(made)), key=lambda value: (-self._need[made[value]], value))[
            :LARGEST
        ]

    def _consumers(self, value: int) -> Sequence[int]:
        """Return the ops that read a value and make something else of it."""
        values = self._values
        return [
            time
            for time in values.reads[value]
            if value not in map(values.of.get, values.flow.ops[time].outputs)
        ]

    def _made_by(self, value: int) -> Sequence[set[int]]:
        """Return what is touched where a value is made: an op makes all, a copy maybe less."""
        ways = [self._touched[self._values.made[value]], self._again[value]]
        return ways if ways[0] != ways[1] else ways[:1]

    def _kept_out(self, value: int, room: int) -> bool:
        """Whether making a value, and keeping it until it is read, takes more than ``room``."""
        at = self._values.made[value]
        if _runs_one(self._values.flow.ops[at]):
            return False
        consumers = self._consumers(value)
        return bool(consumers) and all(
            self._takes(at, free)
            + self._cut(value, self._touched_before(consumer), free, room).least()
            > room
            for free in self._made_by(value)
            for consumer in consumers
        )

    def _touched_before(self, at: int) -> list[int]:
        """Return the values that an op reads."""
        values = self._values
        return list(
            dict.fromkeys(values.of[v] for v in values.flow.reads[at] if v in values.of)
        )

    def _cut(self, kept: int, wanted: Iterable[int], free: set[int], room: int) -> _Cut:
        """Return what must be there for ``wanted`` to be made beside ``kept``.

        ``free`` are the values that are there and counted already.
        """
        cut = _Cut(self._values)
        for value in wanted:
            if value not in free:
                cut.want(value)
        while cut.waiting:
            value = cut.waiting.pop()
            at = self._values.made[value]
            beside = 0 if kept in self._touched[at] else self._values.size[kept]
            if self._takes(at, self._again[value]) + beside > room:
                cut.forbid(value)
                continue
            for need in self._values.needs[value]:
                if need not in free:
                    cut.need(value, need)
        return cut


def _called(op: Op) -> str:
    """Return the first of an op's results, by which a certificate names the op."""
    return next((str(var) for var in op.outputs if var), "")


@dataclass(slots=True)
class _Gate:
    """A value in the network: what flows through it is at most its size."""

    enters: int
    leaves: int


class _Cut:
    """A network that grows from what is wanted back to what cannot be made."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._gates: dict[int, _Gate] = {}
        self.network = Network()
        self.waiting: list[int] = []
        self._passed: list[tuple[int, int, int]] = []

    def least(self) -> int:
        """Return the least bytes of values that part what cannot be made from what is wanted."""
        return self.network.flow(FLOW_WORK)[0]

    def passages(self) -> Iterable[tuple[int, int, int]]:
        """Return what flows: from a value, to one made of it (-1: it is wanted), how much."""
        residual = self.network.residual
        return (
            (one, other, residual[e ^ 1]) for e, one, other in self._passed if residual[e ^ 1]
        )

    def want(self, value: int) -> None:
        """Say that a value has to be there at the end."""
        leaves = self._gate(value).leaves
        self._passed.append((len(self.network.heads), value, _WANTED))
        self.network.edge(leaves, SINK, INFINITE)

    def need(self, value: int, need: int) -> None:
        """Say that making a value takes another one."""
        leaves, enters = self._gate(need).leaves, self._gate(value).enters
        self._passed.append((len(self.network.heads), need, value))
        self.network.edge(leaves, enters, INFINITE)

    def forbid(self, value: int) -> None:
        """Say that a value cannot be made here: it, or what is made of it, is kept."""
        self.network.edge(SOURCE, self._gate(value).enters, INFINITE)

    def _gate(self, value: int) -> _Gate:
        if value not in self._gates:
            gate = _Gate(self.network.node(), self.network.node())
            self.network.edge(gate.enters, gate.leaves, self._values.size[value])
            self._gates[value] = gate
            self.waiting.append(value)
        return self._gates[value]


def _touched(values: Values, op: Op, at: int) -> set[int]:
    # What a branch reads can be gone, or overwritten, when the op's results are made.
    made = () if _runs_one(op) else op.outputs
    return {values.of[v] for v in (*values.flow.reads[at], *made) if v in values.of}


def _runs_one(op: Op) -> bool:
    return bool(op.bodies) and not op.repeats


def _touched_again(values: Values, value: int) -> set[int]:
    """Return what a copy touches that makes a value and no optional output besides."""
    at = values.made[value]
    op = values.flow.ops[at]
    optional = operator(op).optional_outputs
    left_out = {values.of.get(op.outputs[at]) for at in optional if at < len(op.outputs)}
    return _touched(values, op, at) - (left_out - {value})


def _overwritten(values: Values, op: Op, terms: Terms) -> int:
    """Return the bytes of an op's first output if they may be those of an input."""
    if not op.outputs or op.outputs[0] not in values.of:
        return 0
    sizes, result = terms.sizes, op.outputs[0]
    replaceable = any(
        place < len(op.inputs)
        and op.inputs[place] in values.of
        and sizes.get(op.inputs[place]) == sizes.get(result)
        for place in terms.aliasing.in_place_inputs(op)
    )
    return number(sizes, result) if replaceable else 0


def number(sizes: Mapping[VarId, Size], var: VarId) -> int:
    """Return the bytes of a var; none where they depend on a symbol or are not known."""
    size = sizes.get(var)
    return 0 if size is None or size.symbols else size.coefficient
