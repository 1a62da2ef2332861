"""Witnesses of a lower bound on the peak of all orders, for a certificate.

The planner's search raises its bound by any means. A witness shows one bound to a checker that
does little work. Four kinds are tried, from the shortest to the longest: a cut at one op, cuts at
two ops of which one runs first, the same in the contracted graph, and all states of a search.

**Cuts.** The witness of a cut (`cut_bounds`) is its maximum flow. At an op's step a tensor is live
if its definer ran and some reader did not. Distribute its bytes over its readers in any *shares*.
The bytes live are then at least the shares of the readers that did not run, minus the shares of
all readers if the definer did not run. An op that ran implies that its predecessors ran; such a
dependency may be multiplied with any number that is not negative (a *hold*) and added. The flow
gives the shares and holds for which the sum is the minimum cut.

**Subgraphs** have witnesses of their own, innermost first. The step of an op that repeats a
subgraph needs the subgraph's bound, the op's results and the subgraph's inputs. A branch of an If
may not run, and variables that only the other branch reads may be dead; the bound of a branch
therefore holds for the whole graph alone, not in addition to the op's step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.results.certificate import NOT_CHECKABLE, BlockProof, Cut, OrderProof
from memplan_cli.ordering.block_graph import (
    SubgraphMemory,
    least_step_bytes,
    task_graph,
    tensor_names,
)
from memplan_cli.ordering.contraction import contract, uncontracted
from memplan_cli.ordering.cut_bounds import (
    CutBounds,
    cut_bound,
    independent_pairs,
    promising_ops,
)
from memplan_cli.ordering.exact_search import states_below
from memplan_cli.ordering.task_graph import trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.program import Block
    from memplan_cli.ordering.block_graph import StorageFacts
    from memplan_cli.ordering.contraction import ClusterId, ContractedGraph
    from memplan_cli.ordering.task_graph import OpIndex, TaskGraph

_MAX_EDGES_OF_CUT = 20_000_000
"""Edges that one cut may examine."""

_TOO_LONG = "the search that proved it has no witness of a sensible size"


def nested_witness(
    block: Block, facts: StorageFacts, bound: int
) -> tuple[OrderProof, tuple[BlockProof, ...]]:
    """Return the witness that no order of a program has a peak below ``bound``, and its subgraphs'.

    The second value holds the proofs of the subgraphs whose bounds the witness uses, innermost
    first; it is empty if the main graph alone suffices or nothing is found.

    ``block`` is the program's main graph in the planned order.
    """
    graph = graph_without_subgraphs(block, facts)
    proof = order_witness(graph, tensor_names(block, facts), bound)
    if proof.method != NOT_CHECKABLE or not any(op.bodies for op in block.ops):
        return proof, ()
    nested = _with_proved_subgraphs(block, facts)
    proof = nested.witness(bound)
    return proof, nested.subgraph_proofs if proof.method != NOT_CHECKABLE else ()


def graph_without_subgraphs(block: Block, facts: StorageFacts) -> TaskGraph:
    """Return the graph of a block as if the subgraphs of its ops needed no memory of their own.

    Its bounds hold for any memory of the subgraphs.
    """
    step_bytes = {
        index: least_step_bytes(op, facts, bodies=())
        for index, op in enumerate(block.ops)
        if op.bodies
    }
    return task_graph(block, facts, step_bytes)


def order_witness(graph: TaskGraph, names: Sequence[str], bound: int) -> OrderProof:
    """Return the witness that no order of a graph has a peak below ``bound``.

    That is the first of these that is found: a cut, which shows an op whose step needs ``bound`` bytes in
    every order; two cuts, one for the orders in which an op runs before another, and one for the rest; all
    states that a search reaches below the bound. Its method is NOT_CHECKABLE if none is found.

    ``names`` has the variable of each tensor.
    """
    contracted = contract(graph)
    # Cuts of the graph itself make the shorter proof, which states no fusions. Cuts of clusters show more.
    for candidate in (uncontracted(graph), contracted):
        cuts = _cuts(candidate.graph, bound)
        if cuts:
            return OrderProof(
                bound,
                method="cut" if len(cuts) == 1 else "pair",
                tensors=tuple(names),
                fusions=candidate.fusions,
                cuts=tuple(_with_ids(cut, candidate.ids) for cut in cuts),
            )
    return states_witness(contracted, bound)


def states_witness(contracted: ContractedGraph, bound: int) -> OrderProof:
    """Return the proof by search that no order has a peak below ``bound``.

    The proof lists all states (sets of clusters that have run) that are reachable below the bound, with the
    moves between them. No listed state has run all clusters, so no order stays below the bound. The method
    is NOT_CHECKABLE if there are too many states.
    """
    states, ids = states_below(contracted.graph, bound), contracted.ids
    if states is None:
        return OrderProof(bound, NOT_CHECKABLE, why=_TOO_LONG)
    # A certificate names clusters by id, not by their number in the contracted graph. The clusters of a move are
    # the one that it runs (``nodes``) and those that run at once after that one (``free``).
    states_with_ids = tuple(
        tuple(
            move._replace(
                nodes=tuple(ids[cluster] for cluster in move.nodes),
                free=tuple(ids[cluster] for cluster in move.free),
            )
            for move in moves
        )
        for moves in states
    )
    return OrderProof(bound, "search", fusions=contracted.fusions, states=states_with_ids)


def _with_ids(cut: Cut, ids: Sequence[ClusterId]) -> Cut:
    """Return a cut of a contracted graph with the ids of clusters in place of their indices.

    Tensors, in ``share.tensor`` and ``dual.replaced``, have the same numbers in both graphs.
    """
    duals = []
    for dual in cut.duals:
        shares = [share._replace(reader=ids[share.reader]) for share in dual.shares]
        holds = [
            hold._replace(first=ids[hold.first], second=ids[hold.second])
            for hold in dual.holds
        ]
        duals.append(replace(dual, shares=tuple(shares), holds=tuple(holds)))
    before = None if cut.before is None else ids[cut.before]
    after = None if cut.after is None else ids[cut.after]
    return Cut(node=ids[cut.node], duals=tuple(duals), before=before, after=after)


def _cuts(graph: TaskGraph, bound: int) -> tuple[Cut, ...]:
    """Return cuts that show that some step needs ``bound`` bytes in every order; empty if none are found.

    They are one cut that holds in all orders, or two: one for each order of two independent ops.
    """
    cuts = CutBounds(graph)
    for op in promising_ops(graph, range(graph.size)):
        cut = _cut(cuts, op, bound)
        if cut is not None:
            return (cut,)
    return _pair_of_cuts(graph, cuts, bound)


def _cut(
    cuts: CutBounds,
    op: OpIndex,
    bound: int,
    earlier: OpIndex | None = None,
    later: OpIndex | None = None,
) -> Cut | None:
    """Return the witness that the step of an op needs ``bound`` bytes; None if minimum cuts do not show it.

    The op may write over one of several inputs. So the witness has a dual, from a minimum cut, for each
    of these inputs (or one if there are none), and each must reach the bound.

    The op ``earlier`` is assumed to run before ``op``, and the op ``later`` after it.
    """
    minimum_cuts = cuts.cuts_by_overwritten_input(
        op,
        max_edges=_MAX_EDGES_OF_CUT,
        earlier=() if earlier is None else (earlier,),
        later=() if later is None else (later,),
    )
    if any(cut.bound < bound for cut in minimum_cuts):
        return None
    duals = tuple(cut.dual() for cut in minimum_cuts)
    return Cut(op, duals, before=earlier, after=later)


def _pair_of_cuts(graph: TaskGraph, cuts: CutBounds, bound: int) -> tuple[Cut, ...]:
    """Return two cuts that together prove that every order needs ``bound`` bytes; empty if none are found.

    Of two independent ops, ``op`` and ``other``, the first cut holds for all orders with ``op`` first, and the
    second for all orders with ``other`` first. Either cut may be at the step of ``op`` or of ``other``.
    """
    for op, other in independent_pairs(graph, range(graph.size)):
        cut_op_first = _cut_of_pair(cuts, op, other, bound)
        cut_other_first = _cut_of_pair(cuts, other, op, bound)
        if cut_op_first is not None and cut_other_first is not None:
            return cut_op_first, cut_other_first
    return ()


def _cut_of_pair(cuts: CutBounds, first: OpIndex, second: OpIndex, bound: int) -> Cut | None:
    """Return a cut of ``bound`` bytes at one of two ops, for the orders that run ``first`` before ``second``."""
    at_first = _cut(cuts, first, bound, later=second)
    return at_first or _cut(cuts, second, bound, earlier=first)


class _BodyBound(NamedTuple):
    """The path of a subgraph and its proved bound; 0 if nothing is proved."""

    path: str
    bound: int


@dataclass(frozen=True, slots=True)
class _ProvedBlock:
    """A block with proved bounds of its subgraphs.

    Attributes:
        graph: the block's ops; ops with subgraphs need what is proved of these.
        names: the variable of each tensor, by number.
        subgraph_proofs: the proofs of all subgraphs inside, innermost first.
        largest: the direct subgraph with the largest bound.
    """

    graph: TaskGraph
    names: Sequence[str]
    subgraph_proofs: tuple[BlockProof, ...]
    largest: _BodyBound

    def witness(self, bound: int) -> OrderProof:
        """Return the witness of a bound: one subgraph if that suffices, else one of the graph."""
        body_bound = self.largest.bound
        # In any order, the always live bytes are live beside the peak of a subgraph.
        if body_bound and self.graph.always_live_bytes() + body_bound >= bound:
            return OrderProof(bound, "inside", inside=self.largest.path)
        return order_witness(self.graph, self.names, bound)


def _with_proved_subgraphs(block: Block, facts: StorageFacts) -> _ProvedBlock:
    """Prove bounds of all subgraphs of a block, and return the block's graph with these bounds."""
    proofs: list[BlockProof] = []
    step_bytes: dict[int, int] = {}
    largest = _BodyBound("", 0)
    for index, op in enumerate(block.ops):
        if not op.bodies:
            continue
        bodies: list[SubgraphMemory] = []
        for body in op.bodies:
            body_proofs, bound = _prove_subgraph(body, facts)
            proofs += body_proofs
            inputs = sum(map(facts.own_bytes, body.inputs))
            # `least_step_bytes` needs neither peak nor results.
            bodies.append(SubgraphMemory(inputs, peak=0, results=0, bound=bound))
            if bound > largest.bound:
                largest = _BodyBound(body.path, bound)
        step_bytes[index] = least_step_bytes(op, facts, bodies)
    graph = task_graph(block, facts, step_bytes)
    return _ProvedBlock(graph, tensor_names(block, facts), tuple(proofs), largest)


def _prove_subgraph(body: Block, facts: StorageFacts) -> tuple[tuple[BlockProof, ...], int]:
    """Prove a lower bound on the peak of all orders of a subgraph, ``body``.

    Returns:
        The proofs of all subgraphs inside ``body``, then that of ``body``; and the bound in bytes. If no
        bound has a witness that can be checked, the proof of ``body`` is missing and the bound is 0.
    """
    nested = _with_proved_subgraphs(body, facts)
    order = range(nested.graph.size)
    # No bound is larger than the peak of the present order. The bound by cuts is smaller or equal.
    order_peak = max(trace(nested.graph, order), default=0)
    for candidate in (order_peak, cut_bound(nested.graph, order)):
        # The peak of a subgraph is part of the peak of ``body``, so its bound holds for ``body`` too.
        bound = max(candidate, nested.largest.bound)
        proof = nested.witness(bound)
        if bound and proof.method != NOT_CHECKABLE:
            return (*nested.subgraph_proofs, BlockProof(body.path, proof)), bound
    return nested.subgraph_proofs, 0
