"""One block as integers: which op needs which, and what each step takes and gives back.

An order is a permutation of ``range(graph.size)``, the file's order being the identity.
Vars that are views of one another are one *tensor* here; whether a result may reuse
its input's bytes depends on the order and is decided during the walk, by the same rule as
`analysis.aliasing.share_storage`. The numbers therefore agree with `live_peak` to the
byte, except for subgraphs that run at most once (If): what dies inside of those is counted
to the op's end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Order = list[int]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The ops of one block; all tables but the last three are indexed by op.

    ``need`` is what an op's step takes beyond what was live before: its results, and for
    a control-flow op the most that these take. Sizes are in bytes.
    """

    preds: tuple[tuple[int, ...], ...]
    succs: tuple[tuple[int, ...], ...]
    opens: tuple[tuple[int, ...], ...]
    """The tensors that begin with this op."""
    touches: tuple[tuple[int, ...], ...]
    """The tensors that this op begins or reads."""
    replaces: tuple[tuple[int, ...], ...]
    """The tensors whose bytes the first result reuses, if they die here.

    None of them outlives the block.
    """
    saved: tuple[int, ...]
    """What the step saves if one of ``replaces`` dies."""
    need: tuple[int, ...]
    weight: tuple[int, ...]
    """Bytes of each tensor."""
    uses: tuple[int, ...]
    """How many ops touch each tensor, plus one where it outlives the block."""
    outlives: tuple[bool, ...]
    """Whether the block gives the tensor."""
    start: int
    """Bytes live before the first op."""
    taken: tuple[int, ...] = field(init=False)
    """For each op the bytes of the tensors that it begins."""

    def __post_init__(self) -> None:
        weight = self.weight
        taken = [sum([weight[t] for t in row]) if row else 0 for row in self.opens]
        object.__setattr__(self, "taken", tuple(taken))

    @property
    def size(self) -> int:
        """Number of ops."""
        return len(self.preds)

    def descendants(self, op: int) -> set[int]:
        """Return the ops that need an op, directly or not."""
        found: set[int] = set()
        stack = [op]
        while stack:
            fresh = [succ for succ in self.succs[stack.pop()] if succ not in found]
            found.update(fresh)
            stack += fresh
        return found

    def resident(self) -> int:
        """Return the bytes that are live throughout: no op here opens or touches them."""
        given = set().union(*self.touches).difference(*self.opens)
        return self.start - sum([self.weight[tensor] for tensor in given])

    def kept(self) -> int:
        """Return the bytes that are live after the last op, in whatever order they ran."""
        touched = set().union(*self.touches)
        dead = sum([self.weight[t] for t in touched if not self.outlives[t]])
        return self.start + sum(self.taken) - dead


def trace(graph: TaskGraph, order: Sequence[int]) -> tuple[list[int], list[int], int]:
    """Return the bytes live at each step of an order, before each, and after the last."""
    left = list(graph.uses)
    weight, touches, taken, needs = graph.weight, graph.touches, graph.taken, graph.need
    replaces, saved = graph.replaces, graph.saved
    live = graph.start
    steps, before = [], []
    for op in order:
        need = needs[op]
        for tensor in replaces[op]:
            if left[tensor] == 1:
                need -= saved[op]
                break
        before.append(live)
        steps.append(live + need)
        live += taken[op]
        for tensor in touches[op]:
            left[tensor] -= 1
            if not left[tensor]:
                live -= weight[tensor]
    return steps, before, live


def peak(graph: TaskGraph, order: Sequence[int]) -> int:
    """Return the most bytes live at one step of an order."""
    return max(trace(graph, order)[0], default=graph.start)


def moved(order: Sequence[int]) -> int:
    """Return by how many places an order moves the ops, all in all."""
    return sum(abs(at - op) for at, op in enumerate(order))
