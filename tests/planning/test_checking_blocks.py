"""A plan file whose tensors leave their bodies, or share across blocks as none may, is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from builders import plan_of_text
from memplan_cli.errors import PlanError
from memplan_cli.planning.plan_file import checked_plan, plan_from_json
from memplan_cli.planning.plan_file_clock import check_blocks
from planning.plan_cases import of, tensor

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

IF = """g (float[8,8] x, bool c) => (float[8,8] z) {
    a = MatMul(x, x)
    [pick] y, k = If (c) <
        then_branch = t () => (float[8,8] r, float[8,8] m) {
            r = MatMul(a, x) m = MatMul(r, x) },
        else_branch = e () => (float[8,8] s, float[8,8] n) {
            u = MatMul(a, x) s = MatMul(u, x) n = MatMul(x, a) }>
    z = MatMul(y, k)
}"""
LOOP = """g (float[8,8] x, bool c, int64 n) => (float[8,8] z) {
    a = MatMul(x, x)
    [turn] y = Loop (n, c, a) <body = b (int64 i, bool d, float[8,8] v)
        => (bool d2, float[8,8] r) { d2 = Not(d) r = MatMul(v, x) }>
    z = MatMul(y, y)
}"""


def moved(plan: Plan, **onto: str) -> dict[str, Any]:
    """Return a plan in which tensors have the bytes of others."""
    data = of(plan)
    for name, other in onto.items():
        owner, target = tensor(data, other), tensor(data, name)
        block = f"{owner['block']}/" if owner["block"] else ""
        target.update(
            alias_of=owner["alias_of"] or f"{block}{other}",
            arena=owner["arena"],
            offset=owner["offset"],
        )
    return data


def refusal(data: dict[str, Any]) -> str:
    """Return what is wrong with a plan whose numbers and clock are not looked at."""
    with pytest.raises(PlanError) as caught:
        check_blocks(plan_from_json(data))
    with pytest.raises(PlanError):
        checked_plan(data)
    return str(caught.value)


def test_branches_share_with_what_their_if_gives() -> None:
    data = of(plan_of_text(IF))
    homes = {t["name"]: t["alias_of"] for t in data["tensors"]}
    assert homes["y"] == homes["s"] == "pick.then_branch/r"
    assert homes["k"] == homes["n"] == "pick.then_branch/m"
    assert homes["r"] is homes["m"] is homes["a"] is homes["u"] is None
    checked_plan(data)


def test_two_results_of_one_branch_for_one_output_are_refused() -> None:
    said = refusal(moved(plan_of_text(IF), m="r", k="y", n="r"))
    assert said == (
        "tensors ['pick.then_branch/r', 'pick.then_branch/m'] share the bytes of what "
        "'pick' gives: no more than one can be that"
    )


def test_what_a_loop_gives_on_the_bytes_of_its_body_is_refused() -> None:
    plan = plan_of_text(LOOP)
    checked_plan(of(plan))
    for inner in ("r", "v"):
        said = refusal(moved(plan, y=inner))
        assert "what 'turn' gives shares the bytes of 'turn.body/" in said
        assert "which its subgraph uses before that is made" in said


@pytest.mark.parametrize("name", ["r", "u"])
def test_a_tensor_that_leaves_its_body_is_refused(name: str) -> None:
    for key, change in (("first", -9), ("last", 9)):
        data = of(plan_of_text(IF))
        found = tensor(data, name)
        found[key] = max(found[key] + change, 0)
        assert "its control-flow node runs from" in refusal(data)


def test_an_output_that_is_there_before_its_branches_end_is_refused() -> None:
    data = of(plan_of_text(IF))
    tensor(data, "y")["first"] -= 1
    assert "what 'pick' gives shares the bytes of 'pick.then_branch/r'" in refusal(data)


def test_the_order_of_the_tensors_in_a_file_decides_nothing() -> None:
    text = LOOP.replace("z = MatMul(y, y)", "w = MatMul(y, y) z = MatMul(w, y)")
    data = moved(plan_of_text(text), y="r", w="r")
    data["tensors"].sort(key=lambda tensor: -tensor["first"])
    assert "what 'turn' gives shares the bytes of 'turn.body/" in refusal(data)


def test_a_view_of_a_capture_in_a_body_is_taken() -> None:
    text = IF.replace("m = MatMul(r, x)", "m = Identity(a)")
    data = of(plan_of_text(text))
    assert tensor(data, "m")["alias_of"] == "a"
    checked_plan(data)


def test_only_results_of_a_branch_are_named_as_those_that_share_with_an_output() -> None:
    text = IF.replace("r = MatMul(a, x) m", "w = MatMul(a, x) r = MatMul(w, x) m")
    data = moved(plan_of_text(text), w="r", m="r", k="y", n="r")
    assert "tensors ['pick.then_branch/r', 'pick.then_branch/m'] share" in refusal(data)
