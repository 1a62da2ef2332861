"""A written model together with its plan: what the checks of this package read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.timeline import ValueKind, build_timeline, name_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto, ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.timeline import Timeline, Value
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

    TensorTypes = Mapping[str, tuple[str, Shape | None]]
    """Dtype and shape of the values of one block, by name."""


@dataclass(frozen=True, slots=True)
class OriginalModel:
    """The model file that a plan was made for.

    Attributes:
        graph: its main graph; None if the written model is not a reordering of this graph, because
            ONNX Runtime optimized it or caches were turned into buffers.
        sha256: digest of the file.
        graph_sha256: digest of the graph.
    """

    graph: GraphProto | None
    sha256: str
    graph_sha256: str


class PlacedTensor(NamedTuple):
    """A tensor of a plan with the value of the model that it stands for."""

    placement: Placement
    value: Value


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A written model and its plan.

    Attributes:
        model: the written model.
        plan: the plan stored beside the model.
        timeline: the model's nodes and values with their ticks.
        types: dtype and shape by name, for each block of the timeline.
        bounds: bounds of dims; sizes in the plan are the largest within these bounds.
        tensors: the plan's tensors that are intermediates of the model, by id.
        original: the file that the plan was made for, if available.
    """

    model: ModelProto
    plan: Plan
    timeline: Timeline
    types: Sequence[TensorTypes]
    bounds: Bounds
    tensors: Mapping[str, PlacedTensor]
    original: OriginalModel | None = None

    def type_of(self, value: Value) -> tuple[str, Shape | None]:
        """Return dtype and shape of a value; ``"unknown"`` and None where the model has none.

        If the plan's shapes were recorded in a run, symbols of the model had values in this run
        that the settings do not contain. Symbolic dims are then None.
        """
        dtype, shape = self.types[value.block.index].get(value.name, ("unknown", None))
        if value.kind is ValueKind.WEIGHT or not self.plan.settings.get("profile_shapes"):
            return dtype, shape
        if value.depends_on_control_flow or shape is None:
            return dtype, None
        return dtype, tuple(None if isinstance(dim, str) else dim for dim in shape)

    @property
    def units(self) -> dict[int, str]:
        """The unit of each arena, such as ``"1"`` or ``"batch"``, by arena id."""
        return {arena.id: arena.unit for arena in self.plan.arenas}


def planned_model(
    model: ModelProto,
    plan: Plan,
    types: Sequence[TensorTypes],
    bounds: Bounds,
    original: OriginalModel | None = None,
) -> PlannedModel:
    """Build the timeline of a written model and match the plan's tensors to its values.

    Args:
        model: the written model.
        plan: its plan, as read from the file.
        types: dtype and shape by name of each block: the main graph first, then subgraphs in the
            order in which they run.
        bounds: bounds of the dims for which the plan's sizes are the largest.
        original: the file that the plan was made for.
    """
    timeline = build_timeline(model.graph, exposed_outputs(plan))
    name_blocks(timeline, plan.order)
    intermediates = {value.tensor_id: value for value in timeline.intermediates()}
    tensors = {
        row.id: PlacedTensor(row, intermediates[row.id])
        for row in plan.tensors
        if row.id in intermediates
    }
    return PlannedModel(model, plan, timeline, types, bounds, tensors, original)


def exposed_outputs(plan: Plan) -> set[str]:
    """Return the names of intermediates that the written model has as additional outputs."""
    if not plan.settings.get("expose"):
        return set()
    return {row.name for row in plan.tensors if row.pinned and not row.block}
