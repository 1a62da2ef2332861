"""How sure the numbers of a report are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, intermediates
from memplan_cli.core.results.memory import (
    BOUND,
    EXACT,
    OBSERVED,
    PARTIAL,
    UNKNOWN,
    weakest,
)
from memplan_cli.planning.totals import (
    input_bytes,
    output_bytes,
    uncounted,
    weights_are_known,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.memory import Memory
    from memplan_cli.planning.decided import Decided


def certainty_of(
    decided: Decided, memory: Memory, symbolic: Mapping[str, str]
) -> dict[str, str]:
    """Return how sure each number is: the intermediates' share a word, the total has the worst."""
    program, settings, sizes = decided.program, decided.settings, decided.needs.sizes
    planned = EXACT
    if len(sizes) < len(intermediates(program)):
        planned = PARTIAL
    elif any(size.bound_of for size in sizes.values()):
        planned = BOUND
    elif settings.profile_shapes:
        planned = OBSERVED
    words = {
        "weights": EXACT if weights_are_known(program) else PARTIAL,
        **_edges(decided),
        **dict.fromkeys(("naive", "live_peak", "planned"), planned),
    }
    words["resident"] = weakest(words["outputs"], planned)
    for name in ("weights", "inputs", "outputs", "naive", "live_peak", "resident", "planned"):
        if getattr(memory, name) is None and name not in symbolic:
            words[name] = UNKNOWN
    parts = (words[name] for name in ("weights", "inputs", "outputs", "planned"))
    return {**words, "total": weakest(*parts)}


def _edges(decided: Decided) -> dict[str, str]:
    """Return how sure the bytes of the model's inputs are, and those of its outputs."""
    program, bounds = decided.program, decided.settings.bounds
    sides = (
        ("inputs", input_bytes, program.body.inputs),
        ("outputs", output_bytes, program.body.outputs),
    )
    words = {}
    for name, bytes_of, values in sides:
        words[name] = BOUND if bytes_of(program, bounds) != bytes_of(program) else EXACT
        if not decided.source.seen.isdisjoint(values):
            words[name] = weakest(words[name], OBSERVED)
    for var in uncounted(program):
        words["inputs" if var.origin is Origin.INPUT else "outputs"] = PARTIAL
    return words
