"""Donated pairs proved to share one buffer in two steps, and the settings that bind them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.report import RuntimeFacts


@dataclass(frozen=True, slots=True)
class Donation:
    """Pairs ``(input, output)`` of a written model that may share a buffer.

    ``offline`` says that the file holds the runtime's own optimised graph.
    """

    pairs: tuple[tuple[str, str], ...]
    offline: bool = False


def with_donation(
    verdict: Validation,
    models: tuple[Path, Path],
    donation: Donation,
    check: Check,
    binding: Binding,
) -> Validation:
    """Add the verdict on two steps in which each donated pair is one buffer.

    Args:
        verdict: Of the comparison without donation; one that failed stays as it is.
        models: The original and the written model.
        donation: What shares a buffer.
        check: Where to run, and what counts as equal.
        binding: Numbers of dims, and inputs that were given.

    Raises:
        RuntimeUnavailableError: the original takes no two steps here.
    """
    from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings
    from memplan_cli.features.donation.proof import donated_steps

    if not donation.pairs or not verdict.passed:
        return verdict
    original = RuntimeSettings() if donation.offline else UNOPTIMISED
    found = donated_steps(models, donation.pairs, check, binding, original)
    notes = []
    if found.failure:
        notes.append(f"two steps with donated buffers fail: {found.failure}")
    if found.not_finite:
        notes.append(
            f"{len(found.not_finite)} outputs of the original are not finite in two steps, "
            f"which shows little: {found.not_finite[0]}"
        )
    return replace(
        verdict,
        donated="passed" if found.passed else "failed",
        bit_identical=bool(verdict.bit_identical) and found.passed and not found.differences,
        differences=(*verdict.differences, *found.differences),
        notes=(*verdict.notes, *notes),
    )


def with_binding(facts: RuntimeFacts, pairs: tuple[tuple[str, str], ...]) -> RuntimeFacts:
    """Return facts whose settings say what to bind to the buffer of which input."""
    if not pairs or facts.settings is None:
        return facts
    io_binding = {made: given for given, made in pairs}
    return replace(facts, settings=replace(facts.settings, io_binding=io_binding))
