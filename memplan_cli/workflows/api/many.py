"""Many models at once, judged or listed: `gate` and `sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.workflows.api.given import request
from memplan_cli.workflows.files.sources import is_path, on_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.progress import Progress
    from memplan_cli.reporting.findings.gate import Verdict
    from memplan_cli.reporting.findings.sweep_rows import Row
    from memplan_cli.workflows.files.sources import ModelSource
    from memplan_cli.workflows.profiles import Profiles
    from memplan_cli.workflows.request import FilePath


class Verdicts(tuple["Verdict", ...]):
    """The verdict of a gate on each model."""

    __slots__ = ()

    @property
    def passed(self) -> bool:
        """Whether every model passes."""
        return all(verdict.passed for verdict in self)


class Rows(tuple["Row", ...]):
    """The rows of a sweep."""

    __slots__ = ()

    @property
    def passed(self) -> bool:
        """Whether no row is a failure."""
        return all(row.passed for row in self)


def gate(  # noqa: PLR0913 - what the command takes, by name
    models: ModelSource | Sequence[FilePath],
    rules: Mapping[str, object] | None = None,
    *,
    baseline: FilePath | None = None,
    mode: Literal["check", "update-baseline"] = "check",
    files: Mapping[FilePath, str] | None = None,
    config: FilePath | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Verdicts:
    """Judge models or plans by a budget or a baseline; a gate that fails is a result.

    Args:
        models: A model, or several paths or globs of models and plans.
        rules: As in the section ``gate`` of a settings file: ``{"max_memory": "512MiB"}``,
            ``max_increase``, ``metric``, ``ratchet``.
        baseline: The baseline's file; None: that of the settings, or the usual name in
            the current folder if it is there.
        mode: ``update-baseline`` records the numbers in the baseline.
        files: Files to write the verdicts into, each with its format.
        config: A settings file.
        progress: Told what is being done.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: a model, plan or setting is wrong, or there is nothing to check.
    """
    from memplan_cli.reporting.commands.gate import RENDERERS
    from memplan_cli.workflows.gate import Gate, VerdictFile, gate, read_rules

    wanted = {Path(path): form for path, form in (files or {}).items()}
    wrong = next((form for form in wanted.values() if form not in RENDERERS), None)
    if wrong is not None:
        raise SettingsError(f"{wrong!r}: the formats are {', '.join(RENDERERS)}")
    written = tuple(VerdictFile(path, form, "files") for path, form in wanted.items())
    update = mode == "update-baseline"
    terms = Gate(read_rules(rules or {}), baseline, update=update, files=written)
    asked = request(config, options, progress)
    if isinstance(models, list | tuple):
        return Verdicts(gate(models, terms, asked))
    one = cast("ModelSource", models)
    if not is_path(one) and (update or baseline is not None):
        raise ModelError("a model in memory has no name in a baseline", hint="give its path")

    def work(path: Path) -> tuple[Verdict, ...]:
        return gate((path,), terms, asked)

    return Verdicts(on_files((one,), work))


def sweep(
    paths: FilePath | Sequence[FilePath],
    profiles: Profiles | None = None,
    *,
    jobs: int | None = 1,
    resume: FilePath | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Rows:
    """Plan many models at many bindings, one row each; a failure is a row.

    Args:
        paths: Models, globs, and folders that are searched.
        profiles: Values of symbols, each for a row: ``{"batch": (1, 8, 32)}``.
        jobs: Number of processes; 1: this one. None: one per core, which a script asks for
            below ``if __name__ == "__main__"`` alone.
        resume: A file of rows: those in it are not done again, new ones are added to it.
        config: A settings file.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: a path names no model, or a setting that all of them share is wrong.
    """
    from memplan_cli.workflows.sweeping.runners import runner
    from memplan_cli.workflows.sweeping.sweep import jobs_of, sweep

    asked = request(config, options)
    given = [paths] if isinstance(paths, str | Path) else paths
    several = {name: tuple(values) for name, values in (profiles or {}).items()}
    todo = jobs_of(tuple(map(Path, given)), several, asked.overrides, asked.config_file)
    kept = None if resume is None else Path(resume)
    return Rows(sweep(todo, runner(jobs), resume=kept))
