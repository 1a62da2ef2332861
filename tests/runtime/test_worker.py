from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.observations import CPU
from memplan_cli.errors import RuntimeTimeoutError, RuntimeUnavailableError
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from pathlib import Path

PROBE = "memplan_cli.runtime.workers.session:run_on_provider"


@pytest.fixture
def _warm() -> None:
    """Start each process anew: its start is what is tested here."""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with jobs that fail, in a folder from which the child imports."""
    (tmp_path / "crashes.py").write_text("import os\ndef run(job):\n    os.abort()\n")
    (tmp_path / "hangs.py").write_text("import time\ndef run(job):\n    time.sleep(60)\n")
    names = "[" + ", ".join(f"'x{number}'" for number in range(30)) + "]"
    (tmp_path / "misses.py").write_text(
        f'def run(job):\n    raise ValueError("needs ({names}).")\n'
    )
    (tmp_path / "leaves.py").write_text("import os\ndef run(job):\n    os._exit(7)\n")
    (tmp_path / "full.py").write_text("def run(job):\n    raise SystemExit(74)\n")
    variable = "os.environ['ORT_DISABLE_TELEMETRY']"
    (tmp_path / "tells.py").write_text(
        f"import os\ndef run(job):\n    return {{'is': {variable}}}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_job_answers() -> None:
    outcome = run_job(PROBE, {"provider": CPU})
    assert outcome.ok
    assert outcome.result == {"providers": [CPU]}


def test_an_error_in_a_job_is_a_failed_result() -> None:
    outcome = run_job(PROBE, {})
    assert (outcome.how, outcome.ok) == ("error", False)
    assert "provider" in outcome.reason
    with pytest.raises(RuntimeUnavailableError, match="cannot: KeyError"):
        outcome.require("cannot")


@pytest.mark.usefixtures("jobs")
def test_of_a_long_list_of_names_the_first_and_a_count_are_kept() -> None:
    outcome = run_job("misses:run", {}, timeout=60)
    assert outcome.reason == "ValueError: needs (['x0' and 29 more])."


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("module", "how", "words"),
    [("crashes", "crash", "SIGABRT"), ("leaves", "crash", "exit code 7")],
)
def test_a_crash_is_a_failed_result_that_names_the_signal(
    module: str, how: str, words: str
) -> None:
    outcome = run_job(f"{module}:run", {}, timeout=60)
    assert outcome.how == how
    assert words in outcome.reason


@pytest.mark.usefixtures("jobs")
def test_a_hang_is_a_failed_result_after_the_timeout() -> None:
    outcome = run_job("hangs:run", {}, timeout=1)
    assert outcome.how == "timeout"
    assert "within 1 s" in outcome.reason
    with pytest.raises(RuntimeTimeoutError, match="cannot: no answer within 1 s"):
        outcome.require("cannot")


@pytest.mark.usefixtures("jobs")
def test_runtime_sends_nothing_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    assert run_job("tells:run", {}).result == {"is": "1"}


@pytest.mark.usefixtures("jobs")
def test_who_wants_the_runtime_to_send_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    assert run_job("tells:run", {}).result == {"is": "0"}


def test_folder_without_room_for_a_job_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(RuntimeUnavailableError, match="no room for temporary files"):
        run_job(PROBE, {})


@pytest.mark.usefixtures("jobs")
def test_child_that_cannot_write_its_answer_says_so_by_its_exit_code() -> None:
    found = run_job("full:run", {})
    assert found.how == "crash"
    assert "no room for temporary files" in found.reason
