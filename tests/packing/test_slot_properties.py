"""Slots of levels 0 and 1 against the heuristics, the bounds and the best there is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    LiveRange,
    Problem,
    align,
    lower_bound,
    slot_violations,
    violations,
)
from memplan_cli.packing import slots as slots_module
from memplan_cli.packing.pools import KINDS, SlotAssignment, pool_levels
from memplan_cli.packing.slots import least_slots, slot_bound, slot_buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

many = settings(
    max_examples=int(os.environ.get("MEMPLAN_EXAMPLES", "40")),
    deadline=None,
    derandomize=True,
)


@st.composite
def tensors(draw: st.DrawFn, most: int) -> Problem:
    """Draw buffers as a model has them: what has one shape and type has one size."""
    found = []
    for index in range(draw(st.integers(0, most))):
        start, length = draw(st.integers(0, 14)), draw(st.integers(1, 9))
        size, dtype = draw(st.integers(0, 6)), draw(st.sampled_from(("int8", "int8", "bool")))
        live = LiveRange(start, start + length)
        found.append(Buffer(BufferId(f"b{index}"), size, live, dtype, (size,)))
    return Problem(tuple(found), draw(st.sampled_from((1, 1, 4))))


def clashes(one: Buffer, other: Buffer) -> bool:
    return one.live.start < other.live.end and other.live.start < one.live.end


def tallness(members: Sequence[Sequence[Buffer]], alignment: int) -> int:
    return sum(align(max(b.size for b in slot), alignment) for slot in members)


def largest_opens_each_slot(problem: Problem) -> int:
    """Return what the heuristic in ten lines comes to."""
    members: list[list[Buffer]] = []
    for buffer in sorted(problem.buffers, key=lambda b: (-b.size, b.live.start, b.id)):
        for slot in members:
            if slot[0].dtype == buffer.dtype and not any(clashes(buffer, b) for b in slot):
                slot.append(buffer)
                break
        else:
            members.append([buffer])
    return tallness(members, problem.alignment)


def tightest_by_first_use(problem: Problem) -> int:
    """Return what a assignment in order of first use takes, which enlarges no slot."""
    slots: list[tuple[Buffer, int]] = []
    for buffer in sorted(problem.buffers, key=lambda b: (b.live.start, b.id)):
        free = [
            (owner.size, at)
            for at, (owner, end) in enumerate(slots)
            if owner.dtype == buffer.dtype
            and end <= buffer.live.start
            and owner.size >= buffer.size
        ]
        if free:
            at = min(free)[1]
            slots[at] = slots[at][0], buffer.live.end
        else:
            slots.append((buffer, buffer.live.end))
    return sum(align(owner.size, problem.alignment) for owner, _ in slots)


def least(problem: Problem, kind: Callable[[Buffer], Hashable]) -> int:
    """Try every assignment: slow, and simple enough to be believed."""

    def assign(rest: Sequence[Buffer], members: list[list[Buffer]]) -> int:
        if not rest:
            return tallness(members, problem.alignment)
        buffer, costs = rest[0], []
        for slot in members:
            if kind(slot[0]) == kind(buffer) and not any(clashes(buffer, b) for b in slot):
                slot.append(buffer)
                costs.append(assign(rest[1:], members))
                slot.pop()
        costs.append(assign(rest[1:], [*members, [buffer]]))
        return min(costs)

    return assign(problem.buffers, [])


def heights(problem: Problem) -> tuple[int, int]:
    low, middle = pool_levels(problem)
    return low.height(problem.alignment), middle.height(problem.alignment)


@many
@given(problem=tensors(most=24))
def test_slots_of_both_levels_are_safe_and_keep_to_their_kind(problem: Problem) -> None:
    for level, assignment in enumerate(pool_levels(problem)):
        height = assignment.height(problem.alignment)
        assert slot_violations(problem, assignment.buffers, assignment.slots, height) == ()
        assert violations(problem, assignment.layout(problem.alignment)) == ()
        kinds: dict[int, Hashable] = {}
        for buffer, slot in zip(assignment.buffers, assignment.slots, strict=True):
            assert kinds.setdefault(slot, KINDS[level](buffer)) == KINDS[level](buffer)
        assert list(dict.fromkeys(assignment.slots)) == list(range(len(kinds)))


@many
@given(problem=tensors(most=40))
def test_level_1_never_loses_to_a_heuristic(problem: Problem) -> None:
    low, height = heights(problem)
    assert height <= low
    assert height <= largest_opens_each_slot(problem)
    assert height <= tightest_by_first_use(problem)


@many
@given(problem=tensors(most=40))
def test_no_level_is_below_its_bound_and_level_0_is_at_it(problem: Problem) -> None:
    low, height = heights(problem)
    assert low == slot_bound(problem, KINDS[0])
    assert lower_bound(problem) <= slot_bound(problem, KINDS[1]) <= height


@many
@given(problem=tensors(most=7))
def test_few_buffers_are_between_the_bound_and_the_best_there_is(problem: Problem) -> None:
    low, height = heights(problem)
    assert low == least(problem, KINDS[0])
    assert slot_bound(problem, KINDS[1]) <= least(problem, KINDS[1]) <= height


@many
@given(problem=tensors(most=40))
def test_the_same_buffers_get_the_same_slots(problem: Problem) -> None:
    assert pool_levels(problem) == pool_levels(problem)


@many
@given(problem=tensors(most=30))
def test_every_strategy_is_safe_alone(problem: Problem) -> None:
    buffers = tuple(sorted(problem.buffers, key=lambda b: (b.live.start, b.id)))
    whole = Problem(tuple(b._replace(dtype="") for b in buffers), problem.alignment)
    spans = slot_buffers(whole.buffers, whole.alignment)
    sizes = least_slots(spans)
    order = sorted(range(len(buffers)), key=lambda at: slots_module.by_size(spans, at))
    found = [slots_module.first_fit(spans, order)]
    found += slots_module.best_fit_rounds(spans, sizes, 3)
    for slots in found:
        cost = slots_module.cost(spans, slots)
        assignment = SlotAssignment(whole.buffers, tuple(slots))
        assert slot_violations(whole, assignment.buffers, assignment.slots, cost) == ()
