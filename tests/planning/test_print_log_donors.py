"""Who held the bytes of a tensor before it, whatever was placed where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planning.test_print_log import donors, placed


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=12)
)
def test_what_touches_bytes_that_nobody_held_has_no_donor(
    spans: list[tuple[int, int]],
) -> None:
    """Tensors one after the other, each for a tick: who held any of the bytes before is known."""
    tensors = [placed(f"t{at}", low, size, at, at + 1) for at, (low, size) in enumerate(spans)]
    found = donors(*tensors)
    for at, (low, size) in enumerate(spans):
        before = any(a < low + size and low < a + z for a, z in spans[:at])
        assert (found[f"t{at}"] is not None) == before
