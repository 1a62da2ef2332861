"""Requests of changing size, as documents: the settings for all of them, and a soak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU
from memplan_cli.core.serialization import SORTED, to_json
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.escape import html
from memplan_cli.reporting.media import draw_document, json_text, renderers, result_json
from memplan_cli.reporting.media.chart import bar_lines, sampled_maxima
from memplan_cli.reporting.media.html import draw
from memplan_cli.reporting.snippets import c_snippet, cpp_snippet, settings_snippet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.features.serving.settings import ServingSettings
    from memplan_cli.features.serving.soak import Course, Soak

_SPARK = 24
"""Characters of a curve in a table."""

_DEFINITIONS = (
    "growth: peak of private memory after a request; highest: peak of resident memory at any time; "
    "both beyond the process after its session was created. held: peak of the arena, without weights"
)

_STYLE = (
    "html{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .6rem;text-align:left}"
    ".n{text-align:right}.soft{color:#777}svg{width:100%;height:8rem}"
    ".error{color:#b00}.verdict{font-weight:600}pre{overflow:auto}"
)


def bounds_text(bounds: Bounds) -> str:
    """Return bounds as people write them: ``batch=1..8, seq=16..512``."""
    return ", ".join(f"{name}={low}..{high}" for name, (low, high) in sorted(bounds.items()))


def bound_text(serving: ServingSettings) -> str:
    """Say in one sentence what the arena holds at most."""
    live = f"one request needs at most {format_size(serving.live)}"
    bound = serving.chosen.bound
    if bound is None:
        return f"no bound of the arena is known for any sequence of requests; {live}"
    return f"the arena holds at most {format_size(bound)} for any sequence of requests; {live}"


def _candidates(serving: ServingSettings) -> doc.Table:
    rows = tuple(
        (
            one.name,
            format_size(one.highest),
            "-" if one.bound is None else format_size(one.bound),
            "chosen" if one is serving.chosen else "",
        )
        for one in sorted(serving.candidates, key=lambda one: (one.bound is None, one.highest))
    )
    titles = doc.columns("candidate", ">held, simulated", ">bound", "")
    return doc.Table(titles, rows)


def settings_text(
    serving: ServingSettings, bounds: Bounds, notes: tuple[str, ...], model: str
) -> str:
    """Return the session as Python, what its arena holds at most as comments on top."""
    table = draw_document(doc.Document("", (_candidates(serving),)), "text").splitlines()
    comments = (f"for {bounds_text(bounds)}: {bound_text(serving)}", *notes, *table)
    lines = [f"# {comment}".rstrip() for comment in comments]
    snippet = settings_snippet(serving.chosen.settings, model).splitlines()
    return draw_document(doc.Document("", (doc.Code((*lines, *snippet)),)), "text")


@dataclass(frozen=True, slots=True)
class RangeSettings:
    """The runtime options with which a model needs the least memory for all sizes in bounds.

    Attributes:
        model: the model's file.
        provider: ONNX Runtime's name of the execution provider.
        bounds: the smallest and the largest number of each dimension.
        settings: the options.
        serving: what the arena is predicted to hold.
        notes: remarks for the user.
    """

    model: str
    provider: str
    bounds: Bounds = field(metadata=SORTED)
    settings: RuntimeSettings
    serving: ServingSettings
    notes: tuple[str, ...]


def settings_json(
    serving: ServingSettings, bounds: Bounds, notes: tuple[str, ...], model: str
) -> str:
    """Return the settings as JSON."""
    result = RangeSettings(model, CPU, bounds, serving.chosen.settings, serving, notes)
    return json_text(to_json(result))


def _native(
    snippet: Callable[[RuntimeSettings, str, str], str],
) -> Callable[[ServingSettings, Bounds, tuple[str, ...], str], str]:
    """Return what renders settings for a range as code of another language, notes on top."""

    def rendered(
        serving: ServingSettings, bounds: Bounds, notes: tuple[str, ...], model: str
    ) -> str:
        said = (f"for {bounds_text(bounds)}: {bound_text(serving)}", *notes)
        comments = "".join(f"// {note}\n" for note in said)
        return comments + snippet(serving.chosen.settings, model, CPU)

    return rendered


RANGE_SETTINGS: Mapping[
    str, Callable[[ServingSettings, Bounds, tuple[str, ...], str], str]
] = {
    "text": settings_text,
    "json": settings_json,
    "c": _native(c_snippet),
    "cpp": _native(cpp_snippet),
}


def soaked(found: Soak) -> doc.Document:
    """Return the verdict, and what each configuration took."""
    served = found.courses[0].requests
    fewer = f" of {found.asked}" if served < found.asked else ""
    about = f"{served}{fewer} requests, {found.sequence}, seed {found.seed}"
    return doc.Document(
        (doc.Name(found.model), f", {bounds_text(found.bounds)}: {about}"),
        (
            *_verdicts(found),
            doc.Paragraph(bound_text(found.serving)),
            _courses(found),
            doc.Paragraph(_DEFINITIONS, "soft"),
            *(doc.Note("note", note) for note in found.notes),
        ),
    )


def _verdicts(found: Soak) -> Iterator[doc.Block]:
    for name in found.unequal:
        yield doc.Note("error", f"outputs differ between the defaults and: {name}")
    bound = found.serving.chosen.bound
    if found.exceeded and found.held is not None and bound is not None:
        seen, most = format_size(found.held), format_size(bound)
        yield doc.Note("error", f"the arena held {seen}, above its bound of {most}")
    if found.passed:
        kept = (
            ""
            if bound is None or found.held is None
            else ", and the arena stayed within its bound"
        )
        yield doc.Paragraph(f"The outputs are the same{kept}.", "verdict")


def _courses(found: Soak) -> doc.Table:
    most = max((one.growth or 0 for one in found.courses), default=0)
    rows = tuple(
        (
            one.name,
            _known(one.growth),
            _known(one.highest),
            _known(one.held),
            f"{one.median:.2f}",
            f"{one.slowest:.2f}",
            f"{one.effort:.2f}",
            _spark(one, most),
        )
        for one in found.courses
    )
    titles = doc.columns(
        "settings",
        ">growth",
        ">highest",
        ">held",
        ">median ms",
        ">99th %",
        ">CPU ms",
        "private",
    )
    return doc.Table(titles, rows)


def _known(size: int | None) -> str:
    return "-" if size is None else format_size(size)


def _points(course: Course) -> tuple[tuple[int, int], ...]:
    return tuple((sample.request, max(sample.private, 0)) for sample in course.samples)


def _spark(course: Course, most: int) -> str:
    """Return private memory over the requests in one line, on the scale of all curves."""
    columns = sampled_maxima(_points(course), course.requests, min(_SPARK, course.requests))
    drawn_line = bar_lines([*columns, most], 1)
    return drawn_line[0][: len(columns)] if drawn_line else ""


def _page(found: Soak) -> str:
    """Return a page that needs nothing from any network, with a curve a configuration."""
    document = soaked(found)
    charts = (
        block
        for one in found.courses
        for block in doc.section(
            one.name,
            doc.Chart(
                _points(one),
                one.requests,
                0,
                f"private memory over {one.requests} requests, at most {_known(one.growth)}",
            ),
        )
    )
    head, sections = draw(doc.Document("", (*document.blocks, *charts)))
    title = f"{html(found.model)}: {html(bounds_text(found.bounds))}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1>{head}{sections}</html>\n"
    )


SOAK: Mapping[str, Callable[[Soak], str]] = {
    **renderers(soaked, "text"),
    "json": lambda found: result_json("soak", found),
    "html": _page,
}
