"""The certificate of a plan: a proof of each lower bound that the plan states."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

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
from memplan_cli.core.symbolic.bounds import largest_size
from memplan_cli.core.symbolic.sizes import Size, size_of
from memplan_cli.core.version import VERSION
from memplan_cli.planning.allocation import aliasing_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Program
    from memplan_cli.core.results.placements import Placement, PlannedArena
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.ordering.block_graph import StorageFacts
    from memplan_cli.planning.planner import PlannedProgram

_MAX_COUNTS = 50_000_000
"""Slots of a kind are counted for each size and start tick: limit of the product of both numbers."""


def certificate_of(planned: PlannedProgram) -> Certificate:
    """Return the certificate of a plan that was just made."""
    plan = planned.plan
    facts = _storage_facts(planned)
    order, blocks = _order(planned, facts)
    return Certificate(
        version=VERSION,
        graph_sha256=plan.graph_sha256,
        plan_sha256=plan.digest,
        order=order,
        blocks=blocks,
        arenas=tuple(_arena(plan, arena) for arena in plan.arenas),
        recompute=_recompute(planned, facts),
    )


def _storage_facts(planned: PlannedProgram) -> StorageFacts:
    """Return the bytes of each planned tensor, and which tensors share them.

    The plan's bytes are counted. Symbolic sizes are needed too: only tensors whose sizes are equal
    for all values of the symbols share bytes.
    """
    from memplan_cli.ordering.block_graph import storage_facts
    from memplan_cli.ordering.records import PlannedVars

    plan, program = planned.plan, planned.program
    bytes_to_count = {VarId(tensor.id): tensor.bytes for tensor in plan.tensors}
    sizes = _sizes(program, bytes_to_count.keys(), planned.settings.bounds)
    pinned = [VarId(tensor.id) for tensor in plan.tensors if tensor.pinned is not None]
    planned_vars = PlannedVars(sizes, pinned, aliasing_of(plan.report.level))
    return storage_facts(program, planned_vars, bytes_to_count)


def _order(
    planned: PlannedProgram, facts: StorageFacts
) -> tuple[OrderProof | None, tuple[BlockProof, ...]]:
    """Return the proofs that no order has a lower live peak: of the graph, and of subgraphs.

    None and no blocks if the plan states no bound of its order.
    """
    from memplan_cli.ordering.witnesses import nested_witness

    bound = planned.plan.report.memory.order_bound
    if bound is None:
        return None, ()
    return nested_witness(planned.program.body, facts, bound)


def _recompute(planned: PlannedProgram, facts: StorageFacts) -> RecomputeProof | None:
    """Return the proof of the bound on recomputation: the op that needs as much by itself.

    None if the plan states no such bound.
    """
    from memplan_cli.ordering.cut_bounds import local_bounds
    from memplan_cli.ordering.witnesses import graph_without_subgraphs

    bound = planned.plan.report.recompute.bound
    if bound is None:
        return None
    body = planned.program.body
    needs = local_bounds(graph_without_subgraphs(body, facts))
    index = max(range(len(needs)), key=needs.__getitem__, default=None)
    if index is None or needs[index] < bound:
        why = "no node needs as much by itself"
        return RecomputeProof(bound, NOT_CHECKABLE, why=why)
    node = next((str(var) for var in body.ops[index].outputs if var), "")
    return RecomputeProof(bound, "step", node)


def _sizes(program: Program, identities: Iterable[VarId], bounds: Bounds) -> dict[VarId, Size]:
    """Return the bytes of vars whose sizes are known; of a symbolic size, the largest within the bounds."""
    vars_ = {identity: program.vars[identity] for identity in identities}
    sizes = {identity: size_of(var.shape, var.dtype) for identity, var in vars_.items()}
    return {var: largest_size(size, bounds) for var, size in sizes.items() if size is not None}


def _arena(plan: Plan, arena: PlannedArena) -> ArenaProof:
    """Return the proof of an arena's lower bound: its busiest tick, or the tensors that need slots.

    At level 2 tensors have offsets, and the bytes that are live at one tick are a bound. At levels 0 and
    1 they have slots, each as large as its largest tensor, which needs more. A bound of 0 holds at any
    tick, so its proof is of the first kind at all levels.
    """
    tensors = [tensor for tensor in plan.tensors if tensor.arena == arena.id]
    if plan.report.level == 2 or not arena.lower_bound:
        tick = _busiest_tick(tensors, arena.alignment)
        return ArenaProof(arena.id, arena.lower_bound, "load", tick)
    slots = _slot_loads(tensors, plan.report.level, arena.alignment)
    if slots is None:
        why = "there are too many sizes to count the slots of each"
        return ArenaProof(arena.id, arena.lower_bound, NOT_CHECKABLE, why=why)
    return ArenaProof(arena.id, arena.lower_bound, "slots", slots=slots)


def _busiest_tick(tensors: Sequence[Placement], alignment: int) -> int:
    """Return the first tick at which most bytes are live; 0 without tensors.

    Tensors that share bytes count once, from the first tick at which one of them is live until none
    is. The live range of a tensor is half-open: ``first <= tick < last``.
    """
    sharing: defaultdict[str, list[Placement]] = defaultdict(list)
    for tensor in tensors:
        sharing[tensor.alias_of or tensor.id].append(tensor)
    changes: defaultdict[int, int] = defaultdict(int)
    for aliases in sharing.values():
        size = align(aliases[0].bytes, alignment)  # aliases have equal bytes
        start, end = (
            min(alias.first for alias in aliases),
            max(alias.last for alias in aliases),
        )
        changes[start] += size
        changes[end] -= size
    return _first_maximum(changes).tick if changes else 0


class _Maximum(NamedTuple):
    """The largest value of a curve, and the first tick that has it."""

    value: int
    tick: int


def _first_maximum(changes: Mapping[int, int]) -> _Maximum:
    """Return the maximum of a curve that begins at 0 and is given by its changes at ticks."""
    ticks = sorted(changes)
    values = list(accumulate(changes[tick] for tick in ticks))
    index = max(range(len(values)), key=values.__getitem__)
    return _Maximum(values[index], ticks[index])


class _Kind(NamedTuple):
    """What tensors have in common that may use one slot, one after the other.

    Attributes:
        shape: None if the shapes may differ.
    """

    dtype: str
    shape: tuple[int | str, ...] | None


def _slot_loads(
    tensors: Sequence[Placement], level: int, alignment: int
) -> tuple[SlotLoad, ...] | None:
    """Return how many slots are needed at least at reuse level 0 or 1, for each kind and size of tensors.

    A tensor has a slot for itself while it is live; later another tensor of the same kind may have the
    slot: of the same dtype at level 1, of the same dtype and shape at level 0. If 3 tensors of 64 bytes or
    more of one kind are live at one tick, this kind needs at least 3 slots of 64 bytes or more: a record
    says so.

    None if a kind has too many sizes and start ticks (see `_MAX_COUNTS`).
    """
    kinds: defaultdict[_Kind, list[Placement]] = defaultdict(list)
    for tensor in tensors:
        kinds[_Kind(tensor.dtype, tensor.shape if level == 0 else None)].append(tensor)
    loads: list[SlotLoad] = []
    for kind, members in kinds.items():
        sizes = {tensor.bytes for tensor in members}
        ticks = {tensor.first for tensor in members}
        if len(sizes) * len(ticks) > _MAX_COUNTS:
            return None
        loads += _loads_of_kind(kind, members, alignment)
    return tuple(loads)


def _loads_of_kind(
    kind: _Kind, members: Sequence[Placement], alignment: int
) -> Iterator[SlotLoad]:
    """Yield, by falling size, each size at which the number of slots needed grows.

    For a size, that number is how many ``members`` of this size or more are live at one tick. The live
    range of a tensor is half-open: ``first <= tick < last``.
    """
    by_size: defaultdict[int, list[Placement]] = defaultdict(list)
    for tensor in members:
        by_size[align(tensor.bytes, alignment)].append(tensor)
    # Tick -> change of the number of live tensors of this size or more.
    changes: defaultdict[int, int] = defaultdict(int)
    slot_count = 0
    for size in sorted(by_size, reverse=True):
        for tensor in by_size[size]:
            changes[tensor.first] += 1
            changes[tensor.last] -= 1
        maximum = _first_maximum(changes)
        if maximum.value > slot_count:
            slot_count = maximum.value
            yield SlotLoad(kind.dtype, kind.shape, slot_count, size, maximum.tick)
