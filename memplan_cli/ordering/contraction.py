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
    from memplan_cli.ordering.task_graph import OpIndex, Order, TensorIndex

ClusterId = int
"""The number of one op of a cluster, which stays the same while clusters are fused."""


@dataclass(frozen=True, slots=True)
class ContractedGraph:
    """A task graph whose ops are clusters of another graph's ops.

    Attributes:
        graph: the clusters, numbered in a topological order.
        members: for each cluster, its ops in the order in which they run.
        fusions: the fusions in the order in which they were made, of clusters named by id.
        ids: the id of each cluster.
    """

    graph: TaskGraph
    members: tuple[tuple[OpIndex, ...], ...]
    fusions: tuple[Fusion, ...]
    ids: tuple[ClusterId, ...]

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


@dataclass(slots=True)
class _Cluster:
    """Ops that run directly one after the other, with the attributes of one op of a `TaskGraph`.

    A tensor that only ops of the cluster access is *private*: it begins and dies in the cluster's step.
    So it counts in ``step_bytes`` alone and is in none of the sets of tensors.

    Attributes:
        ops: its ops, in the order in which they run.
        preds: the clusters that have to run before it.
        succs: the clusters that have to run after it.
        defines: the tensors that it defines, without private ones.
        accesses: the tensors that it defines or reads, without private ones.
        in_place_inputs: the tensors of which it writes over one if it is their last reader.
        in_place_bytes: the bytes that its step then saves.
        step_bytes: the bytes that are live during its step beyond those live before it.
        defined_bytes: the size of all tensors in ``defines``.
    """

    ops: list[OpIndex]
    preds: set[ClusterId]
    succs: set[ClusterId]
    defines: set[TensorIndex]
    accesses: set[TensorIndex]
    in_place_inputs: set[TensorIndex]
    in_place_bytes: int
    step_bytes: int
    defined_bytes: int


class _Clusters:
    """The clusters of a graph's ops, which are changed in place by each fusion of two of them.

    Attributes:
        graph: the ops before the fusions.
        clusters: the clusters by id, the number of one of their ops. Ids ascend.
        users: for each tensor, the clusters that access it; none for a private one.
        fusions: the fusions so far, in order.
    """

    def __init__(self, graph: TaskGraph) -> None:
        """Make each op a cluster of its own."""
        self.graph = graph
        self.fusions: list[Fusion] = []
        # A tensor with one access, by the op that defines it, is private: it begins and dies in the op's step.
        # So it counts in the op's ``step_bytes`` alone, and is left out of the sets of tensors.
        defined = [tensor for outputs in graph.defines for tensor in outputs]
        private = {tensor for tensor in defined if graph.access_counts[tensor] == 1}
        self.clusters: dict[ClusterId, _Cluster] = {}
        self.users: list[set[ClusterId]] = [set() for _ in graph.tensor_bytes]
        for op in range(graph.size):
            defines = set(graph.defines[op]) - private
            self.clusters[op] = _Cluster(
                ops=[op],
                preds=set(graph.preds[op]),
                succs=set(graph.succs[op]),
                defines=defines,
                accesses=set(graph.accesses[op]) - private,
                in_place_inputs=set(graph.in_place_inputs[op]),
                in_place_bytes=graph.in_place_bytes[op],
                step_bytes=graph.step_bytes[op],
                defined_bytes=self._bytes_of(defines),
            )
            for tensor in self.clusters[op].accesses:
                self.users[tensor].add(op)

    def _bytes_of(self, tensors: set[TensorIndex]) -> int:
        """Return the total size of tensors."""
        return sum([self.graph.tensor_bytes[tensor] for tensor in tensors])

    def fuse_late(self) -> int:
        """Try the late rule once for each cluster, and return the number of fusions.

        A cluster that frees nothing runs just before its only successor, if the step of the successor then
        needs at least as many bytes as that of the cluster. So the cluster's step never is the peak there.
        """
        former_count = len(self.clusters)
        # A fusion removes the cluster of the present turn only, and updates the others in place.
        for cluster_id, cluster in list(self.clusters.items()):
            if len(cluster.succs) != 1 or not self._frees_nothing(cluster):
                continue
            (succ_id,) = cluster.succs
            succ = self.clusters[succ_id]
            if succ.in_place_inputs:
                continue  # the bytes of its step depend on the order
            # The live bytes at both steps, beyond those before ``cluster``. The tensors in ``defined_bytes``
            # are live from its step on. ``succ.step_bytes`` has only what becomes live at the later step.
            during_cluster = cluster.step_bytes
            during_succ = cluster.defined_bytes + succ.step_bytes
            if during_cluster <= during_succ:
                self._fuse(Fusion(cluster_id, succ_id, "late"), step_bytes=during_succ)
        return former_count - len(self.clusters)

    def _frees_nothing(self, cluster: _Cluster) -> bool:
        """Whether a cluster reads results of the block only, and writes over no input."""
        is_result, defined = self.graph.is_result, cluster.defines
        return not cluster.in_place_inputs and all(
            tensor in defined or is_result[tensor] for tensor in cluster.accesses
        )

    def fuse_early(self) -> int:
        """Try the early rule once for each cluster, and return the number of fusions.

        A cluster that frees at least as much as it defines runs just after its only predecessor ``first``, if
        its step needs no more bytes than that of ``first``. So it raises neither the peak nor the live bytes.
        """
        former_count = len(self.clusters)
        # A fusion removes the cluster of the present turn only, and updates the others in place.
        for cluster_id, cluster in list(self.clusters.items()):
            if len(cluster.preds) != 1:
                continue
            (first_id,) = cluster.preds
            first = self.clusters[first_id]
            # Only ``first`` and ``cluster`` access these tensors, so they die at ``cluster`` in every order.
            freed = self._private_tensors(cluster_id, first_id)
            if cluster.defined_bytes > self._bytes_of(freed):
                continue
            # The most bytes live during each step, beyond those before ``first``; fewer for ``cluster`` if ``first``
            # frees an input. For example, ``first`` needs 12 bytes and leaves a tensor of 8; the cluster adds 2.
            during_first = first.step_bytes  # 12
            during_cluster = first.defined_bytes + cluster.step_bytes  # 8 + 2
            # A freed input dies at ``cluster`` in every order, so an output can always take its place.
            if cluster.in_place_inputs & freed:
                during_cluster -= cluster.in_place_bytes
            if during_cluster <= during_first:
                self._fuse(Fusion(cluster_id, first_id, "early"), step_bytes=during_first)
        return former_count - len(self.clusters)

    def _private_tensors(self, cluster_id: ClusterId, other_id: ClusterId) -> set[TensorIndex]:
        """Return the tensors that one of two clusters defines and only these two access.

        They become private if the clusters are fused. Results of the block are not among them.
        """
        cluster, other = self.clusters[cluster_id], self.clusters[other_id]
        both = {cluster_id, other_id}
        return {
            tensor
            for tensor in cluster.accesses
            if self.users[tensor] == both
            and (tensor in cluster.defines or tensor in other.defines)
            and not self.graph.is_result[tensor]
        }

    def _fuse(self, fusion: Fusion, step_bytes: int) -> None:
        """Add the cluster ``fusion.node`` to ``fusion.into``, and remove ``fusion.node``.

        ``step_bytes`` are the most bytes that are live in the fused cluster beyond those live before it.
        """
        removed_id, kept_id = fusion.node, fusion.into
        # Defined by one of the two, and accessed by no third cluster: they now begin and die in one step.
        private = self._private_tensors(removed_id, kept_id)
        removed, kept = self.clusters.pop(removed_id), self.clusters[kept_id]

        if fusion.rule == "late":  # ``removed`` runs first; neither has in-place inputs
            kept.ops[:0] = removed.ops
        else:  # "early": ``kept`` runs first; the step of ``removed`` needs no more bytes
            kept.ops += removed.ops
            # ``kept`` cannot write over a tensor that ``removed`` reads after it. In-place inputs of ``removed``
            # do not matter: ``step_bytes`` are those of ``kept``.
            kept.in_place_inputs -= removed.accesses
        kept.step_bytes = step_bytes

        for tensor in private:
            self.users[tensor].clear()
        for tensor in removed.accesses - private:
            self.users[tensor].discard(removed_id)
            self.users[tensor].add(kept_id)
        # In place: a cluster may grow by one op thousands of times.
        kept.accesses |= removed.accesses
        kept.accesses -= private
        kept.defines |= removed.defines
        kept.defines -= private
        kept.defined_bytes += removed.defined_bytes - self._bytes_of(private)

        for pred in removed.preds:
            self.clusters[pred].succs.remove(removed_id)
            self.clusters[pred].succs.add(kept_id)
        for succ in removed.succs:
            self.clusters[succ].preds.remove(removed_id)
            self.clusters[succ].preds.add(kept_id)
        kept.preds |= removed.preds
        kept.succs |= removed.succs
        kept.preds.discard(kept_id)  # the edge between the two
        kept.succs.discard(kept_id)
        self.fusions.append(fusion)

    def contracted(self) -> ContractedGraph:
        """Return a graph whose ops are the clusters, in the topological order nearest to the file's.

        Clusters get new numbers from 0 on; tensors keep theirs.
        """
        ids = self._topological_ids()
        clusters = [self.clusters[cluster_id] for cluster_id in ids]
        number_of = {cluster_id: number for number, cluster_id in enumerate(ids)}
        graph = self.graph

        def numbers(cluster_ids: set[ClusterId]) -> tuple[int, ...]:
            return tuple(sorted([number_of[cluster_id] for cluster_id in cluster_ids]))

        contracted = TaskGraph(
            preds=tuple([numbers(cluster.preds) for cluster in clusters]),
            succs=tuple([numbers(cluster.succs) for cluster in clusters]),
            defines=tuple([tuple(sorted(cluster.defines)) for cluster in clusters]),
            accesses=tuple([tuple(sorted(cluster.accesses)) for cluster in clusters]),
            in_place_inputs=tuple([tuple(sorted(c.in_place_inputs)) for c in clusters]),
            in_place_bytes=tuple([cluster.in_place_bytes for cluster in clusters]),
            step_bytes=tuple([cluster.step_bytes for cluster in clusters]),
            tensor_bytes=graph.tensor_bytes,
            access_counts=tuple(
                len(users) + is_result  # the caller of the block reads a result too
                for users, is_result in zip(self.users, graph.is_result, strict=True)
            ),
            is_result=graph.is_result,
            initial_bytes=graph.initial_bytes,
        )
        members = tuple(tuple(cluster.ops) for cluster in clusters)
        return ContractedGraph(contracted, members, tuple(self.fusions), tuple(ids))

    def _topological_ids(self) -> list[ClusterId]:
        """Return the ids of the clusters in the topological order with the lowest first ops."""
        ids, clusters = list(self.clusters), list(self.clusters.values())
        number = {cluster_id: number for number, cluster_id in enumerate(ids)}
        succs = [[number[succ] for succ in cluster.succs] for cluster in clusters]
        order = nearest_order(succs, lambda number: clusters[number].ops[0])
        return [ids[number] for number in order]
