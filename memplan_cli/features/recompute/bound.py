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
from memplan_cli.features.recompute.values import bytes_of, find_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.recompute.values import Values
    from memplan_cli.ordering.records import PlannedVars

_MAX_KEPT_VALUES = 16
"""Values y that are tried: those whose producers touch the most bytes."""

_MAX_HALVINGS = 24
"""Budgets that are tried for the largest one that no order meets."""

_FLOW_WORK = 100_000
"""Edges that are visited for one cut. A flow that stops early is smaller, so a bound too."""


class Bound:
    """Lower bounds of the live peak over all orders and all copies of a program's ops.

    A value is a var with all its views, and a place is the index of an op (see `Values`). An op
    touches the values that it reads and makes.

    Attributes:
        simple_bound: the most bytes that an op touches, less what its first output may
        overwrite, and all pinned vars.
        _values: the values.
        _touched: for each place the values that its op touches.
        _touched_by_copy: for each value the values that a copy touches that makes just it.
        _overwritten: for each place the bytes of the first output if it may overwrite an input.
        _needed_bytes: for each place the bytes that its op touches, less `_overwritten`.
        _pinned_bytes: the bytes of all pinned vars, which are no values.
    """

    def __init__(self, program: Program, planned_vars: PlannedVars) -> None:
        values = find_values(
            program, planned_vars.sizes, planned_vars.pinned, planned_vars.aliasing
        )
        self._values = values
        self._touched = [
            _touched_values(values, op, place) for place, op in enumerate(values.dataflow.ops)
        ]
        self._overwritten = [_overwritten_bytes(values, op, planned_vars) for op in self.ops]
        self._needed_bytes = [
            self._bytes_touched(place, touched) for place, touched in enumerate(self._touched)
        ]
        self._touched_by_copy = [
            _touched_by_copy(values, value) for value in range(len(values.made_at))
        ]
        self._pinned_bytes = sum(
            bytes_of(planned_vars.sizes, var) for var in dict.fromkeys(planned_vars.pinned)
        )
        self.simple_bound = self._pinned_bytes + max(self._needed_bytes, default=0)

    def _bytes_touched(self, place: int, touched: Iterable[int]) -> int:
        """Return the bytes of values that an op touches, less those that it may overwrite."""
        return sum(self._values.sizes[value] for value in touched) - self._overwritten[place]

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops of the top block."""
        return tuple(self._values.dataflow.ops)

    def bytes_at(self, place: int) -> int:
        """Return the bytes live while an op runs: those that it touches, and all pinned vars."""
        return self._pinned_bytes + self._needed_bytes[place]

    def best_bound(self, reached_peak: int) -> int:
        """Return the largest bound that can be proved, at most a peak that was reached.

        By bisection from `simple_bound` up: if one budget is impossible, so are all smaller
        ones.
        """
        low, high = self.simple_bound, reached_peak
        for _ in range(_MAX_HALVINGS):
            if high - low < 1:
                break
            budget = (low + high) // 2
            if self.is_impossible(budget):
                low = budget + 1
            else:
                high = budget
        return low

    def is_impossible(self, budget: int) -> bool:
        """Whether there is a proof that no order with any copies meets a budget."""
        if budget < self.simple_bound:
            return True
        room = budget - self._pinned_bytes
        return any(self._keeping_exceeds(value, room) for value in self._candidate_values())

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

    def _touched_by_producers(self, value: int) -> Sequence[set[int]]:
        """Return what each op touches that may make a value: the original, and a copy if less."""
        by_original = self._touched[self._values.made_at[value]]
        by_copy = self._touched_by_copy[value]
        return [by_original] if by_copy == by_original else [by_original, by_copy]

    def _keeping_exceeds(self, value: int, room: int) -> bool:
        """Whether making a value and keeping it for a consumer takes more than ``room`` bytes.

        It does so whichever op makes it, the original or a copy, and whichever op is the first
        that reads it. False if an If makes it: what a branch reads may be gone, or overwritten,
        by then.
        """
        place = self._values.made_at[value]
        if _runs_one_branch(self._values.dataflow.ops[place]):
            return False
        consumers = self._consumers(value)
        return bool(consumers) and all(
            self._bytes_touched(place, touched)
            + self._cut(value, self._inputs_at(consumer), touched, room).capacity()
            > room
            for touched in self._touched_by_producers(value)
            for consumer in consumers
        )

    def _inputs_at(self, place: int) -> list[int]:
        """Return the values that an op reads."""
        values = self._values
        reads = values.dataflow.reads[place]
        input_values = (values.value_of[var] for var in reads if var in values.value_of)
        return list(dict.fromkeys(input_values))

    def _cut(self, kept: int, wanted: Iterable[int], counted: set[int], room: int) -> _Cut:
        """Return the network whose minimum cut must be live for ``wanted`` beside ``kept``.

        A value that can be made beside the kept one leads to the inputs of its producer, and
        so on, until values that cannot be made there.

        Args:
            kept: the value y that is kept all the time.
            wanted: the values that its consumer reads.
            counted: values that are live and counted already; they need no bytes here.
            room: bytes that may be live.
        """
        cut = _Cut(self._values)
        for value in wanted:
            if value not in counted:
                cut.add_wanted(value)
        while cut.unresolved:
            value = cut.unresolved.pop()
            place = self._values.made_at[value]
            kept_bytes = 0 if kept in self._touched[place] else self._values.sizes[kept]
            copy_bytes = self._bytes_touched(place, self._touched_by_copy[value])
            if copy_bytes + kept_bytes > room:
                cut.add_unmakeable(value)
                continue
            for need in self._values.inputs[value]:
                if need not in counted:
                    cut.add_input(value, need)
        return cut


@dataclass(slots=True)
class _Gate:
    """The two network nodes of a value, joined by an edge with the value's size as capacity.

    Attributes:
        enters: the node at which edges from other values end.
        leaves: the node from which edges to other values start.
    """

    enters: int
    leaves: int


class _Cut:
    """A flow network from values that cannot be made (source) to wanted values (sink).

    Only the edges inside gates have a limited capacity, so a minimum cut is a set of values: the
    cheapest one to have live, so that all wanted values can be made.

    Attributes:
        network: the network.
        unresolved: values that were added, but for which it is not decided yet whether they
        can be made.
        _gates: the gate of each value that was added.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._gates: dict[int, _Gate] = {}
        self.network = Network()
        self.unresolved: list[int] = []

    def capacity(self) -> int:
        """Return the fewest bytes that separate source and sink."""
        flow, _ = self.network.flow(_FLOW_WORK)
        return flow

    def add_wanted(self, value: int) -> None:
        """Add an edge from a value to the sink: the final consumer reads it."""
        self.network.edge(self._gate(value).leaves, SINK, INFINITE)

    def add_input(self, value: int, needed: int) -> None:
        """Add an edge from ``needed`` to ``value``: the producer of ``value`` reads it."""
        leaves, enters = self._gate(needed).leaves, self._gate(value).enters
        self.network.edge(leaves, enters, INFINITE)

    def add_unmakeable(self, value: int) -> None:
        """Add an edge from the source to a value: it cannot be made, only kept."""
        self.network.edge(SOURCE, self._gate(value).enters, INFINITE)

    def _gate(self, value: int) -> _Gate:
        """Return the gate of a value, after adding it and marking the value as unresolved."""
        if value not in self._gates:
            gate = _Gate(enters=self.network.node(), leaves=self.network.node())
            self.network.edge(gate.enters, gate.leaves, self._values.sizes[value])
            self._gates[value] = gate
            self.unresolved.append(value)
        return self._gates[value]


def _touched_values(values: Values, op: Op, place: int) -> set[int]:
    """Return the values that an op reads and makes, which are live at once.

    For an If only those that it reads: what a branch reads can be gone, or overwritten, by the
    time that the outputs are made.
    """
    outputs = () if _runs_one_branch(op) else op.outputs
    touched = (*values.dataflow.reads[place], *outputs)
    return {values.value_of[var] for var in touched if var in values.value_of}


def _runs_one_branch(op: Op) -> bool:
    """Whether an op has subgraphs that do not repeat: an If."""
    return bool(op.bodies) and not op.repeats


def _touched_by_copy(values: Values, value: int) -> set[int]:
    """Return the values that a copy reads and makes if it omits optional outputs except a value."""
    place = values.made_at[value]
    op = values.dataflow.ops[place]
    omitted = {
        values.value_of.get(op.outputs[position])
        for position in operator(op).optional_outputs
        if position < len(op.outputs)
    }
    return _touched_values(values, op, place) - (omitted - {value})


def _overwritten_bytes(values: Values, op: Op, planned_vars: PlannedVars) -> int:
    """Return the bytes of an op's first output if it may be written over an input, else 0."""
    if not op.outputs or op.outputs[0] not in values.value_of:
        return 0
    sizes, output = planned_vars.sizes, op.outputs[0]
    is_in_place = any(
        position < len(op.inputs)
        and op.inputs[position] in values.value_of
        and sizes.get(op.inputs[position]) == sizes.get(output)
        for position in planned_vars.aliasing.in_place_inputs(op)
    )
    return bytes_of(sizes, output) if is_in_place else 0


def resident_bound(interior: Bound, planned_vars: PlannedVars) -> int:
    """Return a lower bound of intermediates and outputs together, for any order and any copies.

    An output stays live to the end. So when the last producer of an output runs, all outputs
    are live beside what it touches; which producer is last is not known, so the smallest of
    them counts. And each producer has its largest output live beside what it touches; a copy
    may make just that one.

    Args:
        interior: bounds of the intermediates alone, with the sharing that counts outputs.
        planned_vars: its `results` are the graph outputs.
    """
    producers = tuple(_output_producers(interior, planned_vars.results))
    all_outputs = sum(producer.output_bytes for producer in producers)
    at_last_producer = all_outputs + min(
        (producer.touched_bytes for producer in producers), default=0
    )
    at_each_producer = (
        producer.touched_bytes + producer.largest_output for producer in producers
    )
    return max(interior.simple_bound, at_last_producer, *at_each_producer, 0)


@dataclass(frozen=True, slots=True)
class _OutputProducer:
    """An op that makes graph outputs.

    Attributes:
        touched_bytes: bytes of intermediates that it touches.
        output_bytes: bytes of its graph outputs.
        largest_output: bytes of the largest one; a copy may make just that one.
    """

    touched_bytes: int
    output_bytes: int
    largest_output: int


def _output_producers(
    interior: Bound, results: Mapping[VarId, Size]
) -> Iterator[_OutputProducer]:
    """Yield the producers of graph outputs, except views, which need no bytes of their own.

    An op with subgraphs counts as touching no bytes: what a subgraph reads may be gone when
    the outputs are made.
    """
    for place, op in enumerate(interior.ops):
        sizes = [bytes_of(results, var) for var in op.outputs if var in results]
        if sizes and not SHARE_VIEWS.is_view(op):
            touched_bytes = 0 if op.bodies else interior.bytes_at(place)
            yield _OutputProducer(touched_bytes, sum(sizes), max(sizes))
