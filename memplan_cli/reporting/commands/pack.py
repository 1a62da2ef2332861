"""`memplan pack`: the layout of result buffers, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.reporting.media import result_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.packing.problem_file import PackingResult


def _text(result: PackingResult) -> str:
    """Return a line per number: its name, padded to one width, and its value."""
    rows = {
        "buffers": f"{len(result.problem.buffers)}",
        "height": f"{result.layout.height}",
        "lower bound": f"{result.lower_bound}",
        "proved": "yes" if result.layout.proved else "no",
    }
    if result.capacity is not None:
        rows["capacity"] = f"{result.capacity} ({_capacity_verdict(result)})"
    rows["seconds"] = f"{result.seconds:.3f}"
    return "\n".join(f"{name:<13}{value}" for name, value in rows.items())


def _capacity_verdict(result: PackingResult) -> str:
    if result.passed:
        return "fits"
    return "no layout fits" if result.layout.proved else "no layout found that fits"


PACK: Mapping[str, Callable[[PackingResult], str]] = {
    "text": _text,
    "json": lambda result: result_line("pack", result),
}
