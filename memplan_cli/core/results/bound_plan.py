"""Symbolic plans with numbers in place of the symbols that their report binds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.core.symbolic.sizes import unit_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.plan import Plan


def with_bound_symbols(plan: Plan) -> Plan:
    """Return a symbolic plan with all sizes in bytes and its arenas joined into one.

    The arena of each unit (``1``, ``batch``, ...) is placed behind the one before it. The plan is
    returned unchanged if it has no symbolic arena, or if its report does not bind all symbols.
    """
    if all(arena.unit == "1" for arena in plan.arenas):
        return plan
    dims = {name: dim.value for name, dim in plan.report.bindings.items()}
    factors: dict[int, int] = {}  # by arena, the bytes of its unit
    starts: dict[int, int] = {}  # by arena, its first byte in the joined one
    height = 0
    for arena in plan.arenas:
        try:
            factor = 1 if arena.unit == "1" else unit_value(arena.unit, dims)
        except ValueError:  # a symbol is not bound
            return plan
        factors[arena.id], starts[arena.id] = factor, height
        height += arena.height * factor
    joined = replace(
        plan.arenas[0],
        unit="1",
        height=height,
        lower_bound=sum(arena.lower_bound * factors[arena.id] for arena in plan.arenas),
        alignment=1,  # the arenas before an arena may have any height
    )
    tensors = tuple(
        tensor._replace(
            shape=tuple(_bound_or_same(dim, dims) for dim in tensor.shape),
            bytes=tensor.bytes * factors[tensor.arena],
            arena=joined.id,
            offset=starts[tensor.arena] + tensor.offset * factors[tensor.arena],
        )
        for tensor in plan.tensors
    )
    return replace(plan, arenas=(joined,), tensors=tensors)


def _bound_or_same(dim: int | str, dims: Mapping[str, int]) -> int | str:
    """Return a dim with numbers for symbols; unchanged if it divides by a symbol that is 0."""
    bound = bind_dim(dim, dims)
    return dim if bound is None else bound
