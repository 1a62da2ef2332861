"""From blocks to integers: what ops with bodies take, and who may replace whom."""

from dataclasses import replace

import builders
from memplan_cli.analysis.aliasing import SHARE_SAFELY
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.ordering.best_order import best_order
from memplan_cli.ordering.block_graph import (
    StorageFacts,
    SubgraphMemory,
    chosen_step_bytes,
    least_step_bytes,
    storage_facts,
    task_graph,
)
from memplan_cli.ordering.records import PlannedVars

NOBODY = Block((), (), ())


def facts_of(**sizes: Size) -> StorageFacts:
    numbers = {VarId(name): size.coefficient for name, size in sizes.items()}
    roots = {var: var for var in numbers}
    return StorageFacts(
        roots, {VarId(n): s for n, s in sizes.items()}, numbers, SHARE_SAFELY, 0
    )


def test_what_a_subgraph_gives_is_live_while_the_next_one_runs() -> None:
    branch = Op("if", "If", (), (VarId("y"),), (NOBODY, NOBODY))
    bodies = [SubgraphMemory(0, 5, 3, 5), SubgraphMemory(0, 4, 2, 4)]
    assert chosen_step_bytes(branch, facts_of(y=Size(1)), bodies) == 3 + 4
    assert chosen_step_bytes(branch, facts_of(y=Size(9)), bodies) == 3 + 2 + 9


def test_a_loop_s_results_and_inputs_live_while_it_runs() -> None:
    loop = Op("loop", "Loop", (), (VarId("y"),), (NOBODY,))
    assert (
        chosen_step_bytes(loop, facts_of(y=Size(7)), [SubgraphMemory(2, 5, 3, 4)]) == 2 + 5 + 7
    )
    assert (
        least_step_bytes(loop, facts_of(y=Size(7)), [SubgraphMemory(2, 5, 3, 4)]) == 2 + 4 + 7
    )


def test_nothing_is_sure_of_what_a_branch_takes() -> None:
    branch = Op("if", "If", (), (VarId("y"),), (NOBODY, NOBODY))
    assert least_step_bytes(branch, facts_of(y=Size(7)), [SubgraphMemory(0, 5, 3, 5)]) == 0


def block_of(*ops: Op, results: tuple[str, ...]) -> Block:
    return Block((VarId("x"),), tuple(map(VarId, results)), ops)


def op(index: int, kind: str, read: str, made: str) -> Op:
    return Op(f"n{index}", kind, (VarId(read),), (VarId(made),), source=index)


def test_only_equal_sizes_replace_one_another_whatever_the_sample() -> None:
    block = block_of(
        op(0, "Conv", "x", "a"), op(1, "Relu", "a", "b"), op(2, "Relu", "b", "c"), results=()
    )
    facts = facts_of(a=Size(1, ("m",)), b=Size(1, ("n",)), c=Size(1, ("n",)))
    assert task_graph(block, facts, {}).in_place_inputs == ((), (), (1,))


def test_what_outlives_the_block_is_never_replaced() -> None:
    block = block_of(op(0, "Conv", "x", "a"), op(1, "Relu", "a", "b"), results=("a", "b"))
    graph = task_graph(block, facts_of(a=Size(4), b=Size(4)), {})
    assert graph.is_result == (True, True)
    assert graph.in_place_inputs == ((), ())


def test_views_are_one_tensor_with_what_they_show() -> None:
    block = block_of(
        op(0, "Conv", "x", "a"),
        op(1, "Reshape", "a", "v"),
        op(2, "Conv", "v", "y"),
        results=("y",),
    )
    names = ("x", "a", "v", "y")
    vars_ = {VarId(n): Var(VarId(n), "uint8", None, Origin.OP) for n in names}
    sizes = {VarId("a"): Size(4), VarId("v"): Size(4)}
    numbers = {VarId("a"): 4, VarId("v"): 4}
    facts = storage_facts(Program("p", block, vars_), PlannedVars(sizes), numbers)
    graph = task_graph(block, facts, {})
    assert graph.defines == ((0,), (), ())
    assert graph.accesses == ((0,), (0,), (0,))
    assert graph.access_counts == (3,)


def test_an_input_read_twice_is_replaced_once_and_only_where_both_places_may_be() -> None:
    made = [op(at, "Conv", "x", name) for at, name in enumerate("ab")]
    vars_ = [VarId(name) for name in "aba"]
    sizes = dict.fromkeys("abyz", Size(4))
    for kind, inputs, replaced in (
        ("Add", vars_[:1] * 2, (0,)),
        ("Add", vars_[:2], (0, 1)),
        ("Sum", vars_, (1,)),  # reads a once more, after its first write
    ):
        reader = Op("n2", kind, tuple(inputs), (VarId("y"),), source=2)
        graph = task_graph(block_of(*made, reader, results=()), facts_of(**sizes), {})
        assert graph.in_place_inputs[2] == replaced, (kind, inputs)


def test_what_two_inputs_show_is_replaced_by_neither() -> None:
    block = block_of(
        op(0, "Conv", "x", "a"),
        op(1, "Reshape", "a", "v"),
        Op("n2", "Add", (VarId("a"), VarId("v")), (VarId("y"),), source=2),
        results=(),
    )
    facts = replace(
        facts_of(a=Size(4), v=Size(4), y=Size(4)),
        roots={VarId("a"): VarId("a"), VarId("v"): VarId("a"), VarId("y"): VarId("y")},
    )
    assert task_graph(block, facts, {}).in_place_inputs == ((), (), ())


def test_a_branch_s_result_is_counted_once_with_the_output() -> None:
    """The peak of an If whose branches share bytes with its output is measured."""
    then = builders.block("", "r", builders.op("t <- x"), builders.op("r <- t"))
    other = builders.block("", "s", builders.op("u <- x"), builders.op("s <- u"))
    choice = builders.op("y <- x", then, other, kind="If")
    top = builders.block("x", "z", choice, builders.op("z <- y"))
    tested = builders.program(top, sizes={"t": 5, "u": 6, "r": 20, "s": 20, "y": 20})
    sizes = builders.var_sizes(tested)
    found = best_order(tested, sizes)
    assert found.peaks[found.chosen] == live_peak(tested, sizes) == 26


def test_an_order_counts_on_what_the_runtimes_own_operators_write_in_place() -> None:
    own = "com.microsoft.nchwc"
    made = builders.program(
        builders.block(
            "x",
            "z",
            builders.op("short <- x"),
            builders.op("wide <- x"),
            builders.op("thin <- wide"),
            builders.op("sum <- thin short", kind="Conv", domain=own),
            builders.op("z <- sum"),
        ),
        sizes={"x": 1, "short": 4, "wide": 6, "thin": 1, "sum": 4, "z": 1},
    )
    sizes = builders.var_sizes(made)
    summed = replace(SHARE_SAFELY, in_place={f"{own}.Conv": (1,)})
    for aliasing, least in ((SHARE_SAFELY, 9), (summed, 7)):
        best = best_order(made, sizes, aliasing=aliasing)
        assert (best.peaks[best.chosen], best.proved) == (least, True)
        assert live_peak(best.program, sizes, aliasing=aliasing) == least


def test_a_planned_input_that_dies_before_an_if_is_not_counted_beside_its_branches() -> None:
    then = builders.block("", "r", builders.op("t <- a"), builders.op("r <- t"))
    other = builders.block("", "s", builders.op("s <- a"))
    top = builders.block(
        "x",
        "z",
        builders.op("a <- x"),
        builders.op("y <- a", then, other, kind="If"),
        builders.op("z <- y"),
    )
    tested = builders.program(top, sizes={"x": 100, "a": 1, "t": 10, "r": 1, "s": 1, "y": 1})
    sizes = {**builders.var_sizes(tested), VarId("x"): Size(100)}
    found = best_order(tested, sizes)
    assert live_peak(tested, sizes) == 101
    assert (found.bound, found.proved) == (101, True)
