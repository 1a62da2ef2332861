"""The certificate of a plan: a witness for each bound that the plan states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align
from memplan_cli.core.program import VarId
from memplan_cli.core.results.certificate import (
    NOT_CHECKABLE,
    ArenaProof,
    BlockProof,
    Certificate,
    OrderProof,
    RecomputeProof,
    SlotLoad,
)
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.core.symbolic.sizes import Size, size_of
from memplan_cli.core.version import VERSION
from memplan_cli.planning.allocation import aliasing_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from memplan_cli.core.program import Program
    from memplan_cli.core.results.placements import ArenaFacts, Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.ordering.terms import Terms
    from memplan_cli.planning.planner import Planned

ProveRecompute = Callable[["Program", "Terms", int], RecomputeProof]
"""The proof that no order of a program, with any copies, has a live peak below a bound."""

_COUNTED = 50_000_000
"""Slots of a kind are counted size by size, in all sections, up to so many of both."""


def certificate_of(
    planned: Planned, original: Program | None, prove_recompute: ProveRecompute
) -> Certificate:
    """Return the certificate of a plan.

    Args:
        planned: The plan, and the program in its order.
        original: The program before nodes were copied, which a bound on recomputation is
            about; None: it is not available, and that bound stays without a proof.
        prove_recompute: Returns the proof of a bound on recomputation.
    """
    plan, bounds = planned.plan, planned.settings.bounds
    order, blocks = _order(planned, bounds)
    return Certificate(
        version=VERSION,
        graph_sha256=plan.graph_sha256,
        plan_sha256=plan.digest,
        order=order,
        blocks=blocks,
        arenas=tuple(_arena(plan, arena) for arena in plan.arenas),
        recompute=_recompute(planned, bounds, original, prove_recompute),
    )


def _order(
    planned: Planned, bounds: Bounds
) -> tuple[OrderProof | None, tuple[BlockProof, ...]]:
    from memplan_cli.ordering.block_graph import storage_facts
    from memplan_cli.ordering.terms import Terms
    from memplan_cli.ordering.witnesses import nested_witness

    plan, program = planned.plan, planned.program
    bound = plan.report.memory.order_bound
    if bound is None:
        return None, ()
    numbers = {VarId(row.id): row.bytes for row in plan.tensors}
    sizes = _sizes(program, numbers, bounds)
    pinned = [VarId(row.id) for row in plan.tensors if row.pinned is not None]
    terms = Terms(sizes, pinned, aliasing_of(plan.report.level))
    facts = storage_facts(program, terms, numbers)
    return nested_witness(program.body, facts, bound)


def _sizes(program: Program, placed: Iterable[VarId], bounds: Bounds) -> dict[VarId, Size]:
    """Return the sizes of the tensors that a plan places."""
    found = ((var, program.vars[var]) for var in placed)
    sizes = {var: size_of(facts.shape, facts.dtype) for var, facts in found}
    return {var: at_most(size, bounds) for var, size in sizes.items() if size is not None}


def _arena(plan: Plan, arena: ArenaFacts) -> ArenaProof:
    rows = [row for row in plan.tensors if row.arena == arena.id]
    if plan.report.level == 2 or not arena.lower_bound:
        return ArenaProof(arena.id, arena.lower_bound, "load", _busiest(rows, arena.alignment))
    slots = _slots(rows, plan.report.level, arena.alignment)
    if slots is None:
        why = "there are too many sizes to count the slots of each"
        return ArenaProof(arena.id, arena.lower_bound, NOT_CHECKABLE, why=why)
    return ArenaProof(arena.id, arena.lower_bound, "slots", slots=slots)


def _busiest(rows: Sequence[Placement], alignment: int) -> int:
    """Return the tick at which most bytes are live, what shares bytes counted once."""
    spans: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        base = row.alias_of or row.id
        _, first, last = spans.get(base, (0, row.first, row.last))
        spans[base] = row.bytes, min(first, row.first), max(last, row.last)
    change: defaultdict[int, int] = defaultdict(int)
    for size, first, last in spans.values():
        change[first] += align(size, alignment)
        change[last] -= align(size, alignment)
    ticks = sorted(change)
    live = list(accumulate(change[tick] for tick in ticks))
    return ticks[max(range(len(live)), key=live.__getitem__)] if live else 0


def _slots(
    rows: Sequence[Placement], level: int, alignment: int
) -> tuple[SlotLoad, ...] | None:
    kinds: defaultdict[Hashable, list[Placement]] = defaultdict(list)
    for row in rows:
        kinds[row.dtype if level else (row.dtype, row.shape)].append(row)
    found: list[SlotLoad] = []
    for members in kinds.values():
        sizes = {row.bytes for row in members}
        ticks = {row.first for row in members}
        if len(sizes) * len(ticks) > _COUNTED:
            return None
        found += _slots_of(members, level, alignment)
    return tuple(found)


def _slots_of(members: Sequence[Placement], level: int, alignment: int) -> Iterator[SlotLoad]:
    """Yield, by falling size, where more tensors are live together than of larger ones."""
    by_size: defaultdict[int, list[Placement]] = defaultdict(list)
    for row in members:
        by_size[align(row.bytes, alignment)].append(row)
    shape = None if level else members[0].shape
    change: defaultdict[int, int] = defaultdict(int)
    most = 0
    for size in sorted(by_size, reverse=True):
        for row in by_size[size]:
            change[row.first] += 1
            change[row.last] -= 1
        moments = sorted(change)
        live = list(accumulate(change[tick] for tick in moments))
        at = max(range(len(live)), key=live.__getitem__)
        if live[at] > most:
            most = live[at]
            yield SlotLoad(members[0].dtype, shape, most, size, moments[at])


def _recompute(
    planned: Planned,
    bounds: Bounds,
    original: Program | None,
    prove_recompute: ProveRecompute,
) -> RecomputeProof | None:
    bound = planned.plan.report.recompute.bound
    if bound is None:
        return None
    if original is None:
        why = "the program without copies is not at hand"
        return RecomputeProof(bound, NOT_CHECKABLE, why=why)
    from memplan_cli.ordering.terms import Terms

    rows = [row for row in planned.plan.tensors if row.id in original.vars]
    pinned = frozenset(VarId(row.id) for row in rows if row.pinned is not None)
    sizes = _sizes(original, (VarId(row.id) for row in rows), bounds)
    terms = Terms(sizes, pinned, aliasing_of(planned.plan.report.level))
    return prove_recompute(original, terms, bound)
