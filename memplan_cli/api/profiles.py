"""One plan for several bindings, checked at each, and the need of each alone.

The plan is made for all values between the least and the largest. Then each binding is read
from the file and planned by itself, as ``--dim NAME=N`` does. The sizes found there know
nothing of intervals, and with them the one plan is checked as an untrusted one would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from memplan_cli.api.files.model_file import plan_model
from memplan_cli.core.program import VarId
from memplan_cli.core.progress import Counted
from memplan_cli.core.results.memory import Profile
from memplan_cli.core.selection import free_dims
from memplan_cli.core.symbolic.dims import bind_dim, binding_text
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import InvalidLayoutError, SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.settings.settings import Settings

Profiles = Mapping[str, Sequence[int]]
"""Values of each symbol: ``{"batch": (1, 8, 32)}``."""


def bindings(profiles: Profiles) -> tuple[Mapping[str, int], ...]:
    """Return every combination of values, the last symbol's changing fastest."""
    return tuple(
        dict(zip(profiles, values, strict=True)) for values in product(*profiles.values())
    )


def refuse_settings_of_one_size(settings: Settings, profiles: Profiles) -> None:
    """Refuse settings that are for one size if symbols have several values.

    Raises:
        SettingsError: a symbol has bounds besides, or the graph is one provider's or is cut.
    """
    twice = next((name for name in profiles if name in settings.bounds), None)
    if twice is not None:
        raise SettingsError(f"dim {twice!r} has both numbers and bounds")
    if settings.target != "portable" and profiles:
        raise SettingsError(
            f"--target {settings.target} orders the runtime's graph of one size, and --dim "
            "has several",
            hint="give each --dim one number",
        )


def for_all(settings: Settings, profiles: Profiles) -> Settings:
    """Return settings for one plan that holds for all values between those given.

    Raises:
        SettingsError: settings are for one size.
    """
    refuse_settings_of_one_size(settings, profiles)
    between = {name: (min(values), max(values)) for name, values in profiles.items()}
    dims = {name: value for name, value in settings.dims.items() if name not in profiles}
    return replace(settings, dims=dims, bounds={**settings.bounds, **between})


def at_largest(settings: Settings, profiles: Profiles) -> Settings:
    """Return settings that bind each symbol to its largest value: to run the model there."""
    largest = {name: max(values) for name, values in profiles.items()}
    return replace(settings, dims={**settings.dims, **largest})


def plan_profiles(
    file: ModelFile, settings: Settings, profiles: Profiles, progress: Progress | None = None
) -> PlannedProgram:
    """Make one plan for all bindings, check it at each, and plan each alone for its row.

    Raises:
        SettingsError: a symbol is no free dim of the model.
        InvalidLayoutError: the plan does not hold for a binding (our bug).
    """
    from memplan_cli.core.results.plan import check

    shared = plan_model(file, for_all(settings, profiles), progress)
    free_dims(shared.program, profiles)
    rows = []
    settings = replace(settings, inputs=shared.settings.inputs)
    each = bindings(profiles)
    for done, dims in enumerate(each):
        if progress:
            progress(Counted("planning each binding", done, len(each)))
        own = replace(settings, dims={**settings.dims, **dims})
        alone = plan_model(file, own, None).plan
        check(_bound(shared, alone, {**settings.dims, **dims}))
        rows.append(Profile(dims, alone.report.memory))
    report = replace(shared.plan.report, profiles=tuple(rows))
    return replace(shared, plan=shared.plan.with_report(report))


def _bound(shared: PlannedProgram, alone: Plan, dims: Mapping[str, int]) -> Plan:
    """Return the one plan with each tensor in the size that it has at a binding.

    Raises:
        InvalidLayoutError: a tensor is larger there than the plan has room for.
    """
    plan = shared.plan
    numbers = {arena.id for arena in plan.arenas if arena.unit == "1"}
    tensors = []
    for tensor in plan.tensors:
        size = _size(shared.program, tensor, alone, dims)
        if size is None or tensor.arena not in numbers:
            tensors.append(tensor)
            continue
        if size > tensor.bytes:
            raise InvalidLayoutError(
                f"the plan has {tensor.bytes} bytes for {tensor.id[:120]!r}, which takes "
                f"{size} at {binding_text(dims)}"
            )
        tensors.append(tensor._replace(bytes=size))
    return replace(plan, tensors=tuple(tensors))


def _size(
    program: Program, tensor: Placement, alone: Plan, dims: Mapping[str, int]
) -> int | None:
    """Return a tensor's bytes as inference found them at a binding.

    What is run again is not in the other plan: its dims are bound, as a copy's can be.
    """
    numbers = {arena.id for arena in alone.arenas if arena.unit == "1"}
    found = alone.by_id.get(tensor.id)
    if found is not None:
        return found.bytes if found.arena in numbers else None
    var = program.vars[VarId(tensor.id)]
    shape = tuple(bind_dim(dim, dims) for dim in var.shape or ())
    size = size_of(shape, var.dtype)
    return None if size is None or size.symbols else size.coefficient
