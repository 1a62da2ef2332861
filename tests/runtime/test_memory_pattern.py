"""The memory pattern: its block, on tensors small enough to follow by hand."""

from __future__ import annotations

from memplan_cli.runtime.simulate.planner import MemoryPattern


def test_a_pattern_puts_a_tensor_into_the_tightest_gap() -> None:
    pattern = MemoryPattern()
    for name, size in (("a", 1024), ("b", 256), ("c", 512), ("d", 256)):
        pattern.allocate(name, size)
    pattern.free("a")
    pattern.free("c")
    pattern.allocate("e", 512)
    assert pattern.height == 2048
    pattern.allocate("f", 1024)
    assert pattern.height == 2048, "the wide gap was kept for what needs it"
    pattern.allocate("g", 1)
    assert pattern.height == 2048 + 256


def test_the_room_below_the_height_of_a_pattern_is_a_gap_like_any_other() -> None:
    # Without it the blocks of two training steps came out lower than the runtime's (1.31.1).
    pattern = MemoryPattern()
    for name, size in (("a", 1024), ("b", 256), ("c", 512)):
        pattern.allocate(name, size)
    pattern.free("a")
    pattern.free("c")
    pattern.allocate("d", 512)
    pattern.allocate("e", 1024)
    assert pattern.height == 1792, "d went above b, where the gap is tighter"


def test_of_two_gaps_alike_a_pattern_takes_the_lower() -> None:
    pattern = MemoryPattern()
    for name, size in (("a", 512), ("b", 256), ("c", 512)):
        pattern.allocate(name, size)
    pattern.free("a")
    pattern.free("c")
    pattern.allocate("d", 512)
    pattern.free("b")
    pattern.allocate("e", 768)
    assert pattern.height == 1280


def test_a_pattern_grows_by_what_its_topmost_gap_lacks() -> None:
    pattern = MemoryPattern()
    for name, size in (("a", 256), ("b", 512)):
        pattern.allocate(name, size)
    pattern.free("b")
    pattern.allocate("c", 768)
    assert pattern.height == 1024


def test_a_pattern_rounds_to_256_and_ignores_empty_tensors() -> None:
    pattern = MemoryPattern()
    pattern.allocate("a", 1)
    pattern.allocate("b", 0)
    pattern.free("b")
    assert pattern.height == 256


def test_the_block_of_a_pattern_holds_the_very_size_that_was_traced() -> None:
    pattern = MemoryPattern()
    pattern.allocate("a", 300)
    pattern.free("a")
    assert pattern.holds("a", 512)
    assert not pattern.holds("a", 513)
    assert not pattern.holds("a", 256)
    assert not pattern.holds("b", 0)
