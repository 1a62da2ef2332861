"""Random packing problems for hypothesis, and what tests of allocators ask of a piece."""

from __future__ import annotations

from hypothesis import strategies as st

from memplan_cli.core.problem import Buffer, BufferId, Layout, LiveRange, Problem, violations
from memplan_cli.packing.pieces import BestPlacement, Piece, height_of, reduce_problem
from memplan_cli.packing.skyline import best_sweep


@st.composite
def buffers(draw: st.DrawFn, index: int) -> Buffer:
    start = draw(st.integers(0, 12))
    return Buffer(
        BufferId(f"b{index}"),
        draw(st.one_of(st.integers(0, 9), st.integers(1, 1 << 40))),
        LiveRange(start, start + draw(st.integers(1, 8))),
        draw(st.sampled_from(("float32", "int64"))),
        draw(st.sampled_from(((), (1,), (2, 3)))),
    )


@st.composite
def problems(draw: st.DrawFn, most: int = 14) -> Problem:
    count = draw(st.integers(0, most))
    alignment = draw(st.sampled_from((1, 1, 2, 3, 64)))
    return Problem(tuple(draw(buffers(index)) for index in range(count)), alignment)


def tiny_problems() -> st.SearchStrategy[Problem]:
    """Few buffers with sizes of a few units: small enough to try every offset."""

    @st.composite
    def build(draw: st.DrawFn) -> Problem:
        count = draw(st.integers(1, 7))
        starts = [draw(st.integers(0, 7)) for _ in range(count)]
        return Problem(
            tuple(
                Buffer(
                    BufferId(f"b{i}"),
                    draw(st.integers(1, 5)),
                    LiveRange(start, start + draw(st.integers(1, 5))),
                )
                for i, start in enumerate(starts)
            )
        )

    return build()


@st.composite
def full_problems(draw: st.DrawFn) -> Problem:
    """Few buffers that leave hardly a byte free at any tick, wherever they lie.

    Often no layout reaches the bound: what dies need not be together. Some are left out
    again, so that there are holes to be left on purpose.
    """
    height, ticks = draw(st.integers(2, 6)), draw(st.integers(2, 5))
    live: list[tuple[int, int]] = []
    spans: list[tuple[int, int, int]] = []
    for tick in range(ticks):
        dead = draw(st.lists(st.booleans(), min_size=len(live), max_size=len(live)))
        spans += [(s, tick, z) for (s, z), gone in zip(live, dead, strict=True) if gone]
        live = [entry for entry, gone in zip(live, dead, strict=True) if not gone]
        while room := height - sum(size for _, size in live):
            live.append((tick, draw(st.integers(min(room, 2), min(room, 4)))))
    spans += [(start, ticks, size) for start, size in live]
    left_out = draw(st.sets(st.integers(0, len(spans) - 1), max_size=2))
    return Problem(
        tuple(
            Buffer(BufferId(f"b{i}"), size, LiveRange(start, end))
            for i, (start, end, size) in enumerate(spans)
            if i not in left_out
        )[:9]
    )


def heaviest(problem: Problem) -> Piece:
    return max(reduce_problem(problem).pieces, key=lambda piece: piece.load)


def start_of(piece: Piece) -> BestPlacement:
    placement = best_sweep(piece, piece.load)
    return BestPlacement(placement, height_of(piece, placement), piece.load)


def is_safe(piece: Piece, found: BestPlacement) -> bool:
    columns = zip(piece.ids, piece.start, piece.end, piece.size, strict=True)
    buffers = tuple(Buffer(i, size, LiveRange(start, end)) for i, start, end, size in columns)
    offsets = dict(zip(piece.ids, found.placement, strict=True))
    return violations(Problem(buffers), Layout(offsets, found.height)) == ()
