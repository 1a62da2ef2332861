"""A written model and its original, each run once: the verdict, and what the runtime took."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import RuntimeSettings, Together
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.workflows.compare import Compared

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.core.results.report import RuntimeFacts


@dataclass(frozen=True, slots=True)
class Models:
    """A written model and its original.

    Attributes:
        original: the file that it was made from.
        written: its file.
        as_written: whether the runtime's optimisation must not touch it.
        offline: whether it holds the runtime's own graph.
    """

    original: Path
    written: Path
    as_written: bool = False
    offline: bool = False


def accounted(
    models: Models, check: Check, binding: Binding, otherwise: Callable[[], Compared]
) -> tuple[Compared, RuntimeFacts | None]:
    """Run both models once; compare their outputs and account their memory.

    Settings of the written model are foreseen as `optimize` foresees them. Facts are None
    where the outputs differ.

    Args:
        models: what is run.
        check: where, and what counts as equal.
        binding: numbers of dims, and inputs that were given.
        otherwise: compares in runs of their own, where the original's do not repeat
            themselves, or where the written model does not run.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does
            not run.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.runtime.account import account_before, prove
    from memplan_cli.runtime.graph.offline import offline_program
    from memplan_cli.runtime.proofs.original import run_original
    from memplan_cli.runtime.proofs.subjects import Written

    check = replace(check, depth="full")
    with tempfile.TemporaryDirectory(prefix="memplan-proof-") as name:
        folder, path = Path(name), models.original
        original = run_original(path, load_model(path), check, binding, folder)
        program = offline_program(models.written, binding.dims, original.provider)
        written = Written(models.written, program, models.as_written, models.offline)
        if not original.repeats:
            other = otherwise()
            if not other.verdict.passed:
                return other, None
            as_written = models.as_written or other.as_written
            written = replace(written, as_written=as_written, verdict=other.verdict)
        found = prove(original, account_before(original), written, folder)
    if found.facts is None and found.verdict.max_abs_diff is None:
        return otherwise(), None
    return Compared(found.verdict, found.as_written), found.facts


def with_processes(
    facts: RuntimeFacts, models: Models, check: Check, binding: Binding
) -> RuntimeFacts:
    """Return facts with what several processes take together, where they are asked for.

    Raises:
        RuntimeUnavailableError: one cannot hold a model.
    """
    if not check.processes or facts.settings is None:
        return facts
    from memplan_cli.runtime.measuring.measure import Trial, together

    trial = Trial.of(check, binding)
    before = together(models.original, RuntimeSettings(), trial, check.processes)
    as_loaded = replace(trial, as_loaded=True)
    after = together(models.written, facts.settings, as_loaded, check.processes)
    return replace(facts, processes=Together(check.processes, before, after))


def with_time(
    facts: RuntimeFacts | None, models: Models, check: Check, binding: Binding
) -> tuple[RuntimeFacts | None, tuple[str, ...]]:
    """Return facts with the time of a run against the original's, and what is to be said of it."""
    if facts is None or facts.settings is None:
        return facts, ()
    from memplan_cli.runtime.measuring.measure import Trial
    from memplan_cli.runtime.measuring.timing import Timed, slower_note, time_ratio

    trial = Trial.of(check, binding)
    before = Timed(models.original, RuntimeSettings(), facts.observed["original"])
    after = Timed(models.written, facts.settings, facts.observed["optimized"])
    try:
        ratio = time_ratio(before, after, trial)
    except RuntimeUnavailableError as error:
        return facts, (f"the time of a run was not measured: {error}",)
    note = slower_note(ratio)
    return replace(facts, time=ratio), (note,) if note else ()
