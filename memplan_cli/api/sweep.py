"""``memplan sweep``: plan many models at many bindings, one row each."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.request import request_of
from memplan_cli.api.sweep_processes import runner
from memplan_cli.api.sweep_tasks import run_tasks, tasks_of
from memplan_cli.core.progress import Counted, Progress, silent
from memplan_cli.core.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.request import FilePath
    from memplan_cli.reporting.commands.sweep import Row


class Rows(tuple["Row", ...]):
    """The rows of a sweep."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return one line with the number of rows, and of those that failed."""
        failed = sum(not row.passed for row in self)
        return f"<Rows: {counted(len(self), 'row')}, {failed} failed>"

    @property
    def passed(self) -> bool:
        """Whether no row is a failure."""
        return all(row.passed for row in self)


@accepts_option_names()
def sweep(
    paths: FilePath | Sequence[FilePath],
    profiles: Profiles | None = None,
    *,
    jobs: int | None = 1,
    resume: FilePath | None = None,
    config: FilePath | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Rows:
    """Plan many models at many bindings, one row each; a failure is a row.

    Args:
        paths: Models, globs, and folders that are searched.
        profiles: Values of symbols, as ``{"batch": (1, 8, 32)}``: each combination of them is a row.
        jobs: Number of processes; 1: this one. None: one per core. A script that uses more than one
            must call `sweep` below ``if __name__ == "__main__"``, since each process imports it.
        resume: A file of rows: rows that it has are not computed again, new rows are appended.
        config: A settings file.
        progress: Called after each row.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: a path names no model, or a setting that all of them share is wrong.
    """
    request, report_progress = request_of(config, options), progress or silent
    path_list = [paths] if isinstance(paths, str | Path) else paths
    values = {
        name: tuple(dict.fromkeys(numbers)) for name, numbers in (profiles or {}).items()
    }
    todo = tasks_of(
        tuple(map(Path, path_list)), values, request.overrides, request.config_file
    )
    done = count(1)

    def on_row(_: Row) -> None:
        report_progress(Counted("planning models", next(done), len(todo)))

    row_file = None if resume is None else Path(resume)
    return Rows(run_tasks(todo, runner(jobs), resume=row_file, on_row=on_row))
