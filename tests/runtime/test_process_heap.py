"""The simulated heap: chunks never overlap, what is freed is joined, large ones are mapped."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.runtime.process.parts import HEAP_SLACK
from memplan_cli.runtime.process.simulated_memory import PAGE, Heap, PageSet, SimulatedMemory

if TYPE_CHECKING:
    from random import Random

SIZES = st.lists(st.integers(1, 300_000), min_size=1, max_size=60)


@given(sizes=SIZES, seed=st.randoms(use_true_random=False))
def test_blocks_in_use_never_overlap(sizes: list[int], seed: Random) -> None:
    heap, live = Heap(), {}
    for size in sizes:
        at = heap.allocate(size, seed.choice((16, 64)))
        if at is not None:
            live[at] = size
        if live and seed.random() < 0.4:
            gone = seed.choice(sorted(live))
            del live[gone]
            heap.free(gone)
        ends = sorted((start, start + size) for start, size in live.items())
        assert all(one[1] <= other[0] for one, other in pairwise(ends))
        assert all(end <= heap.top <= heap.end for _, end in ends)


@given(sizes=SIZES)
def test_when_all_is_freed_the_heap_is_one_unused_piece(sizes: list[int]) -> None:
    heap = Heap()
    found = [heap.allocate(size) for size in sizes]
    for chunk in found:
        if chunk is not None:
            heap.free(chunk)
    assert heap.top == 0


def test_a_small_chunk_at_the_end_trims_a_large_unused_end() -> None:
    """glibc compares the size of the chunk after it was merged with the unused end."""
    heap = Heap()
    chunk = heap.allocate(1000)
    assert chunk is not None
    heap.fix_threshold(32 << 10)
    heap.free(chunk)
    assert (heap.top, heap.end) == (0, 128 << 10)


def test_a_piece_of_the_smallest_size_behind_an_aligned_block_stays_with_it() -> None:
    """glibc cuts off a piece only if it is larger (``_int_memalign``)."""
    heap = Heap()
    _, chunk, _ = (heap.allocate(size) for size in (8, 312, 8))
    assert chunk is not None
    heap.free(chunk)
    aligned = heap.allocate(200, 64)  # takes the chunk, with 32 bytes behind the block
    assert aligned is not None
    heap.free(aligned)
    assert heap.allocate(312) == chunk


def test_a_large_block_is_mapped_until_one_of_its_size_was_freed() -> None:
    process = SimulatedMemory()
    first = process.allocate("weights", 2 << 20)
    assert first.address is None
    process.free(first)
    assert process.anonymous == 0
    assert process.allocate("weights", 2 << 20).address is not None


def test_where_the_threshold_is_fixed_a_block_of_a_size_that_was_freed_is_mapped_again() -> (
    None
):
    process = SimulatedMemory()
    process.heap.fix_threshold(1 << 20)
    process.free(process.allocate("weights", 2 << 20))
    assert process.allocate("weights", 2 << 20).address is None
    assert process.allocate("weights", 1 << 19).address is not None


def test_what_lies_below_something_that_lives_stays_resident() -> None:
    process = SimulatedMemory()
    low, high = (process.allocate("weights", 1_000_000) for _ in range(2))
    before = process.anonymous
    process.free(low)
    assert process.anonymous == before
    assert process.anonymous_parts()[HEAP_SLACK] >= 990_000
    process.free(high)
    # What was cut off for alignment is some small object's now, and stays where it is.
    assert process.heap.top < 1_000_000 + 512


def test_a_page_counts_once_however_often_it_is_written() -> None:
    process = SimulatedMemory()
    block = process.reserve("arena", 8 << 20)
    assert process.anonymous == 0
    for _ in range(2):
        process.touch(block, 100, PAGE)
    assert process.anonymous == 2 * PAGE
    assert process.live == {"arena": 2 * PAGE}


@given(
    ranges=st.lists(
        st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 8)), max_size=12
    )
)
def test_a_page_set_holds_what_was_added_and_not_removed_since(
    ranges: list[tuple[bool, int, int]],
) -> None:
    pages, expected = PageSet(), set[int]()
    for is_added, first, length in ranges:
        numbers = set(range(first, first + length))
        assert pages.count(first, first + length) == len(expected & numbers)
        if is_added:
            pages.add(first, first + length)
            expected |= numbers
        else:
            pages.discard(first, first + length)
            expected -= numbers
        assert pages.count() == len(expected)


def test_a_block_of_an_exbibyte_is_simulated_like_a_small_one() -> None:
    process = SimulatedMemory()
    process.allocate("arena", 1 << 60)
    assert process.anonymous == 1 << 60


def test_the_highest_is_attributed_to_what_was_there_then() -> None:
    process = SimulatedMemory()
    process.free(process.allocate("parsed", 40 << 20))
    process.allocate("weights", 10 << 20)
    assert process.peak_bytes >= 40 << 20
    assert process.peak_parts["parsed"] >= 40 << 20
    assert process.peak_parts["weights"] == 0


def test_what_is_freed_is_joined_with_what_is_free_above_and_below() -> None:
    for order in ((0, 1), (1, 0)):
        heap = Heap()
        blocks = [heap.allocate(100_000) for _ in range(3)]
        for at in order:
            chunk = blocks[at]
            assert chunk is not None
            heap.free(chunk)
        assert heap.allocate(200_000) == blocks[0]


def test_the_heap_shrinks_at_its_end_and_only_there() -> None:
    process = SimulatedMemory()
    blocks = [process.allocate("weights", 900_000, 16) for _ in range(10)]
    whole = process.anonymous
    for block in blocks[:5]:
        process.free(block)
    assert process.anonymous == whole, "what lies below a block in use stays"
    for block in blocks[5:]:
        process.free(block)
    assert process.heap.top == 0
    assert process.anonymous <= 256 << 10


@given(sizes=SIZES, seed=st.randoms(use_true_random=False))
def test_what_is_given_back_is_every_whole_free_page_and_nothing_in_use(
    sizes: list[int], seed: Random
) -> None:
    process, live = SimulatedMemory(), []
    for size in sizes:
        live.append(process.allocate("weights", size, seed.choice((16, 64))))
        if seed.random() < 0.4:
            process.free(live.pop(seed.randrange(len(live))))
    process.trim()
    on_heap = {block.address: block for block in live if block.address is not None}
    used = {
        page
        for start, block in on_heap.items()
        for page in range(start // PAGE, (start + block.size - 1) // PAGE + 1)
    }
    mapped = sum(block.pages.count() * PAGE for block in live if block.address is None)
    left = (process.anonymous - mapped) // PAGE
    # A free chunk keeps the page that says how large it is, and small objects what was cut off.
    assert len(used) <= left <= len(used) + 2 * len(sizes) + 2
    again = process.anonymous
    for block in on_heap.values():
        process.touch(block, 0, block.size)
    assert process.anonymous == again, "a page in use was given back"
