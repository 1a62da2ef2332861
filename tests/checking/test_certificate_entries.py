"""Whatever stands in a certificate ends in a verdict; models at the edges are shown as well."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from certificate_cases import SAMPLES, Case, case_of, random_case, random_text, write_text
from memplan_cli import Settings
from memplan_cli.checking.certificates.cuts import check_cuts
from memplan_cli.checking.certificates.groups import GroupGraph, NodeGroup
from memplan_cli.checking.certificates.planned_graph import ProofError
from memplan_cli.checking.certificates.search import check_search
from memplan_cli.core.results.certificate import Cut, Dual, Hold, Move, Share
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("entries")
    return {
        "cut": random_case(4, 8, folder),
        "pair": random_case(3, 8, folder),
        "search": random_case(12, 8, folder),
        "types": random_case(4, 8, folder, level=1),
        "step": case_of(SAMPLES / "train_mlp.onnx", Settings(recompute="auto", budget=1.0)),
    }


def places_of(data: object) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a certificate with a key of it; of long lists the first three."""
    items = data.items() if isinstance(data, dict) else enumerate((data or [])[:3])  # type: ignore[index]
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list):
            yield from places_of(value)


@pytest.mark.parametrize("value", [None, 0, 99, -1, "nobody", []])
@pytest.mark.parametrize("name", ["cut", "pair", "search", "types", "step"])
def test_whatever_stands_in_a_certificate_ends_in_a_verdict(
    name: str, value: object, cases: dict[str, Case]
) -> None:
    data = cases[name].certificate
    for holder, key in list(places_of(data)):
        before = holder[key]
        holder[key] = value
        with suppress(PlanError):
            cases[name].verdict(data)
        holder[key] = before
    assert cases[name].verdict().passed


@pytest.mark.parametrize("extra", ["before", "after"])
def test_an_order_with_a_group_that_is_not_there_is_refused(
    extra: str, cases: dict[str, Case]
) -> None:
    data = cases["pair"].certificate
    cut = data["order"]["cuts"][0]
    kept = dict(cut)
    cut[extra] = 99
    assert not cases["pair"].verdict(data).passed
    cut.clear()
    cut.update(kept)


def test_a_pair_with_a_node_that_is_not_there_is_refused(cases: dict[str, Case]) -> None:
    """Both cuts name it, so that they are for both orders of the same two nodes."""
    forged = deepcopy(cases["pair"].certificate)
    cuts = forged["order"]["cuts"]
    other = cuts[0].get("before", cuts[0].get("after"))
    for cut in cuts:
        cut.update({key: 99 for key, said in cut.items() if said == other})
    (part,) = (p for p in cases["pair"].verdict(forged).parts if p.part == "order")
    assert part.reason == "there is no group 99 for a pair"


HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
EDGES = {
    "a first result is left out": (
        "g (float[3, 1, 4] x, float[1, 8, 4] w, float[1, 8, 2] r) => (float[1, 1, 2] y)"
        "{ , h = LSTM <hidden_size = 2> (x, w, r)  y = Relu(h) }"
    ),
    "a constant is made by a node": (
        "g (float[4] x) => (float[4] y) { c = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()"
        "  a = Exp(x)  b = Mul(a, c)  d = Neg(b)  y = Add(d, c) }"
    ),
    "two draw": (
        "g (float[64] x) => (float[64] y) { a = RandomUniformLike(x)  b = RandomNormalLike(x)"
        "  c = Exp(x)  d = Add(a, c)  e = Mul(b, d)  y = Add(e, c) }"
    ),
    "an optional result is not asked for again": (
        "g (float[1, 1, 16] x) => (float[1, 1, 8] y, int64[1, 1, 8] z)"
        "{ a = Exp(x)  b, z = MaxPool <kernel_shape = [2], strides = [2]> (a)  c = Neg(b)"
        "  d = Exp(c)  y = Add(d, b) }"
    ),
}


EXCLUDED = {name: ("h",) if "LSTM" in text else ("a",) for name, text in EDGES.items()}


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("name", EDGES)
def test_the_bounds_of_a_model_at_the_edge_are_shown(
    name: str, level: int, tmp_path: Path
) -> None:
    path = write_text(HEAD + EDGES[name], tmp_path / "edge.onnx")
    for more in ({}, {"exclude": EXCLUDED[name]}, {"recompute": "auto", "budget": 0.8}):
        with suppress(PlanError):
            found = case_of(path, Settings(level=level, **more)).verdict()  # type: ignore[arg-type]
            assert found.passed, (more, found.parts)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_excluded_is_counted_once_at_every_step(seed: int, tmp_path: Path) -> None:
    """It is always there; at levels where nothing shares bytes it could be counted as made too."""
    path = write_text(random_text(seed, 8), tmp_path / "net.onnx")
    for excluded in ("t1", "t2", "t3"):
        case = case_of(path, Settings(level=1, exclude=(excluded,)))
        assert case.verdict().passed
        assert not case.raised("order", 1).verdict().passed


def test_what_is_written_over_what_its_node_reads_is_counted_once(tmp_path: Path) -> None:
    text = (
        "g (float[4] x) => (float[1] y) <int64[1] times = {64}>"
        "{ a = Tile(x, times)  b = Relu(a)  y = ReduceSum(b) }"
    )
    path = write_text(HEAD + text, tmp_path / "net.onnx")
    case = case_of(path, Settings(recompute="auto", budget=1.0))
    assert (case.plan.report.recompute.bound, case.verdict().passed) == (1024, True)
    assert not case.raised("recompute", 1).verdict().passed


def test_a_node_that_takes_no_memory_has_to_run_all_the_same() -> None:
    """A state is none from which nothing goes on while such a node is left."""
    tasks = GroupGraph({0: NodeGroup()}, {}, {}, 8)
    with pytest.raises(ProofError, match="state 1 has no move for 0"):
        check_search(tasks, [[Move((), (), 1)], []], 9)


FULL_SHARES = (Share(0, 2, 8), Share(1, 3, 6))
"""All bytes of both tensors of `chain_beside_a_step`."""


def chain_beside_a_step() -> GroupGraph:
    """Return group 0 between 1 and 3; 1 makes ``a`` for 2, which makes ``b`` for 3."""
    groups = {
        0: NodeGroup(predecessors={1}, successors={3}),
        1: NodeGroup(successors={0, 2}, produced={"a"}, used={"a"}, need=8),
        2: NodeGroup(
            predecessors={1}, successors={3}, produced={"b"}, used={"a", "b"}, need=6
        ),
        3: NodeGroup(predecessors={0, 2}, used={"b"}),
    }
    return GroupGraph(groups, {"a": 8, "b": 6}, {"a": {1, 2}, "b": {2, 3}}, 0)


def test_a_step_needs_the_smaller_tensor_of_a_chain_beside_it() -> None:
    cut = Cut(0, (Dual(FULL_SHARES, ()),))
    check_cuts(chain_beside_a_step(), [cut], ["a", "b"], 6)
    with pytest.raises(ProofError, match="6 bytes only"):
        check_cuts(chain_beside_a_step(), [cut], ["a", "b"], 7)


@pytest.mark.parametrize(
    ("dual", "reason"),
    [
        (Dual((Share(-1, 3, 6),), ()), "no tensor -1"),
        (Dual((*FULL_SHARES, Share(0, 2, -2)), ()), "a share of -2 bytes"),
        (Dual(FULL_SHARES, (Hold(1, 2, -2),)), "a multiple of -2 bytes"),
    ],
    ids=["index", "share", "multiple"],
)
def test_a_cut_has_no_negative_numbers(dual: Dual, reason: str) -> None:
    with pytest.raises(ProofError, match=reason):
        check_cuts(chain_beside_a_step(), [Cut(0, (dual,))], ["a", "b"], 1)


@pytest.mark.parametrize("of", ["plan_sha256", "graph_sha256"])
def test_a_certificate_of_another_plan_bounds_nothing(of: str, cases: dict[str, Case]) -> None:
    forged = {**cases["cut"].certificate, of: "0" * 64}
    (part,) = cases["cut"].verdict(forged).parts
    assert (part.part, part.bound) == ("certificate", 0)


@pytest.mark.parametrize("change", [lambda nodes: nodes[:-1], lambda nodes: (*nodes, "#0")])
def test_a_plan_with_another_number_of_nodes_than_the_model_is_refused(
    change: Callable[[Sequence[str]], Sequence[str]],
) -> None:
    case = case_of(SAMPLES / "branchy_cnn.onnx")
    main, *others = case.plan.order
    order = (replace(main, nodes=change(main.nodes)), *others)
    verdict = replace(case, plan=replace(case.plan, order=order)).verdict()
    assert "the plan's order has" in verdict.parts[0].reason
