"""Two models' outputs compared, and the settings under which they are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from memplan_cli.core.results.observations import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.results.observations import Difference, RuntimeSettings, Validation
    from memplan_cli.runtime.proofs.compare import Comparison


Depth = Literal["outputs", "full"]

Search = Literal["foreseen", "measured"]


@dataclass(frozen=True, slots=True)
class Check:
    """How a written model is proved: where it runs, and what counts as equal.

    Attributes:
        provider: ``auto``, ``cpu`` or ``cuda``.
        runs: of each model, on the same inputs.
        rtol, atol: what is excused, ``|got - wanted| <= atol + rtol * |wanted|``; two zeros
            ask for the same bits.
        timeout: seconds for each process that runs a model.
        depth: ``full`` looks at the memory of the runs too, ``outputs`` compares alone.
        search: settings are ``foreseen``, and confirmed by the run that is made anyway, or
            searched among many that are ``measured``.
        processes: how many hold a model at once where their memory together is measured.
        noise: by what runs of the original differ, where it has run already.
    """

    provider: str = "auto"
    runs: int = 2
    rtol: float = 0.0
    atol: float = 0.0
    timeout: float = DEFAULT_TIMEOUT
    depth: Depth = "full"
    search: Search = "foreseen"
    processes: int = 0
    noise: tuple[Difference, ...] = ()


DEFAULT_CHECK = Check()
"""Both models on the best provider there is, two runs, bit for bit."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A verdict, and whether it holds only for the written file run as it stands."""

    verdict: Validation
    as_written: bool = False


def compare_models(
    original: Path, rewritten: Path, check: Check, binding: Binding
) -> Compared:
    """Run two models on the same inputs and compare every output of the first.

    Both run under the runtime's default optimisation, and where that gives other bits,
    both without: which nodes it fuses can depend on their order, and fused kernels round
    in other places. The written file is then only right as it stands, and that is said.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does
            not run.
    """
    from memplan_cli.core.results.observations import UNOPTIMISED

    first = compare_under(original, rewritten, check, binding, {})
    if first.status != "failed" or first.max_abs_diff is None:
        return Compared(first)
    off = {"original": UNOPTIMISED, "rewritten": UNOPTIMISED}
    second = compare_under(original, rewritten, check, binding, off)
    if second.status != "passed":
        return Compared(first)
    note = (
        "compared with the runtime's optimisation off: on, the order changes what it fuses, "
        f"and outputs differ by up to {first.max_abs_diff:.2g}"
    )
    return Compared(replace(second, notes=(*second.notes, note)), as_written=True)


def compare_under(
    original: Path,
    rewritten: Path,
    check: Check,
    binding: Binding,
    settings: Mapping[str, RuntimeSettings],
) -> Validation:
    """Run two models, each under its ``original`` or ``rewritten`` settings, and compare.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or the original does
            not run.
    """
    from memplan_cli.runtime.proofs.compare import compare

    return compare(original, rewritten, comparison(check, binding, settings))


def comparison(
    check: Check, binding: Binding, settings: Mapping[str, RuntimeSettings]
) -> Comparison:
    """Return how the runtime compares two models."""
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.proofs.compare import Comparison
    from memplan_cli.runtime.workers.bits import Tolerance

    return Comparison(
        provider=check.provider,
        dims=binding.dims,
        assumed=binding.assumed,
        feeds=binding.feeds,
        runs=check.runs,
        timeout=check.timeout,
        noise=check.noise,
        tolerance=Tolerance(check.rtol, check.atol),
        original_settings=settings.get("original", RuntimeSettings()),
        rewritten_settings=settings.get("rewritten", RuntimeSettings()),
    )
