"""The steps of a search for regions, axes and numbers of chunks.

A state is the program with some regions in chunks, and a trial is one region more, or one in
more chunks. Each step of the search lowers the peak op, the op of the top block with the most
live bytes:

1. Take the largest tensors that are live there, and grow regions from them along every axis.
2. Try each region in 2, 3, 4, 6, ... chunks.
3. Keep the trial that gets the peak op within the budget with the least work, or else lowest.

What is chosen for one layer is also taken for the layers like it. Every trial is written as a
program and measured by the live ranges with which the planner measures.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from sys import maxsize
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.cost import node_work
from memplan_cli.analysis.liveness import Timeline
from memplan_cli.analysis.storage import storage_of
from memplan_cli.core.problem import Problem, pressure
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import FIXED_UNIT, size_of
from memplan_cli.features.chunking.ranges import fewest_chunks
from memplan_cli.features.chunking.region import Region, regions_from
from memplan_cli.features.chunking.rewrite import ChunkedProgram, rewrite_in_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.analysis.storage import Storage
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.ordering.records import PlannedVars

_MAX_SEEDS = 3
"""Largest tensors of the peak op that regions are grown from."""

_CHUNK_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

_USEFUL_SHARE = 0.9
"""A trial is useful if a region's bytes fall to this share of those of the last useful trial."""

_USEFUL_EXCESS_SHARE = 0.7
"""It is also useful if the region's bytes above the budget fall to this share."""

_EQUAL_LAYERS_DIFFERENCE = 1 / 8
"""Tensors that correspond in equal layers, or in chunks of one region, differ by this share in size."""

_SHARE_OF_REST = 3 / 4
"""What a part of a search may use of the limit that is left."""

_VISITS_PER_WRITTEN_OP = 8
"""Ops that are visited to grow regions in the time in which one op is written and measured."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision to compute a region in ``count`` chunks, and what that changes.

    Attributes:
        before: live bytes of the peak op when the region was chosen.
        after: most live bytes while the region runs; 0 before it is measured.
        work: the work of the chunks less that of the original ops; 0 before it is measured.
    """

    region: Region
    count: int
    before: int
    after: int = 0
    work: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """A program with regions in chunks, and its live bytes.

    Attributes:
        choices: the regions, in the order of ``chunked.region_ranges``.
        sizes: the sizes of its planned vars.
        op_peaks: the most live bytes while each op of the top block runs, its subgraphs included.
        peak_op: the first op with the most live bytes.
        peak_vars: the vars that are live at the first tick with the most live bytes, largest first.
        A tick is a step of the planner's clock, which also runs inside subgraphs.
    """

    choices: tuple[Choice, ...]
    chunked: ChunkedProgram
    sizes: Mapping[VarId, Size]
    op_peaks: tuple[int, ...]
    peak_op: Op
    peak_vars: tuple[VarId, ...]

    @property
    def peak(self) -> int:
        """The most live bytes of any op."""
        return max(self.op_peaks)

    @property
    def height(self) -> tuple[int, int]:
        """The most live bytes, and during how many ops that is reached; each step lowers it."""
        return self.peak, self.op_peaks.count(self.peak)

    def region_peak(self, number: int) -> int:
        """Return the most live bytes while the region of ``choices[number]`` runs."""
        start, stop = self.chunked.region_ranges[number]
        return max(self.op_peaks[start:stop])

    def runs_at_peak(self, number: int) -> bool:
        """Whether the first op with the most live bytes is one of the region of ``choices[number]``."""
        start, stop = self.chunked.region_ranges[number]
        return start <= self.op_peaks.index(self.peak) < stop

    def op_peak(self, op: Op) -> int:
        """Return the most live bytes in this state while ``op`` runs; 0 if this state has no such op.

        States share the original ops that no chunk replaces, so the op is looked up by identity.
        """
        ops = self.chunked.program.body.ops
        peaks = zip(ops, self.op_peaks, strict=True)
        return next((peak for candidate, peak in peaks if candidate is op), 0)

    def peak_at_producer(self, var: VarId) -> int:
        """Return the most live bytes while a var is computed; 0 if the program does not have it."""
        producer = self.chunked.program.dataflow.producer.get(var)
        return 0 if producer is None else self.op_peaks[producer]


@dataclass(slots=True)
class Limit:
    """What ends a search that may still find more: a number of ops, or of seconds.

    Without ``seconds``, a search ends after writing programs of ``max_written_ops`` in total, and
    finds the same plans on every machine; growing regions counts as well. With ``seconds``, it ends by
    the clock alone.

    Attributes:
        share: the share of the limit that the current part of a search may use; the rest is for later
        parts.
        written_ops: the ops of all programs that were written so far, and of growing regions the ops
        that take as long to write.
        started: the time at which the search began, in seconds.
    """

    max_written_ops: int
    seconds: float | None = None
    share: float = 1.0
    written_ops: int = 0
    started: float = field(default_factory=monotonic)

    @property
    def used(self) -> float:
        """The share of the limit that was used so far; above 1 if it was exceeded."""
        if self.seconds is None:
            return self.written_ops / self.max_written_ops
        return (monotonic() - self.started) / self.seconds

    @property
    def is_reached(self) -> bool:
        """Whether the current part of the search has to end."""
        return self.used >= self.share

    def may_grow(self, visited_ops: int) -> bool:
        """Count the ops that were visited to grow a region; return whether regions may grow further."""
        self.written_ops += -(-visited_ops // _VISITS_PER_WRITTEN_OP)
        return not self.is_reached

    def begin_part(self) -> None:
        """Let the part of the search that begins use `_SHARE_OF_REST` of what the parts before it left."""
        self.share = self.used + _SHARE_OF_REST * (1 - self.used)


class _Trial(NamedTuple):
    """A region in a number of chunks, added to a state.

    Attributes:
        choices: the state's choices without those that overlap the region, then the region's.
        peak: the most live bytes while the region runs, and while the state's peak op runs if
        that is still whole.
        work: the added work of the region.
    """

    choices: tuple[Choice, ...]
    peak: int
    work: int


class Search:
    """Writes and measures programs with regions in chunks, and searches from one to the next.

    Attributes:
        graph: the program without chunks.
        budget: the bytes that are aimed at; 0 until `lower` sets it.
        limit: counts the ops of all programs that are written; once it is reached, no more are.
        _regions: the regions that grow from a tensor along an axis; a cache.
    """

    def __init__(self, graph: Graph, planned_vars: PlannedVars, limit: Limit) -> None:
        self.graph, self.planned_vars, self.limit = graph, planned_vars, limit
        self.budget = 0
        self._regions: dict[tuple[VarId, int], tuple[Region, ...]] = {}

    def write_state(self, choices: Sequence[Choice]) -> State | None:
        """Return the state of a program with these regions in chunks; None if it cannot be written.

        Its live bytes are computed from the live ranges. The ops of the program count for ``self.limit``.
        """
        chunked = rewrite_in_chunks(
            self.graph, [(choice.region, choice.count) for choice in choices]
        )
        if chunked is None:
            return None
        self.limit.written_ops += len(chunked.program.body.ops)
        sizes = with_new_sizes(chunked.program, self.graph.program, self.planned_vars.sizes)
        timeline, planned_vars = Timeline(chunked.program), self.planned_vars
        storage = storage_of(
            chunked.program, sizes, planned_vars.pinned, planned_vars.aliasing, timeline
        )
        # All sizes are numbers, so all buffers are of this unit.
        buffers = storage.buffers_by_unit.get(FIXED_UNIT, ())
        # Pairs of a tick and the bytes that are live from it on, by ascending tick.
        live_bytes_from = tuple(pressure(Problem(buffers)))
        first_peak_tick, _ = max(live_bytes_from, key=lambda entry: entry[1], default=(0, 0))
        # An op of the top block begins at its tick. Ops of its subgraphs have the ticks after it.
        op_ticks = [step.start for step in timeline.steps if not step.block.path]
        op_peaks = _op_peaks(live_bytes_from, op_ticks)
        return State(
            choices=tuple(choices),
            chunked=chunked,
            sizes=sizes,
            op_peaks=op_peaks,
            peak_op=chunked.program.body.ops[op_peaks.index(max(op_peaks))],
            peak_vars=_vars_live_at(first_peak_tick, storage, sizes),
        )

    def with_measured_choices(self, choices: Iterable[Choice]) -> State | None:
        """Return the state with these regions in chunks; None if its program cannot be written.

        Each choice, that is a region and its number of chunks, gets two figures of the written program: the
        most live bytes while the region runs (``after``), and the work that its chunks add (``work``).
        """
        state = self.write_state(tuple(choices))
        if state is None:
            return None
        # Choice ``number`` belongs to the region of the same number in the state.
        measured_choices = [
            replace(
                choice, after=state.region_peak(number), work=self._added_work(state, number)
            )
            for number, choice in enumerate(state.choices)
        ]
        return replace(state, choices=tuple(measured_choices))

    def lower(self, state: State, budget: int) -> State:
        """Return a state within a budget, or the last one that could be reached.

        Sets ``self.budget``.
        """
        self.budget = budget
        while state.peak > budget and not self.limit.is_reached:
            next_state = self._step(state)
            if next_state is None:
                break
            state = next_state
        return state

    def _step(self, state: State) -> State | None:
        """Return the next state, in which the peak op needs less memory; None if there is none.

        A region is added or gets more chunks, and equal layers are changed with it. The next state has a lower
        ``height``: the bytes of the peak, then the number of ops that reach it.
        """
        for trial in self._promising_trials(state):
            # A trial was measured without the other regions. Now the whole program is.
            next_state = self.with_measured_choices(trial.choices)
            # Each step has to lower the height. Else two overlapping regions could replace each other forever.
            if next_state is None or next_state.height >= state.height:
                continue
            # Fewer other ops may reach the peak, too. But the peak op and the changed region must not reach it any more.
            former_peak_op = next_state.op_peak(state.peak_op)  # 0 if chunks replace the op
            changed_region = next_state.region_peak(-1)  # that of the last choice
            if max(former_peak_op, changed_region) >= state.peak:
                continue
            return self._with_equal_layers(next_state)
        return None

    def _with_equal_layers(self, state: State) -> State:
        """Return the state in which equal layers get as many chunks as the region of the last choice.

        A layer is equal if its region has the same pattern, that is operators and sliced axes (`_pattern`).
        Only layers that need more than the budget are changed. The state stays as it is if the change
        would raise its height (`State.height`).
        """
        added = state.choices[-1]
        pattern = self._pattern(added.region)
        # Equal layers that are in chunks already get more chunks.
        choices: list[Choice] = []
        for number, choice in enumerate(state.choices):
            needs_more_chunks = (
                choice.count < added.count
                and state.region_peak(number) > self.budget
                and self._pattern(choice.region) == pattern
            )
            choices.append(replace(choice, count=added.count) if needs_more_chunks else choice)
        # Equal layers that still run whole get a region, which is grown from the tensor like the last seed.
        chunked_ops = {index for choice in choices for index in choice.region.splits}
        for seed in self._vars_like(added.region.seed):
            seed_peak = state.peak_at_producer(seed)
            if seed_peak <= self.budget:
                continue
            for region in self._regions_from(seed, added.region.axis):
                if self._pattern(region) == pattern and chunked_ops.isdisjoint(region.splits):
                    choices.append(Choice(region, added.count, before=seed_peak))
                    chunked_ops |= region.splits.keys()
                    break
        if tuple(choices) == state.choices:
            return state
        equal_state = self.with_measured_choices(choices)
        if equal_state is None or equal_state.height > state.height:
            return state
        return equal_state

    def _vars_like(self, var: VarId) -> Iterator[VarId]:
        """Yield ``var`` and the outputs like it: of the same operator, with about as many bytes."""
        graph = self.graph
        producer = graph.ops[graph.dataflow.producer[var]]
        position, size = producer.outputs.index(var), graph.bytes(var)
        # Of a program in chunks, equal layers are chunks of one region, and these may differ in length.
        tolerance = _EQUAL_LAYERS_DIFFERENCE * size
        for op in graph.ops:
            if op.type == producer.type and len(op.outputs) > position:
                other = op.outputs[position]
                if other and abs(graph.bytes(other) - size) <= tolerance:
                    yield other

    def _promising_trials(self, state: State) -> list[_Trial]:
        """Return trials that are below the peak of a state, the best one first.

        Trials within the budget come first, those with less work before others; then those above the
        budget, lowest first. No more are made once the limit is reached.
        """
        trials: list[_Trial] = []
        for trial in self._trials(state):  # writes each trial's program, and counts its ops
            if self.limit.is_reached:
                break
            if trial.peak < state.peak:
                trials.append(trial)
        return sorted(trials, key=lambda trial: (max(trial.peak, self.budget), trial.work))

    def _trials(self, state: State) -> Iterator[_Trial]:
        """Yield trials that may lower the peak op.

        First regions that run at the peak get more chunks. Then new regions are grown from the
        largest live tensors.
        """
        for number, choice in enumerate(state.choices):
            if state.runs_at_peak(number):
                yield from self._trials_of_region(state, choice.region, choice.count)
        # Regions from several seeds or axes may be equal.
        candidates = {
            region.key: region
            for var in islice(self._seeds(state), _MAX_SEEDS)
            for axis in range(len(self.graph.dims(var)))
            for region in self._regions_from(var, axis)
        }
        for region in candidates.values():
            yield from self._trials_of_region(state, region, current_count=0)

    def _seeds(self, state: State) -> Iterator[VarId]:
        """Yield vars from which regions can be grown, in the order of `peak_vars`: largest first.

        They are live at the peak, made by ops outside all regions, and no graph outputs.
        """
        chunked_ops = {index for choice in state.choices for index in choice.region.splits}
        for var in state.peak_vars:
            producer = self.graph.dataflow.producer.get(var)
            is_outside_regions = producer is not None and producer not in chunked_ops
            if is_outside_regions and var not in self.graph.outputs:
                yield var

    def _regions_from(self, var: VarId, axis: int) -> tuple[Region, ...]:
        """Return the regions that grow from a tensor along an axis; cached."""
        if (var, axis) not in self._regions:
            self._regions[var, axis] = tuple(
                regions_from(self.graph, var, axis, self.limit.may_grow)
            )
        return self._regions[var, axis]

    def _trials_of_region(
        self, state: State, region: Region, current_count: int
    ) -> Iterator[_Trial]:
        """Yield trials of a region, each in more chunks; it now has ``current_count`` of them (0: it is new).

        A trial is *useful* if the most live bytes while the region runs are well below those of the last
        useful trial, or at first below the state's peak (`_max_useful_bytes`). The trials end when the region
        fits in the budget, or at a useless trial with twice as many chunks as the last useful one, or more.
        """
        is_new_region = current_count == 0
        useful_bytes, useful_count = state.peak, current_count
        # Counts that give chunks of the same length are tried once, with the fewest chunks.
        counts = dict.fromkeys(
            fewest_chunks(self.graph, region, count) for count in _CHUNK_COUNTS
        )
        for count in filter(lambda count: count > current_count, counts):
            trial = self._trial(state, region, count)
            if trial is None:
                continue
            region_bytes = trial.choices[-1].after  # of the region, which is the last choice
            is_useful = region_bytes <= self._max_useful_bytes(useful_bytes)
            # Useless trials are yielded for a new region only. A region that is in chunks already would get a few more
            # chunks by them in each step of the search.
            if is_useful or is_new_region:
                yield trial
            if region_bytes <= self.budget:
                return
            if is_useful:
                useful_bytes, useful_count = region_bytes, count
                continue
            # If a trial in 2 chunks was useful, 4 chunks may be useful even if 3 are not. The count 0 of a new region
            # means that no trial was useful yet: then the first useless one ends the trials.
            if count >= 2 * useful_count:
                return

    def _trial(self, state: State, region: Region, count: int) -> _Trial | None:
        """Return the trial of a region in ``count`` chunks; None if it cannot be written.

        The trial keeps the other regions of the state that share no op with this one. Its peak and work are an
        estimate from a smaller program, in which this region alone is in chunks. `_step` measures the program
        with all regions later.
        """
        ops = set(region.splits)
        others = tuple(other for other in state.choices if ops.isdisjoint(other.region.splits))
        choice = Choice(region, count, before=state.peak)
        alone = self.with_measured_choices((choice,))
        if alone is None:
            return None
        (measured,) = alone.choices
        region_peak = measured.after
        former_peak_op = alone.op_peak(state.peak_op)  # 0 if chunks replace the op
        return _Trial((*others, measured), max(region_peak, former_peak_op), measured.work)

    def _max_useful_bytes(self, last_bytes: int) -> float:
        """Return the bytes to which more chunks must lower a region's bytes to be useful.

        Either the bytes fall to `_USEFUL_SHARE`, or their excess over the budget to
        `_USEFUL_EXCESS_SHARE`. So a region within the budget is always useful.
        """
        excess = max(last_bytes - self.budget, 0)
        return max(last_bytes * _USEFUL_SHARE, self.budget + excess * _USEFUL_EXCESS_SHARE)

    def _added_work(self, state: State, number: int) -> int:
        """Return the work of the chunks of ``state.choices[number]`` less that of the ops they replace.

        Duplicated ops also run whole, so they are not replaced.
        """
        program = state.chunked.program
        start, stop = state.chunked.region_ranges[number]
        region = state.choices[number].region
        chunk_work = sum(node_work(op, program.vars) for op in program.body.ops[start:stop])
        replaced_ops = [
            self.graph.ops[index] for index in region.splits if index not in region.duplicated
        ]
        original_vars = self.graph.program.vars
        return chunk_work - sum(node_work(op, original_vars) for op in replaced_ops)

    def _pattern(self, region: Region) -> tuple[object, ...]:
        """Return what regions of equal layers have in common: operator types, sliced axes and halos.

        A layer may read its input a few rows further on, or have padding on one side only. That adds to
        one halo and takes from the other, so only the sum of both halos is compared.
        """
        return tuple(
            (
                self.graph.ops[index].type,
                *(
                    cut and (cut.axis, cut.scale, cut.halo_before + cut.halo_after)
                    for cut in (*split.inputs, *split.outputs)
                ),
            )
            for index, split in sorted(region.splits.items())
        )


def _op_peaks(
    live_bytes_from: Sequence[tuple[int, int]], op_ticks: Sequence[int]
) -> tuple[int, ...]:
    """Return the most live bytes from the first tick of each op to that of the next op.

    ``live_bytes_from`` has pairs of a tick and the bytes that are live from it to the tick of the next
    pair (`pressure`), by ascending tick.
    """
    ticks = [tick for tick, _ in live_bytes_from]
    op_peaks: list[int] = []
    for start, stop in pairwise((*op_ticks, maxsize)):
        # The last pair up to the start has the bytes that are live when the op starts. Before the
        # first pair nothing is live.
        first, end = max(bisect_right(ticks, start) - 1, 0), bisect_left(ticks, stop)
        op_peaks.append(max((live for _, live in live_bytes_from[first:end]), default=0))
    return tuple(op_peaks)


def _vars_live_at(
    tick: int, storage: Storage, sizes: Mapping[VarId, Size]
) -> tuple[VarId, ...]:
    """Return the vars whose buffers are live at a tick, largest first; all sizes are numbers."""
    live_buffers = {
        buffer.id
        for buffer in storage.buffers_by_unit.get(FIXED_UNIT, ())
        if buffer.live.start <= tick < buffer.live.end
    }
    live_vars = (var for var, buffer in storage.buffer_of.items() if buffer in live_buffers)
    # The coefficient of a size that is a number is its bytes.
    return tuple(sorted(live_vars, key=lambda var: (-sizes[var].coefficient, var)))


def with_new_sizes(
    program: Program, original: Program, sizes: Mapping[VarId, Size]
) -> Mapping[VarId, Size]:
    """Return the sizes of a rewritten program's planned vars, given those of the original's in ``sizes``.

    A var that remains keeps its size. Added vars are planned if an op computes them and their size is
    known.
    """
    new_sizes = {var: size for var, size in sizes.items() if var in program.vars}
    for var, record in program.vars.items():
        if var not in original.vars and record.origin is Origin.OP:
            size = size_of(record.shape, record.dtype)
            if size is not None:
                new_sizes[var] = size
    return new_sizes
