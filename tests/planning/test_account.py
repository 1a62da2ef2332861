"""A report's numbers where some are not known, assumed, padded, or taken out of a plan file."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from builders import plan_of_text
from memplan_cli.core.bindings import Inputs
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import PlanError
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.plan import Plan

    Data = dict[str, Any]

TEXT = """g (float[8,8] x) => (float[8,8] z) {
    a = MatMul(x, x) b = Exp(a) d = MatMul(b, b) e = MatMul(d, b) z = MatMul(e, d)
}"""
TWO = TEXT.replace("8,8", "n,m").replace("MatMul", "Add")
TINY = """g (int8[1] x) => (int8[1] y) {
    a = Neg(x) b = Neg(x) c = Neg(x) d = Neg(x) e = Add(a, b) f = Add(c, d) h = Add(e, f)
    y = Add(h, x)
}"""
LARGE_AT_ITS_START = """g (float[64,64] x, bool c) => (float y) {
    [grow] a = Neg(x)
    [pick] b = If (c) <then_branch = t () => (float p) { p = ReduceSum <keepdims = 0> (a) },
                       else_branch = s () => (float q) { q = ReduceMax <keepdims = 0> (a) }>
    y = Neg(b)
}"""


def data_of(plan: Plan) -> Data:
    found: Data = json.loads(plan.dumps())
    return found


def test_a_number_that_is_assumed_for_a_dim_counts_where_no_bounds_do() -> None:
    settings = Settings(bounds={"n": DimRange(1, 8)}, inputs=Inputs(assumed={"n": 3, "m": 8}))
    found = plan_of_text(TWO, settings).report.memory
    whole = plan_of_text(TEXT.replace("MatMul", "Add")).report.memory
    assert found.naive == whole.naive
    assert found.live_peak == whole.live_peak


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a) y = Exp(b) }", True),
        ("g (float[4] x) => (float[n] y) { a = Exp(x) b = Neg(a) y = local.F(b) }", False),
        ("g (float[n] x) => (float y) { a = Exp(x) b = Neg(a) y = ReduceSum <keepdims=0> (b) }",
         False),
    ],
)  # fmt: skip
def test_what_a_runtime_holds_is_known_where_all_of_it_is(text: str, *, known: bool) -> None:
    memory = plan_of_text(text, Settings(allow_partial=True)).report.memory
    assert (memory.resident is not None) == known


@pytest.mark.parametrize("alignment", [1, 2, 64])
def test_an_alignment_pads_each_tensor_by_less_than_itself(alignment: int) -> None:
    for level in (0, 1, 2):
        plan = plan_of_text(TINY, Settings(level=level, alignment=alignment, order="keep"))
        checked_plan(data_of(plan))


def test_an_alignment_hides_no_more_than_it_pads() -> None:
    data = data_of(plan_of_text(TINY, Settings(alignment=64, order="keep")))
    most = data["report"]["memory"]["naive"] + 63 * len(data["tensors"])
    data["report"]["levels"]["0"] = most
    checked_plan(data)
    data["report"]["levels"]["0"] = most + 1
    with pytest.raises(PlanError, match="the bytes of level 0"):
        checked_plan(data)


def test_a_peak_at_the_first_tick_of_a_node_with_subgraphs_is_believed() -> None:
    plan = plan_of_text(LARGE_AT_ITS_START, Settings(order="keep"))
    checked_plan(data_of(plan))


def places_of(data: object) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a plan file with each key of it."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield data, key
            yield from places_of(value)
    elif isinstance(data, list):
        for at, value in enumerate(data):
            yield data, at
            yield from places_of(value)


@pytest.mark.parametrize("value", [None, 0, -1, 2**70, "", "x", [], {}, True, 0.5])
def test_whatever_stands_in_a_plan_file_is_read_or_refused(value: object) -> None:
    """No entry, wherever it is and whatever it says, ends in another error."""
    data = data_of(plan_of_text(TEXT, Settings(bounds={"k": DimRange(1, 2)}, alignment=32)))
    for holder, key in list(places_of(data)):
        before = holder[key]
        holder[key] = value
        with suppress(PlanError):
            checked_plan(json.loads(json.dumps(data)))
        holder[key] = before
