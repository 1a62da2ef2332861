"""The verdict of a gate: budgets, a baseline and a ratchet, judged for one model at a time.

Nothing here reads a file or prints: snapshots and rules in, a verdict out. A check that
fails is a result, never an exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from memplan_cli.core.quantities import Increase, format_change, format_size
from memplan_cli.core.serialization import Keys, json_form
from memplan_cli.errors import UnknownSizeError
from memplan_cli.reporting.findings.diff import Difference, compare, conditions
from memplan_cli.reporting.findings.snapshot import Snapshot, known_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_METRIC = "planned"

NO_INCREASE = Increase()
"""With a baseline and no other word, nothing may grow: plans are deterministic."""


_NOISE_SHARE, _NOISE_BYTES = 0.02, 1_000_000
"""What a process takes differs from the next one of the same model by up to the larger of both."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked of one model. ``max_increase`` needs a baseline, as ``ratchet`` does."""

    metrics: tuple[str, ...] = (DEFAULT_METRIC,)
    max_memory: int | None = None
    max_increase: Increase | None = None
    ratchet: bool = False
    """Whether a gain must be recorded, so that it cannot be lost again unseen."""

    @property
    def needs_baseline(self) -> bool:
        """Whether these rules compare with something earlier."""
        return self.max_increase is not None or self.ratchet


class Finding(Enum):
    """What a gate can find; the value is the rule's id in every machine-readable format."""

    OVER_BUDGET = "over-budget"
    INCREASE = "increase"
    NOT_RECORDED = "gain-not-recorded"
    NO_BASELINE = "no-baseline"
    OTHER_CONDITIONS = "other-conditions"
    PARTIAL = "partial"

    @property
    def fails(self) -> bool:
        """Whether this makes the gate fail; the others are remarks."""
        return self not in (Finding.OTHER_CONDITIONS, Finding.PARTIAL)


MEANINGS: Mapping[Finding, str] = {
    Finding.OVER_BUDGET: "A metric is above the bytes allowed, or the plan above its budget.",
    Finding.INCREASE: "A metric grew by more than allowed since the baseline.",
    Finding.NOT_RECORDED: "A metric is below the baseline, and the ratchet wants that recorded.",
    Finding.NO_BASELINE: "The baseline has no entry for the model.",
    Finding.OTHER_CONDITIONS: "The baseline was made under other conditions.",
    Finding.PARTIAL: "Sizes are missing, so that totals say too little.",
}


_EMPTY_AS_NULL = json_form(kind=str | None, write=lambda name: name or None)


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
        "level",
        "message",
        "metric",
        "actual",
        "limit",
        "before",
    )

    finding: Finding
    message: str
    metric: str = field(default="", metadata=_EMPTY_AS_NULL)
    actual: int | None = None
    limit: int | None = None
    before: int | None = None

    @property
    def fails(self) -> bool:
        """Whether the finding makes the gate fail."""
        return self.finding.fails

    @property
    def level(self) -> str:
        """Return the severity, as machine-readable formats name it."""
        return "error" if self.fails else "warning"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the gate on one model.

    Attributes:
        snapshot: the model's numbers.
        rules: the rules that they were checked against.
        results: the findings.
        difference: the changes since the baseline; null: there is no baseline.
        recorded: whether the model's numbers were written to the baseline.
    """

    json_keys: ClassVar[Keys] = (
        ("model", "snapshot.model"),
        "passed",
        "recorded",
        ("coverage", "snapshot.coverage"),
        ("partial", "snapshot.partial"),
        "metrics",
        "results",
        "difference",
    )

    snapshot: Snapshot
    rules: Rules
    results: tuple[Result, ...] = ()
    difference: Difference | None = None
    recorded: bool = False

    @property
    def passed(self) -> bool:
        """Whether no finding makes the gate fail."""
        return not any(result.fails for result in self.results)

    @property
    def metrics(self) -> Mapping[str, int | None]:
        """Return the metrics that the rules are about; None: unknown."""
        return {name: self.snapshot.metrics.get(name) for name in self.rules.metrics}


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
    """Rules for every model, and rules of their own for some, by path or glob."""

    common: Rules = field(default_factory=Rules)
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def rules_for(self, model: str) -> Rules:
        """Return the rules of a model; of several globs that mean it, later ones win."""
        rules = self.common
        for pattern, own in self.special.items():
            if pattern in (model, model.rpartition("/")[2]) or fnmatchcase(model, pattern):
                rules = rules_from(own, rules)
        return rules


def rules_from(values: Mapping[str, Any], base: Rules) -> Rules:
    """Return ``base`` with what a settings file or the command line sets on top."""
    renamed = {"metric": "metrics"}
    given = {renamed.get(key, key): value for key, value in values.items()}
    known = {"metrics", "max_memory", "max_increase", "ratchet"}
    return replace(base, **{key: value for key, value in given.items() if key in known})


def judge(snapshot: Snapshot, earlier: Snapshot | None, rules: Rules) -> Verdict:
    """Hold a model's numbers against its rules and against its baseline.

    Raises:
        UnknownSizeError: a metric that is asked for is not known.
    """
    results = [*_budget(snapshot, rules)]
    difference = None
    if earlier is not None:
        difference = compare(earlier, snapshot)
        results += _against(snapshot, earlier, rules)
        results += _conditions(snapshot, earlier)
    elif rules.needs_baseline:
        message = f"the baseline has no entry for {snapshot.model}: run with --update-baseline"
        results.append(Result(Finding.NO_BASELINE, message))
    if snapshot.partial:
        message = f"totals are partial: {known_share(snapshot.coverage)}"
        results.append(Result(Finding.PARTIAL, message))
    return Verdict(snapshot, rules, tuple(results), difference)


def worth_recording(snapshot: Snapshot, earlier: Snapshot | None, rules: Rules) -> bool:
    """Whether a ratchet may turn: there is nothing earlier, or no metric is worse."""
    if earlier is None or not rules.ratchet:
        return True
    return all(
        _value(snapshot, name) <= before + noise(name, before)
        for name in rules.metrics
        if (before := earlier.metrics.get(name)) is not None
    )


def noise(name: str, value: int) -> int:
    """Return the bytes by which a metric of one model differs between two processes."""
    if not name.startswith("process."):
        return 0
    return max(int(_NOISE_SHARE * value), _NOISE_BYTES)


def _budget(snapshot: Snapshot, rules: Rules) -> Iterator[Result]:
    for name in rules.metrics:
        value = _value(snapshot, name)
        if rules.max_memory is not None and value > rules.max_memory:
            over = format_change(value - rules.max_memory)
            message = (
                f"{name} is {format_size(value)}, the budget is "
                f"{format_size(rules.max_memory)} ({over})"
            )
            yield Result(Finding.OVER_BUDGET, message, name, value, rules.max_memory)
    if snapshot.missed:
        yield Result(Finding.OVER_BUDGET, snapshot.missed)


def _against(snapshot: Snapshot, earlier: Snapshot, rules: Rules) -> Iterator[Result]:
    allowed = rules.max_increase or NO_INCREASE
    for name in rules.metrics:
        value, before = _value(snapshot, name), earlier.metrics.get(name)
        if before is None:
            message = f"the baseline of {snapshot.model} has no {name}"
            yield Result(Finding.NO_BASELINE, message, name, value)
            continue
        limit = max(allowed.limit(before), before + noise(name, before))
        change = f"{format_change(value - before)} ({_percent(value, before)})"
        if value > limit:
            message = (
                f"{name} grew from {format_size(before)} to {format_size(value)}, {change}; "
                f"{allowed} more is allowed"
            )
            yield Result(Finding.INCREASE, message, name, value, limit, before)
        elif value < before - noise(name, before) and rules.ratchet:
            message = (
                f"{name} fell from {format_size(before)} to {format_size(value)}, {change}: "
                "record it with --update-baseline"
            )
            yield Result(Finding.NOT_RECORDED, message, name, value, before, before)


def _conditions(snapshot: Snapshot, earlier: Snapshot) -> Iterator[Result]:
    for found in conditions(earlier, snapshot):
        message = (
            f"the baseline was made with {found.name} {found.before}, this with {found.after}"
        )
        yield Result(Finding.OTHER_CONDITIONS, message)


def _value(snapshot: Snapshot, name: str) -> int:
    value = snapshot.metrics.get(name)
    if value is None:
        hint = snapshot.to_know
        if name.partition(".")[0] in ("predicted", "observed", "process"):
            hint = snapshot.to_run
        raise UnknownSizeError(f"{name} of {snapshot.model} is not known", hint=hint)
    return value


def _percent(value: int, before: int) -> str:
    return f"{100 * (value - before) / before:+.1f}%" if before else "from nothing"
