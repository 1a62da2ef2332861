"""What was made of a forward model: a training step, and what it takes as it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.amounts import Memory
    from memplan_cli.training.train_step import TrainStep


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A training step that was written.

    Attributes:
        path: The file.
        step: What is in it.
        memory: What it takes at level 2, in the order that it has.
        symbolic: The same as expressions, where a size is a symbol.
    """

    path: str
    step: TrainStep
    memory: Memory
    symbolic: Mapping[str, str]
