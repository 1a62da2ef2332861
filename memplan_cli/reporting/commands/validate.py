"""`memplan validate`: the comparison of a written model with its original."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import Validation
from memplan_cli.core.results.report import RuntimeSummary  # noqa: TC001 - a type to read by
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import draw_document, result_json
from memplan_cli.reporting.plans.runtime import evidence, reference_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.observations import Difference, Peaks
    from memplan_cli.core.results.report import Proof

_MAX_DIFFERENCES = 20
"""Differing outputs that a text lists; JSON has all."""

_PLAN_MATCHES = "the plan matches the model"
"""The start of the note of `checking` on a plan without an error."""

_PLAN_DIFFERS = "plan: "
"""The start of each note on an error of the plan."""

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
    times = (
        f"Median time of a run: original {before}, written {after}, each in its own process."
    )
    return doc.Document(
        f"Validation {validation.status} on {validation.provider}",
        (
            *_checks(validation),
            *_notes(validation),
            *doc.section("Outputs that differ", _differences(validation.differences)),
            *_unchecked(validation),
            *evidence(proof.runtime),
            *([doc.Paragraph(times)] if before and after else []),
        ),
    )


def _milliseconds(peaks: Peaks | None) -> str:
    """Return the time of a run; empty if it was not measured."""
    if peaks is None or peaks.milliseconds is None:
        return ""
    return f"{peaks.milliseconds:.3g} ms"


def _checks(validation: Validation) -> Iterator[doc.Check]:
    """Yield the results of the comparison of outputs, the replay, and the steps with donated buffers."""
    reference = reference_text(validation)
    if validation.bit_identical:
        yield doc.Check(f"The outputs are bit-identical to {reference}.")
    elif validation.max_abs_diff is not None:
        text = f"The largest difference from {reference} is {validation.max_abs_diff:g}."
        yield doc.Check(text, passed=validation.status == "passed")
    if validation.replay is not None:
        notes = (note for note in validation.notes if note.startswith(_REPLAY))
        details = "".join(f"; {note.removeprefix(_REPLAY)}" for note in notes)
        text = (
            f"Replay of the plan in one arena filled with NaN: {validation.replay}{details}."
        )
        yield doc.Check(text, passed=validation.replay == "passed")
    if validation.donated is not None:
        text = f"Two steps with each donated pair in one buffer: {validation.donated}."
        yield doc.Check(text, passed=validation.donated == "passed")


def _notes(validation: Validation) -> Iterator[doc.Check | doc.Note]:
    """Yield whether the plan matches the model, why outputs were not compared, and all other notes.

    The reason for no comparison is the first note. Notes on the replay are in its check.
    """
    was_compared = validation.bit_identical or validation.max_abs_diff is not None
    for index, note in enumerate(validation.notes):
        if note.startswith(_PLAN_MATCHES):
            # "the plan matches the model: 12 nodes ...; not checked ...": `_unchecked` yields the second part.
            yield doc.Check(_sentence(note.partition("; ")[0]))
        elif note.startswith(_PLAN_DIFFERS) or (index == 0 and not was_compared):
            yield doc.Check(_sentence(note), passed=False)
        elif not note.startswith(_REPLAY):
            yield doc.Note("note", note)


def _unchecked(validation: Validation) -> Iterator[doc.Paragraph]:
    """Yield the limits of the comparison of plan and model: all but the first part of its note."""
    for note in validation.notes:
        if note.startswith(_PLAN_MATCHES):
            yield doc.Paragraph(_sentence(note.partition("; ")[2]), "soft")


def _sentence(text: str) -> str:
    """Return a text with a capital at its start and a period at its end."""
    return f"{text[:1].upper()}{text[1:]}."


def _differences(differences: Sequence[Difference]) -> doc.Items | None:
    """Return the first of the outputs that differ, and the number of the others; None if none differs."""
    lines: list[doc.Prose] = [
        (doc.Name(difference.output), f": {_difference_text(difference)}")
        for difference in differences[:_MAX_DIFFERENCES]
    ]
    hidden = len(differences) - _MAX_DIFFERENCES
    if hidden > 0:
        lines.append(f"and {hidden} more outputs")
    return doc.Items(tuple(lines)) if lines else None


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
    "text": lambda proof: draw_document(
        doc.without_definitions(validation_document(proof)), "text"
    ),
    "json": _validation_json,
}
