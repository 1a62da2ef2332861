"""What was made of a forward model: a training step, and what it takes in its own order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.results.recomputed import Recompute
from memplan_cli.reporting.findings.budget import missed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.amounts import Memory
    from memplan_cli.training.train_step import TrainStep


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A training step, which was written unless it misses the budget that it was given.

    Attributes:
        path: The file.
        step: What is in it.
        memory: What it takes at level 2, in the order that it has.
        symbolic: The same as expressions, where a size is a symbol.
        recompute: What is computed again, and whether that is enough.
    """

    path: str
    step: TrainStep
    memory: Memory
    symbolic: Mapping[str, str]
    recompute: Recompute = field(default_factory=Recompute)

    @property
    def missed(self) -> str:
        """What the best step found takes beyond its budget; nothing where it was written."""
        return missed(self.memory.resident or 0, self.recompute)
