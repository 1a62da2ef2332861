"""What a process is asked of one model, written by the parent and read in the process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - a type to read by

from memplan_cli.core.bindings import FeedSpec  # noqa: TC001 - a type to read by
from memplan_cli.core.check import Tolerance
from memplan_cli.runtime.workers.session_job import SessionJob  # noqa: TC001 - a type to read by


@dataclass(frozen=True, slots=True)
class Look:
    """Runs on one set of inputs.

    Attributes:
        specs: how to draw the inputs.
        folder: where the outputs are, or go.
        kept: a folder for the outputs of a first run that was compared and differs.
    """

    specs: tuple[FeedSpec, ...]
    folder: Path
    kept: Path | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """One model, one session, and everything that is asked of it.

    Attributes:
        session: the model, its settings and its first inputs.
        looks: the inputs; the counters and the memory are those of the first.
        then: ``save``: the first run's outputs go to the folder, and later ones are compared
            with them; ``compare``: each run's are compared with what lies there.
        runs: on the first inputs; ``compared`` of them, and of the others, are compared.
        outputs: names to compare; none asks for all that the model has.
        tolerance: what is excused.
        graph: where the runtime's own graph goes, if it is wanted; without its weights.
        until: ``difference`` ends it with the first run whose outputs are not what they
            should be: nothing else is told then.
    """

    session: SessionJob
    looks: tuple[Look, ...]
    then: str = "save"
    runs: int = 3
    compared: int = 2
    outputs: tuple[str, ...] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    graph: Path | None = None
    until: str = "end"

    def at(self, look: Look) -> SessionJob:
        """Return the session's job with other inputs."""
        return replace(self.session, specs=look.specs)
