"""Constant expressions in a plan: what may be folded, what is, and what is live at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.constant_vars import constants
from memplan_cli.core.program import VarId
from memplan_cli.core.results.folded import ConstantTensor
from memplan_cli.core.selection import select
from memplan_cli.features.folding.transform import fold

if TYPE_CHECKING:
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.report import Peak
    from memplan_cli.features.folding.transform import Folding
    from memplan_cli.planning.decided import Decided
    from memplan_cli.settings.settings import Settings


def fold_constants(program: Program, settings: Settings, loss: VarId | None) -> Folding:
    """Fold the constants of a program, but for what the settings name or the loss is."""
    named = select(program, (*settings.excluded, *settings.checkpoints))
    kept = {var: f"{pattern!r} names it" for var, pattern in named.items()}
    if loss is not None:
        kept[loss] = "the loss"
    return fold(program, kept)


def foldable_at(decided: Decided, peak: Peak | None) -> tuple[ConstantTensor, ...]:
    """Return the constant expressions that are live at the peak; what is excluded is none."""
    if peak is None:
        return ()
    program, pinned = decided.program, decided.needs.pinned
    found = constants(program)
    sizes = {VarId(tensor.name): tensor.bytes for tensor in peak.tensors}
    live = [var for var in sizes if var in found and var not in pinned]
    if not live:
        return ()
    folding = fold_constants(program, decided.settings, decided.phases.loss)
    left = {var.name: var.reason for var in folding.facts.left}
    return tuple(
        ConstantTensor(var, found[var].type, sizes[var], left.get(var, "")) for var in live
    )
