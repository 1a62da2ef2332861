from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_runs import drawn_run
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime import steer
from memplan_cli.runtime.graph.executed import executed_graph
from memplan_cli.runtime.simulation import finest
from memplan_cli.runtime.simulation.bfc import ArenaRules
from memplan_cli.runtime.simulation.finest import finer, is_tight
from memplan_cli.runtime.simulation.region import (
    ArenaChoice,
    best_arena,
    is_held_anywhere,
    one_chunk,
    regions,
    rounded,
)
from memplan_cli.runtime.simulation.requests import held_after, most_in_use
from memplan_cli.runtime.simulation.trace import ENDLESS, Request, Trace, tried

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest


DEFAULTS = RuntimeSettings()

STEM = (2842, -1, 2766, -2, 5532, -3, 1364, -4, 1705, -5, 3871, -6, 941, -7)
"""Activations of the first convolutions of an Inception-v3, in thousands of bytes."""


def chain(sizes: tuple[int, ...]) -> list[Request]:
    """Return requests of ops that follow each other: each result is made before its input goes."""
    made = [size * 1000 for size in sizes if size > 0]
    found = [Request(0, made[0])]
    for ticket, size in enumerate(made[1:], start=1):
        found += [Request(ticket, size), Request(ticket - 1, -1)]
    return [*found, Request(len(made) - 1, -1)]


def test_regions_are_found_that_hold_hardly_more_than_is_live() -> None:
    requests = chain(STEM)
    coarse = best_arena(requests)
    lowest = most_in_use(requests)
    assert coarse.held > 1.3 * lowest, "the example has a hole"
    found = finer(requests, coarse)
    # The fifth and sixth result together are a little larger than the third.
    assert found.held < 1.01 * lowest
    assert found.held == held_after(requests, ArenaRules.from_settings(found.arena))


def test_an_arena_without_holes_stays_as_it_is() -> None:
    requests = chain((1000, -1, 1000, -2, 1000, -3))
    choice = best_arena(requests)
    assert is_tight(choice.held, most_in_use(requests))
    assert finer(requests, choice) is choice


def test_without_work_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finest, "_LEAST_WORK", 0)
    monkeypatch.setattr(finest, "_MOST_WORK", 0)
    requests = chain(STEM)
    coarse = best_arena(requests)
    assert finer(requests, coarse) is coarse


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 5)), min_size=1, max_size=30))
def test_a_finer_arena_is_never_worse_and_holds_what_it_says(
    pairs: list[tuple[int, int]],
) -> None:
    found = drawn_run(pairs, 1 << 14)
    coarse = best_arena(found)
    choice = finer(found, coarse)
    assert most_in_use(found) <= choice.held <= coarse.held
    assert choice.held == held_after(found, ArenaRules.from_settings(choice.arena))
    assert finer(found, coarse) == choice


def test_what_a_trial_looks_at_ends_where_it_fails() -> None:
    trace = Trace.of(chain((1000,) * 100))
    rules = ArenaRules.from_settings(one_chunk(2_000_128))
    held, work = tried(trace, rules, 1, ENDLESS)
    assert work == 200
    held, work = tried(trace, ArenaRules.from_settings(one_chunk(1_000_192)), 1, 1_500_000)
    assert held > 1_500_000
    assert work < 10


def test_regions_that_more_threads_would_add_to_are_not_taken(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save("""g (float[1,4,640,640] x, float[4,4,3,3] w) => (float[1,4,636,636] y) {
        a = Conv (x, w)  y = Conv (a, w) }""")
    model = onnx.load(str(path))
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, str(path))
    executed = executed_graph(path, DEFAULTS, {})
    later = "max_power_of_two_extend_bytes"

    def other(requests: Sequence[Request], _: ArenaChoice) -> ArenaChoice:
        size = rounded(most_in_use(requests))
        return ArenaChoice(regions(size, 8 << 20), size)

    def growth(threads: int) -> object:
        monkeypatch.setattr(steer, "finer", other)
        monkeypatch.setattr(steer, "_THREADS", threads)
        best = steer.with_best_arena(executed, DEFAULTS, {"a": 64 << 10, "y": 64 << 10})
        assert best is not None
        return best.settings.arena.get(later)

    assert growth(1) == 8 << 20
    # Fifteen more pieces of 64 KiB want room; a region of 8 MiB would be made for them.
    assert growth(16) != 8 << 20


def test_regions_do_wherever_the_system_puts_them() -> None:
    # Of two free chunks of one size that lower down is taken: the large one then fits or not.
    steps = ((0, 3), (1, 3), (2, 1), (1, -1), (3, 4), (3, -1), (2, -1), (0, -1))
    requests = [Request(ticket, size << 20 if size > 0 else -1) for ticket, size in steps]
    trace, arena = Trace.of(requests), regions(2 << 20, 2 << 20)
    rules = ArenaRules.from_settings(arena)
    places = (0, 1), (1, 0)
    assert [tried(trace, rules, places=each)[0] >> 20 for each in places] == [8, 12]
    assert not is_held_anywhere(trace, ArenaChoice(arena, 8 << 20))
    found = finer(requests, best_arena(requests))
    assert found.held < 9 << 20
    assert is_held_anywhere(trace, found)
