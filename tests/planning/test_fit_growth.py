from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.planning.fit import MAX_ADDED_BYTES, Growth, Need, Question, largest

if TYPE_CHECKING:
    from collections.abc import Callable

MEBI = 1 << 20


class Runs:
    """Runs of a model that needs so many bytes, with values up to one."""

    def __init__(self, needed: Callable[[int], int], most: int = 1 << 31) -> None:
        self.needed, self.most = needed, most
        self.run: list[int] = []

    def __call__(self, value: int) -> Need | None:
        self.run.append(value)
        if value > self.most:
            return None
        return Need(7, value, 0, 0, self.needed(value))


def need(growth: Growth, value: int) -> Need:
    found = growth.need(value)
    assert found is not None
    return found


def test_inputs_need_bytes_beside_the_tensors_and_beside_the_process() -> None:
    assert Need(weights=1000, inputs=100, outputs=10, planned=1).total == 1111
    assert Need(weights=1000, inputs=100, outputs=10, planned=1, process=5000).total == 5100


def test_without_a_process_in_the_last_run_none_is_foreseen() -> None:
    def run(value: int) -> Need:
        return Need(0, 0, 0, value * MEBI, value * MEBI if value < 256 else None)

    found = need(Growth(run), 100_000)
    assert (found.planned, found.process) == (100_000 * MEBI, None)


def test_values_are_run_while_they_need_little_more_than_the_first() -> None:
    runs = Runs(lambda value: 100 * MEBI + value * MEBI)
    growth = Growth(runs)
    assert need(growth, 100_000).process == 100_100 * MEBI
    assert runs.run == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert [growth.is_extrapolated(value) for value in (256, 257)] == [False, True]
    assert need(growth, 64).process == 164 * MEBI
    assert need(growth, 200).process == 300 * MEBI
    assert runs.run[9:] == [200], "what was run is known, what lies between is run"


def test_a_model_with_little_memory_is_run_at_each_size() -> None:
    runs = Runs(lambda value: 100 * MEBI + value)
    growth = Growth(runs)
    assert need(growth, 1_000_001).process == 100 * MEBI + 1_000_001
    assert runs.run[-1] == 1_000_001
    assert not growth.is_extrapolated(1_000_001)


def test_three_values_are_run_however_large_they_are() -> None:
    runs = Runs(lambda value: value * 1000 * MEBI)
    assert need(Growth(runs), 10).process == 10_000 * MEBI
    assert runs.run == [1, 2, 4]


@given(
    fixed=st.integers(0, 1 << 30),
    each=st.integers(1, 1 << 24),
    power=st.integers(1, 3),
    value=st.integers(1, 1 << 16),
)
def test_what_grows_by_one_power_is_foreseen_nearly_to_the_byte(
    fixed: int, each: int, power: int, value: int
) -> None:
    def needed(value: int) -> int:
        return fixed + each * int(value**power)

    runs = Runs(needed)
    found = need(Growth(runs), value)
    assert found.weights == 7
    assert found.inputs == value
    assert found.process is not None
    assert abs(found.process - needed(value)) <= 1 + 1e-9 * needed(value)
    larger = [
        at for at in runs.run if needed(at) - needed(1) > 2**power * (MAX_ADDED_BYTES + each)
    ]
    assert all(at <= 4 for at in larger), "no run needs much more than the first"


@given(
    fixed=st.integers(0, 1 << 28),
    each=st.integers(1 << 10, 1 << 24),
    region=st.integers(1, 1 << 20),
)
def test_whole_regions_of_an_arena_move_the_answer_by_few_per_cent(
    fixed: int, each: int, region: int
) -> None:
    def needed(value: int) -> int:
        return fixed + -(-each * value // region) * region

    limit = fixed + (1 << 34)
    point = largest(Growth(Runs(needed)).need, Question("batch", limit))
    assert point is not None
    answer = point.dims["batch"]
    assert 0.95 * (1 << 34) <= each * answer <= 1.05 * (1 << 34)


def test_what_lies_above_a_value_that_does_not_run_is_not_run() -> None:
    runs = Runs(lambda value: value, most=5)
    growth = Growth(runs)
    assert growth.need(1000) is None
    assert growth.need(7) is None
    assert need(growth, 5).process == 5
    assert runs.run == [1, 2, 4, 8, 7, 5]


def test_a_process_is_extrapolated_only_from_runs_that_all_have_one() -> None:
    def needed(value: int) -> Need:
        return Need(0, 0, 0, value * 1000 * MEBI, value * 2000 * MEBI if value > 1 else None)

    assert need(Growth(needed), 8) == Need(0, 0, 0, 8000 * MEBI, None)
