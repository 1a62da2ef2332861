"""The runtime options of `memplan settings`: Python to paste, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.reporting.plans.json_text import document
from memplan_cli.reporting.snippet import settings_snippet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.results.observations import Peaks
    from memplan_cli.runtime.steer import Recommendation


def text(found: Recommendation, model: str) -> str:
    """Return the session as Python, what it needs as comments on top."""
    return "\n".join(
        (*_comments(found), settings_snippet(found.settings, model, found.provider))
    )


def as_json(found: Recommendation, model: str) -> str:
    """Return the options in the contract's layout, with what they need."""
    content = {
        "model": model,
        "provider": found.provider,
        "settings": to_json(found.settings),
        "predicted": to_json(found.predicted),
        "observed": to_json(found.observed),
        "notes": list(found.notes),
    }
    return document(content)


def _comments(found: Recommendation) -> Iterator[str]:
    yield f"# predicted: {_peaks(found.predicted, 'held, weights aside')}"
    if found.observed:
        yield f"# observed: {_peaks(found.observed, 'held')}"
    yield from (f"# {note}" for note in found.notes)


def _peaks(peaks: Peaks, held: str) -> str:
    named = {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        held: peaks.held,
    }
    return ", ".join(
        f"{name} {'not known' if size is None else format_size(size)}"
        for name, size in named.items()
    )


RENDERERS: Mapping[str, Callable[[Recommendation, str], str]] = {"text": text, "json": as_json}
