"""Packed weights of subgraphs become the main graph's wherever that changes no value read."""

from __future__ import annotations

import random
import sys
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from memplan_cli.onnx_io.traversal import defined, graphs, subgraphs
from memplan_cli.onnx_io.weights.prepacked import hoist_packed
from nested.models import random_model
from reproductions import reproduce

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from onnx import GraphProto, NodeProto, ValueInfoProto

PACKED = {"prepacked_0": "MatMul+1|4096;16;0"}


def weight(name: str, place: int = 0, packed: Mapping[str, str] = PACKED) -> TensorProto:
    """Return a weight that lies at a place of a file, as its kernel has packed it too."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2, 2])
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "m.data", "offset": str(place), "length": "16", **packed}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def body(name: str, *weights: TensorProto, nodes: tuple[NodeProto, ...] = ()) -> GraphProto:
    """Return a branch that multiplies by its first weight."""
    made = value(f"{name}_y")
    product = helper.make_node("MatMul", ["x", weights[0].name], [made.name])
    return helper.make_graph([product, *nodes], name, [], [made], weights)


def value(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2])


def branching(name: str, one: GraphProto, other: GraphProto) -> NodeProto:
    return helper.make_node("If", ["go"], [name], then_branch=one, else_branch=other)


def model(*nodes: NodeProto, weights: tuple[TensorProto, ...] = ()) -> ModelProto:
    go = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    results = [value(nodes[-1].output[0])]
    graph = helper.make_graph(nodes, "main", [value("x"), go], results, weights)
    return helper.make_model(graph)


def weights_of(graph: GraphProto) -> list[str]:
    return [tensor.name for tensor in graph.initializer]


def inner(given: ModelProto) -> list[GraphProto]:
    return [graph for node in given.graph.node for _, graph in subgraphs(node)]


def test_packed_weights_of_a_subgraph_move_to_the_main_graph() -> None:
    given = model(branching("y", body("a", weight("w")), body("b", weight("v", 16))))
    before = deepcopy(given)
    assert set(hoist_packed(given)) == {"v", "w"}
    assert sorted(weights_of(given.graph)) == ["v", "w"]
    assert [list(map(str, g.node)) for g in inner(given)] == [
        list(map(str, g.node)) for g in inner(before)
    ]
    assert [weights_of(graph) for graph in inner(given)] == [[], []]
    (moved,) = (t for t in given.graph.initializer if t.name == "w")
    assert moved == weight("w")


def test_unpacked_weights_stay() -> None:
    given = model(branching("y", body("a", weight("w", packed={})), body("b", weight("v"))))
    assert hoist_packed(given) == ("v",)


def test_weights_of_a_nested_subgraph_stay() -> None:
    below = branching("c", body("a", weight("w")), body("b", weight("v")))
    given = model(
        branching("y", body("o", weight("u"), nodes=(below,)), body("e", weight("f")))
    )
    assert set(hoist_packed(given)) == {"u", "f"}


def test_weights_that_a_nested_subgraph_reads_stay() -> None:
    reader = body("b", weight("w"))
    del reader.initializer[:]
    below = branching("c", body("a", weight("n")), reader)
    given = model(
        branching("y", body("o", weight("w"), nodes=(below,)), body("e", weight("f")))
    )
    assert hoist_packed(given) == ("f",)


def test_weights_with_one_name_in_two_subgraphs_stay() -> None:
    given = model(branching("y", body("a", weight("w")), body("b", weight("w", 16))))
    before = given.SerializeToString()
    assert hoist_packed(given) == ()
    assert given.SerializeToString() == before


@pytest.mark.parametrize("outer", ["weight", "value"])
def test_weights_that_shadow_an_outer_value_stay(outer: str) -> None:
    choice = branching("y", body("a", weight("w")), body("b", weight("v", 16)))
    before = (helper.make_node("Neg", ["x"], ["w"]),) if outer == "value" else ()
    has = (weight("w", 32),) if outer == "weight" else ()
    assert hoist_packed(model(*before, choice, weights=has)) == ("v",)


def test_weights_that_a_subgraph_returns_stay() -> None:
    giving = helper.make_graph([], "a", [], [value("w")], [weight("w")])
    assert hoist_packed(model(branching("y", giving, body("b", weight("v"))))) == ("v",)


def test_weights_of_the_main_graph_do_not_change() -> None:
    one, other = body("a", weight("w")), body("b", weight("w"))
    del one.initializer[:], other.initializer[:]
    given = model(branching("y", one, other), weights=(weight("w"),))
    assert hoist_packed(given) == ()
    assert weights_of(given.graph) == ["w"]


def read(graph: GraphProto, scope: dict[str, object]) -> Iterator[object]:
    """Yield what each node and each graph reads, in whatever graph a name is defined."""
    own = {tensor.name: tensor.external_data[1].value for tensor in graph.initializer}
    made = {name: f"made in {graph.name}" for name in defined(graph) if name not in own}
    scope = {**scope, **made, **own}
    for node in graph.node:
        yield [scope.get(name) for name in node.input]
        for _, below in subgraphs(node):
            yield from read(below, scope)
    yield [scope.get(output.name) for output in graph.output]


def fill(graph: GraphProto, seen: set[str], rng: random.Random) -> None:
    """Give a graph and those below it weights with names of four, and nodes that read them."""
    names = ["w0", "w1", "w2", "w3"]
    graph.name = f"g{rng.random()}"
    for name in rng.sample(names, rng.choice((0, 1, 1, 2))):
        packed = rng.choice(({}, PACKED, PACKED))
        graph.initializer.append(weight(name, rng.randrange(10**9), packed))
    seen = seen | set(weights_of(graph))
    for node in graph.node:
        for _, below in subgraphs(node):
            fill(below, seen, rng)
    for name in rng.sample(sorted(seen), min(2, len(seen))):
        graph.node.append(helper.make_node("Neg", [name], [f"{name}_{graph.name}"]))
    if graph.initializer and rng.random() < 0.2:
        graph.output.append(value(graph.initializer[0].name))


def places(model: ModelProto) -> list[str]:
    return sorted(t.external_data[1].value for g in graphs(model.graph) for t in g.initializer)


@given(st.integers(0, 400))
def test_every_node_of_a_nested_model_reads_what_it_read(seed: int) -> None:
    drawn = random_model(seed)
    del drawn.graph.initializer[:]
    fill(drawn.graph, set(), random.Random(seed))
    before, had = [*read(drawn.graph, {})], places(drawn)
    assert set(hoist_packed(drawn)) <= set(weights_of(drawn.graph))
    assert [*read(drawn.graph, {})] == before
    assert places(drawn) == had


@pytest.mark.skipif(sys.platform != "linux", reason="the highest resident size is Linux's")
def test_the_reproduction_shows_that_a_loop_holds_what_it_packs(tmp_path: Path) -> None:
    done = reproduce("weights_of_subgraphs.py", tmp_path)
    assert done.returncode == 0, done.stderr
    main, loop = (int(line.split()[-2]) for line in done.stdout.splitlines())
    if loop < main + 20:
        pytest.skip("this runtime gives weights of subgraphs back one by one")
    assert loop - main >= 40
