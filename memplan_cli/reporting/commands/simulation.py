"""Dynamic allocators beside the static plan, as text or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.reporting.plans.json_text import document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.runtime.simulation.dynamic import Simulated


def text(found: Simulated) -> str:
    """Return a line for each allocator, the static plan first."""
    planned = "not known" if found.planned is None else format_size(found.planned)
    lines = [f"{'static plan, level 2':22} {planned:>12}"]
    for run in found.simulations:
        wasted = f"{run.fragmentation:.1%} of it never needed at once"
        lines.append(f"{run.allocator:22} {format_size(run.held):>12}  {wasted}")
    lines.append("held: bytes taken from the system for intermediates and outputs of one run;")
    lines.append("the static plan holds intermediates alone, in the order that needs least")
    return "\n".join(lines) + "\n"


def as_json(found: Simulated) -> str:
    """Return every figure in bytes."""
    content = {
        "planned": found.planned,
        "simulations": [
            {
                "allocator": run.allocator,
                "held": run.held,
                "live": run.live,
                "requests": run.requests,
            }
            for run in found.simulations
        ],
    }
    return document(content)


RENDERERS: Mapping[str, Callable[[Simulated], str]] = {"text": text, "json": as_json}
