"""Execute the ops in the order that needs least memory.

Every block is ordered inside of itself, innermost first; to its control-flow op a subgraph
is the most that it takes. The searches work on integers (`ordering.graph`); what they find is
measured again with `live_peak`, the number that the planner reports, and is dropped if it is
not better than the file's order.
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
from memplan_cli.ordering.source_order import relax_order
from memplan_cli.ordering.task_graph import displacement
from memplan_cli.ordering.terms import Ordering, Terms
from memplan_cli.ordering.work_budget import WorkBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from memplan_cli.core.program import Block, Program
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.list_orders import Scheduler
    from memplan_cli.ordering.task_graph import Order, TaskGraph

DEFAULT_WORK = 4_000_000
"""Steps that the searches may look at, all in all: up to six seconds on 1,000 ops."""

SAMPLE = 64
"""What every symbol stands for while orders with symbolic sizes are compared."""

_FULL_WORK = 1000
"""Programs with more ops get less of the budget, down to a twentieth."""

_PARTING = 50_000
"""Work for lowering the worst steps of an order op by op: a twentieth of a second."""

_OTHER_SAMPLES = (1, 1024)
"""With these too, a new order must not be worse than the file's."""


def best_order(  # noqa: PLR0913 - the planner's settings, one by one, all with defaults
    program: Program,
    sizes: Mapping[VarId, Size],
    *,
    pinned: Collection[VarId] = (),
    aliasing: Aliasing = SHARE_SAFELY,
    work: int = DEFAULT_WORK,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Ordering:
    """Find the order of a program's ops with the least `live_peak`.

    Args:
        program: The ops in the file's order, which wins all ties.
        sizes: The vars to plan; others cost nothing here.
        pinned: Vars that keep storage of their own for the whole run.
        aliasing: The operators whose vars may share bytes.
        work: The budget, in steps looked at; the answer depends on it alone.
        time_limit: Seconds after which no new search begins and a running one stops.
        progress: Told in a line what was found so far.
    """
    meter = _Meter(Terms(sizes, pinned, aliasing), _numbers(sizes, SAMPLE))
    facts = meter.facts(program)
    tell = progress or silent
    budget = WorkBudget(_scaled(work, program), time_limit)
    top = _arrange(program.body, facts, lambda graph: order_block(graph, budget, tell))
    programs = {"file": program}
    if nested := any(op.bodies for op in program.body.ops):
        programs |= _arrangements(program, facts, SCHEDULERS)
        programs["searched"] = replace(program, body=top.block)
        peaks = {name: meter.peak(other) for name, other in programs.items()}
        chosen = min(peaks, key=lambda name: (peaks[name], _moved(program, programs[name])))
        programs[chosen] = _with_bodies_of(program, programs[chosen], meter)
    else:
        peaks, chosen = top.solution.peaks, top.solution.chosen
        programs.setdefault(chosen, replace(program, body=top.block))
    known = None
    if chosen != "file":
        # The search has measured with its own tables: what it found is measured again.
        known = meter.measured(programs[chosen])
        peaks = {**peaks, chosen: meter.peak_of(known)}
    if peaks[chosen] >= peaks["file"] or _worse_elsewhere(program, programs[chosen], meter):
        chosen, known = "file", None  # what was measured is the other order
    if meter.symbolic:
        return Ordering(programs[chosen], {}, chosen, None, proved=False, measured=known)
    proved = peaks[chosen] <= top.least
    looser = None
    if chosen != "file" and not nested:
        found = top.solution
        looser = partial(_relaxed, program, found.graph, found.unrestored, found.bound)
    return Ordering(programs[chosen], peaks, chosen, top.least, proved, known, looser)


def simple_orders(
    program: Program, terms: Terms, schedulers: Mapping[str, Scheduler] = SCHEDULERS
) -> Iterator[tuple[str, Program]]:
    """Return the program in the order of each method of one pass, with the method's name.

    Args:
        program: The ops in the file's order.
        terms: What is planned, in sizes that are numbers.
        schedulers: The methods by name.
    """
    meter = _Meter(terms, _numbers(terms.sizes, SAMPLE))
    return _arrangements(program, meter.facts(program), schedulers)


def _relaxed(program: Program, graph: TaskGraph, order: Order, bound: int) -> Program:
    """Return a program in the order that was found, put back only where that costs nothing.

    The worst steps are lowered before: in the search the ops of a cluster could not part.
    """
    parted = divide(graph, order, bound, WorkBudget(_PARTING))
    relaxed = relax_order(graph, parted.order, WorkBudget(RESTORE_WORK))
    ops = tuple([program.body.ops[op] for op in relaxed])
    return program.with_ops(ops)


def _scaled(work: int, program: Program) -> int:
    """Return the budget for a program: one step costs more where there are more ops."""
    count = sum(1 for _ in walk(program.body))
    return work if count <= _FULL_WORK else max(work // 20, work * _FULL_WORK // count)


@dataclass(frozen=True, slots=True)
class _Meter:
    """Measures what whole programs need, symbols standing for the same number each."""

    terms: Terms
    numbers: Mapping[VarId, int]

    def facts(self, program: Program) -> StorageFacts:
        """Return what is known of a program's vars, with numbers in place of the sizes."""
        return storage_facts(program, self.terms, self.numbers)

    @property
    def symbolic(self) -> bool:
        """Whether peaks are only samples."""
        return any(size.symbols for size in self.terms.sizes.values())

    def measured(self, program: Program) -> Measured:
        """Return what is live in a program, in sizes as they are."""
        terms = self.terms
        return measured(program, terms.sizes, terms.pinned, terms.aliasing)

    def peak(self, program: Program) -> int:
        """Return `live_peak`, with numbers in place of the sizes."""
        return self.peak_of(self.measured(program))

    def peak_of(self, found: Measured) -> int:
        """Return `peak` of what has been measured."""
        if not self.symbolic:
            return found.live_peak
        _, units = found.storage
        buffers = (buffer for unit in units.values() for buffer in unit)
        sized = (b._replace(size=self.numbers[VarId(b.id)]) for b in buffers)
        return lower_bound(Problem(tuple(sized)))

    def sampled(self, value: int) -> _Meter:
        """Return a meter in which the symbols stand for ``value``."""
        return replace(self, numbers=_numbers(self.terms.sizes, value))


def _numbers(sizes: Mapping[VarId, Size], sample: int) -> dict[VarId, int]:
    """Return bytes, every symbol standing for ``sample``, opaque ones included."""
    names = {name for size in sizes.values() for s in size.symbols for name in symbols_of(s)}
    dims = dict.fromkeys(sorted(names), sample)
    return {
        var: _sampled(size, dims, sample) if size.symbols else size.coefficient
        for var, size in sizes.items()
    }


def _sampled(size: Size, dims: Mapping[str, int], sample: int) -> int:
    with suppress(ValueError):  # a length less a constant that is larger than the sample
        size = size.bind(dims)
    return size.coefficient * prod([sample] * len(size.symbols))


def _worse_elsewhere(program: Program, other: Program, meter: _Meter) -> bool:
    """Whether the other order needs more than the file's for another sample."""
    if not meter.symbolic:
        return False
    meters = [meter.sampled(value) for value in _OTHER_SAMPLES]
    return any(each.peak(other) > each.peak(program) for each in meters)


def _moved(program: Program, other: Program) -> int:
    """Return by how many places another order moves the ops at the top."""
    place = {op.outputs: index for index, op in enumerate(program.body.ops)}
    return displacement([place[op.outputs] for op in other.body.ops])


def _with_bodies_of(program: Program, other: Program, meter: _Meter) -> Program:
    """Return another order with the file's in all subgraphs, if no peak is in one of them.

    What a runtime fuses within, and so its bits, can hang on their order.
    """
    own = {op.outputs: op for op in program.body.ops if op.bodies}
    ops = tuple([own.get(op.outputs, op) for op in other.body.ops])
    found = other.with_ops(ops)
    meters = [meter, *(meter.sampled(s) for s in _OTHER_SAMPLES if meter.symbolic)]
    return found if all(m.peak(found) <= m.peak(other) for m in meters) else other


@dataclass(frozen=True, slots=True)
class _Arranged:
    """A block in its new order, what it takes, and what it takes in any order."""

    block: Block
    inner: SubgraphMemory
    solution: BlockOrder

    @property
    def least(self) -> int:
        return self.inner.bound


def _arrangements(
    program: Program, facts: StorageFacts, schedulers: Mapping[str, Scheduler]
) -> Iterator[tuple[str, Program]]:
    """Apply each of the simple methods but the file's order to all blocks of a program."""
    for name, scheduler in schedulers.items():
        if name != "file":
            yield name, _arrangement(program, facts, scheduler)


def _arrangement(program: Program, facts: StorageFacts, scheduler: Scheduler) -> Program:
    method = partial(_offered, scheduler)
    return replace(program, body=_arrange(program.body, facts, method).block)


def _offered(scheduler: Scheduler, graph: TaskGraph) -> BlockOrder:
    solution = BlockOrder(graph, bound=0)
    solution.offer("scheduled", scheduler(graph))
    return solution


def _arrange(
    block: Block, facts: StorageFacts, method: Callable[[TaskGraph], BlockOrder]
) -> _Arranged:
    """Order a block and all below it with one method, subgraphs first."""
    arranged = {
        index: [_arrange(body, facts, method) for body in op.bodies]
        for index, op in enumerate(block.ops)
        if op.bodies
    }
    ops = list(block.ops)
    for index, bodies in arranged.items():
        ops[index] = ops[index]._replace(bodies=tuple(body.block for body in bodies))
    block = replace(block, ops=tuple(ops)) if arranged else block
    inner = {index: [body.inner for body in bodies] for index, bodies in arranged.items()}
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
    return _Arranged(block, taken, solution)
