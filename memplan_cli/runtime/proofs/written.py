"""A written model, run once under the settings foreseen for it, and held against its original.

A second run is made only where the first disagrees with what was foreseen: other bits, a
first region that was too small, or far more time than expected. Each is said in a note.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import (
    UNOPTIMISED,
    RuntimeSettings,
    Validation,
)
from memplan_cli.runtime.measuring.examine import examine
from memplan_cli.runtime.proofs.compare import require_weights, verdict
from memplan_cli.runtime.proofs.original import COMPARED
from memplan_cli.runtime.workers.examination import Examination, Look

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.runtime.measuring.examine import Examined
    from memplan_cli.runtime.proofs.original import Original
    from memplan_cli.runtime.workers.worker import Outcome


@dataclass(frozen=True, slots=True)
class Run:
    """A written model that was run.

    Attributes:
        settings: under which it ran.
        verdict: of its outputs.
        seen: what its session has shown; None where it did not run.
        as_written: whether the verdict is about the file run as it stands.
    """

    settings: RuntimeSettings
    verdict: Validation
    seen: Examined | None = field(default=None, repr=False)
    as_written: bool = False


@dataclass(frozen=True, slots=True)
class Plain:
    """An original that ran without the runtime's optimisation.

    Attributes:
        looks: its inputs, and where its outputs are.
        workspace: bytes that a kernel asks for besides, by node: those of the written file,
            which has the same nodes, are the same.
    """

    looks: tuple[Look, ...]
    workspace: Mapping[str, int] = field(default_factory=dict, repr=False)


def is_unoptimised(settings: RuntimeSettings) -> bool:
    """Whether a file runs as it stands under these settings."""
    return settings.session.get("graph_optimization_level") == "ORT_DISABLE_ALL"


def run_written(
    original: Original,
    path: Path,
    settings: RuntimeSettings,
    graph: Path | None,
    plain: Plain | None = None,
) -> Run:
    """Run a written model on the original's inputs, and compare its outputs with those kept.

    Under the runtime's optimisation it ends with the first outputs that are other ones, for
    then both are compared without it.

    Args:
        original: as it ran.
        path: the written file.
        settings: of its session.
        graph: where the runtime's own graph goes, if it is wanted.
        plain: the original without optimisation, where the outputs are to be those of it.
    """
    require_weights(path)
    ends = original.repeats and not is_unoptimised(settings)
    asked = replace(
        _examination(original, path, settings, plain.looks if plain else original.looks),
        then="compare",
        outputs=original.seen.outputs,
        graph=graph,
        until="difference" if ends else "end",
    )
    outcome, seen = examine(asked, original.check.timeout)
    found = _verdict(original, outcome, seen)
    return Run(settings, found, seen, is_unoptimised(settings))


def unoptimised_both(
    original: Original, run: Run, folder: Path, again: Callable[[Plain], Run]
) -> Run:
    """Compare again where the first comparison found other bits: both without optimisation.

    Which nodes the runtime fuses can depend on their order, and fused kernels round in
    other places. The written file is then only right as it stands, and that is said. If
    that does not hold either, what was found first stays.

    Args:
        original: as it ran under the defaults.
        run: how the written file ran first.
        folder: for outputs.
        again: runs the written file as it stands, and holds it against the original as it
            ran without optimisation.
    """
    assert run.seen is not None  # noqa: S101 - what never ran has no other bits
    if run.as_written:
        kept = [
            replace(look, folder=look.kept or look.folder, kept=None)
            for look, found in zip(original.looks, run.seen.looks, strict=False)
            if found.differences
        ]
        outcome, seen = _run_plain(original, kept, "compare")
        found = replace(run, verdict=_verdict(original, outcome, seen))
    else:
        looks = [_moved(look, folder / f"again{n}") for n, look in enumerate(original.looks)]
        _, seen = _run_plain(original, looks, "save")
        if seen is None or seen.differences:
            return run
        found = again(Plain(tuple(looks), seen.workspace))
    if found.verdict.status != "passed" or seen is None:
        return run
    note = (
        "compared with the runtime's optimisation off: on, the order changes what it fuses, "
        f"and outputs differ by up to {run.verdict.max_abs_diff:.2g}"
    )
    verdict = replace(found.verdict, notes=(*found.verdict.notes, note))
    return replace(found, verdict=verdict, as_written=True)


def _moved(look: Look, folder: Path) -> Look:
    folder.mkdir()
    return replace(look, folder=folder, kept=None)


def _run_plain(
    original: Original, looks: Sequence[Look], then: str
) -> tuple[Outcome, Examined | None]:
    """Run the original without optimisation, its outputs saved, or held against others."""
    asked = _examination(original, original.path, UNOPTIMISED, looks)
    asked = replace(asked, then=then, outputs=original.seen.outputs, runs=COMPARED)
    return examine(asked, original.check.timeout, "reexamine")


def _examination(
    original: Original, path: Path, settings: RuntimeSettings, looks: Sequence[Look]
) -> Examination:
    session = replace(original.session(path, settings), specs=looks[0].specs)
    return Examination(
        session,
        tuple(looks),
        runs=original.runs,
        compared=COMPARED,
        tolerance=original.check.tolerance,
    )


def _verdict(original: Original, outcome: Outcome, seen: Examined | None) -> Validation:
    differences = seen.differences if seen else ()
    found = verdict(differences, outcome, original.provider, original.check.tolerance)
    failed = next((look.failure for look in seen.looks if look.failure), "") if seen else ""
    if failed:
        note = f"the rewritten model does not run (error): {failed}"
        found = Validation("failed", original.provider, bit_identical=False, notes=(note,))
    return replace(found, notes=(*found.notes, *original.notes))
