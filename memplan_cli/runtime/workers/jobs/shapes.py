"""Load a model and say what types its outputs have: the runtime's own inference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, UNOPTIMISED
from memplan_cli.runtime.workers.session import make_session

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Return ``{"types": {name: [type, dims]}}``; a dim is a number, a name or null."""
    session = make_session(Path(str(job["model"])), UNOPTIMISED, CPU)
    return {"types": {o.name: [o.type, list(o.shape or [])] for o in session.get_outputs()}}
