"""Contract a task graph without losing an optimum: fuse ops that can always run together.

Two rules are applied. Each holds in every state of every order, so the best order of the
clusters, expanded to ops, is a best order of the ops.

*Late*: an op that frees nothing (a constant fill, a chain on weights alone) and has one
successor, whose step needs at least as much, runs just before that successor. Moved there from an
earlier place, it makes every step between smaller.

*Early*: an op with one predecessor ``first``, which always frees at least what it defines and
whose step needs no more than the step of ``first``, runs just after ``first``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import nearest_order
from memplan_cli.core.results.certificate import Fusion
from memplan_cli.ordering.task_graph import TaskGraph

if TYPE_CHECKING:
    from memplan_cli.ordering.task_graph import Order


@dataclass(frozen=True, slots=True)
class ContractedGraph:
    """A task graph whose ops are clusters of another graph's ops.

    Attributes:
        graph: the clusters, numbered in a topological order.
        members: for each cluster, its ops in the order in which they run.
        fusions: the fusions in the order in which they were made. Clusters are named by the
            number of one of their ops.
        ids: for each cluster, the op that names it in ``fusions``.
    """

    graph: TaskGraph
    members: tuple[tuple[int, ...], ...]
    fusions: tuple[Fusion, ...]
    ids: tuple[int, ...]

    def expand(self, order: Order) -> Order:
        """Return the order of ops that an order of clusters stands for."""
        return [op for cluster in order for op in self.members[cluster]]


def uncontracted(graph: TaskGraph) -> ContractedGraph:
    """Return a graph in which every op is a cluster of its own."""
    return ContractedGraph(
        graph, tuple((op,) for op in range(graph.size)), (), tuple(range(graph.size))
    )


def contract(graph: TaskGraph) -> ContractedGraph:
    """Apply both rules until neither applies. Each pass is linear, and a few suffice."""
    clusters = _Clusters(graph)
    while clusters.fuse_late() + clusters.fuse_early():
        pass
    return clusters.contracted()


class _Clusters:
    """The tables of a `TaskGraph` while ops are fused to clusters.

    A cluster is named by one of its ops. In each table the entry of that op is the cluster's; the entries
    of its other ops are stale and not read any more, as are those of private tensors in ``users``. A tensor that a cluster defines and no other accesses is
    *private*: it dies in the cluster's step, so ``accesses`` and ``defines`` leave it out.

    Attributes:
        graph: the ops before the fusions. ``preds``, ``succs``, ``accesses``, ``defines``,
            ``in_place_inputs``, ``step_bytes`` and ``defined_bytes`` are as there, for clusters.
        members: for each cluster, its ops in the order in which they run; empty for an op that was
            fused with another.
        fusions: the fusions so far, in order.
        users: for each tensor, the clusters that access it.
    """

    def __init__(self, graph: TaskGraph) -> None:
        """Make each op a cluster of its own."""
        self.graph = graph
        self.preds = [set(preds) for preds in graph.preds]
        self.succs = [set(succs) for succs in graph.succs]
        self.in_place_inputs = [set(inputs) for inputs in graph.in_place_inputs]
        self.step_bytes = list(graph.step_bytes)
        self.members = [[op] for op in range(graph.size)]
        self.fusions: list[Fusion] = []
        self.users: list[set[int]] = [set() for _ in graph.tensor_bytes]
        for op, accessed in enumerate(graph.accesses):
            for tensor in accessed:
                self.users[tensor].add(op)
        self.accesses = [set(accessed) for accessed in graph.accesses]
        self.defines = [set(defined) for defined in graph.defines]
        for op, defined in enumerate(graph.defines):
            for tensor in defined:
                # An output that no other op accesses: it counts in ``step_bytes`` alone.
                if self._is_private(tensor, op):
                    self.accesses[op].discard(tensor)
                    self.defines[op].discard(tensor)
        size = graph.tensor_bytes
        self.defined_bytes = [sum([size[t] for t in row]) for row in self.defines]

    def _is_private(self, tensor: int, *clusters: int) -> bool:
        """Whether a tensor is no result of the block and no cluster but these accesses it."""
        if self.graph.is_result[tensor] or len(self.users[tensor]) > len(clusters):
            return False
        return self.users[tensor] <= {*clusters}

    def fuse_late(self) -> int:
        """Fuse each cluster that frees nothing with its only successor, if the steps allow it.

        This is the late rule, tried once for each cluster. Returns the number of fusions. The cluster then
        runs just before its successor. No step gets larger by that, if the step of the successor needs at
        least as much as its own.
        """
        fused = 0
        for op, members in enumerate(self.members):
            if not members or len(self.succs[op]) != 1 or not self._frees_nothing(op):
                continue
            (succ,) = self.succs[op]
            if self.in_place_inputs[succ]:
                continue  # what the step of ``succ`` needs depends on the order
            # When ``succ`` runs directly after ``op``, the outputs of ``op`` are live beside its own bytes.
            succ_step = self.defined_bytes[op] + self.step_bytes[succ]
            if self.step_bytes[op] > succ_step:
                continue
            self.step_bytes[succ] = succ_step
            self.members[succ] = members + self.members[succ]
            self._merge(op, succ, self._private_tensors(op, succ))
            self.fusions.append(Fusion(op, succ, "late"))
            fused += 1
        return fused

    def _frees_nothing(self, op: int) -> bool:
        """Whether a cluster reads results of the block only, and writes over no input."""
        is_result, defined = self.graph.is_result, self.defines[op]
        return not self.in_place_inputs[op] and all(
            tensor in defined or is_result[tensor] for tensor in self.accesses[op]
        )

    def fuse_early(self) -> int:
        """Fuse each cluster with its only predecessor ``first``, if it frees as much as it defines.

        This is the early rule, tried once for each cluster. Returns the number of fusions. The cluster then
        runs just after ``first``. No peak gets higher by that: its step needs no more than that of ``first``,
        and no more bytes are live after both than after ``first`` alone.

        For example, the step of ``first`` needs 12 bytes, and 8 of them, a tensor that only the cluster
        reads, stay live. The cluster, which defines 2 bytes, needs 8 + 2 bytes and leaves 2.
        """
        fused = 0
        for op, members in enumerate(self.members):
            if len(self.preds[op]) != 1:  # a cluster that was fused with another has none
                continue
            (first,) = self.preds[op]
            private = self._private_tensors(op, first)
            freed = sum([self.graph.tensor_bytes[tensor] for tensor in private])
            if self.defined_bytes[op] > freed:
                continue
            # When ``op`` runs directly after ``first``, the outputs of ``first`` are live beside its own bytes.
            # ``first`` may write over an input: what that saves is left out, as it lowers both steps alike.
            op_step = self.defined_bytes[first] + self.step_bytes[op]
            if self.in_place_inputs[op] & private:
                # A private tensor dies at ``op`` in every order, so ``op`` always writes over one.
                op_step -= self.graph.in_place_bytes[op]
            if op_step > self.step_bytes[first]:
                continue
            # The cluster of both keeps ``step_bytes`` of ``first``, the larger of the two. ``first`` can no
            # longer write over an input that ``op`` reads after it.
            self.in_place_inputs[first] -= self.accesses[op]
            self.members[first] += members
            self._merge(op, first, private)
            self.fusions.append(Fusion(op, first, "early"))
            fused += 1
        return fused

    def _private_tensors(self, cluster: int, other: int) -> set[int]:
        """Return the tensors that two clusters have for themselves: one defines them, and no third reads them.

        They become private if the two are fused. Both clusters access each of them, as a tensor that one
        accesses alone is private already, so the accesses of ``cluster`` have them all.
        """
        defined = self.defines[cluster] | self.defines[other]
        return {
            tensor
            for tensor in self.accesses[cluster] & defined
            if self._is_private(tensor, cluster, other)
        }

    def _merge(self, op: int, target: int, private: set[int]) -> None:
        """Give the tensors and edges of cluster ``op`` to its neighbor ``target``, and leave ``op`` empty.

        The tensors in ``private``, which only these two access, are taken from both. Updates ``users``,
        ``accesses``, ``defines``, ``defined_bytes``, ``preds`` and ``succs`` of all clusters, and ``members``
        of ``op``. The callers update ``members``, ``step_bytes`` and ``in_place_inputs`` of ``target``.
        """
        for tensor in self.accesses[op] - private:
            self.users[tensor].discard(op)
            self.users[tensor].add(target)
        for table in (self.accesses, self.defines):
            table[target] = (table[target] | table[op]) - private
            table[op] = set()
        # One of the two clusters defined the private tensors.
        private_bytes = sum([self.graph.tensor_bytes[tensor] for tensor in private])
        self.defined_bytes[target] += self.defined_bytes[op] - private_bytes
        self._move_edges(op, target, self.preds, self.succs)
        self._move_edges(op, target, self.succs, self.preds)
        self.members[op] = []

    @staticmethod
    def _move_edges(
        op: int, target: int, edges: list[set[int]], reverse_edges: list[set[int]]
    ) -> None:
        """Give the edges of ``op`` to ``target``, without an edge from ``target`` to itself."""
        for other in edges[op]:
            reverse_edges[other].discard(op)
            if other != target:
                reverse_edges[other].add(target)
                edges[target].add(other)
        edges[op] = set()

    def contracted(self) -> ContractedGraph:
        """Return the clusters as a graph, numbered topologically and else as in the file."""
        ids = self._topological_ids()
        number = {op: index for index, op in enumerate(ids)}
        graph = self.graph

        def tensor_rows(sets: list[set[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple([tuple(sorted(sets[op])) for op in ids])

        def edge_rows(sets: list[set[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple([tuple(sorted([number[other] for other in sets[op]])) for op in ids])

        contracted = TaskGraph(
            preds=edge_rows(self.preds),
            succs=edge_rows(self.succs),
            defines=tensor_rows(self.defines),
            accesses=tensor_rows(self.accesses),
            in_place_inputs=tensor_rows(self.in_place_inputs),
            in_place_bytes=tuple(graph.in_place_bytes[op] for op in ids),
            step_bytes=tuple(self.step_bytes[op] for op in ids),
            tensor_bytes=graph.tensor_bytes,
            access_counts=tuple(
                len(users) + is_result
                for users, is_result in zip(self.users, graph.is_result, strict=True)
            ),
            is_result=graph.is_result,
            initial_bytes=graph.initial_bytes,
        )
        members = tuple(tuple(self.members[op]) for op in ids)
        return ContractedGraph(contracted, members, tuple(self.fusions), tuple(ids))

    def _topological_ids(self) -> list[int]:
        """Return the clusters in the topological order with the lowest first members."""
        # Ops that were fused with another have neither members nor edges.
        first_member = [members[0] if members else -1 for members in self.members]
        order = nearest_order(self.succs, first_member.__getitem__)
        return [op for op in order if self.members[op]]
