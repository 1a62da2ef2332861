"""A training step that was made from a forward model, and the memory that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.json_types import Count  # noqa: TC001 - a type to read by
from memplan_cli.core.results.memory import Memory  # noqa: TC001 - a type to read by
from memplan_cli.core.results.rewrites import Recompute
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.features.training.train_step import TrainStep  # noqa: TC001 - a type to read by
from memplan_cli.reporting.hints import budget_message

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A training step, which was written unless it misses its budget.

    Attributes:
        path: its file.
        step: the training step.
        memory: its bytes at level 2, in its own order.
        symbolic: expressions for bytes that are null because a size is symbolic.
        recompute: nodes that run twice, and whether that met the budget.
        parameters: the trained weights.
        loss: the tensor of the loss.
        running: statistics that are updated without gradients.
        state: the inputs of the optimizer's state.
        tied: trained weights that several nodes read, and how many.
        not_trained: weights that are not trained, and why.
        written: whether the file was written.
    """

    json_keys: ClassVar[Keys] = (
        "path",
        "nodes",
        "parameters",
        ("loss", "step.loss"),
        "running",
        "state",
        ("tied", "step.shared"),
        ("not_trained", "step.fixed"),
        "memory",
        "symbolic",
        "recompute",
        "written",
    )

    path: str
    step: TrainStep
    memory: Memory
    symbolic: Mapping[str, str]
    recompute: Recompute = field(default_factory=Recompute)

    @property
    def missed(self) -> str:
        """Return by how much the smallest step exceeds its budget; empty: it was written."""
        return budget_message(self.memory.resident or 0, self.recompute)

    @property
    def written(self) -> bool:
        """Whether the step is within its budget, so that its file was written."""
        return not self.missed

    @property
    def nodes(self) -> Count:
        """Return the number of nodes."""
        return len(self.step.model.graph.node)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the trained weights."""
        return tuple(parameter.name for parameter in self.step.parameters)

    @property
    def running(self) -> tuple[str, ...]:
        """Return the names of the statistics that are updated without gradients."""
        return tuple(parameter.origin for parameter in self.step.running)

    @property
    def state(self) -> tuple[str, ...]:
        """Return the inputs of the optimizer's state."""
        return tuple(self.step.state)
