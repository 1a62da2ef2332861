"""The action, the hooks, the example workflow and the pytest plugin, each really run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from story import GOOD, LONGER, memplan, write

ROOT = Path(__file__).parents[2]

SHIM = f"#!{sys.executable}\nfrom memplan_cli.cli import main\nmain()\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``memplan`` is this working tree."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "memplan").write_text(SHIM)
    (tools / "memplan").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


GATE = "Check the memory"


def action_step(
    name: str, inputs: dict[str, str], **github: str
) -> tuple[str, dict[str, str]]:
    """Return a step's script and its variables, as a runner would make them."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {name: facts.get("default", "") for name, facts in action["inputs"].items()}
    assert set(inputs) <= set(values), "the action has no such input"
    values.update(inputs)
    known = {f"inputs.{name}": value for name, value in values.items()}
    known |= {f"github.{name}": value for name, value in github.items()}
    (step,) = [step for step in action["runs"]["steps"] if step["name"] == name]
    variables = {
        variable: known[text.removeprefix("${{ ").removesuffix(" }}")]
        for variable, text in step["env"].items()
    }
    assert "${{" not in step["run"], "an input in the script could run"
    return step["run"], variables


def run_step(
    folder: Path, env: dict[str, str], script: str, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    runner = {
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_REPOSITORY": "owner/name",
        "RUNNER_TEMP": str(folder),
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**env, **runner, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def run_action(
    folder: Path, env: dict[str, str], inputs: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], str]:
    done = run_step(folder, env, *action_step(GATE, inputs))
    summary = folder / "summary.md"
    return done, summary.read_text() if summary.exists() else ""


def logging_shim(folder: Path, name: str, answer: str = "") -> Path:
    """Put a command in front of others that writes its words down, each quoted."""
    log = folder / f"{name}.log"
    shim = folder / "tools" / name
    shim.write_text(f'#!/bin/bash\nprintf "%q " "$@" >> {log}; echo >> {log}\n{answer}\n')
    shim.chmod(0o755)
    return log


@pytest.mark.parametrize(
    ("package", "installed"), [("", r"/the/action\[cpu\]"), ("memplan==1", "memplan==1")]
)
def test_the_action_installs_its_own_checkout_unless_told_otherwise(
    tmp_path: Path, env: dict[str, str], package: str, installed: str
) -> None:
    log = logging_shim(tmp_path, "python")
    script, variables = action_step(
        "Install memplan", {"package": package}, action_path="/the/action"
    )
    assert run_step(tmp_path, env, script, variables).returncode == 0
    assert log.read_text().split() == ["-m", "pip", "install", "--quiet", installed]


@pytest.mark.parametrize(
    ("known", "method", "place"),
    [
        ("", "POST", "repos/owner/name/issues/7/comments"),
        ("11\n12", "PATCH", "repos/owner/name/issues/comments/11"),
    ],
)
def test_the_action_keeps_one_comment_on_a_pull_request(
    tmp_path: Path, env: dict[str, str], known: str, method: str, place: str
) -> None:
    write(tmp_path / "net.onnx", GOOD)
    listing = f'if [ "$2" = "--paginate" ]; then printf "{known}"; fi'
    log = logging_shim(tmp_path, "gh", listing)
    done, summary = run_action(
        tmp_path,
        env,
        {"models": "net.onnx", "max-memory": "1KiB", "metric": "planned", "comment": "true"},
    )
    assert done.returncode == 1
    github = {"token": "none", "event.pull_request.number": "7"}
    script, variables = action_step("Comment on the pull request", {}, **github)
    assert run_step(tmp_path, env, script, variables).returncode == 0
    comment = tmp_path / "memplan-comment.md"
    assert comment.read_text() == f"<!-- memplan -->\n{summary}"
    listed, written = log.read_text().splitlines()
    assert listed.startswith("api --paginate repos/owner/name/issues/7/comments")
    assert written.split() == [
        "api",
        "--silent",
        "-X",
        method,
        place,
        "-F",
        f"body=@{comment}",
    ]


def test_without_a_verdict_or_the_wish_there_is_no_comment(
    tmp_path: Path, env: dict[str, str]
) -> None:
    write(tmp_path / "net.onnx", GOOD)
    log = logging_shim(tmp_path, "gh")
    fits = {"models": "net.onnx", "max-memory": "1MiB", "metric": "planned"}
    quiet, _ = run_action(tmp_path, env, fits)
    assert quiet.returncode == 0
    broken = {"models": "none.onnx", "max-memory": "1MiB", "comment": "true"}
    assert run_action(tmp_path, env, broken)[0].returncode == 2
    github = {"token": "none", "event.pull_request.number": "7"}
    script, variables = action_step("Comment on the pull request", {}, **github)
    assert run_step(tmp_path, env, script, variables).returncode == 0
    assert not log.exists()


def test_what_follows_the_gate_runs_although_it_failed() -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    after = steps[[step["name"] for step in steps].index(GATE) + 1 :]
    assert [step["name"] for step in after] == ["Comment on the pull request", "Upload SARIF"]
    assert all(step["if"].startswith("always() && inputs.") for step in after)
    upload = after[-1]
    assert upload["uses"].startswith("github/codeql-action/upload-sarif@")
    assert upload["with"]["sarif_file"] == "${{ inputs.sarif }}"


def test_the_action_annotates_summarizes_and_fails(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "models" / "net.onnx", GOOD)
    assert memplan("gate", "models/net.onnx", "--update-baseline").exit_code == 0
    write(tmp_path / "models" / "net.onnx", LONGER)
    inputs = {"models": "models/*.onnx", "max-increase": "2%", "sarif": "out.sarif"}
    done, summary = run_action(tmp_path, env, inputs)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error file=models/net.onnx,title=memplan%3A increase::")
    assert "`early`" in summary
    assert "early" in (tmp_path / "out.sarif").read_text()


def test_the_action_leaves_globs_to_memplan(tmp_path: Path, env: dict[str, str]) -> None:
    write(tmp_path / "m[1].onnx", GOOD)
    write(tmp_path / "m1.onnx", GOOD)
    inputs = {"models": "m[1].onnx", "max-memory": "1MiB", "metric": "planned"}
    done, summary = run_action(tmp_path, env, inputs)
    assert done.returncode == 0, done.stderr
    assert "`m[1].onnx`" in summary
    assert "`m1.onnx`" not in summary


def test_the_action_runs_nothing_that_its_inputs_hold(
    tmp_path: Path, env: dict[str, str]
) -> None:
    write(tmp_path / "net.onnx", GOOD)
    evil = '$(touch pwned) `touch pwned`; touch pwned; "'
    names = ("models", "max-memory", "max-increase", "baseline", "metric", "config", "sarif")
    done, _ = run_action(tmp_path, env, {**dict.fromkeys(names, evil), "args": evil})
    assert done.returncode == 2
    assert not (tmp_path / "pwned").exists()


def test_the_example_workflow_runs_as_it_stands(tmp_path: Path, env: dict[str, str]) -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "examples" / "memory-gate.yml").read_text())
    steps: list[dict[str, Any]] = workflow["jobs"]["gate"]["steps"]
    (step,) = [step for step in steps if step["uses"] == "./"]
    (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
    done, summary = run_action(tmp_path, env, step["with"])
    assert done.returncode == 0, done.stderr
    assert "passed" in summary


@pytest.mark.parametrize(("number", "budget", "code"), [(0, "1KiB", 1), (1, "1MiB", 0)])
def test_the_hooks_check_the_files_they_are_given(
    tmp_path: Path, env: dict[str, str], number: int, budget: str, code: int
) -> None:
    hook = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[number]
    write(tmp_path / "net.onnx", GOOD)
    (tmp_path / "memplan.yaml").write_text(
        f"gate: {{metric: planned, max_memory: {budget}}}\n"
    )
    entry = [*shlex.split(hook["entry"]), "net.onnx"]
    run = subprocess.run(entry, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert run.returncode == code, run.stderr
    assert (tmp_path / "memplan.baseline.json").exists() == ("--update" in hook["entry"])


PLUGIN_TESTS = """
import pytest

@pytest.mark.limit_onnx_memory("1MiB", model="net.onnx")
def test_fits(): pass

@pytest.mark.limit_onnx_memory("1KiB", model="net.onnx")
def test_too_large(): pass

@pytest.mark.limit_onnx_memory("1MiB")
def test_fixture_fits(onnx_memory): assert onnx_memory("net.onnx").level == 2

@pytest.mark.limit_onnx_memory(1000, metric="total")
def test_fixture_too_large(onnx_memory): onnx_memory("net.onnx")

def test_no_limit(onnx_memory): assert onnx_memory("net.onnx").memory.planned > 1000

@pytest.mark.limit_onnx_memory("1MiB", dims={"n": 4}, model="open.onnx")
def test_bound(): pass

@pytest.mark.limit_onnx_memory("1MiB", model="open.onnx")
def test_a_dim_without_a_number(): pass

@pytest.mark.limit_onnx_memory("1MiB")
def test_checks_nothing(): pass

@pytest.mark.limit_onnx_memory("1MiB", model="net.onnx", dims={"foo": 2})
def test_a_dim_that_is_none(): pass

@pytest.mark.limit_onnx_memory("1MiB", model="net.onnx", metric="size")
def test_a_metric_that_is_none(): pass

@pytest.mark.limit_onnx_memory("1KiB", model="net.onnx")
@pytest.mark.limit_onnx_memory("1MiB", model="open.onnx", dims={"n": 4})
def test_the_farther_mark_holds_too(): pass

@pytest.mark.limit_onnx_memory("1MiB", model="net.onnx")
@pytest.mark.limit_onnx_memory("2MiB", model="open.onnx", dims={"n": 4})
@pytest.mark.limit_onnx_memory("1GB", metric="total", model="net.onnx")
def test_all_marks_hold(): pass

@pytest.mark.limit_onnx_memory("1KiB")
class TestClass:
    @pytest.mark.limit_onnx_memory("1MiB", model="net.onnx")
    def test_of_a_class(self): pass

    @pytest.mark.limit_onnx_memory("1MiB", metric="live_peak")
    def test_of_a_class_by_the_fixture(self, onnx_memory): onnx_memory("net.onnx")

@pytest.mark.limit_onnx_memory("1MiB")
@pytest.mark.limit_onnx_memory("1KiB", model="open.onnx", dims={"n": 1})
def test_the_fixture_heeds_marks_without_a_model(onnx_memory): onnx_memory("net.onnx")

@pytest.mark.limit_onnx_memory("1KiB", model="open.onnx", dims={"n": 1})
def test_the_fixture_leaves_limits_of_another_model_out(onnx_memory): onnx_memory("net.onnx")

@pytest.mark.limit_onnx_memory("1MiB", model="part.onnx")
def test_partial(): pass

@pytest.mark.limit_onnx_memory("1MiB", model="net.onnx", metric="process.run")
def test_process_too_large(): pass
"""

KEYWORD_TESTS = """
import pathlib
import pytest

@pytest.mark.limit_onnx_memory(process="1MiB", model="net.onnx")
def test_process_alone_too_large(): pass

@pytest.mark.limit_onnx_memory("1MiB", process="1GiB", model="net.onnx")
def test_process_fits_too(): pass

@pytest.mark.limit_onnx_memory("1KiB", process="1GiB", model="net.onnx")
def test_the_limit_holds_beside_the_process(): pass

@pytest.mark.limit_onnx_memory("1MiB", level=0)
def test_level(onnx_memory): assert onnx_memory("net.onnx").level == 0

@pytest.mark.limit_onnx_memory("1MiB", config="own.yaml", model="net.onnx")
def test_config(onnx_memory): assert onnx_memory("net.onnx").level == 1

@pytest.mark.limit_onnx_memory("1MiB", inputs="in.npz", model="open.onnx")
def test_inputs(onnx_memory):
    assert onnx_memory("open.onnx").bindings["n"].value == 3

@pytest.mark.limit_onnx_memory("1MiB", inputs=["in.npz"], level=1, model="open.onnx")
@pytest.mark.limit_onnx_memory(100)
def test_a_mark_without_a_model_needs_the_fixture(): pass

@pytest.mark.limit_onnx_memory("1MiB", modle="net.onnx")
def test_wrong_keyword(): pathlib.Path("ran").touch()

@pytest.mark.limit_onnx_memory("1MiB", levels=1)
def test_wrong_keyword_by_the_fixture(onnx_memory): pathlib.Path("ran").touch()

@pytest.mark.limit_onnx_memory(model="net.onnx")
def test_no_limit_at_all(): pass

@pytest.mark.limit_onnx_memory("1MiB", "net.onnx")
def test_two_in_place(): pass

@pytest.mark.limit_onnx_memory("1MiB", level=7, model="net.onnx")
def test_level_that_is_none(): pass

@pytest.mark.limit_onnx_memory("much", model="net.onnx")
def test_size_that_is_none(): pass

@pytest.mark.limit_onnx_memory("1MiB", config="none.yaml", model="net.onnx")
def test_config_that_is_not_there(): pass

@pytest.mark.limit_onnx_memory("1MiB", inputs="none.npz", model="open.onnx")
def test_inputs_that_are_not_there(): pass

@pytest.mark.limit_onnx_memory("1MiB", dims=3, model="open.onnx")
def test_dims_that_are_no_table(): pass

@pytest.mark.limit_onnx_memory("1MiB", model=3)
def test_model_that_is_no_path(): pass

@pytest.mark.limit_onnx_memory("1MiB", config=3, model="open.onnx")
def test_config_that_is_no_path(): pass

@pytest.mark.limit_onnx_memory("1MiB")
def test_model_that_is_not_there(onnx_memory): onnx_memory("none.onnx")
"""

GAP = "g (float[64] x) => (int64[1,?] y) { t = Relu(x) \n f = NonZero(t) \n y = Neg(f) }"
OPEN = "g (float[n,64] x) => (float[n,64] y) { t = Exp(x) \n y = Log(t) }"


def run_plugin(
    folder: Path, tests: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Return what pytest says of tests with the plugin, and each one's outcome."""
    (folder / "test_models.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "memplan_cli.cli.pytest_plugin",
        "-rA",
        "-q",
    ]
    done = subprocess.run(
        [*command, "--strict-markers", "--rootdir", ".", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    words = (line.split() for line in done.stdout.splitlines())
    found = {line[1].partition("::")[2]: line[0] for line in words if len(line) > 1}
    return done, found


def test_the_pytest_plugin_limits_models(tmp_path: Path) -> None:
    write(tmp_path / "net.onnx", GOOD)
    write(tmp_path / "open.onnx", OPEN)
    write(tmp_path / "part.onnx", GAP)
    (tmp_path / "memplan.yaml").write_text("allow_partial: true\nrun: false\n")
    done, found = run_plugin(tmp_path, PLUGIN_TESTS)
    assert {name: found.get(name) for name in found if name.startswith("test_")} == {
        "test_fits": "PASSED",
        "test_too_large": "FAILED",
        "test_fixture_fits": "PASSED",
        "test_fixture_too_large": "FAILED",
        "test_no_limit": "PASSED",
        "test_bound": "PASSED",
        "test_a_dim_without_a_number": "PASSED",
        "test_checks_nothing": "FAILED",
        "test_a_dim_that_is_none": "FAILED",
        "test_a_metric_that_is_none": "FAILED",
        "test_the_farther_mark_holds_too": "FAILED",
        "test_all_marks_hold": "PASSED",
        "test_the_fixture_heeds_marks_without_a_model": "PASSED",
        "test_the_fixture_leaves_limits_of_another_model_out": "PASSED",
        "test_partial": "PASSED",
        "test_process_too_large": "FAILED",
    }, done.stdout + done.stderr
    assert "as planned: " in done.stdout
    assert "process.run: " in done.stdout
    assert "live at the peak" in done.stdout
    assert "checked no model" in done.stdout
    assert "During handling" not in done.stdout
    assert "pytest_runtest_call" not in done.stdout
    assert "the model has no dim 'foo'" in done.stdout
    assert "--metric: expected planned, live_peak" in done.stdout
    assert "part.onnx: totals are partial" in done.stdout
    assert "Error(" not in done.stdout, "no traceback through our own files"
    classes = {name: word for name, word in found.items() if name.startswith("TestClass")}
    assert set(classes.values()) == {"FAILED"}
    assert len(classes) == 2


def test_a_mark_takes_settings_and_limits_of_the_process(tmp_path: Path) -> None:
    import numpy as np

    write(tmp_path / "net.onnx", GOOD)
    write(tmp_path / "open.onnx", OPEN)
    (tmp_path / "own.yaml").write_text("level: 1\n")
    np.savez(tmp_path / "in.npz", x=np.zeros((3, 64), np.float32))
    done, found = run_plugin(tmp_path, KEYWORD_TESTS)
    passed = {name for name, word in found.items() if word == "PASSED"}
    assert passed == {"test_process_fits_too", "test_level", "test_config", "test_inputs"}, (
        done.stdout + done.stderr
    )
    wrong = {name for name in found if name.startswith("test_")} - passed
    assert len(wrong) == KEYWORD_TESTS.count("def test_") - len(passed)
    for said in (
        "whole process: ",
        "as planned: ",
        "there is no keyword 'modle'",
        "did you mean",
        "there is no keyword 'levels'",
        "there is no limit; the mark is",
        "expected 0, 1 or 2, not 7",
        "none.yaml",
        "none.npz",
        "model must be a path, not 3",
        "config must be a path, not 3",
        "there is no file none.onnx",
    ):
        assert said in done.stdout, said
    assert not (tmp_path / "ran").exists(), "a mark is judged before its test runs"
    assert "Traceback" not in done.stdout
    assert "memplan_cli/" not in done.stdout, "no traceback through our own files"
