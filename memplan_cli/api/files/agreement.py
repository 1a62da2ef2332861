"""What a plan says of its own settings, and a plan held against the model beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from memplan_cli.core.program import Origin as Kind
from memplan_cli.core.program import blocks
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.planning.plan_file import bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.check import PlanComparison
    from memplan_cli.checking.planned_model import OriginalModel
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.onnx_io.shapes.reading import Loaded


def held_against(model: ModelProto, plan: Plan, original: Path) -> PlanComparison:
    """Hold a plan against the written model beside it, and against what it was made of.

    Sizes are those of the model's own graph, at the dims and shapes of the plan: what its
    file declares is believed only where no node contradicts it.

    Raises:
        ModelError: the model or its original is none.
        PlanError: the plan's settings do not say what it was made for.
    """
    from memplan_cli.checking.check import compare_plan

    loaded = read_as_planned(model, plan)
    return compare_plan(
        model, plan, types_by_block(loaded), bounds_of(plan), _origin(model, original)
    )


def read_as_planned(model: ModelProto, plan: Plan) -> Loaded:
    """Read a model at the dims and shapes that a plan was made for.

    Raises:
        ModelError: it is none.
        PlanError: the plan's settings do not say what it was made for.
    """
    from memplan_cli.onnx_io.caches_metadata import position_value
    from memplan_cli.onnx_io.interface import known_dims
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_checked

    shapes = shapes_of(plan)
    known = known_dims(model, shapes.values())
    dims = {name: value for name, value in dims_of(plan).items() if name in known}
    try:
        return read_checked(
            model, Bindings(dims, shapes, values=position_value(plan.report.caches))
        )
    except SettingsError as error:
        raise PlanError(f"the plan's settings are not those of the model: {error}") from error


def types_by_block(loaded: Loaded) -> Sequence[Mapping[str, tuple[str, Shape | None]]]:
    """Return dtype and shape by name of each block, outermost first, in order of execution.

    Of what stands in a block that is not entered at these sizes the model says nothing.
    """
    from memplan_cli.onnx_io.shapes.never_run import is_inside

    found: dict[str, dict[str, tuple[str, Shape | None]]] = {
        block.path: {} for block in blocks(loaded.program.body)
    }
    for var in loaded.program.vars.values():
        if var.origin is Kind.WEIGHT or not is_inside(var.block, loaded.skipped):
            found[var.block][var.name] = var.dtype, _without_negative(var.shape)
    return list(found.values())


def _without_negative(shape: Shape | None) -> Shape | None:
    """Return a shape in which a dim that is declared as -1 is unknown."""
    if shape is None:
        return None
    return tuple(None if isinstance(dim, int) and dim < 0 else dim for dim in shape)


def _origin(model: ModelProto, original: Path) -> OriginalModel:
    from memplan_cli.checking.planned_model import OriginalModel
    from memplan_cli.onnx_io.caches_metadata import has_caches
    from memplan_cli.onnx_io.load import file_digest, graph_digest, load_model
    from memplan_cli.onnx_io.metadata import is_offline

    source = load_model(original)
    graph = None if is_offline(model) or has_caches(model) else source.graph
    return OriginalModel(graph, file_digest(original), graph_digest(source))


def shapes_of(plan: Plan) -> Mapping[str, Shape]:
    """Return the shapes that a plan was made for.

    Raises:
        PlanError: it does not say them: settings are free in a plan's schema.
    """
    from memplan_cli.settings.sources import read_overrides

    try:
        found = read_overrides({"shapes": plan.settings.get("shapes")}).values
    except SettingsError as error:
        raise PlanError("the plan's settings do not say the shapes of its inputs") from error
    return cast("Mapping[str, Shape]", found.get("shapes", {}))


def dims_of(plan: Plan) -> Mapping[str, int]:
    """Return the values of the dims that a plan was made for.

    Raises:
        PlanError: it does not say them: settings are free in a plan's schema.
    """
    dims = plan.settings.get("dims")
    if not isinstance(dims, dict) or not all(type(value) is int for value in dims.values()):
        raise PlanError("the plan's settings do not say the values of its dims")
    return dims
