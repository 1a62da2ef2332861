"""Validation of a written model: the verdict on its outputs, and its measured memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.report import RuntimeFacts


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict on a written model; ``runtime`` where it was measured too."""

    validation: Validation
    runtime: RuntimeFacts | None = None

    @property
    def passed(self) -> bool:
        """Whether everything that was asked for holds."""
        return self.validation.passed
