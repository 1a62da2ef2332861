"""The scope of a plan: which vars are planned, pinned or left out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.analysis.storage import result_sizes
from memplan_cli.core.json_types import MAX_BYTES
from memplan_cli.core.program import intermediates
from memplan_cli.core.selection import select
from memplan_cli.core.symbolic.bounds import largest_size
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import ModelError
from memplan_cli.ordering.records import PlannedVars
from memplan_cli.planning.allocation import aliasing_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.core.program import Program, Var, VarId
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Scope:
    """The planned vars of a program.

    Attributes:
        sizes: The size of each planned var; of a dim with bounds, the largest.
        pinned: The planned vars that keep storage of their own for the whole run, with the
            reason.
        unplanned: The intermediates of unknown size, with the reason.
    """

    sizes: Mapping[VarId, Size]
    pinned: Mapping[VarId, str] = field(default_factory=dict)
    unplanned: Mapping[VarId, str] = field(default_factory=dict)


def find_scope(program: Program, settings: Settings, phases: Phases) -> Scope:
    """Return for each intermediate whether it is planned, pinned or left out, and why.

    Raises:
        SettingsError: an exclusion names no tensor of the model.
        ModelError: the sizes add up to more bytes than 64-bit arithmetic allows.
    """
    sizes: dict[VarId, Size] = {}
    unplanned: dict[VarId, str] = {}
    for identity in intermediates(program):
        var = program.vars[identity]
        size = size_of(var.shape, var.dtype)
        if size is None:
            unplanned[identity] = _why_unknown(var)
        else:
            sizes[identity] = largest_size(size, settings.bounds) if size.symbols else size
    _refuse_excessive(sizes)
    reasons = _reasons_to_pin(program, settings, phases)
    pinned = {var: reason for var, reason in reasons.items() if var in sizes}
    return Scope(sizes, pinned, unplanned)


def _reasons_to_pin(program: Program, settings: Settings, phases: Phases) -> dict[VarId, str]:
    """Return the vars that are pinned if they are planned, each with the first reason found.

    Raises:
        SettingsError: an exclusion names no tensor of the model.
    """
    excluded = select(program, settings.excluded)
    reasons = {identity: f"excluded by {pattern!r}" for identity, pattern in excluded.items()}
    if settings.skip_grads:
        for identity in phases.gradients:
            reasons.setdefault(identity, "a gradient that the update consumes (skip_grads)")
    if phases.loss is not None:
        reasons.setdefault(phases.loss, "the loss")
    return reasons


def _refuse_excessive(sizes: Mapping[VarId, Size]) -> None:
    """Refuse sizes that add up to `MAX_BYTES`; the error names the largest tensor.

    Their coefficients are a lower bound of the bytes: every dim is 1 or more.
    """
    if sum(size.coefficient for size in sizes.values()) >= MAX_BYTES:
        largest = max(sizes, key=lambda identity: sizes[identity].coefficient)
        raise ModelError(
            f"the intermediates take {MAX_BYTES} bytes or more, {sizes[largest]} of them tensor "
            f"{largest[:120]!r}: no machine has that much",
            hint="is its shape right?",
        )


def _why_unknown(var: Var) -> str:
    """Return why a var has no size in bytes."""
    if var.dtype == "string":
        return "strings have no size before the run"
    if var.dtype == "unknown":
        return "its type is not known before the run"
    if "(" in var.dtype or var.dtype == "map":
        return f"its type is {var.dtype}, which is not a dense tensor"
    if var.shape is None:
        return "its shape is not known before the run"
    if None in var.shape:
        return f"dim {var.shape.index(None)} is not known before the run"
    return f"its size cannot be said in bytes: {var.dtype} {list(var.shape)}"


def planned_vars_of(
    program: Program, scope: Scope, settings: Settings, donated: Collection[VarId] = ()
) -> PlannedVars:
    """Return the vars whose bytes count in searches for orders and rewrites.

    Graph outputs are among them, except ``donated`` ones, which lie in the memory of inputs. All sizes
    are the largest within the bounds of dims, as those of the scope are already.
    """
    results = {
        var: largest_size(size, settings.bounds)
        for var, size in result_sizes(program).items()
        if var not in donated
    }
    return PlannedVars(
        scope.sizes, frozenset(scope.pinned), aliasing_of(settings.level), results
    )
