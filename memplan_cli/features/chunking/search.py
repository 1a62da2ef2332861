"""Search for regions, axes and numbers of chunks that meet a budget with little added work.

Each step of the search lowers the peak op, the op of the top block with the most live bytes:

1. Take the largest tensors that are live there, and grow regions from them along every axis.
2. Try each region in 2, 3, 4, 6, ... chunks.
3. Keep the trial that gets the peak op within the budget with the least work, or else lowest.

Regions that were chosen for one layer are tried first for the layers like it. Every trial is
written as a program and measured by the live ranges with which the planner measures.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import islice
from sys import maxsize
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.cost import node_work, total_cost
from memplan_cli.analysis.storage import measured
from memplan_cli.core.problem import Problem, pressure
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.features.chunking.bound import Bound, lower_bound
from memplan_cli.features.chunking.region import Region, regions_from
from memplan_cli.features.chunking.rewrite import ChunkedProgram, rewrite_in_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.ordering.records import PlannedVars

_MAX_SEEDS = 3
"""Largest tensors of the peak op that regions are grown from."""

_CHUNK_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

_USEFUL_SHARE = 0.9
"""More chunks are tried while twice as many lower the bytes to this share."""

_USEFUL_EXCESS_SHARE = 0.7
"""They are also tried while what exceeds the budget is lowered to this share."""

_MAX_STEPS = 400
"""Search steps towards one budget."""

_MAX_WRITTEN_OPS = 1_000_000
"""Ops of all programs that are written; bounds the time of a search that fails."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A region and its number of chunks.

    Attributes:
        region: the region.
        count: the number of chunks.
        before: live bytes of the peak op when the region was chosen.
        after: most live bytes while the region runs.
        work: the work of the chunks less that of the original ops.
    """

    region: Region
    count: int
    before: int
    after: int
    work: int


@dataclass(frozen=True, slots=True)
class State:
    """A program with regions in chunks, and its live bytes.

    Attributes:
        choices: the regions.
        chunked: the program.
        sizes: the sizes of its planned vars.
        pressure: pairs of a tick and the bytes that are live from it on, in order.
        op_ticks: the first tick of each op of the top block.
        peak_tick: the tick with the most live bytes.
        peak_op: the op of the top block that runs then.
        peak_vars: the vars that are live then, largest first.
    """

    choices: tuple[Choice, ...]
    chunked: ChunkedProgram
    sizes: Mapping[VarId, Size]
    pressure: tuple[tuple[int, int], ...]
    op_ticks: tuple[int, ...]
    peak_tick: int
    peak_op: Op
    peak_vars: tuple[VarId, ...]

    @property
    def peak(self) -> int:
        """The most live bytes at one tick."""
        return max((live_bytes for _, live_bytes in self.pressure), default=0)

    def region_peak(self, number: int) -> int:
        """Return the most live bytes while the region of a choice runs."""
        first, last = self.chunked.region_ranges[number]
        return self._peak_between(self.op_ticks[first], self.op_ticks[last - 1])

    def op_peak(self, op: Op) -> int:
        """Return the most live bytes while an op runs; 0 if it was replaced by chunks."""
        next_ticks = (*self.op_ticks[1:], maxsize)
        ops = self.chunked.program.body.ops
        for candidate, start, stop in zip(ops, self.op_ticks, next_ticks, strict=True):
            if candidate is op:
                return self._peak_between(start, stop - 1)
        return 0

    def _peak_between(self, start: int, end: int) -> int:
        """Return the most live bytes from tick ``start`` to tick ``end``, both included."""
        most = 0
        for tick, live_bytes in self.pressure:
            if tick > end:
                break
            most = live_bytes if tick <= start else max(most, live_bytes)
        return most


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best program that a search wrote.

    Attributes:
        chunked: the program.
        sizes: the sizes of its planned vars.
        choices: its regions.
        before: the live peak without chunks.
        peak: the live peak.
        added_work: the added work as a share of ``work``.
        work: the work of the program without chunks.
        bound: a lower bound of the live peak for all choices of regions.
    """

    chunked: ChunkedProgram
    sizes: Mapping[VarId, Size]
    choices: tuple[Choice, ...]
    before: int
    peak: int
    added_work: float
    work: int
    bound: Bound


def search(graph: Graph, terms: PlannedVars, budget: float) -> SearchResult:
    """Return a program whose live peak meets a budget or comes near it.

    If the direct search misses the budget, laxer budgets are met first, one after the other: a
    region that suits a small budget best can overlap regions that together need less.

    Args:
        graph: the program without chunks.
        terms: what is planned and pinned, and which tensors share memory.
        budget: bytes, or as a float a share of the live peak without chunks.
    """
    searcher = Search(graph, terms, 0)
    bound = lower_bound(graph, frozenset(terms.sizes), terms.aliasing)
    unchunked = searcher.write_state(())
    if unchunked is None:
        raise ValueError("a program without regions can always be written")
    before = unchunked.peak
    max_bytes = int(budget * before) if isinstance(budget, float) else budget
    state = searcher.lower(unchunked, max_bytes)
    if state.peak > max_bytes:
        stepwise = unchunked
        searcher.max_written_ops += _MAX_WRITTEN_OPS // 2
        for target in _descending_budgets(before, max_bytes):
            stepwise = searcher.lower(stepwise, target)
        state = min(state, stepwise, key=lambda candidate: candidate.peak)
    work = total_cost(graph.program).work
    added_work = sum(choice.work for choice in state.choices)
    return SearchResult(
        state.chunked,
        state.sizes,
        state.choices,
        before,
        state.peak,
        added_work / work if work else 0.0,
        work,
        bound,
    )


def _descending_budgets(peak: int, budget: int) -> Iterator[int]:
    """Yield half of a peak, then three quarters of the last, down to the budget."""
    target = peak // 2
    while target > budget:
        yield target
        target = target * 3 // 4
    yield budget


class _Trial(NamedTuple):
    """A region in a number of chunks, added to a state.

    Attributes:
        choices: the choices of the state that remain, then the new one.
        peak: the most live bytes of the region, and of the state's peak op if that is still
        whole.
        work: the added work of the new choice.
    """

    choices: tuple[Choice, ...]
    peak: int
    work: int


class _PatternResult(NamedTuple):
    """The last choice for regions with the same ops and splits.

    Attributes:
        chunk_count: its number of chunks; 0 if there was none.
        peak: the live bytes that it reached.
    """

    chunk_count: int = 0
    peak: int = 0


class Search:
    """Writes and measures programs with regions in chunks, and searches from one to the next.

    Attributes:
        graph: the program without chunks.
        terms: what is planned and pinned, and which tensors share memory.
        budget: the bytes that are aimed at.
        max_written_ops: ops after which no more trials are written.
    """

    def __init__(self, graph: Graph, terms: PlannedVars, budget: int) -> None:
        self.graph, self.terms, self.budget = graph, terms, budget
        self.max_written_ops, self._written_ops = _MAX_WRITTEN_OPS, 0
        self._regions: dict[tuple[VarId, int], tuple[Region, ...]] = {}
        self._pattern_results: dict[tuple[object, ...], _PatternResult] = {}

    def write_state(self, choices: Sequence[Choice]) -> State | None:
        """Write the program with these regions in chunks, and measure it; None if it cannot be."""
        chunked = rewrite_in_chunks(
            self.graph, [(choice.region, choice.count) for choice in choices]
        )
        if chunked is None:
            return None
        ops = chunked.program.body.ops
        self._written_ops += len(ops)
        sizes = with_new_sizes(chunked.program, self.graph.program, self.terms.sizes)
        measurement = measured(chunked.program, sizes, self.terms.pinned, self.terms.aliasing)
        buffer_of, arenas = measurement.storage
        buffers = arenas.get("1", ())
        live = tuple(pressure(Problem(buffers)))
        peak_tick = max(live, key=lambda entry: (entry[1], -entry[0]), default=(0, 0))[0]
        peak_buffers = {
            buffer.id for buffer in buffers if buffer.live.start <= peak_tick < buffer.live.end
        }
        peak_vars = [var for var, buffer_id in buffer_of.items() if buffer_id in peak_buffers]
        peak_vars.sort(key=lambda var: (-sizes[var].coefficient, var))
        op_ticks = tuple(
            step.start for step in measurement.timeline.steps if not step.block.path
        )
        return State(
            tuple(choices),
            chunked,
            sizes,
            live,
            op_ticks,
            peak_tick,
            ops[max(bisect_right(op_ticks, peak_tick) - 1, 0)],
            tuple(peak_vars),
        )

    def with_measured_choices(self, choices: Iterable[Choice]) -> State | None:
        """Write a state, and set ``after`` and ``work`` of its choices to what was measured."""
        state = self.write_state(tuple(choices))
        if state is None:
            return None
        measured_choices = [
            replace(choice, after=state.region_peak(number), work=self._work(state, number))
            for number, choice in enumerate(state.choices)
        ]
        return replace(state, choices=tuple(measured_choices))

    def lower(self, state: State, budget: int) -> State:
        """Return a state within a budget, or the last one that could be reached."""
        self.budget = budget
        for _ in range(_MAX_STEPS):
            following = self._step(state) if state.peak > budget else None
            if following is None:
                break
            state = following
        return state

    def _step(self, state: State) -> State | None:
        """Return the next state, in which the peak op needs less memory; None if there is none.

        The peak of the whole program never rises.
        """
        trials: list[_Trial] = []
        for trial in self._trials(state):
            if self._written_ops > self.max_written_ops:
                break
            if trial.peak < state.peak:
                trials.append(trial)
                pattern = self._pattern_result(trial.choices[-1].region)
                if pattern.chunk_count and trial.peak <= max(self.budget, pattern.peak):
                    break
        for trial in sorted(
            trials, key=lambda trial: (max(trial.peak, self.budget), trial.work)
        ):
            following = self.write_state(trial.choices)
            if following is None or following.peak > state.peak:
                continue
            number = len(trial.choices) - 1
            remaining = max(following.region_peak(number), following.op_peak(state.peak_op))
            if remaining < state.peak:
                choice = trial.choices[-1]
                result = _PatternResult(choice.count, trial.peak)
                self._pattern_results[self._pattern(choice.region)] = result
                return following
        return None

    def _trials(self, state: State) -> Iterator[_Trial]:
        """Yield trials that may lower the peak op.

        First regions that run at the peak get more chunks. Then new regions are grown from the
        largest live tensors, those whose pattern was chosen before first.
        """
        for choice, (first, last) in zip(
            state.choices, state.chunked.region_ranges, strict=True
        ):
            if state.op_ticks[first] <= state.peak_tick <= state.op_ticks[last - 1]:
                yield from self._trials_of_region(state, choice.region, choice.count)
        candidates = {
            region.key: region
            for var in islice(self._seeds(state), _MAX_SEEDS)
            for axis in range(len(self.graph.dims(var)))
            for region in self._regions_from(var, axis)
        }
        for region in sorted(
            candidates.values(),
            key=lambda region: not self._pattern_result(region).chunk_count,
        ):
            yield from self._trials_of_region(state, region, 0)

    def _seeds(self, state: State) -> Iterator[VarId]:
        """Yield the live vars at the peak that whole ops make and that are no graph outputs."""
        chunked_ops = {index for choice in state.choices for index in choice.region.splits}
        for var in state.peak_vars:
            producer = self.graph.dataflow.producer.get(var)
            is_whole = producer is not None and producer not in chunked_ops
            if is_whole and var not in self.graph.outputs:
                yield var

    def _regions_from(self, var: VarId, axis: int) -> tuple[Region, ...]:
        """Return the regions from a seed, grown once."""
        if (var, axis) not in self._regions:
            self._regions[var, axis] = tuple(regions_from(self.graph, var, axis))
        return self._regions[var, axis]

    def _trials_of_region(
        self, state: State, region: Region, current_count: int
    ) -> Iterator[_Trial]:
        """Yield a region in more and more chunks, until it fits the budget or gains too little.

        Numbers of chunks below those of an equal layer's region are not tried.

        Args:
            state: the state that the region is added to, in place of regions that overlap it.
            region: the region.
            current_count: its number of chunks in the state; 0 if it is not there.
        """
        ops = set(region.splits)
        others = tuple(
            choice for choice in state.choices if ops.isdisjoint(choice.region.splits)
        )
        # If the peak op is an original one, the region is measured without the other regions:
        # its own live bytes do not depend on them, and less is written.
        peak_is_original = state.peak_op.source >= 0 and state.peak_op in self.graph.ops
        written_beside = () if peak_is_original else others
        min_count = self._pattern_result(region).chunk_count
        last_peak, last_count = state.peak, current_count
        for count in _CHUNK_COUNTS:
            if count <= current_count or count < min_count:
                continue
            choice = Choice(region, count, state.peak, 0, 0)
            trial_state = self.write_state((*written_beside, choice))
            if trial_state is None:
                continue
            number = len(written_beside)
            after = trial_state.region_peak(number)
            work = self._work(trial_state, number)
            peak = max(after, trial_state.op_peak(state.peak_op))
            if current_count and peak > max(self.budget, self._useful_peak(last_peak)):
                if count < 2 * last_count:
                    continue
                return
            yield _Trial((*others, replace(choice, after=after, work=work)), peak, work)
            if after <= self.budget:
                return
            if after <= self._useful_peak(last_peak):
                last_peak, last_count = after, count
            elif count >= 2 * last_count:
                return

    def _useful_peak(self, last_peak: int) -> float:
        """Return the bytes to which more chunks must lower a region to be worth trying on."""
        excess = max(last_peak - self.budget, 0)
        return max(last_peak * _USEFUL_SHARE, self.budget + excess * _USEFUL_EXCESS_SHARE)

    def _work(self, state: State, number: int) -> int:
        """Return the work of a region's chunks less that of the ops that they replace."""
        program = state.chunked.program
        first, last = state.chunked.region_ranges[number]
        region = state.choices[number].region
        chunk_work = sum(node_work(op, program.vars) for op in program.body.ops[first:last])
        replaced_ops = [
            self.graph.ops[index] for index in region.splits if index not in region.duplicated
        ]
        original_vars = self.graph.program.vars
        return chunk_work - sum(node_work(op, original_vars) for op in replaced_ops)

    def _pattern_result(self, region: Region) -> _PatternResult:
        return self._pattern_results.get(self._pattern(region), _PatternResult())

    def _pattern(self, region: Region) -> tuple[object, ...]:
        """Return what regions of equal layers have in common: operator types and splits."""
        return tuple(
            (self.graph.ops[index].type, split)
            for index, split in sorted(region.splits.items())
        )


def with_new_sizes(
    program: Program, original: Program, sizes: Mapping[VarId, Size]
) -> Mapping[VarId, Size]:
    """Return the sizes of a rewritten program's planned vars.

    These are the planned vars of the original that remain, and all vars that were added.
    """
    new_sizes = {var: size for var, size in sizes.items() if var in program.vars}
    for var, record in program.vars.items():
        if var not in original.vars and record.origin is Origin.OP:
            size = size_of(record.shape, record.dtype)
            if size is not None:
                new_sizes[var] = size
    return new_sizes
