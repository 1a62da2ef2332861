"""The verdict of `memplan validate`, as text or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.serialization import to_json
from memplan_cli.reporting.escape import terminal
from memplan_cli.reporting.plans.facts import evidence_rows
from memplan_cli.reporting.plans.json_text import document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.results.observations import Difference, Peaks, Validation
    from memplan_cli.core.results.report import RuntimeFacts
    from memplan_cli.core.results.validation import Proof

MOST_DIFFERENCES = 20
"""Outputs that are named; JSON has all."""


def text(proof: Proof) -> str:
    """Return the verdict, what differs, and what else was noticed."""
    return "\n".join((*_lines(proof.validation), *_memory(proof.runtime))) + "\n"


def as_json(proof: Proof) -> str:
    """Return the verdict as JSON, plain ASCII, with the runtime's side where it was measured.

    Times are left to the text: the same models give the same JSON.
    """
    content = to_json(proof.validation)
    content["runtime"] = to_json(proof.runtime)
    return document(content)


def _memory(runtime: RuntimeFacts | None) -> Iterator[str]:
    rows = evidence_rows(runtime)
    if runtime is None or not rows:
        return
    yield f"  {terminal(runtime.name)} {terminal(runtime.version)}: predicted, observed"
    for row in rows:
        before = f"{row.predicted_original}, {row.observed_original}"
        after = f"{row.predicted_optimized}, {row.observed_optimized}"
        yield f"    {row.name}: original {before}; written {after}"
    before, after = (_time(runtime.observed.get(side)) for side in ("original", "optimized"))
    if before and after:
        yield f"    time of a run, the median: original {before}; written {after}"


def _time(observed: Peaks | None) -> str:
    """Return how long a run took; nothing where no time was taken."""
    if observed is None or observed.milliseconds is None:
        return ""
    return f"{observed.milliseconds:.3g} ms"


def _lines(verdict: Validation) -> Iterator[str]:
    yield f"{verdict.status} on {terminal(verdict.provider)}"
    if verdict.bit_identical:
        yield "  outputs are the same, bit for bit"
    elif verdict.max_abs_diff is not None:
        yield f"  largest difference {verdict.max_abs_diff:g}"
    if verdict.replay is not None:
        yield f"  replay in one poisoned arena: {verdict.replay}"
    if verdict.donated is not None:
        yield f"  two steps with each donated pair in one buffer: {verdict.donated}"
    for difference in verdict.differences[:MOST_DIFFERENCES]:
        yield f"  {terminal(difference.output)}: {_described(difference)}"
    if len(verdict.differences) > MOST_DIFFERENCES:
        yield f"  and {len(verdict.differences) - MOST_DIFFERENCES} more outputs"
    yield from (f"  {terminal(note)}" for note in verdict.notes)


def _described(difference: Difference) -> str:
    if difference.reason:
        return terminal(difference.reason)
    return (
        f"{difference.elements} elements have other bits, {difference.beyond} beyond the "
        f"tolerance, largest difference {difference.max_abs_diff:g}"
    )


RENDERERS: Mapping[str, Callable[[Proof], str]] = {"text": text, "json": as_json}
