"""The first lines answer: the process, the plan, what was proved, what to do next."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builders import plan_of_text
from memplan_cli.core.binding_options import InputShape
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.results.observations import (
    CPU,
    Peaks,
    ProcessBytes,
    TimeRatio,
    Validation,
)
from memplan_cli.core.results.report import READ_BY_SHAPE, FileBytes, RuntimeSummary
from memplan_cli.errors import SettingsError
from memplan_cli.reporting.formats import render
from memplan_cli.reporting.plans.report import Invocation
from memplan_cli.settings.settings import MemParam, Settings

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


TEXT = "g (float[1024] x) => (float[1024] y) { a = Exp(x) b = Neg(a) c = Exp(b) y = Neg(c) }"


def observed(load: int, run: int, held: int, peak: int = 100) -> Peaks:
    process = ProcessBytes(load, run, run // 2, run // 4)
    return Peaks(peak, peak, held=held, weights=1024, process=process)


def with_runtime(
    observed: dict[str, Peaks], predicted: dict[str, Peaks] | None = None
) -> Plan:
    plan: Plan = plan_of_text(TEXT)
    facts = RuntimeSummary("onnxruntime", "1.31.1", CPU, predicted or dict(observed), observed)
    return plan.with_report(replace(plan.report, runtime=facts))


def lines_of(before: Peaks | None, after: Peaks | None) -> list[str]:
    """The lines of a report below its subject line, without empty ones."""
    plan: Plan = plan_of_text(TEXT)
    if before and after:
        plan = with_runtime({"original": before, "optimized": after})
    return [line for line in render(plan, "text").splitlines()[1:] if line]


def test_the_process_comes_first_then_the_plan_its_proof_and_the_next_step() -> None:
    lines = lines_of(
        observed(200_000_000, 300_000_000, 5120), observed(50_000_000, 150_000_000, 3072)
    )
    # 48 MiB, 300 MB and 1024 floats twice; Exp's result, Neg's and Exp's share 4 KiB at the peak.
    assert [line.split() for line in lines[:8]] == [
        ["Process", "memory", "(measured)", "before", "after", "change"],
        ["whole", "process", "334.11", "MiB", "191.06", "MiB", "-43%"],
        ["interpreter", "and", "runtime", "48.00", "MiB", "48.00", "MiB"],
        ["inputs", "and", "kept", "outputs", "8.00", "KiB", "8.00", "KiB"],
        ["model,", "while", "running", "286.10", "MiB", "143.05", "MiB", "-50%"],
        ["model,", "while", "loading", "190.73", "MiB", "47.68", "MiB", "-75%"],
        ["private,", "after", "a", "run", "143.05", "MiB", "71.53", "MiB", "-50%"],
        ["mapped", "files", "(evictable)", "71.53", "MiB", "35.76", "MiB", "-50%"],
    ]
    topics = [
        line for line in lines[8:] if line.startswith(("Intermediates", "[ok]", "Write"))
    ]
    assert [line.split()[0] for line in topics] == ["Intermediates", "[ok]", "Write"]
    assert lines[-1] == topics[-1], "the next step is last"


def test_the_subject_line_has_the_model_the_written_one_and_the_runtime() -> None:
    plan = with_runtime({})
    plan = plan.with_report(
        replace(plan.report, model=replace(plan.report.model, path="a.onnx"))
    )
    assert render(plan, "text").splitlines()[0] == f"a.onnx{'ONNX Runtime 1.31.1, CPU':>74}"
    written = render(plan, "text", invocation=Invocation(written="b.onnx")).splitlines()[0]
    assert written == f"a.onnx -> b.onnx{'ONNX Runtime 1.31.1, CPU':>64}"


@pytest.mark.parametrize("after", [200_000_000, 199_000_000, 230_000_000])
def test_no_saving_is_said_with_its_reason(after: int) -> None:
    lines = lines_of(observed(200_000_000, 200_000_000, 9), observed(after, after, 9))
    assert lines[1].startswith("whole process  ")
    (reason,) = (line for line in lines if line.startswith("No saving: "))
    assert reason.startswith("No saving: ONNX Runtime by itself needs only 100 B for")
    text = " ".join(lines)
    assert (
        "of its optimized graph (the table below is for the graph in the file), which" in text
    )
    assert lines[-1].endswith(" why model.onnx --process")


def test_no_saving_is_said_with_the_sizes_that_it_holds_for() -> None:
    peaks = observed(200_000_000, 200_000_000, 9)
    plan = with_runtime({"original": peaks, "optimized": peaks})
    bindings = {"batch": BoundDim(1, "assumed")}
    text = render(plan.with_report(replace(plan.report, bindings=bindings)), "text")
    assert "\nNo saving at batch=1: ONNX Runtime by itself" in text


def test_a_saving_in_the_order_of_the_file_names_its_origin_and_the_command_that_delivers_it() -> (
    None
):
    peaks = {
        "original": observed(200_000_000, 300_000_000, 0),
        "optimized": observed(200_000_000, 150_000_000, 0),
    }
    plan = with_runtime({}, peaks)
    text = render(plan, "text")
    assert "\nSession settings save this, not another order of the nodes.\n" in text
    assert text.splitlines()[-1].startswith("Write the smaller model:  memplan optimize ")
    better = plan.with_report(replace(plan.report, original_planned=1 << 20))
    assert "Session settings save this" not in render(better, "text")


def test_a_saving_that_is_small_beside_the_process_is_said_to_be_so() -> None:
    lines = lines_of(
        observed(200_000_000, 200_000_000, 9, 4096),
        observed(200_000_000, 200_000_000, 9, 1024),
    )
    reason = " ".join(line for line in lines if "saving" in line or "saves" in line)
    assert "No saving: of the 4.00 KiB that ONNX Runtime needs" in reason
    assert "saves 3.00 KiB, less than 1% of the process." in reason


def test_a_saving_beside_other_memory_of_the_process_is_not_called_small() -> None:
    lines = lines_of(
        observed(200_000_000, 200_000_000, 9, 100_000_000),
        observed(200_000_000, 200_000_000, 9, 20_000_000),
    )
    text = " ".join(lines)
    assert "No saving: of the 95.37 MiB that ONNX Runtime needs" in text
    assert "saves 76.29 MiB, but the process needs as much memory as before." in text


def test_the_time_of_runs_in_turn_is_the_only_one() -> None:
    sides = {
        side: replace(observed(200_000_000, 200_000_000, 9), processor_milliseconds=time)
        for side, time in (("original", 100.0), ("optimized", 185.0))
    }
    plan = with_runtime(sides)
    assert re.search(r"time of a run +100 ms +185 ms +\+85%", render(plan, "text"))
    assert plan.report.runtime is not None
    runtime = replace(plan.report.runtime, time=TimeRatio(1.2, 1.1, 1.3, 5))
    text = render(plan.with_report(replace(plan.report, runtime=runtime)), "text")
    assert re.search(r"time of a run +100 ms +120 ms +\+20%", text)
    assert "takes 1.20 times as long" in text


def test_a_saving_has_no_reason_for_none() -> None:
    lines = lines_of(
        observed(200_000_000, 200_000_000, 9), observed(100_000_000, 200_000_000, 9)
    )
    assert not any(line.startswith("No saving") for line in lines)


def test_processes_that_were_not_measured_are_left_out() -> None:
    before, after = observed(1, 1, 4096), observed(1, 1, 2048)
    lines = lines_of(replace(before, process=None), replace(after, process=None))
    assert lines[0].startswith("Intermediates ")
    assert lines_of(None, None)[0].startswith("Intermediates ")


def test_a_size_that_was_0_grows_from_nothing() -> None:
    (line,) = (
        line
        for line in lines_of(observed(1, 1, 9), observed(1, 400_000_000, 9))
        if line.startswith("mapped files")
    )
    assert line.split()[-5:] == ["B", "95.37", "MiB", "from", "nothing"]


def test_a_prediction_stands_where_nothing_was_observed_and_says_so() -> None:
    sides = {"original": observed(10_000_000, 20_000_000, 1), "optimized": observed(1, 1, 1)}
    lines = render(with_runtime({}, sides), "text").splitlines()
    assert lines[2].startswith("Process memory (predicted, usually within 10%) ")
    assert lines[3].split() == ["whole", "process", "67.08", "MiB", "48.01", "MiB", "-28%"]
    assert lines[7].split()[3:] == ["9.54", "MiB", "1", "B", "-100%"]


def test_a_report_is_one_screen_of_one_family_of_units() -> None:
    shown = render(
        with_runtime({"original": observed(3, 2, 1), "optimized": observed(1, 1, 1)}), "text"
    )
    assert len(shown.splitlines()) <= 40
    assert re.search(r"\d [kMG]B\b", shown) is None
    assert max(map(len, shown.splitlines())) <= 80


def test_a_report_on_a_model_that_was_not_written_says_what_would_be() -> None:
    peaks = {
        "original": observed(200_000_000, 300_000_000, 0),
        "optimized": observed(50_000_000, 150_000_000, 0),
    }
    predicted = with_runtime({}, peaks)
    text = render(predicted, "text")
    assert re.search(r"before +if optimized +change", text)
    written = predicted.with_report(
        replace(predicted.report, files=FileBytes(original=100, written=90))
    )
    assert re.search(r"before +after +change", render(written, "text"))


def test_the_rows_that_make_the_whole_process_are_indented_and_all_are_defined() -> None:
    plan = with_runtime(
        {
            "original": observed(200_000_000, 300_000_000, 0),
            "optimized": observed(50_000_000, 150_000_000, 0),
        }
    )
    lines = render(plan, "text").splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("whole process"))
    rows = [re.split(r"   +", line.rstrip())[0] for line in lines[first : first + 7]]
    assert [row for row in rows if row.startswith("  ")] == [
        "  interpreter and runtime",
        "  inputs and kept outputs",
        "  model, while running",
    ]
    explained = render(plan, "text", detail="definitions")
    for row in rows:
        assert f"\n{row.strip()}: " in explained
        assert f"\n{row.strip()}: " not in render(plan, "text", detail="details")


def test_a_written_model_is_said_to_need_its_settings() -> None:
    plan = plan_of_text(TEXT)
    passed = Validation("passed", CPU, bit_identical=True)
    plan = plan.with_report(replace(plan.report, validation=passed))
    text = render(plan, "text", invocation=Invocation("small.onnx"))
    after = text.partition('Run it:  session = memplan.load("small.onnx")')[2]
    assert "A plain InferenceSession" in after
    assert "--settings-out FILE" in after


def test_what_limits_the_figures_precedes_them() -> None:
    plan = with_runtime({"original": observed(9, 9, 1), "optimized": observed(1, 1, 1)})
    bindings = {"batch": BoundDim(1, "assumed"), "seq": BoundDim(3, "given")}
    inputs = (InputShape("x", ("batch", "seq")),)
    report = replace(
        plan.report, bindings=bindings, model=replace(plan.report.model, inputs=inputs)
    )
    shown = render(plan.with_report(report).with_warnings("be careful"), "text")
    above, _, figures = shown.partition("Process memory")
    assert "Sizes are guessed: batch=1; set them with --dim batch=N\n" in above
    assert "Sizes, as given: seq=3.\n" in above
    assert "warning: be careful\n" in above
    assert "careful" not in figures


@pytest.mark.parametrize(
    "remark",
    ["the arena is larger: the written model ran again", f"2 outputs {READ_BY_SHAPE}"],
)
def test_how_memplan_arrived_at_its_result_is_for_debugging(remark: str) -> None:
    plan = plan_of_text(TEXT).with_warnings(remark)
    assert remark not in render(plan, "text")
    assert remark in " ".join(render(plan, "text", invocation=Invocation(debug=True)).split())
    assert remark in json.loads(render(plan, "json"))["warnings"]


def test_the_next_step_repeats_the_options_of_the_user() -> None:
    plan = plan_of_text(TEXT)
    report = replace(
        plan.report, original_planned=9999, model=replace(plan.report.model, path="a b.onnx")
    )
    options = {"optimize": ("--level 1", "--exclude 'fc 1'")}
    invocation = Invocation(repeated_options=options.__getitem__)
    shown = render(plan.with_report(report), "text", invocation=invocation)
    assert shown.endswith("  memplan optimize 'a b.onnx' --level 1 --exclude 'fc 1'\n")


def test_a_failed_comparison_says_so_and_replaces_the_order_that_was_asked_for() -> None:
    plan = plan_of_text(TEXT)
    verdict = Validation("failed", CPU, max_abs_diff=0.5, bit_identical=False)
    report = replace(
        plan.report, validation=verdict, model=replace(plan.report.model, path="a.onnx")
    )
    options = ("--level 1", "--order auto")
    invocation = Invocation(repeated_options=lambda _command: options)
    lines = render(plan.with_report(report), "text", invocation=invocation).splitlines()
    failed = "[failed] The outputs differ from a default run of the original."
    assert failed in lines
    assert lines[-1].endswith("memplan optimize a.onnx --level 1 --order keep")


def test_steps_with_donated_buffers_may_have_failed() -> None:
    plan = plan_of_text(TEXT)
    verdict = Validation("passed", CPU, bit_identical=True, donated="failed")
    text = render(plan.with_report(replace(plan.report, validation=verdict)), "text")
    assert "[failed] Two steps with donated buffers have other outputs, or failed.\n" in text


def test_no_share_of_what_nobody_runs_stands_in_the_first_line() -> None:
    assert "%" not in lines_of(None, None)[0]


def test_the_answer_ends_with_the_options_for_more_and_the_next_step() -> None:
    lines = lines_of(None, None)
    assert lines[-2].startswith("-v prints all tables, --explain also")
    assert "memplan " in lines[-1]
    assert len(lines) <= 8


def test_definitions_are_shown_to_those_who_ask() -> None:
    plan = plan_of_text(TEXT)
    details = render(plan, "text", detail="details")
    explained = render(plan, "text", detail="definitions")
    assert "level 2, as planned" in details
    assert "byte offsets in one arena" not in details
    assert "exact: for any data" not in details
    assert "byte offsets in one arena" in explained
    assert "exact: for any data" in explained


def test_a_model_left_as_it_is_gives_one_reason_and_no_false_ones() -> None:
    plan = plan_of_text(TEXT, Settings(mem_param=MemParam(optimize_test=False)))
    shown = render(plan, "text", detail="definitions", print_log=True)
    log, _, report = shown.partition("\n\n")
    assert {line.partition("not reused: ")[2] for line in log.splitlines() if line} == {
        "the model is left as it is"
    }
    assert "Not reused, and why" not in report
    assert "To plan the model, set mem_param.optimize_test to true." in report


@pytest.mark.parametrize("form", ["json", "markdown", "html", "svg", "csv"])
def test_a_format_of_one_length_refuses_another(form: str) -> None:
    with pytest.raises(SettingsError, match="are for --format text"):
        render(plan_of_text(TEXT), form, detail="details")


def test_a_partial_plan_claims_no_least_order() -> None:
    plan = plan_of_text(TEXT)
    report = replace(plan.report, coverage=0.5)
    shown = render(plan.with_report(report), "text")
    assert "partial: only 50.0% of the intermediates have a known size" in shown
    assert "needs less" not in shown
