"""The block of ONNX Runtime's memory pattern, and its height.

An online best fit: each tensor goes into the tightest gap between the live ones, the one
between the last of them and the height reached so far included, else on top. What was
traced in one run is the layout of the next ones.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

ALIGNMENT = 256
"""Bytes that sizes in a pattern's block are rounded up to a multiple of."""


@dataclass(slots=True)
class Pattern:
    """A trace in the making.

    Attributes:
        height: the bytes of the block that it asks for so far.
        sizes: the bytes of each tensor placed, rounded.
    """

    height: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    _live: list[tuple[int, int, str]] = field(default_factory=list)
    _at: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    def allocate(self, name: str, size: int) -> None:
        """Place a tensor of ``size`` bytes."""
        size = self.sizes[name] = _rounded(size)
        if not size:
            return
        offset, index = self._best(size)
        entry = (offset, size, name)
        self._live.insert(index, entry)
        self._at[name] = entry
        self.height = max(self.height, offset + size)

    def _best(self, size: int) -> tuple[int, int]:
        """Return the offset of the tightest gap, the lowest of several, and its place."""
        current = 0
        best: tuple[int, int] | None = None
        least = 0
        for index, (offset, length, _) in enumerate(self._live):
            gap = offset - current
            if gap >= size and (best is None or gap < least):
                best, least = (current, index), gap
            current = offset + length
        # The room below the height competes like any gap: found on the training steps,
        # whose blocks came out lower than the runtime's without it.
        gap = self.height - current
        if best is None or size <= gap < least:
            best = current, len(self._live)
        return best

    def holds(self, name: str, size: int) -> bool:
        """Whether the block has room for a tensor: the very size that was traced."""
        return self.sizes.get(name) == _rounded(size)

    def free(self, name: str) -> None:
        """Take a tensor away; one that was never placed is no error."""
        entry = self._at.pop(name, None)
        if entry is not None:
            del self._live[bisect_left(self._live, entry)]


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
