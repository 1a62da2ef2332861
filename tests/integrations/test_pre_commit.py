"""The hook, cloned and installed by the real pre-commit; skipped where that is not installed.

`make test-integrations` makes an environment that has it. The hook's own environment is made
by pip, as it is for everybody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pre_commit", reason="pre-commit is not installed: make test-integrations")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="pre-commit clones, and this is no clone"
)
def test_the_hook_holds_a_models_budget(samples: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home")}
    env.pop("PYTHONPATH", None)
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(samples / "branchy_cnn.onnx", project / "net.onnx")
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    hook = ["pre_commit", "try-repo", str(ROOT), "memplan-gate", "--files", "net.onnx"]

    def run(budget: str) -> subprocess.CompletedProcess[str]:
        (project / "memplan.yaml").write_text(f"gate:\n  max_memory: {budget}\n")
        subprocess.run(["git", "add", "-A"], cwd=project, check=True)
        command = [sys.executable, "-m", *hook]
        return subprocess.run(
            command, cwd=project, env=env, capture_output=True, text=True, check=False
        )

    failed = run("1KiB")
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "as planned: 216.00 KiB; the limit is 1.00 KiB" in failed.stdout
    passed = run("1MiB")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "Passed" in passed.stdout
