"""Loops that were chosen, written with the largest pieces that fit, and what is told of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.analysis.storage import measured
from memplan_cli.core.problem import Problem, pressure
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.transforms.chunking.loops.counts import numbers
from memplan_cli.transforms.chunking.loops.measure import counted, peak_of, sizes_at
from memplan_cli.transforms.chunking.loops.work import work_at
from memplan_cli.transforms.chunking.loops.write import Looped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program, Shape, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.transforms.chunking.loops.measure import Peak, Task
    from memplan_cli.transforms.chunking.loops.write import Loop
    from memplan_cli.transforms.chunking.rewrite import Chunked

_SHARES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
"""Parts of the budget that pieces may take."""


@dataclass(frozen=True, slots=True)
class Told:
    """One loop as reported.

    Attributes:
        tensor, axis: What its region was grown from, and along which axis.
        pieces: The most that there are within the bounds.
        trips: The same as an expression.
        nodes: Ops of the region.
        after: The most that is live while it runs.
        extra: The added work in the largest request, as a share of the model's.
    """

    tensor: VarId
    axis: int
    pieces: int
    trips: str
    nodes: int
    after: int
    extra: float


class Finished(NamedTuple):
    """A program with its loops written, the most that is live in it, and bytes of its pieces."""

    chunked: Chunked
    peak: int
    target: int


def largest_pieces(bounded: Bounded, state: Looped, allowed: int) -> Finished | None:
    """Return a program with the largest pieces that fit a budget, or that need least."""
    found: Finished | None = None
    for share in _SHARES:
        target = max(allowed // share, 1)
        # At the largest request alone it is quicker told that pieces are too large.
        if share < _SHARES[-1] and bounded.peak_at_largest(state, target) > allowed:
            continue
        chunked = state.finished(target)
        peak = bounded.peak(chunked.program).bytes
        if found is None or peak < found.peak:
            found = Finished(chunked, peak, target)
        if peak <= allowed:
            break
    return found


class Bounded:
    """Programs measured at their largest within bounds: each tensor at its own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._size = lru_cache(maxsize=None)(self._largest)

    def _largest(self, shape: Shape, dtype: str) -> Size | None:
        size = size_of(shape, dtype)
        return at_most(size, self._task.bounds) if size is not None and size.symbols else size

    def peak(self, program: Program) -> Peak:
        """Return the most that is live at one step."""
        return peak_of(program, self._sizes(program), self._task.pinned, 0)

    def peak_at_largest(self, state: Looped, target: int) -> int:
        """Return the most that is live in the largest request."""
        dims = numbers(state.counts, target, self._task.largest)
        sizes = sizes_at(state.program, dims)
        return peak_of(state.program, sizes, self._task.pinned, 0).bytes

    def _sizes(self, program: Program) -> Mapping[VarId, Size]:
        found = {}
        for var in counted(program):
            facts = program.vars[var]
            size = self._size(facts.shape, facts.dtype) if facts.shape is not None else None
            if size is not None:
                found[var] = size
        return found

    def told(self, program: Program, loop: Loop, state: Looped, target: int) -> Told:
        """Return what is reported of a loop."""
        place = measured(program, self._sizes(program), self._task.pinned, SHARE_VIEWS)
        step = next(
            each
            for each in place.timeline.steps
            if any(body.path == loop.path for body in each.op.bodies)
        )
        live = pressure(Problem(place.storage[1].get("1", ())))
        after = most = 0
        for tick, bytes_ in live:
            if tick > step.end:
                break
            most = bytes_ if tick <= step.start else max(most, bytes_)
            after = most
        pieces = max(
            numbers(state.counts, target, dims)[loop.count.trips]
            for dims in self._task.corners
        )
        trips = (program.vars[step.op.outputs[0]].shape or ("",))[0]
        return Told(
            loop.region.seed,
            loop.region.axis,
            pieces,
            str(trips),
            len(loop.region.splits),
            after,
            self._extra(loop, state, target),
        )

    def _extra(self, loop: Loop, state: Looped, target: int) -> float:
        """Return the work that a loop adds in the largest request."""
        with_it: Looped | None = state
        while with_it is not None and with_it.loops[-1] is not loop:
            with_it = with_it.before
        if with_it is None or with_it.before is None:
            raise ValueError("a loop of another program")
        dims = numbers(state.counts, target, self._task.largest)
        whole = work_at(Looped(self._task.program), dims)
        more = work_at(with_it, dims) - work_at(with_it.before, dims)
        return max(more, 0) / max(whole, 1)
