from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.observations import CPU
from memplan_cli.errors import RuntimeTimeoutError, RuntimeUnavailableError
from memplan_cli.runtime.workers import worker
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _warm() -> None:
    """Start each process anew: its start is what is tested here."""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the child at jobs of this test's own, by name and module path."""
    (tmp_path / "crashes.py").write_text("import os\ndef run(job):\n    os.abort()\n")
    (tmp_path / "hangs.py").write_text("import time\ndef run(job):\n    time.sleep(60)\n")
    (tmp_path / "leaves.py").write_text("import os\ndef run(job):\n    os._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def outcome_of(arguments: list[str], timeout: float) -> worker.Outcome:
    with worker.start_script(arguments, {}, timeout=timeout) as started:
        return started.outcome()


def spawn_with(module: str, folder: Path, timeout: float) -> worker.Outcome:
    """Run ``main`` of the worker in a child with one more entry in its table."""
    script = folder / "entry.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "import memplan_cli.runtime.workers.worker as worker\n"
        f"worker.JOBS = {{'x': {module!r}}}\n"
        "worker.main('x', Path(sys.argv[2]))\n"
    )
    return outcome_of([str(script), "x"], timeout)


def test_a_job_answers() -> None:
    outcome = run_job("probe", {"provider": CPU})
    assert outcome.ok
    assert outcome.result == {"providers": [CPU]}


def test_an_error_in_a_job_is_a_failed_result() -> None:
    outcome = run_job("probe", {})
    assert (outcome.how, outcome.ok) == ("error", False)
    assert "provider" in outcome.reason
    with pytest.raises(RuntimeUnavailableError, match="cannot: KeyError"):
        outcome.require("cannot")


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("module", "how", "words"),
    [("crashes", "crash", "SIGABRT"), ("leaves", "crash", "exit code 7")],
)
def test_a_crash_is_a_failed_result_that_names_the_signal(
    tmp_path: Path, module: str, how: str, words: str
) -> None:
    outcome = spawn_with(module, tmp_path, 60)
    assert outcome.how == how
    assert words in outcome.reason


@pytest.mark.usefixtures("jobs")
def test_a_hang_is_a_failed_result_after_the_timeout(tmp_path: Path) -> None:
    outcome = spawn_with("hangs", tmp_path, 1)
    assert outcome.how == "timeout"
    assert "within 1 s" in outcome.reason
    with pytest.raises(RuntimeTimeoutError, match="cannot: no answer within 1 s"):
        outcome.require("cannot")


def answering(folder: Path, expression: str) -> str:
    """Run a child that answers with an expression, and return its answer as text."""
    script = folder / "child.py"
    script.write_text(
        "import json, os, pathlib, sys\n"
        f"answer = {{'how': 'ok', 'result': {{'is': {expression}}}, 'reason': ''}}\n"
        "pathlib.Path(sys.argv[1], 'result.json').write_text(json.dumps(answer))\n"
    )
    return str(outcome_of([str(script)], 60).result["is"])


def test_runtime_sends_nothing_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    assert answering(tmp_path, "os.environ['ORT_DISABLE_TELEMETRY']") == "1"


def test_who_wants_the_runtime_to_send_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    assert answering(tmp_path, "os.environ['ORT_DISABLE_TELEMETRY']") == "0"


def test_folder_without_room_for_a_job_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(RuntimeUnavailableError, match="no room for temporary files"):
        run_job("probe", {})


def test_child_that_cannot_write_its_answer_says_so_by_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text("raise SystemExit(74)")
    found = outcome_of([str(script)], 60)
    assert found.how == "crash"
    assert "no room for temporary files" in found.reason
