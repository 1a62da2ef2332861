"""The first lines say what somebody pays for: the process, then the arena, then the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builders import plan_of_text
from memplan_cli.core.results.observations import CPU, Peaks, ProcessBytes
from memplan_cli.core.results.report import RuntimeFacts
from memplan_cli.reporting import render

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan

TEXT = "g (float[1024] x) => (float[1024] y) { a = Exp(x) b = Neg(a) c = Exp(b) y = Neg(c) }"


def observed(load: int, run: int, held: int) -> Peaks:
    process = ProcessBytes(load, run, run // 2, run // 4)
    return Peaks(100, 100, held=held, weights=1024, process=process)


def first_lines(before: Peaks | None, after: Peaks | None) -> list[str]:
    plan: Plan = plan_of_text(TEXT)
    if before and after:
        sides = {"original": before, "optimized": after}
        runtime = RuntimeFacts("onnxruntime", "1", CPU, dict(sides), sides)
        plan = plan.with_report(replace(plan.report, runtime=runtime))
    return render(plan, "text", detail="details").splitlines()[1:5]


def test_the_process_comes_first_then_the_arena_then_the_plan() -> None:
    lines = first_lines(
        observed(200_000_000, 300_000_000, 5120), observed(50_000_000, 150_000_000, 3072)
    )
    assert (
        lines[0] == "process, observed: load 200.0 -> 50.0 MB (-75.0%), run 300.0 -> 150.0 MB (-50.0%)"
    )
    assert lines[1] == "arena, weights left out: 4.00 KiB -> 2.00 KiB (-50.0%)"
    assert lines[2].startswith("plan: ")


@pytest.mark.parametrize("after", [200_000_000, 199_000_000, 230_000_000])
def test_where_nothing_is_won_the_headline_says_so(after: int) -> None:
    (line, *_) = first_lines(observed(200_000_000, 200_000_000, 9), observed(after, after, 9))
    assert line.startswith("process, observed: nothing won: load 200.0 -> ")


def test_what_was_not_measured_is_not_said() -> None:
    before, after = observed(1, 1, 4096), observed(1, 1, 2048)
    lines = first_lines(replace(before, process=None), replace(after, process=None))
    assert lines[0].startswith("arena")
    assert first_lines(None, None)[0].startswith("plan: ")


def test_no_share_of_what_nobody_runs_stands_in_the_headline() -> None:
    assert "%" not in first_lines(None, None)[0]
