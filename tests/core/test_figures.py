"""How sure is each number of a report? Said in the data, and beside the number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import plan_of_text, read
from memplan_cli.api.rewrites import REWRITES
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.memory import CERTAINTY, weakest
from memplan_cli.core.results.observations import Peaks
from memplan_cli.core.results.report import Report, RuntimeSummary
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.planning.candidate import Source
from memplan_cli.planning.planner import make_plan
from memplan_cli.reporting.formats import render
from memplan_cli.reporting.plans.memory import (
    certainty_lines,
    memory_figures,
    total_figures,
)
from memplan_cli.settings.settings import Settings

FIXED = "g (float[4,8] x) => (float[4,8] z) { a = Relu(x) b = Exp(a) z = Neg(b) }"
BATCH = """g (float[batch,8] x) => (float[8] z) <int64[1] k = {0}> {
    a = Relu(x) b = Exp(a) z = ReduceSum<keepdims = 0>(b, k) }"""
ODD = """g (float[4,8] x) => (float[4,8] z) {
    a = Relu(x) b = local.Mystery(a) z = Neg(a) c = local.Riddle(b) }"""


def words(text: str, settings: Settings | None = None) -> dict[str, str]:
    return dict(plan_of_text(text, settings or Settings()).report.certainty)


def test_numbers_of_a_model_of_fixed_sizes_are_exact() -> None:
    assert set(words(FIXED).values()) == {"exact"}
    assert set(words(FIXED)) == {
        "weights", "inputs", "outputs", "naive", "live_peak", "resident", "planned", "total",
    }  # fmt: skip


def test_what_is_the_most_within_bounds_is_a_bound() -> None:
    found = words(BATCH, Settings(bounds={"batch": DimRange(1, 8)}))
    assert {name for name, word in found.items() if word == "exact"} == {"weights", "outputs"}
    assert {found[name] for name in ("inputs", "naive", "live_peak", "planned", "total")} == {
        "bound"
    }


def test_an_expression_is_exact_and_what_has_none_is_unknown() -> None:
    assert set(words(BATCH).values()) == {"exact"}
    sums = "".join(f" a{n} = Relu(x{n}) b{n} = Exp(a{n}) z{n} = Neg(b{n})" for n in range(9))
    inputs = ", ".join(f"float[d{n}] x{n}" for n in range(9))
    outputs = ", ".join(f"float[d{n}] z{n}" for n in range(9))
    found = words(f"g ({inputs}) => ({outputs}) {{{sums} }}")
    assert (found["live_peak"], found["planned"]) == ("unknown", "exact")


def test_where_sizes_are_missing_sums_are_unknown_or_partial() -> None:
    found = words(ODD)
    assert [found[name] for name in ("inputs", "naive", "planned", "total")] == [
        "exact", "unknown", "unknown", "unknown",
    ]  # fmt: skip
    found = words(ODD, Settings(allow_partial=True))
    assert [found[name] for name in ("inputs", "naive", "planned", "total")] == [
        "exact", "partial", "partial", "partial",
    ]  # fmt: skip


def test_sizes_of_which_some_come_from_a_run_are_observed() -> None:
    source = Source("model.onnx", "0" * 64, "1" * 64, sizes_observed=True)
    found = make_plan(read(FIXED), Settings(), source, REWRITES).plan.report.certainty
    assert (found["inputs"], found["planned"], found["total"]) == (
        "exact", "observed", "observed",
    )  # fmt: skip


def test_weights_of_strings_are_counted_in_part() -> None:
    text = """g (float[4] x) => (float[4] z, string[1] t) {
        s = Constant<value_string = "word">() t = Identity(s) z = Neg(x) }"""
    found = words(text, Settings(allow_partial=True))
    assert (found["weights"], found["total"]) == ("partial", "partial")


def test_a_sum_is_as_sure_as_its_least_sure_term() -> None:
    assert weakest("exact", "exact") == "exact"
    assert weakest("bound", "exact") == "bound"
    assert weakest("unknown", "partial", "bound") == "unknown"


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_each_number_is_shown_with_its_word_and_the_words_are_explained(form: str) -> None:
    plan = plan_of_text(BATCH, Settings(bounds={"batch": DimRange(1, 8)}))
    shown = render(plan, form, detail="definitions" if form == "text" else "answer")
    rows = (*memory_figures(plan.report), *total_figures(plan.report))
    marked = {row.name: row.certainty for row in rows}
    assert marked["weights"] == "exact"
    assert marked["level 1"] == marked["lower bound"] == marked["total"] == "bound"
    assert marked["workspace"] == ""
    # The legend names each word once, and a card of the page is a row once more.
    assert shown.count("bound") >= sum(word == "bound" for word in marked.values()) + 1
    for line in certainty_lines(plan.report):
        assert line.split(": ")[0] in ("exact", "bound", "unknown")
        assert line in " ".join(shown.split())


def test_workspace_is_what_was_observed_or_unknown() -> None:
    report = plan_of_text(FIXED).report
    assert {row.name: row.value for row in total_figures(report)}["workspace"] == "unknown"
    peaks = Peaks(1, 1, held=9, scratch=2048)
    runtime = RuntimeSummary("onnxruntime", "1", "CPU", observed={"optimized": peaks})
    measured = replace(report, runtime=runtime)
    (row,) = [row for row in total_figures(measured) if row.name == "workspace"]
    assert (row.value, row.certainty) == ("2.00 KiB", "observed")


def test_a_report_read_back_says_the_same_and_no_other_word() -> None:
    report = plan_of_text(FIXED).report
    data = to_json(report)
    assert from_json(Report, data, "the report").certainty == report.certainty
    assert set(data["certainty"].values()) <= set(CERTAINTY)
    older = {name: value for name, value in data.items() if name != "certainty"}
    assert from_json(Report, older, "the report").certainty == {}
    with pytest.raises(MisfitError, match=r"certainty\.planned"):
        from_json(Report, {**data, "certainty": {"planned": "\x1b[31m"}}, "the report")
