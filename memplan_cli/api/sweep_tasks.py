"""The tasks of a sweep: one model at one binding each, done anywhere, with a row as the result.

Tasks are plain data: they are done in this process or in worker processes. A failure is a row. With a file
of rows, an interrupted sweep is resumed: each row is written as soon as it is complete, and tasks with a row
are not done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, cast

from memplan_cli.api.models.file_names import default_original, expanded_glob
from memplan_cli.core.selection import is_one_of, nearest
from memplan_cli.errors import MemplanError, ModelError, SettingsError, refuse_endless
from memplan_cli.onnx_io.interface import known_dims, value_names
from memplan_cli.reporting.commands.sweep import SIZES, Row, append_row, read_rows
from memplan_cli.reporting.hints import assumed_dims, over_budget

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.core.results.report import Report
    from memplan_cli.settings.settings import Settings

Runner = Callable[["Sequence[Task]"], Iterator[tuple[int, Row]]]
"""Does tasks; yields the index and the row of each, in any order, every task once."""


@dataclass(frozen=True, slots=True)
class Task:
    """One model at one binding.

    Attributes:
        dims: a number for each dim, or ``LOW..HIGH`` for one plan that holds for all between.
        config: a settings file.
        overrides: settings on top of those of the files.
        missing_dims: dims of the sweep that this model does not have.
    """

    model: Path
    dims: Mapping[str, int | str] = field(default_factory=dict)
    config: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    missing_dims: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The digest of everything that decides the row: the model, its dims, and all settings.

        The paths of the model and of ``config`` count, and the contents of the model file and of all
        settings files. Weight files beside the model do not: shapes are in the model file. What cannot
        be read counts as empty: the row says why it failed.
        """
        from memplan_cli.settings.sources import file_layers

        try:
            refuse_endless(self.model, ModelError)
            content = sha256(self.model.read_bytes()).hexdigest()
        except (OSError, ModelError):
            content = ""
        try:
            layers = [*file_layers(self.model, self.config)]
        except MemplanError:
            layers = []
        file_settings = [dict(layer.values) for layer in layers if layer.values]
        own = [self.model, content, self.config, dict(self.dims), dict(self.overrides)]
        parts = [*own, *file_settings]  # JSON has paths as text
        return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def tasks_of(
    paths: Sequence[Path],
    profiles: Profiles,
    overrides: Mapping[str, object],
    config: Path | None = None,
) -> tuple[Task, ...]:
    """Return the tasks of a sweep: for every model, one at each combination of the dims that it has.

    The values of a dim in ``profiles`` are all different. If a model has several combinations, a further
    task makes one plan that holds for all of them. The dims of ``profiles`` and ``overrides["bounds"]``
    that a model lacks are in the ``missing_dims`` of its tasks.

    Raises:
        ModelError: a path names no model.
        SettingsError: a setting is wrong, or no model has a dim or an input of a name.
    """
    from memplan_cli.api.models.profiles import combinations
    from memplan_cli.settings.sources import read_config, read_overrides

    # Wrong settings would fail every row: the command fails instead.
    read_overrides(overrides)  # called to raise
    if config is not None:
        read_config(config)
    models = found_models(paths)
    bounds = cast("Mapping[str, object]", overrides.get("bounds") or {})
    dims_in_options = tuple(dict.fromkeys((*profiles, *bounds)))
    asks_for_inputs = any(overrides.get(key) for key in ("input", "inputs", "shapes"))
    names_by_model: dict[Path, _Names | None] = {}
    if dims_in_options or asks_for_inputs:  # else no model has to be read here
        names_by_model = {
            model: _names_of(model, dims_in_options, config, overrides) for model in models
        }
        _refuse_unknown(tuple(names_by_model.values()))
    tasks = []
    for model in models:
        names = names_by_model.get(model)
        missing_dims = names.missing_dims if names else ()
        own_profiles = {n: values for n, values in profiles.items() if n not in missing_dims}
        tasks += [
            Task(model, dims, config, overrides, missing_dims)
            for dims in (*combinations(own_profiles), *_dims_of_common_plan(own_profiles))
        ]
    return tuple(tasks)


class _Names(NamedTuple):
    """The names in a model, and those in the settings of a sweep that the model lacks."""

    dims: frozenset[str]
    values: frozenset[str]
    missing_dims: tuple[str, ...]
    missing_inputs: tuple[str, ...]


def _names_of(
    model: Path,
    dims_in_options: Sequence[str],
    config: Path | None,
    overrides: Mapping[str, object],
) -> _Names | None:
    """Return the names of a model's dims and values, and the names in the sweep's settings that it lacks.

    None if the model cannot be read: its row in the table of the sweep will have the error.
    """
    from memplan_cli.api.models.model_file import read_model
    from memplan_cli.settings.sources import load_settings

    try:
        settings = load_settings(model, config, overrides)
        proto = read_model(model).model
        dims = known_dims(proto, settings.shapes.values())
        missing_inputs = _missing_inputs(proto, settings)
    except Exception:  # noqa: BLE001 - as in `do_task`
        return None
    missing_dims = tuple(name for name in dims_in_options if name not in dims)
    return _Names(dims, value_names(proto), missing_dims, missing_inputs)


def _refuse_unknown(names: Sequence[_Names | None]) -> None:
    """Refuse a dim or an input that every model lacks; the nearest name is in the hint.

    Nothing is refused if a model cannot be read (None), because it may have the name.
    """
    readable = [item for item in names if item is not None]
    if not readable or len(readable) < len(names):
        return
    dims = frozenset().union(*(item.dims for item in readable))
    values = frozenset().union(*(item.values for item in readable))
    for kind, known, missing in (
        ("a dim", dims, [item.missing_dims for item in readable]),
        # Each folder's settings file may name inputs of its own, so models may lack different inputs.
        ("an input", values, [item.missing_inputs for item in readable]),
    ):
        # A name that every model lacks is among those that the first model lacks.
        for name in missing[0]:
            if all(name in missing_in_model for missing_in_model in missing):
                raise SettingsError(
                    f"no model has {kind} called {name!r}", hint=nearest(name, known)
                )


def _dims_of_common_plan(profiles: Profiles) -> Iterator[Mapping[str, int | str]]:
    """Yield the dims of one plan for all combinations, if there are several.

    ``{"batch": (1, 8), "seq": (4,)}`` gives ``{"batch": "1..8", "seq": 4}``.
    """
    if any(len(values) > 1 for values in profiles.values()):
        yield {
            name: f"{min(values)}..{max(values)}" if len(values) > 1 else values[0]
            for name, values in profiles.items()
        }


def found_models(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return model files, in order and each once. Globs are expanded, folders searched.

    In a folder, models that memplan wrote beside their original are left out.

    Raises:
        ModelError: a folder or glob contains none.
    """
    models: dict[Path, None] = {}
    for path in paths:
        matches = expanded_glob(path)
        if path.is_dir():
            files = set(path.rglob("*.onnx"))
            matches = tuple(sorted(f for f in files if default_original(f) not in files))
        if not matches:
            raise ModelError(f"there is no *.onnx in {path}")
        models.update(dict.fromkeys(matches))
    return tuple(models)


def do_task(task: Task) -> Row:
    """Plan one model at one binding and return its row; every error is in the row."""
    try:
        report, missing_inputs = _plan_report(task)
    except MemplanError as error:
        return failed_row(task, error.message)
    except Exception as error:  # noqa: BLE001 - one bad model must not end the sweep
        return failed_row(task, f"{type(error).__name__}: {error}")
    budget_message = over_budget(report)
    return Row(
        task.key,
        str(task.model),
        task.dims,
        "failed" if budget_message else "ok",
        nodes=report.model.nodes,
        intermediates=report.model.intermediates,
        coverage=report.coverage,
        **{name: getattr(report.memory, name) for name in SIZES},
        error=budget_message,
        missing_dims=task.missing_dims,
        missing_inputs=missing_inputs,
        assumed=assumed_dims(report.bindings),
    )


def failed_row(task: Task, reason: str) -> Row:
    """Return the row of a task without numbers, with the reason as one line."""
    text = " ".join(reason.split())[:500]
    return Row(
        task.key,
        str(task.model),
        task.dims,
        "failed",
        error=text,
        missing_dims=task.missing_dims,
    )


def _plan_report(task: Task) -> tuple[Report, tuple[str, ...]]:
    """Plan a task; return the report, and the names of given inputs that the model does not have."""
    from memplan_cli.api.models.model_file import plan_model, read_model
    from memplan_cli.settings.sources import load_settings

    settings = load_settings(task.model, task.config, _overrides_with_dims(task))
    file = read_model(task.model)
    # Settings of a sweep may name dims and inputs that only its other models have.
    settings = _without_missing_dims(file.model, settings, task)
    missing_inputs = _missing_inputs(file.model, settings)
    settings = _without_inputs(settings, missing_inputs)
    return plan_model(file, settings).plan.report, missing_inputs


def _overrides_with_dims(task: Task) -> Mapping[str, object]:
    """Return a task's overrides with its dims: numbers as ``dims``, ranges in addition to ``bounds``."""
    numbers = {name: value for name, value in task.dims.items() if isinstance(value, int)}
    ranges = {name: value for name, value in task.dims.items() if isinstance(value, str)}
    bounds = {**cast("Mapping[str, object]", task.overrides.get("bounds") or {}), **ranges}
    return {**task.overrides, "dims": numbers or None, "bounds": bounds or None}


def _without_missing_dims(model: ModelProto, settings: Settings, task: Task) -> Settings:
    """Return settings without the numbers and bounds of dims that the model of a task does not have.

    Settings files may name such dims, which only other models of the sweep have.
    """
    own_dims = known_dims(model, settings.shapes.values())
    dims = {n: number for n, number in settings.dims.items() if n in own_dims}
    bounds = {n: limits for n, limits in settings.bounds.items() if n in own_dims}
    # The task gives a dim a number, or a range as text: ``1..8``. The range is in ``bounds``, and replaces
    # a number in a settings file.
    for name, value in task.dims.items():
        if isinstance(value, str):
            dims.pop(name, None)
    return replace(settings, dims=dims, bounds=bounds)


def run_tasks(
    tasks: Sequence[Task],
    runner: Runner,
    *,
    resume: Path | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> tuple[Row, ...]:
    """Run all tasks and return their rows in the order of the tasks.

    Tasks with a row in the file ``resume`` are skipped, and new rows are appended to it.

    Raises:
        SettingsError: the file is no file of rows, or cannot be written.
    """
    keys = [task.key for task in tasks]
    rows = {} if resume is None else read_rows(resume)
    todo = [index for index, key in enumerate(keys) if key not in rows]
    for position, row in runner([tasks[index] for index in todo]):
        rows[keys[todo[position]]] = row
        if resume is not None:
            append_row(resume, row)
        if on_row is not None:
            on_row(row)
    return tuple(rows[key] for key in keys)


def _missing_inputs(model: ModelProto, settings: Settings) -> tuple[str, ...]:
    """Return the names in the shapes and inputs of settings that a model does not have."""
    values = value_names(model)
    missing = [name for name in settings.shapes if not is_one_of(name, values)]
    if settings.inputs.given:
        from memplan_cli.onnx_io.runs.given_inputs import not_taken

        missing += not_taken(settings.inputs, model)
    return tuple(dict.fromkeys(missing))


def _without_inputs(settings: Settings, names: Sequence[str]) -> Settings:
    """Return settings without the shapes and inputs of some names, which other models of the sweep have."""
    shapes = {name: shape for name, shape in settings.shapes.items() if name not in names}
    values = {n: value for n, value in settings.inputs.values.items() if n not in names}
    # ``leave`` allows inputs in files that the model does not have.
    inputs = replace(settings.inputs, values=values, others="leave")
    return replace(settings, shapes=shapes, inputs=inputs)
