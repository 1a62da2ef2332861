"""The lines of ``--print-log``: which tensor reuses whose memory, from nothing but the plan.

The ancestor printed while it matched, so the log and the result could differ. Here the log
is read off the placements: what it says is what the plan does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING

from memplan_cli.core.program import var_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan


@dataclass(frozen=True, slots=True)
class Reuse:
    """One tensor, and the tensor that had its memory just before, or why there is none.

    ``pool`` is the number of free slots at that moment, at levels 0 and 1.
    """

    tensor: Placement
    donor: Placement | None
    pool: int = 0
    reason: str = ""


def print_log(plan: Plan) -> Iterator[str]:
    """Yield the log's lines, in the order of the plan, refusals where they happened."""
    count = 0
    for reuse in reuses(plan.tensors, plan.report.level):
        name = _described(reuse.tensor)
        if reuse.donor is None:
            yield f"-: {name} not reused: {why_not(plan, reuse)}"
            continue
        tensor = reuse.tensor
        where = (
            f"arena {tensor.arena} @{tensor.offset}"
            if tensor.slot is None
            else f"slot {tensor.slot}, pool {reuse.pool}"
        )
        yield f"{count}: {name} => {_described(reuse.donor)}, {where}"
        count += 1
    placed = {tensor.id for tensor in plan.tensors}
    for refusal in plan.report.unplanned:
        if refusal.name not in placed:
            yield f"-: {refusal.name} not reused: {refusal.reason}"


_LEFT_ALONE = "the model is left as it is"


def is_left_alone(plan: Plan) -> bool:
    """Whether the settings say that a model of this phase is left as it is."""
    block = plan.settings.get("mem_param")
    key = f"optimize_{plan.report.phase}"
    return isinstance(block, dict) and block.get(key) is False


def why_not(plan: Plan, reuse: Reuse) -> str:
    """Return why a tensor of a plan has nobody's memory; empty where it has."""
    alone = reuse.donor is None and is_left_alone(plan)
    return _LEFT_ALONE if alone else reuse.reason


def refusals(tensors: Sequence[Placement]) -> Iterator[tuple[Placement, str]]:
    """Yield each tensor that reuses no memory, by its start, and why.

    The same as `reuses` says, in a third of the time: to know that nobody lay there before,
    it is enough to know which addresses are taken, and soon all below the top are.
    """
    pools = _pools(tensors, 1)
    taken: dict[int, _Taken] = {}
    for tensor in _by_start(tensors):
        if tensor.slot is not None:
            reuse = pools[tensor.arena].take(tensor)
            if reuse.donor is None:
                yield tensor, reuse.reason
        elif taken.setdefault(tensor.arena, _Taken()).takes(tensor):
            yield tensor, _why_nobody(tensor)


def reuses(tensors: Sequence[Placement], level: int = 1) -> Iterator[Reuse]:
    """Yield each tensor, by its start, with its donor or the reason it has none."""
    pools = _pools(tensors, level)
    maps: dict[int, _Map] = {}
    for tensor in _by_start(tensors):
        if tensor.slot is None:
            yield maps.setdefault(tensor.arena, _Map()).take(tensor)
        else:
            yield pools[tensor.arena].take(tensor)


def _pools(tensors: Sequence[Placement], level: int) -> dict[int, _Pool]:
    """Return the pool of each arena that has one, with the size of each of its slots."""
    found: dict[int, _Pool] = {}
    for tensor in tensors:
        if tensor.slot is not None:
            sizes = found.setdefault(tensor.arena, _Pool(level)).sizes
            if sizes.get(tensor.slot, -1) < tensor.bytes:
                sizes[tensor.slot] = tensor.bytes
    return found


def _by_start(tensors: Sequence[Placement]) -> Iterable[Placement]:
    starts = [tensor.first for tensor in tensors]
    if all(map(lt, starts, islice(starts, 1, None))):
        return tensors  # as where the order is the file's: no two rows are there at once
    return sorted(tensors, key=_start)


def _start(tensor: Placement) -> tuple[int, str]:
    name, block, _, _, _, _, _, _, first, _, _, _ = tensor
    return first, var_id(block, name)


def _why_nobody(tensor: Placement) -> str:
    if not tensor.bytes:
        return "it has no bytes"
    return tensor.pinned or "first use of this memory range"


def _described(tensor: Placement) -> str:
    return f"{tensor.id}[{','.join(map(str, tensor.shape))}]"


class _Pool:
    """The slots of one pool of a level, and who holds each."""

    def __init__(self, level: int) -> None:
        self._level = level
        self.sizes: dict[int, int] = {}
        self._holders: dict[int, Placement] = {}
        self._free: dict[int, Placement] = {}
        self._ends_of_use: list[tuple[int, int]] = []

    def take(self, tensor: Placement) -> Reuse:
        while self._ends_of_use and self._ends_of_use[0][0] <= tensor.first:
            slot = heappop(self._ends_of_use)[1]
            self._free[slot] = self._holders[slot]
        free = len(self._free)
        assert tensor.slot is not None  # noqa: S101 - the caller looked
        donor = self._free.pop(tensor.slot, None)
        reason = "" if donor else self._reason(tensor)
        self._holders[tensor.slot] = tensor
        heappush(self._ends_of_use, (tensor.last, tensor.slot))
        return Reuse(tensor, donor, free, reason)

    def _reason(self, tensor: Placement) -> str:
        if tensor.pinned:
            return tensor.pinned
        if not self._free:
            return "no slot is free"
        slots = [slot for slot, last in self._free.items() if last.dtype == tensor.dtype]
        if not slots:
            return f"no free slot holds {tensor.dtype}"
        if all(self.sizes[slot] < tensor.bytes for slot in slots):
            return f"no free slot of {tensor.dtype} is as large as {tensor.bytes} bytes"
        if self._level == 0 and all(self._free[s].shape != tensor.shape for s in slots):
            return f"no free slot of {tensor.dtype} has its shape"
        return f"free slots of {tensor.dtype} that would do are kept for later tensors"


class _Map:
    """Who lay last at each address of one arena: disjoint segments, sorted."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: list[tuple[int, Placement]] = []  # (end, last tensor there)

    def take(self, tensor: Placement) -> Reuse:
        low, high = tensor.offset, tensor.offset + tensor.bytes
        donors = self._replace(low, high, tensor) if low < high else []
        if donors:
            return Reuse(tensor, max(donors, key=lambda t: (t.last, t.id)))
        return Reuse(tensor, None, reason=_why_nobody(tensor))

    def _replace(self, low: int, high: int, tensor: Placement) -> list[Placement]:
        """Write a tensor over a range and return what lay there."""
        first = max(bisect_right(self._starts, low) - 1, 0)
        last = bisect_left(self._starts, high)
        old = list(zip(self._starts[first:last], self._segments[first:last], strict=True))
        fresh: list[tuple[int, tuple[int, Placement]]] = []
        donors = []
        for start, (end, holder) in old:
            if end <= low:
                fresh.append((start, (end, holder)))
                continue
            donors.append(holder)
            if start < low:
                fresh.append((start, (low, holder)))
            if end > high:
                fresh.append((high, (end, holder)))
        fresh.append((low, (high, tensor)))
        fresh.sort(key=lambda item: item[0])
        self._starts[first:last] = [start for start, _ in fresh]
        self._segments[first:last] = [segment for _, segment in fresh]
        return donors


class _Taken:
    """Which addresses of one arena somebody has lain at: disjoint segments, sorted."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def takes(self, tensor: Placement) -> bool:
        """Take a tensor's addresses; return whether there are some and all were untouched."""
        _, _, _, _, size, _, low, _, _, _, _, _ = tensor
        high = low + size
        if low == high:
            return True
        starts, ends = self._starts, self._ends
        if starts and starts[0] <= low and high <= ends[0]:  # nearly always, soon
            return False
        first, last = bisect_right(ends, low), bisect_left(starts, high)
        if first < last and starts[first] <= low and high <= ends[first]:
            return False
        # What it touches or overlaps becomes one segment with it.
        left, right = bisect_left(ends, low), bisect_right(starts, high)
        near = slice(left, right)
        starts[near] = [min([low, *starts[near][:1]])]
        ends[near] = [max([high, *ends[near][-1:]])]
        return first == last
