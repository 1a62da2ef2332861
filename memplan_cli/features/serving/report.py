"""Reports on requests of changing size: settings for a range of sizes, and the soak test."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU
from memplan_cli.core.serialization import Keys, to_json
from memplan_cli.features.serving.sizes import BOUNDS_FORM
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.commands.settings import comment_text
from memplan_cli.reporting.media import json_text, result_renderers
from memplan_cli.reporting.media.chart import bar_lines, sampled_maxima
from memplan_cli.reporting.plans.runtime import size_or_dash
from memplan_cli.reporting.snippets import c_snippet, cpp_snippet, settings_snippet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.features.serving.settings import ServingSettings
    from memplan_cli.features.serving.soak import ConfigurationRun, Soak

_SPARKLINE_WIDTH = 14
"""Characters of a curve in a table."""

_DEFINITIONS = (
    "growth: peak of private memory after a request; highest: peak of resident memory at any time; "
    "both beyond the process after its session was created. held: peak of the arena, without "
    "weights."
)


def bounds_text(bounds: Bounds) -> str:
    """Return bounds as text, in the form of the command line: ``batch=1..8, seq=16..512``."""
    return ", ".join(f"{name}={limits}" for name, limits in sorted(bounds.items()))


def bound_text(serving: ServingSettings) -> str:
    """Return a clause that states the bound of the arena and the largest need of one request."""
    live = f"one request needs at most {format_size(serving.live_bytes)}"
    bound = serving.chosen.bound
    if bound is None:
        return f"no bound of the arena is known for any sequence of requests; {live}"
    return (
        f"the arena holds at most {format_size(bound)} for any sequence of requests, if the outputs of "
        f"each are released before the next; {live}"
    )


def _candidates_table(serving: ServingSettings) -> doc.Table:
    """Return the settings that were compared: those with a bound first, each part by the bytes held.

    The bytes held are the most in simulated sequences of requests. These are equal to the bound if there is
    one: it is the size of a region that every request fits into in simulation.
    """
    rows = tuple(
        (
            candidate.name,
            format_size(candidate.held),
            size_or_dash(candidate.bound),
            "chosen" if candidate is serving.chosen else "",
        )
        for candidate in sorted(serving.candidates, key=lambda c: (c.bound is None, c.held))
    )
    titles = doc.columns("candidate", ">held, simulated", ">bound", "")
    return doc.Table(titles, rows)


@dataclass(frozen=True, slots=True)
class RangeSettingsReport:
    """The runtime options with which a model needs the least memory for all sizes in bounds.

    ``provider`` is ONNX Runtime's name of it; ``notes`` are remarks for the user.
    """

    json_keys: ClassVar[Keys] = (
        "model",
        "provider",
        "bounds",
        ("settings", "serving.chosen.settings"),
        "serving",
        "notes",
    )

    model: str
    bounds: Bounds = field(metadata=BOUNDS_FORM)
    serving: ServingSettings
    notes: tuple[str, ...]
    provider: str = CPU

    @property
    def comments(self) -> tuple[str, ...]:
        """The lines that precede the settings in source code: the bounds, the arena, the notes."""
        return (f"for {bounds_text(self.bounds)}: {bound_text(self.serving)}", *self.notes)


def _python_text(result: RangeSettingsReport) -> str:
    """Return Python code that creates the session, after comments with all candidates."""
    table = _candidates_table(result.serving)
    snippet = settings_snippet(result.serving.chosen.settings, result.model)
    document = doc.Document("", (*map(doc.Paragraph, result.comments), table))
    return comment_text(document) + snippet


def _native_text(
    result: RangeSettingsReport, snippet: Callable[[RuntimeSettings, str, str], str]
) -> str:
    """Return C or C++ code that creates the session, after comments."""
    comments = "".join(f"// {comment}\n" for comment in result.comments)
    return comments + snippet(result.serving.chosen.settings, result.model, result.provider)


RANGE_SETTINGS: Mapping[str, Callable[[RangeSettingsReport], str]] = {
    "text": _python_text,
    "json": lambda result: json_text(to_json(result)),
    "c": partial(_native_text, snippet=c_snippet),
    "cpp": partial(_native_text, snippet=cpp_snippet),
}
"""Format of ``memplan settings --bounds`` -> renderer."""


def soak_document(soak: Soak) -> doc.Document:
    """Return the memory and time of each configuration, and the verdicts of a soak test."""
    requested = f" of {soak.requested}" if soak.served < soak.requested else ""
    subject = f"{soak.served}{requested} requests, {soak.sequence}, seed {soak.seed}"
    return doc.Document(
        (doc.Name(soak.model), f", {bounds_text(soak.bounds)}: {subject}"),
        (
            *_run_tables(soak),
            doc.Paragraph(_DEFINITIONS, "soft"),
            *_verdicts(soak),
            *(doc.Note("note", note) for note in soak.notes),
        ),
    )


def _verdicts(soak: Soak) -> Iterator[doc.Block]:
    """Yield whether the outputs are equal, and whether the arena stayed within its bound.

    The arena is checked if a bound was predicted and the run tells what the arena held.
    """
    for name in soak.differing:
        text = f"The outputs differ between the defaults and: {name}."
        yield doc.Check(passed=False, text=text)
    if not soak.differing:
        yield doc.Check(passed=True, text="The outputs are the same.")
    bound = soak.serving.chosen.bound
    if soak.exceeded:
        text = f"The arena held {size_or_dash(soak.held)}, above its bound of {size_or_dash(bound)}."
        yield doc.Check(passed=False, text=text)
    elif bound is not None and soak.held is not None:
        yield doc.Check(passed=True, text="The arena stayed within its bound.")
    yield doc.Note("note", bound_text(soak.serving))


def _run_tables(soak: Soak) -> Iterator[doc.Table]:
    """Yield the memory with a curve of private memory, and the times, a row for each configuration."""
    max_growth = max((run.growth or 0 for run in soak.runs), default=0)
    yield doc.Table(
        doc.columns("settings", ">growth", ">highest", ">held", "private memory"),
        tuple(
            (
                run.name,
                size_or_dash(run.growth),
                size_or_dash(run.highest),
                size_or_dash(run.held),
                _sparkline(run, max_growth),
            )
            for run in soak.runs
        ),
    )
    yield doc.Table(
        doc.columns("settings", ">median ms", ">99th % ms", ">CPU ms"),
        tuple(
            (run.name, f"{run.median_ms:.2f}", f"{run.p99_ms:.2f}", f"{run.cpu_ms:.2f}")
            for run in soak.runs
        ),
    )


def _sparkline(run: ConfigurationRun, max_growth: int) -> str:
    """Return private memory over the requests as one line of bars; ``max_growth`` is a full bar."""
    width = min(_SPARKLINE_WIDTH, run.requests)
    # Bytes are relative to the process after its session was created: negative ones are drawn as 0.
    curve = [(sample.request, max(sample.private, 0)) for sample in run.samples]
    maxima = sampled_maxima(curve, run.requests, width)
    # Bars are scaled to the largest value: the last column sets the scale, and is cut off.
    lines = bar_lines([*maxima, max_growth], 1)
    return lines[0][: len(maxima)] if lines else ""


SOAK: Mapping[str, Callable[[Soak], str]] = result_renderers("soak", soak_document, "text")
"""Format of ``memplan soak`` -> renderer."""
