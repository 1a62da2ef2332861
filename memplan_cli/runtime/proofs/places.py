"""Where a replay puts the tensors of a plan: every number bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import moments
from memplan_cli.core.symbolic.sizes import bind_dim, canonical_dim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes ``[offset, offset + bytes)`` of an arena.

    Attributes:
        name, block: which tensor.
        dtype, shape: what it holds.
        bytes, arena, offset: where.
        dies: the index of the node at the top after which nothing needs it; -1 never.
        pinned: it must be what it was when the run is over.
        buffer: the tensor whose bytes it shares, itself included.
    """

    name: str
    block: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    arena: str
    offset: int
    dies: int
    pinned: bool
    buffer: str


def heights(plan: Plan, dims: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the bytes of each arena."""
    for arena in plan.arenas:
        unit = _number(arena.unit, dims)
        yield str(arena.id), arena.height * (unit or 0)


def _number(dim: int | str, dims: Mapping[str, int]) -> int | None:
    known = canonical_dim(dim) if isinstance(dim, str) else dim
    value = bind_dim(known, dims)
    return value if isinstance(value, int) else None


def places_of(plan: Plan, dims: Mapping[str, int]) -> tuple[list[Place], dict[str, str]]:
    """Return every tensor with numbers for symbols, and those without a place."""
    units = {arena.id: _number(arena.unit, dims) for arena in plan.arenas}
    nodes = _node_at(plan)
    ends = _ends(plan)
    found: list[Place] = []
    # What is excluded is among the refusals and has a place all the same.
    left_out = {r.name: r.reason for r in plan.report.unplanned if r.name not in plan.by_id}
    for tensor in plan.tensors:
        unit = units[tensor.arena]
        shape = tuple(_number(dim, dims) for dim in tensor.shape)
        known = tuple(dim for dim in shape if dim is not None)
        if unit is None or len(known) < len(shape):
            left_out[tensor.id] = "its size needs the value of a dim that was not given"
            continue
        found.append(
            Place(
                name=tensor.name,
                block=tensor.block,
                dtype=tensor.dtype,
                shape=known,
                bytes=tensor.bytes * unit,
                arena=str(tensor.arena),
                offset=tensor.offset * unit,
                # Pinned tensors live on: they are looked at when all is over.
                dies=-1 if tensor.pinned else nodes.get(ends[tensor.id], -1),
                pinned=tensor.pinned is not None,
                buffer=_buffer(tensor),
            )
        )
    return found, left_out


def _ends(plan: Plan) -> dict[str, int]:
    """Return the last tick of each tensor, with those that share its bytes."""
    last: dict[str, int] = {}
    for tensor in plan.tensors:
        buffer = _buffer(tensor)
        last[buffer] = max(last.get(buffer, 0), tensor.last)
    return {tensor.id: last[_buffer(tensor)] - 1 for tensor in plan.tensors}


def _buffer(tensor: Placement) -> str:
    return tensor.alias_of or tensor.id


def _node_at(plan: Plan) -> dict[int, int]:
    """Return for each tick the node at the top, by its place in the order, that runs then."""
    found: dict[int, int] = {}
    for place, moment in enumerate(moment for moment in moments(plan) if not moment.block):
        found.update(dict.fromkeys(range(moment.start, moment.end + 1), place))
    return found
