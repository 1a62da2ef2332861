"""The runtime's memory for a model and the one written from it: foreseen, then confirmed.

Each model runs once for its proof, and nothing runs for these figures alone. Settings are
foreseen on the simulated planner and arena, the written model runs under them, and only
where that run disagrees is another one made, and said in a note.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import RuntimeSettings, Validation
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.confirming import Proof
from memplan_cli.runtime.graph.executed import dump_run
from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN
from memplan_cli.runtime.graph.seen_graph import executed_of
from memplan_cli.runtime.measuring.measure import Trial
from memplan_cli.runtime.process.predict import Shown, process_of
from memplan_cli.runtime.proofs.subjects import Before, Written
from memplan_cli.runtime.proofs.written import (
    Run,
    run_written,
    unoptimised_both,
)
from memplan_cli.runtime.simulate.predict import needs_run, predict
from memplan_cli.runtime.steer import (
    DEFAULTS,
    Recommendation,
    caveats,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memplan_cli.core.program import Program
    from memplan_cli.core.results.report import RuntimeFacts
    from memplan_cli.runtime.proofs.original import Original

_FAR, _MUCH = 1.5, 64 << 10
"""How far an observed peak may be above the predicted one without a word, and in bytes."""


@dataclass(frozen=True, slots=True)
class Proved:
    """The verdict on a written model, the report's runtime block, and what is to be said."""

    verdict: Validation
    facts: RuntimeFacts | None = None
    warnings: tuple[str, ...] = ()
    as_written: bool = False


def account_before(original: Original) -> Before:
    """Return what the original's run says of it.

    Raises:
        RuntimeUnavailableError: its sizes depend on data, and it does not run again for them.
    """
    executed = executed_of(original.seen, DEFAULTS, original.dims, original.path)
    executed = replace(executed, provider=original.provider)
    notes: tuple[str, ...] = ()
    if needs_run(executed) and executed.observed is None:
        executed = dump_run(
            original.path, DEFAULTS, Trial.of(original.check, original.binding)
        )
        notes = (
            "nodes without names of their own: the original ran again for what data decides",
        )
    process = process_of(
        stored_model(original.path),
        executed,
        DEFAULTS,
        original.provider,
        Shown(original.seen.workspace),
    )
    predicted = replace(predict(executed, DEFAULTS), process=process)
    return Before(executed, predicted, (*caveats(executed), *notes))


def prove_outputs(original: Original, written: Written, folder: Path) -> Proved:
    """Run a written model once, under the runtime's defaults or as it stands; compare."""
    if written.verdict is not None:
        return Proved(written.verdict)
    settings = RUN_AS_WRITTEN if written.as_written else RuntimeSettings()
    held = partial(run_written, original, written.path)
    run = held(settings, None)
    if _other_bits(run) and not written.offline:
        again = partial(held, RUN_AS_WRITTEN, None)
        run = unoptimised_both(original, run, folder, again)
    return Proved(run.verdict, as_written=run.as_written)


def prove(
    original: Original,
    before: Before,
    written: Written,
    folder: Path,
    progress: Callable[[str], None] | None = None,
) -> Proved:
    """Run a written model once under its settings; compare its outputs, account its memory.

    Args:
        original: as it ran.
        before: what its run says.
        written: what is to be proved.
        folder: for outputs and graphs, as long as this runs.
        progress: told what is being done.

    Raises:
        RuntimeUnavailableError: the written model's weights are not there.
    """
    tell = progress or silent
    tell("running the written model")
    proof = Proof(original, before, written, folder)
    run = proof.first()
    if written.verdict is None and _other_bits(run) and not written.offline:
        tell("comparing both models without the runtime's optimisation")
        run = proof.unoptimised(run)
    verdict = written.verdict or run.verdict
    if run.seen is None or not verdict.passed:
        return Proved(verdict, as_written=run.as_written)
    notes: list[str] = []
    for step in (proof.in_time, proof.in_its_nodes, proof.in_its_arena):
        run, note = step(run)
        notes += [note] if note else []
    warnings: tuple[str, ...] = (*before.warnings, *notes)
    facts = proof.facts(run)
    warnings += (*proof.by_default(run), *proof.for_other_sizes(run), *_unforeseen(facts))
    return Proved(verdict, facts, warnings, run.as_written)


def _unforeseen(facts: RuntimeFacts) -> Iterator[str]:
    """Warn where the written model took far more than was predicted of it."""
    told = facts.predicted["optimized"].first_run_peak
    seen = facts.observed["optimized"].first_run_peak
    if told is not None and seen is not None and seen > max(_FAR * told, told + _MUCH):
        yield (
            f"the runtime took {seen} bytes at its peak, of {told} predicted: as a rule it runs "
            "nodes that the file does not have, Casts where no kernel takes 16 bits, or what "
            "functions stand for"
        )


def own_settings(
    original: Original, before: Before, folder: Path, program: Program
) -> Recommendation:
    """Return the best settings for a model as it is, confirmed by one run under them.

    What does not give the bits of the defaults, or takes far longer, is not recommended.

    Raises:
        RuntimeUnavailableError: it does not run under any but the defaults.
    """
    proof = Proof(original, before, Written(original.path, program), folder)
    run, notes = proof.first(), list(before.warnings)
    if not run.verdict.passed and run.as_written:
        run = proof.optimised()
        notes.append("optimisation off gave other bits than the defaults: it ran twice")
    if run.seen is None or not (run.verdict.passed or not original.repeats):
        said = "; ".join(run.verdict.notes) or "other outputs than under the defaults"
        raise RuntimeUnavailableError(
            f"{original.path}: no settings could be confirmed: {said}"
        )
    for step in (proof.in_time, proof.in_its_nodes, proof.in_its_arena):
        run, note = step(run)
        notes += [note] if note else []
    notes += proof.for_other_sizes(run)
    facts = proof.facts(run)
    return Recommendation(
        run.settings,
        facts.predicted["optimized"],
        facts.observed["optimized"],
        tuple(notes),
        original.provider,
    )


def _other_bits(run: Run) -> bool:
    """Whether the outputs are other ones, and not for want of a run."""
    return run.verdict.status == "failed" and run.verdict.max_abs_diff is not None
