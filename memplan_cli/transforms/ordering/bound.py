"""What no order can avoid: for a heavy op, the least that lives while it runs.

Whatever the order, the ops before a given one form a set that holds its ancestors, not its
descendants, and with each op that op's ancestors. The bytes live at the op's step are a
function of that set alone, and its least value over all such sets is a minimum cut: of a
network with an edge of each tensor's weight that is cut where the set begins the tensor
and does not end it. The flow found so far is a bound at any time, so work can be limited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.transforms.ordering.graph import TaskGraph

_SOURCE, _SINK = 0, 1
_INFINITE = 1 << 62


def local_bounds(graph: TaskGraph) -> list[int]:
    """Return for each op what it reads and makes itself: a bound on any order's peak."""
    weight = graph.weight
    result = []
    for op, touched in enumerate(graph.touches):
        opened = graph.opens[op]
        read = sum(weight[tensor] for tensor in touched if tensor not in opened)
        result.append(read + least_need(graph, op))
    return result


def least_need(graph: TaskGraph, op: int) -> int:
    """Return what an op's step takes if one of its inputs can be replaced."""
    return graph.need[op] - (graph.saved[op] if graph.replaces[op] else 0)


@dataclass(slots=True)
class Network:
    """A flow network with unit source 0 and sink 1, grown edge by edge.

    ``heads[e]`` and ``room[e]`` belong to edge e; ``e ^ 1`` is its reverse.
    """

    edges: list[list[int]] = field(default_factory=lambda: [[], []])
    heads: list[int] = field(default_factory=list)
    room: list[int] = field(default_factory=list)

    def node(self) -> int:
        """Add a node and return its number."""
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge."""
        self.edges[tail].append(len(self.heads))
        self.edges[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.room += (capacity, 0)

    def flow(self, work: int) -> tuple[int, int]:
        """Return a flow from source to sink, the greatest unless ``work`` runs out.

        Dinic's algorithm. Also returns the work done, in edges looked at.
        """
        total, done = 0, 0
        while done < work:
            level, seen = self._levels()
            done += seen
            if level[_SINK] < 0:
                break
            pushed, seen = self._blocking_flow(level, work - done)
            done += seen
            total += pushed
        return total, done

    def _levels(self) -> tuple[list[int], int]:
        level = [-1] * len(self.edges)
        level[_SOURCE] = 0
        queue, seen = [_SOURCE], 0
        for node in queue:
            for edge in self.edges[node]:
                head = self.heads[edge]
                if level[head] < 0 and self.room[edge]:
                    level[head] = level[node] + 1
                    queue.append(head)
            seen += len(self.edges[node])
        return level, seen

    def _blocking_flow(self, level: list[int], work: int) -> tuple[int, int]:
        heads, room, edges = self.heads, self.room, self.edges
        following = [0] * len(edges)
        path: list[int] = []
        node, total, seen = _SOURCE, 0, 0
        while seen < work:
            if node == _SINK:
                pushed = min(room[edge] for edge in path)
                total += pushed
                for edge in path:
                    room[edge] -= pushed
                    room[edge ^ 1] += pushed
                first = next(at for at, edge in enumerate(path) if not room[edge])
                node = heads[path[first] ^ 1]
                del path[first:]
                continue
            out = edges[node]
            at = following[node]
            while at < len(out) and not (
                room[out[at]] and level[heads[out[at]]] == level[node] + 1
            ):
                at += 1
            seen += at - following[node] + 1
            following[node] = at
            if at < len(out):
                path.append(out[at])
                node = heads[out[at]]
            elif path:
                node = heads[path.pop() ^ 1]
                following[node] += 1
            else:
                break
        return total, seen


class CutBounds:
    """Bounds on the peak of any order of a graph, one op at a time."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._users: list[list[int]] = [[] for _ in graph.weight]
        self._opener = [-1] * len(graph.weight)
        for op, touched in enumerate(graph.touches):
            for tensor in touched:
                self._users[tensor].append(op)
            for tensor in graph.opens[op]:
                self._opener[tensor] = op

    def at(self, op: int, work: int) -> tuple[int, int]:
        """Return a bound on what is live at an op's step, and the work it took."""
        best, done = _INFINITE, 0
        for tensor in self._graph.replaces[op] or (-1,):
            value, spent = self._cut(op, tensor, work)
            best, done = min(best, value), done + spent
        return best, done

    def _cut(self, op: int, replaced: int, work: int) -> tuple[int, int]:
        """Return the bound if the op replaces the given tensor, where that can die."""
        graph = self._graph
        split = _Split(graph, op)
        least = graph.need[op]
        for tensor, weight in enumerate(graph.weight):
            users = self._users[tensor]
            if weight and users:
                outlives = graph.outlives[tensor]
                least += split.tensor(self._opener[tensor], users, weight, outlives)
        if replaced >= 0:
            saved = graph.saved[op]
            others = [user for user in self._users[replaced] if user != op]
            least += split.unless_before(others, saved) - saved
        value, done = split.network.flow(work)
        return least + value, done + graph.size + len(split.network.heads)


class _Split:
    """The ops divided in those before a given op, on the source's side, and the others."""

    def __init__(self, graph: TaskGraph, op: int) -> None:
        self.network = Network()
        self._side = _sides(graph, op)
        self._node = {
            other: self.network.node()
            for other, fixed in enumerate(self._side)
            if fixed is None
        }
        for other, number in self._node.items():
            for pred in graph.preds[other]:
                if pred in self._node:
                    self.network.edge(number, self._node[pred], _INFINITE)

    def tensor(self, opener: int, users: list[int], weight: int, outlives: bool) -> int:  # noqa: FBT001 - a fact of the tensor, not a way to behave
        """Charge a tensor where its opener is before the op and some user is not.

        What is sure is returned, the rest goes into the network.
        """
        before = opener < 0 or self._side[opener]
        if before is False:
            return 0
        ends_late = outlives or any(self._side[user] is False for user in users)
        if before:
            return weight if ends_late else self.unless_before(users, weight)
        if ends_late:
            self.network.edge(self._node[opener], _SINK, weight)
        else:
            readers = [user for user in users if user != opener]
            self._charge(self._node[opener], readers, weight)
        return 0

    def unless_before(self, users: list[int], weight: int) -> int:
        """Charge ``weight`` unless all the users are before the op."""
        if any(self._side[user] is False for user in users):
            return weight
        undecided = [user for user in users if self._side[user] is None]
        if undecided:
            self._charge(_SOURCE, undecided, weight)
        return 0

    def _charge(self, tail: int, users: list[int], weight: int) -> None:
        """Cut an edge of ``weight`` if ``tail`` is before the op and some user is not."""
        gate = self.network.node()
        self.network.edge(tail, gate, weight)
        for user in users:
            self.network.edge(gate, self._node[user], _INFINITE)


def _sides(graph: TaskGraph, op: int) -> list[bool | None]:
    """Return for each op whether it is surely before (True), or not (False), the given."""
    side: list[bool | None] = [None] * graph.size
    for neighbours, value in ((graph.preds, True), (graph.succs, False)):
        stack = list(neighbours[op])
        while stack:
            other = stack.pop()
            if side[other] is None:
                side[other] = value
                stack.extend(neighbours[other])
    side[op] = False
    return side
