"""ONNX Runtime in a process of its own, so that a crash there is no crash here.

A job is a kind and a JSON object; the child writes a JSON object back. A native crash, a
hang or an error in the child is an `Outcome` with a failure, never ours. Arrays travel as
files in folders that the job names.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from memplan_cli.core.children import end_with_parent, run_child
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.errors import MemplanError, RuntimeTimeoutError, RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, object]

JOBS: Mapping[str, str] = {
    "probe": "memplan_cli.runtime.workers.jobs.probe",
    "examine": "memplan_cli.runtime.workers.jobs.examine",
    "outputs": "memplan_cli.runtime.workers.jobs.outputs",
    "donated": "memplan_cli.runtime.workers.jobs.donated",
    "decode": "memplan_cli.runtime.workers.jobs.decode",
    "measure": "memplan_cli.runtime.workers.jobs.measure",
    "loading": "memplan_cli.runtime.workers.jobs.loading",
    "dump": "memplan_cli.runtime.workers.jobs.dump",
    "offline": "memplan_cli.runtime.workers.jobs.offline",
    "graph": "memplan_cli.runtime.workers.jobs.graph",
    "replay": "memplan_cli.runtime.workers.jobs.replay",
    "inplace": "memplan_cli.runtime.workers.jobs.inplace",
    "shapes": "memplan_cli.runtime.workers.jobs.shapes",
    "observed": "memplan_cli.runtime.workers.jobs.observed",
    "trial": "memplan_cli.runtime.workers.jobs.trial",
}
"""Each module has ``run(job) -> result``; it is imported in the child only."""

_TAIL = 1200
"""Characters of a log or an error that are passed on, the last or the first."""

_QUIET: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime 1.31's wheels send events to their maker and leave files in the folder for
temporary ones, unless this is set when the library is loaded (its Privacy.md). Nothing of
a user's model shall leave the machine because memplan ran it; who sets it is heard."""

_NO_ROOM = 74
"""EX_IOERR of sysexits.h: a child that cannot even write down why it failed."""


How = Literal["ok", "error", "crash", "timeout"]
"""``error`` is an exception in the child; a ``crash`` is a child that died."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: its result, or how it failed and why."""

    how: How
    result: Json
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.how == "ok"

    @property
    def timed_out(self) -> bool:
        """Whether the process was ended for want of time."""
        return self.how == "timeout"

    def require(self, what: str) -> Json:
        """Return the result.

        Raises:
            RuntimeTimeoutError: there is none, for want of time.
            RuntimeUnavailableError: there is none for another reason. Either message starts
                with ``what``.
        """
        if self.ok:
            return self.result
        failure = RuntimeTimeoutError if self.timed_out else RuntimeUnavailableError
        raise failure(
            f"{what}: {self.reason}",
            hint="--no-validate leaves the runtime out; `memplan doctor` shows what works here",
        )


def run_job(
    kind: str, job: Mapping[str, object], *, timeout: float = DEFAULT_TIMEOUT
) -> Outcome:
    """Run one job in a child process and wait for it at most ``timeout`` seconds."""
    return run_script(["-m", "memplan_cli.runtime.workers.worker", kind], job, timeout=timeout)


def run_script(arguments: list[str], job: Mapping[str, object], *, timeout: float) -> Outcome:
    """Run Python with these arguments and a folder: ``job.json`` in, ``result.json`` out.

    Raises:
        RuntimeUnavailableError: there is no room for the job's temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="memplan-") as name:
        folder = Path(name)
        try:
            (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        except OSError as error:
            raise RuntimeUnavailableError(
                f"no room for temporary files in {folder.parent}: {error.strerror}",
                hint="set TMPDIR to a folder on a larger disk",
            ) from error
        log = folder / "log"
        try:
            code = _spawn([*arguments, name], log, timeout)
        except subprocess.TimeoutExpired:
            return Outcome("timeout", {}, f"no answer within {timeout:g} s")
        return _outcome(folder / "result.json", log, code)


def _spawn(arguments: list[str], log: Path, timeout: float) -> int:
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    # What a worker leaves in the folder for temporary files when it is killed goes with it.
    places = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(log.parent)}
    with log.open("wb") as sink:
        return run_child([sys.executable, *arguments], sink, {**_QUIET, **places}, timeout)


def _outcome(result: Path, log: Path, code: int) -> Outcome:
    if not result.exists():
        return Outcome("crash", {}, f"{_exit_reason(code)}{_tail(log)}")
    answer = json.loads(result.read_text(encoding="utf-8"))
    return Outcome(answer["how"], answer["result"], answer["reason"])


def _exit_reason(code: int) -> str:
    if code < 0:
        try:
            return f"the runtime's process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the runtime's process died of signal {-code}"
    if code == _NO_ROOM:
        return f"no room for temporary files in {tempfile.gettempdir()}"
    return f"the runtime's process ended with exit code {code}"


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return f": {text[-_TAIL:]}" if text else ""


def main(kind: str, folder: Path) -> None:
    """Do one job; the child's side of `run_job`."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        result = importlib.import_module(JOBS[kind]).run(job)
        answer = {"how": "ok", "result": result, "reason": ""}
    except MemplanError as error:
        answer = {"how": "error", "result": {}, "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_TAIL]
        answer = {"how": "error", "result": {}, "reason": reason}
    # The answer appears whole or not at all: a crash while writing leaves no half of it.
    draft = folder / "draft.json"
    try:
        draft.write_text(json.dumps(answer), encoding="utf-8")
        draft.replace(folder / "result.json")
    except OSError as error:
        raise SystemExit(_NO_ROOM) from error


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1], Path(sys.argv[2]))
