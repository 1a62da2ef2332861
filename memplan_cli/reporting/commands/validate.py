"""`memplan validate`: the comparison of a written model with its original."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import Validation
from memplan_cli.core.results.report import RuntimeSummary  # noqa: TC001 - a type to read by
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import renderers, result_json
from memplan_cli.reporting.plans.runtime import evidence, reference_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.results.observations import Difference, Peaks
    from memplan_cli.core.results.report import Proof

_MAX_DIFFERENCES = 20
"""Differing outputs that a text lists; JSON has all."""

_PLAN_MATCHES = "the plan matches the model"
"""The start of the note of `checking` on a plan without an error."""

_REPLAY = "replay: "
"""The start of the notes on a replay."""


@dataclass(frozen=True, slots=True)
class ValidationResult(Validation):
    """The verdict on a written model and its original.

    Times are not in it, so that it is deterministic.

    Attributes:
        runtime: the memory of both models; null: not measured.
    """

    runtime: RuntimeSummary | None = None


def validation_document(proof: Proof) -> doc.Document:
    """Return the verdict, the outputs that differ, the notes, and the memory and time measured."""
    validation = proof.validation
    observed = proof.runtime.observed if proof.runtime else {}
    before = _milliseconds(observed.get("original"))
    after = _milliseconds(observed.get("optimized"))
    times = f"Median time of a run: original {before}, written {after}."
    return doc.Document(
        f"Validation {validation.status} on {validation.provider}",
        (
            *_checks(validation),
            *evidence(proof.runtime),
            *([doc.Paragraph(times)] if before and after else []),
        ),
    )


def _milliseconds(peaks: Peaks | None) -> str:
    """Return the time of a run; empty if it was not measured."""
    if peaks is None or peaks.milliseconds is None:
        return ""
    return f"{peaks.milliseconds:.3g} ms"


def _checks(validation: Validation) -> Iterator[doc.Block]:
    """Yield the result of each check that was made, the outputs that differ, and the notes."""
    reference = reference_text(validation)
    if validation.bit_identical:
        yield doc.Check(passed=True, text=f"The outputs are bit-identical to {reference}.")
    elif validation.max_abs_diff is not None:
        yield doc.Check(
            passed=not any(
                difference.beyond or difference.reason for difference in validation.differences
            ),
            text=f"The largest difference from {reference} is {validation.max_abs_diff:g}.",
        )
    replayed = [
        note.removeprefix(_REPLAY) for note in validation.notes if note.startswith(_REPLAY)
    ]
    for text, result, detail in (
        (
            "Replay of the plan in one arena filled with NaN",
            validation.replay,
            "".join(f"; {note}" for note in replayed),
        ),
        ("Two steps with each donated pair in one buffer", validation.donated, ""),
    ):
        if result is not None:
            yield doc.Check(passed=result == "passed", text=f"{text}: {result}{detail}.")
    passed, limits = validation.status == "passed", ""
    for note in validation.notes:
        # A note of a failed validation is a reason, but for the one that begins so.
        matches = note.startswith(_PLAN_MATCHES)
        if matches or not passed:
            text, separator, unchecked = note.partition("; not checked")
            yield doc.Check(passed=matches, text=f"{text[:1].upper()}{text[1:]}.")
            if separator:
                limits = f"Not checked{unchecked}."
        elif not note.startswith(_REPLAY):
            yield doc.Note("note", note)
    lines: list[doc.Prose] = [
        (doc.Name(difference.output), f": {_difference_text(difference)}")
        for difference in validation.differences[:_MAX_DIFFERENCES]
    ]
    hidden = len(validation.differences) - _MAX_DIFFERENCES
    if hidden > 0:
        lines.append(f"and {hidden} more outputs")
    yield from doc.section("Outputs that differ", doc.Items(tuple(lines)) if lines else None)
    if limits:
        yield doc.Paragraph(limits, "soft")


def _difference_text(difference: Difference) -> str:
    """Return how an output differs; a reason is given where elements could not be compared."""
    if difference.reason:
        return difference.reason
    return (
        f"{difference.elements} elements differ, {difference.beyond} of them beyond the "
        f"tolerance; largest difference: {difference.max_abs_diff:g}"
    )


def _validation_json(proof: Proof) -> str:
    values = {item.name: getattr(proof.validation, item.name) for item in fields(Validation)}
    return result_json("validate", ValidationResult(**values, runtime=proof.runtime))


VALIDATE: Mapping[str, Callable[[Proof], str]] = {
    **renderers(lambda proof: doc.without_definitions(validation_document(proof)), "text"),
    "json": _validation_json,
}
