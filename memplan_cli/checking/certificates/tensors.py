"""The tensors of a plan as the model has them: their bytes, what they are views of, their ticks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.refused import UnknownError, refuse_unless
from memplan_cli.checking.clock import Kind
from memplan_cli.checking.operators import SAME_BYTES
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.core.symbolic.sizes import Size, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.checking.clock import Clock, Node, Value
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that the plan places, with the value and the size that the model has."""

    row: Placement
    value: Value
    size: Size

    @property
    def first(self) -> int:
        """The tick of its first use."""
        return self.value.first

    @property
    def after(self) -> int:
        """The tick after its last use."""
        return self.value.last + 1


def read_tensors(
    clock: Clock,
    plan: Plan,
    types: Mapping[str, Mapping[str, tuple[str, Shape | None]]],
    bounds: Bounds,
) -> Mapping[str, Tensor]:
    """Return the plan's tensors by ``block/name``.

    Raises:
        RefusedError: one is not the model's, or has another size or other ticks there.
    """
    values = {value.identity: value for value in clock.values()}
    units = {arena.id: arena.unit for arena in plan.arenas}
    tensors: dict[str, Tensor] = {}
    for row in plan.tensors:
        name = f"tensor {row.id[:120]!r}"
        value = values.get(row.id)
        refuse_unless(value is not None, f"{name} of the plan is no value of the model")
        assert value is not None  # noqa: S101 - for the type checker
        refuse_unless(
            value.kind is not Kind.WEIGHT, f"{name} of the plan is a weight of the model"
        )
        dtype, shape = types.get(value.region.path, {}).get(value.name, ("unknown", None))
        size = size_of(shape, dtype)
        if size is None:
            raise UnknownError(f"the model does not say the size of {name}")
        size = at_most(size, bounds)
        unit = size.unit if size.symbols else "1"
        refuse_unless(
            (row.bytes, units[row.arena]) == (size.coefficient, unit)
            and (dtype, shape) == (row.dtype, row.shape),
            f"{name} has {size} bytes in the model, and {row.bytes}*{units[row.arena]} in the "
            "plan",
        )
        lasts = (0, max(clock.ticks, 1)) if row.pinned else (value.first, value.last + 1)
        refuse_unless(
            (row.first, row.last) == lasts,
            f"{name} is live from tick {lasts[0]} to {lasts[1]}, the plan says from {row.first} "
            f"to {row.last}",
        )
        tensors[row.id] = Tensor(row, value, size)
    return tensors


def find_roots(clock: Clock, tensors: Mapping[str, Tensor]) -> Mapping[str, str]:
    """Return, for each tensor that is not pinned, the one whose bytes it shows."""
    roots = {name: name for name, tensor in tensors.items() if tensor.row.pinned is None}
    received = {
        value.identity
        for node in clock.nodes()
        for body in node.bodies
        for value in body.inputs
    }
    carried = {
        value.identity
        for node in clock.nodes()
        if node.repeats
        for body in node.bodies
        for value in body.outputs
    }
    for node in clock.nodes():
        pair = _view(node, tensors, roots)
        # What goes to the next turn is copied where it would be what this turn was given.
        if pair and not (pair[1] in carried and roots[pair[0]] in received):
            roots[pair[1]] = roots[pair[0]]
    return roots


def _view(
    node: Node, tensors: Mapping[str, Tensor], roots: Mapping[str, str]
) -> tuple[str, str] | None:
    if node.kind not in SAME_BYTES or not node.inputs or not node.outputs:
        return None
    base, result = node.inputs[0], node.outputs[0]
    if (
        base is None
        or result is None
        or base.identity not in roots
        or result.identity not in roots
    ):
        return None
    same = tensors[base.identity].size == tensors[result.identity].size
    return (base.identity, result.identity) if same else None
