"""Lower bounds of the memory that a program needs in any order, whatever is recomputed.

The simple bound is what one op touches: its inputs and outputs are live at once.

A better one looks at a large value y that op X makes and op Z reads. Between X and Z only ops
that fit beside y can run, so everything else that Z reads must be live while X runs, or be
made of something that is live then:

    X makes y ......... Z reads y and v
              ^ ops that fit beside y

How little that can be is a minimum cut: from the values that no fitting op can make, through
the ops that fit, to the values that Z reads. The capacity of a value is its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.analysis.max_flow import INFINITE, SINK, SOURCE, Network
from memplan_cli.core.operators import operator
from memplan_cli.core.results.certificate import (
    NOT_CHECKABLE,
    FlowEdge,
    ReaderFlow,
    RecomputeProof,
)
from memplan_cli.features.recompute.values import bytes_of, find_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.recompute.values import Values
    from memplan_cli.ordering.records import PlannedVars

_MAX_KEPT_VALUES = 16
"""Values that are examined: those whose producers touch the most bytes."""

_MAX_HALVINGS = 24
"""Budgets that are tried for the largest one that no order meets."""

_READ_AT_END = -1
"""Stands for the op that reads a value at the end, in place of a value made of it."""

_FLOW_WORK = 100_000
"""Edges that are visited for one cut; a flow that is cut short is a bound too."""


class Bound:
    """Lower bounds of the live peak over all orders and all copies of a program's ops.

    Attributes:
        least: bytes that some op touches at once, less what its first output may overwrite,
            and all pinned vars.
    """

    def __init__(self, program: Program, terms: PlannedVars) -> None:
        values = find_values(program, terms.sizes, terms.pinned, terms.aliasing)
        self._values = values
        self._touched = [
            _touched_values(values, op, place) for place, op in enumerate(values.dataflow.ops)
        ]
        self._overwritten = [_overwritten_bytes(values, op, terms) for op in self.ops]
        self._needed_bytes = [
            self._bytes_touched(place, touched) for place, touched in enumerate(self._touched)
        ]
        self._touched_by_copy = [
            _touched_by_copy(values, value) for value in range(len(values.made_at))
        ]
        self._pinned_bytes = sum(
            bytes_of(terms.sizes, var) for var in dict.fromkeys(terms.pinned)
        )
        self.least = self._pinned_bytes + max(self._needed_bytes, default=0)

    def _bytes_touched(self, place: int, touched: Iterable[int]) -> int:
        """Return the bytes of values that an op touches, less those that it may overwrite."""
        return sum(self._values.sizes[value] for value in touched) - self._overwritten[place]

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops of the top block."""
        return tuple(self._values.dataflow.ops)

    def need_at(self, place: int) -> int:
        """Return the bytes that an op touches, and all pinned vars."""
        return self._pinned_bytes + self._needed_bytes[place]

    def below(self, reached: int) -> int:
        """Return the largest bound that was found, from `least` up to a peak that was reached.

        By bisection: a budget that cannot be met excludes all smaller ones.
        """
        low, high = self.least, reached
        for _ in range(_MAX_HALVINGS):
            if high - low < 1:
                break
            budget = (low + high) // 2
            if self.excludes(budget):
                low = budget + 1
            else:
                high = budget
        return low

    def excludes(self, budget: int) -> bool:
        """Whether it is proved that no order with any copies meets a budget."""
        if budget < self.least:
            return True
        room = budget - self._pinned_bytes
        return any(self._exceeds(value, room) for value in self._candidate_values())

    def witness(self, bound: int) -> RecomputeProof:
        """Return a proof that no order with any copies has a peak below ``bound``."""
        if bound <= self.least:
            needs = [self.need_at(place) for place in range(len(self.ops))] or [0]
            node = _first_output(self.ops[needs.index(max(needs))]) if self.ops else ""
            return RecomputeProof(bound, "step", node)
        room = bound - 1 - self._pinned_bytes
        for value in self._candidate_values():
            if self._exceeds(value, room):
                name, ways = self._name(value), self._proof_ways(value, room)
                return RecomputeProof(bound, "kept", "", name, ways)
        why = "the search that proved it cannot be found again"
        return RecomputeProof(bound, NOT_CHECKABLE, why=why)

    def _proof_ways(self, value: int, room: int) -> tuple[ReaderFlow, ...]:
        """Return the flow of each cut that `_exceeds` computes."""
        ways = []
        for is_copy, touched in enumerate(self._touched_when_made(value)):
            for consumer in self._consumers(value):
                cut = self._cut(value, self._inputs_at(consumer), touched, room)
                cut.network.flow(_FLOW_WORK)
                passages = tuple(
                    FlowEdge(
                        self._name(source),
                        "" if target == _READ_AT_END else self._name(target),
                        flow,
                    )
                    for source, target, flow in cut.flows()
                )
                ways.append(
                    ReaderFlow(_first_output(self.ops[consumer]), bool(is_copy), passages)
                )
        return tuple(ways)

    def _name(self, value: int) -> str:
        """Return the first var of a value."""
        return next(
            str(var) for var, number in self._values.value_of.items() if number == value
        )

    def _candidate_values(self) -> Sequence[int]:
        """Return the values whose producers touch the most bytes."""
        made_at = self._values.made_at
        by_need = sorted(
            range(len(made_at)), key=lambda value: (-self._needed_bytes[made_at[value]], value)
        )
        return by_need[:_MAX_KEPT_VALUES]

    def _consumers(self, value: int) -> Sequence[int]:
        """Return the ops that read a value and make something else than a view of it."""
        values = self._values
        return [
            place
            for place in values.accesses[value]
            if value not in map(values.value_of.get, values.dataflow.ops[place].outputs)
        ]

    def _touched_when_made(self, value: int) -> Sequence[set[int]]:
        """Return what is touched where a value is made: by its producer, and by a copy of it."""
        by_producer = self._touched[self._values.made_at[value]]
        by_copy = self._touched_by_copy[value]
        return [by_producer] if by_producer == by_copy else [by_producer, by_copy]

    def _exceeds(self, value: int, room: int) -> bool:
        """Whether making a value and keeping it for a consumer takes more than ``room`` bytes."""
        place = self._values.made_at[value]
        if _runs_one_branch(self._values.dataflow.ops[place]):
            return False
        consumers = self._consumers(value)
        return bool(consumers) and all(
            self._bytes_touched(place, touched)
            + self._cut(value, self._inputs_at(consumer), touched, room).capacity()
            > room
            for touched in self._touched_when_made(value)
            for consumer in consumers
        )

    def _inputs_at(self, place: int) -> list[int]:
        """Return the values that an op reads."""
        values = self._values
        reads = values.dataflow.reads[place]
        return list(dict.fromkeys(values.value_of[v] for v in reads if v in values.value_of))

    def _cut(self, kept: int, wanted: Iterable[int], counted: set[int], room: int) -> _Cut:
        """Return the network of what must be live so that ``wanted`` can be made beside ``kept``.

        Args:
            kept: the value that is kept all the time.
            wanted: the values that its consumer reads.
            counted: values that are live and counted already.
            room: bytes that may be live.
        """
        cut = _Cut(self._values)
        for value in wanted:
            if value not in counted:
                cut.want(value)
        while cut.waiting:
            value = cut.waiting.pop()
            place = self._values.made_at[value]
            kept_bytes = 0 if kept in self._touched[place] else self._values.sizes[kept]
            copy_bytes = self._bytes_touched(place, self._touched_by_copy[value])
            if copy_bytes + kept_bytes > room:
                cut.forbid(value)
                continue
            for need in self._values.inputs[value]:
                if need not in counted:
                    cut.require(value, need)
        return cut


@dataclass(slots=True)
class _Gate:
    """The two network nodes of a value, joined by an edge with the value's size as capacity."""

    enters: int
    leaves: int


class _Cut:
    """A flow network from values that cannot be made (source) to wanted values (sink).

    Attributes:
        network: the network.
        waiting: values for which it is still open whether they can be made.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._gates: dict[int, _Gate] = {}
        self.network = Network()
        self.waiting: list[int] = []
        self._edges: list[tuple[int, int, int]] = []
        """``(edge, value, value made of it)`` of every edge between gates or to the sink."""

    def capacity(self) -> int:
        """Return the fewest bytes that separate source and sink."""
        return self.network.flow(_FLOW_WORK)[0]

    def flows(self) -> Iterable[tuple[int, int, int]]:
        """Yield where flow passes: the value, a value made of it or `_READ_AT_END`, and bytes."""
        residual = self.network.residual
        for edge, source, target in self._edges:
            if residual[edge ^ 1]:
                yield source, target, residual[edge ^ 1]

    def want(self, value: int) -> None:
        """Require a value at the end."""
        leaves = self._gate(value).leaves
        self._edges.append((len(self.network.heads), value, _READ_AT_END))
        self.network.edge(leaves, SINK, INFINITE)

    def require(self, value: int, need: int) -> None:
        """State that a value is made of another one."""
        leaves, enters = self._gate(need).leaves, self._gate(value).enters
        self._edges.append((len(self.network.heads), need, value))
        self.network.edge(leaves, enters, INFINITE)

    def forbid(self, value: int) -> None:
        """State that a value cannot be made, so that it or values made of it are kept."""
        self.network.edge(SOURCE, self._gate(value).enters, INFINITE)

    def _gate(self, value: int) -> _Gate:
        """Return the gate of a value; a new one makes the value wait."""
        if value not in self._gates:
            gate = _Gate(self.network.node(), self.network.node())
            self.network.edge(gate.enters, gate.leaves, self._values.sizes[value])
            self._gates[value] = gate
            self.waiting.append(value)
        return self._gates[value]


def _touched_values(values: Values, op: Op, place: int) -> set[int]:
    """Return the values that an op reads and makes.

    Without the outputs of an If: what a branch reads can be gone, or overwritten, by the time
    that they are made.
    """
    outputs = () if _runs_one_branch(op) else op.outputs
    touched = (*values.dataflow.reads[place], *outputs)
    return {values.value_of[var] for var in touched if var in values.value_of}


def _runs_one_branch(op: Op) -> bool:
    """Whether an op is an If."""
    return bool(op.bodies) and not op.repeats


def _touched_by_copy(values: Values, value: int) -> set[int]:
    """Return the values touched by a copy that makes a value and no other optional output."""
    place = values.made_at[value]
    op = values.dataflow.ops[place]
    omitted = {
        values.value_of.get(op.outputs[position])
        for position in operator(op).optional_outputs
        if position < len(op.outputs)
    }
    return _touched_values(values, op, place) - (omitted - {value})


def _overwritten_bytes(values: Values, op: Op, terms: PlannedVars) -> int:
    """Return the bytes of an op's first output if it may be written over an input, else 0."""
    if not op.outputs or op.outputs[0] not in values.value_of:
        return 0
    sizes, output = terms.sizes, op.outputs[0]
    is_in_place = any(
        position < len(op.inputs)
        and op.inputs[position] in values.value_of
        and sizes.get(op.inputs[position]) == sizes.get(output)
        for position in terms.aliasing.in_place_inputs(op)
    )
    return bytes_of(sizes, output) if is_in_place else 0


def _first_output(op: Op) -> str:
    """Return the first output of an op, by which certificates name it."""
    return next((str(var) for var in op.outputs if var), "")


def resident_bound(interior: Bound, terms: PlannedVars) -> int:
    """Return a lower bound of intermediates and outputs together, for any order and any copies.

    An output stays to the end. So the producer of the last output has all outputs live, beside
    what it touches, and every producer has its own.

    Args:
        interior: bounds of the intermediates alone, with the sharing that counts outputs.
        terms: which results are outputs.
    """
    producers = tuple(_output_producers(interior, terms.results))
    all_outputs = sum(producer.output_bytes for producer in producers)
    at_last = all_outputs + min((producer.touched for producer in producers), default=0)
    at_own = (producer.touched + producer.largest_output for producer in producers)
    return max(interior.least, at_last, *at_own, 0)


@dataclass(frozen=True, slots=True)
class _OutputProducer:
    """An op that makes graph outputs.

    Attributes:
        touched: bytes of intermediates that it touches.
        output_bytes: bytes of its graph outputs.
        largest_output: bytes of the largest one; a copy may make just that one.
    """

    touched: int
    output_bytes: int
    largest_output: int


def _output_producers(
    interior: Bound, results: Mapping[VarId, Size]
) -> Iterator[_OutputProducer]:
    """Yield the producers of graph outputs, without views, which need no bytes of their own.

    What a branch reads may be gone when the outputs of an If are made, so it counts nothing.
    """
    for place, op in enumerate(interior.ops):
        sizes = [bytes_of(results, var) for var in op.outputs if var in results]
        if sizes and not SHARE_VIEWS.is_view(op):
            touched = 0 if op.bodies else interior.need_at(place)
            yield _OutputProducer(touched, sum(sizes), max(sizes))
