"""Two models' outputs compared, and the settings under which they are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.core.results.observations import Validation


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
    from memplan_cli.runtime.proofs.compare import Comparison, compare

    how = Comparison(check, binding)
    first = compare(original, rewritten, how)
    if first.status != "failed" or first.max_abs_diff is None:
        return Compared(first)
    off = replace(how, original_settings=UNOPTIMISED, rewritten_settings=UNOPTIMISED)
    second = compare(original, rewritten, off)
    if second.status != "passed":
        return Compared(first)
    note = (
        "compared with the runtime's optimisation off: on, the order changes what it fuses, "
        f"and outputs differ by up to {first.max_abs_diff:.2g}"
    )
    return Compared(replace(second, notes=(*second.notes, note)), as_written=True)


def compare_as_written(
    original: Path, rewritten: Path, check: Check, binding: Binding
) -> Compared:
    """Compare a graph that a runtime optimised before: it is not to be optimised again.

    Raises:
        RuntimeUnavailableError: as of `compare_models`.
    """
    from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN
    from memplan_cli.runtime.proofs.compare import Comparison, compare

    how = Comparison(check, binding, rewritten_settings=RUN_AS_WRITTEN)
    return Compared(compare(original, rewritten, how), as_written=True)
