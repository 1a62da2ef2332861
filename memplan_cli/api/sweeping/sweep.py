"""Sweeps: many models at many bindings, one row each.

Jobs are data and are done anywhere: in processes here, or on the workers of a Dask
cluster. A failure is a row. With a file of rows, a sweep that was stopped goes on where it
was: a row is written whole before the next one, and what has one is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.api.files.file_names import matched, original_of
from memplan_cli.api.sweeping.names import (
    dims_of,
    inputs_of,
    reject_unknown,
    reject_unknown_inputs,
    with_own_inputs,
)
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import MemplanError, ModelError
from memplan_cli.onnx_io.interface import known_dims
from memplan_cli.reporting.commands.sweep import NUMBERS, Row, append_row, read_rows
from memplan_cli.reporting.hints import assumed_dims, over_budget

if TYPE_CHECKING:
    from memplan_cli.api.profiles import Profiles
    from memplan_cli.core.results.report import Report


@dataclass(frozen=True, slots=True)
class Job:
    """One model at one binding.

    Attributes:
        model: the file.
        dims: values of symbols, or ``LOW..HIGH`` for one plan that holds for all between.
        config: a settings file.
        overrides: settings on top of those of the files.
        missing_dims: dims that others of the sweep are bound by and this model has not.
    """

    model: str
    dims: Mapping[str, int | str] = field(default_factory=dict)
    config: str | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    missing_dims: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Say which model, as it is now, at which binding, under which settings."""
        try:
            refuse_endless(Path(self.model), ModelError)
            content = sha256(Path(self.model).read_bytes()).hexdigest()
        except (OSError, ModelError):
            content = ""
        said = [self.model, content, self.config, dict(self.dims), dict(self.overrides)]
        return sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def jobs_of(
    paths: Sequence[Path],
    profiles: Profiles,
    overrides: Mapping[str, object],
    config: Path | None = None,
) -> tuple[Job, ...]:
    """Return every model at every combination of values, and at one plan for all of them.

    A model is bound by the dims that it has.

    Raises:
        ModelError: a path names no model.
        SettingsError: the settings that all of them share are wrong, or no model has a dim.
    """
    _judge(overrides, config)
    models = found_models(paths)
    bounds = overrides.get("bounds")
    asked = dict.fromkeys((*profiles, *(bounds if isinstance(bounds, dict) else ())))
    names = {model: dims_of(model, config, overrides) for model in models if asked}
    reject_unknown("dim", asked, names.values())
    if any(overrides.get(key) for key in ("input", "inputs", "shapes")):
        reject_unknown_inputs([inputs_of(model, config, overrides) for model in models])
    where = None if config is None else str(config)
    jobs = []
    for model in models:
        there = names.get(model)
        missing = tuple(name for name in asked if there is not None and name not in there)
        own = {name: values for name, values in profiles.items() if name not in missing}
        jobs += [Job(str(model), dims, where, overrides, missing) for dims in _points(own)]
    return tuple(jobs)


def _points(profiles: Profiles) -> tuple[Mapping[str, int | str], ...]:
    """Return every combination of values, and the bounds of all of them."""
    from memplan_cli.api.profiles import bindings

    single = {name: values for name, values in profiles.items() if len(set(values)) == 1}
    found: list[Mapping[str, int | str]] = [*bindings(profiles)]
    if len(single) < len(profiles):
        found.append(
            {
                name: values[0] if name in single else f"{min(values)}..{max(values)}"
                for name, values in profiles.items()
            }
        )
    return tuple(found)


def _judge(overrides: Mapping[str, object], config: Path | None) -> None:
    """Refuse what would fail every row alike: the command is wrong then, and no model.

    Raises:
        SettingsError: an option or the settings file is not what it may be.
    """
    from memplan_cli.settings.sources import read_config, read_overrides

    read_overrides(overrides)
    if config is not None:
        read_config(config)


def found_models(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return model files, in order and once each: globs expanded, folders searched.

    Of a model in a folder that memplan has written anew beside it, only the original counts.

    Raises:
        ModelError: a folder or glob holds none.
    """
    found: dict[Path, None] = {}
    for path in paths:
        inside = matched(path)
        if path.is_dir():
            there = set(path.rglob("*.onnx"))
            inside = tuple(sorted(file for file in there if original_of(file) not in there))
        if not inside:
            raise ModelError(f"there is no *.onnx in {path}")
        found.update(dict.fromkeys(inside))
    return tuple(found)


def do_job(job: Job) -> Row:
    """Plan one model at one binding; whatever goes wrong is in the row."""
    key = job.key
    try:
        report, left = _report(job)
        return Row(
            key,
            job.model,
            job.dims,
            "failed" if (missed := over_budget(report)) else "ok",
            **_numbers(report),
            error=missed,
            missing_dims=job.missing_dims,
            missing_inputs=left,
            assumed=assumed_dims(report),
        )
    except MemplanError as error:
        return failed(job, str(error), key)
    except Exception as error:  # noqa: BLE001 - one bad model must not end the sweep
        return failed(job, f"{type(error).__name__}: {error}", key)


def failed(job: Job, reason: str, key: str = "") -> Row:
    """Return the row of a job without numbers."""
    text = " ".join(reason.split())[:500]
    return Row(
        key or job.key,
        job.model,
        job.dims,
        "failed",
        error=text,
        missing_dims=job.missing_dims,
    )


def _report(job: Job) -> tuple[Report, tuple[str, ...]]:
    """Return the report of a job, and the inputs given that its model does not take."""
    from memplan_cli.api.files.model_file import plan_model, read_model
    from memplan_cli.settings.sources import load_settings

    fixed = {name: value for name, value in job.dims.items() if isinstance(value, int)}
    between = {name: value for name, value in job.dims.items() if isinstance(value, str)}
    given = {name: value for name, value in job.overrides.items() if name != "bounds"}
    bounds = {**(job.overrides.get("bounds") or {}), **between}  # type: ignore[dict-item] # a table, as every reader of settings checks
    config = None if job.config is None else Path(job.config)
    overrides = {**given, "dims": fixed or None, "bounds": bounds or None}
    settings = load_settings(Path(job.model), config, overrides)
    file = read_model(Path(job.model))
    known = known_dims(file.model, settings.shapes.values())
    # A file of settings may say a number where this row asks for all numbers between two, and
    # may bind what other models have.
    free = {
        name: value
        for name, value in settings.dims.items()
        if name not in between and (name in fixed or name in known)
    }
    limits = {n: v for n, v in settings.bounds.items() if n in between or n in known}
    settings = replace(settings, dims=free, bounds=limits)
    settings, left = with_own_inputs(file.model, settings)
    return plan_model(file, settings).plan.report, left


def _numbers(report: Report) -> dict[str, Any]:
    found = {
        "nodes": report.model.nodes,
        "intermediates": report.model.intermediates,
        "coverage": report.coverage,
    }
    found |= {name: getattr(report.memory, name) for name in NUMBERS if name not in found}
    return found


Runner = Callable[[Sequence[Job]], Iterator[tuple[int, Row]]]
"""Does jobs and yields each one's place and row, in any order, every one once."""

Heard = Callable[[Row], None]
"""Told of each row as it comes."""


def run_jobs(
    jobs: Sequence[Job],
    runner: Runner,
    *,
    resume: Path | None = None,
    heard: Heard | None = None,
) -> tuple[Row, ...]:
    """Run all jobs and return their rows in the order of the jobs.

    Args:
        jobs: What to do.
        runner: Where to do it.
        resume: A file of rows: those in it are not done again, new ones are added to it.
        heard: Told of each new row.

    Raises:
        SettingsError: the file is no file of rows, or cannot be written.
    """
    keys = [job.key for job in jobs]
    rows = {} if resume is None else read_rows(resume)
    left = [at for at, key in enumerate(keys) if key not in rows]
    for place, row in runner([jobs[at] for at in left]):
        rows[keys[left[place]]] = row
        if resume is not None:
            append_row(resume, row)
        if heard is not None:
            heard(row)
    return tuple(rows[key] for key in keys)
