"""Seeded packing problems of the kinds that networks and compilers give, of any size.

For `square`, `mosaic` and `crowded` the optimum is known: they are made of a layout. For the
others the lower bound is what is aimed at.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Span = tuple[int, int, int]  # start, end, size

GRID = 1024
"""Steps of time and of memory in a square, as in MiniMalloc's challenging instances."""


def _problem(spans: Iterable[Span]) -> Problem:
    return Problem(
        tuple(
            Buffer(BufferId(str(index)), size, LiveRange(start, end))
            for index, (start, end, size) in enumerate(spans)
        )
    )


def _size(random: Random) -> int:
    channels = random.choice((16, 24, 32, 48, 64, 96, 128, 256))
    side = random.choice((7, 14, 28, 56, 112))
    return 4 * channels * side * side


def chain(count: int, seed: int) -> Problem:
    """Each op reads what the one before it made."""
    random = Random(seed)
    return _problem((i, i + 2, _size(random)) for i in range(count))


def skips(count: int, seed: int) -> Problem:
    """A chain in which one tensor in four is read again up to 12 ops later."""
    random = Random(seed)
    return _problem(
        (i, i + (random.randint(3, 12) if random.random() < 0.25 else 2), _size(random))
        for i in range(count)
    )


def towers(count: int, seed: int) -> Problem:
    """Blocks of parallel branches that are joined at the end of each block."""
    random = Random(seed)
    spans: list[Span] = []
    tick = 0
    while len(spans) < count:
        branches = random.randint(2, 6)
        lengths = [random.randint(1, 6) for _ in range(branches)]
        join = tick + 1 + sum(lengths)
        spans.append((tick, tick + 1 + sum(lengths[:-1]) + 1, _size(random)))
        tick += 1
        for length in lengths:
            for step in range(length):
                last = step == length - 1
                spans.append((tick, join + 1 if last else tick + 2, _size(random)))
                tick += 1
    return _problem(spans[:count])


def training(count: int, seed: int) -> Problem:
    """Activations are kept for the backward pass, which frees them last in, first out."""
    random = Random(seed)
    layers = max(1, count // 3)
    spans: list[Span] = []
    for layer in range(layers):
        size = _size(random)
        backward = 2 * layers - 1 - layer
        kept = random.random() < 0.8
        spans.append((layer, backward + 1 if kept else layer + 2, size))
        spans.append((backward, backward + 2, size))  # the gradient of the activation
        if random.random() < 0.9:
            workspace = random.choice((layer, backward))
            spans.append((workspace, workspace + 1, _size(random) // 2))
    return _problem(spans)


def square(count: int, seed: int) -> Problem:
    """Buffers cut from a full rectangle: the optimum is its height, `GRID` units of 1 KiB.

    Pieces are halved at random, the larger of two at a time, across time or memory; above
    `GRID` buffers the grid grows with the count so that there is something left to cut.
    """
    random = Random(seed)
    grid = max(GRID, count)
    pieces = [(0, grid, 0, grid)]
    stuck = 0
    while len(pieces) < count and stuck < 1000:
        index = max(
            (random.randrange(len(pieces)) for _ in range(2)),
            key=lambda i: (
                (pieces[i][1] - pieces[i][0]) * (pieces[i][3] - pieces[i][2]),
                -i,
            ),
        )
        start, end, low, high = pieces[index]
        in_time = random.random() < 0.5
        if (end - start if in_time else high - low) < 2:
            stuck += 1
            continue
        stuck = 0
        if in_time:
            cut = random.randrange(start + 1, end)
            pieces[index] = (start, cut, low, high)
            pieces.append((cut, end, low, high))
        else:
            cut = random.randrange(low + 1, high)
            pieces[index] = (start, end, low, cut)
            pieces.append((start, end, cut, high))
    random.shuffle(pieces)
    return _problem((start, end, GRID * (high - low)) for start, end, low, high in pieces)


def thinned(count: int, seed: int) -> Problem:
    """A square from which one buffer in twenty was taken, so that there is some slack.

    One column is left full: the optimum is still the height of the square.
    """
    random = Random(seed)
    full = square(count + count // 19, seed)
    height = max(b.size for b in full.buffers)
    tick = random.randrange(max(b.live.end for b in full.buffers))
    kept = tuple(
        b
        for b in full.buffers
        if b.live.start <= tick < b.live.end or b.size == height or random.random() >= 0.05
    )
    return Problem(kept)


def mosaic(count: int, seed: int) -> Problem:
    """Another full rectangle, of other cuts: strips, uneven cuts, wheels; edges coincide.

    The rectangle is divided in two to five strips, or in a wheel of four around one, which
    no cut from side to side takes apart; cuts lie anywhere or at thirds and halves, so that
    many fall on the same tick. The optimum is its height.
    """
    random = Random(seed)
    grid = max(GRID, count)
    pieces = [(0, grid, 0, grid)]
    stuck = 0
    while len(pieces) < count and stuck < 1000:
        tries = [random.randrange(len(pieces)) for _ in range(3)]
        index = max(tries, key=lambda i: (_area(pieces[i]), -i))
        parts = _wheel(random, pieces[index]) if random.random() < 0.3 else ()
        parts = parts or _strips(random, pieces[index])
        if not parts:
            stuck += 1
            continue
        stuck = 0
        pieces[index] = parts[0]
        pieces += parts[1:]
    random.shuffle(pieces)
    return _problem((start, end, high - low) for start, end, low, high in pieces)


def _area(piece: tuple[int, int, int, int]) -> int:
    start, end, low, high = piece
    return (end - start) * (high - low)


def _cuts(random: Random, low: int, high: int, count: int) -> list[int]:
    if random.random() < 0.3:
        return [low + (high - low) * part // (count + 1) for part in range(1, count + 1)]
    return sorted(random.sample(range(low + 1, high), count))


def _wheel(
    random: Random, piece: tuple[int, int, int, int]
) -> Sequence[tuple[int, int, int, int]]:
    start, end, low, high = piece
    if min(end - start, high - low) < 3:
        return ()
    (left, right), (below, above) = _cuts(random, start, end, 2), _cuts(random, low, high, 2)
    turned = (
        (start, right, low, below), (right, end, low, above),
        (left, end, above, high), (start, left, below, high),
    )  # fmt: skip
    mirrored = tuple((s, e, low + high - b, low + high - a) for s, e, a, b in turned)
    middle = (left, right, below, above)
    if random.random() < 0.5:
        return (*turned, middle)
    return (*mirrored, (left, right, low + high - above, low + high - below))


def _strips(
    random: Random, piece: tuple[int, int, int, int]
) -> Sequence[tuple[int, int, int, int]]:
    start, end, low, high = piece
    count = random.choice((1, 1, 2, 3, 4))
    in_time = random.random() < 0.5
    near, far = (start, end) if in_time else (low, high)
    if far - near <= count:
        return ()
    edges = [near, *_cuts(random, near, far, count), far]
    if in_time:
        return [(a, b, low, high) for a, b in pairwise(edges)]
    return [(start, end, a, b) for a, b in pairwise(edges)]


def crowded(count: int, seed: int) -> Problem:
    """Large buffers of all live ranges among many small ones, in an arena that is full at times.

    Laid out as it is made: every tick one buffer goes into a gap chosen at random, and at one
    tick in forty all gaps are filled up. So the lower bound, the height, can be reached.
    """
    random = Random(seed)
    height = 1 << 20
    live: list[tuple[int, int, int]] = []  # offset, size, end
    spans: list[Span] = []
    tick = 0
    while len(spans) < count:
        live = [entry for entry in live if entry[2] > tick]
        gaps = _gaps(live, height)
        wanted = gaps if tick % 40 == 39 else random.sample(gaps, min(1, len(gaps)))
        for low, high in wanted:
            size = high - low
            if wanted is not gaps:
                large = random.random() < 0.3
                size = min(size, random.choice(_LARGE if large else _SMALL))
            end = tick + 1 + int(2.0 ** random.uniform(0.0, 9.0))
            live.append((random.choice((low, high - size)), size, end))
            spans.append((tick, end, size))
        tick += 1
    return _problem(spans)


_LARGE = (16384, 25088, 50176, 65536, 100352)
_SMALL = (1, 2, 16, 64, 250, 256, 1000, 1024, 2304)


def _gaps(live: Iterable[tuple[int, int, int]], height: int) -> list[tuple[int, int]]:
    floor, gaps = 0, []
    for offset, size, _ in sorted(live):
        if offset > floor:
            gaps.append((floor, offset))
        floor = offset + size
    return [*gaps, (floor, height)] if floor < height else gaps


FAMILIES: Mapping[str, Callable[[int, int], Problem]] = {
    "chain": chain,
    "skips": skips,
    "towers": towers,
    "training": training,
    "square": square,
    "thinned": thinned,
    "mosaic": mosaic,
    "crowded": crowded,
}
