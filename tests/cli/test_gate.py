"""`memplan gate`, `diff`, `why` and `schema` from the command line: codes, files, words."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from memplan_cli.api.gate import gate
from memplan_cli.api.schema import SCHEMA_NAMES
from memplan_cli.errors import SettingsError
from story import GOOD, LONGER, memplan, write

if TYPE_CHECKING:
    from pathlib import Path


PLANNED = ("--metric", "planned")


def under(budget: str) -> tuple[str, ...]:
    """Return the options that limit the planned intermediates."""
    return (*PLANNED, "--max-memory", budget)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "m" / "a.onnx", GOOD)
    write(tmp_path / "m" / "b.onnx", LONGER)
    return tmp_path


def test_a_budget_needs_no_baseline() -> None:
    assert memplan("gate", "m/a.onnx", *under("1MiB")).exit_code == 0
    failed = memplan("gate", "m/a.onnx", *under("1KiB"))
    assert failed.exit_code == 1
    assert "the limit is 1.00 KiB" in failed.stdout


def test_the_process_is_that_of_the_model_as_it_is_also_beside_a_predicted_peak() -> None:
    """Only the metrics ``predicted.*`` are those of the planned model."""

    def process(*metrics: str) -> object:
        words = (word for metric in metrics for word in ("--metric", metric))
        result = memplan(
            "gate", "m/a.onnx", "--max-memory", "1GiB", *words, "--format", "json"
        )
        return json.loads(result.stdout)["models"][0]["metrics"]["process.total"]

    assert process("process.total", "predicted.steady_peak") == process("process.total")


def test_an_unknown_number_comes_with_the_sizes_and_the_node_that_fails(folder: Path) -> None:
    text = """g (float[n,4] x) => (y) <float[3,4] t = {1,2,3,4,5,6,7,8,9,10,11,12}> {
        e = Exp(x) [the_sum] a = Add(e, t) f = Neg(a) y = Neg(f) }"""
    write(folder / "c.onnx", text)
    failed = memplan("gate", "c.onnx", *under("1MiB"), "--dim", "n=2")
    assert failed.exit_code == 2
    error = failed.stderr.partition("Error: ")[2]
    assert (
        "planned of c.onnx is unknown: the model does not run on drawn inputs at n=2: "
        in error
    )
    assert "Add node. Name:'the_sum'" in error


def test_a_process_without_a_prediction_names_the_file_and_not_a_temporary_copy(
    folder: Path,
) -> None:
    text = """g (float[n,4] x, int64 at) => (y, z) <float[3] t = {1, 2, 3}, int64 far = {99}> {
        i = Add(at, far) [lookup] p = Gather(t, i) e = Exp(x) y = Neg(e)
        w = NonZero(p) z = Neg(w) }"""
    write(folder / "c.onnx", text)
    failed = memplan("gate", "c.onnx", "--max-memory", "1MiB", "--dim", "n=2")
    assert failed.exit_code == 2
    assert "unknown: c.onnx at n=2 could not be run for its sizes: " in failed.stderr
    assert "Name:'lookup'" in failed.stderr
    assert "memplan-" not in failed.stderr  # the folder of the copy


def test_a_mode_that_there_is_not_is_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="there is no mode 'update'"):
        gate(folder / "m" / "a.onnx", mode="update")  # type: ignore[arg-type]


def test_several_models_are_meant_by_one_glob() -> None:
    done = memplan("gate", "m/*.onnx", "--max-memory", "1MiB", "--format", "json")
    assert [m["model"] for m in json.loads(done.stdout)["models"]] == ["m/a.onnx", "m/b.onnx"]
    none = memplan("gate", "m/*.pt", "--max-memory", "1MiB")
    assert none.exit_code == 2
    assert "no file matches" in none.stderr


def test_a_file_with_brackets_in_its_name_is_no_glob(folder: Path) -> None:
    write(folder / "m[1].onnx", GOOD)
    assert memplan("gate", "m[1].onnx", *under("1MiB")).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-memory", "12 apples"), "--max-memory: '12 apples' has no known unit"),
        (("--max-memory", "64k"), "64KiB uses powers of 1024"),
        (("--max-increase", "lots"), "--max-increase: 'lots' is neither"),
        (
            ("--metric", "size", "--max-memory", "1KiB"),
            "--metric: expected planned, live_peak",
        ),
        (
            ("--metric", "observed.held", "--max-memory", "1KiB"),
            "`memplan optimize m/a.onnx` runs the model",
        ),
        (("--baseline", "none.json"), "there is no baseline none.json"),
        (("--max-increase", "2%"), "memplan.baseline.json"),
        (("--ratchet",), "memplan.baseline.json"),
        (("--write", "pdf=x", "--max-memory", "1KiB"), "--write takes FORMAT=FILE"),
        (("--level", "3", "--max-memory", "1KiB"), "--level: expected 0, 1 or 2, not 3"),
        ((), "there is nothing to check"),
    ],
)
def test_what_cannot_work_is_exit_2_with_a_word_on_stderr(
    words: tuple[str, ...], said: str
) -> None:
    done = memplan("gate", "m/a.onnx", *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_new_model_fails_until_it_is_recorded(folder: Path) -> None:
    memplan("gate", "m/a.onnx", "--update-baseline")
    both = memplan("gate", "m/a.onnx", "m/b.onnx")
    assert both.exit_code == 1
    assert "no entry for m/b.onnx" in both.stdout
    memplan("gate", "m/b.onnx", "--update-baseline")
    assert memplan("gate", "m/a.onnx", "m/b.onnx").exit_code == 0
    models = json.loads((folder / "memplan.baseline.json").read_text())["models"]
    assert list(models) == ["m/a.onnx", "m/b.onnx"]


def test_a_budget_alone_asks_for_no_baseline_unless_one_is_named() -> None:
    memplan("gate", "m/a.onnx", "--update-baseline")
    words = ("gate", "m/b.onnx", *under("1MiB"))
    assert memplan(*words).exit_code == 0
    assert memplan(*words, "--baseline", "memplan.baseline.json").exit_code == 1


def test_a_plan_can_be_gated_and_can_be_a_baseline(folder: Path) -> None:
    for name in ("a", "b"):
        plan = folder / f"{name}.memplan.json"
        memplan("optimize", f"m/{name}.onnx", "--no-validate", "--plan", plan)
    assert memplan("gate", "a.memplan.json", *under("1MiB")).exit_code == 0
    assert memplan("gate", "m/a.onnx", "--baseline", "a.memplan.json").exit_code == 0


def test_a_plan_of_a_model_that_has_changed_since_is_no_pass(folder: Path) -> None:
    words = ("gate", "a.memplan.json", *under("1MiB"))
    memplan("optimize", "m/a.onnx", "--no-validate", "-o", "a.memplan.onnx")
    assert memplan(*words).exit_code == 0
    written = (folder / "a.memplan.onnx").read_bytes()
    write(folder / "m" / "a.onnx", LONGER)
    stale = memplan(*words)
    assert stale.exit_code == 2
    assert "a.onnx is not the model that a.memplan.json is about" in stale.stderr
    told = memplan("why", "a.memplan.json")
    assert told.exit_code == 0
    assert "is not the model that a.memplan.json is about" in told.stderr
    shown = json.loads(memplan("report", "a.memplan.json", "--format", "json").stdout)
    assert any("is not the model that" in warning for warning in shown["warnings"])
    assert memplan("gate", "m/a.onnx", "--baseline", "a.memplan.json").exit_code == 1

    memplan("optimize", "m/a.onnx", "--no-validate", "-o", "a.memplan.onnx")
    assert memplan(*words).exit_code == 0
    (folder / "a.memplan.onnx").write_bytes(written)
    other = memplan(*words)
    assert other.exit_code == 2
    assert "a.memplan.onnx was written with another plan than a.memplan.json" in other.stderr
    (folder / "a.memplan.onnx").write_bytes(b"no model")
    assert memplan(*words).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("why", "a.json", "--level", "1"),
        ("diff", "a.json", "a.json", "--config", "c.yaml"),
        ("gate", "a.json", "--max-memory", "1MiB", "--dim", "n=1"),
    ],
)
def test_settings_for_what_is_planned_already_are_refused(words: tuple[str, ...]) -> None:
    done = memplan(*words)
    assert done.exit_code == 2
    assert "has no effect: a.json is a finished plan" in done.stderr


def test_files_give_the_rules_and_options_overrule_them(folder: Path) -> None:
    (folder / "memplan.yaml").write_text(
        "gate:\n  metric: planned\n  max_memory: 1MiB\n"
        "  models:\n    m/b.onnx: {max_memory: 1KiB}\n"
    )
    assert memplan("gate", "m/a.onnx").exit_code == 0
    assert memplan("gate", "m/b.onnx").exit_code == 1
    assert memplan("gate", "m/b.onnx", "--max-memory", "1MiB").exit_code == 0
    (folder / "memplan.yaml").write_text("gate:\n  max_memroy: 1MiB\n")
    wrong = memplan("gate", "m/a.onnx")
    assert wrong.exit_code == 2
    assert "memplan.yaml:2:3: unknown key 'gate.max_memroy'" in wrong.stderr
    assert "did you mean max_memory?" in wrong.stderr


def test_a_baseline_that_a_file_names_lies_beside_that_file(folder: Path) -> None:
    (folder / "m" / "memplan.yaml").write_text("gate: {baseline: base.json}\n")
    assert memplan("gate", "m/a.onnx", "--update-baseline").exit_code == 0
    assert list(json.loads((folder / "m" / "base.json").read_text())["models"]) == ["a.onnx"]


@pytest.mark.parametrize("order", [("g1/a.onnx", "g2/b.onnx"), ("g2/b.onnx", "g1/a.onnx")])
def test_each_model_is_held_against_the_rules_of_its_own_folder(
    order: tuple[str, str], folder: Path
) -> None:
    write(folder / "g1" / "a.onnx", GOOD)
    write(folder / "g2" / "b.onnx", GOOD)
    (folder / "g1" / "memplan.yaml").write_text("gate: {metric: planned, max_memory: 1MiB}\n")
    (folder / "g2" / "memplan.yaml").write_text("gate: {metric: planned, max_memory: 1KiB}\n")
    done = memplan("gate", *order, "--format", "json")
    assert done.exit_code == 1
    passed = {model["model"]: model["passed"] for model in json.loads(done.stdout)["models"]}
    assert passed == {"g1/a.onnx": True, "g2/b.onnx": False}
    (folder / "all.yaml").write_text("gate: {metric: planned, max_memory: 2MiB}\n")
    assert memplan("gate", *order, "--config", "all.yaml").exit_code == 0
    assert memplan("gate", *order, "--max-memory", "2MiB").exit_code == 0


def test_a_model_that_no_rule_is_about_is_no_pass_beside_one_with_a_budget(
    folder: Path,
) -> None:
    (folder / "m" / "memplan.yaml").write_text("gate: {metric: planned, max_memory: 1MiB}\n")
    write(folder / "n" / "c.onnx", GOOD)
    assert memplan("gate", "m/a.onnx").exit_code == 0
    done = memplan("gate", "m/a.onnx", "n/c.onnx")
    assert done.exit_code == 2
    assert "there is nothing to check n/c.onnx against" in done.stderr


def test_each_folder_keeps_the_baseline_that_its_own_file_names(folder: Path) -> None:
    write(folder / "n" / "c.onnx", GOOD)
    (folder / "m" / "memplan.yaml").write_text("gate: {baseline: base.json}\n")
    (folder / "n" / "memplan.yaml").write_text("gate: {baseline: ../n/base.json}\n")
    words = ("gate", "m/*.onnx", "n/c.onnx")
    assert memplan(*words, "--update-baseline").exit_code == 0
    listed = {
        name: list(json.loads((folder / name / "base.json").read_text())["models"])
        for name in ("m", "n")
    }
    assert listed == {"m": ["a.onnx", "b.onnx"], "n": ["c.onnx"]}
    assert memplan(*words).exit_code == 0
    write(folder / "n" / "c.onnx", LONGER)
    assert memplan(*words).exit_code == 1
    over = memplan(*words, "-o", "n/base.json")
    assert over.exit_code == 2
    (folder / "n" / "memplan.yaml").write_text("gate: {baseline: ../m/base.json}\n")
    assert memplan(*words, "--update-baseline").exit_code == 0
    merged = json.loads((folder / "m" / "base.json").read_text())["models"]
    assert list(merged) == ["../n/c.onnx", "a.onnx", "b.onnx"]


def test_results_go_where_they_are_asked_for_and_nowhere_else(folder: Path) -> None:
    words = ("gate", "m/a.onnx", "--max-memory", "1KiB", "--format", "json", "-o", "out.json")
    done = memplan(*words, "--write", "junit=j.xml", "--write", "sarif=s.sarif")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert json.loads((folder / "out.json").read_text())["passed"] is False
    assert "<testsuites" in (folder / "j.xml").read_text()
    assert json.loads((folder / "s.sarif").read_text())["version"] == "2.1.0"


def test_the_gate_cannot_write_is_exit_2_and_leaves_nothing(folder: Path) -> None:
    done = memplan("gate", "m/a.onnx", "--max-memory", "1MiB", "-o", "none/out.json")
    assert done.exit_code == 2
    assert not (folder / "none").exists()


GAP = """gap (float[64] x) => (int64[1,?] y) {
    a = Relu(x) found = NonZero(a) other = Neg(found) y = Neg(other)
}"""
"""How many rows there are, only a run knows."""


def test_totals_that_leave_something_out_are_marked_wherever_they_are_shown(
    folder: Path,
) -> None:
    write(folder / "nz.onnx", GAP)
    assert memplan("gate", "nz.onnx", *under("1MB")).exit_code == 0
    silent = memplan("gate", "nz.onnx", *under("1MB"), "--no-run")
    assert silent.exit_code == 2
    assert "--run makes them known; --allow-partial counts" in silent.stderr
    assert "--allow-partial" in silent.stderr
    assert "--dim" not in silent.stderr

    words = ("nz.onnx", "--allow-partial", "--no-run")
    text = memplan("gate", *words, *under("1MB"))
    assert text.exit_code == 0
    assert re.search(r"planned +- +256 B \(partial\)", text.stdout)
    assert "note: totals are partial: the sizes of 33.3% of the" in text.stdout
    found = json.loads(memplan("gate", *words, *under("1MB"), "--format", "json").stdout)
    assert found["models"][0]["partial"] is True
    for form in ("markdown", "github", "junit", "sarif"):
        shown = memplan("gate", *words, *under("1MB"), "--format", form).stdout
        assert "totals are partial" in shown

    between = memplan("diff", "nz.onnx", *words)
    assert between.stdout.startswith("nz.onnx (partial) -> nz.onnx (partial)")
    found = json.loads(memplan("diff", "nz.onnx", *words, "--format", "json").stdout)
    assert found["partial"] == {"before": True, "after": True}

    why = memplan("why", *words)
    assert "live at the peak (partial: the sizes of 33.3% of" in why.stdout
    assert json.loads(memplan("why", *words, "--format", "json").stdout)["partial"] is True
    assert "(partial: " in memplan("why", *words, "--format", "markdown").stdout

    table = " ".join(memplan("sweep", *words).stdout.split())
    assert "nz.onnx, partial: 33% of " in table
    swept = json.loads(memplan("sweep", *words, "--format", "json").stdout)
    assert swept["rows"][0]["partial"] is True


def test_a_check_at_other_sizes_than_the_baseline_is_refused_with_both_and_the_option(
    folder: Path,
) -> None:
    write(folder / "d.onnx", GOOD.replace("[64,256]", "[64,n]"))
    done = memplan("gate", "d.onnx", "--dim", "n=256", "--update-baseline")
    assert done.exit_code == 0
    for words, size in ((("--dim", "n=512"), "x=64,512"), ((), "x=64,1")):
        other = memplan("gate", "d.onnx", *words)
        assert other.exit_code == 2
        assert (
            f"the baseline was made with sizes x=64,256, this check with {size}"
            in other.stderr
        )
        assert "for the sizes of the baseline: --dim n=256" in other.stderr
        assert other.stdout == ""
    assert memplan("gate", "d.onnx", "--dim", "n=256").exit_code == 0


def test_why_names_the_nearest_tensor() -> None:
    done = memplan("why", "m/a.onnx", "--tensor", "erly")
    assert done.exit_code == 2
    assert "did you mean early" in done.stderr
    told = memplan("why", "m/a.onnx", "--format", "json")
    assert json.loads(told.stdout)["tensors"]


def test_diff_of_a_model_with_itself_finds_nothing() -> None:
    done = memplan("diff", "m/a.onnx", "m/a.onnx", "--format", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert found["changes"] == []
    assert {metric["change"] for metric in found["metrics"]} == {0}


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_schemas_are_printed(name: str) -> None:
    assert json.loads(memplan("schema", name).stdout)["$id"] == f"memplan.{name}/1"
    assert memplan("schema", "other").exit_code == 2


@pytest.mark.parametrize("command", ["gate", "diff", "why", "schema"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    help_text = memplan(command, "--help").stdout
    assert f"memplan {command} " in help_text.split("Usage:")[1].split("\n", 1)[1]
