"""Plan files and the models beside them: whether they belong together, and whether they agree."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from memplan_cli.api.models.file_names import model_beside
from memplan_cli.core.bindings import Inputs
from memplan_cli.core.program import Origin, blocks
from memplan_cli.errors import ModelError, PlanError, SettingsError
from memplan_cli.planning.plan_file import bounds_of
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.check import PlanComparison
    from memplan_cli.checking.timeline import OriginalModel
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.onnx_io.shapes.reading import Loaded


def named_from_here(plan: Plan, path: Path | None) -> Plan:
    """Return a plan whose report names the model relative to the current folder.

    In a plan file, the model's path is relative to the folder of that file.

    The plan is returned unchanged if it has no file, or the model is not where the plan says.
    """
    model = plan.report.model
    if path is None or not model.path or not (path.parent / model.path).is_file():
        return plan
    with suppress(ValueError):  # no relative path leads to another drive
        here = Path(os.path.relpath(path.parent / model.path)).as_posix()
        return plan.with_report(replace(plan.report, model=replace(model, path=here)))
    return plan


def stale_models(plan: Plan, path: Path) -> Iterator[str]:
    """Yield a warning for each model beside a plan file that the plan does not belong to.

    Two models are looked up: the one that the report names, which must have the digest in the
    plan, and the written model with the plan's own name, which carries the digest of its plan. A
    model that does not exist, cannot be read, or was not written by memplan yields nothing.
    """
    from memplan_cli.onnx_io.load import file_digest

    original = path.parent / plan.report.model.path
    if plan.report.model.path and original.is_file():
        try:
            digest = file_digest(original)
        except OSError:
            digest = plan.report.model.sha256
        if digest != plan.report.model.sha256:
            yield f"{original} is not the model that {path} is about: its digest is another"
    written = model_beside(path)
    if written != path and written.is_file():  # a plan file may be named ``*.onnx`` itself
        digest = _plan_digest_in(written) or plan.digest
        if digest != plan.digest:
            yield f"{written} was written with another plan than {path}"


def _plan_digest_in(model: Path) -> str:
    """Return the digest of the plan that a written model carries; empty if it carries none."""
    from memplan_cli.onnx_io.load import load_as_written
    from memplan_cli.onnx_io.metadata import read_notes

    try:
        return read_notes(load_as_written(model)).get("digest", "")
    except ModelError:
        return ""


def compare_with_model(model: ModelProto, plan: Plan, original: Path) -> PlanComparison:
    """Compare a plan with the ``model`` that was written with it, and both with the ``original`` file.

    Tensors of the plan must have the sizes of ``model`` at the dims and input shapes in the plan's settings. The
    original must have the digests in the plan. Its nodes, inputs and outputs are compared with those of ``model``.

    Raises:
        ModelError: a model cannot be read, or ``model`` has settings for ONNX Runtime that `memplan.load`
            refuses.
        PlanError: the dims or shapes in the plan's settings are missing, not valid, or not those of ``model``.
    """
    from memplan_cli.checking.check import compare_plan
    from memplan_cli.onnx_io.metadata import metadata_of
    from memplan_cli.onnx_io.settings_metadata import recorded_settings

    recorded_settings(metadata_of(model))  # called for its ModelError only
    loaded = read_as_planned(model, plan)
    source = _original_model(model, plan, original)
    return compare_plan(model, plan, types_by_block(loaded), bounds_of(plan), source)


def read_as_planned(model: ModelProto, plan: Plan) -> Loaded:
    """Read a model at the dims and shapes that a plan was made for.

    Raises:
        ModelError: it is no model.
        PlanError: the plan's settings do not contain these sizes, or the model has no such sizes.
    """
    from memplan_cli.onnx_io.caches_metadata import position_value
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_checked

    settings = planned_settings(plan, model)
    # Sizes of a decoder with caches in place depend on the value of its position input.
    values = position_value(plan.report.caches)
    try:
        return read_checked(model, Bindings(settings.dims, settings.shapes, values=values))
    except SettingsError as error:
        raise PlanError(
            f"the plan's settings are not those of the model: {error.message}"
        ) from error


def types_by_block(loaded: Loaded) -> Sequence[Mapping[str, tuple[str, Shape | None]]]:
    """Return dtype and shape by tensor name for each block, in order of execution.

    Results in a branch that is not taken at these sizes are left out. A dim that is declared as -1 is None.
    """
    from memplan_cli.onnx_io.shapes.never_run import is_inside

    types: dict[str, dict[str, tuple[str, Shape | None]]] = {
        block.path: {} for block in blocks(loaded.program.body)
    }
    for var in loaded.program.vars.values():
        # Weights in such a branch stay: their types do not depend on sizes.
        if var.origin is not Origin.WEIGHT and is_inside(var.block, loaded.skipped):
            continue
        shape = var.shape
        if shape is not None:
            shape = tuple(None if isinstance(dim, int) and dim < 0 else dim for dim in shape)
        types[var.block][var.name] = var.dtype, shape
    return list(types.values())


def _original_model(model: ModelProto, plan: Plan, original: Path) -> OriginalModel:
    """Return the facts of an ``original`` file with which a plan and the written ``model`` are compared."""
    from memplan_cli.checking.timeline import OriginalModel
    from memplan_cli.onnx_io.caches_metadata import has_caches
    from memplan_cli.onnx_io.interface import known_dims, open_inputs
    from memplan_cli.onnx_io.load import file_digest, graph_digest, load_model
    from memplan_cli.onnx_io.metadata import ORT_CONFIG, is_offline, metadata_of

    source = load_model(original)
    # If the original is a graph that ONNX Runtime optimized earlier, the written one has the same nodes.
    was_optimized = is_offline(model) and not is_offline(source)
    has_buffers = has_caches(model)
    has_same_nodes = not was_optimized and not has_buffers
    # Cache buffers are inputs with dims that the original lacks, and the plan may name these dims.
    model_with_dims = model if has_buffers else source
    return OriginalModel(
        graph=source.graph if has_same_nodes else None,  # None: the nodes are not compared
        sha256=file_digest(original),
        graph_sha256=graph_digest(source),
        free_inputs=open_inputs(model_with_dims),
        # Dims in the shapes of the plan's settings count too: ``--shape x=[n,4]`` names a dim ``n``.
        dims=known_dims(model_with_dims, planned_shapes(plan).values()),
        outputs=frozenset(value.name for value in source.graph.output),
        config=metadata_of(source).get(ORT_CONFIG),
        was_optimized=was_optimized,
    )


def planned_settings(plan: Plan, model: ModelProto) -> Settings:
    """Return settings with the sizes that a plan was made for, as far as a model has the dims.

    Raises:
        PlanError: the plan does not contain its sizes.
    """
    from memplan_cli.onnx_io.interface import known_dims

    shapes = planned_shapes(plan)
    # A graph that ONNX Runtime optimized may have lost dims of the original.
    model_dims = known_dims(model, shapes.values())
    dims = {name: value for name, value in planned_dims(plan).items() if name in model_dims}
    # The plan is symbolic in assumed dims, so that only its report has their numbers.
    assumed = {
        name: dim.value
        for name, dim in plan.report.bindings.items()
        if dim.source == "assumed" and name in model_dims
    }
    return Settings(dims=dims, shapes=shapes, inputs=Inputs(assumed=assumed))


def planned_shapes(plan: Plan) -> Mapping[str, Shape]:
    """Return the input shapes in a plan's settings; empty if it has none. They are validated here.

    Raises:
        PlanError: they are not a table of shapes.
    """
    from memplan_cli.settings.sources import read_overrides

    try:
        values = read_overrides({"shapes": plan.settings.get("shapes")}).values
    except SettingsError as error:
        raise PlanError("the plan's settings do not say the shapes of its inputs") from error
    return cast("Mapping[str, Shape]", values.get("shapes", {}))


def planned_dims(plan: Plan) -> Mapping[str, int]:
    """Return the values of dims in a plan's settings, which no schema has checked.

    Raises:
        PlanError: they are missing or no integers.
    """
    dims = plan.settings.get("dims")
    if not isinstance(dims, dict) or not all(type(value) is int for value in dims.values()):
        raise PlanError("the plan's settings do not say the values of its dims")
    return dims
