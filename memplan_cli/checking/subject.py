"""What is held against each other: a graph on the clock, its sizes, a plan, a model's notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.checking.clock import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto, ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.clock import Clock, Value
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.plan import Plan


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that a plan was made of; ``graph`` is None where a runtime made another of it."""

    graph: GraphProto | None
    sha256: str
    graph_sha256: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A written model and its plan.

    Attributes:
        model: the written model.
        plan: the plan beside it.
        clock: the model's graph on the clock.
        types: of each of the clock's regions, the type of each value.
        origin: what the plan was made of, if it is at hand.
    """

    model: ModelProto
    plan: Plan
    clock: Clock
    types: Sequence[Mapping[str, tuple[str, Shape | None]]]
    origin: Origin | None = None

    def type_of(self, value: Value) -> tuple[str, Shape | None]:
        """Return the dtype and the shape of a value, as far as the model says them.

        Where shapes were seen in a run, the model's own symbols had values there that no
        setting says: such dims are unknown.
        """
        dtype, shape = self.types[value.region.number].get(value.name, ("unknown", None))
        if value.kind is Kind.WEIGHT:
            return dtype, shape
        if value.by_flow and self.was_run:
            return dtype, None
        if shape is not None and self.was_run:
            shape = tuple(None if isinstance(dim, str) else dim for dim in shape)
        return dtype, shape

    @property
    def was_run(self) -> bool:
        """Whether the plan's settings say that shapes were seen in a run."""
        return bool(self.plan.settings.get("profile_shapes"))
