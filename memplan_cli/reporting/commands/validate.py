"""A comparison of two models' outputs, as a document: what differs and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import Validation
from memplan_cli.core.results.report import RuntimeFacts  # noqa: TC001 - a type to read by
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import renderers
from memplan_cli.reporting.media.json_text import result_json
from memplan_cli.reporting.plans.runtime import evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.results.observations import Difference, Peaks
    from memplan_cli.core.results.report import Proof

_MOST_DIFFERENCES = 20
"""Outputs that are named where a validation fails; JSON has all."""


def document(proof: Proof) -> doc.Document:
    """Return the verdict, what differs, what else was noticed, and the memory measured."""
    found = proof.validation
    lines = doc.Items((*_checks(found), *found.notes))
    observed = proof.runtime.observed if proof.runtime else {}
    before, after = (_time(observed.get(side)) for side in ("original", "optimized"))
    times = f"time of a run, the median: original {before}; written {after}"
    return doc.Document(
        f"{found.status} on {found.provider}",
        (
            *([lines] if lines.lines else []),
            *evidence(proof.runtime),
            *([doc.Paragraph(times)] if before and after else []),
        ),
    )


def _time(observed: Peaks | None) -> str:
    """Return how long a run took; nothing where no time was taken."""
    if observed is None or observed.milliseconds is None:
        return ""
    return f"{observed.milliseconds:.3g} ms"


def _checks(found: Validation) -> Iterator[doc.Prose]:
    if found.bit_identical:
        yield "outputs are the same, bit for bit"
    elif found.max_abs_diff is not None:
        yield f"largest difference {found.max_abs_diff:g}"
    if found.replay is not None:
        yield f"replay in one poisoned arena: {found.replay}"
    if found.donated is not None:
        yield f"two steps with each donated pair in one buffer: {found.donated}"
    for difference in found.differences[:_MOST_DIFFERENCES]:
        yield doc.Name(difference.output), f": {_described(difference)}"
    left = len(found.differences) - _MOST_DIFFERENCES
    if left > 0:
        yield f"and {left} more outputs"


def _described(difference: Difference) -> str:
    if difference.reason:
        return difference.reason
    return (
        f"{difference.elements} elements have other bits, {difference.beyond} beyond the "
        f"tolerance, largest difference {difference.max_abs_diff:g}"
    )


@dataclass(frozen=True, slots=True)
class ValidationResult(Validation):
    """The verdict on a written model and its original.

    Times are not in it, so that it is deterministic.

    Attributes:
        runtime: the memory of both models; null: not measured.
    """

    runtime: RuntimeFacts | None = None


def _proof_json(proof: Proof) -> str:
    verdict = {item.name: getattr(proof.validation, item.name) for item in fields(Validation)}
    return result_json("validate", ValidationResult(**verdict, runtime=proof.runtime))


VALIDATE: Mapping[str, Callable[[Proof], str]] = {
    **renderers(document, "text"),
    "json": _proof_json,
}
