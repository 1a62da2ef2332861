"""Which regions, along which axes, in how many pieces: the least added work under a budget.

The search looks at the fullest step, grows regions from the largest tensors that are live
there, along each axis, and puts the one in pieces that fits the budget with the least work, or
else lowers the step most. Then it looks at the step that is the fullest now. What it found for
one layer it tries first for the next one. Every choice is written as a program and measured by
the planner's own live ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.cost import node_work, total_cost
from memplan_cli.analysis.storage import measured
from memplan_cli.core.problem import Problem, pressure
from memplan_cli.features.chunking.bound import Bound, lower_bound
from memplan_cli.features.chunking.region import Region, regions_of
from memplan_cli.features.chunking.rewrite import Chunked, chunked
from memplan_cli.features.chunking.state import Choice, State, sizes_with

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.ordering.terms import Terms

_SEEDS = 3
"""Tensors of the fullest step that regions are grown from."""

_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

_LEAST_GAIN = 0.9
"""Twice the pieces have to lower a step to so much of it, or no more are tried."""

_LEAST_NEARER = 0.7
"""Or else what is beyond the budget has to come down to so much of it."""

_MOST_MOVES = 400

_MOST_TRIED = 1_000_000
"""Ops of all programs that are tried: what bounds the time of a search in vain."""


@dataclass(frozen=True, slots=True)
class Found:
    """A program with regions in pieces, and whether that was enough.

    Attributes:
        chunked: The program, in the file's order where it can be.
        sizes: The vars to plan in it.
        choices: The regions.
        before: The live peak without any.
        peak: The live peak with them.
        extra: The added work, as a share of the model's.
        work: The model's work without any.
        bound: What no choice gets below.
    """

    chunked: Chunked
    sizes: Mapping[VarId, Size]
    choices: tuple[Choice, ...]
    before: int
    peak: int
    extra: float
    work: int
    bound: Bound


def search(graph: Graph, terms: Terms, budget: float) -> Found:
    """Return a program whose live peak fits a budget, or comes near it.

    Args:
        graph: The program as it is.
        terms: What is planned, what is pinned, what may share bytes.
        budget: Bytes, or a share of the peak as it is where that is no whole number.
    """
    searcher = Search(graph, terms, 0)
    bound = lower_bound(graph, frozenset(terms.sizes), terms.aliasing)
    first = searcher.state(())
    before = first.peak if first is not None else 0
    allowed = int(budget * before) if isinstance(budget, float) else budget
    if first is None:
        raise ValueError("a program without regions is always one")
    state = searcher.lowered(first, allowed)
    if state.peak > allowed:
        by_steps = first
        searcher.most += _MOST_TRIED // 2
        for target in _between(before, allowed):
            by_steps = searcher.lowered(by_steps, target)
        state = min(state, by_steps, key=lambda each: each.peak)
    work = total_cost(graph.program).work
    added = sum(choice.work for choice in state.choices)
    return Found(
        state.made,
        state.sizes,
        state.choices,
        first.peak,
        state.peak,
        added / work if work else 0.0,
        work,
        bound,
    )


def _between(before: int, budget: int) -> Iterator[int]:
    """Yield laxer budgets, then the budget: regions that suit one may bar the way to less."""
    target = before // 2
    while target > budget:
        yield target
        target = target * 3 // 4
    yield budget


class _Trial(NamedTuple):
    """Regions of which the last is new, what its steps have live then, and what it costs."""

    choices: tuple[Choice, ...]
    left: int
    work: int


class Search:
    """Programs with regions in pieces, each measured, and moves from one to the next."""

    def __init__(self, graph: Graph, terms: Terms, budget: int) -> None:
        self.graph, self.terms, self.budget = graph, terms, budget
        self.most, self._tried = _MOST_TRIED, 0
        self.results: Collection[VarId] = frozenset(graph.program.body.outputs)
        """What the graph gives, whole: no seed of a region."""
        self._regions: dict[tuple[VarId, int], tuple[Region, ...]] = {}
        self._patterns: dict[tuple[object, ...], tuple[int, int]] = {}
        """How many pieces regions of the same ops and axes were put in, and what that left."""

    def state(self, choices: Sequence[Choice]) -> State | None:
        """Return the program with these regions in pieces, measured; None where it is none."""
        made = chunked(self.graph, [(each.region, each.count) for each in choices])
        if made is None:
            return None
        self._tried += len(made.program.body.ops)
        sizes = sizes_with(made.program, self.graph.program, self.terms.sizes)
        found = measured(made.program, sizes, self.terms.pinned, self.terms.aliasing)
        _, units = found.storage
        buffers = units.get("1", ())
        live = tuple(pressure(Problem(buffers)))
        tick = max(live, key=lambda each: (each[1], -each[0]), default=(0, 0))[0]
        there = [each for each in buffers if each.live.start <= tick < each.live.end]
        there.sort(key=lambda each: (-each.size, each.id))
        ids = {each.id for each in there}
        buffer_of = found.storage[0]
        largest = [var for var, identity in buffer_of.items() if identity in ids]
        largest.sort(key=lambda var: (-sizes[var].coefficient, var))
        ticks = tuple(step.start for step in found.timeline.steps if not step.block.path)
        ops = made.program.body.ops
        fullest = ops[max(bisect_right(ticks, tick) - 1, 0)]
        return State(tuple(choices), made, sizes, live, ticks, tuple(largest), tick, fullest)

    def recounted(self, choices: Iterable[Choice]) -> State | None:
        """Return the program with these regions, each with what its own steps then have."""
        state = self.state(tuple(choices))
        if state is None:
            return None
        told = [
            replace(each, after=state.local(at), work=self._work(state, at))
            for at, each in enumerate(state.choices)
        ]
        return replace(state, choices=tuple(told))

    def lowered(self, state: State, budget: int) -> State:
        """Return a state that fits a budget, or comes as near as moves lead."""
        self.budget = budget
        for _ in range(_MOST_MOVES):
            following = self.step(state) if state.peak > budget else None
            if following is None:
                break
            state = following
        return state

    def step(self, state: State) -> State | None:
        """Return the state with the fullest step lowered; None where nothing lowers it."""
        tried: list[_Trial] = []
        for found in self._moves(state):
            if self._tried > self.most:
                break
            if found.left < state.peak:
                tried.append(found)
                known, left = self._known(found.choices[-1].region)
                if known and found.left <= max(self.budget, left):
                    break
        for best in sorted(tried, key=lambda each: (max(each.left, self.budget), each.work)):
            following = self.state(best.choices)
            if following is not None and following.peak <= state.peak:
                last = best.choices[-1]
                left = max(following.local(len(best.choices) - 1), following.at(state.fullest))
                if left < state.peak:
                    pattern = _pattern(self.graph, last.region)
                    self._patterns[pattern] = last.count, best.left
                    return following
        return None

    def _moves(self, state: State) -> Iterator[_Trial]:
        for choice, (first, last) in zip(state.choices, state.made.places, strict=True):
            if state.ticks[first] <= state.tick <= state.ticks[last - 1]:
                yield from self._counted(state, choice.region, choice.count)
        candidates = {
            region.key: region
            for var in islice(self._seeds(state), _SEEDS)
            for axis in range(len(self.graph.dims(var)))
            for region in self._regions_of(var, axis)
        }
        known = sorted(candidates.values(), key=lambda region: not self._known(region)[0])
        for region in known:
            yield from self._counted(state, region, 0)

    def _seeds(self, state: State) -> Iterator[VarId]:
        """Yield the largest tensors that are not made in pieces yet."""
        inside = {at for choice in state.choices for at in choice.region.splits}
        for var in state.largest:
            at = self.graph.flow.producer.get(var)
            if at is not None and at not in inside and var not in self.results:
                yield var

    def _known(self, region: Region) -> tuple[int, int]:
        return self._patterns.get(_pattern(self.graph, region), (0, 0))

    def _regions_of(self, var: VarId, axis: int) -> tuple[Region, ...]:
        if (var, axis) not in self._regions:
            self._regions[var, axis] = tuple(regions_of(self.graph, var, axis))
        return self._regions[var, axis]

    def _counted(self, state: State, region: Region, more_than: int) -> Iterator[_Trial]:
        """Yield a region in more and more pieces, until it fits or more is no gain."""
        ops = set(region.splits)
        others = tuple(c for c in state.choices if ops.isdisjoint(c.region.splits))
        # What a region saves hangs on its own steps: it is tried alone where that can be.
        is_whole = state.fullest.source >= 0 and state.fullest in self.graph.ops
        beside = () if is_whole else others
        known, last, tried = self._known(region)[0], state.peak, more_than
        for count in _COUNTS:
            if count <= more_than or count < known:
                continue
            choice = Choice(region, count, state.peak, 0, 0)
            found = self.state((*beside, choice))
            if found is None:
                continue
            after, work = found.local(len(beside)), self._work(found, len(beside))
            told = replace(choice, after=after, work=work)
            left = max(after, found.at(state.fullest))
            is_less = left <= max(self.budget, self._enough(last))
            if not is_less and more_than and count < 2 * tried:
                continue
            if not is_less and more_than:
                return
            yield _Trial((*others, told), left, work)
            if after <= self.budget:
                return
            if after <= self._enough(last):
                last, tried = after, count
            elif count >= 2 * tried:
                return

    def _enough(self, last: int) -> float:
        """Return what a step has to be lowered to for more pieces to be tried."""
        beyond = max(last - self.budget, 0)
        return max(last * _LEAST_GAIN, self.budget + beyond * _LEAST_NEARER)

    def _work(self, found: State, number: int) -> int:
        """Return the additional work of the pieces of a region, compared with its ops."""
        program, (first, last) = found.made.program, found.made.places[number]
        region = found.choices[number].region
        pieces = sum(node_work(op, program.vars) for op in program.body.ops[first:last])
        ops = [self.graph.ops[at] for at in region.splits if at not in region.copied]
        before = sum(node_work(op, self.graph.program.vars) for op in ops)
        return pieces - before


def _pattern(graph: Graph, region: Region) -> tuple[object, ...]:
    return tuple((graph.ops[at].type, split) for at, split in sorted(region.splits.items()))
