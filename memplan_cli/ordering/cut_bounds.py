"""Lower bounds on the peak of all orders, by minimum cuts at single ops and at pairs of ops.

In any order, the ops that run before an op ``x`` form a set that contains the predecessors of
each member, all ancestors of ``x`` and none of its descendants. The bytes live at the step of
``x`` depend on this set alone. A tensor is live if the set contains the op that defines it, but
not all of its readers. The least value over all such sets is a minimum cut; ops on the side of
the source run before ``x``:

    definer of a tensor --- bytes ---> gate --- infinite ---> each reader of the tensor
    op                  --- infinite ---> each predecessor of the op

The flow found so far is a lower bound on the cut, so the work of a cut can be limited.

Pairs: of two independent ops, one runs first. In either case the step of each op has a cut, and
the larger of the two bounds the peak. So the smaller case bounds all orders. It shows, for
example, that an update that reads a gradient twice needs more than either of its halves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.max_flow import INFINITE, SINK, SOURCE, Network
from memplan_cli.core.results.certificate import Dual, Hold, Share
from memplan_cli.ordering.task_graph import trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.core.work_budget import WorkBudget
    from memplan_cli.ordering.task_graph import OpIndex, TaskGraph, TensorIndex

_TRIED_OPS = 24
"""Number of ops whose cuts are tried, at the fullest steps of an order."""

_MIN_DISTANCE_DIVISOR = 100
"""Tried steps are more than the length of the order divided by this apart: neighbors need nearly the same bytes."""

_MAX_EDGES = 500_000
"""Edges that one cut of `cut_bound` may examine."""

_PAIRED_OPS = 12
"""Number of ops at the fullest steps that are tried in pairs."""

_CUT_SHARE_DIVISOR = 4
"""One cut may spend the remaining budget divided by this, so that it leaves work for other ops."""

_EDGES_PER_WORK = 4
"""Edges of a network that are examined in one unit of work."""


def local_bounds(graph: TaskGraph) -> list[int]:
    """Return for each op the bytes that it reads and writes itself: a bound on any order's peak.

    An output that may be written over an input counts as if it always were.
    """
    size = graph.tensor_bytes
    always_live = graph.always_live_bytes()  # tensors that no op accesses
    bounds = []
    for op, accessed in enumerate(graph.accesses):
        # ``accessed`` has the outputs of the op too. They are counted in its step bytes.
        read = sum([size[tensor] for tensor in accessed]) - graph.defined_bytes[op]
        saved = graph.in_place_bytes[op] if graph.in_place_inputs[op] else 0
        bounds.append(always_live + read + graph.step_bytes[op] - saved)
    return bounds


class _Side(Enum):
    """Where an op runs in relation to the op of a cut, in every order that is considered."""

    BEFORE = "before"
    NOT_BEFORE = "not before"
    """After the op of the cut, or that op itself."""
    OPEN = "open"
    """Some orders run it before and others do not: the cut decides."""


def _sides_of(
    graph: TaskGraph, op: OpIndex, earlier: Sequence[OpIndex], later: Sequence[OpIndex]
) -> list[_Side]:
    """Return on which side of ``op`` each op runs.

    The ops ``earlier`` are assumed to run before it, as all their ancestors then do, and the ops
    ``later`` after it, with all their descendants.
    """
    sides = [_Side.OPEN] * graph.size
    for neighbors, assumed, side in (
        (graph.preds, earlier, _Side.BEFORE),
        (graph.succs, later, _Side.NOT_BEFORE),
    ):
        stack = [*neighbors[op], *assumed]
        while stack:
            other = stack.pop()
            if sides[other] is _Side.OPEN:
                sides[other] = side
                stack.extend(neighbors[other])
    sides[op] = _Side.NOT_BEFORE
    return sides


@dataclass(frozen=True, slots=True)
class CutAtOp:
    """A division of the ops into those before the step of one op and the others.

    Attributes:
        bound: a lower bound on the bytes live at that step.
        examined_edges: the work of the cut, as the number of edges examined.
        overwritten: the tensor that the op is assumed to write over; None if there is none.
    """

    bound: int
    examined_edges: int
    overwritten: TensorIndex | None
    _network: _CutNetwork

    def dual(self) -> Dual:
        """Return the flow in this cut, from which a checker can compute ``bound`` (`_CutNetwork.dual`)."""
        return self._network.dual(self.overwritten)


class _Tensor(NamedTuple):
    """A tensor with bytes.

    Attributes:
        number: the tensor.
        definer: the op that defines it; None if it is live before the first op.
        readers: the ops that read it.
        size: its bytes.
        is_result: whether it is live after the last op, as if one more reader never ran.
    """

    number: TensorIndex
    definer: OpIndex | None
    readers: Sequence[OpIndex]
    size: int
    is_result: bool


class CutBounds:
    """Lower bounds on the bytes live at single ops of one graph, over all orders.

    Attributes:
        _always_live: bytes of the tensors that no op accesses, live at every step.
        _tensors: all others that have bytes.
        _readers: for each tensor of the graph, the ops that access it without defining it.
    """

    def __init__(self, graph: TaskGraph) -> None:
        """Find out which ops define and read each tensor of the graph."""
        self._graph = graph
        self._always_live = graph.always_live_bytes()
        definers: list[OpIndex | None] = [None] * len(graph.tensor_bytes)
        self._readers: list[list[OpIndex]] = [[] for _ in graph.tensor_bytes]
        for op, accessed in enumerate(graph.accesses):
            for tensor in accessed:
                if tensor in graph.defines[op]:
                    definers[tensor] = op
                else:
                    self._readers[tensor].append(op)
        self._tensors = [
            _Tensor(
                number=number,
                definer=definers[number],
                readers=self._readers[number],
                size=size,
                is_result=graph.is_result[number],
            )
            for number, size in enumerate(graph.tensor_bytes)
            # One without bytes costs nothing; one that no op accesses counts in ``_always_live``.
            if size and (self._readers[number] or definers[number] is not None)
        ]

    def lowest_cut(
        self,
        op: OpIndex,
        max_edges: int,
        earlier: Sequence[OpIndex] = (),
        later: Sequence[OpIndex] = (),
    ) -> CutAtOp:
        """Return the cut with the fewest bytes live at an op's step.

        There is a cut for each input that the op may write over. An order may choose any of them, so only the
        lowest cut bounds all orders. ``examined_edges`` of the result is the work of all these cuts together.

        Args:
            op: The op.
            max_edges: The number of edges to examine at most in each cut.
            earlier: Ops assumed to run before ``op``; none of them may depend on it.
            later: Ops assumed to run after ``op``; it may depend on none of them.
        """
        cuts = self.cuts_by_overwritten_input(op, max_edges, earlier, later)
        lowest = min(cuts, key=lambda cut: cut.bound)
        return replace(lowest, examined_edges=sum(cut.examined_edges for cut in cuts))

    def cuts_by_overwritten_input(
        self,
        op: OpIndex,
        max_edges: int,
        earlier: Sequence[OpIndex],
        later: Sequence[OpIndex],
    ) -> list[CutAtOp]:
        """Return a cut at an op's step for each input that it may write over.

        If it may write over none, the list has one cut, without an overwritten tensor. Arguments as
        `lowest_cut`.
        """
        sides = _sides_of(self._graph, op, earlier, later)
        overwritten = self._graph.in_place_inputs[op] or (None,)
        return [self._cut(op, sides, tensor, max_edges) for tensor in overwritten]

    def _cut(
        self,
        op: OpIndex,
        sides: list[_Side],
        overwritten: TensorIndex | None,
        max_edges: int,
    ) -> CutAtOp:
        """Return a lower bound on the live bytes at an op's step, from a minimum cut.

        With ``overwritten`` None, the bound holds for all orders in which the op writes its output over no
        input; with a tensor, also for those in which the output is written over this tensor. ``sides`` say
        which ops run before the op in these orders. After ``max_edges`` edges, the bound so far is returned.
        """
        graph = self._graph
        network = _CutNetwork(graph, op, sides)
        for tensor in self._tensors:
            network.add_tensor(tensor)
        step_bytes = graph.step_bytes[op]
        if overwritten is not None:
            # The op saves bytes if all other readers of the overwritten tensor run before it. So the bytes are
            # subtracted from the step, and added again as a tensor that is live until these readers have run.
            saved_bytes = graph.in_place_bytes[op]
            step_bytes -= saved_bytes
            unsaved = _Tensor(
                number=overwritten,
                definer=None,  # live from the start
                readers=[reader for reader in self._readers[overwritten] if reader != op],
                size=saved_bytes,
                is_result=False,
            )
            network.add_tensor(unsaved)
        needed_in_every_cut = self._always_live + step_bytes + network.certain_bytes
        # If the flow ends at ``max_edges``, before it is maximal, it is a lower bound still.
        flow, flow_edges = network.flow_network.flow(max_edges)
        building_work = graph.size + len(network.flow_network.heads)  # counted as edges too
        return CutAtOp(
            bound=needed_in_every_cut + flow,
            examined_edges=building_work + flow_edges,
            overwritten=overwritten,
            _network=network,
        )


class _CutNetwork:
    """The flow network of the cuts at one op: each cut divides the other ops into those before it and the rest.

    Only ops whose side is open are nodes. A cut puts some nodes on the side of the source: these run before
    the op. It costs the capacity of each edge from a node before the op to one that is not. An infinite edge
    thus forbids that. The cheapest cut costs as much as the maximum flow.
    """

    def __init__(self, graph: TaskGraph, op: OpIndex, sides: list[_Side]) -> None:
        """Add a node for each open op, and an infinite edge for each precedence between two of them.

        Args:
            graph: The ops.
            op: The op at which the others are divided.
            sides: For each op, whether it runs before ``op`` in all orders, in none or in some (`_Side.OPEN`).
        """
        self._op, self._sides = op, sides
        self.flow_network = Network()
        self.certain_bytes = 0
        """Bytes of tensors that are live at the step of ``op`` whatever the cut."""
        self._tensor_edges: dict[int, tuple[TensorIndex, OpIndex]] = {}
        """Edge -> a tensor and one of its readers. A certificate states the flow through it as a `Share`."""
        self._precedences: dict[int, tuple[OpIndex, OpIndex]] = {}
        """Edge -> an op and one that depends on it. A certificate states the flow through it as a `Hold`."""
        open_ops = [other for other, side in enumerate(sides) if side is _Side.OPEN]
        self._node = dict(zip(open_ops, self.flow_network.nodes(len(open_ops)), strict=True))
        """The node of each open op."""
        for dependent, node in self._node.items():
            for pred in graph.preds[dependent]:
                if pred in self._node:
                    # Infinite: if the dependent op is on the source's side, so is its predecessor.
                    edge = self.flow_network.edge(node, self._node[pred], INFINITE)
                    self._precedences[edge] = pred, dependent

    def add_tensor(self, tensor: _Tensor) -> None:
        """Add a tensor's bytes to the cost of each cut in which the tensor is live at the step of the op.

        In such a cut the definer runs before the op, and at least one reader does not. Adds edges to the
        network, or to ``certain_bytes`` if the tensor is live in every cut.
        """
        definer, size = tensor.definer, tensor.size
        if definer is None or self._sides[definer] is _Side.BEFORE:
            definer_node = SOURCE
        elif self._sides[definer] is _Side.OPEN:
            definer_node = self._node[definer]  # each cut puts it on one side
        else:  # never live before the step; what the op itself defines counts in its step bytes
            return
        sides_of_readers = [self._sides[reader] for reader in tensor.readers]
        is_always_read_later = tensor.is_result or _Side.NOT_BEFORE in sides_of_readers
        if is_always_read_later and definer_node == SOURCE:
            self.certain_bytes += size
        elif is_always_read_later:  # so it is live if the definer runs before the op
            edge = self.flow_network.edge(definer_node, SINK, size)
            # A certificate names a reader for each edge of a tensor: here the op stands for the later reader.
            self._tensor_edges[edge] = tensor.number, self._op
        elif _Side.OPEN in sides_of_readers:
            self._add_edges_to_open_readers(definer_node, tensor)
        # Else all readers run before the op, and the tensor is dead.

    def _add_edges_to_open_readers(self, definer_node: int, tensor: _Tensor) -> None:
        """Add a tensor's bytes to the cost of each cut with its definer before the op and an open reader after it.

        The side of an open reader is decided by each cut. All other readers run before the op in every cut.
        """
        # If a reader is after the op, its infinite edge puts the gate there too. So such a cut costs the one edge
        # from the definer to the gate, however many readers are after the op.
        gate = self.flow_network.node()
        self.flow_network.edge(definer_node, gate, tensor.size)
        for reader in tensor.readers:
            if self._sides[reader] is _Side.OPEN:
                edge = self.flow_network.edge(gate, self._node[reader], INFINITE)
                # A certificate states how many of the tensor's bytes flow to each reader (`dual`).
                self._tensor_edges[edge] = tensor.number, reader

    def dual(self, overwritten: TensorIndex | None) -> Dual:
        """Return the flow in the form in which a certificate states it, without edges that have no flow.

        A `Share` has the bytes that flow through the edge from a tensor to one of its readers, and a `Hold`
        those through the edge from a dependent op to its predecessor. ``overwritten`` is the tensor that the
        op of the cut is assumed to write over, or None: the bound depends on it.
        """
        shares = [
            Share(tensor, reader, self._flow_through(edge))
            for edge, (tensor, reader) in self._tensor_edges.items()
            if self._flow_through(edge)
        ]
        holds = [
            Hold(predecessor, dependent, self._flow_through(edge))
            for edge, (predecessor, dependent) in self._precedences.items()
            if self._flow_through(edge)
        ]
        return Dual(tuple(shares), tuple(holds), replaced=overwritten)

    def _flow_through(self, edge: int) -> int:
        """Return the flow through an edge: the residual capacity of its reverse, ``edge ^ 1``."""
        return self.flow_network.residual[edge ^ 1]


def cut_bound(graph: TaskGraph, order: Sequence[OpIndex]) -> int:
    """Return a lower bound on the peak of all orders, from cuts at the fullest steps of one order."""
    cuts = CutBounds(graph)
    bounds = [cuts.lowest_cut(op, _MAX_EDGES).bound for op in promising_ops(graph, order)]
    return max([*bounds, *local_bounds(graph)], default=graph.initial_bytes)


class BoundSearch:
    """The best lower bound found so far on the peak of all orders of one graph.

    Each method raises ``bound``, and spends the budget. It ends when ``bound`` meets
    ``best_peak``, the least peak of any known order, or when the budget is spent.

    Attributes:
        bound: no order of the graph has a smaller peak.
        _cuts: the lower bounds by cuts at single ops of the graph.
    """

    def __init__(self, graph: TaskGraph, bound: int) -> None:
        """Start with a lower bound on the peak that is already known, or a higher one of a single op."""
        self._graph = graph
        self._cuts = CutBounds(graph)
        self.bound = max([bound, *local_bounds(graph)])

    def try_promising_ops(
        self, order: Sequence[OpIndex], best_peak: int, budget: WorkBudget
    ) -> None:
        """Raise the bound by cuts at the `promising_ops` of an order."""
        for op in promising_ops(self._graph, order):
            if self._is_finished(best_peak, budget):
                return
            self.bound = max(self.bound, self._cut_at(op, budget))

    def try_pairs(self, order: Sequence[OpIndex], best_peak: int, budget: WorkBudget) -> None:
        """Raise the bound by cuts at the `independent_pairs` of the fullest ops of an order."""
        for op, other in independent_pairs(self._graph, order):
            if self._is_finished(best_peak, budget):
                return
            self.bound = max(self.bound, self._pair_bound(op, other, budget))

    def _is_finished(self, best_peak: int, budget: WorkBudget) -> bool:
        """Return whether the bound meets the best peak or the budget is over."""
        return self.bound >= best_peak or budget.is_over()

    def _cut_at(
        self,
        op: OpIndex,
        budget: WorkBudget,
        earlier: Sequence[OpIndex] = (),
        later: Sequence[OpIndex] = (),
    ) -> int:
        """Return a lower bound of the bytes at an op's step, and spend the work of the cut.

        The ops ``earlier`` are assumed to run before the op, and the ops ``later`` after it.
        """
        max_edges = max(_EDGES_PER_WORK * budget.remaining // _CUT_SHARE_DIVISOR, 1)
        cut = self._cuts.lowest_cut(op, max_edges, earlier, later)
        budget.spend(cut.examined_edges // _EDGES_PER_WORK)
        return cut.bound

    def _pair_bound(self, op: OpIndex, other: OpIndex, budget: WorkBudget) -> int:
        """Return a lower bound of the peak from two independent ops, or a number that is not above ``bound``.

        One of them runs first. In either case the peak is at least the bytes at the step of each, so
        the smaller case bounds all orders. If the first case does not exceed ``bound``, neither does
        the smaller one, and the other is not computed.
        """
        cases = []
        for first, second in ((op, other), (other, op)):
            bytes_at_first = self._cut_at(first, budget, later=(second,))
            bytes_at_second = self._cut_at(second, budget, earlier=(first,))
            cases.append(max(bytes_at_first, bytes_at_second))
            if cases[-1] <= self.bound:
                break
        return min(cases)


def promising_ops(graph: TaskGraph, order: Sequence[OpIndex]) -> list[OpIndex]:
    """Return the ops at the steps of an order with most live bytes, not close to one another."""
    distance = len(order) // _MIN_DISTANCE_DIVISOR
    positions: list[int] = []
    for position in _fullest_positions(graph, order):
        if all(abs(position - other) > distance for other in positions):
            positions.append(position)
        if len(positions) == _TRIED_OPS:
            break
    return [order[position] for position in positions]


def independent_pairs(
    graph: TaskGraph, order: Sequence[OpIndex]
) -> Iterator[tuple[OpIndex, OpIndex]]:
    """Yield the pairs of ops at the fullest steps of an order in which neither op depends on the other."""
    positions = _fullest_positions(graph, order)[:_PAIRED_OPS]
    ops = [order[position] for position in positions]
    descendants = {op: graph.descendants(op) for op in ops}
    for index, other in enumerate(ops):
        for op in ops[:index]:
            if op not in descendants[other] and other not in descendants[op]:
                yield op, other


def _fullest_positions(graph: TaskGraph, order: Sequence[OpIndex]) -> list[int]:
    """Return the positions in an order, those with most live bytes first."""
    bytes_at = trace(graph, order)
    return sorted(range(len(order)), key=lambda position: -bytes_at[position])
