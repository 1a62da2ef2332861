"""The check of donated inputs against graphs that are run, one storage for both of a pair."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from memplan_cli.checking.sharing import check_donation
from memplan_cli.checking.timeline import build_timeline

if TYPE_CHECKING:
    from onnx import GraphProto

VIEWS, IN_PLACE, APART = ("Reshape", "Identity"), ("Relu", "Add"), ("MatMul", "Transpose")
Step = tuple[str, int, int]
"""An operator, and the places of its inputs among what is there by then."""

GRAPHS = st.lists(
    st.tuples(
        st.sampled_from((*VIEWS, *IN_PLACE, *APART)), st.integers(0, 9), st.integers(0, 9)
    ),
    min_size=1,
    max_size=7,
)


def graph_of(steps: list[Step]) -> GraphProto:
    """Return a graph of two inputs, whose nodes all give a square; the last two are results."""
    there = ["x", "z"]
    nodes = []
    for at, (kind, first, second) in enumerate(steps):
        inputs = [there[first % len(there)]]
        if kind in ("Add", "MatMul"):
            inputs.append(there[second % len(there)])
        if kind == "Reshape":
            inputs.append("shape")
        nodes.append(helper.make_node(kind, inputs, [f"t{at}"], f"n{at}"))
        there.append(f"t{at}")
    values = [helper.make_tensor_value_info(n, 1, [4, 4]) for n in ("x", "z", *there[-2:])]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [4, 4])
    results = [value for value in values[2:] if value.name.startswith("t")]
    return helper.make_graph(nodes, "g", values[:2], results, [shape])


def subject(graph: GraphProto, pair: tuple[str, str]) -> Any:  # noqa: ANN401 - a part of one
    report = SimpleNamespace(donated=SimpleNamespace(pairs=(pair,)))
    return SimpleNamespace(
        timeline=build_timeline(graph),
        plan=SimpleNamespace(report=report),
        type_of=lambda _: ("float32", (4, 4)),
    )


def is_safe(graph: GraphProto, given_name: str, made: str) -> bool:
    """Run a graph: a result takes the input's storage when its node writes it."""
    storage = {value.name: value.name for value in graph.input}
    holds = {"x": "x", "z": "z"}
    written = False
    for node in graph.node:
        read = [name for name in node.input if name != "shape"]
        if written and any(storage[name] == given_name for name in read):
            return False
        (name,) = node.output
        if name == made:
            on_it = [place for place, each in enumerate(read) if storage[each] == given_name]
            direct = all(read[place] == given_name for place in on_it)
            if on_it and not (direct and node.op_type in IN_PLACE):
                return False
            written = True
            storage[name] = name
        else:
            storage[name] = storage[read[0]] if node.op_type in VIEWS else name
        holds[name] = storage[name]
    results = [value.name for value in graph.output if value.name != made]
    return all(holds[name] != given_name for name in results)


@example(steps=[("Identity", 0, 0), ("Identity", 2, 0), ("Relu", 1, 0), ("Add", 3, 1)])
@example(steps=[("Reshape", 0, 0), ("Add", 0, 2)])
@example(steps=[("Relu", 1, 0), ("Identity", 0, 0)])
@given(steps=GRAPHS)
def test_a_pair_is_allowed_exactly_where_a_run_never_misses_the_input(
    steps: list[Step],
) -> None:
    graph = graph_of(steps)
    for result in graph.output:
        for name in ("x", "z"):
            found = list(check_donation(subject(graph, (name, result.name))))
            assert (found == []) == is_safe(graph, name, result.name), (name, found)


def test_a_branch_may_still_read_what_is_donated() -> None:
    """A subgraph reads what is around it without an input of its node that says so."""
    late = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])],
        "b",
        [],
        [helper.make_tensor_value_info("b", 1, [4])],
    )
    nodes = [
        helper.make_node("Relu", ["z"], ["y"], "first"),
        helper.make_node("If", ["c"], ["r"], "choice", then_branch=late, else_branch=late),
    ]
    given = [helper.make_tensor_value_info(n, 1, [4]) for n in ("x", "z")]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    results = [helper.make_tensor_value_info(n, 1, [4]) for n in ("y", "r")]
    graph = helper.make_graph(nodes, "g", [*given, condition], results)
    assert "'choice' needs the input after the output is written" in next(
        check_donation(subject(graph, ("x", "y")))
    )
    assert list(check_donation(subject(graph, ("z", "y")))) == []
    assert "'choice' needs the input after the output is written" in next(
        check_donation(subject(graph, ("x", "r")))
    )


def test_a_pair_with_an_unknown_name_is_refused() -> None:
    graph = graph_of([("Relu", 0, 0), ("Relu", 1, 0)])
    for pair in (("x", "nobody"), ("nobody", "t1"), ("x", "x")):
        assert "the model has no such input" in next(check_donation(subject(graph, pair)))


def test_a_view_without_a_result_shows_nothing() -> None:
    graph = graph_of([("Relu", 0, 0), ("Relu", 1, 0)])
    graph.node.insert(0, helper.make_node("Identity", ["x"], []))
    assert list(check_donation(subject(graph, ("x", "t0")))) == []
