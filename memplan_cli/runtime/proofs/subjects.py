"""What a proof is about: a model as it was run, and the one that was written from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.program import Program
    from memplan_cli.core.results.observations import Peaks, Validation
    from memplan_cli.runtime.simulate.predict import Executed


@dataclass(frozen=True, slots=True)
class Written:
    """A written model that is to be proved.

    Attributes:
        path: its file, which may be a trial's.
        program: what is in it, in its order.
        as_written: whether the runtime's optimisation must not touch it.
        offline: whether it holds the runtime's own graph.
        for_range: whether its sizes lie between bounds, which were said.
        verdict: on its outputs, where they were compared in another way.
    """

    path: Path
    program: Program = field(repr=False)
    as_written: bool = False
    offline: bool = False
    for_range: bool = False
    verdict: Validation | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """The original's graph as it was run, and what is predicted of it."""

    executed: Executed = field(repr=False)
    predicted: Peaks
    warnings: tuple[str, ...]
