"""What one session takes of a process while it is made and run, without what looking at it takes.

A profile stays in memory to the end, some 2.7 KB for each node and run: 115 MB of an LSTM of 14,000
nodes. The C library says how much a run leaves in use; once the arena has what it
needs, that is the profile. It fills holes of the heap first, where loading has left some.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Self

from memplan_cli.core.results.observations import ProcessBytes
from memplan_cli.runtime.workers.device_memory import DeviceUse, bytes_taken, device_use
from memplan_cli.runtime.workers.process_memory import (
    Resident,
    baseline,
    beyond,
    forget_highest,
    resident,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.runtime.workers.spec import SessionSpec


@dataclass(frozen=True, slots=True)
class HeapUse:
    """Bytes that the C library has given out, and those of its heap that are free."""

    used: int
    free: int


class _Counts(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def heap_use() -> HeapUse | None:
    """Return what is in use now; None where the C library does not say."""
    asked = _asked()
    if asked is None:
        return None
    found = asked()
    return HeapUse(found.uordblks + found.hblkhd, found.fordblks)


@lru_cache(maxsize=1)
def _asked() -> Callable[[], _Counts] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = _Counts
    return function


@dataclass(slots=True)
class Meter:
    """Notes of one session; made when the runtime is imported and nothing is loaded.

    Attributes:
        provider: where it runs.
        before: what lay in memory then.
        on_device: and on devices.
    """

    provider: str
    before: Resident | None
    on_device: DeviceUse | None
    _keeps_holes: bool
    _standing: Resident | None = None
    _holes: int = 0
    _highest: list[int] = field(default_factory=list)
    _after: list[tuple[Resident, HeapUse | None]] = field(default_factory=list)

    @classmethod
    def start(cls, spec: SessionSpec) -> Self:
        """Return notes of the session that is asked for, which is not there yet."""
        on_device = device_use(spec.provider)
        return cls(spec.provider, baseline(), on_device, not spec.as_loaded)

    def stands(self) -> None:
        """Note what it took to make the session."""
        self._standing, heap = resident(), heap_use()
        self._holes = heap.free if heap and self._keeps_holes else 0

    def ran(self) -> None:
        """Note a run, whose outputs are there and were not looked at."""
        found = resident()
        self._highest.append(found.highest if found else 0)

    def dropped(self) -> None:
        """Note what is left when its outputs are gone; what they were looked at with does not count."""
        found = resident()
        if found is not None:
            self._after.append((found, heap_use()))
        forget_highest()

    def process(self, held: Sequence[int] = ()) -> ProcessBytes | None:
        """Return what the session took; None where the system does not say.

        Args:
            held: what the arena held after each run; of a session without a profile, nothing.
        """
        last = self._after[-1][0] if self._after else self._standing
        device = bytes_taken(self.on_device, device_use(self.provider))
        found = beyond(self.before, self._standing, last, device)
        if found is None or self.before is None or not self._after:
            return found
        each = self._profile_of_a_run(held)
        runs = range(1, len(self._highest) + 1)
        profile = [max(run * each - self._holes, 0) for run in runs]
        highest = max(now - less for now, less in zip(self._highest, profile, strict=True))
        return ProcessBytes(
            load=found.load,
            run=max(highest - self.before.now, found.load),
            private=max(found.private - profile[-1], 0),
            file=found.file,
            device=device,
        )

    def _profile_of_a_run(self, held: Sequence[int]) -> int:
        """Return the bytes that the last run has left in use, the arena's left out."""
        uses = [use for _, use in self._after if use is not None]
        if len(uses) < 3 or len(held) < 2:
            return 0
        arena = held[-1] - held[-2]
        return max(uses[-1].used - uses[-2].used - arena, 0)
