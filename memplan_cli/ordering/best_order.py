"""Find the order of a program's ops with the least live peak.

Every block is ordered on its own, innermost first. For the block around it, a subgraph is the
memory that its op needs. The searches work on integers (`ordering.task_graph`). Their order is
measured again with `live_peak`, the number that the planner reports, and is dropped if it is not
better than the file's order.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_SAFELY, Aliasing
from memplan_cli.analysis.storage import Measured, measured
from memplan_cli.core.problem import Problem, lower_bound
from memplan_cli.core.program import VarId, walk
from memplan_cli.core.progress import silent
from memplan_cli.core.symbolic.sizes import symbols_of
from memplan_cli.ordering.block_graph import (
    StorageFacts,
    SubgraphMemory,
    least_taken,
    most_taken,
    storage_facts,
    task_graph,
)
from memplan_cli.ordering.block_search import RESTORE_WORK, BlockOrder, order_block
from memplan_cli.ordering.cut_bounds import cut_bound
from memplan_cli.ordering.division import divide
from memplan_cli.ordering.list_orders import SCHEDULERS
from memplan_cli.ordering.records import Ordering, PlannedVars
from memplan_cli.ordering.source_order import relax_order
from memplan_cli.ordering.task_graph import displacement
from memplan_cli.ordering.work_budget import WorkBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from memplan_cli.core.program import Block, Program
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.list_orders import Scheduler
    from memplan_cli.ordering.task_graph import Order, TaskGraph

DEFAULT_WORK = 4_000_000
"""Units of work of all searches together: up to six seconds for 1,000 ops."""

SAMPLE = 64
"""The value of every symbol while orders with symbolic sizes are compared."""

_FULL_WORK = 1000
"""Programs with more ops get a smaller part of the work, down to a twentieth."""

_DIVISION_WORK = 50_000
"""Units of work for dividing an order op by op: a twentieth of a second."""

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
    """Return the order of a program's ops with the least `live_peak` that is found.

    Args:
        program: The ops in the file's order, which wins all ties.
        sizes: Sizes of the planned variables; others count no bytes.
        pinned: Variables that keep storage of their own for the whole run.
        aliasing: The rules by which variables share bytes.
        work: Units of work to spend, see `WorkBudget`.
        time_limit: Seconds after which no new search begins and a running one stops.
        progress: Called with a line about the best order so far.
    """
    meter = _Meter(PlannedVars(sizes, pinned, aliasing), _sampled_sizes(sizes, SAMPLE))
    facts = meter.facts(program)
    tell = progress or silent
    budget = WorkBudget(_scaled_work(work, program), time_limit)
    top = _order_nested(program.body, facts, lambda graph: order_block(graph, budget, tell))
    programs = {"file": program}
    if nested := any(op.bodies for op in program.body.ops):
        programs |= _scheduled_programs(program, facts, SCHEDULERS)
        programs["searched"] = replace(program, body=top.block)
        peaks = {name: meter.peak(other) for name, other in programs.items()}
        chosen = min(
            peaks, key=lambda name: (peaks[name], _displacement(program, programs[name]))
        )
        programs[chosen] = _keep_subgraph_orders(program, programs[chosen], meter)
    else:
        peaks, chosen = top.search.peaks, top.search.chosen
        programs.setdefault(chosen, replace(program, body=top.block))
    known = None
    if chosen != "file":
        # The search has measured with its own tables: what it found is measured again.
        known = meter.measured(programs[chosen])
        peaks = {**peaks, chosen: meter.peak_of(known)}
    if peaks[chosen] >= peaks["file"] or _is_worse_for_other_symbols(
        program, programs[chosen], meter
    ):
        chosen, known = "file", None  # what was measured is the other order
    if meter.symbolic:
        return Ordering(programs[chosen], {}, chosen, None, proved=False, measured=known)
    proved = peaks[chosen] <= top.bound
    looser = None
    if chosen != "file" and not nested:
        found = top.search
        looser = partial(_relaxed, program, found.graph, found.unrestored, found.bound)
    return Ordering(programs[chosen], peaks, chosen, top.bound, proved, known, looser)


def simple_orders(
    program: Program, terms: PlannedVars, schedulers: Mapping[str, Scheduler] = SCHEDULERS
) -> Iterator[tuple[str, Program]]:
    """Yield the program in the order of each scheduler but the file's, with the scheduler's name.

    Args:
        program: The ops in the file's order.
        terms: The planned variables and the rules of sharing.
        schedulers: Schedulers by name.
    """
    meter = _Meter(terms, _sampled_sizes(terms.sizes, SAMPLE))
    return _scheduled_programs(program, meter.facts(program), schedulers)


def _relaxed(program: Program, graph: TaskGraph, order: Order, bound: int) -> Program:
    """Return a program in a relaxed order, which leaves more room beside its fullest steps.

    The order is divided before, because the search has moved clusters of ops as a whole.
    """
    parted = divide(graph, order, bound, WorkBudget(_DIVISION_WORK))
    relaxed = relax_order(graph, parted.order, WorkBudget(RESTORE_WORK))
    ops = tuple([program.body.ops[op] for op in relaxed])
    return program.with_ops(ops)


def _scaled_work(work: int, program: Program) -> int:
    """Return the work for a program: a unit of work takes longer in larger programs."""
    count = sum(1 for _ in walk(program.body))
    return work if count <= _FULL_WORK else max(work // 20, work * _FULL_WORK // count)


@dataclass(frozen=True, slots=True)
class _Meter:
    """Measures the live peaks of programs, with one number in place of every symbol.

    Attributes:
        terms: the planned variables and the rules of sharing.
        numbers: bytes of each variable with that number.
    """

    terms: PlannedVars
    numbers: Mapping[VarId, int]

    def facts(self, program: Program) -> StorageFacts:
        """Return the facts about a program's variables that hold in every order."""
        return storage_facts(program, self.terms, self.numbers)

    @property
    def symbolic(self) -> bool:
        """Whether any size has symbols, so that peaks hold for one value of them only."""
        return any(size.symbols for size in self.terms.sizes.values())

    def measured(self, program: Program) -> Measured:
        """Return storage and live bytes of a program, in sizes as they are."""
        terms = self.terms
        return measured(program, terms.sizes, terms.pinned, terms.aliasing)

    def peak(self, program: Program) -> int:
        """Return the live peak of a program, with numbers in place of symbols."""
        return self.peak_of(self.measured(program))

    def peak_of(self, found: Measured) -> int:
        """Return the live peak of a measured program, with numbers in place of symbols."""
        if not self.symbolic:
            return found.live_peak
        _, units = found.storage
        buffers = (buffer for unit in units.values() for buffer in unit)
        sized = (b._replace(size=self.numbers[VarId(b.id)]) for b in buffers)
        return lower_bound(Problem(tuple(sized)))

    def sampled(self, value: int) -> _Meter:
        """Return a meter with ``value`` in place of every symbol."""
        return replace(self, numbers=_sampled_sizes(self.terms.sizes, value))


def _sampled_sizes(sizes: Mapping[VarId, Size], sample: int) -> dict[VarId, int]:
    """Return the bytes of each variable with ``sample`` in place of every symbol."""
    names = {name for size in sizes.values() for s in size.symbols for name in symbols_of(s)}
    dims = dict.fromkeys(sorted(names), sample)
    return {
        var: _sampled_size(size, dims, sample) if size.symbols else size.coefficient
        for var, size in sizes.items()
    }


def _sampled_size(size: Size, dims: Mapping[str, int], sample: int) -> int:
    with suppress(ValueError):  # a length less a constant that is larger than the sample
        size = size.bind(dims)
    return size.coefficient * prod([sample] * len(size.symbols))


def _is_worse_for_other_symbols(program: Program, other: Program, meter: _Meter) -> bool:
    """Whether the other order needs more than the file's for another value of the symbols."""
    if not meter.symbolic:
        return False
    meters = [meter.sampled(value) for value in _OTHER_SAMPLES]
    return any(each.peak(other) > each.peak(program) for each in meters)


def _displacement(program: Program, other: Program) -> int:
    """Return the `displacement` of the main graph's ops in another order."""
    place = {op.outputs: index for index, op in enumerate(program.body.ops)}
    return displacement([place[op.outputs] for op in other.body.ops])


def _keep_subgraph_orders(program: Program, other: Program, meter: _Meter) -> Program:
    """Return the other order with the file's order in all subgraphs, if the peak stays as low.

    The order within a subgraph can change what a runtime fuses, and so the bits of results.
    """
    own = {op.outputs: op for op in program.body.ops if op.bodies}
    ops = tuple([own.get(op.outputs, op) for op in other.body.ops])
    found = other.with_ops(ops)
    meters = [meter, *(meter.sampled(s) for s in _OTHER_SAMPLES if meter.symbolic)]
    return found if all(m.peak(found) <= m.peak(other) for m in meters) else other


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

    @property
    def bound(self) -> int:
        """A lower bound on the peak of all orders of the block."""
        return self.memory.bound


def _scheduled_programs(
    program: Program, facts: StorageFacts, schedulers: Mapping[str, Scheduler]
) -> Iterator[tuple[str, Program]]:
    """Yield the name of each scheduler but the file's, and the program in its order."""
    for name, scheduler in schedulers.items():
        if name != "file":
            yield name, _scheduled_program(program, facts, scheduler)


def _scheduled_program(program: Program, facts: StorageFacts, scheduler: Scheduler) -> Program:
    method = partial(_scheduled_block, scheduler)
    return replace(program, body=_order_nested(program.body, facts, method).block)


def _scheduled_block(scheduler: Scheduler, graph: TaskGraph) -> BlockOrder:
    solution = BlockOrder(graph, bound=0)
    solution.offer("scheduled", scheduler(graph))
    return solution


def _order_nested(
    block: Block, facts: StorageFacts, method: Callable[[TaskGraph], BlockOrder]
) -> _OrderedBlock:
    """Order a block and all its subgraphs with one method, subgraphs first.

    Args:
        block: The block to order.
        facts: From `storage_facts`, for the whole program.
        method: Finds an order of one block's graph.
    """
    arranged = {
        index: [_order_nested(body, facts, method) for body in op.bodies]
        for index, op in enumerate(block.ops)
        if op.bodies
    }
    ops = list(block.ops)
    for index, bodies in arranged.items():
        ops[index] = ops[index]._replace(bodies=tuple(body.block for body in bodies))
    block = replace(block, ops=tuple(ops)) if arranged else block
    inner = {index: [body.memory for body in bodies] for index, bodies in arranged.items()}
    most = {index: most_taken(ops[index], facts, bodies) for index, bodies in inner.items()}
    graph = task_graph(block, facts, most)
    solution = method(graph)
    least = {index: least_taken(ops[index], facts, bodies) for index, bodies in inner.items()}
    bound = solution.bound
    if most != least:
        floor = max(body.bound for bodies in inner.values() for body in bodies)
        bound = cut_bound(task_graph(block, facts, least), solution.order)
        bound = max(bound, floor + graph.initial_bytes)
    inputs = sum(facts.numbers[var] for var in block.inputs if facts.roots.get(var) == var)
    block = replace(block, ops=tuple(ops[op] for op in solution.order))
    taken = SubgraphMemory(inputs, solution.peak, graph.final_bytes(), bound)
    return _OrderedBlock(block, taken, solution)
