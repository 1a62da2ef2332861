"""The runtime's memory for a model as it was and for the written one.

Predicted and observed side by side, for the original under the runtime's defaults and for
the written file under the settings that suit it best: its order as it stands with
optimisation off, or the runtime's own optimisation on top, whichever needs less memory at
no more than five per cent more time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.core.progress import Progress, Tally, silent
from memplan_cli.core.results.observations import CPU, UNOPTIMISED, RuntimeSettings
from memplan_cli.core.results.report import RuntimeFacts
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.runtime.candidates import for_sizes
from memplan_cli.runtime.graph.executed import executed_graph, executed_run
from memplan_cli.runtime.graph.fusions import costly_fusions, without
from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN, offline_program
from memplan_cli.runtime.installed import runtime_version
from memplan_cli.runtime.measured_settings import MOST_RUNS, better_of, recommend, total_of
from memplan_cli.runtime.measuring.measure import Trial, load_cost, measure
from memplan_cli.runtime.measuring.observed import observe
from memplan_cli.runtime.measuring.timing import (
    Timed,
    is_slower,
    second_look,
    slower_note,
    time_ratio,
)
from memplan_cli.runtime.proofs.compare import Comparison, compare
from memplan_cli.runtime.simulate.predict import Executed, needs_run, predict
from memplan_cli.runtime.steer import (
    DEFAULTS,
    Recommendation,
    caveats,
    recommend_unmeasured,
)
from memplan_cli.runtime.workers.session import resolve_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from memplan_cli.core.results.observations import Peaks

_WORTH = 0.98
"""Share that must be left of what is saved before optimisation is taken back."""

TUNING = "searching settings by measuring"
"""The stage in which each process is counted."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two models, and how they are run.

    ``as_written`` says that the written file may only be run as it stands: it holds the
    runtime's own optimised graph, or copies that optimisation would merge back. ``known``
    is an earlier account of the same original, which is then not measured again.
    """

    original: Path
    written: Path
    check: Check
    binding: Binding
    as_written: bool = False
    known: RuntimeFacts | None = None


def runtime_account(
    pair: Pair, progress: Callable[[str], None] | None = None
) -> tuple[RuntimeFacts, tuple[str, ...]]:
    """Predict and measure both models, and choose the written one's settings.

    Returns:
        The report's runtime block, and what has to be said about it.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or a model does not
            run here.
    """
    tally = Tally(progress or silent, TUNING, (pair.known is None) + MOST_RUNS)
    tally.expected += 0 if pair.as_written else MOST_RUNS
    provider = resolve_provider(pair.check.provider)
    trial = replace(Trial.of(pair.check, pair.binding), begins=tally.begin)
    predicted, observed, warnings = _original(pair, trial)
    options = [_searched(tally, partial(_as_written, pair, trial))]
    if not pair.as_written:
        after = executed_run(pair.written, DEFAULTS, trial)
        base = RuntimeSettings()
        search = partial(recommend, pair.written, after, base, trial)
        options.append(_searched(tally, search))
        warnings += worse_by_default(predicted, predict(after, DEFAULTS))
    loading = load_cost(pair.written, provider)
    warnings += (str(loading),) if loading else ()
    observed, *times = second_look(
        Timed(pair.original, DEFAULTS, observed),
        *(Timed(pair.written, option.settings, option.measured) for option in options),
        trial=trial,
    )
    options = [replace(o, observed=peaks) for o, peaks in zip(options, times, strict=True)]
    best = better_of(options, partial(is_slower, before=observed))
    ratio = time_ratio(
        Timed(pair.original, DEFAULTS, observed),
        Timed(pair.written, best.settings, best.measured),
        trial,
    )
    note = slower_note(ratio)
    warnings += (note,) if note else ()
    facts = RuntimeFacts(
        name="onnxruntime",
        version=required_version(),
        provider=provider,
        predicted={"original": predicted, "optimized": best.predicted},
        observed={"original": observed, "optimized": best.measured},
        settings=best.settings,
        settings_sources=best.sources,
        time=ratio,
    )
    return facts, warnings


def _searched(tally: Tally, search: Callable[[], Recommendation]) -> Recommendation:
    """Search settings; of the runs that were expected, those that were not needed are taken off."""
    before = tally.begun
    found = search()
    tally.settle(MOST_RUNS, before)
    return found


def _original(pair: Pair, trial: Trial) -> tuple[Peaks, Peaks, tuple[str, ...]]:
    """Return what the original needs under the defaults, predicted and observed, and notes."""
    if pair.known is not None:
        return pair.known.predicted["original"], pair.known.observed["original"], ()
    before = executed_run(pair.original, DEFAULTS, trial)
    predicted = predict(before, DEFAULTS)
    notes = tuple(caveats(before))
    return predicted, measure(pair.original, DEFAULTS, trial), notes


def best_settings(
    model: Path, binding: Binding, trial: Trial | None = None, progress: Progress = silent
) -> Recommendation:
    """Return the settings for a model as it is; measured where a trial is given, on its provider.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the model does not
            load.
    """
    if trial is None:
        executed = executed_graph(model, DEFAULTS, binding.dims)
        return recommend_unmeasured(executed, for_sizes(DEFAULTS, binding.assumed))
    tally = Tally(progress, TUNING, MOST_RUNS)
    bound = replace(trial.at(binding), begins=tally.begin)
    return replace(_measured_best(model, bound, tally), provider=bound.runs_on)


def settings_as_written(
    model: Path,
    binding: Binding,
    trial: Trial | None = None,
    provider: str = CPU,
    base: RuntimeSettings = RUN_AS_WRITTEN,
) -> Recommendation:
    """Return the settings for a file that has to run as it stands, in its own order.

    Optimisation would merge what was copied, and undo what was cut or fused offline.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the model does not
            run.
    """
    if trial is None:
        file = _file_of(model, binding.dims, provider)
        return recommend_unmeasured(file, for_sizes(base, binding.assumed))
    bound = trial.at(binding)
    executed = _file_as_run(model, bound)
    found = recommend(model, executed, base, bound)
    return replace(found, provider=executed.provider)


def _measured_best(model: Path, trial: Trial, tally: Tally) -> Recommendation:
    executed = executed_run(model, DEFAULTS, trial)
    search = partial(recommend, model, executed, RuntimeSettings(), trial)
    found = _searched(tally, search)
    return (
        _unoptimised(model, found, trial)
        or _less_fused(model, executed, found, trial)
        or found
    )


def _unoptimised(model: Path, found: Recommendation, trial: Trial) -> Recommendation | None:
    """Return settings without the runtime's optimisation, where they are as good and smaller.

    Optimisation fuses, and it gives new nodes new numbers, which the order of the run goes
    by: a training step can need a fifth more with it. Off is taken only where less was
    measured, at no more time, with the bits that the defaults give on the same inputs.
    """
    graph = _file_of(model, trial.dims, trial.runs_on)
    expected = recommend_unmeasured(graph, UNOPTIMISED).predicted
    if not _is_smaller(expected, found.predicted):
        return None
    other = recommend(model, graph, UNOPTIMISED, trial)
    if not _is_smaller(other.measured, found.measured):
        return None
    note = "optimisation off: it gave the bits of the defaults on the inputs tried"
    return _as_good(model, found, replace(other, notes=(*other.notes, note)), trial)


def _less_fused(
    model: Path, executed: Executed, found: Recommendation, trial: Trial
) -> Recommendation | None:
    """Return settings without the fusions that cost workspace, where the arena holds less."""
    fusions = costly_fusions(executed.program)
    if not fusions:
        return None
    base = without(fusions)
    other = recommend(model, executed_run(model, base, trial), base, trial)
    if total_of(other.measured) >= _WORTH * total_of(found.measured):
        return None
    note = (
        f"without {', '.join(fusions)}: it gave the bits of the defaults on the inputs tried"
    )
    return _as_good(model, found, replace(other, notes=(*other.notes, note)), trial)


def _as_good(
    model: Path, found: Recommendation, other: Recommendation, trial: Trial
) -> Recommendation | None:
    """Return the other settings if they are no slower and give the bits of the defaults."""
    before, after = second_look(
        Timed(model, found.settings, found.measured),
        Timed(model, other.settings, other.measured),
        trial=trial,
    )
    if is_slower(after, before):
        return None
    how = Comparison(
        Check(trial.provider, timeout=trial.timeout),
        Binding(trial.dims, trial.feeds),
        trial.specs,
        rewritten_settings=other.settings,
    )
    return other if compare(model, model, how).bit_identical else None


def _is_smaller(after: Peaks, before: Peaks) -> bool:
    """Whether the first run needs less beyond what is worth another optimisation level."""
    now, then = after.first_run_peak, before.first_run_peak
    return now is not None and then is not None and now < _WORTH * then


def required_version() -> str:
    """Return the version of the installed runtime.

    Raises:
        RuntimeUnavailableError: there is none.
    """
    version = runtime_version()
    if not version:
        raise RuntimeUnavailableError("ONNX Runtime is not installed")
    return version


def _as_written(pair: Pair, trial: Trial) -> Recommendation:
    executed = _file_as_run(pair.written, trial)
    return recommend(pair.written, executed, RUN_AS_WRITTEN, trial)


def _file_as_run(model: Path, trial: Trial) -> Executed:
    """Return a file as it stands, with what data decides in one run of it."""
    executed = _file_of(model, trial.dims, trial.runs_on)
    if not needs_run(executed):
        return executed
    observed = observe(model, executed.program, trial, about=model)
    return replace(executed, observed=observed)


def _file_of(model: Path, dims: Mapping[str, int], provider: str) -> Executed:
    """Return a file as it stands."""
    return Executed(offline_program(model, dims, provider), dims, provider=provider)


def worse_by_default(before: Peaks, after: Peaks) -> tuple[str, ...]:
    """Warn where somebody who sets nothing would need more memory than before."""
    old, new = before.first_run_peak, after.first_run_peak
    if old is None or new is None or new <= old:
        return ()
    warning = (
        f"under the runtime's default settings the written model needs {new} bytes at its "
        f"peak, the original {old}: run it with the settings of this report"
    )
    return (warning,)
