"""Written models that compete, ranked by the process that each is foreseen to take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.confirming import Proof
from memplan_cli.runtime.process.predict import Shown, foresee_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.runtime.proofs.original import Original
    from memplan_cli.runtime.proofs.subjects import Before, Written

_EXACT, _EXACT_BYTES = 50, 2 << 20
"""A process is foreseen within one part in so many, or so many bytes, whichever is more."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a written model is foreseen to take, in bytes.

    Attributes:
        unknown: whether its process cannot be foreseen.
        process: at its highest when loaded and with runs, and what is private after them.
        arena: what the arena holds beside weights, and the peak of the first run.
    """

    unknown: bool
    process: int
    arena: int


def ranked(costs: Sequence[Cost]) -> list[int]:
    """Return the places of what costs least first: by the process, if it can be foreseen.

    Of those whose process is the same as the least one, as exactly as one can be foreseen,
    the lower arena is better.
    """
    least = min(((cost.unknown, cost.process) for cost in costs), default=(False, 0))
    most = least[1] + max(least[1] // _EXACT, _EXACT_BYTES)

    def rank(place: int) -> tuple[bool, bool, int, int]:
        cost = costs[place]
        beyond = cost.unknown != least[0] or cost.process > most
        first, second = cost.process, cost.arena
        return cost.unknown, beyond, *((first, second) if beyond else (second, first))

    return sorted(range(len(costs)), key=rank)


def foreseen_cost(original: Original, before: Before, written: Written) -> Cost:
    """Return what a written model is foreseen to take, loading included.

    Its path is that of a file with the same weights. Where a process cannot be foreseen,
    what the arena holds counts, weights included: what is packed by each session lies there;
    what was packed in the file is mapped.
    """
    proof = Proof(original, before, written, written.path)
    choice = proof.foreseen()
    executed = proof.executed(choice.settings)
    found = foresee_process(
        stored_model(written.path),
        executed,
        choice.settings,
        original.provider,
        Shown(original.seen.workspace, as_loaded=True),
    )
    unknown, least = choice.rank
    if found is not None:
        process = found.process
        total = process.load + process.run + process.private
        return Cost(unknown=False, process=total, arena=least)
    peaks = original.seen.peaks
    if unknown:
        least = 2 * (peaks.first_run_peak or 0)
    weights = 0 if written.offline else peaks.weights or 0
    return Cost(unknown=True, process=least + weights, arena=least)
