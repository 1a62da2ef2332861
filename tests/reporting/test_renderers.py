"""Every format, over every golden plan: compared with a file that a person has read."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from memplan_cli.api.plan_sections import FEATURE_SECTIONS
from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.problem import align, lower_bound
from memplan_cli.core.results.observations import Peaks
from memplan_cli.core.results.report import Report
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.document import Code, NextStep
from memplan_cli.reporting.formats import EXPORTS, render
from memplan_cli.reporting.media import text
from memplan_cli.reporting.media.chart import bar_lines, sampled_maxima
from memplan_cli.reporting.media.text import Screen
from memplan_cli.reporting.plans.exports import Interface, Port, c_header
from memplan_cli.reporting.plans.report import plan_document, text_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.results.plan import Plan

GOLDEN = Path(__file__).parents[1] / "golden" / "renderers"
PLANS = {
    path.name.removesuffix(".memplan.json"): path
    for path in sorted((GOLDEN / "plans").glob("*.json"))
}
RENDERERS: dict[str, Callable[[Plan], str]] = {
    **EXPORTS,
    "json": lambda plan: render(plan, "json"),
    "text": lambda plan: text.draw(
        text_document(plan, 12, "definitions", FEATURE_SECTIONS), Screen()
    ),
    "markdown": lambda plan: render(plan, "markdown", sections=FEATURE_SECTIONS),
    "html": lambda plan: render(plan, "html", sections=FEATURE_SECTIONS),
}
FIXED_ONLY = ("c-header", "tflm", "minimalloc")


def plan_named(name: str) -> Plan:
    return read_plan(PLANS[name])


def draw(plan: Plan, screen: Screen) -> str:
    return text.draw(plan_document(plan, 12, FEATURE_SECTIONS), screen)


@pytest.mark.parametrize("name", ["branchy", "train_level1", "nested", "dynamic"])
@pytest.mark.parametrize("form", RENDERERS)
def test_each_format_equals_its_golden_file(
    name: str, form: str, *, update_golden: bool
) -> None:
    plan = plan_named(name)
    if name == "dynamic" and form in FIXED_ONLY:
        with pytest.raises(PlanError, match="depend on"):
            RENDERERS[form](plan)
        return
    got = RENDERERS[form](plan)
    if form == "html":
        # What is the same for every plan is reviewed in its own files.
        got = re.sub(r"(?s)<style>.*?</style>|<script>.*?</script>|sha256-[^']*", "", got)
    path = GOLDEN / f"{name}.{form}"
    if update_golden:
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", RENDERERS)
def test_no_format_lets_a_name_steer_the_terminal(form: str) -> None:
    got = RENDERERS[form](plan_named("hostile"))
    assert not [c for c in got if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize("form", ["html", "svg", "markdown"])
def test_no_name_becomes_an_element(form: str) -> None:
    got = RENDERERS[form](plan_named("hostile"))
    shown = MarkdownIt("commonmark").enable("table").render(got) if form == "markdown" else got
    for mark in ("<script>alert", "<img", "<b>", "onerror=alert(1)>", "<![CDATA[", "<a "):
        assert mark not in shown
    if form == "markdown":
        rows = [line for line in got.splitlines() if line.startswith("|")]
        cells = {row.count("|") - row.count("\\|") for row in rows}
        assert cells <= {3, 4, 5, 6, 7}, "a name with a bar adds no cell"


def test_the_svg_is_xml_and_holds_every_buffer() -> None:
    for name in ("branchy", "hostile", "dynamic"):
        plan = plan_named(name)
        root = ET.fromstring(RENDERERS["svg"](plan))  # noqa: S314 - we have just written it
        boxes = [e for e in root.iter() if e.get("class") == "b"]
        owners = {t.alias_of or t.id for t in plan.tensors if t.bytes}
        assert 0 < len(boxes) <= len(owners)
    assert "nothing is planned" in RENDERERS["svg"](replace(plan, arenas=(), tensors=()))


def test_the_csv_reads_back_and_holds_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(RENDERERS["csv"](plan_named("hostile")))))
    assert len(rows) == len(plan_named("hostile").tensors)
    assert not [
        row for row in rows for cell in row.values() if cell[:1] in {"=", "+", "-", "@"}
    ]
    assert rows[0]["name"] == r"\x1b[31mred\x1b[0m"
    assert sum(int(row["bytes"]) for row in rows) == plan_named("hostile").report.memory.naive


def test_the_minimalloc_csv_is_the_problem_that_was_solved() -> None:
    plan = plan_named("branchy")
    rows = list(csv.DictReader(io.StringIO(RENDERERS["minimalloc"](plan))))
    ((problem, layout),) = plan.problems
    got = [(row["id"], int(row["lower"]), int(row["upper"]), int(row["size"])) for row in rows]
    assert got == [
        (b.id, b.live.start, b.live.end, align(b.size, problem.alignment))
        for b in problem.buffers
    ]
    assert layout.height >= lower_bound(problem)


def test_the_trace_has_a_begin_and_an_end_for_everything() -> None:
    events = json.loads(RENDERERS["chrome-trace"](plan_named("nested")))["traceEvents"]
    begins = {event["id"] for event in events if event["ph"] == "b"}
    assert begins == {event["id"] for event in events if event["ph"] == "e"}
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == plan_named("nested").report.model.nodes


def test_the_trace_counts_up_to_the_live_peak() -> None:
    plan = plan_named("branchy")
    events = json.loads(RENDERERS["chrome-trace"](plan))["traceEvents"]
    live = max(event["args"]["live"] for event in events if event["ph"] == "C")
    assert live == plan.report.memory.live_peak


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
@pytest.mark.parametrize("name", ["branchy", "hostile"])
def test_the_c_header_compiles_without_a_warning_and_says_the_offsets(
    tmp_path: Path, name: str
) -> None:
    plan = plan_named(name)
    (tmp_path / "plan.h").write_text(RENDERERS["c-header"](plan), encoding="utf-8")
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "plan.h"\n'
        "int main(void) { int i; for (i = 0; i < MEMPLAN_TENSOR_COUNT; ++i) {\n"
        ' printf("%lu\\n", (unsigned long)MEMPLAN_TENSORS[i].offset); }\n'
        ' printf("%lu\\n", (unsigned long)MEMPLAN_ARENA_BYTES); return 0; }\n'
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-trigraphs"]
    subprocess.run(["cc", *flags, "main.c", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    offsets = [*(tensor.offset for tensor in plan.tensors), plan.arenas[0].height]
    assert [int(line) for line in done.stdout.split()] == offsets


_PRINTS = """#include <stdio.h>
#include "plan.h"
int main(void) { int i;
  for (i = 0; i < MEMPLAN_STEP_COUNT; ++i) printf("%s ", MEMPLAN_STEPS[i].name);
  for (i = 0; i < MEMPLAN_TENSOR_COUNT; ++i) printf("%ld ", (long)MEMPLAN_TENSORS[i].alias_of);
  for (i = 0; i < MEMPLAN_INPUT_COUNT; ++i)
    printf("%s %s ", MEMPLAN_INPUTS[i].name, MEMPLAN_INPUTS[i].shape);
  for (i = 0; i < MEMPLAN_OUTPUT_COUNT; ++i)
    printf("%s %s %lu ", MEMPLAN_OUTPUTS[i].name, MEMPLAN_OUTPUTS[i].dtype,
           (unsigned long)MEMPLAN_OUTPUTS[i].bytes);
  return 0; }
"""


@pytest.mark.parametrize(
    ("compiler", "standard", "file"), [("cc", "c99", "main.c"), ("c++", "c++11", "main.cc")]
)
def test_the_c_header_says_the_steps_the_aliases_and_what_goes_in_and_out(
    tmp_path: Path, compiler: str, standard: str, file: str
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    plan = plan_named("branchy")
    interface = Interface(
        (Port("image", "float32", (1, 3, 32, 32), 12288),),
        (Port("prob", "float32", (1, "n"), None), Port("odd", "string", None, None)),
    )
    (tmp_path / "plan.h").write_text(c_header(plan, interface), encoding="utf-8")
    (tmp_path / file).write_text(_PRINTS)
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    subprocess.run([compiler, *flags, file, "-o", "main"], cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    at = [tensor.id for tensor in plan.tensors]
    aliases = [at.index(t.alias_of) if t.alias_of else -1 for t in plan.tensors]
    assert said.stdout.split() == [
        *plan.order[0].nodes,
        *map(str, aliases),
        *("image", "1x3x32x32", "prob", "float32", "0", "odd", "string", "0"),
    ]


def test_the_c_header_tells_a_dim_of_zero_from_an_unknown_one() -> None:
    interface = Interface((Port("x", "float32", (0, None, 3), None),), ())
    assert r"0x\?x3" in c_header(plan_named("branchy"), interface)


def test_names_that_look_alike_in_c_have_macros_of_their_own() -> None:
    plan = plan_named("nested")
    names = ["a.b", "a/b", "a b", *(tensor.name for tensor in plan.tensors[3:])]
    tensors = tuple(
        tensor._replace(name=name, block="", alias_of=None)
        for tensor, name in zip(plan.tensors, names, strict=True)
    )
    text = RENDERERS["c-header"](replace(plan, tensors=tensors, report=plan.report))
    macros = re.findall(r"#define (MEMPLAN_INDEX_\w+)", text)
    assert macros[:3] == ["MEMPLAN_INDEX_A_B", "MEMPLAN_INDEX_A_B__1", "MEMPLAN_INDEX_A_B__2"]
    assert len(set(macros)) == len(macros) == len(tensors)


def test_the_tflm_words_hold_an_offset_for_each_tensor() -> None:
    plan = plan_named("branchy")
    data = json.loads(RENDERERS["tflm"](plan))
    assert data["words"][:3] == [0, 0, len(data["tensors"])]
    assert data["words"][3:] == [tensor.offset for tensor in plan.tensors]
    nested = json.loads(RENDERERS["tflm"](plan_named("nested")))
    assert nested["words"].count(-1) == len(plan_named("nested").report.unplanned)


def test_the_tflm_words_are_for_tensors_by_their_names_in_the_model() -> None:
    plan = plan_named("branchy")
    tensors = (plan.tensors[0]._replace(name="a\u202eb", alias_of=None), *plan.tensors[1:])
    data = json.loads(RENDERERS["tflm"](replace(plan, tensors=tensors)))
    assert data["tensors"][0] == "a\u202eb"


def test_an_offset_beyond_32_bits_is_refused_for_tflm() -> None:
    plan = plan_named("branchy")
    far = tuple(t._replace(offset=t.offset + 2**31) for t in plan.tensors)
    with pytest.raises(PlanError, match="32 bits"):
        RENDERERS["tflm"](replace(plan, tensors=far))


@pytest.mark.parametrize("width", [40, 60, 80, 160])
@pytest.mark.parametrize("name", PLANS)
def test_text_keeps_to_the_width_of_the_screen(name: str, width: int) -> None:
    document = plan_document(plan_named(name), 12, FEATURE_SECTIONS)
    # Code and commands to copy are never broken.
    blocks = tuple(b for b in document.blocks if not isinstance(b, Code | NextStep))
    lines = text.draw(replace(document, blocks=blocks), Screen(width)).splitlines()
    assert max(len(line) for line in lines) <= width


def test_text_is_colored_only_where_that_is_wanted() -> None:
    plan = plan_named("branchy")
    assert "\x1b[" in draw(plan, Screen(80, color=True))
    assert "\x1b" not in draw(plan, Screen(80))


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_what_the_arena_holds_is_compared_without_weights(form: str) -> None:
    plan = plan_named("branchy")
    assert plan.report.runtime is not None
    runtime = replace(
        plan.report.runtime,
        predicted={"optimized": Peaks(590120, 590120, held=3 << 20)},
        observed={"optimized": Peaks(590120, 590120, held=8 << 20, weights=5 << 20)},
    )
    report = replace(plan.report, runtime=runtime)
    read_again = from_json(Report, json.loads(json.dumps(to_json(report))), "the report")
    for each in (report, read_again):
        text = RENDERERS[form](plan.with_report(each))
        lines = re.split("\n|<tr>", re.sub("</?t[dh][^>]*>", " ", text))
        (whole,) = (re.findall(r"-(?= )|[\d.]+ MiB", line) for line in lines
                    if re.match(r"\W*arena\s[^,]*MiB", line))  # fmt: skip
        (aside,) = (re.findall(r"-(?= )|[\d.]+ MiB", line) for line in lines
                    if re.match(r"\W*arena, without weights\b.*MiB", line))  # fmt: skip
        assert whole == ["-", "-", "-", "8.00 MiB"], "a prediction knows no weights"
        assert aside == ["-", "-", "3.00 MiB", "3.00 MiB"]


def test_without_a_run_no_column_is_for_observed_numbers() -> None:
    plan = plan_named("branchy")
    assert plan.report.runtime is not None
    peaks = {"optimized": Peaks(590120, 590120, held=3 << 20)}
    runtime = replace(plan.report.runtime, predicted=peaks, observed={})
    text = RENDERERS["text"](plan.with_report(replace(plan.report, runtime=runtime)))
    assert "after: predicted" in text
    section = text.partition("\nPredicted: ")[2].partition("\n\n")[0]
    assert "first run peak" in section
    assert "observed" not in section


@pytest.mark.parametrize("form", ["text", "markdown", "html", "svg"])
def test_numbers_of_a_runtimes_graph_say_so(form: str) -> None:
    plan = plan_named("branchy")
    assert "the runtime" not in RENDERERS[form](plan).split("Predicted")[0]
    fused = replace(plan.report, target="cpu")
    said = " ".join(RENDERERS[form](plan.with_report(fused)).split()).replace("&#x27;", "'")
    title = "Intermediates of the graph optimized for cpu"
    if form == "svg":
        title = "for the intermediates of the graph that ONNX Runtime optimized for cpu, "
    assert title in said.replace("&#39;", "'")
    if form != "svg":
        assert (
            f"{plan.report.model.nodes} nodes of the graph that ONNX Runtime optimized" in said
        )


def test_a_report_is_of_no_other_phase_or_target_than_there_are() -> None:
    data = to_json(plan_named("branchy").report)
    assert "target" not in data
    fused = from_json(Report, {**data, "target": "cpu"}, "the report")
    assert from_json(Report, to_json(fused), "the report").target == "cpu"
    for odd in ({"target": "\x1b[31m"}, {"phase": "\x1b[31m"}, {"level": 3}):
        with pytest.raises(MisfitError, match=next(iter(odd))):
            from_json(Report, {**data, **odd}, "the report")


def test_a_forward_model_says_what_training_it_would_take() -> None:
    plan = plan_named("branchy")
    report = replace(plan.report, training_estimate={"raw": 4096, "optimized": 1024})
    for form in ("text", "markdown", "html"):
        said = RENDERERS[form](plan.with_report(report))
        assert "training step, planned" in said
        assert "4.00 KiB" in said
        assert "1.00 KiB" in said
        assert "training step" not in RENDERERS[form](
            plan.with_report(replace(report, training_estimate={}))
        )


def test_the_log_goes_with_the_formats_that_have_a_place_for_it() -> None:
    plan = plan_named("train_level1")
    for form in ("text", "markdown"):
        assert " => " in render(plan, form, print_log=True)
    data = json.loads(render(plan, "json", print_log=True))
    taken = [line for line in data["print_log"] if " => " in line]
    assert len(taken) == plan.report.reuses
    with pytest.raises(SettingsError, match="--print-log goes with text, json, markdown"):
        render(plan, "csv", print_log=True)
    with pytest.raises(SettingsError, match="the formats are"):
        render(plan, "pdf")


def test_a_bar_shows_the_highest_of_each_stretch() -> None:
    points = [(0, 1), (2, 8), (3, 0), (10, 0)]
    assert sampled_maxima(points, 10, 5) == [1, 8, 0, 0, 0]
    assert sampled_maxima(points, 10, 10) == [1, 1, 8, 0, 0, 0, 0, 0, 0, 0]
    assert bar_lines([1, 8, 0], rows=1) == ["▁█"]
    assert bar_lines([1, 16, 8], rows=2) == [" █", "▁██"]
    assert bar_lines([0, 0], rows=2) == []
    assert bar_lines([1, 10**12], rows=1) == ["▁█"], "what is not zero shows"
