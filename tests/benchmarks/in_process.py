"""Do the runtime's jobs in a benchmark's own worker process: thousands of models, one import."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.runtime.workers import worker

if TYPE_CHECKING:
    from collections.abc import Mapping


def keep_jobs_here() -> None:
    """From now on no job gets a process of its own; a crash takes this one along."""
    worker.start_script = _start


class _Done(worker.Job):
    """A job that was done when it was started."""

    def __init__(self, found: worker.Outcome) -> None:
        self._found = found

    def end(self) -> None:
        """Leave nothing behind."""


def _start(
    arguments: list[str],
    job: Mapping[str, object],
    *,
    timeout: float,
    about: worker.About | None = None,
) -> worker.Job:
    del timeout, about
    return _Done(_run(arguments, job))


def _run(arguments: list[str], job: Mapping[str, object]) -> worker.Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        worker.main(arguments[-1], str(folder))
        answer = json.loads((folder / "result.json").read_text())
    return worker.Outcome(answer["how"], answer["result"], answer["reason"])
