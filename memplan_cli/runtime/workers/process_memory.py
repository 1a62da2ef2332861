"""What a process takes of the system's memory, read by the process itself.

Linux says it in ``/proc``; elsewhere nothing is known, and nothing is made up.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memplan_cli.core.results.observations import ProcessBytes

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Written to ``clear_refs``, it makes the highest resident size the present one."""


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident bytes: at their highest, now, anonymous now, of mapped files now."""

    highest: int
    now: int
    anonymous: int
    file: int


def resident() -> Resident | None:
    """Return what lies in memory of this process; None where the system does not say."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        keys = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
        return Resident(*(int(fields[key].split()[0]) * 1024 for key in keys))
    except (KeyError, ValueError, IndexError):
        return None


def baseline() -> Resident | None:
    """Return what lies in memory with the runtime imported; count the highest anew from here."""
    import onnxruntime  # noqa: F401 - what it takes by itself is nobody's model's

    _give_back()
    with suppress(OSError):  # a container may refuse it: then the highest of all counts
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    return resident()


def _give_back() -> None:
    """Give back what was freed: a session that lay in it would seem to take nothing."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


def beyond(
    before: Resident | None, loaded: Resident | None, ran: Resident | None
) -> ProcessBytes | None:
    """Return what a session took beyond what the process had before it.

    Args:
        before: with the runtime imported, and nothing loaded.
        loaded: when the session stood.
        ran: after its first runs.
    """
    if before is None or loaded is None or ran is None:
        return None
    return ProcessBytes(
        load=max(loaded.highest - before.now, 0),
        run=max(ran.highest - before.now, 0),
        private=max(ran.anonymous - before.anonymous, 0),
        file=max(ran.file - before.file, 0),
    )
