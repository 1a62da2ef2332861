"""The commands: exit codes, where text goes, what is left behind when something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from builders import parse
from memplan_cli.cli import COMMANDS, main
from perceptrons import perceptron

if TYPE_CHECKING:
    from click.testing import Result

MINE = ("optimize", "report", "validate", "doctor")


def run(*words: object, **environment: str) -> Result:
    return CliRunner(env=environment or None).invoke(main, [str(word) for word in words])


@pytest.fixture
def model(samples: Path, tmp_path: Path) -> Path:
    """A copy of a sample model in an empty folder, which is the current one."""
    return Path(shutil.copy(samples / "branchy_cnn.onnx", tmp_path / "net.onnx"))


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def failed(result: Result, *words: str) -> None:
    """Assert that a command could not work: exit 2, one clear message, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not isinstance(result.exception, AssertionError)
    lines = result.stderr.splitlines()
    assert sum(line.startswith("Error: ") for line in lines) == 1
    for word in words:
        assert word in result.stderr, result.stderr


def test_optimize_writes_model_and_plan_and_prints_the_report(model: Path) -> None:
    before = model.read_bytes()
    result = run("optimize", model, "--no-validate")
    assert result.exit_code == 0, result.output
    assert files(model.parent) == {"net.onnx", "net.memplan.onnx", "net.memplan.json"}
    assert model.read_bytes() == before
    assert "without reuse" in result.stdout
    assert "net.memplan.onnx" in result.stderr


def test_optimize_says_that_it_wrote_over_earlier_files_and_of_its_own_output(
    model: Path,
) -> None:
    run("optimize", model, "--no-validate")
    again = run("optimize", model, "--no-validate")
    assert again.stderr.endswith("net.memplan.json, over earlier files\n")
    own = run("optimize", model.with_name("net.memplan.onnx"), "--no-validate", "-o", "b.onnx")
    assert own.exit_code == 0
    assert "net.memplan.onnx was written by memplan: the report compares two" in own.stderr


def test_the_report_of_optimize_has_the_path_of_the_written_model(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    model.rename(tmp_path / "folder" / "net.onnx")
    shown = run("optimize", "folder/net.onnx", "--no-validate", "-q")
    assert shown.stdout.startswith("folder/net.onnx -> folder/net.memplan.onnx")


def test_a_page_is_not_printed_on_a_terminal(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("report", model, "--format", "html").stdout.startswith("<!")
    monkeypatch.setattr("memplan_cli.cli.commands.report.stdout_is_terminal", lambda: True)
    failed(run("report", model, "--format", "html"), "for a browser", "Hint: write it with -o")


def test_optimize_writes_to_the_given_paths(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = run("optimize", model, "--no-validate", "-o", "out/a.onnx", "--plan", "out/p.json")
    assert done.exit_code == 0, done.output
    assert files(tmp_path / "out") == {"a.onnx", "p.json"}
    assert files(tmp_path) == {"net.onnx", "out"}


def test_the_plan_goes_beside_the_output_by_default(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run("optimize", model, "--no-validate", "-o", "out/a.onnx")
    assert files(tmp_path / "out") == {"a.onnx", "a.json"}


def test_the_same_command_writes_the_same_bytes(model: Path) -> None:
    run("optimize", model, "--no-validate")
    names = ("net.memplan.onnx", "net.memplan.json")
    first = [(model.parent / name).read_bytes() for name in names]
    run("optimize", model, "--no-validate")
    assert [(model.parent / name).read_bytes() for name in names] == first


@pytest.mark.parametrize("command", ["optimize", "report"])
def test_json_is_pure_and_is_the_report(command: str, model: Path) -> None:
    words = ["--no-validate"] if command == "optimize" else []
    result = run(command, model, "--format", "json", *words)
    data = json.loads(result.stdout)
    assert data["schema"] == "memplan.report/1"
    assert data["levels"]["2"] <= data["levels"]["1"] <= data["levels"]["0"]
    assert data["levels"]["0"] <= data["memory"]["naive"]
    assert data["coverage"] == 1.0


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_level_that_is_asked_for_is_planned(level: int, model: Path) -> None:
    data = json.loads(run("report", model, "--level", level, "--format", "json").stdout)
    assert data["level"] == level
    assert data["memory"]["planned"] == data["levels"][str(level)]


def test_quiet_says_nothing_but_the_result(model: Path) -> None:
    result = run("optimize", model, "--no-validate", "--quiet")
    assert result.stderr == ""
    assert result.stdout != ""


@pytest.mark.parametrize("words", [("--no-color",), ()])
def test_there_are_no_colors_where_nobody_can_see_them(
    words: tuple[str, ...], model: Path
) -> None:
    assert "\x1b[" not in run("report", model, *words, NO_COLOR="1").output


def test_print_log_prints_the_lines_of_the_contract(model: Path) -> None:
    result = run("report", model, "--level", "1", "--print-log", "--order", "keep")
    assert any(
        line.lstrip().startswith("0: ") and "slot" in line
        for line in result.stdout.splitlines()
    )


def test_print_log_in_json_is_a_list_of_the_same_lines(model: Path) -> None:
    data = json.loads(run("report", model, "--format", "json", "--print-log").stdout)
    assert data["reuses"] == sum(line[0] != "-" for line in data["print_log"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--level", "3"), "3"),
        (("--level", "-1"), "-1"),
        (("--level", "two"), "two"),
        (("--exclude", "fc11"), "fc1"),
        (("--exclude", "nobody_*"), "matches no tensor"),
        (("--loss", "lost"), "lost"),
        (("--dim", "batch"), "NAME=N"),
        (("--dim", "batch=-1"), "N is 0 or more"),
        (("--dim", "batch=x"), "NAME=N"),
        (("--dim", "batch=²"), "NAME=N"),
        (("--dim", "batch=1", "--dim", "batch=2"), "--dim gives 'batch' twice"),
        (("--bounds", "b=1..2", "--bounds", "b=1..3"), "--bounds gives 'b' twice"),
        (("--shape", "image=1,3", "--shape", "image=1"), "--shape gives 'image' twice"),
        (("--donate", "image=a", "--donate", "image=b"), "--donate gives 'image' twice"),
        (("--shape", "image"), "NAME=D,D"),
        (("--shape", "image=1,,3"), "NAME=D,D"),
        (("--shape", "image=1,3"), "4 dims"),
        (("--shape", "image=2,3,32,32"), "fixed to 1"),
        (("--shape", "nothing=1,3"), "nothing"),
        (("--alignment", "3"), "alignment"),
        (("--alignment", "0"), "alignment"),
        (("--phase", "later"), "later"),
        (("--order", "best"), "best"),
        (("--config", "none.yaml"), "none.yaml"),
        (("--provider", "tpu"), "tpu"),
        (("--provider", "cuda"), "--provider needs the models to be run"),
        (("--timeout", "0"), "0.0 is not in the range"),
        (("--format", "xml"), "xml"),
        (("--no-such-option",), "--no-such-option"),
        (("-o", "net.onnx"), "would overwrite"),
        (("--plan", "net.onnx"), "would overwrite"),
        (("-o", "."), "is a folder"),
        (("-o", ".."), "is a folder"),
        (("-o", "missing/net.onnx"), "missing"),
        (("-o", "a.json"), "the plan and -o name the same file"),
    ],
)
def test_what_cannot_work_ends_with_one_message_and_nothing_written(
    words: tuple[str, ...], said: str, model: Path
) -> None:
    before = model.read_bytes()
    failed(run("optimize", model, "--no-validate", *words), said)
    assert files(model.parent) == {"net.onnx"}
    assert model.read_bytes() == before


def test_an_exclusion_that_matches_nothing_names_the_nearest(model: Path) -> None:
    failed(run("report", model, "--exclude", "fc1_rely"), "'fc1_rely'", "'fc1_relu'", "Hint: ")


CYCLE = "g (float[4] x) => (float[4] z) { [n1] a = Add(x, b) [n2] b = Neg(a) z = Neg(b) }"


@pytest.mark.parametrize("command", ["optimize", "report"])
@pytest.mark.parametrize("what", ["missing", "empty", "garbage", "folder", "cyclic"])
def test_a_model_that_is_none_ends_with_one_message(
    command: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.onnx"
    if what == "folder":
        path.mkdir()
    elif what != "missing":
        data = {
            "empty": b"",
            "garbage": b"not a model",
            "cyclic": parse(CYCLE).SerializeToString(),
        }
        path.write_bytes(data[what])
    before = files(tmp_path)
    failed(run(command, path), "cycle" if what == "cyclic" else "bad.onnx")
    assert files(tmp_path) == before


@pytest.mark.parametrize("command", ["optimize", "report"])
def test_the_current_folder_is_no_model(command: str) -> None:
    failed(run(command, "."), "folder")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write")  # noqa: PTH112 - at import
def test_a_folder_that_cannot_be_written_ends_with_one_message(model: Path) -> None:
    result = run("optimize", model, "--no-validate", "-o", "/proc/self/net.onnx")
    failed(result, "/proc/self/net.", "cannot be written")
    assert files(model.parent) == {"net.onnx"}


def test_debug_shows_the_traceback_and_the_exit_code_stays(model: Path) -> None:
    for words in (
        ("report", "none.onnx", "--debug"),
        ("report", model, "--loss", "x", "--debug"),
    ):
        result = run(*words)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
        assert result.stdout == ""


def test_a_bug_of_ours_is_no_failed_check(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("inner")

    monkeypatch.setattr("memplan_cli.api.report", broken)
    failed(run("report", model), "KeyError", "--debug")


def test_report_without_an_argument_takes_the_newest_plan(model: Path, tmp_path: Path) -> None:
    run("optimize", model, "--no-validate", "--level", "0")
    shutil.copy(model, tmp_path / "later.onnx")
    run("optimize", "later.onnx", "--no-validate", "--level", "1")
    os.utime(tmp_path / "net.memplan.json", (1, 1))
    assert json.loads(run("report", "--format", "json").stdout)["level"] == 1
    os.utime(tmp_path / "later.memplan.json", (0, 0))
    assert json.loads(run("report", "--format", "json").stdout)["level"] == 0


def test_report_without_any_plan_says_what_to_do() -> None:
    failed(run("report"), "memplan optimize")


def test_report_of_a_plan_is_the_one_that_optimize_printed(model: Path) -> None:
    printed = run("optimize", model, "--no-validate", "--format", "json").stdout
    assert run("report", "net.memplan.json", "--format", "json").stdout == printed


def test_report_writes_into_a_file(model: Path, tmp_path: Path) -> None:
    result = run("report", model, "--format", "json", "-o", "r.json")
    assert result.stdout == ""
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == "memplan.report/1"


def test_report_never_overwrites_the_model_it_is_about(model: Path) -> None:
    before = model.read_bytes()
    failed(run("report", model, "-o", model), "would overwrite")
    assert model.read_bytes() == before


def test_report_refuses_a_plan_that_somebody_touched(model: Path, tmp_path: Path) -> None:
    run("optimize", model, "--no-validate")
    path = tmp_path / "net.memplan.json"
    data = json.loads(path.read_text())
    for tensor in data["tensors"]:
        tensor["offset"] = 0
    path.write_text(json.dumps(data))
    failed(run("report"), "net.memplan.json", "overlap")


def test_settings_of_a_plan_do_nothing_and_are_refused(model: Path) -> None:
    """A flag that does nothing is a bug of the ancestors."""
    run("optimize", model, "--no-validate")
    failed(run("report", "net.memplan.json", "--level", "0"), "--level")


def test_a_name_with_control_characters_does_not_steer_the_terminal(tmp_path: Path) -> None:
    made = parse("g (float[4] x) => (float[4] z) { z = Neg(x) }")
    made.graph.node[0].input[0] = "lost\x1b[2J"
    (tmp_path / "bad.onnx").write_bytes(made.SerializeToString())
    result = run("report", "bad.onnx")
    failed(result, "\\x1b[2J")
    assert "\x1b" not in result.stderr


def test_validate_needs_a_model_that_memplan_wrote(model: Path) -> None:
    original = shutil.copy(model, model.with_name("original.onnx"))
    failed(run("validate", model, "--original", original), "contains no plan of memplan")


def test_validate_does_not_hold_a_model_against_itself(model: Path) -> None:
    run("optimize", model, "--no-validate")
    written = model.with_name("net.memplan.onnx")
    link = model.with_name("link.onnx")
    link.symlink_to(written.name)
    for original in (written, link):
        failed(run("validate", written, "--original", original), "the written model itself")


def test_validate_says_when_it_does_not_know_the_original(model: Path) -> None:
    failed(run("validate", model), "--original")


def test_validate_of_a_missing_file_ends_with_one_message() -> None:
    failed(run("validate", "a.memplan.onnx"), "a.memplan.onnx")


def test_a_partial_model_prints_no_totals_unless_asked(tmp_path: Path) -> None:
    made = parse("g (float[4] x) => (float[4] z) { a = Exp(x) k = NonZero(a) z = Neg(a) }")
    (tmp_path / "part.onnx").write_bytes(made.SerializeToString())
    words = ("report", "part.onnx", "--format", "json")
    assert json.loads(run(*words).stdout)["memory"]["planned"] is not None
    data = json.loads(run(*words, "--no-run").stdout)
    assert data["memory"]["planned"] is None
    assert data["coverage"] == 0.5
    data = json.loads(run(*words, "--no-run", "--allow-partial").stdout)
    assert data["memory"]["planned"] == 16
    assert data["partial"] is True


@pytest.mark.parametrize("command", COMMANDS)
def test_every_commands_help_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"  memplan {command}" in result.stdout.split("Options:")[0]
    assert run(command, "-h").stdout == result.stdout


@pytest.mark.parametrize("command", MINE)
def test_every_option_has_help(command: str) -> None:
    loaded = main.get_command(None, command)  # type: ignore[arg-type]
    assert loaded is not None
    silent = [
        p.name
        for p in loaded.params
        if p.param_type_name == "option" and not getattr(p, "help", None)
    ]
    assert set(silent) <= {"form", "runs", "atol", "validate"}, silent


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"  {command} " in result.stdout


def test_a_command_that_there_is_not_gets_the_nearest() -> None:
    failed(run("optimise", "x.onnx"), "'optimise'", "'optimize'")


def test_no_command_at_all_shows_the_help() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Everyday commands:" in result.output


def test_the_version_is_that_of_the_package() -> None:
    from memplan_cli import __version__

    assert __version__ in run("--version").stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = (
        "onnx",
        "onnxruntime",
        "numpy",
        "numba",
        "yaml",
        "rich",
        "ortools",
        "memplan_cli.api",
    )
    # The help of schema lists the schemas, which are those of the API.
    commands = [f"{name} --help" for name in COMMANDS if name != "schema"]
    code = (
        "import sys\nfrom memplan_cli.__main__ import main\n"
        f"for line in {['--help', '--version', *commands]!r}:\n"
        "    sys.argv[1:] = line.split()\n"
        "    try: main()\n    except SystemExit: pass\n"
        f"    print(line, [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    imports = done.stderr.splitlines()
    assert len(imports) == 2 + len(commands)
    assert [line for line in imports if not line.endswith("[]")] == []


_STEP = ("-o", "step.onnx", "--loss-fn", "mse", "--optimizer", "sgd")
_AGAIN = ("--recompute", "auto")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("optimize", (*_AGAIN, "--no-validate")),
        ("optimize", ("--chunk", "auto", "--no-validate")),
        ("report", _AGAIN),
        ("report", ("--chunk", "auto", "--format", "json")),
        ("gate", (*_AGAIN, "--max-memory", "1GiB")),
        ("sweep", (*_AGAIN, "--jobs", "1")),
        ("train-step", _STEP),
    ],
)
def test_a_budget_that_cannot_be_met_is_a_failed_check_in_every_command(
    command: str, options: tuple[str, ...], model: Path
) -> None:
    if command == "train-step":
        model.write_bytes(perceptron(8, 64).SerializeToString())
    result = run(command, "net.onnx", *options, "--budget", "1000")
    assert result.exit_code == 1, result.output
    words = " ".join(result.output.split())
    assert "the budget of 1000 B cannot be met: the smallest plan found needs" in words
    assert files(model.parent) == {"net.onnx"}
    assert run(command, "net.onnx", *options, "--budget", "1GiB").exit_code == 0


@pytest.mark.parametrize("option", ["recompute", "chunk"])
def test_fit_says_that_it_has_no_budget_but_the_memory(option: str, samples: Path) -> None:
    words = ("--dim", "batch=?", "--memory", "1GiB", f"--{option}", "auto", "--budget", "50%")
    failed(
        run("fit", samples / "dynamic_batch.onnx", *words), f"remove --{option} and --budget"
    )


def test_one_dim_with_two_sizes_names_both_inputs(tmp_path: Path) -> None:
    model = parse("g (float[n,8] a, float[n,8] b) => (float[n,8] y) { y = Add(a, b) }")
    (tmp_path / "two.onnx").write_bytes(model.SerializeToString())
    result = run("report", "two.onnx", "--shape", "a=2,8", "--shape", "b=3,8")
    failed(result, "dim 'n' is 2 in input 'a' and 3 in input 'b'", "rename one")


def test_dims_of_an_optional_input_are_named_where_no_option_binds_them(
    tmp_path: Path,
) -> None:
    text = """g (optional(float[N,M]) o, float[8] x) => (y) {
        v = OptionalGetElement(o)  h = Exp(v)  y = Add(h, x) }"""
    (tmp_path / "opt.onnx").write_bytes(parse(text).SerializeToString())
    result = run("report", "opt.onnx", *_AGAIN, "--budget", "50%")
    failed(result, "not M, N", "no option sets these sizes")
    assert "--run" not in result.stderr
