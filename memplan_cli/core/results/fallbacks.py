"""Fallbacks: what was done instead of what was asked for, each with a code for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from memplan_cli.core.json_types import one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

ORDER_KEPT = "order-kept"
SLOTS_KEPT = "slots-kept"
PACKING_TIMED_OUT = "packing-timed-out"
CANDIDATE_DIFFERED = "candidate-differed"
ALL_SLOWER = "all-slower"
WEIGHTS_UNPACKED = "weights-unpacked"

CODES: Mapping[str, str] = {
    ORDER_KEPT: "another order has a lower live peak, but its allocation takes more",
    SLOTS_KEPT: "level 2 has whole slots, as level 1, where offsets would take more",
    PACKING_TIMED_OUT: "the time limit ended the search for a layout above its bound",
    CANDIDATE_DIFFERED: "a graph of the target gave other outputs and was left out",
    ALL_SLOWER: "every way to run the file takes longer than is allowed; the fastest is given",
    WEIGHTS_UNPACKED: "the runtime failed on weights packed into the file, which has them plain",
}
"""Every code and its meaning."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """One thing that was not done as asked.

    Attributes:
        code: the kind, for programs.
        what: what was done instead.
        why: the reason.
    """

    code: Annotated[str, one_of(*CODES)]
    what: str
    why: str

    def __str__(self) -> str:
        """Return the fallback on one line."""
        return f"{self.what}: {self.why} ({self.code})"
