"""One plan for several values of dims ("profiles"): made once, checked at each combination.

The plan is made for all values between the smallest and the largest. Each combination is then read
from the file and planned alone, as ``--dim NAME=N`` does. The sizes found there do not depend on
intervals, so that the common plan is checked with them as an untrusted plan would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from memplan_cli.api.models.model_file import plan_model
from memplan_cli.core.program import VarId
from memplan_cli.core.progress import Counted, silent
from memplan_cli.core.results.memory import Profile
from memplan_cli.core.selection import free_dims
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.core.symbolic.dims import bind_dim, binding_text
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import InvalidLayoutError, SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.settings.settings import Settings

Profiles = Mapping[str, Sequence[int]]
"""Values by dim: ``{"batch": (1, 8, 32)}``."""


def combinations(profiles: Profiles) -> tuple[Mapping[str, int], ...]:
    """Return every combination of values; those of the last dim change fastest."""
    return tuple(
        dict(zip(profiles, values, strict=True)) for values in product(*profiles.values())
    )


def with_bounds_of(settings: Settings, profiles: Profiles) -> Settings:
    """Return settings for one plan that holds for all values between the given ones.

    Raises:
        SettingsError: a dim of ``profiles`` has bounds already, or the target is one provider, for which
            a model can be planned at one size only.
    """
    bounded = next((name for name in profiles if name in settings.bounds), None)
    if bounded is not None:
        raise SettingsError(f"dim {bounded!r} has both numbers and bounds")
    if settings.target != "portable":
        raise SettingsError(
            f"--target {settings.target} orders the runtime's graph of one size, and --dim "
            "has several",
            hint="give each --dim one number",
        )
    bounds = {name: DimRange(min(values), max(values)) for name, values in profiles.items()}
    dims = {name: value for name, value in settings.dims.items() if name not in profiles}
    return replace(settings, dims=dims, bounds={**settings.bounds, **bounds})


def at_dims(settings: Settings, dims: Mapping[str, int]) -> Settings:
    """Return settings in which some dims have these numbers, in place of bounds and assumed numbers.

    The settings are those of a model whose sizes were resolved, so that every dim has a number.
    """
    bounds = {n: limits for n, limits in settings.bounds.items() if n not in dims}
    assumed = {
        n: value for n, value in (settings.inputs.assumed or {}).items() if n not in dims
    }
    inputs = replace(settings.inputs, assumed=assumed)
    return replace(settings, dims={**settings.dims, **dims}, bounds=bounds, inputs=inputs)


def plan_profiles(
    file: ModelFile, settings: Settings, profiles: Profiles, progress: Progress | None = None
) -> PlannedProgram:
    """Make one plan for all combinations of values, checked at each of them (`with_profiles`).

    Raises:
        SettingsError: the model has no free dim of a name.
        InvalidLayoutError: the plan is not safe for a combination (a bug of memplan).
    """
    common = plan_model(file, with_bounds_of(settings, profiles), progress)
    return with_profiles(common, file, profiles, progress or silent)


def with_profiles(
    common: PlannedProgram, file: ModelFile, profiles: Profiles, progress: Progress
) -> PlannedProgram:
    """Return the common plan, with a row in its report for each combination of the values in ``profiles``.

    The common plan holds for all values between. For each combination the model is planned once more, at
    these sizes alone. The row has the memory of this exact plan. The exact sizes are also put into the
    common plan, to check that its offsets are safe.

    Raises:
        SettingsError: the model has no free dim of a name.
        InvalidLayoutError: the plan is not safe for a combination (a bug of memplan).
    """
    from memplan_cli.core.results.plan import check as check_plan

    free_dims(common.program, requested=profiles)  # raises if one is none of them
    rows = []
    all_dims = combinations(profiles)
    for done, dims in enumerate(all_dims):
        progress(Counted("planning each binding", done, len(all_dims)))
        settings = at_dims(common.settings, dims)
        exact = plan_model(file, settings).plan
        # Raises if an offset of the common plan is not safe for the exact sizes.
        check_plan(_with_exact_sizes(common, exact, settings.dims))
        rows.append(Profile(dims, exact.report.memory))
    report = replace(common.plan.report, profiles=tuple(rows))
    return replace(common, plan=common.plan.with_report(report))


def _with_exact_sizes(common: PlannedProgram, exact: Plan, dims: Mapping[str, int]) -> Plan:
    """Return the common plan, in which each tensor has the bytes that it has at ``dims``.

    ``exact`` is the plan for these numbers of the dims alone. A tensor whose bytes depend on a further dim,
    without a number, stays as it is.

    Raises:
        InvalidLayoutError: a tensor is larger than the common plan assumes.
    """
    plan = common.plan
    arenas_in_bytes = _arenas_in_bytes(plan)
    tensors = []
    for tensor in plan.tensors:
        size = None
        if tensor.arena in arenas_in_bytes:
            size = _exact_bytes(tensor, exact, common.program, dims)
        if size is None:  # the bytes are symbolic in the common plan, or at ``dims``
            tensors.append(tensor)
        elif size <= tensor.bytes:
            tensors.append(tensor._replace(bytes=size))
        else:
            raise InvalidLayoutError(
                f"the plan has {tensor.bytes} bytes for {tensor.id[:120]!r}, which takes "
                f"{size} at {binding_text(dims)}"
            )
    return replace(plan, tensors=tuple(tensors))


def _arenas_in_bytes(plan: Plan) -> frozenset[int]:
    """Return the arenas whose sizes are in bytes, not in multiples of symbols, such as ``batch``."""
    return frozenset(arena.id for arena in plan.arenas if arena.unit == "1")


def _exact_bytes(
    tensor: Placement, exact: Plan, program: Program, dims: Mapping[str, int]
) -> int | None:
    """Return the bytes of a tensor at ``dims``; None if these dims do not decide them.

    ``exact`` is the plan for ``dims`` alone. ``tensor`` and ``program`` are of the common plan for several dims.
    """
    placement = exact.by_id.get(tensor.id)
    if placement is not None:
        if placement.arena in _arenas_in_bytes(exact):
            return placement.bytes
        return None  # the arena is in multiples of a further dim, such as ``batch``
    # Only the common plan recomputes this tensor: its bytes follow from its shape there.
    var = program.vars[VarId(tensor.id)]
    if var.shape is None:
        return None  # no shape to calculate the bytes from
    shape = tuple(bind_dim(dim, dims) for dim in var.shape)
    size = size_of(shape, var.dtype)
    return None if size is None or size.symbols else size.coefficient
