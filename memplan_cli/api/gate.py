"""``memplan gate``: models or plans checked against budgets and baselines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from memplan_cli.api.model_or_plan import (
    is_plan_file,
    plan_and_stale_warnings,
    reject_settings_of_plans,
    warn_of_plan,
)
from memplan_cli.api.models.file_names import expanded_glob
from memplan_cli.api.models.sources import is_path, model_paths
from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.output.output_files import refuse_targets
from memplan_cli.api.process import plan_with_prediction, process_or_obstacle
from memplan_cli.api.request import request_of
from memplan_cli.core.files import write_files
from memplan_cli.core.quantities import counted
from memplan_cli.errors import ModelError, PlanError, SettingsError
from memplan_cli.reporting.commands.diff import compare
from memplan_cli.reporting.commands.gate import (
    DEFAULT_METRICS,
    NO_INCREASE,
    RuleBook,
    Rules,
    judge,
    metric_value,
    metrics_to_check,
    ratchet_allows_recording,
    rules_from,
)
from memplan_cli.reporting.commands.gate_report import RENDERERS
from memplan_cli.reporting.hints import path_argument
from memplan_cli.reporting.snapshot import (
    DEFAULT_NAME,
    baseline_text,
    metrics_of,
    model_key,
    read_baseline,
    refuse_plan,
    snapshot_of,
)
from memplan_cli.settings.keys import MODEL_RULES, known_key_hint
from memplan_cli.settings.sources import file_layers, read_overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath, Request
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.commands.gate import Verdict
    from memplan_cli.reporting.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class VerdictFile:
    """A file to write verdicts into.

    Attributes:
        form: the format, a key of `RENDERERS`.
        option: what error messages call the file.
    """

    path: Path
    form: str
    option: str = "files"


class Verdicts(tuple["Verdict", ...]):
    """The verdict of a gate on each model."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return one line with the number of models, and the first ones that fail."""
        failed = [verdict.snapshot.model for verdict in self if not verdict.passed]
        names = ", ".join(map(repr, failed[:3])) + (", ..." if failed[3:] else "")
        failures = f", {len(failed)} failed: {names}" if failed else ", passed"
        return f"<Verdicts: {counted(len(self), 'model')}{failures}>"

    def __str__(self) -> str:
        """Return the text that the command prints: each metric with its numbers, and why a model fails."""
        return RENDERERS["text"](self)

    @property
    def passed(self) -> bool:
        """Whether every model passes."""
        return all(verdict.passed for verdict in self)


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of `gate` that hold for all models.

    Attributes:
        rules: rules that apply to every model, whatever the settings files contain.
        baseline: the baseline's file; None: that of the settings files, or the default.
        updates: whether baselines are written.
        verdict_files: the files to write verdicts into.
    """

    rules: Mapping[str, Any]
    baseline: FilePath | None
    updates: bool
    verdict_files: Sequence[VerdictFile]


@dataclass(frozen=True, slots=True)
class _FolderRules:
    """What the settings files of one folder and the call ask of the models in it.

    Attributes:
        book: the rules of each model.
        baseline: the path of the baseline's file, for messages as the user named it.
        has_named_baseline: whether the call or a settings file names this file; otherwise it has the
            default name.
    """

    book: RuleBook
    baseline: Path
    has_named_baseline: bool

    def rules_with_recorded_baseline(self, model: str) -> Rules:
        """Return the rules for a model once models are recorded in the baseline.

        By default the model must not grow. The user's rules replace this default if they already compare the
        model with the baseline, or if they limit its memory and the user names no baseline.
        """
        rules = self.book.rules_for(model)
        has_only_limit = rules.max_memory is not None and not self.has_named_baseline
        if rules.needs_baseline or has_only_limit:
            return rules
        return replace(rules, max_increase=NO_INCREASE)


@dataclass(frozen=True, slots=True)
class _Case:
    """The file of one model or plan to judge, and its name in a baseline."""

    model: Path
    key: str
    folder_rules: _FolderRules

    @property
    def absolute_baseline(self) -> Path:
        """The absolute path of the baseline's file: the same however folders name the file."""
        return self.folder_rules.baseline.resolve()


def read_rules(given: Mapping[str, object]) -> dict[str, Any]:
    """Return rules given by options or in code, checked like the section of a settings file.

    A size that code gives as an integer is a number of bytes.

    Raises:
        SettingsError: a rule is unknown, or its value is not valid.
    """
    for key in given:
        if key not in MODEL_RULES:
            raise SettingsError(f"unknown rule {key!r}", hint=known_key_hint(key, MODEL_RULES))
    read = read_overrides({f"gate.{key}": value for key, value in given.items()})
    return {key.removeprefix("gate."): value for key, value in read.values.items()}


@accepts_option_names(update_baseline={"mode": "update-baseline"})
def gate(
    models: ModelSource | Sequence[FilePath],
    rules: Mapping[str, object] | None = None,
    *,
    baseline: FilePath | None = None,
    mode: Literal["check", "update-baseline"] = "check",
    files: Mapping[FilePath, str] | Sequence[VerdictFile] = (),
    config: FilePath | None = None,
    progress: Progress | None = None,
    warn: Progress | None = None,
    **options: object,
) -> Verdicts:
    """Judge models or plans by a budget or a baseline; a gate that fails is a result.

    The baseline and all files of verdicts are written together, or none of them is.

    Args:
        models: A model, or several paths or globs of models and plans.
        rules: As in the section ``gate`` of a settings file: ``{"max_memory": "512MiB"}``,
            ``max_increase``, ``metric``, ``ratchet``. A rule may also be passed as a keyword, which
            `accepts_option_names` moves here.
        baseline: The baseline's file; None: that of the settings, or the usual name in
            the current folder if it is there.
        mode: ``update-baseline`` records the numbers; so does ``update_baseline=True``.
        files: Files to write the verdicts into, each with its format.
        config: A settings file.
        progress: Called with the name of each stage.
        warn: Called with each warning of a plan.
        options: Settings by name, as for `plan`, without the rules.

    Raises:
        MemplanError: a model, plan or setting is wrong, or there is nothing to check.
    """
    if isinstance(files, Mapping):
        files = [VerdictFile(Path(path), form) for path, form in files.items()]
    wrong = next((file.form for file in files if file.form not in RENDERERS), None)
    if wrong is not None:
        raise SettingsError(f"{wrong!r}: the formats are {', '.join(RENDERERS)}")
    if mode not in ("check", "update-baseline"):
        raise SettingsError(
            f"there is no mode {mode!r}", hint="it is check or update-baseline"
        )
    updates = mode == "update-baseline"
    call = _Call(read_rules(rules or {}), baseline, updates, files)
    request = request_of(config, options, progress, warn)
    read_overrides(request.overrides)  # called to refuse wrong settings before a file is read
    if isinstance(models, list | tuple):  # paths and globs
        return Verdicts(_judge_files(expanded(tuple(map(Path, models))), call, request))
    model = cast("ModelSource", models)  # one path or glob, or a model in memory
    if not is_path(model) and (updates or baseline is not None):
        raise ModelError("a model in memory has no name in a baseline", hint="give its path")
    with model_paths(model) as paths:
        verdicts = _judge_files(expanded((paths.path,)), call, request)
        return Verdicts(paths.without_temporary_folder(verdicts))


def expanded(models: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return every file that paths and globs stand for, each once, in order.

    Raises:
        ModelError: a glob matches no file.
    """
    files: dict[Path, None] = {}
    for model in models:
        matches = expanded_glob(model)
        if not matches:
            raise ModelError(f"no file matches {model}")
        files.update(dict.fromkeys(matches))
    return tuple(files)


def _judge_files(
    paths: tuple[Path, ...], call: _Call, request: Request
) -> tuple[Verdict, ...]:
    """Return the verdict on each model or plan file; write the baselines and the files of verdicts.

    First the rules of each folder are read, from the call and the folder's settings files. The rules also
    name the baseline, a file with the earlier numbers of models. Then each model is judged.

    Raises:
        MemplanError: as for `gate`; nothing was written.
    """
    # Plans take no options except a settings file, whose rules apply to them too.
    options_except_config = replace(request, config=None).option_names
    reject_settings_of_plans(paths, options_except_config)
    folders: dict[Path, _FolderRules] = {}
    for path in paths:
        if path.parent not in folders:
            folders[path.parent] = _read_folder_rules(path, call, request)
    cases = tuple(
        _Case(path, model_key(path, folders[path.parent].baseline), folders[path.parent])
        for path in paths
    )
    _refuse_overwriting(call, cases)
    # By absolute path: two folders may name one baseline by different relative paths.
    entries_by_baseline = _read_baselines(cases, call)
    verdicts = [
        _judge_case(case, entries_by_baseline[case.absolute_baseline], call, request)
        for case in cases
    ]
    contents = _new_baselines(cases, verdicts, entries_by_baseline)
    contents |= {
        file.path: RENDERERS[file.form](tuple(verdicts)) for file in call.verdict_files
    }
    if contents:
        write_files({path: text.encode() for path, text in contents.items()})
    return tuple(verdicts)


def _new_baselines(
    cases: Sequence[_Case],
    verdicts: Sequence[Verdict],
    earlier: Mapping[Path, Mapping[str, Snapshot]],
) -> dict[Path, str]:
    """Return the text of each baseline in which a verdict has recorded other numbers, by its path.

    A baseline keeps its earlier entries, except those that are recorded anew.
    """
    entries_by_path = {path: dict(entries) for path, entries in earlier.items()}
    for case, verdict in zip(cases, verdicts, strict=True):
        if verdict.recorded:
            entries_by_path[case.absolute_baseline][case.key] = verdict.snapshot
    return {
        path: baseline_text(entries)
        for path, entries in entries_by_path.items()
        if entries != earlier[path]
    }


def _refuse_overwriting(call: _Call, cases: Sequence[_Case]) -> None:
    """Refuse to write a verdict over a file that is read or written, or a baseline over a model or a plan."""
    models = [case.model for case in cases]
    baselines = {case.folder_rules.baseline for case in cases}
    verdict_files = {file.option: file.path for file in call.verdict_files}
    # This refuses two verdicts in one file too.
    refuse_targets(verdict_files, (*models, *baselines))
    if not call.updates:  # baselines are only read
        return
    for path in sorted(baselines):
        refuse_targets({"the baseline": path}, models)
        if path.exists():
            refuse_plan(path)  # a baseline must not replace a plan


def _read_folder_rules(model: Path, call: _Call, request: Request) -> _FolderRules:
    """Return the rules for the folder of a model, from its settings files and the call."""
    values: dict[str, Any] = {}
    for layer in file_layers(model, request.config_file):
        own: dict[str, Any] = {
            key.removeprefix("gate."): value
            for key, value in layer.values.items()
            if key.startswith("gate.")
        }
        if own.get("baseline"):
            # The path is relative to the settings file that contains it.
            own["baseline"] = Path(layer.source).parent / own["baseline"]
        # A later file replaces keys of earlier ones, also ``models`` as a whole.
        values.update(own)
    baseline_of_files = values.pop("baseline", None)
    named_baseline = call.baseline or baseline_of_files
    rules_by_pattern = values.pop("models", {})
    # The other values are rules. Those of the call override all others.
    common = rules_from({**values, **call.rules}, Rules())
    # A model whose name fits a pattern has these rules on top of the common ones.
    special = {pattern: {**rules, **call.rules} for pattern, rules in rules_by_pattern.items()}
    return _FolderRules(
        book=RuleBook(common, special),
        baseline=Path(named_baseline or DEFAULT_NAME),
        has_named_baseline=bool(named_baseline),
    )


def _read_baselines(cases: tuple[_Case, ...], call: _Call) -> dict[Path, dict[str, Snapshot]]:
    """Return the entries of each baseline, by its absolute path; none for a file that does not exist.

    A file that does not exist is an error if the call names it, or if a rule compares with it, except when
    the call updates baselines.

    Raises:
        MemplanError: a baseline is wrong, or missing and needed, or there are neither a baseline nor
            rules for some models.
    """
    entries_by_path: dict[Path, dict[str, Snapshot]] = {}
    for absolute_path in dict.fromkeys(case.absolute_baseline for case in cases):
        own_cases = [case for case in cases if case.absolute_baseline == absolute_path]
        path = own_cases[0].folder_rules.baseline  # the same file, as the user named it
        is_compared = any(
            case.folder_rules.book.rules_for(case.key).needs_baseline for case in own_cases
        )
        must_exist = (call.baseline or is_compared) and not call.updates
        entries = read_baseline(path) if must_exist or path.exists() else {}
        entries_by_path[absolute_path] = entries
        if not entries and not call.updates:
            _refuse_nothing_to_check(own_cases)
    return entries_by_path


def _refuse_nothing_to_check(cases: Sequence[_Case]) -> None:
    """Refuse models in whose folder no rule sets a limit or needs a baseline.

    It is enough that a rule for another model of the folder does.
    """
    for case in cases:
        book = case.folder_rules.book
        rules = [book.common, *(book.rules_for(pattern) for pattern in book.special)]
        if all(r.max_memory is None and not r.needs_baseline for r in rules):
            raise SettingsError(
                f"there is nothing to check {case.model} against: neither a limit nor a baseline",
                hint="give --max-memory SIZE, in Python max_memory, or record a baseline with "
                "--update-baseline",
            )


def _judge_case(
    case: _Case, entries: Mapping[str, Snapshot], call: _Call, request: Request
) -> Verdict:
    """Plan a model, or read a plan, and return the verdict on its numbers.

    ``entries`` are the baseline's numbers by model. `_judge_new_entry` judges numbers that may be recorded.

    Raises:
        PlanError: a plan in a file is not that of the models beside it.
        UnknownSizeError: a metric to check or to record is unknown.
    """
    plan, stale = plan_and_stale_warnings(case.model, request)
    if stale:
        raise PlanError(
            stale[0], hint=f"`memplan optimize {path_argument(plan.report)}` makes it again"
        )
    warn_of_plan(case.model, plan, request)
    earlier = entries.get(case.key)
    folder = case.folder_rules
    if entries:  # by default, no model may grow above what a baseline records
        rules = folder.rules_with_recorded_baseline(case.key)
    else:
        rules = folder.book.rules_for(case.key)
    snapshot = take_snapshot(
        case.model, plan, case.key, request, rules, earlier, is_recorded=call.updates
    )
    # Numbers that the rule ``ratchet`` forbids to record, since they grew, are judged as in a check.
    if call.updates and ratchet_allows_recording(snapshot, earlier, rules):
        return _judge_new_entry(snapshot, earlier, rules, folder.baseline)
    return judge(snapshot, earlier, rules)


def _judge_new_entry(
    snapshot: Snapshot, earlier: Snapshot | None, rules: Rules, baseline: Path
) -> Verdict:
    """Return the verdict on numbers that are to replace ``earlier``, the entry of a model in a baseline.

    Only the limit ``max_memory`` is judged: the numbers may have grown by any amount. Numbers above the
    limit fail, and are not recorded.

    Raises:
        UnknownSizeError: a metric with a limit is unknown, or one that later checks will compare.
    """
    limit_alone = replace(rules, max_increase=None, ratchet=False)
    verdict = judge(snapshot, None, limit_alone)
    for name in snapshot.checked:  # the metrics that later checks will compare
        metric_value(snapshot, name)  # raises if the metric is unknown
    return replace(
        verdict,
        checked=tuple(dict.fromkeys((*verdict.checked, *snapshot.checked))),
        difference=None if earlier is None else compare(earlier, snapshot),
        recorded_in=str(baseline) if verdict.passed else "",
    )


def take_snapshot(
    path: Path,
    plan: Plan,
    key: str,
    request: Request,
    rules: Rules,
    earlier: Snapshot | None = None,
    *,
    is_recorded: bool = False,
) -> Snapshot:
    """Return the numbers of a model or plan file, and the names of the metrics to check.

    The memory of a model's process is predicted only if it is checked, recorded, or compared with ``earlier``,
    because the prediction takes a session. If the prediction fails, the snapshot has the reason.

    Args:
        path: the file.
        plan: the plan in it, or of the model in it.
        key: the name of the file in a baseline.
        request: has the settings that ``plan`` was made with.
        rules: which metrics are checked.
        earlier: the file's entry in the baseline; None if it has none.
        is_recorded: whether the snapshot will be an entry of a baseline.

    Raises:
        MemplanError: the file or a setting is wrong.
    """
    metrics_of_rules = rules.metrics or DEFAULT_METRICS
    is_process_checked = any(name.startswith("process.") for name in metrics_of_rules)
    process_memory, process_obstacle = None, ""
    if (is_process_checked or is_recorded or earlier is not None) and not is_plan_file(path):
        settings = request.load(path)
        process_memory, process_obstacle = process_or_obstacle(path, settings, plan)
    # Recorded and shown, since a forgotten settings file is a usual reason for other numbers.
    settings_files = tuple(
        os.path.relpath(layer.source)
        for layer in file_layers(path, request.config_file)
        if layer.values  # the file sets something
    )
    snapshot = snapshot_of(plan, key, installed_runtime(), process_memory, settings_files)
    checked_metrics = metrics_to_check(snapshot, rules, earlier)
    # The snapshot of a model has no predicted peaks yet: they are costly, so only checked ones are added.
    predicted_peaks = _predicted_metrics(path, checked_metrics, request)
    return replace(
        snapshot,
        metrics={**snapshot.metrics, **predicted_peaks},
        checked=checked_metrics,
        process_obstacle=process_obstacle,
    )


def _predicted_metrics(
    path: Path, checked: Sequence[str], request: Request
) -> Mapping[str, int]:
    """Return the checked metrics ``predicted.*`` of a model file, which are peaks of the planned model, by name.

    Empty for a plan file, whose own report has such metrics. A metric without a value is left out.

    Raises:
        MemplanError: the model does not load.
    """
    names = [name for name in checked if name.startswith("predicted.")]
    if not names or is_plan_file(path):
        return {}
    report = plan_with_prediction(path, request.load(path)).report
    return {name: size for name, size in metrics_of(report).items() if name in names}


def installed_runtime() -> str:
    """Return the name and version of the installed ONNX Runtime; empty if there is none."""
    from memplan_cli.runtime.installed import runtime_version

    version = runtime_version()
    return f"onnxruntime {version}" if version else ""
