"""The tensors of a plan with numbers for all symbols: where a replay puts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import moments
from memplan_cli.core.symbolic.sizes import bind_dim, canonical_dim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan


@dataclass(frozen=True, slots=True)
class BoundPlacement:
    """A tensor in bytes ``[offset, offset + bytes)`` of an arena.

    Attributes:
        name, block: the tensor, and its block; the top block is ``""``.
        dtype, shape: of the tensor.
        bytes: the size of the tensor.
        arena: the id of the arena.
        offset: the first byte in the arena.
        freed_after: the node of the top block after which its bytes are free, as a position in the
            plan's order. None: they are needed until the run ends.
        pinned: whether the tensor must keep its value until the run ends, as users can ask for.
        buffer: the id of the tensor whose bytes it shares, or its own.
    """

    name: str
    block: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    arena: str
    offset: int
    freed_after: int | None
    pinned: bool
    buffer: str


def arena_heights(plan: Plan, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of each arena; 0 if a dim in its unit has no value.

    The height of an arena times its unit is its bytes. The unit is ``1`` or a product of dims such as
    ``batch``.
    """
    return {
        str(arena.id): arena.height * (_value(arena.unit, dims) or 0) for arena in plan.arenas
    }


def bound_placements(
    plan: Plan, dims: Mapping[str, int]
) -> tuple[list[BoundPlacement], dict[str, str]]:
    """Return the tensors that have a place, and the reason for each tensor without one, by its id.

    A plan counts offsets and sizes in the unit of their arena; the result counts bytes.
    """
    units = {arena.id: _value(arena.unit, dims) for arena in plan.arenas}
    last_nodes = _last_nodes(plan)
    placements: list[BoundPlacement] = []
    # Pinned tensors are "unplanned", because they share no memory, but they have a place: they are in ``by_id``.
    unplaced = {
        refusal.name: refusal.reason  # the name is the id of the tensor, such as ``block/name``
        for refusal in plan.report.unplanned
        if refusal.name not in plan.by_id
    }
    for tensor in plan.tensors:
        unit = units[tensor.arena]
        dims_or_none = [_value(dim, dims) for dim in tensor.shape]
        shape = tuple(dim for dim in dims_or_none if dim is not None)
        if unit is None or len(shape) < len(dims_or_none):
            unplaced[tensor.id] = "its size depends on a dim without a value"
            continue
        buffer = _buffer(tensor)
        placements.append(
            BoundPlacement(
                name=tensor.name,
                block=tensor.block,
                dtype=tensor.dtype,
                shape=shape,
                bytes=tensor.bytes * unit,
                arena=str(tensor.arena),
                offset=tensor.offset * unit,
                freed_after=None if tensor.pinned else last_nodes[buffer],
                pinned=tensor.pinned is not None,
                buffer=buffer,
            )
        )
    return placements, unplaced


def _value(dim: int | str, dims: Mapping[str, int]) -> int | None:
    """Return the value of a dim, a unit or an expression; None if a symbol in it has no value."""
    value = bind_dim(canonical_dim(dim) if isinstance(dim, str) else dim, dims)
    return value if isinstance(value, int) else None


def _last_nodes(plan: Plan) -> dict[str, int | None]:
    """Return the last node of the top block that needs each buffer, as a position in the plan's order.

    None for a buffer that is needed after the last node, such as that of an output of the model.
    """
    ends: dict[str, int] = {}  # the tick after the last one at which a buffer is needed
    for tensor in plan.tensors:
        ends[_buffer(tensor)] = max(ends.get(_buffer(tensor), 0), tensor.last)
    node_at_tick = _top_node_at_tick(plan)
    return {buffer: node_at_tick.get(end - 1) for buffer, end in ends.items()}


def _buffer(tensor: Placement) -> str:
    """Return the id of the tensor whose bytes a tensor shares, or its own."""
    return tensor.alias_of or tensor.id


def _top_node_at_tick(plan: Plan) -> dict[int, int]:
    """Return which node of the top block runs at each tick, as a position in the order."""
    node_at_tick: dict[int, int] = {}
    top_moments = (moment for moment in moments(plan) if not moment.block)
    for position, moment in enumerate(top_moments):
        node_at_tick.update(dict.fromkeys(range(moment.start, moment.end + 1), position))
    return node_at_tick
