"""Orders for a runtime are searched again from what was found, for as long as that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builders import block, op, program, var_sizes
from memplan_cli.analysis.aliasing import SHARE_NOTHING
from memplan_cli.analysis.phase import Phases
from memplan_cli.ordering import best_order as order
from memplan_cli.ordering.best_order import best_order
from memplan_cli.ordering.records import Ordering, PlannedVars
from memplan_cli.planning.candidate import Candidate, PlanningTask, Runtime
from memplan_cli.planning.candidates import for_runtime
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.program import Program

BRANCHES = program(
    block(
        "x",
        "y",
        *(op(f"{name} <- x") for name in ("a", "b", "c")),
        *(op(f"{name}{name} <- {name}") for name in ("a", "b", "c")),
        op("y <- aa bb cc"),
    ),
    sizes={"a": 1000, "b": 1000, "c": 1000},
)
"""Three branches side by side, where one after the other needs a third."""


def _step_by_step(calls: list[int]) -> Callable[..., Ordering]:
    """Return a search that says at each call that it came further: far, then a little."""

    def search(made: Program, **how: object) -> Ordering:
        peaks = {"file": 3000, "searched": (2010, 1010, 1005)[min(len(calls), 2)]}
        calls.append(peaks["searched"])
        found = best_order(made, **how)  # type: ignore[arg-type]
        return Ordering(found.program, peaks, "searched", 1000, proved=False)

    return search


def test_an_order_for_a_runtime_is_searched_again_until_little_is_gained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(order, "best_order", _step_by_step(calls))
    found = _for_runtime()
    assert calls == [2010, 1010, 1005]
    assert found is not None
    assert found.order == "runtime"


def test_a_proved_order_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Ordering] = []

    def search(made: Program, **how: object) -> Ordering:
        calls.append(best_order(made, **how))  # type: ignore[arg-type]
        return calls[-1]

    monkeypatch.setattr(order, "best_order", search)
    found = _for_runtime()
    assert found is not None
    assert found.order == "runtime"
    assert [call.proved for call in calls] == [True]


def test_an_order_for_a_runtime_is_at_least_as_good_as_the_plan_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = best_order(BRANCHES, var_sizes(BRANCHES), aliasing=SHARE_NOTHING).program
    assert planned != BRANCHES

    def search(made: Program, **_: object) -> Ordering:
        return Ordering(made, {"file": 3000}, "file", 3000, proved=True)

    monkeypatch.setattr(order, "best_order", search)
    found = _for_runtime(planned)
    assert found is not None
    assert found.program == planned


def test_an_order_for_a_runtime_counts_the_outputs_that_it_holds() -> None:
    made = program(
        block("x", "early z", op("early <- x"), op("a <- x"), op("b <- a"), op("z <- b")),
        sizes={"early": 1000, "a": 1000, "b": 10, "z": 10},
    )
    found = _for_runtime(made, made)
    assert found is not None
    assert found.program.body.ops[-1].outputs == ("early",)


@pytest.mark.parametrize("kept", [Settings(order="keep"), Settings(recompute="auto")])
def test_an_order_that_is_asked_for_is_not_changed_for_a_runtime(kept: Settings) -> None:
    assert _for_runtime(settings=kept) is None


def _for_runtime(
    planned: Program = BRANCHES, made: Program = BRANCHES, settings: Settings | None = None
) -> Candidate | None:
    terms = PlannedVars(var_sizes(made), frozenset(), SHARE_NOTHING)
    runtime = Runtime(SHARE_NOTHING, lambda ordered, _: ordered, lambda _: None)
    task = PlanningTask(made, terms, Phases(), settings or Settings(), runtime)
    return for_runtime(task, runtime, Candidate(planned, terms.sizes))
