"""The first lines answer: the process, the plan, what was proved, what to do next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builders import plan_of_text
from memplan_cli.core.results.observations import CPU, Peaks, ProcessBytes
from memplan_cli.core.results.report import RuntimeSummary
from memplan_cli.errors import SettingsError
from memplan_cli.reporting import render
from memplan_cli.settings.settings import MemParam, Settings

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


TEXT = "g (float[1024] x) => (float[1024] y) { a = Exp(x) b = Neg(a) c = Exp(b) y = Neg(c) }"


def observed(load: int, run: int, held: int) -> Peaks:
    process = ProcessBytes(load, run, run // 2, run // 4)
    return Peaks(100, 100, held=held, weights=1024, process=process)


def first_lines(before: Peaks | None, after: Peaks | None) -> list[str]:
    plan: Plan = plan_of_text(TEXT)
    if before and after:
        sides = {"original": before, "optimized": after}
        runtime = RuntimeSummary("onnxruntime", "1", CPU, dict(sides), sides)
        plan = plan.with_report(replace(plan.report, runtime=runtime))
    return render(plan, "text", detail="details").splitlines()[2:]


def test_the_process_comes_first_then_the_plan_its_proof_and_the_next_step() -> None:
    first, second, *lines = first_lines(
        observed(200_000_000, 300_000_000, 5120), observed(50_000_000, 150_000_000, 3072)
    )
    # 48 MiB, 300 MB and 1024 floats; Exp's result, Neg's and Exp's share 4 KiB at the peak.
    assert f"{first} {second}" == (
        "Process: about 334.11 MiB (interpreter and runtime 48.00 MiB, model 286.10 MiB, inputs + kept outputs 8.00 KiB), "
        "measured. Activations at their peak: 4.00 KiB."
    )
    assert [line.split() for line in lines[:3]] == [
        ["process", "beyond", "its", "imports,", "observed", "before", "after", "change"],
        ["load", "200.0", "MB", "50.0", "MB", "-75.0%"],
        ["run", "300.0", "MB", "150.0", "MB", "-50.0%"],
    ]
    starts = [
        line.partition(":")[0] for line in lines if line.startswith(("plan", "proved", "next"))
    ]
    assert starts == ["plan", "proved", "next"]


@pytest.mark.parametrize("after", [200_000_000, 199_000_000, 230_000_000])
def test_where_nothing_is_won_the_headline_says_so(after: int) -> None:
    lines = first_lines(observed(200_000_000, 200_000_000, 9), observed(after, after, 9))
    assert lines[0].startswith("Process: about 238.74 MiB ")
    assert lines[2].startswith("process beyond its imports, observed ")
    assert any(line.startswith("No saving: ") for line in lines)


def test_the_headline_leaves_out_processes_that_were_not_measured() -> None:
    before, after = observed(1, 1, 4096), observed(1, 1, 2048)
    lines = first_lines(replace(before, process=None), replace(after, process=None))
    assert lines[0].startswith("plan: ")
    assert first_lines(None, None)[0].startswith("plan: ")


def test_no_share_of_what_nobody_runs_stands_in_the_headline() -> None:
    assert "%" not in first_lines(None, None)[0]


def test_a_prediction_stands_where_nothing_was_observed_and_says_so() -> None:
    plan = plan_of_text(TEXT)
    sides = {"original": observed(10_000_000, 20_000_000, 1), "optimized": observed(1, 1, 1)}
    report = replace(plan.report, runtime=RuntimeSummary("onnxruntime", "1", CPU, sides))
    lines = render(plan.with_report(report), "text").splitlines()
    assert lines[2].startswith("Process: about 67.08 MiB ")
    assert "predicted, usually within 10%" in " ".join(lines[2:5])
    (row,) = (
        n
        for n, line in enumerate(lines)
        if line.startswith("process beyond its imports, predicted ")
    )
    assert lines[row + 1].split() == ["load", "10.0", "MB", "0.0", "MB", "-100.0%"]


def test_the_answer_is_five_lines_and_the_options_for_more() -> None:
    lines = render(plan_of_text(TEXT), "text").splitlines()
    starts = [
        line.partition(":")[0] for line in lines if line.startswith(("plan", "proved", "next"))
    ]
    assert starts == ["plan", "proved", "next"]
    assert lines[-1].startswith("-v prints all tables, --explain also")
    assert len(lines) == 9


def test_definitions_are_shown_to_those_who_ask() -> None:
    plan = plan_of_text(TEXT)
    details = render(plan, "text", detail="details")
    explained = render(plan, "text", detail="definitions")
    assert "level 2 *" in details
    assert "byte offsets in one arena" not in details
    assert "exact: for any data" not in details
    assert "byte offsets in one arena" in explained
    assert "exact: for any data" in explained


def test_a_model_left_as_it_is_gives_one_reason_and_no_false_ones() -> None:
    plan = plan_of_text(TEXT, Settings(mem_param=MemParam(optimize_test=False)))
    shown = render(plan, "text", detail="definitions", print_log=True)
    log, _, report = shown.partition("Memory of")
    assert {line.partition("not reused: ")[2] for line in log.splitlines() if line} == {
        "the model is left as it is"
    }
    assert "Not reused, and why" not in report
    assert "next: set mem_param.optimize_test to true" in report


@pytest.mark.parametrize("form", ["json", "markdown", "html", "svg", "csv"])
def test_a_format_of_one_length_refuses_another(form: str) -> None:
    with pytest.raises(SettingsError, match="are for --format text"):
        render(plan_of_text(TEXT), form, detail="details")


def test_a_partial_plan_claims_no_least_order() -> None:
    plan = plan_of_text(TEXT)
    report = replace(plan.report, coverage=0.5)
    shown = render(plan.with_report(report), "text")
    assert "proved: nothing on unknown sizes" in shown
    assert "needs less" not in shown
