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
    from memplan_cli.ordering.task_graph import OpIndex, Order, TaskGraph

NO_LIMIT = 1 << 62
"""More bytes than any machine has."""

_LARGEST_GROUP = 16
"""Number of ops that a group may have."""

_MAX_COMPARISONS = 64
"""Ops that may be compared while a group grows: one op may make thousands of others ready."""


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
    chain: Sequence[OpIndex] = ()
    slack: int = 0
    limit: int = NO_LIMIT


def longest_path(graph: TaskGraph) -> list[OpIndex]:
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
    file: a demanded op runs after all ops that it waits for. In between, free groups (small groups of ops
    that free as many bytes as they add) run as soon as they can. A backward sweep does the same from the last
    op of the order to the first.

    The numbers of the ops must be a topological order.
    """
    state = _SweepState(graph, parameters)
    file_order = state.in_direction(range(graph.size))
    sources = [op for op in file_order if not state.is_blocked(op)]
    state.run_free_groups(sources)
    for op in state.in_direction(parameters.chain):
        state.demand(op)
    for op in file_order:
        state.demand(op)  # which does nothing if the op has run
    return list(state.in_direction(state.order))


class _SweepState:
    """The ops that have run so far in a sweep and the live bytes, which each run of an op changes.

    A backward sweep "runs" ops from the last of the order to the first. An op waits for its predecessors in
    a forward sweep, for its successors in a backward one.

    Attributes:
        order: the ops that have run, in the order of the sweep.
        _has_run: for each op, whether it has run.
        _waiting: for each op, the ops that wait for it: in a forward sweep its successors.
        _awaited: for each op, the ops that it waits for: in a forward sweep its predecessors.
        _blocker_count: for each op, how many of the ops that it waits for have not run.
        _live_bytes: bytes live between the ops that have run and the others.
        _users: for each tensor, the ops that access it.
        _users_run: for each tensor, how many of its users have run.
        _users_before_last: for each tensor, the value of ``_users_run`` when the sweep comes to the user that is
            the last in the order. A tensor is live up to this user.
    """

    def __init__(self, graph: TaskGraph, parameters: Sweep) -> None:
        """Start a sweep in which no op has run."""
        self._graph, self._parameters = graph, parameters
        self._is_forward = parameters.direction is Direction.FORWARD
        # The users of a tensor are the op that writes it, the ops that read it and, for a result, the caller of the
        # block. The tensor is live up to the last user in the order, which comes when ``_users_run`` is
        # ``_users_before_last``. Then the tensor dies in a forward sweep, and becomes live in a backward one.
        if self._is_forward:
            # Successors wait for an op, and an op awaits its predecessors.
            self._waiting, self._awaited = graph.succs, graph.preds
            self._live_bytes = graph.initial_bytes
            self._users_run = [0] * len(graph.tensor_bytes)
            # All other users run before the last one. ``access_counts`` counts the caller too.
            self._users_before_last = [accesses - 1 for accesses in graph.access_counts]
        else:
            self._waiting, self._awaited = graph.preds, graph.succs
            self._live_bytes = graph.final_bytes()
            # A backward sweep begins at the end: the caller, the last user of each result, has run.
            self._users_run = [int(is_result) for is_result in graph.is_result]
            # Of other tensors, the last user in the order is the first one that the sweep runs.
            self._users_before_last = [0] * len(graph.tensor_bytes)
        self.order: Order = []
        self._has_run = [False] * graph.size
        self._blocker_count = [len(others) for others in self._awaited]
        self._users: list[list[OpIndex]] = [[] for _ in graph.tensor_bytes]
        for op, accessed in enumerate(graph.accesses):
            for tensor in accessed:
                self._users[tensor].append(op)

    def is_blocked(self, op: OpIndex) -> bool:
        """Whether an op has to wait for another one."""
        return self._blocker_count[op] > 0

    def in_direction(self, ops: Sequence[OpIndex]) -> Sequence[OpIndex]:
        """Return ops in the direction of this sweep."""
        return ops if self._is_forward else ops[::-1]

    def demand(self, wanted: OpIndex) -> None:
        """Run an op, and before it all ops that it waits for.

        After each of these ops, the free groups that it makes possible run: a few ops each, after which no
        more bytes are live than before. So an op that ``wanted`` waits for may have run in such a group.
        """
        for op in self._ops_to_run(wanted):
            if not self._has_run[op]:
                self._run(op)
                self.run_free_groups(self._group_starts_after([op]))

    def _ops_to_run(self, wanted: OpIndex) -> Sequence[OpIndex]:
        """Return an op and all that it waits for, as far as they have not run, in the order to run them.

        That is the order of the file, backward its reverse.
        """
        if self._has_run[wanted]:
            return []
        to_run, stack = {wanted}, [wanted]
        while stack:
            for other in self._awaited[stack.pop()]:
                if not self._has_run[other] and other not in to_run:
                    to_run.add(other)
                    stack.append(other)
        return self.in_direction(sorted(to_run))

    def run_free_groups(self, starts: Iterable[OpIndex]) -> None:
        """Run the free groups that begin with one of these ops, and the groups that those make possible.

        A group is an op and some of the ops that wait for it. A group is free if at most `Sweep.slack` more
        bytes are live after it than before; others do not run.
        """
        queue = list(starts)
        while queue:
            op = queue.pop()
            if not self._has_run[op] and not self.is_blocked(op):
                queue += self._group_starts_after(self._run_group_if_free(op))

    def _run_group_if_free(self, first: OpIndex) -> list[OpIndex]:
        """Run a free group that begins with an op, and return its ops; empty if none is found.

        A group is free if at most `Sweep.slack` more bytes are live after it than before. The group grows until
        it is free, each time by the ready op that adds the fewest live bytes. If no op is ready, or the group
        reaches a limit of bytes, ops or comparisons, all of its runs are undone.
        """
        live_before = self._live_bytes
        group: list[OpIndex] = []
        ready = [first]  # later the ops that waited for ops of the group alone
        comparisons = 0
        while ready and len(group) < _LARGEST_GROUP and comparisons < _MAX_COMPARISONS:
            comparisons += len(ready)
            added_bytes = [self._added_bytes(op) for op in ready]
            op = ready.pop(added_bytes.index(min(added_bytes)))
            if not self._fits(op):
                break
            group.append(op)
            ready += self._run(op)
            if self._live_bytes <= live_before + self._parameters.slack:
                return group
        self._undo(group, live_before)
        return []

    def _added_bytes(self, op: OpIndex) -> int:
        """Return by how much the live bytes of the sweep grow if an op runs next; negative if they fall.

        In the order, the op defines its outputs, and frees the tensors of which it is the last user. A
        backward sweep passes the op from its end: the live bytes change by the opposite.
        """
        users_run, users_before_last = self._users_run, self._users_before_last
        freed_bytes = 0
        for tensor in self._graph.accesses[op]:
            is_last_user = users_run[tensor] == users_before_last[tensor]
            if is_last_user:
                freed_bytes += self._graph.tensor_bytes[tensor]
        growth = self._graph.defined_bytes[op] - freed_bytes
        return growth if self._is_forward else -growth

    def _fits(self, op: OpIndex) -> bool:
        """Return whether the bytes live during the step of an op stay within the limit if it runs next.

        An output counts in addition to the inputs, although it may be written over one of them.
        """
        if self._is_forward:
            live_before = self._live_bytes
        else:  # a backward sweep goes from the end of the op to its start, and adds bytes on the way
            live_before = self._live_bytes + self._added_bytes(op)
        return live_before + self._graph.step_bytes[op] <= self._parameters.limit

    def _run(self, op: OpIndex) -> list[OpIndex]:
        """Run an op as the next of the sweep, and return the ops that waited for it alone."""
        # First, because `_added_bytes` needs ``_users_run`` as it was before this run.
        self._live_bytes += self._added_bytes(op)
        for tensor in self._graph.accesses[op]:
            self._users_run[tensor] += 1
        self.order.append(op)
        self._has_run[op] = True
        ready = []
        for other in self._waiting[op]:
            self._blocker_count[other] -= 1
            if not self._blocker_count[other]:
                ready.append(other)
        return ready

    def _undo(self, ops: Sequence[OpIndex], live_before: int) -> None:
        """Undo the runs of ``ops``, the last that have run. Before them, ``live_before`` bytes were live."""
        self._live_bytes = live_before
        for op in ops:
            self.order.pop()
            self._has_run[op] = False
            for tensor in self._graph.accesses[op]:
                self._users_run[tensor] -= 1
            for other in self._waiting[op]:
                self._blocker_count[other] += 1

    def _group_starts_after(self, ops: Iterable[OpIndex]) -> list[OpIndex]:
        """Return the ops that may begin a free group now that ``ops`` have run.

        A group is free if at most `Sweep.slack` more bytes are live after it than before. The result has the
        ops that had to wait for one of ``ops``, and those that add fewer live bytes since ``ops`` have run.
        """
        starts: list[OpIndex] = []
        for op in ops:
            starts += self._waiting[op]
            for tensor in self._graph.accesses[op]:
                users_run = self._users_run[tensor]
                if self._is_forward:
                    # The last user frees the tensor; the last two do so together, in one group.
                    users_left = self._graph.access_counts[tensor] - users_run
                    is_cheaper_now = users_left in (1, 2)
                else:
                    # The first user that runs makes the tensor live. From then on, no other adds its bytes.
                    is_cheaper_now = users_run == 1
                # Only then, since a tensor may have many users, and the time is near linear.
                if is_cheaper_now:
                    starts += self._users[tensor]
        return [
            op
            for op in dict.fromkeys(starts)
            if not self._blocker_count[op] and not self._has_run[op]
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
