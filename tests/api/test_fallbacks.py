"""Nothing falls back in silence: each way has a code, a line in the text and its reason."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import onnx
import pytest

from memplan_cli import Settings, plan
from memplan_cli.api.models.model_file import ModelFile, plan_model
from memplan_cli.api.optimize import optimize
from memplan_cli.api.optimizing import candidates, verification
from memplan_cli.api.optimizing.verification import (
    candidate_cost,
    with_all_slower_reported,
    with_rejected,
)
from memplan_cli.api.output.optimized import Optimized
from memplan_cli.api.output.rewriting import Rewriting, RewrittenFiles, Targets
from memplan_cli.api.schema import schema_text
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.observations import CPU, Difference, Peaks, Validation
from memplan_cli.core.results.report import Report, RuntimeSummary
from memplan_cli.core.results.rewrites import CODES, Fallback
from memplan_cli.core.serialization import to_json
from memplan_cli.packing import portfolio
from memplan_cli.packing.pools import naive
from memplan_cli.planning import allocation, planner
from memplan_cli.planning.choose import choose
from memplan_cli.reporting.formats import render
from memplan_cli.runtime.run import timing

if TYPE_CHECKING:
    from memplan_cli.core.problem import Layout, Problem
    from memplan_cli.core.results.plan import Plan

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def planned(samples: Path) -> Plan:
    return plan(samples / "branchy_cnn.onnx")


def codes(found: Plan) -> list[str]:
    return [fallback.code for fallback in found.report.fallbacks]


def test_a_plan_that_did_as_asked_has_no_fallbacks(planned: Plan) -> None:
    assert planned.report.fallbacks == ()
    assert "fallbacks" not in to_json(planned.report)


def test_every_code_is_documented_and_in_the_schemas() -> None:
    page = (DOCS / "formats.md").read_text()
    section = page[page.index("### Codes of") :]
    section = section[: section.find("\n## ")] if "\n## " in section else section
    said = dict(re.findall(r"\| `([a-z-]+)` \| (.+) \|", section))
    assert said == dict(CODES)
    for name in ("report", "plan"):
        assert all(f'"{code}"' in schema_text(name) for code in CODES)


def test_a_fallback_is_a_line_of_the_text_and_an_object_of_the_json(planned: Plan) -> None:
    found = planned.with_fallbacks(
        Fallback("slots-kept", "the arena has slots", "it was taller")
    )
    assert "the arena has slots: it was taller (slots-kept)" in render(found, "text")
    content = json.loads(render(found, "json"))
    wanted = {"code": "slots-kept", "what": "the arena has slots", "why": "it was taller"}
    assert content["fallbacks"] == [wanted]
    jsonschema.validate(content, json.loads(schema_text("report")))
    assert from_json(Report, content, "the report").fallbacks == found.report.fallbacks


def test_an_unknown_fallback_code_is_refused(planned: Plan) -> None:
    found = planned.with_fallbacks(Fallback("slots-kept", "a", "b"))
    content = to_json(found.report)
    content["fallbacks"][0]["code"] = "shrug"
    with pytest.raises(MisfitError, match="fallbacks"):
        from_json(Report, content, "the report")


def test_slots_in_place_of_offsets_are_said(samples: Path) -> None:
    found = plan(samples / "branchy_cnn.onnx", Settings(order="keep"), allocate=naive)
    assert codes(found) == ["slots-kept"]


def test_a_model_that_is_left_alone_has_no_fallbacks(samples: Path) -> None:
    kept = replace(Settings().mem_param, optimize_test=False)
    assert codes(plan(samples / "branchy_cnn.onnx", Settings(mem_param=kept))) == []


def test_a_search_that_seconds_ended_is_said(
    samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(problem: Problem, **_: object) -> Layout:
        return replace(portfolio(problem), proved=False)

    monkeypatch.setattr(allocation, "portfolio", hasty)
    found = plan(samples / "branchy_cnn.onnx", Settings(order="keep", time_limit=1e-9))
    assert codes(found) == ["packing-timed-out"]
    assert "after 1e-09 s" in found.report.fallbacks[0].why


def test_a_kept_order_is_said(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(*words: Any) -> Any:  # noqa: ANN401 - as `choose`
        (best, *others) = choose(*words)
        peaks = {"file": best.allocation.live_peak, "greedy": 1}
        candidate = replace(best.candidate, order="file", peaks=peaks)
        return (replace(best, candidate=candidate), *others)

    monkeypatch.setattr(planner, "choose", turned)
    found = plan(samples / "branchy_cnn.onnx", Settings(order="keep"))
    assert codes(found) == ["order-kept"]
    assert found.report.fallbacks[0].why.startswith("another has a live peak of 1 bytes")


def test_a_rejected_candidate_is_said_with_what_differed(planned: Plan) -> None:
    other = Validation("failed", CPU, differences=(Difference("y", 3, 0.5, 3),))
    report = replace(planned.report, validation=other, target="cpu")
    rejected = planned.with_report(report)
    for_cpu = planned.with_report(replace(planned.report, target="cpu"))
    found = with_rejected(for_cpu, [rejected])
    assert codes(found) == ["candidate-differed"]
    assert (
        found.report.fallbacks[0].why == "output 'y': 3 elements have other bits, by up to 0.5"
    )


def test_a_target_that_is_not_delivered_is_one_fallback(planned: Plan) -> None:
    other = Validation("failed", CPU, differences=(Difference("y", 3, 0.5, 3),))
    report = replace(planned.report, validation=other, target="cpu")
    rejected = [planned.with_report(report)] * 2
    portable = planned.with_report(replace(planned.report, validation=other))
    found = with_rejected(planned, [*rejected, portable])
    assert codes(found) == ["target-left-out", "candidate-differed"]
    assert "--target cpu" not in found.report.fallbacks[1].why, "it was asked for"
    assert "not optimized for cpu" in found.report.fallbacks[0].what


def test_settings_that_are_all_too_slow_are_said(
    planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "is_slower", _is_slower)

    def timed(milliseconds: float) -> Plan:
        peaks = {
            "original": Peaks(9, 9, milliseconds=10.0, processor_milliseconds=10.0),
            "optimized": Peaks(
                5, 5, milliseconds=milliseconds, processor_milliseconds=milliseconds
            ),
        }
        runtime = RuntimeSummary("onnxruntime", "1", CPU, {}, peaks)
        return planned.with_report(replace(planned.report, runtime=runtime))

    assert codes(with_all_slower_reported(timed(20.0))) == ["all-slower"]
    assert codes(with_all_slower_reported(timed(9.0))) == []


def test_a_size_that_was_not_measured_does_not_count_as_no_memory(planned: Plan) -> None:
    def measured(held: int | None, peak: int | None) -> Plan:
        peaks = {
            "original": Peaks(100, None, held=100),
            "optimized": Peaks(peak, None, held=held),
        }
        runtime = RuntimeSummary("onnxruntime", "1", CPU, {}, peaks)
        return planned.with_report(replace(planned.report, runtime=runtime))

    plans = [measured(None, 10), measured(60, 20), measured(30, 20), planned]
    costs = [candidate_cost(each) for each in plans]
    assert sorted(costs) == [costs[2], costs[1], costs[0], costs[3]]
    assert costs[3] > costs[0]._replace(is_slower=True)


def test_weights_that_are_not_packed_are_said(samples: Path, tmp_path: Path) -> None:
    file = ModelFile.of(samples / "branchy_cnn.onnx", onnx.load(samples / "branchy_cnn.onnx"))
    settings = Settings(target="cpu")
    rewriting = Rewriting(
        file,
        plan_model(file, Settings()),
        settings,
        Targets.of(file.path, tmp_path / "o.onnx"),
    )
    crashed = Validation("failed", CPU, notes=("the runtime's process died of SIGSEGV",))
    report = replace(rewriting.planned.plan.report, validation=crashed)
    failed = Optimized(rewriting.planned.plan.with_report(report), None, None)
    assert crashed.did_not_run
    (found,) = candidates._with_unpacked_weights(
        rewriting, failed
    ).planned.plan.report.fallbacks
    assert (found.code, found.why) == ("weights-unpacked", crashed.notes[0])


def test_if_no_graph_for_a_target_runs_the_models_own_graph_is_written(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = verification.Verifier.verify
    crashed = Validation("failed", CPU, notes=("the runtime's process died of SIGSEGV",))

    def crash_for_target(verifier: verification.Verifier, files: RewrittenFiles) -> Plan:
        if not files.rewriting.optimized_offline:
            return verify(verifier, files)
        plan = files.rewriting.plan
        return plan.with_report(replace(plan.report, validation=crashed))

    monkeypatch.setattr(verification.Verifier, "verify", crash_for_target)
    out = tmp_path / "o.onnx"
    result = optimize(samples / "branchy_cnn.onnx", Settings(target="cpu"), out=out)
    assert result.passed
    assert out.exists()
    assert result.plan.report.target == "portable"
    (fallback,) = result.plan.report.fallbacks
    assert (fallback.code, fallback.why) == ("target-left-out", crashed.notes[0])


def test_every_graph_that_was_left_out_is_said(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs with notes and with another order differ; that in the order of the file does not."""

    def verify(verifier: verification.Verifier, files: RewrittenFiles) -> Plan:
        del verifier
        found = files.rewriting.plan
        differs = (Difference("y", 3, 0.5, 3),)
        verdict = Validation("failed", CPU, differences=differs, max_abs_diff=0.5)
        if found.settings.get("order") == "keep":
            verdict = Validation("passed", CPU)
        return found.with_report(replace(found.report, validation=verdict))

    monkeypatch.setattr(verification.Verifier, "verify", verify)
    model = samples / "branchy_cnn.onnx"
    found = optimize(model, Settings(), out=tmp_path / "o.onnx").plan
    assert [fallback.what for fallback in found.report.fallbacks] == [
        "the graph with another order and the plan as metadata was left out",
        "the graph with another order was left out",
    ]


def _is_slower(after: Peaks, before: Peaks) -> bool:
    return (after.milliseconds or 0) > 1.05 * (before.milliseconds or 0)
