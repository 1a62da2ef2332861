"""What is each number of a report? One definition, printed wherever the number is."""

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
    "planned": "what this level needs for the intermediates, excluded tensors included",
    "total": "weights + inputs + outputs + planned; donated pairs count once",
    "order_bound": "lower bound on live_peak over all orders",
    "coverage": "share of intermediates whose size is known",
}
