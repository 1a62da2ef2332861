"""Find the order of a program's ops with the least live peak.

Every block is ordered on its own, innermost first. For the block around it, a subgraph is the
memory that its op needs. The searches work on integers (`ordering.task_graph`). Their order is
measured again with `live_peak`, the number that the planner reports, and is dropped if it is not
better than the file's order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import SHARE_SAFELY, Aliasing
from memplan_cli.analysis.storage import storage_of
from memplan_cli.core.problem import Problem, lower_bound
from memplan_cli.core.program import VarId, walk
from memplan_cli.core.progress import silent
from memplan_cli.core.symbolic.sizes import SAMPLE, sampled_unit
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.ordering.block_graph import (
    StorageFacts,
    SubgraphMemory,
    chosen_step_bytes,
    least_step_bytes,
    storage_facts,
    task_graph,
)
from memplan_cli.ordering.block_search import BlockOrder, order_block
from memplan_cli.ordering.cut_bounds import cut_bound
from memplan_cli.ordering.list_orders import SCHEDULERS
from memplan_cli.ordering.records import Ordering, PlannedVars

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Block, Program
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.list_orders import Scheduler
    from memplan_cli.ordering.task_graph import OpIndex, Order, TaskGraph

DEFAULT_WORK = 4_000_000
"""Units of work of all searches together: up to six seconds for 1,000 ops.

A unit is one examined step of an order, about a microsecond."""

_FULL_WORK = 1000
"""Programs with more ops get a smaller part of the work, down to a twentieth."""

_OTHER_SAMPLES = (1, 1024)
"""Other values of symbols, for which a new order must not need more than the file's either."""


def best_order(
    program: Program,
    sizes: Mapping[VarId, Size],
    *,
    pinned: Collection[VarId] = (),
    aliasing: Aliasing = SHARE_SAFELY,
    work: int = DEFAULT_WORK,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Ordering:
    """Return the order of a program's ops with the least `live_peak` that is found, and the peak of each method.

    The file's order stays if no other has a lower peak. If sizes have symbols, peaks are compared with a sample
    number in place of every symbol, and are not returned.

    Args:
        program: The ops in the file's order.
        sizes: Sizes of the planned variables; others count no bytes.
        pinned: Variables that keep storage of their own for the whole run.
        aliasing: The rules by which variables share bytes.
        work: Units of work to spend, see `DEFAULT_WORK`.
        time_limit: Seconds after which no new search begins and a running one stops.
        progress: Called with a line about the best order so far.
    """
    meter = _PeakMeter(PlannedVars(sizes, pinned, aliasing), _sampled_sizes(sizes, SAMPLE))
    facts = meter.facts(program)
    budget = WorkBudget(_scaled_work(work, program), time_limit)
    main_block = _ordered_block(
        program.body, facts, lambda graph: order_block(graph, budget, progress or silent)
    )
    searched = replace(program, body=main_block.block)
    if any(op.bodies for op in program.body.ops):
        # The search may count bytes of an If twice (`chosen_step_bytes`), so peaks are measured.
        found = _measured_choice(program, searched, facts, meter)
    else:
        found = _Choice(main_block.search.chosen, searched, main_block.search.peaks)
    best = _confirmed_or_file(found, program, meter)
    # Peaks and bounds hold for one value of the symbols: with symbols, none is returned.
    bound = None if meter.is_symbolic else main_block.memory.bound
    return Ordering(
        best.program,
        peaks={} if meter.is_symbolic else best.peaks,
        chosen=best.method,
        bound=bound,
        proved=bound is not None and best.peak <= bound,
    )


class _Choice(NamedTuple):
    """The best order of several.

    Attributes:
        method: the method that found it.
        program: the program in this order.
        peaks: the live peak of each method's order, "file" among them.
    """

    method: str
    program: Program
    peaks: Mapping[str, int]

    @property
    def peak(self) -> int:
        """The live peak of the best order."""
        return self.peaks[self.method]


def _measured_choice(
    program: Program, searched: Program, facts: StorageFacts, meter: _PeakMeter
) -> _Choice:
    """Return the best order of a program with subgraphs: the searched one, or that of a scheduler.

    Peaks are measured here, because the search may count too many bytes for an If (`chosen_step_bytes`).
    """
    programs = {"searched": searched, **dict(_scheduled_programs(program, facts, SCHEDULERS))}
    peaks = {name: meter.peak(other) for name, other in programs.items()}
    method = min(programs, key=peaks.__getitem__)  # of equal ones "searched", the first
    # The order inside a subgraph decides which of its ops ONNX Runtime fuses, and so the last bits of the outputs.
    # The file's order stays inside all subgraphs if the peak is as low with it.
    chosen = _with_unchanged_subgraphs(program, programs[method], meter)
    return _Choice(method, chosen, {"file": meter.peak(program), **peaks})


def _confirmed_or_file(found: _Choice, program: Program, meter: _PeakMeter) -> _Choice:
    """Return the found order if its measured peak is lower than that of the file's order; else the file's order.

    ``program`` has the file's order. If sizes have symbols, ``meter`` has a sample number in place of every symbol.
    """
    if found.method == "file":
        return _Choice("file", program, found.peaks)
    file_peak = found.peaks["file"]  # for the same sizes as in ``meter``
    found_peak = meter.peak(found.program)
    peaks = {**found.peaks, found.method: found_peak}
    is_lower = found_peak < file_peak
    # With other numbers in place of the symbols, the found order must not be worse. No such meters without symbols.
    if is_lower and all(
        other.peak(found.program) <= other.peak(program) for other in meter.for_other_samples()
    ):
        return found._replace(peaks=peaks)
    return _Choice("file", program, peaks)


def _with_unchanged_subgraphs(
    program: Program, reordered: Program, meter: _PeakMeter
) -> Program:
    """Return a reordered program with the file's order inside all subgraphs, if its peak stays as low.

    Else return it as it is. The order inside a subgraph can change which ops a runtime fuses, and so the
    bits of results. With symbols, the peak must stay as low for every sample value.
    """
    file_ops = {op.outputs: op for op in program.body.ops if op.bodies}
    ops = tuple([file_ops.get(op.outputs, op) for op in reordered.body.ops])
    candidate = reordered.with_ops(ops)
    meters = [meter, *meter.for_other_samples()]
    is_as_low = all(other.peak(candidate) <= other.peak(reordered) for other in meters)
    return candidate if is_as_low else reordered


def simple_orders(
    program: Program, planned_vars: PlannedVars, schedulers: Mapping[str, Scheduler]
) -> Iterator[tuple[str, Program]]:
    """Return the name of each scheduler but the file's, with the program in its order, subgraphs too."""
    meter = _PeakMeter(planned_vars, _sampled_sizes(planned_vars.sizes, SAMPLE))
    return _scheduled_programs(program, meter.facts(program), schedulers)


def _scheduled_programs(
    program: Program, facts: StorageFacts, schedulers: Mapping[str, Scheduler]
) -> Iterator[tuple[str, Program]]:
    """Yield the name of each scheduler but ``file``, and the program in the scheduler's order, subgraphs too."""
    for name, scheduler in schedulers.items():
        if name != "file":  # the program is in the order of the file already
            method = partial(_scheduled_block, scheduler)
            ordered = _ordered_block(program.body, facts, method)
            yield name, replace(program, body=ordered.block)


def _scheduled_block(scheduler: Scheduler, graph: TaskGraph) -> BlockOrder:
    """Return the order of one scheduler, without a bound."""
    block_order = BlockOrder(graph, bound=0)
    block_order.offer("scheduled", scheduler(graph))
    return block_order


def _scaled_work(work: int, program: Program) -> int:
    """Return the work for a program: a unit of work takes longer in larger programs."""
    count = len(list(walk(program.body)))
    return work if count <= _FULL_WORK else max(work // 20, work * _FULL_WORK // count)


@dataclass(frozen=True, slots=True)
class _PeakMeter:
    """Measures the live peaks of programs, with one number in place of every symbol.

    Attributes:
        planned_vars: the planned variables.
        numbers: bytes of each variable with that number.
    """

    planned_vars: PlannedVars
    numbers: Mapping[VarId, int]

    def facts(self, program: Program) -> StorageFacts:
        """Return the facts about a program's variables that hold in every order."""
        return storage_facts(program, self.planned_vars, self.numbers)

    @property
    def is_symbolic(self) -> bool:
        """Whether any size has symbols, so that peaks hold for one value of them only."""
        return any(size.symbols for size in self.planned_vars.sizes.values())

    def peak(self, program: Program) -> int:
        """Return the live peak of a program, with numbers in place of symbols."""
        vars_ = self.planned_vars
        storage = storage_of(program, vars_.sizes, vars_.pinned, vars_.aliasing)
        # `storage_of` groups buffers by unit: the symbols in their sizes, such as ``batch*seq``. With numbers in place
        # of symbols, the buffers of all groups are added up. A buffer has the id and the size of its oldest variable.
        buffers = (buffer for group in storage.buffers_by_unit.values() for buffer in group)
        sized = (b._replace(size=self.numbers[VarId(b.id)]) for b in buffers)
        # Without alignment the bound is the most bytes live at one tick.
        return lower_bound(Problem(tuple(sized)))

    def for_other_samples(self) -> list[_PeakMeter]:
        """Return meters with other numbers in place of every symbol; none if there are no symbols."""
        if not self.is_symbolic:
            return []
        sizes = self.planned_vars.sizes
        return [
            replace(self, numbers=_sampled_sizes(sizes, value)) for value in _OTHER_SAMPLES
        ]


def _sampled_sizes(sizes: Mapping[VarId, Size], sample: int) -> dict[VarId, int]:
    """Return the bytes of each variable with ``sample`` in place of every symbol."""
    values = {unit: sampled_unit(unit, sample) for unit in {s.unit for s in sizes.values()}}
    return {var: size.coefficient * values[size.unit] for var, size in sizes.items()}


@dataclass(frozen=True, slots=True)
class _OrderedBlock:
    """A block in its new order.

    Attributes:
        block: the block with its ops, and those of its subgraphs, in their new order.
        memory: the memory that it needs for the block around it.
        search: the orders that were found for its own ops.
    """

    block: Block
    memory: SubgraphMemory
    search: BlockOrder


def _ordered_block(
    block: Block, facts: StorageFacts, method: Callable[[TaskGraph], BlockOrder]
) -> _OrderedBlock:
    """Order a block and all its subgraphs with one method, subgraphs first.

    The bound of the result is a lower bound on the block's peak over all orders of its ops and of its
    subgraphs.
    """
    ordered_ops = list(block.ops)
    body_bounds: list[int] = []  # for each subgraph, a lower bound on its own peak
    # For each op with subgraphs, the bytes that the op needs while it runs.
    chosen_bytes: dict[OpIndex, int] = {}  # with the orders that are chosen for its subgraphs
    least_bytes: dict[OpIndex, int] = {}  # a lower bound for all orders of its subgraphs
    for index, op in enumerate(block.ops):
        if op.bodies:
            bodies = [_ordered_block(body, facts, method) for body in op.bodies]
            ordered_ops[index] = op._replace(bodies=tuple(body.block for body in bodies))
            memory_of_bodies = [body.memory for body in bodies]
            body_bounds += [memory.bound for memory in memory_of_bodies]
            chosen_bytes[index] = chosen_step_bytes(op, facts, memory_of_bodies)
            least_bytes[index] = least_step_bytes(op, facts, memory_of_bodies)
    graph = task_graph(block, facts, chosen_bytes)
    search = method(graph)
    bound = search.bound  # for all orders of the ops, and the chosen orders of the subgraphs
    if least_bytes != chosen_bytes:  # other orders of the subgraphs may need less
        least_graph = task_graph(block, facts, least_bytes)
        # The branches of an If count 0 in ``least_bytes``, so their bounds are passed too.
        bound = _bound_with_subgraphs(least_graph, body_bounds, search.order)
    memory = SubgraphMemory(
        inputs=sum(map(facts.own_bytes, block.inputs)),
        peak=search.peak,
        results=graph.final_bytes(),
        bound=bound,
    )
    ordered = replace(block, ops=tuple(ordered_ops[op] for op in search.order))
    return _OrderedBlock(ordered, memory, search)


def _bound_with_subgraphs(graph: TaskGraph, body_bounds: Sequence[int], order: Order) -> int:
    """Return a lower bound on the peak of a block over all orders of its ops and of its subgraphs.

    Args:
        graph: The block. For ops with subgraphs, its step bytes are lower bounds (`least_step_bytes`).
        body_bounds: For each subgraph, a lower bound on the peak of its own variables.
        order: Any order of the ops. It only chooses the ops at which cuts are made: the bound holds for all orders.
    """
    bound_of_ops = cut_bound(graph, order)
    # At the peak of a subgraph, the tensors that are live during the whole block are live too. Those that an op
    # accesses are not counted here: they may be dead.
    bound_of_bodies = graph.always_live_bytes() + max(body_bounds)
    return max(bound_of_ops, bound_of_bodies)
