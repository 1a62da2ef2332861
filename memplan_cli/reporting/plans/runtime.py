"""The sections on the runtime: its memory, predicted and observed, and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU
from memplan_cli.core.serialization import to_json
from memplan_cli.loading.heap import LOADING_ENVIRONMENT_TEXT
from memplan_cli.reporting import document as doc
from memplan_cli.reporting.hints import over_budget

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.observations import Peaks, Validation
    from memplan_cli.core.results.report import Report, RuntimeSummary

_MEASURES: Mapping[str, str] = {
    "first run peak": "most bytes of intermediates and outputs live in the first run",
    "steady peak": "the same from the second run on, the memory pattern's block included",
    "arena": "what the runtime's arena reserves from the system, in whole regions, weights included",
    "arena, without weights": "the same, less the weights in it",
    "process, load": "highest resident bytes until the session is created, beyond a process "
    "that has loaded nothing",
    "process, run": "the same including the first runs",
    "process, kept": "bytes more if the caller keeps the outputs of each run until the next one returns",
    "process, private": "anonymous bytes after these runs, which no other process shares",
    "process, file": "bytes of mapped files after these runs, shared with other processes and "
    "evictable",
    "process, device": "bytes on CUDA devices after these runs, the context included",
}


def size_or_dash(size: int | None) -> str:
    """Return a size as text; a dash if it is None."""
    return "-" if size is None else format_size(size)


def evidence(runtime: RuntimeSummary | None) -> Iterator[doc.Block]:
    """Yield a table of predicted and observed memory of the original and the written model.

    Nothing is yielded if nothing was predicted or observed.
    """
    if runtime is None:
        return
    # Title of a column -> its sizes by measure. A ``>`` aligns the column to the right.
    columns: dict[str, Mapping[str, int | None]] = {}
    for name, side in (("before", "original"), ("after", "optimized")):
        predicted, observed = runtime.predicted.get(side), runtime.observed.get(side)
        columns[f">{name}: predicted"] = _predicted_sizes(predicted) if predicted else {}
        if runtime.observed:
            columns[f">{name}: observed"] = _observed_sizes(observed) if observed else {}
    rows = tuple(
        (name, *(size_or_dash(sizes.get(name)) for sizes in columns.values()))
        for name in _MEASURES
        if any(sizes.get(name) is not None for sizes in columns.values())
    )
    if not rows:
        return
    kind = "Predicted and observed" if runtime.observed else "Predicted"
    title = f"{kind}: {runtime.name} {runtime.version}, {runtime.provider}"
    meanings = tuple(f"{name}: {_MEASURES[name]}" for name, *_ in rows)
    yield from doc.section(
        title,
        doc.Table(doc.columns("", *columns), rows),
        doc.Meanings(meanings),
        _time_block(runtime),
    )


def _time_block(runtime: RuntimeSummary) -> doc.Block | None:
    """Return the relative time of a run, if both models were timed in alternation."""
    time = runtime.time
    if time is None:
        return None
    line = (
        f"time of a run relative to the original: {time.median:.2f} (quartiles {time.low:.2f} "
        f"and {time.high:.2f} of {time.rounds} alternating rounds)"
    )
    return doc.Items((line,))


def _predicted_sizes(peaks: Peaks) -> Mapping[str, int | None]:
    """Return predicted bytes by measure. The predicted arena is without weights."""
    return {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        "arena, without weights": peaks.held,
        **_process_sizes(peaks),
    }


def _observed_sizes(peaks: Peaks) -> Mapping[str, int | None]:
    """Return observed bytes by measure. The observed arena is with weights, and without if known."""
    without_weights = (
        None if peaks.held is None or peaks.weights is None else peaks.held - peaks.weights
    )
    return {
        "first run peak": peaks.first_run_peak,
        "steady peak": peaks.steady_peak,
        "arena": peaks.held,
        "arena, without weights": without_weights,
        **_process_sizes(peaks),
    }


def _process_sizes(peaks: Peaks) -> Mapping[str, int | None]:
    """Return the bytes of the process by measure; empty if they are unknown."""
    sizes = {} if peaks.process is None else to_json(peaks.process)
    return {f"process, {name}": size for name, size in sizes.items()}


def settings_section(runtime: RuntimeSummary | None) -> Iterator[doc.Block]:
    """Yield the runtime options of the written model as ``scope.key = value``.

    The title says if no run has confirmed them.
    """
    if runtime is None or runtime.settings is None:
        return
    lines = []
    for scope, options in to_json(runtime.settings).items():
        if scope == "io_binding":  # the section on donated buffers lists these
            continue
        for key, value in options.items():
            lines.append(doc.Name(f"{scope}.{key} = {value}"))
    title = "Settings of the written model"
    written = runtime.observed.get("optimized")
    if written is None or (written.first_run_peak is None and written.process is None):
        title += ", predicted and not confirmed by a run"
    hint = reuse = None
    if runtime.provider == CPU:
        hint = doc.Paragraph(
            "memplan.load applies them. Other programs also need "
            f"{LOADING_ENVIRONMENT_TEXT} in their environment.",
            "soft",
        )
    if runtime.settings.session.get("enable_mem_reuse") is False:
        reuse = doc.Paragraph(
            "Without enable_mem_reuse, the arena reuses the memory of freed tensors.", "soft"
        )
    if lines:
        yield from doc.section(title, doc.Items(tuple(lines)), reuse, hint)


def reason_not_written(report: Report) -> str:
    """Return why `optimize` wrote nothing: a missed budget, a model that fails, or other outputs."""
    validation = report.validation
    if budget_message := over_budget(report):
        return budget_message
    assert validation is not None  # noqa: S101 - without one, a model within its budget is written
    if validation.status == "passed":  # the further check of donated outputs failed
        return "two steps with donated outputs in the buffers of their inputs fail or differ"
    if validation.max_abs_diff is None:  # nothing was compared, and a note says why
        return validation.notes[0]
    reason = (
        "the outputs of the rewritten model differ from those of "
        f"{reference_text(validation)}, by up to {validation.max_abs_diff:.2g}"
    )
    if validation.reference == "defaults":
        reason += " (--reference unoptimized compares with graph optimization disabled)"
    return reason


def reference_text(validation: Validation) -> str:
    """Return the run of the original that outputs were compared with, to follow "bit-identical to"."""
    if validation.reference == "defaults":
        return "a default run of the original"
    difference = validation.diff_from_defaults
    if difference is None:
        return "a run of the original without graph optimization"
    distance = f"by up to {difference:.2g}" if difference else "in no element"
    return f"a run of the original without graph optimization, which differs from a default run {distance}"
