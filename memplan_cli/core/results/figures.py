"""Definitions of a report's numbers, and how certain each is, printed beside the number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "weights": "initializers and Constant outputs",
    "inputs": "graph inputs that are no initializers; never planned",
    "outputs": "graph outputs; never planned",
    "naive": "sum of all intermediates, no reuse",
    "live_peak": "most bytes of intermediates live at one step of this order; no plan of "
    "this order is smaller",
    "resident": "most bytes of intermediates and outputs live at one step in a runtime that "
    "frees each after its last reader; views share, donated outputs take none",
    "foldable": "part of live_peak that hangs on initializers and constants alone",
    "planned": "what this level needs for the intermediates, excluded tensors included",
    "total": "weights + inputs + outputs + planned; donated pairs count once",
    "order_bound": "lower bound on live_peak over all orders",
    "coverage": "share of intermediates whose size is known",
}

WORKSPACE = "what kernels take besides, as measured; in no total"

EXACT, BOUND, OBSERVED, PARTIAL, UNKNOWN = "exact", "bound", "observed", "partial", "unknown"

CERTAINTY: Mapping[str, str] = {
    EXACT: "whatever the data",
    OBSERVED: "as seen in one run; other data may need more",
    BOUND: "never more for dims within their bounds",
    PARTIAL: "only of what has a known size",
    UNKNOWN: "nothing says it before a run",
}
"""How sure a number is, the surest first; the sum of several is as sure as the least sure."""


def weakest(*words: str) -> str:
    """Return the least sure of several words."""
    ranks = list(CERTAINTY)
    return max(words, key=ranks.index)
