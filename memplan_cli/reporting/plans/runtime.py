"""What a runtime needs, predicted and observed, before and after; and how it is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import to_json
from memplan_cli.reporting import document as doc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.observations import Peaks
    from memplan_cli.core.results.report import Report, RuntimeFacts

_MEASURES: Mapping[str, str] = {
    "first run peak": "most bytes of intermediates and outputs live in the first run",
    "steady peak": "the same from the second run on, the memory pattern's block included",
    "reserved": "what the runtime's arena reserved from the system, weights included",
    "reserved, no weights": "the same without the weights that are in the arena",
    "process, load": "highest resident bytes beyond a process that has loaded nothing, when the "
    "session stands",
    "process, run": "the same with the first runs",
    "process, private": "anonymous bytes after them, which no other process shares",
    "process, file": "bytes of mapped files after them, shared and dropped where room is needed",
    "process, device": "bytes on CUDA devices after them, the context included",
}

_HEADS = ("", ">original: predicted", ">observed", ">optimized: predicted", ">observed")


def size_or_dash(size: int | None) -> str:
    """Return a size for people; a dash where there is none."""
    return "-" if size is None else format_size(size)


def evidence(runtime: RuntimeFacts | None) -> Iterator[doc.Block]:
    """Yield predicted and observed side by side; nothing where nothing was run."""
    if runtime is None or not (runtime.predicted or runtime.observed):
        return
    sides = (
        (found, runtime_side.get(side))
        for side in ("original", "optimized")
        for found, runtime_side in (
            (_predicted, runtime.predicted),
            (_observed, runtime.observed),
        )
    )
    known = [found(peaks) if peaks else {} for found, peaks in sides]
    rows = [
        (name, *(size_or_dash(side.get(name)) for side in known))
        for name in _MEASURES
        if any(side.get(name) is not None for side in known)
    ]
    title = f"Predicted and observed: {runtime.name} {runtime.version}, {runtime.provider}"
    meanings = tuple(f"{name}: {_MEASURES[name]}" for name, *_ in rows)
    if rows:
        table = doc.Table(doc.columns(*_HEADS), tuple(rows))
        line = time_line(runtime)
        time = doc.Items((line,)) if line else None
        yield from doc.section(title, table, doc.Meanings(meanings), time, _together(runtime))


def _together(runtime: RuntimeFacts) -> doc.Block | None:
    """Return what several processes take that hold a model at once, where it was measured."""
    found = runtime.processes
    if found is None:
        return None
    sizes = f"{size_or_dash(found.original)} -> {size_or_dash(found.optimized)}"
    return doc.Paragraph(
        f"{found.count} processes that hold the model at once: {sizes} together (PSS, Python and "
        "the runtime included)"
    )


def _predicted(peaks: Peaks) -> Mapping[str, int | None]:
    """Return a prediction: of the arena, it leaves the weights out."""
    return {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        "reserved, no weights": peaks.held,
        **_process(peaks),
    }


def _observed(peaks: Peaks) -> Mapping[str, int | None]:
    known = peaks.held is not None and peaks.weights is not None
    aside = (peaks.held or 0) - (peaks.weights or 0)
    return {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        "reserved": peaks.held,
        "reserved, no weights": aside if known else None,
        **_process(peaks),
    }


def _process(peaks: Peaks) -> Mapping[str, int | None]:
    sizes = {} if peaks.process is None else to_json(peaks.process)
    return {f"process, {name}": size for name, size in sizes.items()}


def settings(runtime: RuntimeFacts | None) -> Iterator[doc.Block]:
    """Yield the runtime's options for the written model, ``scope.key = value``."""
    if runtime is None or runtime.settings is None:
        return
    lines = tuple(
        doc.Name(f"{scope}.{key} = {value}{_source(runtime, f'{scope}.{key}')}")
        for scope, options in to_json(runtime.settings).items()
        if scope != "io_binding"  # a line for each donated pair is in its own section
        for key, value in options.items()
    )
    yield from doc.section(
        "Settings of the written model", doc.Items(lines) if lines else None
    )


def _source(runtime: RuntimeFacts, key: str) -> str:
    """Return who said a setting, where that was a run."""
    source = runtime.settings_sources.get(key)
    return f" ({source})" if source else ""


def time_line(runtime: RuntimeFacts | None) -> str:
    """Return how long a run of the written model takes, where both were timed in turn."""
    if runtime is None or runtime.time is None:
        return ""
    found = runtime.time
    return (
        f"time of a run against the original's: {found.median:.2f} ({found.low:.2f} to "
        f"{found.high:.2f}, the quartiles of {found.rounds} rounds in turn)"
    )


def validation(report: Report) -> Iterator[doc.Block]:
    """Yield the verdict of the comparison, or that there was none."""
    checked = report.validation
    words = ["not validated"]
    if checked is not None:
        words = [f"{checked.status} on {checked.provider}"]
        if checked.bit_identical is not None:
            words.append("bit for bit" if checked.bit_identical else "outputs differ")
        if checked.replay is not None:
            words.append(f"replay {checked.replay}")
        if checked.donated is not None:
            words.append(f"two steps with donated buffers {checked.donated}")
    yield from doc.section("Validation", doc.Paragraph(", ".join(words)))
