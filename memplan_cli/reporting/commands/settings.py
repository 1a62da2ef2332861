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
from memplan_cli.reporting.media import draw_document, result_json
from memplan_cli.reporting.snippets import (
    c_snippet,
    cpp_snippet,
    process_environment,
    settings_snippet,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.runtime.settings_search.predicted import SettingsChoice


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
    """Return Python code that creates the session, with its memory in comments above."""
    comments = [f"predicted: {_peaks_text(choice.predicted, 'reserved, no weights')}"]
    if choice.observed:
        comments.append(f"observed: {_peaks_text(choice.observed, 'reserved')}")
    lines = [f"# {comment}" for comment in (*comments, *choice.notes)]
    snippet = settings_snippet(choice.settings, model, choice.provider)
    return doc.Document("", (doc.Code((*lines, *snippet.splitlines())),))


def _peaks_text(peaks: Peaks, reserved_name: str) -> str:
    """Return the sizes of a run on one line.

    ``reserved_name`` says whether ``held``, the bytes that the arena reserved, includes weights.
    """
    sizes = {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        reserved_name: peaks.held,
    }
    return ", ".join(
        f"{name} {'unknown' if size is None else format_size(size)}"
        for name, size in sizes.items()
    )


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
    "text": lambda choice, model: draw_document(settings_document(choice, model), "text"),
    "json": _settings_json,
    "c": _native_code(c_snippet),
    "cpp": _native_code(cpp_snippet),
}
