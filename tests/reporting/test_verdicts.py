"""What the gate, diff and why say, in each of their formats."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from jsonschema import Draft7Validator

from memplan_cli.core.quantities import Increase
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.commands import diff, gate_report, why
from memplan_cli.reporting.commands.diff import compare
from memplan_cli.reporting.commands.gate import Rules, Verdict, judge
from memplan_cli.reporting.commands.why import why_peak, why_tensor
from memplan_cli.reporting.snapshot import InterfaceSize, Snapshot, TensorFacts, snapshot_of

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

GOLDEN = Path(__file__).parents[1] / "golden" / "renderers"
EVIL = "</failure>]]>\x1b[31m::error::\n%0A|`@team` <b>"


def plan_named(name: str) -> Plan:
    return read_plan(GOLDEN / "plans" / f"{name}.memplan.json")


def snapshots() -> tuple[Snapshot, Snapshot]:
    """A model before and after somebody kept a tensor alive and left a debug output in it."""
    after = replace(snapshot_of(plan_named("branchy"), "models/branchy.onnx"), memplan="1.0")
    name = "stem_relu"
    facts = after.tensors[name]
    tensors = dict(after.tensors)
    tensors[name] = replace(facts, steps=2, read_by="b0_conv/Conv", at_peak=0)
    less = after.metrics["live_peak"] - facts.at_peak
    metrics = {**after.metrics, "live_peak": less, "planned": less}
    outputs = {"y": InterfaceSize("output", 40)}
    before = replace(
        after, tensors=tensors, metrics=metrics, interface=outputs, graph_sha256="0" * 64
    )
    outputs = {**outputs, "debug": InterfaceSize("output", 4096)}
    metrics = {**after.metrics, "outputs": 40 + 4096}
    after = replace(after, metrics=metrics, interface=outputs, graph_sha256="1" * 64)
    return before, after


def judged() -> tuple[Verdict, ...]:
    before, after = snapshots()
    rules = Rules(
        metrics=("planned", "live_peak", "outputs", "weights"),
        max_increase=Increase(size=1024),
    )
    new = replace(after, model="models/new.onnx")
    other = replace(before, runtime="onnxruntime 1.30.0 CPUExecutionProvider")
    return (
        judge(before, other, replace(rules, allow_version_change=True)),
        judge(after, before, rules),
        judge(new, None, rules),
        judge(before, None, Rules(metrics=("planned",), max_memory=2**30)),
    )


def hostile() -> tuple[Verdict, ...]:
    facts = TensorFacts(10, 2, EVIL, EVIL, 10)
    base = Snapshot(EVIL, "s", 2, "test", 1, "1", EVIL, {"planned": 1}, EVIL)
    worse = replace(base, metrics={"planned": 11}, tensors={EVIL: facts}, runtime="2" + EVIL)
    return (judge(worse, base, Rules(allow_version_change=True)),)


@pytest.mark.parametrize("form", gate_report.RENDERERS)
def test_a_verdict_is_shown_as_it_was_reviewed(form: str, *, update_golden: bool) -> None:
    got = gate_report.RENDERERS[form](judged())
    path = GOLDEN / f"gate.{form}"
    if update_golden:
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", diff.RENDERERS)
def test_a_difference_is_shown_as_it_was_reviewed(form: str, *, update_golden: bool) -> None:
    got = diff.RENDERERS[form](compare(*snapshots()))
    path = GOLDEN / f"diff.{form}"
    if update_golden:
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", why.PEAK_RENDERERS)
def test_a_story_is_shown_as_it_was_reviewed(form: str, *, update_golden: bool) -> None:
    plan = plan_named("branchy")
    peak = why.PEAK_RENDERERS[form](why_peak(plan))
    for name, got in (
        ("peak", peak),
        ("tensor", why.TENSOR_RENDERERS[form](why_tensor(plan, "b0_relu"))),
    ):
        path = GOLDEN / f"why-{name}.{form}"
        if update_golden:
            path.write_text(got, encoding="utf-8")
        assert got == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", gate_report.RENDERERS)
def test_no_format_lets_a_name_steer_anything(form: str) -> None:
    got = gate_report.RENDERERS[form](hostile())
    assert not [c for c in got if not c.isprintable() and c != "\n"]
    commands = [line for line in got.splitlines() if line.startswith("::")]
    assert all(re.match(r"::(error|warning) file=[^:,]*,title=[^:,]*::", c) for c in commands)
    assert len(commands) == (2 if form == "github" else 0)


def test_stories_and_differences_let_no_name_steer_the_terminal() -> None:
    plan = plan_named("hostile")
    shown = [render(why_peak(plan)) for render in why.PEAK_RENDERERS.values()]
    shown += [
        render(why_tensor(plan, tensor.id))
        for render in why.TENSOR_RENDERERS.values()
        for tensor in plan.tensors
    ]
    (verdict,) = hostile()
    assert verdict.difference is not None
    shown += [render(verdict.difference) for render in diff.RENDERERS.values()]
    assert not [c for c in "".join(shown) if not c.isprintable() and c != "\n"]


def test_sarif_is_valid_and_points_at_the_tensors() -> None:
    schema = json.loads((GOLDEN / "sarif-2.1.0.subset.json").read_text())
    for shown in (judged(), hostile(), ()):
        log = json.loads(gate_report.RENDERERS["sarif"](shown))
        assert [e.message for e in Draft7Validator(schema).iter_errors(log)] == []
    log = json.loads(gate_report.RENDERERS["sarif"](judged()))
    results = log["runs"][0]["results"]
    rules = [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in results)
    named = [result for result in results if "logicalLocations" in result["locations"][0]]
    assert named[0]["locations"][0]["logicalLocations"][0]["name"] == "stem_relu"
    prints = [result["partialFingerprints"]["memplan/v1"] for result in results]
    assert len(set(prints)) == len(prints)


def test_junit_counts_what_it_holds() -> None:
    for shown in (judged(), hostile(), ()):
        root = ET.fromstring(gate_report.RENDERERS["junit"](shown))  # noqa: S314 - our own
        cases = list(root.iter("testcase"))
        failed = [case for case in cases if case.find("failure") is not None]
        assert root.get("tests") == str(len(cases))
        assert root.get("failures") == str(len(failed))
        suites = root.findall("testsuite")
        assert sum(int(suite.get("failures", "")) for suite in suites) == len(failed)


def test_json_says_whether_all_passed() -> None:
    assert json.loads(gate_report.RENDERERS["json"](judged()))["passed"] is False
    assert json.loads(gate_report.RENDERERS["json"](judged()[:1]))["passed"] is True


def many(count: int) -> tuple[Verdict, ...]:
    verdict = judged()[1]
    return tuple(
        replace(verdict, snapshot=replace(verdict.snapshot, model=f"models/{n:05}.onnx"))
        for n in range(count)
    )


def test_a_step_summary_stays_below_64_kb_whatever_fails() -> None:
    got = gate_report.RENDERERS["markdown"](many(1000))
    assert len(got.encode()) < 64_000
    assert "Memory gate: 1000 models, 1000 failed, 0 passed" in got
    assert re.search(r"and \d+ more models", got)


def test_github_gets_ten_annotations_and_the_worst_comes_first() -> None:
    worst = replace(judged()[0], results=(replace(judged()[1].results[0], actual=2**40),))
    got = gate_report.RENDERERS["github"]((*many(30), worst)).splitlines()
    assert len(got) == 10
    assert got[0].startswith("::error file=models/branchy.onnx,title=memplan%3A increase::")
    assert got[-1] == "::warning title=memplan::82 more findings; see the job's log"
    assert len(gate_report.RENDERERS["github"](judged()).splitlines()) == 5
