"""What can be let go after each node: the ancestor's ``release_memory``."""

from __future__ import annotations

from builders import block, ids, op, plan_of_text, plan_program, program
from memplan_cli.analysis.liveness import Timeline
from memplan_cli.planning.record import releases
from memplan_cli.settings.settings import Settings

CHAIN = "g (float[4] x) => (float[4] z) { a = MatMul(x, x) b = Exp(a) z = Neg(b) }"


def test_each_planned_tensor_is_released_once_after_its_last_reader() -> None:
    made = program(block("x", "z", op("a <- x"), op("b <- a"), op("c <- a b"), op("z <- c")))
    got = releases(Timeline(made), set(ids("a b c")))
    assert [(r.step, r.node, r.tensors) for r in got] == [
        (2, "c", ("a", "b")),
        (3, "z", ("c",)),
    ]


def test_unplanned_vars_have_no_release() -> None:
    made = program(block("x", "z", op("a <- x"), op("z <- a")))
    assert releases(Timeline(made), set()) == ()


def test_a_capture_is_released_behind_the_branches_whichever_was_taken() -> None:
    branches = block("", "a", op("a <- w")), block("", "b", op("b <- x"))
    made = program(block("c x", "y", op("w <- x"), op("y <- c", *branches, kind="If")))
    assert [
        (r.step, r.node, r.tensors) for r in releases(Timeline(made), set(ids("w a b")))
    ] == [(4, "y", ("w",))]


def test_an_excluded_tensor_is_never_released() -> None:
    """The ancestor kept what its skip set names; whoever excludes wants to read it."""
    plan = plan_of_text(CHAIN, Settings(exclude=("a",)))
    assert [r.tensors for r in plan.releases] == [("b",)]


def test_a_plan_says_its_releases_by_the_tensors_names() -> None:
    assert [r.tensors for r in plan_of_text(CHAIN).releases] == [("a",), ("b",)]


def test_live_bytes_under_eager_release_never_pass_the_plans_peak_of_this_order() -> None:
    made = program(
        block("x", "z", op("a <- x"), op("b <- a"), op("c <- b"), op("z <- c")),
        sizes={"a": 5, "b": 7, "c": 2},
    )
    plan = plan_program(made, Settings(level=1, order="keep"))
    live, held = [], 0
    gone = {r.step: r.tensors for r in plan.releases}
    for step in range(4):
        held += sum(t.bytes for t in plan.tensors if t.first == step)
        live.append(held)
        held -= sum(plan.by_id[name].bytes for name in gone.get(step, ()))
    assert max(live) == plan.report.memory.live_peak == 12
    assert held == 0
