"""The arena as one loop, held against the arena in steps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli.runtime.simulation.bfc import Arena, ArenaRules
from memplan_cli.runtime.simulation.trace import Request, Trace, height_of, held_by

RULES = st.builds(
    ArenaRules,
    initial=st.sampled_from([256, 1000, 1 << 12, 1 << 14, 1 << 20]),
    max_dead_bytes=st.sampled_from([1, 256, 3000, 128 << 20]),
    most=st.sampled_from([1, 1 << 10, 1 << 14, 1 << 30]),
    exact=st.booleans(),
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Request, ...]:
    """Requests of a run that may keep some of what it was given."""
    found: list[Request] = []
    live: list[int] = []
    for ticket in range(draw(st.integers(1, 30))):
        found.append(Request(ticket, draw(st.integers(0, 64 << 8))))
        live.append(ticket)
        if draw(st.booleans()):
            found.append(Request(live.pop(draw(st.integers(0, len(live) - 1))), -1))
    kept = draw(st.integers(0, len(live)))
    return (*found, *(Request(ticket, -1) for ticket in live[kept:]))


def in_steps(requests: tuple[Request, ...], rules: ArenaRules, runs: int) -> int:
    arena = Arena(rules)
    for _ in range(runs):
        places: dict[int, int | None] = {}
        for request in requests:
            if request.size < 0:
                arena.free(places.pop(request.ticket))
            else:
                places[request.ticket] = arena.allocate(request.size)
    return arena.held


@settings(deadline=None, max_examples=200)
@given(asked(), RULES, st.integers(1, 3), st.integers(256, 4 << 20))
def test_one_loop_holds_what_the_arena_holds_in_steps(
    requests: tuple[Request, ...], rules: ArenaRules, runs: int, most: int
) -> None:
    held, trace = in_steps(requests, rules, runs), Trace.of(requests)
    assert held_by(trace, rules, runs) == held
    # With a bound it says the same, or that the bound does not hold.
    bounded = held_by(trace, rules, runs, most)
    assert bounded == held if held <= most else bounded > most


@settings(deadline=None, max_examples=100)
@given(asked())
def test_a_region_without_an_end_is_as_high_as_in_steps(
    requests: tuple[Request, ...],
) -> None:
    arena, top = Arena(ArenaRules(initial=1 << 40, max_dead_bytes=1)), 0
    places: dict[int, int | None] = {}
    for request in requests:
        if request.size < 0:
            arena.free(places.pop(request.ticket))
            continue
        start = places[request.ticket] = arena.allocate(request.size)
        if start is not None:
            top = max(top, start + -(-request.size // 256) * 256)
    assert height_of(Trace.of(requests)) == top


def test_a_simulation_that_holds_too_much_ends_there() -> None:
    requests = (Request(0, 1 << 12), Request(1, 1 << 20), Request(2, 1 << 30))
    assert held_by(Trace.of(requests), ArenaRules(exact=True), most=1 << 13) < 1 << 30
