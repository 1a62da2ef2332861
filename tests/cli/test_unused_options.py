"""No option does nothing without a word: what is given has an effect, or it is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from story import GOOD, memplan, write

FREE = "g (float[batch,4] x) => (float[batch,4] y) { a = Relu(x) y = Neg(a) }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.onnx"), GOOD)
    write(Path("free.onnx"), FREE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("optimize a.onnx --no-validate --settings-out s.py", "--settings-out needs the"),
        ("optimize a.onnx --target cpu --provider cuda", "not on cuda"),
        (
            "optimize a.onnx --target cpu --external-weights keep",
            "is for --target portable, not cpu",
        ),
        ("why a.onnx --process --level 0", "--level has no effect on the process"),
        (
            "why free.onnx --process --bounds batch=1..2",
            "--bounds has no effect on the process",
        ),
        (
            "why a.onnx --exclude a --expose",
            "why has no option --expose: report and optimize have it",
        ),
        ("settings a.onnx --timeout 3", "add --measure"),
        ("fit free.onnx --memory 1GB --dim batch=? --provider cpu", "add --confirm"),
    ],
)
def test_an_option_that_nothing_takes_up_is_refused(words: str, said: str) -> None:
    before = set(Path().iterdir())
    done = memplan(*words.split())
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.stdout == ""
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize(
    "words",
    [
        "optimize a.onnx --provider cpu --timeout 300",
        "optimize a.onnx --target cpu --provider cpu",
        "optimize a.onnx --target cpu --provider auto",
        "settings a.onnx --provider cpu",
        "optimize a.onnx --no-validate",
        "settings a.onnx --measure --provider cpu --timeout 300",
        "fit free.onnx --memory 1GB --dim batch=?",
    ],
)
def test_options_that_do_something_are_taken(words: str) -> None:
    done = memplan(*words.split())
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("option", ["--provider cpu", "--timeout 3"])
def test_where_nothing_is_run_it_is_said_of_options_that_are_about_running(
    option: str,
) -> None:
    done = memplan(*f"optimize a.onnx --no-validate {option}".split())
    assert done.exit_code == 0, done.output
    assert f"{option.split(maxsplit=1)[0]} has no effect" in done.stderr


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--dim b=1", "--dim "),
        ("--shape x=1,2", "--shape "),
        ("--checkpoint a", "--checkpoint "),
        ("--no-skip-grads", "--no-skip-grads "),
        ("--allow-partial", "--allow-partial "),
    ],
)
def test_what_does_nothing_for_a_plan_is_named_as_it_was_written(
    option: str, named: str
) -> None:
    memplan("optimize", "a.onnx", "--no-validate")
    for command in ("why", "report"):
        done = memplan(command, "a.memplan.json", *option.split())
        assert done.exit_code == 2
        assert f"Error: {named}has no effect" in done.stderr


def test_an_allocator_that_is_named_twice_is_simulated_once() -> None:
    words = ("simulate", "a.onnx", "--allocator", "bfc", "--allocator", "bfc")
    assert memplan(*words).stdout.count("bfc") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--level", "5"), "--level: expected 0, 1 or 2"),
        (("--config", "none.yaml"), "there is no file none.yaml"),
        (("--alignment", "3"), "a power of two"),
    ],
)
def test_a_sweep_that_is_asked_for_wrongly_is_no_table_of_failures(
    words: tuple[str, ...], said: str
) -> None:
    done = memplan("sweep", "a.onnx", "--jobs", "1", *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


WRONG = ("--shape", "immage=2,4")


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "free.onnx", "--jobs", "1", *WRONG),
        ("sweep", "free.onnx", "--jobs", "1", "--inputs", "immage.npz"),
        ("sweep", "a.onnx", "free.onnx", "--jobs", "1", "--inputs", "immage.npz"),
        ("soak", "free.onnx", "--bounds", "batch=1..2", "--requests", "2", *WRONG),
        ("settings", "free.onnx", "--bounds", "batch=1..2", *WRONG),
        ("settings", "free.onnx", *WRONG),
    ],
)
def test_a_name_that_binds_nothing_is_refused_in_every_command(words: tuple[str, ...]) -> None:
    np.savez("immage.npz", immage=np.zeros((2, 4), np.float32))
    done = memplan(*words)
    assert done.exit_code == 2, done.output
    assert "'immage'" in done.stderr
    assert done.stdout == ""


def test_a_sweep_over_a_dim_that_no_model_has_is_refused() -> None:
    done = memplan("sweep", "a.onnx", "free.onnx", "--jobs", "1", "--dim", "batsch=1,2")
    assert done.exit_code == 2
    assert "no model has a dim called 'batsch'" in done.stderr
    assert "did you mean 'batch'?" in done.stderr
    assert done.stdout == ""


def test_a_sweep_binds_the_models_that_have_the_dim_and_says_which_have_not() -> None:
    words = ("sweep", "a.onnx", "free.onnx", "--jobs", "1", "--dim", "batch=1,2")
    done = memplan(*words)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    (fixed,) = [line for line in lines if line.startswith("a.onnx")]
    free = [line for line in lines if line.startswith("free.onnx")]
    assert fixed.startswith("a.onnx, has no dim batch ")
    assert len(free) == 3, "1, 2 and one plan for both"
    assert not any("has no dim" in row for row in free)
    rows = json.loads(memplan(*words, "--format", "json").stdout)["rows"]
    assert [(row["model"], row["dims"], row["missing_dims"]) for row in rows] == [
        ("a.onnx", {}, ["batch"]),
        ("free.onnx", {"batch": 1}, []),
        ("free.onnx", {"batch": 2}, []),
        ("free.onnx", {"batch": "1..2"}, []),
    ]


@pytest.mark.parametrize("text", ["dims: {batch: 2}\n", "bounds: {batch: 1..2}\n"])
def test_a_sweep_binds_by_a_settings_file_what_a_model_has(tmp_path: Path, text: str) -> None:
    config = tmp_path / "sweep.yaml"
    config.write_text(text)
    done = memplan("sweep", "a.onnx", "free.onnx", "--jobs", "1", "--config", config)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", "free.onnx"),
        ("optimize", "free.onnx", "--no-validate"),
        ("optimize", "free.onnx", "--target", "cpu"),
        ("report", "free.onnx"),
        ("why", "free.onnx"),
        ("gate", "free.onnx", "--max-memory", "1GB"),
        ("diff", "free.onnx", "free.onnx"),
        ("fit", "free.onnx", "--memory", "1GB", "--dim", "batch=?"),
        ("settings", "free.onnx"),
        ("simulate", "free.onnx", "--allocator", "bfc"),
        ("sweep", "free.onnx", "--jobs", "1"),
    ],
    ids=" ".join,
)
def test_a_dim_that_is_none_is_an_error_with_the_nearest_name(words: tuple[str, ...]) -> None:
    refuses(words, ("--dim", "bach=4"))


@pytest.mark.parametrize("command", ["report", "sweep"])
def test_bounds_of_a_dim_that_is_none_are_an_error_too(command: str) -> None:
    refuses((command, "free.onnx"), ("--bounds", "bach=1..4"))


def test_a_sweep_bounds_the_models_that_have_the_dim() -> None:
    words = ("a.onnx", "free.onnx", "--jobs", "1", "--bounds", "batch=1..4")
    done = memplan("sweep", *words, "--format", "json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["status"], row["missing_dims"]) for row in rows] == [
        ("ok", ["batch"]),
        ("ok", []),
    ]
    assert rows[1]["planned"] is not None


def refuses(words: tuple[str, ...], bound: tuple[str, ...]) -> None:
    before = sorted(Path().iterdir())
    done = memplan(*words, *bound)
    assert done.exit_code == 2, done.output
    assert "'bach'" in done.stderr
    assert "did you mean 'batch'?" in done.stderr
    assert sorted(Path().iterdir()) == before, "nothing is written"


def test_a_dim_that_a_shape_brings_along_can_be_swept() -> None:
    write(Path("open.onnx"), FREE.replace("batch", "?"))
    words = ("--shape", "x=batch,4", "--dim", "batch=2")
    assert memplan("sweep", "open.onnx", "--jobs", "1", *words).exit_code == 0


def test_a_dim_that_is_looked_for_has_neither_number_nor_bounds(tmp_path: Path) -> None:
    words = ("fit", "free.onnx", "--memory", "1GB", "--dim", "batch=?")
    done = memplan(*words, "--bounds", "batch=1..4")
    assert done.exit_code == 2
    assert "'batch' has bounds" in done.stderr
    (tmp_path / "memplan.yaml").write_text("dims: {batch: 3}\n")
    done = memplan(*words)
    assert done.exit_code == 2
    assert "'batch' has a number" in done.stderr


@pytest.mark.parametrize("digits", [str(2**63), "9" * 5000])
@pytest.mark.parametrize(
    "words",
    ["report free.onnx --dim batch=", "report free.onnx --dim batch=1,", "sweep free.onnx --dim batch=",
     "simulate free.onnx --dim batch=", "report free.onnx --shape x=4,"],
)  # fmt: skip
def test_a_number_that_no_dim_can_be_is_refused_as_it_was_written(
    words: str, digits: str
) -> None:
    done = memplan(*f"{words}{digits}".split())
    assert done.exit_code == 2
    assert f"Error: {digits[:20]}... is too large for a dimension" in done.stderr


def test_fit_without_a_dim_to_look_for_names_those_of_the_model() -> None:
    done = memplan("fit", "free.onnx", "--memory", "1GiB")
    assert done.exit_code == 2
    assert "Hint: the model allows --dim 'batch=?'" in done.stderr
    done = memplan("fit", "a.onnx", "--memory", "1GiB")
    assert done.exit_code == 2
    assert "all dims of this model are fixed" in done.stderr


def test_the_next_step_of_a_report_has_the_dims_that_were_given() -> None:
    step = r":  memplan (why|settings|optimize) free\.onnx"
    bound = memplan("report", "free.onnx", "--dim", "batch=3").stdout
    assert re.search(rf"{step} --dim batch=3( --process)?\n\Z", bound)
    assert re.search(rf"{step}( --process)?\n\Z", memplan("report", "free.onnx").stdout)


def test_the_next_step_of_a_report_repeats_all_options_that_it_takes() -> None:
    options = ("--exclude", "a*", "--no-run", "--dim", "batch=3", "--chunk", "auto")
    shown = memplan("report", "free.onnx", *options, "--budget", "1B", "-v").stdout
    step = shown.splitlines()[-1]
    kept = r"--exclude 'a\*' --dim batch=3 --no-run --chunk auto --budget \d+"
    assert re.search(rf":  memplan optimize free\.onnx {kept}\Z", step)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("validate a.onnx --dim n=1", "the plan of `memplan optimize` contains the value"),
        ("gate a.onnx --target cpu", "gate has no option --target: optimize has it"),
        ("pack a.csv --no-run", "pack has no option --no-run: report, optimize, gate and "),
        ("pack a.csv --dim n=1", "report, optimize, gate and 7 more have it"),
        ("report a.onnx --nonsense", "there is no option --nonsense"),
        ("report a.onnx --levle 1", "--level"),
        ("gate a.onnx --limit 1MiB", "the most used are --max-memory, --baseline, "),
        ("gate a.onnx --batch 8", "a dim of the model is set by --dim batch=N"),
        ("report a.onnx --dim batch 8", "is one word, as in --dim NAME=N"),
        ("pack a.csv b.csv", "unexpected extra argument (b.csv)\n"),
        ("a.onnx", "memplan report a.onnx shows the memory of a model or a plan"),
    ],
)
def test_an_option_of_other_commands_is_named_as_one(words: str, said: str) -> None:
    done = memplan(*words.split())
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
