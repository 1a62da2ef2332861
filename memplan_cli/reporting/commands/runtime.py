"""What is known of runtimes, as documents: doctor, settings, simulate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import (  # noqa: TC001 - types to read by
    Peaks,
    RuntimeSettings,
)
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.media import drawn, renderers
from memplan_cli.reporting.media.json_text import result_json
from memplan_cli.reporting.native_snippet import c_snippet, cpp_snippet
from memplan_cli.reporting.snippet import settings_snippet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.runtime.doctor import Diagnosis
    from memplan_cli.runtime.settings_search.choice import SettingsChoice
    from memplan_cli.runtime.simulate.allocators import AllocatorComparison


_RESERVED = (
    "reserved: bytes taken from the system for intermediates and outputs of one run; the static "
    "plan is of intermediates alone, in the order that needs least"
)


_UNFUSED = (
    "ort: the runtime's own arena on this graph as it is in the file; at its default level the "
    "runtime fuses nodes first, and may need less: `memplan settings --measure` observes that"
)


def diagnosis(found: Diagnosis) -> doc.Document:
    """Return versions, the providers that really work, and what to do about the rest."""
    states = tuple(
        f"{probe.provider}: works"
        if probe.works
        else f"{probe.provider}: does not work: {probe.reason}"
        for probe in found.probes
    )
    problems = doc.Items(found.problems) if found.problems else doc.Paragraph("No problems.")
    return doc.Document(
        f"Python {found.python}",
        (
            doc.Table(doc.columns("package", "version"), found.versions),
            *doc.section("Providers, by creating a session on each", doc.Items(states)),
            *_looked_at(found.file),
            *doc.section("Problems", problems),
        ),
    )


def _looked_at(facts: tuple[tuple[str, str], ...]) -> Iterator[doc.Block]:
    """Yield what a file says of itself, where one was looked at."""
    if facts:
        yield from doc.section("The file", doc.Table(doc.columns("", ""), facts))


DOCTOR: Mapping[str, Callable[[Diagnosis], str]] = {
    **renderers(diagnosis, "text"),
    "json": lambda found: result_json("doctor", found),
}


def recommended(found: SettingsChoice, model: str) -> doc.Document:
    """Return the session as Python, what it needs as comments on top."""
    comments = [f"predicted: {_peaks(found.predicted, 'reserved, no weights')}"]
    if found.observed:
        comments.append(f"observed: {_peaks(found.observed, 'reserved')}")
    lines = [f"# {comment}" for comment in (*comments, *found.notes)]
    snippet = settings_snippet(found.settings, model, found.provider)
    return doc.Document("", (doc.Code((*lines, *snippet.splitlines())),))


def _peaks(peaks: Peaks, reserved: str) -> str:
    named = {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        reserved: peaks.held,
    }
    return ", ".join(f"{name} {_known(size)}" for name, size in named.items())


def _known(size: int | None) -> str:
    return "not known" if size is None else format_size(size)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The runtime options with which a model needs the least memory.

    Attributes:
        model: the model's file.
        provider: ONNX Runtime's name of the execution provider.
        settings: the options.
        predicted: predicted bytes of a run; ``held`` is without weights.
        observed: bytes that were measured; ``held`` is with weights; null: the model was not run.
        notes: remarks for the user.
    """

    model: str
    provider: str
    settings: RuntimeSettings
    predicted: Peaks
    observed: Peaks | None
    notes: tuple[str, ...]


def _settings_json(found: SettingsChoice, model: str) -> str:
    result = ModelSettings(
        model, found.provider, found.settings, found.predicted, found.observed, found.notes
    )
    return result_json("settings", result)


def _native(
    snippet: Callable[[RuntimeSettings, str, str], str],
) -> Callable[[SettingsChoice, str], str]:
    """Return what renders a recommendation as code of another language, notes on top."""

    def rendered(found: SettingsChoice, model: str) -> str:
        notes = "".join(f"// {note}\n" for note in found.notes)
        return notes + snippet(found.settings, model, found.provider)

    return rendered


SETTINGS: Mapping[str, Callable[[SettingsChoice, str], str]] = {
    "text": lambda found, model: drawn(recommended(found, model), "text"),
    "json": _settings_json,
    "c": _native(c_snippet),
    "cpp": _native(cpp_snippet),
}


def simulation(found: AllocatorComparison) -> doc.Document:
    """Return a row for each allocator, the static plan first."""
    rows = [("static plan, level 2", _known(found.planned), "")]
    rows += [
        (
            run.allocator,
            format_size(run.held),
            f"{run.fragmentation:.1%} of it never needed at once",
        )
        for run in found.simulations
    ]
    table = doc.Table(doc.columns("allocator", ">reserved", "fragmentation"), tuple(rows))
    words = [_RESERVED]
    if any(run.allocator == "ort" for run in found.simulations):
        words.append(_UNFUSED)
    return doc.Document("", (table, *(doc.Paragraph(line, "soft") for line in words)))


SIMULATE: Mapping[str, Callable[[AllocatorComparison], str]] = {
    **renderers(simulation, "text"),
    "json": lambda found: result_json("simulate", found),
}
