"""Load a model and say how much memory the process took for it at its highest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.onnx_io.runs.runnable import smallest_model
from memplan_cli.runtime.workers.session import make_session

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def run(job: Json) -> Json:
    """Create a session twice, and return the bytes that the second one added at its highest.

    The first one, of the smallest model, brings the runtime's own libraries into memory.
    ``bytes`` is None where the system does not say (only Linux does).
    """
    if not _CLEAR.exists():
        return {"bytes": None}
    settings, provider = RuntimeSettings(), str(job["provider"])
    make_session(smallest_model(), settings, provider)
    _CLEAR.write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS")
    session = make_session(Path(str(job["model"])), settings, provider)
    highest = _kilobytes("VmHWM")
    del session
    return {"bytes": max(highest - before, 0) * 1024}


def _kilobytes(key: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {key}")
