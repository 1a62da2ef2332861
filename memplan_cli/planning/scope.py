"""The scope of a plan: what is planned, what keeps its own storage, what is left out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.json_types import MAX_BYTES
from memplan_cli.core.program import intermediates
from memplan_cli.core.selection import select
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Program, Var, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Scope:
    """What is planned, what of it keeps storage of its own, and what is left out."""

    sizes: Mapping[VarId, Size]
    pinned: Mapping[VarId, str] = field(default_factory=dict)
    unplanned: Mapping[VarId, str] = field(default_factory=dict)


def find_scope(program: Program, settings: Settings, phases: Phases) -> Scope:
    """Say of each intermediate whether it is planned, pinned or left out, and why."""
    excluded = select(program, settings.excluded)
    pinned = {identity: f"excluded by {pattern!r}" for identity, pattern in excluded.items()}
    if settings.skip_grads:
        for identity in phases.gradients:
            pinned.setdefault(identity, "a gradient that the update consumes (skip_grads)")
    if phases.loss is not None:
        pinned.setdefault(phases.loss, "the loss")
    sizes: dict[VarId, Size] = {}
    unplanned: dict[VarId, str] = {}
    for identity in intermediates(program):
        var = program.vars[identity]
        size = size_of(var.shape, var.dtype)
        if size is None:
            unplanned[identity] = _why_unknown(var)
        else:
            sizes[identity] = at_most(size, settings.bounds) if size.symbols else size
    _refuse_giants(sizes)
    return Scope(sizes, {v: why for v, why in pinned.items() if v in sizes}, unplanned)


def _refuse_giants(sizes: Mapping[VarId, Size]) -> None:
    """Refuse sizes that no machine has, before 64-bit arithmetic meets them."""
    total = 0
    for identity, size in sizes.items():
        total += size.coefficient
        if total >= MAX_BYTES:
            raise ModelError(
                f"tensor {identity[:120]!r} takes {size} bytes: no machine has that much",
                hint="is its shape right?",
            )


def _why_unknown(var: Var) -> str:
    if var.dtype == "string":
        return "strings have no size before the run"
    if var.dtype == "unknown":
        return "its type is not known before the run"
    if "(" in var.dtype or var.dtype == "map":
        return f"its type is {var.dtype}, which is no dense tensor"
    if var.shape is None:
        return "its shape is not known before the run"
    if None in var.shape:
        return f"dim {var.shape.index(None)} is not known before the run"
    return f"its size cannot be said in bytes: {var.dtype} {list(var.shape)}"
