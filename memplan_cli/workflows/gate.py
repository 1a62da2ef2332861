"""The Python twin of `memplan gate`: models in, verdicts out, the baseline kept.

Nothing here prints or exits. A gate that fails is a result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.progress import Progress, silent
from memplan_cli.errors import ModelError, PlanError, SettingsError
from memplan_cli.planning.checking.plan_file import read_plan
from memplan_cli.reporting.findings.baseline import (
    DEFAULT_NAME,
    dumps,
    key_of,
    read_baseline,
)
from memplan_cli.reporting.findings.diff import compare
from memplan_cli.reporting.findings.gate import (
    NO_INCREASE,
    RuleBook,
    Rules,
    judge,
    rules_from,
    worth_recording,
)
from memplan_cli.reporting.findings.snapshot import snapshot_of
from memplan_cli.settings.sources import layers, load_settings, read_overrides
from memplan_cli.workflows.files.file_names import matched
from memplan_cli.workflows.files.provenance import doubts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.findings.diff import Difference
    from memplan_cli.reporting.findings.gate import Verdict
    from memplan_cli.reporting.findings.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Request:
    """What to gate, and with what.

    Attributes:
        rules: rules from the command line, on top of those of the files.
        baseline: the baseline's file; None: that of the settings, or the usual name in
            the current folder if it is there.
        update: whether to record the numbers.
        config: a settings file.
        overrides: settings from the command line, for planning.
    """

    rules: Mapping[str, Any] = field(default_factory=dict)
    baseline: Path | str | None = None
    update: bool = False
    config: Path | str | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def config_file(self) -> Path | None:
        """The settings file as a path."""
        return None if self.config is None else Path(self.config)


def read_rules(given: Mapping[str, object]) -> dict[str, Any]:
    """Return rules from what the command line says, judged as a settings file is.

    Raises:
        SettingsError: a size, a share or a metric is not one.
    """
    read = read_overrides({f"gate.{key}": value for key, value in given.items()})
    return {key.removeprefix("gate."): value for key, value in read.values.items()}


def gate(
    models: Sequence[Path | str],
    request: Request,
    progress: Progress | None = None,
    warn: Progress | None = None,
) -> tuple[Verdict, ...]:
    """Judge models or plans; with ``update``, record them in the baseline.

    ``warn`` hears what the plans warn of, as `planned` says it.

    Raises:
        MemplanError: a model, plan or setting is wrong, or there is nothing to check.
    """
    cases = _cases(expanded(tuple(map(Path, models))), request)
    earlier = _earlier(cases, request)
    verdicts = []
    recorded = {place: dict(entries) for place, entries in earlier.items()}
    for case in cases:
        known = earlier[case.place]
        snapshot = _snapshot(case, request, progress, warn)
        rules = case.terms.in_force(case.key, compared=bool(known))
        verdict = _verdict(snapshot, known.get(case.key), rules, request)
        if verdict.recorded:
            recorded[case.place][case.key] = snapshot
        verdicts.append(verdict)
    changed = [place for place, entries in recorded.items() if entries != earlier[place]]
    if request.update and changed:
        from memplan_cli.core.files import write_files

        write_files({place: dumps(recorded[place]).encode() for place in changed})
    return tuple(verdicts)


def baselines(models: tuple[Path, ...], request: Request) -> tuple[Path, ...]:
    """Return every baseline that a gate of these models reads or writes, once.

    Raises:
        MemplanError: a glob means nothing, or a settings file is wrong.
    """
    cases = _cases(expanded(models), request)
    return tuple(dict.fromkeys(case.terms.baseline for case in cases))


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


def _cases(paths: tuple[Path, ...], request: Request) -> tuple[_Case, ...]:
    """Return each model with the terms of its own folder, read once a folder."""
    folders: dict[Path, _Terms] = {}
    for path in paths:
        if path.parent not in folders:
            folders[path.parent] = _terms(path, request)
    found = ((path, folders[path.parent]) for path in paths)
    return tuple(_Case(path, key_of(path, terms.baseline), terms) for path, terms in found)


def _terms(model: Path, request: Request) -> _Terms:
    values: dict[str, Any] = {}
    folder = Path.cwd()
    for layer in layers(model, request.config_file):
        own = {
            key.removeprefix("gate."): value
            for key, value in layer.values.items()
            if key.startswith("gate.")
        }
        if "baseline" in own:
            folder = Path(layer.source).parent
        values.update(own)
    special = values.pop("models", {})
    common = rules_from(request.rules, rules_from(values, Rules()))
    # What the command line says holds for every model, whatever the files say of some.
    own_rules = {pattern: {**rules, **request.rules} for pattern, rules in special.items()}
    named = values.get("baseline")
    path = folder / named if named else Path.cwd() / DEFAULT_NAME
    path = Path(request.baseline) if request.baseline else path
    return _Terms(RuleBook(common, own_rules), path, bool(request.baseline or named))


def _earlier(cases: tuple[_Case, ...], request: Request) -> dict[Path, dict[str, Snapshot]]:
    """Return what each baseline holds.

    Raises:
        MemplanError: one that is asked for is missing or wrong, or a folder's terms ask
            nothing of its models.
    """
    found: dict[Path, dict[str, Snapshot]] = {}
    for place in dict.fromkeys(case.place for case in cases):
        mine = [case for case in cases if case.place == place]
        path = mine[0].terms.baseline
        asked = request.baseline or any(case.needs_baseline for case in mine)
        # One that is asked for and is not there is read too: that says what is wrong with it.
        wanted = path.exists() or (asked and not request.update)
        found[place] = read_baseline(path) if wanted else {}
        if not found[place] and not request.update:
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
    snapshot: Snapshot, earlier: Snapshot | None, rules: Rules, request: Request
) -> Verdict:
    if not request.update or not worth_recording(snapshot, earlier, rules):
        return judge(snapshot, earlier, rules)
    # What is being recorded is not also held against the record; a budget still is.
    fresh = judge(snapshot, None, replace(rules, max_increase=None, ratchet=False))
    seen = compare(earlier, snapshot) if earlier is not None else None
    return replace(fresh, rules=rules, difference=seen, recorded=True)


def planned(
    path: Path | str,
    config: Path | str | None = None,
    overrides: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    warn: Progress | None = None,
) -> Plan:
    """Return the plan in a file, or that of a model under its settings.

    ``warn`` hears each warning of the plan, with the path before it.

    Raises:
        MemplanError: the file or a setting is wrong.
    """
    config = None if config is None else Path(config)
    plan, found = _planned(Path(path), config, overrides or {}, progress)
    _warn(path, (*plan.report.warnings, *found), warn)
    return plan


def _warn(path: Path | str, warnings: Sequence[str], warn: Progress | None) -> None:
    for warning in warnings:
        (warn or silent)(f"warning: {path}: {warning}")


def _planned(
    path: Path,
    config: Path | None,
    overrides: Mapping[str, object],
    progress: Progress | None,
) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan, and what says that one in a file is not that of the models beside it."""
    if progress:
        progress(f"planning {path}")
    if path.suffix == ".json":
        plan = read_plan(path)
        return plan, tuple(doubts(plan, path))
    from memplan_cli.workflows import api

    return api.plan(path, load_settings(path, config, overrides), progress), ()


def diff(
    before: Plan, after: Plan, names: tuple[str, str] = ("before", "after")
) -> Difference:
    """Say what changed from one plan to another."""
    return compare(snapshot_of(before, names[0]), snapshot_of(after, names[1]))


def _snapshot(
    case: _Case, request: Request, progress: Progress | None, warn: Progress | None
) -> Snapshot:
    """Return the numbers of a case.

    Raises:
        PlanError: a plan in a file is not that of the models beside it.
    """
    plan, found = _planned(case.model, request.config_file, request.overrides, progress)
    if found:
        raise PlanError(found[0], hint="run `memplan optimize` again, or gate the model")
    _warn(case.model, plan.report.warnings, warn)
    return snapshot_of(plan, case.key, installed_runtime())


def refuse_idle(paths: tuple[Path, ...], given: tuple[str, ...]) -> None:
    """Refuse settings where nothing is planned: an option that does nothing is a trap.

    Raises:
        SettingsError: all paths are plans, and settings were given.
    """
    if given and all(path.suffix == ".json" for path in paths):
        raise SettingsError(
            f"--{given[0]} decides a plan, and {paths[0]} is one already",
            hint="name the model instead",
        )


def installed_runtime() -> str:
    """Return the name and version of the runtime that is installed, or nothing."""
    from memplan_cli.runtime.installed import runtime_version

    version = runtime_version()
    return f"onnxruntime {version}" if version else ""
