"""Do the runtime's jobs in a benchmark's own worker process: thousands of models, one import."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.runtime.workers import worker

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json


def keep_jobs_here() -> None:
    """From now on no job gets a process of its own; a crash takes this one along."""
    worker.Job = _Done  # type: ignore[misc]


class _Done(worker.Job):
    """A job that is done when it is started."""

    def __init__(self, function: str, content: Json, **options: object) -> None:
        del options
        self._known_outcome = _run(function, content)

    def end(self) -> None:
        """Leave nothing behind."""


def _run(function: str, content: Json) -> worker.Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(content))
        worker.main(function, str(folder))
        answer = json.loads((folder / "result.json").read_text())
    return worker.Outcome(answer["how"], answer["result"], answer["reason"])
