"""Witnesses of cuts: a maximum flow written down as weights that anybody can add up.

A tensor is live at an op's step if its opener ran before and some reader did not. So its
bytes, charged to its readers in any shares, are at least the sum of the shares whose reader
did not run, less those whose opener did not. An op that needs another one did not run unless
that did, and to count that, too, lowers no sum. A maximum flow gives the shares and counts of
which the sum is the minimum cut.

Witnesses of a bound on the live peak of all orders, looked for where they are short.

The search raises its bound on the way, by whatever shows that it can be raised. Here one
number is to be shown, and whoever checks it should have little to do: first at single steps,
then by pairs of ops, then the same in clusters, at last by all states of a search.

Witnesses of bounds on orders of programs whose nodes have subgraphs.

What a subgraph needs in any order of its own nodes is shown like a graph's bound, innermost
first. A node that repeats one needs that much on its step, beside its results and what the
subgraph is given. A branch may run or not, and what only the other one reads may be gone: it
bounds the whole alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.analysis.flow import INFINITE, SINK, SOURCE, Network
from memplan_cli.core.results.certificate import (
    NOT_CHECKABLE,
    BlockProof,
    Cut,
    Dual,
    Hold,
    Move,
    OrderProof,
    Share,
)
from memplan_cli.ordering.block_graph import (
    SubgraphMemory,
    least_taken,
    result_bytes,
    task_graph,
    tensor_names,
)
from memplan_cli.ordering.contraction import ContractedGraph, contract
from memplan_cli.ordering.cut_bounds import CutBounds, cut_bound, fixed_sides, local_bounds
from memplan_cli.ordering.demand_orders import longest_path
from memplan_cli.ordering.exact_search import states_below
from memplan_cli.ordering.task_graph import trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.program import Block, Op
    from memplan_cli.ordering.block_graph import StorageFacts
    from memplan_cli.ordering.task_graph import TaskGraph


_NONE = -1

"""Stands for no op, and for no tensor."""


@dataclass(frozen=True, slots=True)
class Question:
    """An op's step: what is live there at least, if another op is before or after it."""

    op: int
    before: int | None = None
    after: int | None = None


@dataclass(slots=True)
class _Charged:
    """A network whose edges know what they stand for."""

    network: Network = field(default_factory=Network)
    shares: list[tuple[int, int, int]] = field(default_factory=list)
    """Edge, tensor, reader."""
    holds: list[tuple[int, int, int]] = field(default_factory=list)
    """Edge, the op that is needed, the one that needs it."""

    def charge(
        self, tensor: tuple[int, int, int], node: Mapping[int, int], readers: Sequence[int]
    ) -> None:
        """Charge a tensor, given by its tail, number and bytes, to readers in any shares."""
        tail, number, weight = tensor
        gate = self.network.node()
        self.network.edge(tail, gate, weight)
        for reader in readers:
            if reader in node:
                self.shares.append((len(self.network.heads), number, reader))
                self.network.edge(gate, node[reader], INFINITE)

    def dual(self, replaced: int) -> Dual:
        """Return what flows now."""
        room = self.network.room
        # An edge backwards has room for what flows forwards.
        shares = [Share(t, r, room[e ^ 1]) for e, t, r in self.shares if room[e ^ 1]]
        holds = [Hold(p, q, room[e ^ 1]) for e, p, q in self.holds if room[e ^ 1]]
        return Dual(tuple(shares), tuple(holds), None if replaced == _NONE else replaced)


class Duals:
    """The witnesses of cuts in one graph."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._readers: list[list[int]] = [[] for _ in graph.tensor_bytes]
        self._opener = [_NONE] * len(graph.tensor_bytes)
        for op, touched in enumerate(graph.accesses):
            for tensor in touched:
                if tensor in graph.defines[op]:
                    self._opener[tensor] = op
                else:
                    self._readers[tensor].append(op)

    def cut(self, question: Question, work: int) -> Cut:
        """Return the witness of a minimum cut, as good as the work allows."""
        graph, op = self._graph, question.op
        before = () if question.before is None else (question.before,)
        after = () if question.after is None else (question.after,)
        side = fixed_sides(graph, op, before, after)
        duals = [
            self._dual(op, side, tensor, work)
            for tensor in graph.in_place_inputs[op] or (_NONE,)
        ]
        return Cut(op, tuple(duals), question.before, question.after)

    def _dual(self, op: int, side: Sequence[bool | None], replaced: int, work: int) -> Dual:
        graph, charged = self._graph, _Charged()
        network = charged.network
        node = {at: network.node() for at, fixed in enumerate(side) if fixed is None}
        for at, number in node.items():
            for pred in graph.preds[at]:
                if pred in node:
                    charged.holds.append((len(network.heads), pred, at))
                    network.edge(number, node[pred], INFINITE)
        for tensor, weight in enumerate(graph.tensor_bytes):
            opener, readers = self._opener[tensor], self._readers[tensor]
            if not weight or (opener != _NONE and side[opener] is False):
                continue
            stays = graph.is_result[tensor] or any(side[r] is False for r in readers)
            begins = opener == _NONE or side[opener] is True
            if stays and begins:
                continue
            tail = SOURCE if begins else node[opener]
            if stays:
                charged.shares.append((len(network.heads), tensor, op))
                network.edge(tail, SINK, weight)
            else:
                charged.charge((tail, tensor, weight), node, readers)
        if replaced != _NONE:
            others = [reader for reader in self._readers[replaced] if reader != op]
            if not any(side[reader] is False for reader in others):
                charged.charge((SOURCE, replaced, graph.in_place_bytes[op]), node, others)
        network.flow(work)
        return charged.dual(replaced)


_TRIED = 200

"""Ops that are tried alone."""

_PAIRED = 16

"""Heavy ops that are tried in pairs."""

_WORK = 20_000_000

"""Edges that one cut may look at."""

_TOO_MUCH = "the search that proved it has no witness of a sensible size"


def order_witness(graph: TaskGraph, names: Sequence[str], bound: int) -> OrderProof:
    """Return what shows that no order of a graph has a peak below ``bound``.

    Args:
        graph: The ops in the planned order.
        names: The graph's tensors.
        bound: What the planner says of it.
    """
    whole = ContractedGraph(graph, tuple((op,) for op in range(graph.size)), (), ())
    for small in (whole, contract(graph)):
        ids = small.ids or range(graph.size)
        cuts = _cuts(small.graph, bound)
        if cuts:
            return OrderProof(
                bound,
                "cut" if len(cuts) == 1 else "pair",
                tuple(names),
                small.fusions,
                tuple(_named(cut, ids) for cut in cuts),
            )
    return searched(small, bound)


def searched(small: ContractedGraph, bound: int) -> OrderProof:
    """Return all states of a search below ``bound``, the clusters by their ids."""
    states, ids = states_below(small.graph, bound), small.ids
    if states is None:
        return OrderProof(bound, NOT_CHECKABLE, why=_TOO_MUCH)
    named = tuple(tuple(_moved(move, ids) for move in state) for state in states)
    return OrderProof(bound, "search", (), small.fusions, states=named)


def _moved(move: Move, ids: Sequence[int]) -> Move:
    nodes, free = (tuple(ids[op] for op in ops) for ops in move[:2])
    return Move(nodes, free, move.to)


def _named(cut: Cut, ids: Sequence[int]) -> Cut:
    """Return a cut with its clusters by their ids."""
    duals = tuple(
        type(dual)(
            tuple(share._replace(reader=ids[share.reader]) for share in dual.shares),
            tuple(
                hold._replace(first=ids[hold[0]], second=ids[hold[1]]) for hold in dual.holds
            ),
            dual.replaced,
        )
        for dual in cut.duals
    )
    before = None if cut.before is None else ids[cut.before]
    after = None if cut.after is None else ids[cut.after]
    return Cut(ids[cut.node], duals, before, after)


def _cuts(graph: TaskGraph, bound: int) -> tuple[Cut, ...]:
    """Return one cut that reaches a bound, or two that do whichever op is first, or none."""
    found = _single(graph, bound) or _pair(graph, bound)
    duals = Duals(graph)
    return tuple(duals.cut(question, _WORK) for question in found)


def _single(graph: TaskGraph, bound: int) -> tuple[Question, ...]:
    cuts = CutBounds(graph)
    for op in _worth_trying(graph):
        if cuts.at(op, _WORK).bound >= bound:
            return (Question(op),)
    path = longest_path(graph)
    known: dict[int, int] = {}
    apart, best = len(path) // 4, len(path) // 2
    while apart:
        for at in {best, best - apart, best + apart} - known.keys():
            if 0 <= at < len(path):
                known[at] = cuts.at(path[at], _WORK).bound
                if known[at] >= bound:
                    return (Question(path[at]),)
        best = max(known, key=lambda at: known[at])
        apart //= 2
    return ()


def _worth_trying(graph: TaskGraph) -> Iterator[int]:
    """Yield ops that are heavy by themselves, and those at which the order is, in turn."""
    local, steps = local_bounds(graph), trace(graph, range(graph.size))[0]
    heavy = sorted(range(graph.size), key=lambda op: -local[op])[: _TRIED // 4]
    worst = sorted(range(graph.size), key=lambda op: -steps[op])[:_TRIED]
    apart = graph.size // 100
    chosen: dict[int, None] = {}
    for op in worst:
        if all(abs(op - other) > apart for other in chosen):
            chosen[op] = None
    yield from dict.fromkeys([*heavy[:4], *chosen, *heavy])


def _pair(graph: TaskGraph, bound: int) -> tuple[Question, ...]:
    cuts = CutBounds(graph)
    steps = trace(graph, range(graph.size))[0]
    ops = sorted(range(graph.size), key=lambda op: -steps[op])[:_PAIRED]
    below = {op: graph.descendants(op) for op in ops}
    for place, second in enumerate(ops):
        for first in ops[:place]:
            if first in below[second] or second in below[first]:
                continue
            cases = [_case(cuts, *pair, bound) for pair in ((first, second), (second, first))]
            if all(cases):
                return tuple(case for case in cases if case)
    return ()


def _case(cuts: CutBounds, first: int, second: int, bound: int) -> Question | None:
    """Return the step of one of two ops that needs as much as the bound, in this order."""
    if cuts.at(first, _WORK, after=(second,)).bound >= bound:
        return Question(first, after=second)
    if cuts.at(second, _WORK, before=(first,)).bound >= bound:
        return Question(second, before=first)
    return None


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes of a block, with what subgraphs below are shown to need in any order.

    ``floor`` is the path and the need of the one that needs most of the block's own.
    """

    graph: TaskGraph
    names: Sequence[str]
    below: tuple[BlockProof, ...]
    floor: tuple[str, int]

    def witness(self, bound: int) -> OrderProof:
        """Return what shows a bound, by a subgraph alone where that is enough."""
        path, need = self.floor
        if need and self.graph.initial_bytes + need >= bound:
            return OrderProof(bound, "inside", inside=path)
        return order_witness(self.graph, self.names, bound)


def nested_witness(
    block: Block, facts: StorageFacts, bound: int
) -> tuple[OrderProof, tuple[BlockProof, ...]]:
    """Return what shows that no order of a program has a peak below ``bound``.

    Args:
        block: The program's outermost, in the planned order.
        facts: From `storage_facts`.
        bound: What the planner says of it.
    """
    alone = {at: result_bytes(op, facts) if op.repeats else 0 for at, op in _holders(block)}
    found = order_witness(task_graph(block, facts, alone), tensor_names(block, facts), bound)
    if found.method != NOT_CHECKABLE or not alone:
        return found, ()
    nodes = _with_below(block, facts)
    proof = nodes.witness(bound)
    return proof, nodes.below if proof.method != NOT_CHECKABLE else ()


def _holders(block: Block) -> Iterator[tuple[int, Op]]:
    return ((at, op) for at, op in enumerate(block.ops) if op.bodies)


def _with_below(block: Block, facts: StorageFacts) -> _Nodes:
    below: list[BlockProof] = []
    taken: dict[int, int] = {}
    floor = ("", 0)
    for at, op in _holders(block):
        bodies: list[SubgraphMemory] = []
        for body in op.bodies:
            below += (shown := _most_shown(body, facts))
            need = shown[-1].order.bound if shown and shown[-1].block == body.path else 0
            inputs = sum(facts.numbers[v] for v in body.inputs if facts.roots.get(v) == v)
            bodies.append(SubgraphMemory(inputs, 0, 0, need))
            floor = max(floor, (body.path, need), key=itemgetter(1))
        taken[at] = least_taken(op, facts, bodies)
    graph = task_graph(block, facts, taken)
    return _Nodes(graph, tensor_names(block, facts), tuple(below), floor)


def _most_shown(body: Block, facts: StorageFacts) -> tuple[BlockProof, ...]:
    """Return the proof of a subgraph's need, if there is one, behind those that it leans on."""
    nodes = _with_below(body, facts)
    order = range(nodes.graph.size)
    reached = max(trace(nodes.graph, order)[0], default=0)
    for found in (reached, cut_bound(nodes.graph, order)):
        bound = max(found, nodes.floor[1])
        proof = nodes.witness(bound)
        if bound and proof.method != NOT_CHECKABLE:
            return (*nodes.below, BlockProof(body.path, proof))
    return nodes.below
