"""Maximum flow on a network of integers (Dinic, 1970)."""

from __future__ import annotations

from dataclasses import dataclass, field

SOURCE, SINK = 0, 1

INFINITE = 1 << 62
"""More than all memory there is."""


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

    def nodes(self, count: int) -> range:
        """Add nodes and return their numbers."""
        first = len(self.edges)
        self.edges += [[] for _ in range(count)]
        return range(first, first + count)

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
            level, seen = self.levels()
            done += seen
            if level[SINK] < 0:
                break
            pushed, seen = self._blocking_flow(level, work - done)
            done += seen
            total += pushed
        return total, done

    def levels(self) -> tuple[list[int], int]:
        """Return each node's distance from the source (-1: none), and the work done."""
        heads, room, edges = self.heads, self.room, self.edges
        level = [-1] * len(edges)
        level[SOURCE] = 0
        queue, seen = [SOURCE], 0
        for node in queue:
            following = level[node] + 1
            for edge in edges[node]:
                if room[edge] and level[heads[edge]] < 0:
                    level[heads[edge]] = following
                    queue.append(heads[edge])
            seen += len(edges[node])
        return level, seen

    def reaching_sink(self) -> list[bool]:
        """Return for each node whether it can still send something to the sink."""
        reaches = [False] * len(self.edges)
        reaches[SINK] = True
        queue = [SINK]
        for node in queue:
            for edge in self.edges[node]:
                tail = self.heads[edge]
                if not reaches[tail] and self.room[edge ^ 1]:
                    reaches[tail] = True
                    queue.append(tail)
        return reaches

    def _blocking_flow(self, level: list[int], work: int) -> tuple[int, int]:
        heads, room, edges = self.heads, self.room, self.edges
        following = [0] * len(edges)
        path: list[int] = []
        node, total, seen = SOURCE, 0, 0
        while seen < work:
            if node == SINK:
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
