from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan_cli.core.binding_options import InputShape
from memplan_cli.core.quantities import Increase, parse_increase
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import MemplanError, PlanError, UnknownSizeError
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.commands.gate import (
    Finding,
    RuleBook,
    Rules,
    judge,
    ratchet_allows_recording,
    rules_from,
)
from memplan_cli.reporting.commands.gate_report import RENDERERS
from memplan_cli.reporting.snapshot import (
    MAX_BASELINE_TENSORS,
    Snapshot,
    TensorFacts,
    baseline_tensors,
    baseline_text,
    model_key,
    read_baseline,
    read_snapshot,
    snapshot_of,
)

PLANS = Path(__file__).parents[1] / "golden" / "renderers" / "plans"


def snapshot(planned: int = 1000, **more: int) -> Snapshot:
    metrics = {"planned": planned, "live_peak": planned, **more}
    return Snapshot("m.onnx", "sha", 2, "test", 4, "1", "ort 1", metrics)


NONE = Increase()


def found(verdict_of: Snapshot, earlier: Snapshot | None, rules: Rules) -> list[Finding]:
    return [result.finding for result in judge(verdict_of, earlier, rules).results]


def test_a_budget_is_broken_only_above_it() -> None:
    rules = Rules(metrics=("planned",), max_memory=1000)
    assert found(snapshot(1000), None, rules) == []
    verdict = judge(snapshot(1001), None, rules)
    assert not verdict.passed
    (result,) = verdict.results
    assert result.finding is Finding.OVER_BUDGET
    assert result.message == "as planned: 1001 B; the limit is 1000 B (+1 B)"


@pytest.mark.parametrize(
    ("allowed", "planned", "passes"),
    [
        ("2%", 1020, True),
        ("2%", 1021, False),
        ("20 B", 1020, True),
        ("20 B", 1021, False),
        ("0", 1000, True),
        ("0", 1001, False),
        ("0", 1, True),
    ],
)
def test_an_increase_is_held_against_the_baseline(
    allowed: str,
    planned: int,
    passes: bool,  # noqa: FBT001 - a column of the table
) -> None:
    rules = Rules(max_increase=parse_increase(allowed))
    verdict = judge(snapshot(planned), snapshot(1000), rules)
    assert verdict.passed == passes
    assert verdict.difference is not None


def test_the_verdict_says_the_guessed_sizes_that_it_holds_for() -> None:
    rules = Rules(metrics=("planned",), max_memory=1000)
    known = judge(snapshot(), None, rules)
    guessed = judge(replace(snapshot(), assumed={"batch": 1}), None, rules)
    first_lines = [
        RENDERERS["text"](verdicts).splitlines()[0]
        for verdicts in ((known,), (guessed,), (known, guessed))
    ]
    assert first_lines == [
        "Memory gate: 1 model, 0 failed, 1 passed",
        "Memory gate: 1 model, 0 failed, 1 passed, at batch=1 (guessed)",
        "Memory gate: 2 models, 0 failed, 2 passed, at guessed sizes for 1",
    ]


def test_with_a_baseline_and_no_other_word_nothing_may_grow() -> None:
    assert found(snapshot(1001), snapshot(1000), Rules()) == [Finding.INCREASE]


@pytest.mark.parametrize(
    ("before", "now", "passes"),
    [
        (100_000_000, 102_000_000, True),
        (100_000_000, 102_000_001, False),
        (10_000_000, 11_000_000, True),
        (10_000_000, 11_000_001, False),
    ],
)
def test_two_processes_of_one_model_differ_and_no_gate_fails_for_that(
    before: int, now: int, *, passes: bool
) -> None:
    rules = Rules(metrics=("process.run",), ratchet=True)

    def at(size: int) -> Snapshot:
        return replace(snapshot(1), metrics={"process.run": size})

    assert (found(at(now), at(before), rules) == []) == passes
    assert ratchet_allows_recording(at(now), at(before), rules) == passes


def test_a_ratchet_wants_gains_recorded() -> None:
    rules = Rules(ratchet=True)
    assert found(snapshot(999), snapshot(1000), rules) == [Finding.NOT_RECORDED]
    assert found(snapshot(1000), snapshot(1000), rules) == []
    assert found(snapshot(999), snapshot(1000), Rules()) == []


def test_a_ratchet_turns_one_way_only() -> None:
    rules = Rules(metrics=("planned", "live_peak"), ratchet=True)
    assert ratchet_allows_recording(snapshot(999), snapshot(1000), rules)
    assert not ratchet_allows_recording(snapshot(1001), snapshot(1000), rules)
    mixed = replace(snapshot(999), metrics={"planned": 999, "live_peak": 1001})
    assert not ratchet_allows_recording(mixed, snapshot(1000), rules)
    assert ratchet_allows_recording(
        snapshot(1001), snapshot(1000), replace(rules, ratchet=False)
    )
    assert ratchet_allows_recording(snapshot(1001), None, rules)


def test_every_metric_that_is_asked_for_is_checked() -> None:
    rules = Rules(metrics=("planned", "total"), max_memory=1000)
    assert found(snapshot(1, total=1001), None, rules) == [Finding.OVER_BUDGET]
    with pytest.raises(UnknownSizeError, match=r"total of m\.onnx is unknown"):
        judge(snapshot(1), None, rules)
    told = replace(snapshot(1), run_hint="run it", size_hint="--dim n=1")
    for metric in ("observed.held", "process.run"):
        limited = Rules(metrics=(metric,), max_memory=1)
        asked = Rules(metrics=(metric,))
        for earlier, rules in ((None, limited), (None, asked), (snapshot(1), asked)):
            with pytest.raises(UnknownSizeError) as caught:
                judge(told, earlier, rules)
            assert caught.value.hint == "run it"


def test_a_model_or_metric_without_a_baseline_fails_where_one_is_needed() -> None:
    assert found(snapshot(), None, Rules(max_increase=Increase())) == [Finding.NO_BASELINE]
    assert found(snapshot(), None, Rules(ratchet=True)) == [Finding.NO_BASELINE]
    assert found(snapshot(), None, Rules()) == []
    rules = Rules(metrics=("total",))
    assert found(snapshot(total=1), snapshot(), rules) == [Finding.NO_BASELINE]


def test_a_baseline_of_another_memplan_is_said_and_does_not_fail() -> None:
    verdict = judge(snapshot(), replace(snapshot(), memplan="0.9"), Rules())
    assert verdict.passed
    assert [result.message for result in verdict.results] == [
        "the baseline was made with memplan 0.9, this with 1"
    ]


ORT_30, ORT_31 = (f"onnxruntime 1.{minor}.0" for minor in (30, 31))


@pytest.mark.parametrize(
    ("condition", "before", "now"),
    [
        ("level", 1, 2),
        ("level", 0, 2),
        ("phase", "train", "test"),
        ("target", "cpu", "portable"),
        ("runtime", ORT_30, ORT_31),
        ("runtime", "other 1.31.0", ORT_31),
    ],
)
def test_a_baseline_made_under_other_conditions_is_refused_with_both(
    condition: str, before: str | int, now: str | int
) -> None:
    sides: tuple[dict[str, Any], ...] = ({condition: before}, {condition: now})
    earlier, taken = (replace(snapshot(), **changes) for changes in sides)
    words = f"the baseline was made with {condition} {before}, this check with {now}"
    with pytest.raises(PlanError, match=re.escape(words)) as caught:
        judge(taken, earlier, Rules())
    assert "--update-baseline" in caught.value.hint
    assert ("--allow-version-change" in caught.value.hint) == (condition == "runtime")


def test_another_version_of_the_runtime_is_compared_where_that_is_allowed() -> None:
    earlier, taken = (replace(snapshot(), runtime=name) for name in (ORT_30, ORT_31))
    verdict = judge(taken, earlier, Rules(allow_version_change=True))
    assert verdict.passed
    assert [result.message for result in verdict.results] == [
        f"the baseline was made with runtime {ORT_30}, this with {ORT_31}"
    ]
    grown = replace(taken, metrics={"planned": 1001})
    results = judge(grown, earlier, Rules(allow_version_change=True)).results
    assert results[0].finding is Finding.INCREASE
    with pytest.raises(PlanError, match="level 0"):
        judge(taken, replace(earlier, level=0), Rules(allow_version_change=True))


def test_a_plan_that_ran_compares_with_a_model_under_the_same_runtime() -> None:
    ran = replace(snapshot(), runtime=f"{ORT_31} CPUExecutionProvider")
    for earlier, taken in (
        (ran, replace(snapshot(), runtime=ORT_31)),
        (replace(ran, runtime=ORT_31), ran),
        (replace(ran, runtime=""), ran),
    ):
        assert judge(taken, earlier, Rules()).passed


def test_a_baseline_of_other_dims_is_refused_with_both_and_the_options_to_type() -> None:
    one, other = (
        replace(
            snapshot(),
            dims={"batch": n},
            shapes={"x": f"{n},3"},
            inputs=(InputShape("x", ("batch", 3)),),
        )
        for n in ("2", "4")
    )
    words = "the baseline was made with sizes x=2,3, this check with x=4,3"
    with pytest.raises(PlanError, match=words) as caught:
        judge(other, one, Rules())
    assert caught.value.hint == "for the sizes of the baseline: --dim batch=2"


def test_a_baseline_of_other_bounds_is_refused() -> None:
    one, other = (replace(snapshot(), shapes={"x": bounds}) for bounds in ("1..8", "1..9"))
    with pytest.raises(PlanError, match=r"sizes x=1\.\.8, this check with x=1\.\.9"):
        judge(other, one, Rules())


def test_a_measured_process_is_not_compared_with_a_predicted_one() -> None:
    measured, predicted = (
        replace(snapshot(**{"process.run": size}), process_source=source)
        for size, source in ((10, "observed"), (9, "predicted"))
    )
    rules = Rules(metrics=("process.run",))
    for now, before in ((measured, predicted), (predicted, measured)):
        with pytest.raises(PlanError, match=r"the process of the baseline is .*predicted"):
            judge(now, before, rules)
        assert judge(now, before, Rules(metrics=("planned",))).passed


@pytest.mark.parametrize(
    ("before", "now", "passes"),
    [
        (10**9, 10**9 + 10**6, True),
        (10**9, 10**9 + 10**6 + 1, False),
        (10**8, 10**8 + 256 * 1024, True),
        (10**8, 10**8 + 256 * 1024 + 1, False),
    ],
)
def test_a_few_nodes_more_are_no_increase_of_a_predicted_process(
    before: int, now: int, *, passes: bool
) -> None:
    earlier, taken = (
        replace(snapshot(**{"process.run": size}), process_source="predicted")
        for size in (before, now)
    )
    rules = Rules(metrics=("process.run",), ratchet=True)
    assert (found(taken, earlier, rules) == []) == passes
    assert ratchet_allows_recording(taken, earlier, rules) == passes


def test_a_budget_limits_the_whole_process_unless_a_metric_is_named() -> None:
    taken = snapshot(1, **{"process.total": 2000, "process.run": 1})
    verdict = judge(taken, None, Rules(max_memory=1999))
    assert not verdict.passed
    assert verdict.checked == ("process.total",)
    assert verdict.results[0].message.startswith("whole process: 1.95 KiB, of it ")
    assert judge(taken, None, Rules(max_memory=2000)).passed
    assert judge(taken, None, Rules(metrics=("planned",), max_memory=1)).passed


def test_without_a_metric_the_metrics_of_the_baseline_are_checked() -> None:
    now, before = snapshot(1000, total=1001, naive=9), snapshot(1000, total=1000, naive=1)
    assert judge(now, before, Rules()).checked == ("planned",)
    verdict = judge(now, replace(before, checked=("planned", "total")), Rules())
    assert verdict.checked == ("planned", "total")
    assert [result.metric for result in verdict.results] == ["total"]
    other = judge(now, replace(before, checked=("total",)), Rules(metrics=("naive",)))
    assert other.checked == ("naive",)


def test_one_metric_that_fails_leaves_the_others_passed() -> None:
    rules = Rules(metrics=("planned", "total", "live_peak"))
    verdict = judge(snapshot(total=1001), snapshot(total=1000), rules)
    assert not verdict.passed
    failed = [name for name in rules.metrics if verdict.failures(name)]
    assert failed == ["total"]


def test_a_finding_without_a_metric_fails_every_metric() -> None:
    rules = Rules(metrics=("planned", "live_peak"), max_increase=NONE)
    verdict = judge(snapshot(), None, rules)
    assert all(verdict.failures(name) for name in rules.metrics)


def test_partial_totals_are_marked_and_do_not_fail() -> None:
    rules = Rules(metrics=("planned",), max_memory=1000)
    verdict = judge(replace(snapshot(), coverage=0.9999), None, rules)
    assert verdict.passed
    (result,) = verdict.results
    assert result.finding is Finding.PARTIAL
    assert result.message == (
        "totals are partial: the sizes of 99.9% of the intermediates are known"
    )
    assert to_json(verdict)["partial"] is True
    assert to_json(verdict)["coverage"] == 0.9999


def test_an_unknown_total_says_what_would_make_it_known() -> None:
    unknown = replace(snapshot(), metrics={}, size_hint="bind every dim: --dim n=1")
    with pytest.raises(UnknownSizeError) as caught:
        judge(unknown, None, Rules(metrics=("planned",), max_memory=1))
    assert caught.value.hint == "bind every dim: --dim n=1"


def test_a_process_that_cannot_be_predicted_says_why_and_what_can_be_checked() -> None:
    unknown = replace(snapshot(), process_obstacle="data decides the size of 'i'")
    with pytest.raises(UnknownSizeError, match="data decides the size of 'i'") as caught:
        judge(unknown, None, Rules(max_memory=1))
    assert "--metric planned" in caught.value.hint


def test_a_baseline_that_names_no_metrics_is_checked_for_what_is_planned() -> None:
    verdict = judge(snapshot(1001, **{"process.total": 10**9}), snapshot(), Rules())
    assert verdict.checked == ("planned",)
    assert [result.finding for result in verdict.results] == [Finding.INCREASE]


def test_a_baseline_without_dims_and_coverage_is_read() -> None:
    data = to_json(replace(snapshot(), dims={"batch": "2"}, coverage=0.5))
    assert read_snapshot("m.onnx", data).coverage == 0.5
    assert read_snapshot("m.onnx", data).dims == {"batch": "2"}
    del data["dims"], data["coverage"]
    old = read_snapshot("m.onnx", data)
    assert (old.dims, old.coverage) == (None, 1.0)
    for wrong in (2, -1, True, "1", float("nan")):
        with pytest.raises(PlanError, match=r"coverage: expected (a share|a finite number)"):
            read_snapshot("m.onnx", {**data, "coverage": wrong})


def test_rules_of_one_model_win_over_those_of_all_and_later_globs_over_earlier() -> None:
    book = RuleBook(
        Rules(max_memory=1, ratchet=True),
        {
            "models/*.onnx": {"max_memory": 2},
            "det.onnx": {"max_memory": 3, "metric": ("total",)},
        },
    )
    assert book.rules_for("other/a.onnx") == Rules(max_memory=1, ratchet=True)
    assert book.rules_for("models/a.onnx").max_memory == 2
    assert book.rules_for("models/det.onnx") == Rules(("total",), 3, None, ratchet=True)
    assert rules_from({"baseline": "b"}, Rules()) == Rules()


def test_a_baseline_reads_back_as_it_was_written(tmp_path: Path) -> None:
    taken = snapshot_of(read_plan(PLANS / "branchy.memplan.json"), "a.onnx", "ort")
    path = tmp_path / "b.json"
    path.write_text(baseline_text({"b.onnx": snapshot(), "a.onnx": taken}))
    back = read_baseline(path)
    assert list(back) == ["a.onnx", "b.onnx"]
    assert back["a.onnx"] == replace(taken, tensors=baseline_tensors(taken))
    assert baseline_text(back) == path.read_text()
    assert taken.runtime == "onnxruntime 1.31.1 CPUExecutionProvider"


def test_a_plan_is_a_baseline_of_its_own_model(tmp_path: Path) -> None:
    plan = read_plan(PLANS / "branchy.memplan.json")
    path = tmp_path / "old.memplan.json"
    path.write_text(plan.dumps())
    assert list(read_baseline(path)) == [plan.report.model.path]


def test_a_baseline_names_models_from_its_own_folder(tmp_path: Path) -> None:
    assert model_key(tmp_path / "m" / "a.onnx", tmp_path / "b.json") == "m/a.onnx"
    assert model_key(tmp_path / "a.onnx", tmp_path / "ci" / "b.json") == "../a.onnx"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "memplan.baseline/2", "models": {}}',
        '{"schema": "memplan.baseline/1"}',
        '{"schema": "memplan.baseline/1", "models": {"m": {}}}',
        '{"schema": "memplan.baseline/1", "models": {"m": 3}}',
        '{"schema": "memplan.plan/1"}',
        "[" * 100_000,
        "\x00",
    ],
)
def test_what_is_no_baseline_is_refused_without_a_traceback(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(MemplanError):
        read_baseline(path)


def test_a_baseline_with_a_wrong_type_names_the_entry(tmp_path: Path) -> None:
    data = json.loads(baseline_text({"m.onnx": snapshot()}))
    data["models"]["m.onnx"]["metrics"]["planned"] = "many"
    path = tmp_path / "b.json"
    path.write_text(json.dumps(data))
    with pytest.raises(
        PlanError, match=r"entry for 'm\.onnx'.*expected a whole number.*'many'"
    ):
        read_baseline(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_baseline_with_anything_anywhere_is_read_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    taken = replace(snapshot(), tensors={"t": TensorFacts(8, 2, "w", "r", 8)})
    whole = json.loads(baseline_text({"m.onnx": taken}))
    place, key = whole, data.draw(st.sampled_from(sorted(whole)))
    while isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place)))
    place[key] = data.draw(JSON)
    path = tmp_path / "b.json"
    path.write_text(json.dumps(whole))
    try:
        read = read_baseline(path)
    except MemplanError:
        return
    assert json.loads(baseline_text(read))["models"].keys() == whole["models"].keys()


def test_a_baseline_keeps_what_is_at_the_peak_and_drops_the_smallest() -> None:
    large = {
        f"big{n:04}": TensorFacts(10**6, 2, "w", "r") for n in range(2 * MAX_BASELINE_TENSORS)
    }
    tensors = {
        **large,
        "tiny": TensorFacts(1, 1, "w", "r"),
        "at": TensorFacts(1, 1, "w", "r", 1),
    }
    taken = replace(snapshot(10**6), tensors=tensors)
    kept = baseline_tensors(taken)
    assert len(kept) == MAX_BASELINE_TENSORS
    assert "at" in kept
    assert "tiny" not in kept
    few = baseline_tensors(
        replace(taken, tensors={k: tensors[k] for k in ("tiny", "big0001")})
    )
    assert list(few) == ["big0001"]
