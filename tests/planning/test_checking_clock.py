"""A plan file whose order, lives, releases and peak are not those of one clock is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import parse, plan_of_text, plan_program
from memplan_cli.errors import PlanError
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.settings.settings import Settings
from planning.plan_cases import LEVEL2, PLANS, of

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[dict[str, Any]], object]

UNNAMED = """g (float[8,8] x) => (float[8,8] z) {
    a = MatMul(x, x) [twin] b = Exp(a) [twin] d = MatMul(b, b) z = MatMul(d, d)
}"""


def refusal(change: Change, data: dict[str, Any] | None = None) -> str:
    data = data or of(LEVEL2)
    checked_plan(data)
    change(data)
    with pytest.raises(PlanError) as caught:
        checked_plan(data)
    return str(caught.value)


def test_a_name_that_two_nodes_have_may_be_the_index_of_another() -> None:
    model = parse("""g (float[8] x) => (float[8] y) {
        a = Relu(x) b = Exp(a) c = Neg(b) d = Relu(c) y = Exp(d) }""")
    model.graph.node[3].name = model.graph.node[4].name = "2"
    plan = plan_program(read_program(model).program, Settings())
    assert checked_plan(of(plan)).digest == plan.digest


def test_every_plan_of_ours_is_taken() -> None:
    for plan in (*PLANS, plan_of_text(UNNAMED), plan_of_text(UNNAMED, Settings(level=0))):
        assert checked_plan(of(plan)).digest == plan.digest


def test_an_order_that_runs_backwards_is_refused() -> None:
    said = refusal(lambda data: data["order"][0]["nodes"].reverse())
    assert "is recorded" in said
    turned = refusal(
        lambda data: data["order"][0]["nodes"].reverse(), of(plan_of_text(UNNAMED))
    )
    assert "releases: 'MatMul#0' is recorded to end at step 0" not in turned
    assert "releases: " in turned


def test_an_order_with_something_twice_is_refused() -> None:
    def change(data: dict[str, Any]) -> None:
        data["order"].append(data["order"][0])
        data["report"]["model"].update(blocks=4, nodes=16)
        data["report"]["phases"]["forward"] = 14

    assert "block '' twice" in refusal(change)
    assert "twice" in refusal(
        lambda data: (
            data["order"][0]["nodes"].append("pick")
            or data["report"]["model"].update(nodes=10)
            or data["report"].update(phases={})
        )
    )


def test_an_order_with_a_block_of_no_node_is_refused() -> None:
    def change(data: dict[str, Any]) -> None:
        data["order"].append({"block": "nobody.body", "nodes": ["n"]})
        data["report"]["model"]["nodes"] += 1
        data["report"]["model"]["blocks"] += 1

    assert "the order has 10 nodes, and 9 of them are reached" in refusal(change)


def test_a_life_behind_the_end_of_the_order_is_refused() -> None:
    def change(data: dict[str, Any]) -> None:
        for each in data["tensors"]:
            each["last"] = 99 if each["pinned"] else each["last"]

    assert "is live until tick 99" in refusal(change)


def moved(name: str, by: int) -> Change:
    """Let go of a tensor at another release."""

    def change(data: dict[str, Any]) -> None:
        releases = data["releases"]
        at = next(i for i, r in enumerate(releases) if name in r["tensors"])
        releases[at]["tensors"].remove(name)
        releases[at + by]["tensors"].append(name)

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (moved("d", -1), "releases: tensor 'd' is let go at step"),
        (moved("a", 1), "releases: tensor 'a' is let go at step"),
        (lambda data: data["releases"].pop(0), "releases: tensor 'a' is never let go"),
        (lambda data: data["releases"].append(data["releases"][-1]), "too late, or twice"),
        (lambda data: data["releases"].reverse(), "too late, or twice"),
        (
            lambda data: data["releases"][0].update(node="Neg#0"),
            "'Neg#0' is recorded to end at step 1",
        ),
        (lambda data: data["releases"][0].update(step=98), "the order says that none does"),
        (lambda data: data["releases"][0]["tensors"].append("f"), "'f' is pinned, or not"),
        (lambda data: data["releases"][0]["tensors"].append("x"), "'x' is pinned, or not"),
        (lambda data: data["releases"][1]["tensors"].append("a"), "'a' occurs twice"),
    ],
)
def test_a_release_where_nothing_dies_is_refused(change: Change, named: str) -> None:
    assert named in refusal(change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda peak: peak.update(step=0), "peak.step is recorded as 0"),
        (lambda peak: peak.update(node="Neg#0"), "peak is recorded at 'Neg#0'"),
        (lambda peak: peak["tensors"].pop(), "peak.tensors is recorded as"),
        (lambda peak: peak["tensors"][0].update(bytes=1), "peak.tensors is recorded as"),
        (lambda peak: peak["tensors"][0].update(name="z"), "peak.tensors is recorded as"),
    ],
)
def test_a_peak_that_is_elsewhere_is_refused(change: Change, named: str) -> None:
    assert named in refusal(lambda data: change(data["report"]["peak"]))


def test_a_peak_that_is_missing_or_of_no_known_bytes_is_refused() -> None:
    assert "peak.step is recorded as nothing" in refusal(
        lambda data: data["report"].update(peak=None)
    )
    symbolic = of(plan_of_text(UNNAMED.replace("8,8", "n,n")))
    peak = {"step": 0, "node": "", "tensors": []}
    said = refusal(lambda data: data["report"].update(peak=peak), symbolic)
    assert "the peak of bytes that are not known" in said


def test_blocks_that_are_nested_too_deeply_are_refused_in_words() -> None:
    data = of(LEVEL2)
    path = ""
    for _ in range(3000):
        data["order"].append(
            {"block": (path := f"{path}/n.b" if path else "pick.b"), "nodes": ["n"]}
        )
    data["report"]["model"]["nodes"] += 3000
    data["report"]["model"]["blocks"] += 3000
    with pytest.raises(PlanError):
        checked_plan(data)


@settings(max_examples=24, deadline=None)
@given(st.permutations(range(len(LEVEL2.order[0].nodes))))
def test_any_other_order_of_the_nodes_is_refused_unless_it_frees_the_same(
    places: list[int],
) -> None:
    data = of(LEVEL2)
    nodes = data["order"][0]["nodes"]
    data["order"][0]["nodes"] = [nodes[at] for at in places]
    freeing = {release["node"] for release in data["releases"]}
    try:
        checked_plan(data)
    except PlanError:
        assert places != sorted(places)
        return
    assert [n for n in data["order"][0]["nodes"] if n in freeing] == [
        n for n in nodes if n in freeing
    ]
