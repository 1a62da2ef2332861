"""Demand-driven scheduling: run what a chain of ops waits for, and groups that free memory.

Greedy scheduling considers one op at a time. It runs too early what is needed late (a loss and
its probabilities), and too late what frees memory only after a few ops (a gradient that is
added to others, the update of an optimizer). Here the ops of a longest path are demanded one
after the other. Another op runs only if a demanded op waits for it, or if it belongs to a small
group after which no more bytes are live than before. Such groups are the valleys of Liu (1987),
found greedily.

The same sweep, made from the end of the order to its beginning, finds what should run late.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.ordering.list_orders import Scheduler
    from memplan_cli.ordering.task_graph import Order, TaskGraph

NO_LIMIT = 1 << 62
"""More bytes than any machine has."""

_LARGEST_GROUP = 16
"""Number of ops that a group may have."""

_GROUP_EVALUATIONS = 64
"""Changes of live bytes that are computed at most for one group."""

_DECISIVE_COUNT = 1
"""The access count of a tensor whose next access is decisive: forward, it is the last one and frees the
tensor; backward, it is the first one and makes the tensor live."""


class Direction(Enum):
    """The direction in which a sweep builds an order."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Sweep:
    """The parameters of one demand-driven order.

    Attributes:
        direction: From the first op on, or from the last one back.
        chain: The ops to demand, in the order in which they run.
        slack: Bytes by which a group may raise the live bytes. With 0, a few bytes (a loss of
            four) would keep large groups from running.
        limit: The most bytes live at a step of an op that was not demanded.
    """

    direction: Direction
    chain: Sequence[int] = ()
    slack: int = 0
    limit: int = NO_LIMIT


def longest_path(graph: TaskGraph) -> list[int]:
    """Return a path with the most ops; of several, the one whose ops stand first in the file."""
    length = [0] * graph.size
    for op in reversed(range(graph.size)):
        if graph.succs[op]:
            length[op] = 1 + max([length[succ] for succ in graph.succs[op]])
    choices = [op for op in range(graph.size) if not graph.preds[op]]
    path = []
    while choices:
        path.append(max(choices, key=lambda op: (length[op], -op)))
        choices = list(graph.succs[path[-1]])
    return path


def sweep(graph: TaskGraph, parameters: Sweep) -> Order:
    """Return the demand-driven order, in time near linear in the number of edges.

    The ops of ``parameters.chain`` are demanded one after the other, then all others in the order of the
    file. An op that is demanded runs after all ops that it waits for. Groups of ops that free as many bytes
    as they add (free groups) run as soon as they can: at the start, and after each op that runs. Backward,
    the same is done from the last op of the order to the first.

    The numbers of the ops must be a topological order.
    """
    state = _SweepState(graph, parameters)
    file_order = state.in_direction(range(graph.size))
    state.run_free_groups(op for op in file_order if not state.is_blocked(op))
    for op in state.in_direction(parameters.chain):
        state.demand(op)
    for op in file_order:
        state.demand(op)
    is_forward = parameters.direction is Direction.FORWARD
    return state.order if is_forward else state.order[::-1]


class _SweepState:
    """The ops that have run so far in a sweep, and the live bytes.

    A backward sweep "runs" ops from the last to the first. An op waits for its predecessors in a forward
    sweep, for its successors in a backward one.

    A *group* is an op and some ops that wait for it; see `_run_group` for free groups.

    Attributes:
        order: the ops that have run, in the order of the sweep.
        _done: for each op, whether it has run.
        _waiting: for each op, the ops that wait for it.
        _awaited: for each op, the ops that it waits for.
        _blockers: for each op, how many ops that it waits for have not run.
        _live: bytes live between the ops that have run and the others.
        _access_counts: for each tensor, the accesses still to come (forward), or `_DECISIVE_COUNT` plus
            the accesses that have been (backward). An op that accesses a tensor with `_DECISIVE_COUNT`
            decides its state: forward, the tensor is free after the op; backward, it becomes live.
        _count_step: what an op that runs adds to the access count of each tensor in ``_accesses``.
        _accesses: for each op, the tensors whose access counts it changes.
        _users: the reverse of ``_accesses``: for each tensor, the ops that change its count.
        _fixed_change: for each op, the part of its change of live bytes that is the same in every order.
            To it come the tensors for which its access is decisive (`_change`).
    """

    def __init__(self, graph: TaskGraph, parameters: Sweep) -> None:
        """Start a sweep in which no op has run."""
        self._graph, self._parameters = graph, parameters
        self._is_forward = parameters.direction is Direction.FORWARD
        if self._is_forward:
            self._waiting, self._awaited = graph.succs, graph.preds
            self._live = graph.initial_bytes
            self._access_counts = list(graph.access_counts)
            self._count_step = -1
            # The op's own outputs are among them: one that no other op accesses is freed at once.
            self._accesses = graph.accesses
            self._fixed_change: Sequence[int] = graph.defined_bytes
        else:
            self._waiting, self._awaited = graph.preds, graph.succs
            self._live = graph.final_bytes()
            # A result is live from the end on: its count is above the decisive one from the start.
            self._access_counts = [_DECISIVE_COUNT + result for result in graph.is_result]
            self._count_step = 1
            # The op's own outputs are not among them: when the sweep comes to the op, all other accesses
            # of its outputs have been.
            self._accesses = tuple(
                tuple(t for t in accessed if t not in defined) if defined else accessed
                for accessed, defined in zip(graph.accesses, graph.defines, strict=True)
            )
            # Before the op its outputs are not live any more.
            self._fixed_change = [-size for size in graph.outlasting_bytes()]
        self.order: Order = []
        self._done = [False] * graph.size
        self._blockers = [len(others) for others in self._awaited]
        self._users: list[list[int]] = [[] for _ in graph.tensor_bytes]
        for op, accessed in enumerate(self._accesses):
            for tensor in accessed:
                self._users[tensor].append(op)

    def is_blocked(self, op: int) -> bool:
        """Whether an op has to wait for another one."""
        return self._blockers[op] > 0

    def in_direction(self, ops: Sequence[int]) -> Sequence[int]:
        """Return ops in the direction of this sweep."""
        return ops if self._is_forward else ops[::-1]

    def demand(self, wanted: int) -> None:
        """Run an op and all ops that it waits for; after each of them, run the groups that are free now.

        The ops run in the order of the file, backward sweeps from its end.
        """
        if self._done[wanted]:
            return
        missing, stack = {wanted}, [wanted]
        while stack:
            for other in self._awaited[stack.pop()]:
                if not self._done[other] and other not in missing:
                    missing.add(other)
                    stack.append(other)
        for op in self.in_direction(sorted(missing)):
            if not self._done[op]:  # no group has run it meanwhile
                self._run(op, self._change(op))
                self.run_free_groups(self._affected((op,)))

    def run_free_groups(self, ops: Iterable[int]) -> None:
        """Run the free groups that begin with these ops.

        The same is tried for the ops that each group affects.
        """
        queue = list(ops)
        while queue:
            op = queue.pop()
            if not self._done[op] and not self._blockers[op]:
                queue += self._affected(self._run_group(op))

    def _run_group(self, first: int) -> list[int]:
        """Run a free group that begins with an op, and return its ops; empty if none is found.

        A group is free if at most `Sweep.slack` more bytes are live after it than before. Until it is free,
        one more op runs, beginning with ``first``: of the ops that wait for the group alone, the one that
        frees most bytes, or else adds fewest. All is undone if no op is left, the op exceeds the limit of
        live bytes, or the group takes too many ops or evaluations.
        """
        live_before = self._live
        group: list[int] = []
        ready = [first]
        evaluations = 0
        while ready and len(group) < _LARGEST_GROUP and evaluations < _GROUP_EVALUATIONS:
            evaluations += len(ready)
            changes = [self._change(op) for op in ready]
            change = min(changes)
            op = ready.pop(changes.index(change))
            if not self._fits(op, change):
                break
            group.append(op)
            ready += self._run(op, change)
            if self._live <= live_before + self._parameters.slack:
                return group
        self._undo(group, live_before)
        return []

    def _fits(self, op: int, change: int) -> bool:
        """Return whether the bytes live during an op's step stay within the limit.

        Args:
            op: the next op of the sweep.
            change: what the live bytes change by when the sweep passes the op. Forward, that is from
                before the op to after it; backward, from after it to before it.
        """
        # Live before the op in the finished order, in either direction:
        live_before = self._live if self._is_forward else self._live + change
        step = self._graph.step_bytes[op]
        # In both directions, this count means that no later op of the finished order accesses the
        # tensor. So the op writes its output over it, and its step adds fewer bytes.
        overwritable = self._graph.in_place_inputs[op]
        if any(self._access_counts[tensor] == _DECISIVE_COUNT for tensor in overwritable):
            step -= self._graph.in_place_bytes[op]
        return live_before + step <= self._parameters.limit

    def _change(self, op: int) -> int:
        """Return by how much running an op now changes the live bytes of this sweep.

        Forward, it frees the tensors that it is the last to access. Backward, it makes the
        tensors live that no later op reads.
        """
        counts, size = self._access_counts, self._graph.tensor_bytes
        decided_bytes = 0  # freed forward, made live backward
        for tensor in self._accesses[op]:
            if counts[tensor] == _DECISIVE_COUNT:
                decided_bytes += size[tensor]
        fixed = self._fixed_change[op]
        return fixed - decided_bytes if self._is_forward else fixed + decided_bytes

    def _run(self, op: int, change: int) -> list[int]:
        """Run an op, and return the ops that are no longer blocked.

        ``change`` is the result of `_change` for the op, which is added to the live bytes.
        """
        self.order.append(op)
        self._live += change
        self._done[op] = True
        step, counts, blockers = self._count_step, self._access_counts, self._blockers
        for tensor in self._accesses[op]:
            counts[tensor] += step
        ready = []
        for other in self._waiting[op]:
            blockers[other] -= 1
            if not blockers[other]:
                ready.append(other)
        return ready

    def _undo(self, ops: Sequence[int], live: int) -> None:
        """Undo the runs of ``ops``, the last that have run. Before them, ``live`` bytes were live."""
        self._live = live
        for op in ops:
            self.order.pop()
            self._done[op] = False
            for tensor in self._accesses[op]:
                self._access_counts[tensor] -= self._count_step
            for other in self._waiting[op]:
                self._blockers[other] += 1

    def _affected(self, ops: Iterable[int]) -> list[int]:
        """Return the ops that may begin a free group (`_run_group`) now that ``ops`` have run.

        They are the ops that waited for ``ops``, and users of their tensors that may add fewer live bytes
        than before. Blocked ops, and those that have run, are left out.
        """
        affected: list[int] = []
        for op in ops:
            affected += self._waiting[op]
            for tensor in self._accesses[op]:
                # Forward, one user that is left frees the tensor, and two may in one group. Backward, the
                # tensor has just become live, and its other users do not add it any more. In all other
                # cases they change the live bytes as before. (They may be many: the time stays linear.)
                if self._access_counts[tensor] in (_DECISIVE_COUNT, _DECISIVE_COUNT + 1):
                    affected += self._users[tensor]
        return [
            op
            for op in dict.fromkeys(affected)
            if not self._blockers[op] and not self._done[op]
        ]


def _along_longest_path(graph: TaskGraph, direction: Direction) -> Order:
    """Return the order in which the ops of a longest path are demanded first."""
    return sweep(graph, Sweep(direction, longest_path(graph)))


DEMAND_SCHEDULERS: Mapping[str, Scheduler] = {
    "demand_forward": lambda graph: sweep(graph, Sweep(Direction.FORWARD)),
    "demand_backward": lambda graph: sweep(graph, Sweep(Direction.BACKWARD)),
    "path_forward": lambda graph: _along_longest_path(graph, Direction.FORWARD),
    "path_backward": lambda graph: _along_longest_path(graph, Direction.BACKWARD),
}
"""Demand-driven orders by name, without slack or limit: candidates of a plan at levels 0 and 1."""
