"""Which regions become loops, along which axes, and how many bytes their pieces take.

The search looks at the fullest step of the largest request, in whatever subgraph it is, and
makes a loop of a region around one of the largest tensors there. What is left too full is
looked at again, so a loop over samples gets a loop over query rows inside. Of the ways that fit
the budget the one with the fewest loops is taken, then the one that holds and moves least beside
its pieces. Last, pieces are made as large as the budget allows, at every size within the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.transforms.chunking.bound import Bound, lower_bound
from memplan_cli.transforms.chunking.graph import Graph
from memplan_cli.transforms.chunking.loops.begin import begun
from memplan_cli.transforms.chunking.loops.blocks import part_of
from memplan_cli.transforms.chunking.loops.counts import numbers
from memplan_cli.transforms.chunking.loops.finish import Bounded, Told, largest_pieces
from memplan_cli.transforms.chunking.loops.fits import least_rows
from memplan_cli.transforms.chunking.loops.measure import (
    Peak,
    Task,
    bytes_at,
    counted,
    peak_of,
    sizes_at,
)
from memplan_cli.transforms.chunking.loops.sized import (
    graph_at,
    primes_for,
    with_numbers,
)
from memplan_cli.transforms.chunking.loops.values import is_told, sources
from memplan_cli.transforms.chunking.loops.write import Looped, with_loop
from memplan_cli.transforms.chunking.region import growing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.transforms.chunking.region import Region
    from memplan_cli.transforms.chunking.rewrite import Chunked

_MOST_LOOPS = 64
"""One inside of the other, or side by side: one for each layer of a model."""

_WIDTH = 4
"""Ways that are followed at a time."""

_DEEP = 3
"""Loops from which on one way alone is followed."""

_SEEDS = 3
"""Tensors of the fullest step that regions are grown from."""

_REGIONS = 6
"""Regions of one tensor and axis that are tried, those of the smallest border."""

_TRIED_WITH = 16
"""The part that they take while regions are looked for."""


@dataclass(frozen=True, slots=True)
class Loops:
    """A program with regions as loops, and whether that was enough.

    Attributes:
        chunked: The program, and the values of its new constants.
        told: Its loops.
        before, peak: The most that is live within the bounds, without them and with them.
        bound: What no pieces get below in the largest request, and what makes it.
        bound_sizes: The bytes of the tensors that make it.
    """

    chunked: Chunked | None
    told: tuple[Told, ...]
    before: int
    peak: int
    bound: Bound
    bound_sizes: Mapping[VarId, int]


def search_loops(task: Task, budget: float) -> Loops:
    """Return a program whose live peak fits a budget at every size within bounds, or comes near.

    Args:
        task: What is looked for.
        budget: Bytes, or a share of the peak as it is where that is no whole number.
    """
    bounded = Bounded(task)
    before = bounded.peak(task.program).bytes
    allowed = int(budget * before) if isinstance(budget, float) else budget
    bound, sizes = _lower_bound(task)
    unchanged = Loops(None, (), before, before, bound, sizes)
    if before <= allowed:
        return unchanged
    search = _Search(task, allowed)
    state = search.best().state
    found = largest_pieces(bounded, state, allowed) if state.loops else None
    if found is None or found.peak >= before:
        return unchanged
    told = tuple(
        bounded.told(found.chunked.program, loop, state, found.target) for loop in state.loops
    )
    return Loops(found.chunked, told, before, found.peak, bound, sizes)


def _lower_bound(task: Task) -> tuple[Bound, Mapping[VarId, int]]:
    """Return what no pieces get below in the largest request, and its tensors' bytes."""
    program = with_numbers(begun(task.program).program, task.largest)
    graph = Graph.of(program, task.facts, task.pinned)
    found = lower_bound(graph, frozenset(counted(program)), SHARE_VIEWS)
    return found, {var: graph.bytes(var) for var in found.tensors}


class _Way(NamedTuple):
    """Loops, what is live with them, and what is moved for them."""

    peak: Peak
    moved: int
    state: Looped
    kind: tuple[object, ...] = ()


@dataclass
class _Search:
    task: Task
    budget: int
    _graphs: dict[tuple[int, str], tuple[Graph, Graph]] = field(default_factory=dict)
    _kept: list[Looped] = field(default_factory=list)
    """What graphs are known of: a number of one that is gone would be another's."""

    def best(self) -> _Way:
        """Return the way of the fewest loops that fits the budget, or of the lowest peak."""
        state = begun(self.task.program)
        found = _Way(self.peak(state, self._target), 0, state)
        ways = [found]
        for depth in range(_MOST_LOOPS):
            following = [each for way in ways for each in self._following(way)]
            fits = [each for each in following if each.peak.bytes <= self.budget]
            if fits:
                return min(fits, key=lambda each: (each.moved, each.peak.bytes))
            ways = _varied(following)[: _WIDTH if depth < _DEEP else 1]
            found = min((found, *ways), key=lambda each: each.peak.bytes)
            if not ways:
                break
        return found

    @property
    def _target(self) -> int:
        return max(self.budget // _TRIED_WITH, 1)

    def peak(self, state: Looped, target: int) -> Peak:
        """Return the most that is live in the largest request."""
        program = state.program
        dims = numbers(state.counts, target, self.task.largest)
        return peak_of(program, sizes_at(program, dims), self.task.pinned, self.budget)

    def _following(self, way: _Way) -> Iterator[_Way]:
        """Yield the ways with one more loop."""
        state, target = way.state, self._target
        results = {*state.program.body.outputs}
        seeds = (
            var for var in way.peak.live if var not in results and self._is_made(state, var)
        )
        for var in islice(seeds, _SEEDS):
            facts = state.program.vars[var]
            for axis in range(len(facts.shape or ())):
                for after in self._loops(state, facts.block, var, axis):
                    now = self.peak(after, target)
                    moved = way.moved + self._moved(after, target)
                    extent, inside = after.loops[-1].count.extent, bool(facts.block)
                    if now.excess < way.peak.excess:
                        yield _Way(now, moved, after, (inside, axis, extent))

    def _is_made(self, state: Looped, var: VarId) -> bool:
        path = state.program.vars[var].block
        return var in self._graphs_of(state, path)[0].flow.producer

    def _graphs_of(self, state: Looped, path: str) -> tuple[Graph, Graph]:
        key = id(state.program), path
        if key not in self._graphs:
            part, most = part_of(state.program, path), dict(self.task.largest)
            one, two = (
                graph_at(part, dims, self.task.facts, self.task.pinned)
                for dims in primes_for(state.program, most)
            )
            self._graphs[key] = one, two
            self._kept.append(state)
        return self._graphs[key]

    def _loops(self, state: Looped, path: str, var: VarId, axis: int) -> Iterator[Looped]:
        """Yield a program with a loop around a tensor, those of the smallest borders last."""
        graphs = self._graphs_of(state, path)
        part = part_of(state.program, path)
        told = {**sources(state.program), **{c.rows: 0 for c in state.counts}}
        for region in _regions(graphs[0], var, axis)[-_REGIONS:]:
            if not self._is_told(part, graphs[0], region.splits, told):
                continue
            least = least_rows(part, graphs, region, self.task.bounds)
            after = (
                with_loop(state, path, graphs[0], region, least) if least is not None else None
            )
            if after is not None:
                yield after

    def _is_told(
        self, part: Program, graph: Graph, ops: Collection[int], told: Mapping[str, object]
    ) -> bool:
        """Whether inputs tell the dims of all that is made in pieces."""
        made = (var for at in ops for var in graph.ops[at].outputs if var)
        return all(is_told(part.vars[var].shape or (), told) for var in made)

    def _moved(self, state: Looped, target: int) -> int:
        """Return the bytes that the last loop reads and gives whole, in the largest request."""
        loop = state.loops[-1]
        dims = numbers(state.counts, target, self.task.largest)
        found = 0
        for var in (*loop.region.given, *loop.region.results):
            facts = state.program.vars.get(var)
            if facts is not None:
                found += bytes_at(facts.shape, facts.dtype, dims)
        return found


def _regions(graph: Graph, var: VarId, axis: int) -> list[Region]:
    """Return regions that leave less whole than any smaller one, and the largest of each."""
    found: list[Region] = []
    least: int | None = None
    for region, whole in growing(graph, var, axis):
        if len(region.splits) == 1:
            least = None
        if least is None or whole < least:
            least = whole
            found += [region, region]
        elif whole == least:
            found[-1] = region
    return [region for at, region in enumerate(found) if region is not found[at - 1] or not at]


def _varied(ways: list[_Way]) -> list[_Way]:
    """Return the ways that leave least above the budget, of each axis and place one."""
    found: dict[tuple[object, ...], _Way] = {}
    for way in sorted(ways, key=lambda each: (each.peak.excess, each.moved)):
        found.setdefault(way.kind, way)
    return list(found.values())
