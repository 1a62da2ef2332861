"""What memplan is built on: every lower bound is named once and can be tested."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def oldest(text: str) -> list[str]:
    spec = importlib.util.spec_from_file_location("oldest", ROOT / ".ci" / "oldest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[str] = module.constraints(text)
    return found


def project() -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return data


def test_every_dependency_has_a_lower_bound_that_the_oldest_job_pins() -> None:
    pinned = {
        line.partition("==")[0] for line in oldest((ROOT / "pyproject.toml").read_text())
    }
    wanted = {re.split(r"[><=;\[ ]", name)[0] for name in project()["dependencies"]}
    assert wanted <= pinned


def test_bound_keeps_its_marker_and_loses_its_extras() -> None:
    text = """[project]
        dependencies = ["a>=1.2; python_version < '4'", "b[x,y]>=3", "free"]
        optional-dependencies = {dev = ["c>=0.1"]}"""
    assert oldest(text) == ["a==1.2 ; python_version < '4'", "b==3", "c==0.1"]


def test_workflow_runs_targets_that_the_makefile_has() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = workflow["jobs"]
    asked = [name.split()[0] for name in jobs["trust"]["strategy"]["matrix"]["target"]]
    for job in jobs.values():
        for step in job["steps"]:
            words = step.get("run", "").removeprefix("make ").split()
            asked += [word for word in words if re.fullmatch("[a-z-]+", word)]
    assert "test-oldest" in asked
    assert set(asked) <= targets
