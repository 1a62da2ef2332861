"""Maximum flow on a network of integers (Dinic, 1970)."""

from __future__ import annotations

from dataclasses import dataclass, field

SOURCE, SINK = 0, 1

INFINITE = 1 << 62
"""An edge capacity above the bytes of any machine."""


@dataclass(slots=True)
class Network:
    """A flow network with source node 0 and sink node 1, built edge by edge.

    Edges are stored in pairs: edge ``e`` and its reverse ``e ^ 1``.

    Attributes:
        edges: per node, the indices of the edges that leave it.
        heads: per edge, the node that it leads to.
        residual: per edge, the capacity that is not used by the flow yet.
    """

    edges: list[list[int]] = field(default_factory=lambda: [[], []])
    heads: list[int] = field(default_factory=list)
    residual: list[int] = field(default_factory=list)

    def node(self) -> int:
        """Add a node and return its number."""
        self.edges.append([])
        return len(self.edges) - 1

    def nodes(self, count: int) -> range:
        """Add ``count`` nodes and return their numbers."""
        first = len(self.edges)
        self.edges += [[] for _ in range(count)]
        return range(first, first + count)

    def edge(self, tail: int, head: int, capacity: int) -> int:
        """Add an edge from ``tail`` to ``head`` and its reverse of capacity 0; return its index."""
        self.edges[tail].append(len(self.heads))
        self.edges[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.residual += (capacity, 0)
        return len(self.heads) - 2

    def flow(self, work: int) -> tuple[int, int]:
        """Increase the flow from source to sink, to the maximum unless the work limit is hit.

        Args:
            work: The number of edges after which no further path is searched. A search for levels
                is finished even if it needs more.

        Returns:
            The flow that was added, and the number of inspected edges.
        """
        total, inspected = 0, 0
        while inspected < work:
            level, count = self._levels()
            inspected += count
            if level[SINK] < 0:
                break
            pushed, count = self._blocking_flow(level, work - inspected)
            inspected += count
            total += pushed
        return total, inspected

    def _levels(self) -> tuple[list[int], int]:
        """Return each node's distance from the source in edges with residual capacity.

        A node that cannot be reached has distance -1. Also returns the number of inspected edges.
        """
        heads, residual, edges = self.heads, self.residual, self.edges
        level = [-1] * len(edges)
        level[SOURCE] = 0
        queue, inspected = [SOURCE], 0
        for node in queue:  # which grows while it is read
            for edge in edges[node]:
                if residual[edge] and level[heads[edge]] < 0:
                    level[heads[edge]] = level[node] + 1
                    queue.append(heads[edge])
            inspected += len(edges[node])
        return level, inspected

    def _blocking_flow(self, level: list[int], work: int) -> tuple[int, int]:
        """Push flow along shortest paths until each of them has a saturated edge.

        Depth-first search along edges with residual capacity to the next level, which is a node's distance from
        the source. Stops early after ``work`` edges.

        Returns:
            The flow that was added, and the number of inspected edges.
        """
        heads, residual, edges = self.heads, self.residual, self.edges
        next_edge = [0] * len(edges)  # per node, the first edge that was not ruled out yet
        path: list[int] = []  # the edges from the source to ``node``
        node, total, inspected = SOURCE, 0, 0
        while inspected < work:
            if node == SINK:  # push what the narrowest edge of the path allows
                pushed = min(residual[edge] for edge in path)
                total += pushed
                for edge in path:
                    residual[edge] -= pushed
                    residual[edge ^ 1] += pushed  # ``edge ^ 1`` is the reverse of ``edge``
                # Go back to the tail of the first saturated edge: the head of its reverse.
                saturated = next(i for i, edge in enumerate(path) if not residual[edge])
                node = heads[path[saturated] ^ 1]
                del path[saturated:]
                continue
            # The next edge to follow from the node. Those before it stay ruled out while levels are the same.
            leaving = edges[node]
            index = next_edge[node]
            while index < len(leaving) and not (
                residual[leaving[index]] and level[heads[leaving[index]]] == level[node] + 1
            ):
                index += 1
            inspected += index - next_edge[node] + 1
            next_edge[node] = index
            if index < len(leaving):
                path.append(leaving[index])
                node = heads[leaving[index]]
            elif path:  # a dead end: go back one edge, which is then ruled out
                node = heads[path.pop() ^ 1]
                next_edge[node] += 1
            else:
                break
        return total, inspected
