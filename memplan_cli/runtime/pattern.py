"""How tall is the block of ONNX Runtime's memory pattern?

An online best fit: each tensor goes into the tightest gap between the live ones, else on
top. What was traced in one run is the layout of the next ones.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

ALIGNMENT = 256


@dataclass(slots=True)
class Pattern:
    """A trace in the making; ``height`` is the block it asks for so far."""

    height: int = 0
    _starts: list[int] = field(default_factory=list)
    _live: list[tuple[int, int, str]] = field(default_factory=list)
    _at: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    def allocate(self, name: str, size: int) -> None:
        """Place a tensor of ``size`` bytes."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if not size:
            return
        offset, index = self._best(size)
        entry = (offset, size, name)
        self._live.insert(index, entry)
        self._at[name] = entry
        self.height = max(self.height, offset + size)

    def _best(self, size: int) -> tuple[int, int]:
        current, waste = 0, 1 << 62
        if not self._live:
            return 0, 0
        top = self._live[-1]
        best = (top[0] + top[1], len(self._live))
        for index, (offset, length, _) in enumerate(self._live):
            gap = offset - current
            if size <= gap < size + waste:
                best, waste = (current, index), gap - size
            current = offset + length
        return best

    def free(self, name: str) -> None:
        """Take a tensor away; one that was never placed is no error."""
        entry = self._at.pop(name, None)
        if entry is not None:
            del self._live[bisect_left(self._live, entry)]
