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
from memplan_cli.core.serialization import Form, Key, Keys
from memplan_cli.errors import UnknownSizeError
from memplan_cli.reporting.findings.diff import compare, conditions
from memplan_cli.reporting.findings.snapshot import known_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.reporting.findings.diff import Difference
    from memplan_cli.reporting.findings.snapshot import Snapshot

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


@dataclass(frozen=True, slots=True)
class Result:
    """One thing found; ``fails`` tells errors from remarks."""

    json_keys: ClassVar[Keys] = (
        Key("rule", "finding"),
        "level",
        "message",
        Key("metric", form=Form(write=lambda name: name or None)),
        "actual",
        "limit",
        "before",
    )

    finding: Finding
    message: str
    metric: str = ""
    actual: int | None = None
    limit: int | None = None
    before: int | None = None

    @property
    def fails(self) -> bool:
        """Whether this alone makes the gate fail."""
        return self.finding.fails

    @property
    def level(self) -> str:
        """Return how bad it is, in the word of machine-readable formats."""
        return "error" if self.fails else "warning"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate says of one model, and what changed since the baseline."""

    json_keys: ClassVar[Keys] = (
        Key("model", "snapshot.model"),
        "passed",
        "recorded",
        Key("coverage", "snapshot.coverage"),
        Key("partial", "snapshot.partial"),
        "metrics",
        "results",
        "difference",
    )

    snapshot: Snapshot
    rules: Rules
    results: tuple[Result, ...] = ()
    difference: Difference | None = None
    recorded: bool = False
    """Whether the baseline was written with this model's numbers."""

    @property
    def passed(self) -> bool:
        """Whether nothing was found that fails."""
        return not any(result.fails for result in self.results)

    @property
    def metrics(self) -> Mapping[str, int | None]:
        """Return the metrics asked about, None where one is not known."""
        return {name: self.snapshot.metrics.get(name) for name in self.rules.metrics}


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
