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


def action_step(inputs: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the action's script and its variables, as a runner would make them."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {name: facts.get("default", "") for name, facts in action["inputs"].items()}
    assert set(inputs) <= set(values), "the action has no such input"
    values.update(inputs)
    step = action["runs"]["steps"][-1]
    variables = {
        name: values[text.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, text in step["env"].items()
    }
    assert "${{" not in step["run"], "an input in the script could run"
    return step["run"], variables


def run_action(
    folder: Path, env: dict[str, str], inputs: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], str]:
    script, variables = action_step(inputs)
    summary = folder / "summary.md"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**env, **variables, "GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, summary.read_text() if summary.exists() else ""


def test_the_action_annotates_summarises_and_fails(
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
    done, summary = run_action(tmp_path, env, {"models": "m[1].onnx", "max-memory": "1MiB"})
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
    (tmp_path / "memplan.yaml").write_text(f"gate: {{max_memory: {budget}}}\n")
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
@pytest.mark.limit_onnx_memory("1GB", metric="total")
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

@pytest.mark.limit_onnx_memory("1MiB", model="part.onnx")
def test_partial(): pass

@pytest.mark.limit_onnx_memory("1MiB", model="net.onnx", metric="process.run")
def test_process_too_large(): pass
"""

GAP = "g (float[64] x) => (int64[1,?] y) { t = Relu(x) \n f = NonZero(t) \n y = Neg(f) }"
OPEN = "g (float[n,64] x) => (float[n,64] y) { t = Exp(x) \n y = Log(t) }"


def test_the_pytest_plugin_limits_models(tmp_path: Path) -> None:
    write(tmp_path / "net.onnx", GOOD)
    write(tmp_path / "open.onnx", OPEN)
    write(tmp_path / "part.onnx", GAP)
    (tmp_path / "memplan.yaml").write_text("allow_partial: true\nrun: false\n")
    (tmp_path / "test_models.py").write_text(PLUGIN_TESTS)
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
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    words = (line.split() for line in done.stdout.splitlines())
    found = {line[1].partition("::")[2]: line[0] for line in words if len(line) > 1}
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
        "test_partial": "PASSED",
        "test_process_too_large": "FAILED",
    }, done.stdout + done.stderr
    assert "planned is" in done.stdout
    assert "process.run is" in done.stdout
    assert "live at the peak" in done.stdout
    assert "checked nothing" in done.stdout
    assert "no dim is called 'foo'" in done.stdout
    assert "--metric: expected planned, live_peak" in done.stdout
    assert "part.onnx: totals are partial" in done.stdout
    assert "Error(" not in done.stdout, "no traceback through our own files"
    classes = {name: word for name, word in found.items() if name.startswith("TestClass")}
    assert set(classes.values()) == {"FAILED"}
    assert len(classes) == 2
