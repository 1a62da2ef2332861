"""What a report says of the time of runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builders import plan_of_text
from memplan_cli import Check, api
from memplan_cli.core.results.observations import Peaks, TimeRatio
from memplan_cli.core.results.report import RuntimeSummary
from memplan_cli.reporting.formats import render
from memplan_cli.runtime.run import timing
from memplan_cli.runtime.run.run_model import RunRecord
from memplan_cli.runtime.run.timing import ROUNDS, time_ratio
from memplan_cli.runtime.verification import confirm
from memplan_cli.runtime.workers.spec import InputSet, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.plans.report import Detail


def timed(
    monkeypatch: pytest.MonkeyPatch, before: Sequence[Peaks], after: Sequence[Peaks]
) -> TimeRatio | None:
    """Return the ratio of what the machine says of each run, one after the other."""
    said: dict[str, Iterator[Peaks]] = {"before": iter(before), "after": iter(after)}
    turns: list[str] = []

    def run_model(spec: RunSpec, *, timeout: float) -> RunRecord:
        del timeout
        assert spec.collect == ("time",)
        turns.append(spec.session.model.name)
        return RunRecord(spec, peaks=next(said[turns[-1]]))

    monkeypatch.setattr(timing, "run_model", run_model)
    found = time_ratio(
        SessionSpec(Path("before")), SessionSpec(Path("after")), InputSet(()), 60
    )
    assert turns == ["before", "after"] * ROUNDS
    return found


def took(effort: float | None, milliseconds: float | None = 1.0) -> Peaks:
    return Peaks(1, 1, milliseconds=milliseconds, processor_milliseconds=effort)


def test_the_ratio_is_the_median_of_rounds_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    after = [took(effort) for effort in (10.0, 9.0, 30.0, 11.0, 12.0)]
    found = timed(monkeypatch, [took(10.0)] * ROUNDS, after)
    assert found == TimeRatio(1.1, 1.0, 1.2, ROUNDS)


def test_the_clock_decides_where_one_has_no_processor_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = timed(monkeypatch, [took(1.0, 10.0)] * ROUNDS, [took(None, 20.0)] * ROUNDS)
    assert found == TimeRatio(2.0, 2.0, 2.0, ROUNDS)


def test_no_ratio_is_made_up_where_a_round_has_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = [took(1.0)] * (ROUNDS - 1) + [took(None, None)]
    assert timed(monkeypatch, [took(1.0)] * ROUNDS, after) is None


def test_the_ratio_of_runs_in_turn_is_reported_even_if_it_is_one(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratio = TimeRatio(1.0, 1.0, 1.0, ROUNDS)
    monkeypatch.setattr(confirm, "seems_slower", lambda *_: True)
    monkeypatch.setattr(confirm, "time_ratio", lambda *_: ratio)
    model = save("g (float[64,64] x) => (float[64,64] y) { a = Exp(x) y = Neg(a) }")
    check = Check(provider="cpu")
    optimized = api.optimize(model, out=tmp_path / "out.onnx", check=check)
    assert optimized.plan.report.runtime is not None
    assert optimized.plan.report.runtime.time == ratio


@pytest.mark.parametrize(("median", "warned"), [(0.9, False), (1.05, False), (1.051, True)])
def test_more_than_five_per_cent_is_slower(*, median: float, warned: bool) -> None:
    ratio = TimeRatio(median, 0.9, 1.2, ROUNDS)
    assert ratio.is_slower == warned
    assert "(0.90 to 1.20, the quartiles of 5 rounds" in str(ratio)


def told(ratio: TimeRatio | None) -> Plan:
    plan = plan_of_text("g (float[4] x) => (float[4] y) { a = Exp(x) y = Neg(a) }")
    sides = {"original": Peaks(1, 1), "optimized": Peaks(1, 1)}
    facts = RuntimeSummary(
        "onnxruntime", "1", "CPUExecutionProvider", sides, sides, time=ratio
    )
    return plan.with_report(replace(plan.report, runtime=facts))


def whole(form: str) -> Detail:
    return "details" if form == "text" else "answer"


def test_text_and_json_say_what_time_a_run_takes() -> None:
    plan = told(TimeRatio(1.08, 1.05, 1.12, ROUNDS))
    for form in ("text", "markdown", "html"):
        said = " ".join(render(plan, form, detail=whole(form)).split())
        assert "1.08 (quartiles 1.05 and 1.12 of 5 alternating rounds)" in said
    found = json.loads(render(plan, "json"))["runtime"]
    assert found["time"] == {"median": 1.08, "low": 1.05, "high": 1.12, "rounds": ROUNDS}


def test_nothing_is_said_of_what_no_run_has_told() -> None:
    plan = told(None)
    assert "relative to the original" not in render(plan, "text", detail="details")
    found = json.loads(render(plan, "json"))["runtime"]
    assert "time" not in found
