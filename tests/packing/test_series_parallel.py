from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.packing_instances import mosaic, square, thinned
from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    LiveRange,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.packing import portfolio
from memplan_cli.packing.budget import Budget
from memplan_cli.packing.pieces import Piece, height_of, layout_of, reduce
from memplan_cli.packing.reconstruction import series_parallel
from memplan_cli.packing.reconstruction.composite_blocks import (
    CompositeBlocks,
    Joint,
    holes,
    matched_anew,
)
from memplan_cli.packing.reconstruction.series_parallel import (
    MANY,
    Reconstruction,
    is_nearly_full,
)

WHEEL = Problem(
    tuple(
        Buffer(BufferId(name), size, LiveRange(start, end))
        for name, start, end, size in (
            ("a", 0, 2, 3), ("b", 2, 3, 7), ("c", 1, 3, 2), ("d", 0, 1, 6), ("e", 1, 2, 4),
        )
    )
)  # fmt: skip
"""Four buffers around a fifth: no two can be joined."""


def largest(problem: Problem) -> Piece:
    return max(reduce(problem).pieces, key=lambda piece: len(piece.size))


def reconstructed(piece: Piece) -> Reconstruction:
    reconstruction = Reconstruction(piece)
    reconstruction.run(Budget(2 * 10**9))
    return reconstruction


def assert_whole(piece: Piece) -> None:
    reconstruction = reconstructed(piece)
    (whole,) = reconstruction.blocks.roots
    placement = reconstruction.placement({BufferId(str(whole)): 0})
    assert height_of(piece, placement) == piece.load
    spans = zip(piece.ids, piece.size, piece.start, piece.end, strict=True)
    problem = Problem(tuple(Buffer(i, z, LiveRange(s, e)) for i, z, s, e in spans))
    (again,) = reduce(problem).pieces
    at = dict(zip(piece.ids, placement, strict=True))
    layout = layout_of(reduce(problem), [tuple(at[i] for i in again.ids)])
    assert violations(problem, layout) == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_square_is_one_block_again(seed: int) -> None:
    assert_whole(largest(square(600, seed)))


@pytest.mark.parametrize("seed", range(3))
def test_strips_and_wheels_are_one_block_again(seed: int) -> None:
    assert_whole(largest(mosaic(300, seed)))


def test_a_wheel_is_one_block() -> None:
    (piece,) = reduce(WHEEL).pieces
    reconstruction = reconstructed(piece)
    (whole,) = reconstruction.blocks.roots
    assert reconstruction.blocks.joint[whole] is Joint.WHEEL
    assert_whole(piece)


def test_what_has_holes_is_reconstructed_as_well() -> None:
    piece = largest(thinned(500, 1))
    assert holes(piece)
    assert_whole(piece)


@pytest.mark.parametrize("seed", range(4))
def test_holes_make_the_load_level(seed: int) -> None:
    for piece in reduce(thinned(300, seed)).pieces:
        loads = list(piece.loads)
        for start, end, size in holes(piece):
            assert 0 <= start < end <= len(loads)
            assert size > 0
            for section in range(start, end):
                loads[section] += size
        assert set(loads) == {piece.load}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 4)), max_size=8),
    st.integers(0, 9),
)
def test_holes_matched_anew_take_as_much_everywhere(
    spans: list[tuple[int, int, int]], seed: int
) -> None:
    before = [(start, start + length, size) for start, length, size in spans]
    after = matched_anew(before, Random(seed))
    taken: list[Counter[int]] = []
    for found in (before, after):
        taken.append(Counter())
        for start, end, size in found:
            assert start < end
            taken[-1].update(dict.fromkeys(range(start, end), size))
    assert taken[0] == taken[1]


def test_joining_is_taken_back() -> None:
    blocks = CompositeBlocks(2, 2)
    low, high = blocks.new((0, 2, 3)), blocks.new((0, 2, 4))
    blocks.put(low)
    blocks.put(high)
    blocks.settle()
    blocks.put(blocks.unite((low, high), Joint.PARALLEL, 0.5))
    assert len(blocks.roots) == 1
    blocks.take_back()
    assert set(blocks.roots) == set(blocks.alike[0, 2]) == {low, high}
    assert blocks.sized == {
        (0, 3, True): {low: None},
        (2, 3, False): {low: None},
        (0, 4, True): {high: None},
        (2, 4, False): {high: None},
    }


def test_reconstruction_stops_when_its_work_is_used_up() -> None:
    budget = Budget(10**6)
    reconstruction = Reconstruction(largest(square(7000, 1)))
    reconstruction.run(budget)
    assert len(reconstruction.blocks.roots) > 1
    # The last edge looked at may take it above by some thousand blocks.
    assert budget.spent < 2 * 10**6


def test_an_edge_with_thousands_of_blocks_takes_no_time_as_their_square() -> None:
    # Each of the 2 * 3000 blocks at the middle edge has one partner of its size.
    count = 3000
    sizes = [1000 + at for at in range(count)]
    spans = [(0, 1, size) for size in sizes] + [(1, 2, size) for size in reversed(sizes)]
    start, end, size = zip(*spans, strict=True)
    ids = tuple(BufferId(str(at)) for at in range(2 * count))
    reconstruction = Reconstruction(Piece(ids, start, end, size, (sum(sizes), sum(sizes))))
    reconstruction.run(Budget(10_000 * 2 * count))
    assert len(reconstruction.blocks.roots) == 1


def test_reconstruction_gives_up_where_too_many_blocks_are_left_over() -> None:
    budget = Budget(10**9)
    reconstruction = Reconstruction(largest(thinned(10_000, 1)))
    reconstruction.run(budget)
    assert len(reconstruction.blocks.roots) > MANY
    assert budget.spent < 10**8


def test_the_search_has_the_same_work_if_reconstruction_was_tried_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = thinned(350, 1)
    tried: list[Budget] = []

    def in_vain(_self: Reconstruction, budget: Budget) -> None:
        tried.append(budget)
        budget.charge(budget.work)

    monkeypatch.setattr(Reconstruction, "run", in_vain)
    found = portfolio(given, work=10**8)
    assert tried
    monkeypatch.setattr(series_parallel, "is_nearly_full", lambda _piece: False)
    assert found.height <= portfolio(given, work=10**8).height


def test_a_piece_with_much_room_is_not_reconstructed() -> None:
    assert not is_nearly_full(Piece((BufferId("x"),), (0,), (1,), (3,), (3, 1)))


def test_a_square_of_thousands_is_at_its_bound() -> None:
    problem = square(7000, 1)
    assert max(len(piece.size) for piece in reduce(problem).pieces) > 3000
    found = portfolio(problem)
    assert violations(problem, found) == ()
    assert (found.height, found.proved) == (lower_bound(problem), True)


@pytest.mark.slow
def test_a_square_of_a_hundred_thousand_is_at_its_bound() -> None:
    problem = square(100_000, 1)
    found = portfolio(problem)
    assert violations(problem, found) == ()
    assert (found.height, found.proved) == (lower_bound(problem), True)


def test_reconstruction_is_the_same_every_time() -> None:
    piece = largest(square(600, 4))
    assert list(reconstructed(piece).blocks.roots) == list(reconstructed(piece).blocks.roots)
