"""Witnesses of a bound on the live peak of all orders, looked for where they are short.

The search raises its bound on the way, by whatever shows that it can be raised. Here one
number is to be shown, and whoever checks it should have little to do: first at single steps,
then by pairs of ops, then the same in clusters, at last by all states of a search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.results.certificate import NOT_CHECKABLE, Cut, Move, OrderProof
from memplan_cli.transforms.ordering.bounds.bound import CutBounds, local_bounds
from memplan_cli.transforms.ordering.bounds.dual import Duals, Question
from memplan_cli.transforms.ordering.graph import trace
from memplan_cli.transforms.ordering.search.contract import Contracted, contract
from memplan_cli.transforms.ordering.search.demand import longest_path
from memplan_cli.transforms.ordering.search.exhaust import exhausted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.transforms.ordering.graph import TaskGraph

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
    whole = Contracted(graph, tuple((op,) for op in range(graph.size)), (), ())
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


def searched(small: Contracted, bound: int) -> OrderProof:
    """Return all states of a search below ``bound``, the clusters by their ids."""
    states, ids = exhausted(small.graph, bound), small.ids
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
