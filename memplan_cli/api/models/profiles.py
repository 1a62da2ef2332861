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
from memplan_cli.core.progress import Counted
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


def refuse_conflicts_with_profiles(settings: Settings, profiles: Profiles) -> None:
    """Refuse settings that cannot be combined with dims of several values.

    Raises:
        SettingsError: a dim of ``profiles`` also has bounds in the settings, or the target is one
            provider, for which a model can be planned at one size only.
    """
    bounded = next((name for name in profiles if name in settings.bounds), None)
    if bounded is not None:
        raise SettingsError(f"dim {bounded!r} has both numbers and bounds")
    if settings.target != "portable" and profiles:
        raise SettingsError(
            f"--target {settings.target} orders the runtime's graph of one size, and --dim "
            "has several",
            hint="give each --dim one number",
        )


def with_bounds_of(settings: Settings, profiles: Profiles) -> Settings:
    """Return settings for one plan that holds for all values between the given ones.

    Raises:
        SettingsError: other settings cannot be combined with several values.
    """
    refuse_conflicts_with_profiles(settings, profiles)
    bounds = {name: DimRange(min(values), max(values)) for name, values in profiles.items()}
    dims = {name: value for name, value in settings.dims.items() if name not in profiles}
    return replace(settings, dims=dims, bounds={**settings.bounds, **bounds})


def at_largest(settings: Settings, profiles: Profiles) -> Settings:
    """Return settings that bind each dim to its largest value, for a run."""
    largest = {name: max(values) for name, values in profiles.items()}
    return replace(settings, dims={**settings.dims, **largest})


def plan_profiles(
    file: ModelFile, settings: Settings, profiles: Profiles, progress: Progress | None = None
) -> PlannedProgram:
    """Make one plan for all combinations of values, and check it at each of them.

    The report of the plan has a row for each combination: the memory of its own plan.

    Raises:
        SettingsError: the model has no free dim of a name.
        InvalidLayoutError: the plan is not safe for a combination (a bug of memplan).
    """
    from memplan_cli.core.results.plan import check

    common = plan_model(file, with_bounds_of(settings, profiles), progress)
    free_dims(common.program, profiles)  # raises for a name that no shape of the program has
    # The inputs of the common plan have assumed numbers. For a profile dim that is its lower bound:
    # it is left out, as each combination binds the dim itself.
    inputs = common.settings.inputs
    if inputs.assumed is not None:
        assumed = {n: value for n, value in inputs.assumed.items() if n not in profiles}
        inputs = replace(inputs, assumed=assumed)
    rows = []
    all_dims = combinations(profiles)
    for done, profile_dims in enumerate(all_dims):
        if progress:
            progress(Counted("planning each binding", done, len(all_dims)))
        dims = {**settings.dims, **profile_dims}
        exact = plan_model(file, replace(settings, dims=dims, inputs=inputs), None).plan
        # Raises if the offsets of the common plan are not safe for the sizes of this combination.
        check(_with_exact_sizes(common, exact, dims))
        rows.append(Profile(profile_dims, exact.report.memory))
    report = replace(common.plan.report, profiles=tuple(rows))
    return replace(common, plan=common.plan.with_report(report))


def _with_exact_sizes(common: PlannedProgram, exact: Plan, dims: Mapping[str, int]) -> Plan:
    """Return the common plan, in which each tensor has the bytes that it has at ``dims``.

    ``exact`` is the plan for these dims only. A tensor whose size is symbolic, in the common plan or at
    ``dims``, keeps its size.

    Raises:
        InvalidLayoutError: a tensor is larger than the common plan assumes.
    """
    plan = common.plan
    numeric_arenas = _numeric_arenas(plan)
    tensors = []
    for tensor in plan.tensors:
        size = _exact_bytes(common.program, tensor, exact, dims)
        if size is None or tensor.arena not in numeric_arenas:
            tensors.append(tensor)
            continue
        if size > tensor.bytes:
            raise InvalidLayoutError(
                f"the plan has {tensor.bytes} bytes for {tensor.id[:120]!r}, which takes "
                f"{size} at {binding_text(dims)}"
            )
        tensors.append(tensor._replace(bytes=size))
    return replace(plan, tensors=tuple(tensors))


def _numeric_arenas(plan: Plan) -> frozenset[int]:
    """Return the arenas whose sizes are bytes; those of the others are multiples of symbols."""
    return frozenset(arena.id for arena in plan.arenas if arena.unit == "1")


def _exact_bytes(
    program: Program, tensor: Placement, exact: Plan, dims: Mapping[str, int]
) -> int | None:
    """Return a tensor's bytes at ``dims``; None if another dim keeps them symbolic.

    They are those in ``exact``, the plan for these dims only.
    """
    placement = exact.by_id.get(tensor.id)
    if placement is not None:
        return placement.bytes if placement.arena in _numeric_arenas(exact) else None
    # Only the common plan recomputes this tensor: its bytes follow from its shape there.
    var = program.vars[VarId(tensor.id)]
    shape = tuple(bind_dim(dim, dims) for dim in var.shape or ())
    size = size_of(shape, var.dtype)
    return None if size is None or size.symbols else size.coefficient
