"""The ledger of a simulated run: who is asked for memory, and what is live after each op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.workspace import key_of

if TYPE_CHECKING:
    from memplan_cli.core.program import Op
    from memplan_cli.runtime.simulation.bfc import Arena
    from memplan_cli.runtime.simulation.workspace import Workspace


class UnknownBytesError(Exception):
    """A tensor's size is not known before the run: nothing can be predicted."""


@dataclass(slots=True)
class Ledger:
    """Bytes asked for and not given back, at every step, with and without an arena.

    ``peak`` is sampled as the profile does: after each op, before its inputs are freed.
    ``scratch`` is the workspace of kernels, by node, which only the arena sees.
    """

    arena: Arena | None = None
    scratch: Workspace = field(default_factory=dict)
    live: int = 0
    peak: int = 0
    _sizes: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    _count: int = 0

    def allocate(self, size: int) -> int:
        """Ask for memory; the number returned gives it back."""
        self._count += 1
        address = self.arena.allocate(size) if self.arena else None
        self._sizes[self._count] = (size, address)
        self.live += size
        return self._count

    def free(self, ticket: int) -> None:
        """Give memory back."""
        size, address = self._sizes.pop(ticket)
        self.live -= size
        if self.arena:
            self.arena.free(address)

    def sample(self, op: Op) -> None:
        """Look at what is live when an op is done; its workspace came and went meanwhile."""
        self.peak = max(self.peak, self.live)
        if self.arena and (workspace := self.scratch.get(key_of(op))):
            for address in [self.arena.allocate(size) for size in workspace]:
                self.arena.free(address)
