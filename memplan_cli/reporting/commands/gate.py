"""The verdict of `memplan gate` on one model: a snapshot is checked against rules and a baseline.

Nothing here reads a file or prints. A check that fails is a result, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from memplan_cli.core.binding_options import binding_options
from memplan_cli.core.quantities import Increase, format_change, format_size
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.errors import PlanError, UnknownSizeError
from memplan_cli.reporting.commands.diff import (
    Change,
    Difference,
    changed_conditions,
    compare,
    is_other_version,
    largest_first,
)
from memplan_cli.reporting.snapshot import Snapshot, known_share, metric_label
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_BUDGET_METRIC = "process.total"
"""``max_memory`` limits this metric unless rules name others."""

DEFAULT_METRICS = ("process.total", "planned")
"""These are compared with a baseline unless it, or rules, name others."""

_DEFAULT_OF_PLANS = ("planned",)
"""These are compared with a plan in place of a baseline, which names no metrics."""

NO_INCREASE = Increase()
"""The increase that a baseline allows by default: none, because plans are deterministic."""


_MEASURED_NOISE_SHARE, _MEASURED_NOISE_BYTES = 0.02, 1_000_000
"""Process memory of one model differs between two processes by up to the larger of both."""

_PREDICTED_NOISE_SHARE, _PREDICTED_NOISE_BYTES = 0.001, 256 * 1024
"""A predicted process grows by up to the larger of both with changes that add no tensor data: a node
takes some 4 KiB in a session, whatever it computes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of one model.

    Attributes:
        metrics: the metrics that have these limits. Empty: `DEFAULT_BUDGET_METRIC` has ``max_memory``,
            and the metrics of the baseline have the others.
        max_memory: the most bytes of each metric; None: no limit.
        max_increase: the most that each metric may grow since the baseline.
        ratchet: whether a gain must be recorded in the baseline, so that it is not lost again.
        allow_version_change: whether numbers of another version of the runtime are compared.
    """

    metrics: tuple[str, ...] = ()
    max_memory: int | None = None
    max_increase: Increase | None = None
    ratchet: bool = False
    allow_version_change: bool = False

    @property
    def needs_baseline(self) -> bool:
        """Whether a rule compares with a baseline."""
        return self.max_increase is not None or self.ratchet

    @property
    def required(self) -> tuple[str, ...]:
        """Return the metrics that must be known without a baseline: ``max_memory`` limits them, if given."""
        return self.metrics or (() if self.max_memory is None else (DEFAULT_BUDGET_METRIC,))

    def compared(self, earlier: Snapshot) -> tuple[str, ...]:
        """Return the metrics that are compared with a model's entry in the baseline."""
        return self.metrics or earlier.checked or _DEFAULT_OF_PLANS


class Finding(Enum):
    """A kind of finding; its value is the rule id in every machine-readable format."""

    OVER_BUDGET = "over-budget"
    INCREASE = "increase"
    NOT_RECORDED = "gain-not-recorded"
    NO_BASELINE = "no-baseline"
    OTHER_CONDITIONS = "other-conditions"
    PARTIAL = "partial"

    @property
    def fails(self) -> bool:
        """Whether a finding of this kind makes the gate fail; the other kinds are remarks."""
        return self not in (Finding.OTHER_CONDITIONS, Finding.PARTIAL)

    @property
    def level(self) -> str:
        """Return the severity, as machine-readable formats name it."""
        return "error" if self.fails else "warning"


MEANINGS: Mapping[Finding, str] = {
    Finding.OVER_BUDGET: "A metric is above its limit, or the plan is over its budget.",
    Finding.INCREASE: "A metric grew by more than allowed since the baseline.",
    Finding.NOT_RECORDED: "A metric is below the baseline, and with a ratchet the gain must be recorded.",
    Finding.NO_BASELINE: "The baseline has no entry for the model.",
    Finding.OTHER_CONDITIONS: "The baseline was made under different conditions.",
    Finding.PARTIAL: "Some sizes are unknown, so that totals are too small.",
}


@dataclass(frozen=True, slots=True)
class Result:
    """One finding about a model.

    Attributes:
        finding: the rule that it is about.
        message: the finding in a sentence.
        metric: the metric that it is about; null: no single metric.
        actual: the value of the metric.
        limit: the largest value that is allowed.
        before: the value in the baseline.
    """

    json_keys: ClassVar[Keys] = (
        ("rule", "finding"),
        ("level", "finding.level"),
        "message",
        "metric",
        "actual",
        "limit",
        "before",
    )

    finding: Finding
    message: str
    metric: str | None = None
    actual: int | None = None
    limit: int | None = None
    before: int | None = None

    @property
    def fails(self) -> bool:
        """Whether the finding makes the gate fail."""
        return self.finding.fails


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the gate on one model.

    Attributes:
        snapshot: the model's numbers.
        results: the findings.
        checked: the metrics that were checked or recorded.
        difference: the changes since the baseline; null: there is no baseline.
        recorded_in: the baseline that the model's numbers were written to; empty: they were not.
    """

    json_keys: ClassVar[Keys] = (
        ("model", "snapshot.model"),
        "passed",
        "recorded",
        ("coverage", "snapshot.coverage"),
        ("partial", "snapshot.partial"),
        ("dims", "snapshot.dims"),
        ("settings_files", "snapshot.settings_files"),
        "metrics",
        "results",
        "difference",
    )

    snapshot: Snapshot
    checked: tuple[str, ...]
    results: tuple[Result, ...] = ()
    difference: Difference | None = None
    recorded_in: str = ""

    @property
    def recorded(self) -> bool:
        """Whether the model's numbers were written to a baseline."""
        return bool(self.recorded_in)

    @property
    def passed(self) -> bool:
        """Whether no finding makes the gate fail."""
        return not any(result.fails for result in self.results)

    @property
    def metrics(self) -> Mapping[str, int | None]:
        """Return the checked metrics; None: unknown."""
        return {name: self.snapshot.metrics.get(name) for name in self.checked}

    def failures(self, metric: str) -> tuple[Result, ...]:
        """Return the findings that make the gate fail for a metric; those without one count for all."""
        return tuple(
            result
            for result in self.results
            if result.fails and result.metric in (metric, None)
        )

    def causes(self) -> tuple[Change, ...]:
        """Return the changes since the baseline that explain the failed metrics.

        If no metric failed, as for a model whose new numbers are recorded, they explain all checked metrics.
        """
        if self.difference is None:
            return ()
        failed = [name for name in self.checked if self.failures(name)]
        changes: dict[Change, None] = {}
        for name in failed or self.checked:
            changes |= dict.fromkeys(self.difference.causes(name))
        return largest_first(changes)


@dataclass(frozen=True, slots=True)
class GateVerdicts:
    """The verdicts of a gate on several models."""

    json_keys: ClassVar[Keys] = ("passed", "models")

    models: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether the gate passes for every model."""
        return all(verdict.passed for verdict in self.models)


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The rules of several models.

    Attributes:
        common: the rules of every model.
        special: path or glob -> settings that replace the common ones, as in a settings file.
    """

    common: Rules = field(default_factory=Rules)
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def rules_for(self, model: str) -> Rules:
        """Return the rules of a model: the common ones, overridden by those of matching patterns.

        A pattern matches if it is the model's path in the baseline, the name of its file, or a glob
        for the path. Later patterns override earlier ones.
        """
        rules = self.common
        for pattern, own in self.special.items():
            if pattern in (model, model.rpartition("/")[2]) or fnmatchcase(model, pattern):
                rules = rules_from(own, rules)
        return rules


def rules_from(values: Mapping[str, Any], base: Rules) -> Rules:
    """Return ``base`` with the values of a settings file or the command line; others are ignored."""
    names = ("max_memory", "max_increase", "ratchet", "allow_version_change")
    rules = {key: values[key] for key in names if key in values}
    if "metric" in values:
        rules["metrics"] = values["metric"]
    return replace(base, **rules)


def judge(snapshot: Snapshot, earlier: Snapshot | None, rules: Rules) -> Verdict:
    """Check a model's snapshot against its rules and its entry in the baseline, if there is one.

    Raises:
        UnknownSizeError: a metric of the rules is unknown.
        PlanError: the entry was made for other sizes, another level, target, phase or version of the
            runtime, or its process was measured and this one is predicted.
    """
    results = [*_budget_results(snapshot, rules)]
    difference = None
    checked = rules.required  # names of metrics
    if earlier is not None:
        checked = tuple(dict.fromkeys((*checked, *rules.compared(earlier))))
        _refuse_unlike(snapshot, earlier, rules)
        difference = compare(earlier, snapshot)
        results += _baseline_results(snapshot, earlier, rules)
        for condition in changed_conditions(earlier, snapshot):
            message = (
                f"the baseline was made with {condition.name} {condition.before}, "
                f"this with {condition.after}"
            )
            results.append(Result(Finding.OTHER_CONDITIONS, message))
    elif rules.needs_baseline:
        message = f"the baseline has no entry for {snapshot.model}: run with --update-baseline"
        results.append(Result(Finding.NO_BASELINE, message))
    if snapshot.partial:
        message = f"totals are partial: {known_share(snapshot.coverage)}"
        results.append(Result(Finding.PARTIAL, message))
    # If nothing is checked, the verdict lists the metrics that --update-baseline would record.
    listed = checked or metrics_to_check(snapshot, rules)
    return Verdict(snapshot, checked=listed, results=tuple(results), difference=difference)


def metrics_to_check(
    snapshot: Snapshot, rules: Rules, earlier: Snapshot | None = None
) -> tuple[str, ...]:
    """Return the names of the metrics to be checked, for a model's new entry in the baseline.

    ``earlier`` is the entry that the new one replaces.
    """
    # The user's metrics are listed even if the snapshot lacks one: `metric_value` then raises an error.
    if rules.metrics:
        return rules.metrics
    if earlier is not None and earlier.checked:
        return earlier.checked
    # Only default metrics that the snapshot has: ``process.total`` needs a run or a prediction of the process.
    return tuple(name for name in DEFAULT_METRICS if name in snapshot.metrics)


_UNLIKE = ("sizes", "level", "target", "phase", "runtime")
"""Conditions under which numbers are not comparable if they differ."""


def _refuse_unlike(snapshot: Snapshot, earlier: Snapshot, rules: Rules) -> None:
    """Refuse a model's entry in the baseline that was made under conditions that do not compare.

    A runtime with another provider is accepted, because predictions have no provider. A runtime with another
    name or version is accepted only if the rules allow it.

    Raises:
        PlanError: there is such a condition.
    """
    for condition in changed_conditions(earlier, snapshot):
        if condition.name not in _UNLIKE or "unknown" in (condition.before, condition.after):
            continue
        if condition.name == "runtime" and (
            rules.allow_version_change or not is_other_version(condition)
        ):
            continue
        raise PlanError(
            f"{snapshot.model}: the baseline was made with {condition.name} {condition.before}, "
            f"this check with {condition.after}",
            hint=_hint_for_unlike(condition.name, snapshot, earlier),
        )
    _refuse_unlike_process(snapshot, earlier, rules)


def _hint_for_unlike(condition: str, snapshot: Snapshot, earlier: Snapshot) -> str:
    """Return how to go on if a condition such as ``runtime`` or ``sizes`` differs from that of the baseline."""
    if condition == "runtime":
        return "--allow-version-change compares them; --update-baseline records this version"
    if condition == "sizes" and earlier.dims:
        numbers = {n: int(text) for n, text in earlier.dims.items() if text.isdecimal()}
        return f"for the sizes of the baseline: {binding_options(snapshot.inputs, numbers)}"
    return "give the same options, or record this with --update-baseline"


def _refuse_unlike_process(snapshot: Snapshot, earlier: Snapshot, rules: Rules) -> None:
    """Refuse to compare a measured process with a predicted one.

    Raises:
        PlanError: one is measured and the other predicted, and a metric of the process is compared.
    """
    sources = {earlier.process_source, snapshot.process_source} - {""}
    if len(sources) > 1 and any(n.startswith("process.") for n in rules.compared(earlier)):
        raise PlanError(
            f"{snapshot.model}: the process of the baseline is {earlier.process_source}, that of this "
            f"check is {snapshot.process_source}",
            hint="check the model in both cases, or the plan in both cases",
        )


def ratchet_allows_recording(
    snapshot: Snapshot, earlier: Snapshot | None, rules: Rules
) -> bool:
    """Whether a snapshot may replace the entry of the baseline.

    Without a ratchet it always may. With one, no metric of the rules may be above the baseline's
    by more than its noise.
    """
    if earlier is None or not rules.ratchet:
        return True
    return all(
        metric_value(snapshot, name) <= before + _noise(name, before, snapshot, earlier)
        for name in rules.compared(earlier)
        if (before := earlier.metrics.get(name)) is not None
    )


def _noise(name: str, value: int, snapshot: Snapshot, earlier: Snapshot) -> int:
    """Return the bytes by which a metric may differ without a change of the model's tensors.

    It is 0 except for metrics of a process: these vary from run to run if one of both was measured, and with
    the number of nodes if both are predicted.
    """
    if not name.startswith("process."):
        return 0
    if snapshot.process_source == earlier.process_source == "predicted":
        return max(int(_PREDICTED_NOISE_SHARE * value), _PREDICTED_NOISE_BYTES)
    return max(int(_MEASURED_NOISE_SHARE * value), _MEASURED_NOISE_BYTES)


def _budget_results(snapshot: Snapshot, rules: Rules) -> Iterator[Result]:
    """Yield a result for each required metric above the limit ``max_memory``, and one for a missed budget.

    Raises:
        UnknownSizeError: a required metric is unknown, with a limit or without.
    """
    for name in rules.required:
        value = metric_value(snapshot, name)
        if rules.max_memory is not None and value > rules.max_memory:
            over = format_change(value - rules.max_memory)
            parts = ""
            if name == "process.total":
                parts = f", of it {format_size(PROFILE.imported_process)} the interpreter and the runtime"
            message = (
                f"{metric_label(name)}: {format_size(value)}{parts}; the limit is "
                f"{format_size(rules.max_memory)} ({over})"
            )
            yield Result(
                Finding.OVER_BUDGET, message, name, actual=value, limit=rules.max_memory
            )
    if snapshot.budget_message:
        yield Result(Finding.OVER_BUDGET, snapshot.budget_message)


def _baseline_results(snapshot: Snapshot, earlier: Snapshot, rules: Rules) -> Iterator[Result]:
    """Yield a result for each metric that is not in the baseline, or grew beyond its limit.

    With a ratchet, also for each metric that fell: the gain must be recorded in the baseline.
    Changes within the noise of a metric count as none.
    """
    allowed = rules.max_increase or NO_INCREASE
    for name in rules.compared(earlier):
        value, before = metric_value(snapshot, name), earlier.metrics.get(name)
        if before is None:
            message = f"the baseline of {snapshot.model} has no {name}"
            yield Result(Finding.NO_BASELINE, message, name, actual=value)
            continue
        noise = _noise(name, before, snapshot, earlier)
        limit = max(allowed.limit(before), before + noise)
        change = f"{format_change(value - before)} ({_percent(value, before)})"
        if value > limit:
            message = (
                f"{metric_label(name)}: from {format_size(before)} to {format_size(value)}, {change}; "
                f"{allowed} more is allowed"
            )
            yield Result(
                Finding.INCREASE, message, name, actual=value, limit=limit, before=before
            )
        elif value < before - noise and rules.ratchet:
            message = (
                f"{metric_label(name)}: from {format_size(before)} to {format_size(value)}, {change}; "
                "record it with --update-baseline"
            )
            yield Result(
                Finding.NOT_RECORDED, message, name, actual=value, limit=before, before=before
            )


def metric_value(snapshot: Snapshot, name: str) -> int:
    """Return a metric's value.

    Raises:
        UnknownSizeError: the value is unknown; the hint tells how to get it.
    """
    value = snapshot.metrics.get(name)
    if value is not None:
        return value
    group = name.partition(".")[0]
    if group == "process" and snapshot.process_obstacle:  # a prediction was tried and failed
        obstacle = snapshot.process_obstacle
        if "planned" in snapshot.metrics:
            hint = "--metric planned checks the intermediates alone"
        else:  # sizes are unknown, and the likely reason
            hint = snapshot.size_hint
    elif group in ("predicted", "observed", "process"):
        # Nothing failed: these metrics need a run or a prediction, and none was made.
        obstacle, hint = "", snapshot.run_hint
    else:
        # Metrics of the plan itself are unknown only if sizes are.
        obstacle, hint = snapshot.size_obstacle, snapshot.size_hint
    message = f"{name} of {snapshot.model} is unknown{f': {obstacle}' if obstacle else ''}"
    raise UnknownSizeError(message, hint=hint)


def _percent(value: int, before: int) -> str:
    return f"{100 * (value - before) / before:+.1f}%" if before else "from nothing"
