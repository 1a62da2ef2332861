"""`memplan settings`: the session options for a model, as code to copy or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import (  # noqa: TC001 - types to read by
    Peaks,
    RuntimeSettings,
)
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import result_json
from memplan_cli.reporting.media.text import Screen, draw
from memplan_cli.reporting.snippets import (
    c_snippet,
    cpp_snippet,
    process_environment,
    settings_snippet,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.runtime.settings_search.predicted import SettingsChoice


_COMMENT_WIDTH = 78
"""Columns of a comment without its mark."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The runtime options with which a model needs the least memory.

    Attributes:
        model: the model's file.
        provider: ONNX Runtime's name of the execution provider.
        settings: the options.
        predicted: predicted bytes of a run; ``held`` is without weights.
        environment: variables for the process of programs that do not use `memplan_cli.load`.
        observed: bytes that were measured; ``held`` is with weights; null: the model was not run.
        notes: remarks for the user.
    """

    model: str
    provider: str
    settings: RuntimeSettings
    environment: Mapping[str, str]
    predicted: Peaks
    observed: Peaks | None
    notes: tuple[str, ...]


def settings_document(choice: SettingsChoice, model: str) -> doc.Document:
    """Return the memory of a run with the settings, predicted and observed, and the notes."""
    sides = {"predicted": choice.predicted, "observed": choice.observed}
    known = {name: peaks for name, peaks in sides.items() if peaks is not None}
    rows = [
        ("first run, peak", *(_size(peaks.first_run_peak) for peaks in known.values())),
        ("later runs, peak", *(_size(peaks.steady_peak) for peaks in known.values())),
        ("reserved by the arena", *(_size(peaks.held) for peaks in known.values())),
    ]
    reserved = "The arena's prediction leaves out weights"
    reserved += ", the observation includes them." if choice.observed else "."
    return doc.Document(
        (doc.Name(model), ": session settings"),
        (
            doc.Table(
                doc.columns("memory of a run", *(f">{name}" for name in known)), tuple(rows)
            ),
            doc.Paragraph(reserved),
            *map(doc.Paragraph, choice.notes),
        ),
        choice.provider,
    )


def comment_text(document: doc.Document) -> str:
    """Return a document as Python comments, which fit into 80 columns."""
    lines = draw(document, Screen(_COMMENT_WIDTH)).splitlines()
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_size(size)


def _settings_code(choice: SettingsChoice, model: str) -> str:
    """Return Python code that creates the session, with its memory in comments above."""
    snippet = settings_snippet(choice.settings, model, choice.provider)
    return comment_text(settings_document(choice, model)) + snippet


def _settings_json(choice: SettingsChoice, model: str) -> str:
    result = ModelSettings(
        model=model,
        provider=choice.provider,
        settings=choice.settings,
        environment=process_environment(choice.provider),
        predicted=choice.predicted,
        observed=choice.observed,
        notes=choice.notes,
    )
    return result_json("settings", result)


def _native_code(
    snippet: Callable[[RuntimeSettings, str, str], str],
) -> Callable[[SettingsChoice, str], str]:
    """Return a renderer of C or C++ code: the notes as comments, then the snippet."""

    def render(choice: SettingsChoice, model: str) -> str:
        notes = "".join(f"// {note}\n" for note in choice.notes)
        return notes + snippet(choice.settings, model, choice.provider)

    return render


SETTINGS: Mapping[str, Callable[[SettingsChoice, str], str]] = {
    "text": _settings_code,
    "json": _settings_json,
    "c": _native_code(c_snippet),
    "cpp": _native_code(cpp_snippet),
}
