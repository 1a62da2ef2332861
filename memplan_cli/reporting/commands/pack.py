"""`memplan pack`: the layout of packed buffers, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.reporting.media import result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.packing.problem_file import Packed


def _text(packed: Packed) -> str:
    rows = {
        "buffers": f"{len(packed.problem.buffers)}",
        "height": f"{packed.layout.height}",
        "lower bound": f"{packed.lower_bound}",
        "proved": "yes" if packed.layout.proved else "no",
    }
    if packed.capacity is not None:
        rows["capacity"] = f"{packed.capacity} ({_capacity_verdict(packed)})"
    rows["seconds"] = f"{packed.seconds:.3f}"
    return "\n".join(f"{name:<13}{value}" for name, value in rows.items())


def _capacity_verdict(packed: Packed) -> str:
    if packed.passed:
        return "fits"
    return "no layout fits" if packed.layout.proved else "no layout found that fits"


PACK: Mapping[str, Callable[[Packed], str]] = {
    "text": _text,
    "json": lambda packed: result_line("pack", packed),
}
