"""Models checked against budgets and baselines; a gate that fails is a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from memplan_cli.api.files.file_names import matched
from memplan_cli.api.files.output_files import refuse_targets
from memplan_cli.api.files.sources import is_path, on_files
from memplan_cli.api.process import with_asked
from memplan_cli.api.report import planned_or_stale, say_assumed, say_warnings
from memplan_cli.api.request import request_of
from memplan_cli.api.serving import range_settings
from memplan_cli.core.files import write_files
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.errors import ModelError, PlanError, SettingsError
from memplan_cli.reporting.commands.diff import compare
from memplan_cli.reporting.commands.gate import (
    NO_INCREASE,
    RuleBook,
    Rules,
    judge,
    rules_from,
    worth_recording,
)
from memplan_cli.reporting.commands.gate_report import RENDERERS
from memplan_cli.reporting.hints import path_argument
from memplan_cli.reporting.snapshot import (
    DEFAULT_NAME,
    baseline_text,
    model_key,
    read_baseline,
    refuse_plan,
    snapshot_of,
)
from memplan_cli.settings.sources import file_layers, read_overrides

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath, Request
    from memplan_cli.core.progress import Progress
    from memplan_cli.reporting.commands.gate import Verdict
    from memplan_cli.reporting.snapshot import Snapshot


SERVING_BOUND = "serving.bound"
"""The metric that no plan has: it takes the runtime to know."""


@dataclass(frozen=True, slots=True)
class VerdictFile:
    """A file for verdicts in one format; messages about the file name ``option``."""

    path: Path
    form: str
    option: str = "files"


class Verdicts(tuple["Verdict", ...]):
    """The verdict of a gate on each model."""

    __slots__ = ()

    @property
    def passed(self) -> bool:
        """Whether every model passes."""
        return all(verdict.passed for verdict in self)


@dataclass(frozen=True, slots=True)
class _Gate:
    """The arguments of `gate` that hold for all its models."""

    rules: Mapping[str, Any]
    baseline: FilePath | None
    update: bool
    files: Sequence[VerdictFile]


def read_rules(given: Mapping[str, object]) -> dict[str, Any]:
    """Return rules from what the command line says, judged as a settings file is.

    Raises:
        SettingsError: a size, a share or a metric is not one.
    """
    read = read_overrides({f"gate.{key}": value for key, value in given.items()})
    return {key.removeprefix("gate."): value for key, value in read.values.items()}


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
            ``max_increase``, ``metric``, ``ratchet``.
        baseline: The baseline's file; None: that of the settings, or the usual name in
            the current folder if it is there.
        mode: ``update-baseline`` records the numbers in the baseline.
        files: Files to write the verdicts into, each with its format.
        config: A settings file.
        progress: Called with the name of each stage.
        warn: Called with each warning of a plan.
        options: Settings by name, as for `plan`.

    Raises:
        MemplanError: a model, plan or setting is wrong, or there is nothing to check.
    """
    if isinstance(files, Mapping):
        files = [VerdictFile(Path(path), form) for path, form in files.items()]
    wrong = next((file.form for file in files if file.form not in RENDERERS), None)
    if wrong is not None:
        raise SettingsError(f"{wrong!r}: the formats are {', '.join(RENDERERS)}")
    update = mode == "update-baseline"
    terms = _Gate(read_rules(rules or {}), baseline, update, files)
    request = request_of(config, options, progress, warn)
    if isinstance(models, list | tuple):
        return Verdicts(_judged(models, terms, request))
    model = cast("ModelSource", models)
    if not is_path(model) and (update or baseline is not None):
        raise ModelError("a model in memory has no name in a baseline", hint="give its path")
    return Verdicts(on_files((model,), lambda path: _judged((path,), terms, request)))


def _judged(models: Sequence[FilePath], terms: _Gate, request: Request) -> tuple[Verdict, ...]:
    """Return the verdicts on files, and write the baseline and the files of verdicts."""
    paths = expanded(tuple(map(Path, models)))
    cases = _cases(paths, terms, request)
    _refuse_files(terms, paths, {case.terms.baseline for case in cases})
    earlier = _earlier(cases, terms)
    verdicts = []
    recorded = {place: dict(entries) for place, entries in earlier.items()}
    for case in cases:
        known = earlier[case.place]
        rules = case.terms.in_force(case.key, compared=bool(known))
        snapshot = _snapshot(case, request, rules)
        verdict = _verdict(snapshot, known.get(case.key), rules, terms)
        if verdict.recorded:
            recorded[case.place][case.key] = snapshot
        verdicts.append(verdict)
    changed = [place for place, entries in recorded.items() if entries != earlier[place]]
    contents = {place: baseline_text(recorded[place]) for place in changed if terms.update}
    contents |= {file.path: RENDERERS[file.form](tuple(verdicts)) for file in terms.files}
    if contents:
        write_files({place: text.encode() for place, text in contents.items()})
    return tuple(verdicts)


def _refuse_files(terms: _Gate, models: Sequence[Path], baselines: Collection[Path]) -> None:
    """Refuse to write over what is gated or is a plan, and two results into one file.

    Baselines are read, or written themselves: no result may go where one is.
    """
    refuse_targets({file.option: file.path for file in terms.files}, (*models, *baselines))
    for path in sorted(baselines) if terms.update else ():
        refuse_targets({"the baseline": path}, models)
        if path.exists():
            refuse_plan(path)


def expanded(models: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return every model that paths and globs mean, each once, in order.

    Raises:
        ModelError: a glob means none.
    """
    found: dict[Path, None] = {}
    for model in models:
        meant = matched(model)
        if not meant:
            raise ModelError(f"no file matches {model}")
        found.update(dict.fromkeys(meant))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the settings files of one folder and the command line ask of its models."""

    book: RuleBook
    baseline: Path
    named: bool
    """Whether somebody named the baseline."""

    def in_force(self, model: str, *, compared: bool) -> Rules:
        """Return a model's rules; where there is a baseline, nothing may grow unsaid.

        A budget alone asks for no baseline, unless somebody named one.
        """
        rules = self.book.rules_for(model)
        budget_only = rules.max_memory is not None and not self.named
        if not compared or rules.needs_baseline or budget_only:
            return rules
        return replace(rules, max_increase=NO_INCREASE)


@dataclass(frozen=True, slots=True)
class _Case:
    """One model or plan to judge: what a baseline calls it, and on which terms."""

    model: Path
    key: str
    terms: _Terms

    @property
    def place(self) -> Path:
        """The baseline's file, however it was named."""
        return self.terms.baseline.resolve()

    @property
    def needs_baseline(self) -> bool:
        """Whether the rules of this model compare with something earlier."""
        return self.terms.book.rules_for(self.key).needs_baseline


def _cases(paths: tuple[Path, ...], gate: _Gate, request: Request) -> tuple[_Case, ...]:
    """Return each model with the terms of its own folder, read once a folder."""
    folders: dict[Path, _Terms] = {}
    for path in paths:
        if path.parent not in folders:
            folders[path.parent] = _terms(path, gate, request)
    found = ((path, folders[path.parent]) for path in paths)
    return tuple(_Case(path, model_key(path, terms.baseline), terms) for path, terms in found)


def _terms(model: Path, gate: _Gate, request: Request) -> _Terms:
    values: dict[str, Any] = {}
    folder = Path.cwd()
    for layer in file_layers(model, request.config_file):
        own = {
            key.removeprefix("gate."): value
            for key, value in layer.values.items()
            if key.startswith("gate.")
        }
        if "baseline" in own:
            folder = Path(layer.source).parent
        values.update(own)
    special = values.pop("models", {})
    common = rules_from(gate.rules, rules_from(values, Rules()))
    # What the command line says holds for every model, whatever the files say of some.
    own_rules = {pattern: {**rules, **gate.rules} for pattern, rules in special.items()}
    named = values.get("baseline")
    path = folder / named if named else Path.cwd() / DEFAULT_NAME
    path = Path(gate.baseline) if gate.baseline else path
    return _Terms(RuleBook(common, own_rules), path, bool(gate.baseline or named))


def _earlier(cases: tuple[_Case, ...], gate: _Gate) -> dict[Path, dict[str, Snapshot]]:
    """Return what each baseline holds.

    Raises:
        MemplanError: one that is asked for is missing or wrong, or a folder's terms ask
            nothing of its models.
    """
    found: dict[Path, dict[str, Snapshot]] = {}
    for place in dict.fromkeys(case.place for case in cases):
        mine = [case for case in cases if case.place == place]
        path = mine[0].terms.baseline
        named = gate.baseline or any(case.needs_baseline for case in mine)
        # One that is asked for and is not there is read too: that says what is wrong with it.
        wanted = path.exists() or (named and not gate.update)
        found[place] = read_baseline(path) if wanted else {}
        if not found[place] and not gate.update:
            _refuse_nothing_to_check(mine)
    return found


def _refuse_nothing_to_check(cases: Sequence[_Case]) -> None:
    for case in cases:
        book = case.terms.book
        rules = [book.common, *(book.rules_for(pattern) for pattern in book.special)]
        if all(r.max_memory is None and not r.needs_baseline for r in rules):
            raise SettingsError(
                f"there is nothing to check {case.model} against: no baseline and no budget",
                hint="give --max-memory, or write a baseline with --update-baseline",
            )


def _verdict(
    snapshot: Snapshot, earlier: Snapshot | None, rules: Rules, gate: _Gate
) -> Verdict:
    if not gate.update or not worth_recording(snapshot, earlier, rules):
        return judge(snapshot, earlier, rules)
    # What is being recorded is not also compared with the record; a budget still is.
    fresh = judge(snapshot, None, replace(rules, max_increase=None, ratchet=False))
    seen = compare(earlier, snapshot) if earlier is not None else None
    return replace(fresh, rules=rules, difference=seen, recorded=True)


def _snapshot(case: _Case, request: Request, rules: Rules) -> Snapshot:
    """Return the numbers of a case.

    Raises:
        PlanError: a plan in a file is not that of the models beside it.
    """
    plan, stale = planned_or_stale(case.model, request)
    if stale:
        raise PlanError(
            stale[0], hint=f"`memplan optimize {path_argument(plan.report)}` makes it again"
        )
    say_warnings(case.model, plan.report.warnings, request)
    say_assumed(case.model, plan, request)
    snapshot = snapshot_of(plan, case.key, installed_runtime())
    found = with_asked(snapshot, plan, case.model, rules.metrics, request)
    if SERVING_BOUND not in rules.metrics:
        return found
    return replace(found, metrics={**found.metrics, **_served(case.model, request)})


def _served(model: Path, request: Request) -> dict[str, int]:
    """Return the most that an arena holds for all requests within the bounds given.

    Without a run, kernels' workspace is not in it.

    Raises:
        MemplanError: a plan was given and no model, or no bounds are.
    """
    if model.suffix == ".json":
        raise SettingsError(
            f"{SERVING_BOUND} is a number of a model, and {model} is a plan",
            hint="name the model, and give --bounds",
        )
    settings = request.load(model)
    timeout = DEFAULT_TIMEOUT if settings.run else None
    bound = range_settings(model, settings, timeout).serving.chosen.bound
    return {} if bound is None else {SERVING_BOUND: bound}


def installed_runtime() -> str:
    """Return the name and version of the runtime that is installed, or nothing."""
    from memplan_cli.runtime.installed import runtime_version

    version = runtime_version()
    return f"onnxruntime {version}" if version else ""
