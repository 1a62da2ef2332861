"""Where commands may write: never over what they read, never twice into one file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from story import GOOD, memplan, write

WITH_WEIGHTS = """<ir_version: 10, opset_import: ["": 20]>
    g (float[8] x) => (float y) { m = Mul(x, w) y = ReduceSum<keepdims = 0>(m) }"""

PROBLEM = "id,lower,upper,size\na,0,2,10\nb,1,3,20\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(Path("a.onnx"), GOOD)
    Path("p.csv").write_text(PROBLEM)
    return tmp_path


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().iterdir()}


def refused(*words: str, said: str) -> None:
    """Assert that a command is refused with one message, and that it writes nothing."""
    before = files()
    done = memplan(*words)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.stdout == ""
    assert files() == before


@pytest.mark.parametrize(
    "words",
    [
        "report a.onnx -o a.onnx",
        "settings a.onnx -o a.onnx",
        "settings a.onnx -o ./a.onnx",
        "sweep a.onnx --jobs 1 -o a.onnx",
        "sweep . --jobs 1 -o a.onnx",
        "gate a.onnx --max-memory 1GB -o a.onnx",
        "gate *.onnx --max-memory 1GB --write json=a.onnx",
        "gate a.onnx --update-baseline -o memplan.baseline.json",
        "gate a.onnx --update-baseline --baseline b.json --write json=b.json",
        "optimize a.onnx --settings-out a.onnx",
        "train-step a.onnx --loss y --gradients -o s.onnx --state a.onnx",
    ],
)
def test_a_command_never_overwrites_its_own_input(words: str) -> None:
    refused(*words.split(), said="would overwrite a file that this command reads")


@pytest.mark.parametrize(
    "words",
    [
        "report m.onnx -o w.bin",
        "settings m.onnx -o ./w.bin",
        "sweep m.onnx --jobs 1 -o w.bin",
        "gate m.onnx --max-memory 1GB -o w.bin",
        "gate m.onnx --max-memory 1GB --write json=w.bin",
        "optimize m.onnx --settings-out w.bin",
        "train-step m.onnx --loss y --gradients -o w.bin",
        "train-step m.onnx --loss y --gradients -o s.onnx --state w.bin",
        "report m.onnx -o link.bin",
    ],
)
def test_what_a_model_keeps_its_weights_in_is_never_written(words: str) -> None:
    model = onnx.parser.parse_model(WITH_WEIGHTS)
    weights = numpy_helper.from_array(np.ones(8, np.float32), "w")
    model.graph.initializer.append(weights)
    onnx.save(model, "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    Path("link.bin").symlink_to("w.bin")
    refused(*words.split(), said="contains weights of m.onnx")


def test_a_file_that_the_model_only_names_is_written() -> None:
    Path("y").write_text("a result of before")
    assert memplan("report", "a.onnx", "-o", "y").exit_code == 0
    assert "a result of before" not in Path("y").read_text()


def test_a_link_to_the_model_is_the_model() -> None:
    Path("link.onnx").symlink_to("a.onnx")
    Path("hard.onnx").hardlink_to("a.onnx")
    for name in ("link.onnx", "hard.onnx"):
        refused("settings", "a.onnx", "-o", name, said=f"{name} would overwrite")


def test_the_newest_plan_is_read_too() -> None:
    assert memplan("optimize", "a.onnx", "--no-validate").exit_code == 0
    refused("report", "-o", "a.memplan.json", said="a.memplan.json would overwrite a file")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gate a.onnx --max-memory 1GB -o x --write json=x", "--write json=x and -o"),
        ("gate a.onnx --max-memory 1GB --write json=x --write text=./x", "--write text=x and"),
        ("sweep a.onnx --jobs 1 --resume x -o x", "--resume and -o"),
        ("optimize a.onnx -o x.onnx --settings-out x.onnx", "--settings-out and -o"),
        ("optimize a.onnx --plan x.py --settings-out x.py", "--settings-out and --plan"),
        ("optimize a.onnx -o x.onnx --settings-out x.py", "the JSON of --settings-out and"),
        *(
            (
                f"optimize a.onnx -o x.onnx --settings-out {name}.data",
                f"and its weights {name}",
            )
            for name in (
                "x.onnx",
                "x.unfused.onnx",
                "x.offline.onnx",
                "x.unfused.offline.onnx",
            )
        ),
        ("optimize a.onnx --settings-out x.json", "the JSON is written beside it"),
        ("train-step a.onnx --loss y --gradients -o x --state x", "--state and -o"),
    ],
)
def test_two_things_do_not_go_into_one_file(words: str, said: str) -> None:
    refused(*words.split(), said=said)


def test_a_baseline_is_never_written_over_a_plan() -> None:
    plan = "a.memplan.json"
    assert memplan("optimize", "a.onnx", "--no-validate").exit_code == 0
    over = ("--update-baseline", "--baseline", plan)
    refused("gate", "a.onnx", *over, said=f"{plan} is a plan, and a baseline would replace it")
    refused("gate", plan, *over, said="the baseline: a.memplan.json would overwrite a file")
    assert memplan("gate", "a.onnx", "--baseline", plan).exit_code == 0
    nowhere = ("--update-baseline", "--baseline", "none/b.json")
    refused("gate", "a.onnx", *nowhere, said="there is no folder none to write into")


def test_a_device_takes_everything() -> None:
    words = "gate a.onnx --max-memory 1GB --write json=/dev/null -o /dev/null"
    assert memplan(*words.split()).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        "report a.onnx -o",
        "settings a.onnx -o",
        "sweep a.onnx --jobs 1 --resume",
        "sweep a.onnx --jobs 1 -o",
        "gate a.onnx --max-memory 1GB -o",
        "pack p.csv -o",
        "optimize a.onnx --settings-out",
        "train-step a.onnx --loss y --gradients -o",
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(words: str) -> None:
    refused(*words.split(), "none/x.py", said="there is no folder none to write into")
    refused(*words.split(), "", said="the name of the file is empty")
    Path("there").mkdir()
    done = memplan(*words.split(), "there")
    assert done.exit_code == 2
    assert "there is a folder" in done.stderr


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("report a.onnx --format json", "{"),
        ("settings a.onnx --format json", "{"),
        ("sweep a.onnx --jobs 1 --format csv", "model,dims,status"),
        ("gate a.onnx --max-memory 1GB --format json", "{"),
    ],
)
def test_a_dash_is_standard_output_where_the_result_is_text(words: str, begins: str) -> None:
    before = files()
    done = memplan(*words.split(), "-o", "-")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(begins)
    assert "wrote" not in done.stderr
    assert files() == before


@pytest.mark.parametrize(
    "words",
    [
        "optimize a.onnx -o -",
        "optimize a.onnx --plan -",
        "optimize a.onnx --settings-out -",
        "train-step a.onnx --loss y --gradients -o -",
        "train-step a.onnx --loss y --gradients -o s.onnx --state -",
        "pack p.csv -o -",
        "sweep a.onnx --resume -",
        "gate a.onnx --max-memory 1GB --write json=-",
    ],
)
def test_a_dash_is_no_file(words: str) -> None:
    refused(*words.split(), said="'-' is no")


def test_pack_says_what_it_wrote_or_that_it_did_not() -> None:
    assert memplan("pack", "p.csv", "-o", "o.csv").stderr == "memplan: wrote o.csv\n"
    done = memplan("pack", "p.csv", "-o", "n.csv", "--capacity", "1")
    assert (done.exit_code, done.stderr) == (1, "memplan: nothing was written\n")
    assert not Path("n.csv").exists()


def test_train_step_prints_json() -> None:
    text = "g (float[2,4] x) => (float y) <float[4,4] W = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}>"
    write(Path("w.onnx"), f"{text} {{ h = MatMul(x, W) y = ReduceMean <keepdims = 0> (h) }}")
    words = ("train-step", "w.onnx", "--loss", "y", "--gradients", "-o", "s.onnx")
    done = memplan(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found.pop("nodes") > 2
    assert found.pop("memory")["live_peak"] > 0
    assert found.pop("recompute")["budget"] is None
    assert found == {
        "schema": "memplan.train-step/1",
        "written": True,
        "path": "s.onnx",
        "parameters": ["W"],
        "loss": "y",
        "running": [],
        "state": [],
        "tied": {},
        "not_trained": {},
        "symbolic": {},
    }


@pytest.mark.parametrize(
    "words",
    [
        "report NAME",
        "gate NAME --max-memory 1GB",
        "validate NAME --original a.onnx",
        "sweep NAME --jobs 1",
        "optimize a.onnx --no-validate -o NAME",
        "report a.onnx -o NAME",
        "pack p.csv -o NAME",
    ],
)
def test_a_name_that_no_file_can_have_is_no_bug_of_ours(words: str) -> None:
    name = "n" * 300
    refused(*words.replace("NAME", name).split(), said="File name too long")
    done = memplan(*words.replace("NAME", name).split())
    assert "memplan failed" not in done.stderr


@pytest.mark.parametrize(
    "words", ["report a.onnx -o", "settings a.onnx -o", "optimize a.onnx --no-validate -o"]
)
def test_links_in_a_circle_are_no_file(words: str) -> None:
    Path("circle").symlink_to("circle")
    done = memplan(*words.split(), "circle")
    assert done.exit_code == 2
    assert "circle cannot be written: Too many levels of symbolic links" in done.stderr
    assert Path("circle").is_symlink()
