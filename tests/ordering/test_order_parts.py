"""The parts that searches are made of, each on graphs whose every order can be tried."""

import pytest

from memplan_cli.analysis.max_flow import SINK, SOURCE, Network
from memplan_cli.core.results.certificate import NOT_CHECKABLE
from memplan_cli.core.work_budget import WorkBudget
from memplan_cli.ordering import exact_search
from memplan_cli.ordering.block_search import BlockOrder, order_block
from memplan_cli.ordering.contraction import contract, uncontracted
from memplan_cli.ordering.cut_bounds import CutBounds, cut_bound, local_bounds
from memplan_cli.ordering.demand_orders import DEMAND_SCHEDULERS
from memplan_cli.ordering.exact_search import best_first, states_below
from memplan_cli.ordering.list_orders import SCHEDULERS, runtime_default
from memplan_cli.ordering.task_graph import TaskGraph, peak, trace
from memplan_cli.ordering.witnesses import states_witness
from order_graphs import GRAPHS, graph_of, orders

CANDIDATES = {**SCHEDULERS, **DEMAND_SCHEDULERS}


def test_the_runtime_s_default_order_is_depth_first_from_the_last_leaf() -> None:
    # A0 B0 A1 B1 A2 B2 A3 B3 C, as measured in ONNX Runtime 1.31.
    graph = graph_of([[], [0], [], [2], [], [4], [], [6], [1, 3, 5, 7]], [1] * 9)
    assert runtime_default(graph) == [6, 7, 4, 5, 2, 3, 0, 1, 8]


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_respects_every_edge(name: str) -> None:
    for graph in GRAPHS:
        order = CANDIDATES[name](graph)
        assert sorted(order) == list(range(graph.size))
        place = {op: at for at, op in enumerate(order)}
        assert all(place[p] < place[op] for op in order for p in graph.preds[op])


def test_an_order_without_a_witness_says_why() -> None:
    graph = graph_of([[], [0], [1]], [1] * 3)
    above_an_order = states_witness(contract(graph), 3)
    assert (above_an_order.bound, above_an_order.method) == (3, NOT_CHECKABLE)
    assert "no witness of a sensible size" in above_an_order.why


def test_descendants_are_the_ops_that_an_op_s_result_reaches() -> None:
    graph = graph_of([[], [0], [0], [1, 2], [3], []], [1] * 6)
    assert [graph.descendants(op) for op in (0, 2, 4, 5)] == [
        {1, 2, 3, 4},
        {3, 4},
        set(),
        set(),
    ]


def test_a_cut_is_the_least_of_all_orders_at_that_op() -> None:
    for graph in GRAPHS:
        found = orders(graph)
        if len(found) == 3000:
            continue
        cuts = CutBounds(graph)
        least = [10**9] * graph.size
        for order in found:
            steps = trace(graph, order)
            for at, op in enumerate(order):
                least[op] = min(least[op], steps[at])
        assert [cuts.lowest_cut(op, 10**6).bound for op in range(graph.size)] == least
        assert all(a <= b for a, b in zip(local_bounds(graph), least, strict=True))


def test_a_cut_without_work_is_a_bound_all_the_same() -> None:
    for graph in GRAPHS:
        best = min(peak(graph, order) for order in orders(graph))
        assert all(
            CutBounds(graph).lowest_cut(op, 0).bound <= best for op in range(graph.size)
        )
        assert cut_bound(graph, list(range(graph.size))) <= best


def test_contracting_keeps_the_best_peak_and_clusters_expand_to_the_same_peak() -> None:
    shrunk = 0
    for graph in GRAPHS:
        small = contract(graph)
        shrunk += small.graph.size < graph.size
        assert len(small.fusions) == graph.size - small.graph.size
        found = orders(small.graph)
        for order in found[:50]:
            assert peak(small.graph, order) == peak(graph, small.expand(order))
        every = orders(graph)
        if len(every) < 3000:
            assert min(peak(small.graph, o) for o in found) == min(
                peak(graph, o) for o in every
            )
    assert shrunk > 30


def test_what_the_first_op_takes_for_a_moment_is_no_room_for_the_second() -> None:
    # Op 0 also makes a tensor of 10 bytes that nobody reads; op 1 takes 5 for 1.
    graph = TaskGraph(
        preds=((), (0,)),
        succs=((1,), ()),
        defines=((0, 1), (2,)),
        accesses=((0, 1), (0, 2)),
        in_place_inputs=((), ()),
        in_place_bytes=(0, 0),
        step_bytes=(11, 5),
        tensor_bytes=(1, 10, 5),
        access_counts=(2, 1, 2),
        is_result=(False, False, True),
        initial_bytes=0,
    )
    assert contract(graph).members == ((0,), (1,))


def test_what_the_second_op_of_a_cluster_reads_is_not_replaced_by_the_first() -> None:
    # Both read tensor 0, which is live before them, and the second may write over it.
    graph = TaskGraph(
        preds=((), (0,)),
        succs=((1,), ()),
        defines=((1,), (2,)),
        accesses=((0, 1), (0, 1, 2)),
        in_place_inputs=((0,), (0, 1)),
        in_place_bytes=(4, 4),
        step_bytes=(4, 4),
        tensor_bytes=(4, 4, 4),
        access_counts=(2, 2, 2),
        is_result=(False, False, True),
        initial_bytes=4,
    )
    small = contract(graph)
    assert small.members == ((0, 1),)
    assert peak(small.graph, [0]) == peak(graph, [0, 1]) == 8


def test_a_chain_contracts_to_one_cluster() -> None:
    chain = graph_of([[], [0], [1], [2]], [4, 4, 4, 4], in_place=(1, 2, 3))
    assert contract(chain).members == ((0, 1, 2, 3),)


def test_the_exact_search_proves_that_there_is_nothing_below_the_best() -> None:
    for graph in GRAPHS:
        best = min(peak(graph, order) for order in orders(graph))
        found = best_first(graph, 0, best + 1, WorkBudget(10**9))
        assert found.order is not None
        assert peak(graph, found.order) == found.bound == best
        nothing = best_first(graph, 0, best, WorkBudget(10**9))
        assert (nothing.order, nothing.bound) == (None, best)


def test_the_exact_search_does_not_delay_an_op_that_makes_an_unread_tensor() -> None:
    # Op 0 also makes a tensor of 9 bytes that nobody reads: after op 1 it would need 15 in all.
    graph = TaskGraph(
        preds=((), (), (0, 1)),
        succs=((2,), (2,), ()),
        defines=((0, 1), (2,), ()),
        accesses=((0, 1), (2,), (0, 2)),
        in_place_inputs=((), (), ()),
        in_place_bytes=(0, 0, 0),
        step_bytes=(10, 6, 0),
        tensor_bytes=(1, 9, 5),
        access_counts=(2, 1, 2),
        is_result=(False, False, False),
        initial_bytes=0,
    )
    found = best_first(graph, 0, 100, WorkBudget(10**9))
    assert (found.order, found.bound) == ([0, 1, 2], 10)


def test_a_search_that_is_cut_short_gives_no_bound_that_does_not_hold() -> None:
    for graph in GRAPHS:
        best = min(peak(graph, order) for order in orders(graph))
        for work in (0, 5, 20):
            found = best_first(graph, 0, best + 5, WorkBudget(work))
            assert found.bound <= best


def test_a_flow_fills_the_narrowest_cut() -> None:
    network = Network()
    left, right = network.node(), network.node()
    for tail, head, room in (
        (SOURCE, left, 5),
        (SOURCE, right, 4),
        (left, right, 3),
        (left, SINK, 2),
        (right, SINK, 6),
    ):
        network.edge(tail, head, room)
    value, _ = network.flow(1000)
    assert value == 8


def test_parts_of_a_budget_spend_from_the_whole() -> None:
    whole = WorkBudget(100)
    part = whole.part(60)
    part.spend(30)
    assert not part.is_over()
    part.share(0.5).spend(32)
    assert part.is_over()
    assert (part.remaining, whole.remaining) == (-2, 38)
    assert WorkBudget(100, seconds=-1.0).part(50).is_over()
    assert not WorkBudget(100, seconds=600.0).is_over()


def test_without_time_the_best_of_the_simple_orders_is_taken() -> None:
    for graph in GRAPHS:
        found = order_block(graph, WorkBudget(10**6, seconds=-1.0), print)
        simple = [scheduler(graph) for scheduler in SCHEDULERS.values()]
        assert found.peak <= min(peak(graph, order) for order in simple)


def test_no_witness_is_longer_than_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of([[], [], [0], [1], [2, 3]], [9, 9, 1, 1, 1])
    moves = states_below(graph, 11)
    assert moves is not None
    entries = sum(len(move.nodes) + len(move.free) for row in moves[1:] for move in row)
    for limit, needed in (("MOST_STATES", len(moves) - 1), ("MOST_ENTRIES", entries)):
        with monkeypatch.context() as patched:
            patched.setattr(exact_search, limit, needed)
            assert states_below(graph, 11) == moves
            patched.setattr(exact_search, limit, needed - 1)
            assert states_below(graph, 11) is None


def test_a_better_order_of_the_same_name_takes_the_place_of_the_first() -> None:
    graph = graph_of([[], [], [0], [1], [2, 3]], [9, 9, 1, 1, 1])
    found = BlockOrder(graph, 0)
    found.offer("greedy", [0, 1, 2, 3, 4])
    found.offer("greedy", [1, 3, 0, 2, 4])
    assert found.order == [1, 3, 0, 2, 4]
    assert found.peak == found.peaks["greedy"] == 11
    found.offer("demand", [0, 2, 1, 3, 4])
    assert (found.chosen, found.order) == ("demand", [0, 2, 1, 3, 4])


def test_the_best_order_of_clusters_is_kept_beside_that_of_their_ops() -> None:
    graph = graph_of([[], [], [0], [1], [2, 3]], [9, 9, 1, 1, 1])
    found = BlockOrder(graph, 0)
    found.offer("file", [0, 1, 2, 3, 4])
    for order in ([0, 1, 2, 3, 4], [1, 3, 0, 2, 4], [0, 2, 1, 3, 4], [0, 1, 3, 2, 4]):
        found.offer_clusters("any", uncontracted(graph), order)
    assert (found.cluster_peak, found.cluster_order) == (11, [1, 3, 0, 2, 4])
