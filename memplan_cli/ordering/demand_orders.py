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

    A backward sweep "runs" ops from the last of the order to the first. An op waits for its predecessors in
    a forward sweep, for its successors in a backward one.

    Attributes:
        order: the ops that have run, in the order of the sweep.
        _done: for each op, whether it has run.
        _waiting: for each op, the ops that wait for it.
        _awaited: for each op, the ops that it waits for.
        _blockers: for each op, how many of the ops that it waits for have not run.
        _live: bytes live between the ops that have run and the others.
        _later_accesses: for each tensor, how many ops access it later in the order than the place that the
            sweep has reached. Forward, these are ops that have not run; backward, ops that have. A result
            of the block is accessed once more, after all ops.
        _last_count: the entry of ``_later_accesses`` if the next op of the sweep is the last in the order
            to access the tensor. Forward it is 1, for the op itself, which has not run; backward 0.
        _access_step: what an op that runs adds to the entries of its tensors in ``_later_accesses``.
        _users: for each tensor, the ops that access it.
    """

    def __init__(self, graph: TaskGraph, parameters: Sweep) -> None:
        """Start a sweep in which no op has run."""
        self._graph, self._parameters = graph, parameters
        self._is_forward = parameters.direction is Direction.FORWARD
        if self._is_forward:
            self._waiting, self._awaited = graph.succs, graph.preds
            self._live = graph.initial_bytes
            self._later_accesses = list(graph.access_counts)
            self._access_step, self._last_count = -1, 1
        else:
            self._waiting, self._awaited = graph.preds, graph.succs
            self._live = graph.final_bytes()
            self._later_accesses = [int(is_result) for is_result in graph.is_result]
            self._access_step, self._last_count = 1, 0
        self.order: Order = []
        self._done = [False] * graph.size
        self._blockers = [len(others) for others in self._awaited]
        self._users: list[list[int]] = [[] for _ in graph.tensor_bytes]
        for op, accessed in enumerate(graph.accesses):
            for tensor in accessed:
                self._users[tensor].append(op)

    def is_blocked(self, op: int) -> bool:
        """Whether an op has to wait for another one."""
        return self._blockers[op] > 0

    def in_direction(self, ops: Sequence[int]) -> Sequence[int]:
        """Return ops in the direction of this sweep."""
        return ops if self._is_forward else ops[::-1]

    def demand(self, wanted: int) -> None:
        """Run an op and all ops that it waits for, in the order of the file (backward, in its reverse).

        After each of these ops, run the free groups that it makes possible.
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
                self._run(op)
                self.run_free_groups(self._group_starts_after([op]))

    def run_free_groups(self, starts: Iterable[int]) -> None:
        """Run the free groups that begin with one of these ops, and the groups that those make possible.

        A group is an op and some of the ops that wait for it. A group is free if at most `Sweep.slack` more
        bytes are live after it than before.
        """
        queue = list(starts)
        while queue:
            op = queue.pop()
            if not self._done[op] and not self._blockers[op]:
                queue += self._group_starts_after(self._run_group(op))

    def _run_group(self, first: int) -> list[int]:
        """Run a free group that begins with an op, and return its ops; empty if none is found.

        Ops run one by one until the group is free: after ``first``, always the op that frees most bytes, or
        else adds fewest, of those that wait for ops of the group alone. All of them are undone if none is
        left, the next one exceeds the limit of live bytes, or the group gets too large.
        """
        live_before = self._live
        group: list[int] = []
        ready = [first]
        while ready and len(group) < _LARGEST_GROUP:
            changes = [self._change(op) for op in ready]
            op = ready.pop(changes.index(min(changes)))
            if not self._fits(op):
                break
            group.append(op)
            ready += self._run(op)
            if self._live <= live_before + self._parameters.slack:
                return group
        self._undo(group, live_before)
        return []

    def _change(self, op: int) -> int:
        """Return by how much the live bytes of the sweep change if an op runs next.

        In the order, the op defines its outputs, and frees the tensors of which it is the last to access.
        A backward sweep passes the op from its end: the live bytes change by the opposite.
        """
        size, later = self._graph.tensor_bytes, self._later_accesses
        last_count = self._last_count
        freed = sum([size[t] for t in self._graph.accesses[op] if later[t] == last_count])
        growth = self._graph.defined_bytes[op] - freed
        return growth if self._is_forward else -growth

    def _fits(self, op: int) -> bool:
        """Return whether the bytes live during the step of an op stay within the limit if it runs next.

        An output counts in addition to the inputs, although it may be written over one of them.
        """
        # Of the two moments around the op, the earlier one in the order:
        live_before = self._live if self._is_forward else self._live + self._change(op)
        return live_before + self._graph.step_bytes[op] <= self._parameters.limit

    def _run(self, op: int) -> list[int]:
        """Run an op as the next of the sweep, and return the ops that waited for it alone."""
        self._live += self._change(op)
        self.order.append(op)
        self._done[op] = True
        for tensor in self._graph.accesses[op]:
            self._later_accesses[tensor] += self._access_step
        ready = []
        for other in self._waiting[op]:
            self._blockers[other] -= 1
            if not self._blockers[other]:
                ready.append(other)
        return ready

    def _undo(self, ops: Sequence[int], live: int) -> None:
        """Undo the runs of ``ops``, the last that have run. Before them, ``live`` bytes were live."""
        self._live = live
        for op in ops:
            self.order.pop()
            self._done[op] = False
            for tensor in self._graph.accesses[op]:
                self._later_accesses[tensor] -= self._access_step
            for other in self._waiting[op]:
                self._blockers[other] += 1

    def _group_starts_after(self, ops: Iterable[int]) -> list[int]:
        """Return the ops that may begin a free group now that ``ops`` have run.

        They wait for no op, and had to wait for one of ``ops`` or may add fewer live bytes than before.
        """
        # Forward, the only user that is left frees the tensor, and two that are left may do so in one group.
        # Backward, after the first access the tensor is live, and its other users do not add it any more.
        # With other counts the users change the live bytes as before. There may be many of them, and leaving
        # them out keeps the time linear.
        telling_counts = (1, 2) if self._is_forward else (1,)
        starts: list[int] = []
        for op in ops:
            starts += self._waiting[op]
            for tensor in self._graph.accesses[op]:
                if self._later_accesses[tensor] in telling_counts:
                    starts += self._users[tensor]
        return [
            op for op in dict.fromkeys(starts) if not self._blockers[op] and not self._done[op]
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
