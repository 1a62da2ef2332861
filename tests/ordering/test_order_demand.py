"""Demand-driven orders, and bounds by one cut and by pairs."""

from itertools import product

import pytest

from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.ordering.cut_bounds import BoundSearch, CutBounds
from memplan_cli.ordering.demand_orders import (
    NO_LIMIT,
    Direction,
    Sweep,
    longest_path,
    sweep,
)
from memplan_cli.ordering.task_graph import TaskGraph, peak, trace
from order_graphs import GRAPHS, graph_of, orders, random_graph

MANY = [*GRAPHS, *(random_graph(seed, most=30) for seed in range(200, 230))]


def gradients(count: int) -> TaskGraph:
    """Make a chain forward and back; each op back is read by one whose result is added up.

    Ops 0 .. n-1 go forward, then for each op back: itself, its weight's gradient (large),
    and the sum of all gradients so far, in place.
    """
    reads: list[list[int]] = [[at - 1] if at else [] for at in range(count)]
    weight = [4] * count
    back, total = count - 1, -1
    in_place = []
    for at in reversed(range(count)):
        op = len(reads)
        reads += [[back, at], [op, at]]
        weight += [4, 40]
        back, gradient = op, op + 1
        if total >= 0:
            in_place.append(len(reads))
            reads.append([total, gradient])
            weight.append(40)
            total = len(reads) - 1
        else:
            total = gradient
    return graph_of(reads, weight, [total], in_place)


@pytest.mark.parametrize("way", Direction)
def test_every_demand_driven_order_respects_every_edge(way: Direction) -> None:
    for graph, limit, slack in product(MANY, (0, 12, NO_LIMIT), (0, 3)):
        for chain in (longest_path(graph), ()):
            order = sweep(graph, Sweep(way, chain, slack, limit))
            assert sorted(order) == list(range(graph.size))
            place = {op: at for at, op in enumerate(order)}
            assert all(place[p] < place[op] for op in order for p in graph.preds[op])


def test_a_longest_path_has_as_many_ops_as_any() -> None:
    graph = graph_of([[], [0], [1], [0], [3], [4], [2, 5]], [1] * 7)
    assert longest_path(graph) == [0, 3, 4, 5, 6]


def test_ops_run_together_that_pay_for_one_another() -> None:
    # Op 1 takes 9 bytes; with op 2 behind it, and once op 3 has run, it frees tensor 0.
    graph = graph_of([[], [0], [0, 1], [0], [3], [4], [2, 5]], [8, 9, 1, 5, 6, 5, 1], [6])
    path = longest_path(graph)
    assert path == [0, 3, 4, 5, 6]
    assert sweep(graph, Sweep(Direction.FORWARD, path)) == [0, 3, 1, 2, 4, 5, 6]
    # Backward, op 2 is put before op 3, which makes tensor 0 live for both of them.
    assert sweep(graph, Sweep(Direction.BACKWARD, path)) == [0, 1, 2, 3, 4, 5, 6]


def test_the_last_reader_of_a_tensor_runs_as_soon_as_the_others_have() -> None:
    # Op 1 leaves op 2 alone to read tensor 0, of 9 bytes; op 3 can do without either.
    graph = graph_of([[], [0], [0], [1], [1, 2, 3]], [9, 5, 2, 9, 1], [4])
    order = sweep(graph, Sweep(Direction.FORWARD, [0, 1, 3, 4]))
    assert order == [0, 1, 2, 3, 4]
    assert peak(graph, order) == 17


def test_gradients_are_added_up_as_they_come() -> None:
    graph = gradients(6)
    order = sweep(graph, Sweep(Direction.FORWARD, longest_path(graph)))
    # Two gradients at a time, six activations at most, and the chain's own two.
    assert peak(graph, order) <= 2 * 40 + 6 * 4 + 2 * 4


def test_nothing_that_is_not_asked_for_runs_above_the_limit() -> None:
    # Ops 1 and 2 free tensor 0, but take 30 for a moment; only the last op asks for them.
    graph = graph_of([[], [0], [1, 0], [0], [3], [2, 4]], [4, 30, 1, 9, 9, 1], [5])
    path = [0, 3, 4, 5]
    assert sweep(graph, Sweep(Direction.FORWARD, path)) == [0, 3, 1, 2, 4, 5]
    assert sweep(graph, Sweep(Direction.FORWARD, path, limit=44)) == [0, 3, 1, 2, 4, 5]
    assert sweep(graph, Sweep(Direction.FORWARD, path, limit=43)) == [0, 3, 4, 1, 2, 5]


def test_with_slack_a_few_bytes_too_many_hold_nothing_up() -> None:
    # Op 1 gives 9 bytes for 8.
    graph = graph_of([[], [0], [], [2], [1, 3]], [8, 9, 6, 6, 1], [4])
    path = [0, 2, 3, 4]
    assert sweep(graph, Sweep(Direction.FORWARD, path)) == [0, 2, 3, 1, 4]
    assert sweep(graph, Sweep(Direction.FORWARD, path, slack=1)) == [0, 1, 2, 3, 4]


def test_a_cut_with_ops_before_and_after_is_the_least_of_the_orders_that_do_so() -> None:
    compared = 0
    for graph in GRAPHS[:12]:
        least: dict[tuple[int, int, int], int] = {}
        for order in orders(graph):
            for at, step in enumerate(trace(graph, order)):
                for before, after in product(order[:at], order[at + 1 :]):
                    case = (order[at], before, after)
                    least[case] = min(step, least.get(case, step))
        for (op, before, after), bound in least.items():
            assert CutBounds(graph).lowest_cut(op, 10**6, (before,), (after,)).bound == bound
            compared += 1
    assert compared > 200


def update() -> TaskGraph:
    """Make a gradient that two halves of an update read, each with a tensor of its own."""
    # 0: gradient; 1, 2: its two products; 3, 4: decayed averages; 5, 6: the sums.
    reads: list[list[int]] = [[], [0], [0], [], [], [1, 3], [2, 4]]
    return graph_of(reads, [10, 10, 10, 10, 10, 1, 1], [5, 6], [1, 2])


def test_a_pair_of_ops_proves_what_neither_proves_alone() -> None:
    graph = update()
    best = min(orders(graph), key=lambda order: peak(graph, order))
    alone = max(CutBounds(graph).lowest_cut(op, 10**6).bound for op in range(graph.size))
    assert alone < peak(graph, best)
    certificate = BoundSearch(graph, 0)
    certificate.try_pairs(best, peak(graph, best), WorkBudget(10**6))
    assert certificate.bound == peak(graph, best)


def test_no_certificate_is_above_the_best_order() -> None:
    raised = 0
    for graph in GRAPHS:
        every = orders(graph)
        if len(every) == 3000:
            continue
        best = min(peak(graph, order) for order in every)
        certificate = BoundSearch(graph, 0)
        local = certificate.bound
        for order in (every[0], every[-1]):
            certificate.try_promising_ops(order, 10**9, WorkBudget(10**6))
            certificate.try_pairs(order, 10**9, WorkBudget(10**6))
        assert certificate.bound <= best
        raised += certificate.bound > local
    assert raised > 10


def test_a_certificate_without_effort_is_a_bound_all_the_same() -> None:
    spent = 0
    for graph in GRAPHS:
        best = min(peak(graph, order) for order in orders(graph))
        for work in (1, 10, 100):
            certificate = BoundSearch(graph, 0)
            order = list(range(graph.size))
            for method in (certificate.try_promising_ops, certificate.try_pairs):
                budget = WorkBudget(work)
                method(order, 10**9, budget)
                spent += work - budget.remaining
            assert certificate.bound <= best
    assert spent > 0
