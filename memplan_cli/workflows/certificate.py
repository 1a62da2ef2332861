"""Certificates of plans, made and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from memplan_cli.errors import PlanError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.certification.verify import Model
    from memplan_cli.core.program import Program, Shape
    from memplan_cli.core.results.certificate import Certificate
    from memplan_cli.core.results.certified import Certified
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.planning.planner import Planned
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.files.model_file import ModelFile
    from memplan_cli.workflows.request import FilePath


def certificate_for(file: ModelFile, planned: Planned, settings: Settings) -> Certificate:
    """Return the certificate of a plan that was just made.

    Raises:
        MemplanError: the model cannot be read once more.
    """
    from memplan_cli.planning.certify import certificate_of

    return certificate_of(planned, settings.bounds, _original(file, planned, settings))


def _original(file: ModelFile, planned: Planned, settings: Settings) -> Program | None:
    """Return the program before nodes were copied, where a bound is about it."""
    if planned.plan.report.recompute.bound is None:
        return None
    from memplan_cli.workflows.files.model_file import load_program

    return load_program(file.lazy, file.path, settings).program


def verify_certificate(
    model: FilePath, plan_file: FilePath, certificate_file: FilePath
) -> Certified:
    """Check a certificate against a plan and a model, without the searches that found it.

    Args:
        model: The model that the plan was made of, or the one that was written with it.
        plan_file: The plan.
        certificate_file: The certificate.

    Raises:
        MemplanError: a file cannot be read, or the model is another one.
    """
    from memplan_cli.certification.verify import verify
    from memplan_cli.core.results.certificate import read_certificate
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.planning.checking.plan_file import read_plan

    certificate = read_certificate(Path(certificate_file))
    plan = read_plan(Path(plan_file))
    return verify(certificate, plan, _model_of(load_model(Path(model)), plan, Path(model)))


def _model_of(model: ModelProto, plan: Plan, path: Path) -> Model:
    """Return what a certificate needs of a model.

    Raises:
        PlanError: the plan is of another model, or does not say for which sizes it was made.
    """
    from memplan_cli.certification.graph import as_written, rearranged
    from memplan_cli.certification.verify import Model
    from memplan_cli.core.program import blocks
    from memplan_cli.onnx_io.load import graph_digest
    from memplan_cli.onnx_io.metadata import read_notes

    is_written = read_notes(model).get("digest") == plan.digest
    if not is_written and graph_digest(model) != plan.graph_sha256:
        raise PlanError(
            f"{path} is neither the model that the plan was made of nor the one written with it",
            hint="name the model that was planned, or its .memplan.onnx",
        )
    program = _read(model, plan)
    types: dict[str, dict[str, tuple[str, Shape | None]]] = {}
    for block in blocks(program.body):
        types[block.path] = {}
    for var in program.vars.values():
        types[var.block][var.name] = var.dtype, var.shape
    if is_written:
        # Nodes without names are called by their place in the file that was planned.
        paths = [order.block for order in plan.order]
        types = dict(zip(paths, types.values(), strict=False))
    bounds = cast("Mapping[str, tuple[int, int]]", _setting(plan, "bounds"))
    return Model(model.graph, as_written if is_written else rearranged, types, bounds)


def _read(model: ModelProto, plan: Plan) -> Program:
    from memplan_cli.onnx_io.interface import known_dims
    from memplan_cli.shapes.bindings import Bindings
    from memplan_cli.shapes.reading import read_checked

    shapes = cast("Mapping[str, Shape]", _setting(plan, "shapes"))
    dims = plan.settings.get("dims")
    if not isinstance(dims, dict) or not all(type(value) is int for value in dims.values()):
        raise PlanError("the plan's settings do not say the values of its dims")
    known = known_dims(model, shapes.values())
    dims = {name: value for name, value in dims.items() if name in known}
    try:
        return read_checked(model, Bindings(dims, shapes)).program
    except SettingsError as error:
        raise PlanError(f"the plan's settings are not those of the model: {error}") from error


def _setting(plan: Plan, name: str) -> object:
    """Return a setting of the plan: settings are free in its schema.

    Raises:
        PlanError: it is none.
    """
    from memplan_cli.settings.sources import read_overrides

    try:
        found = read_overrides({name: plan.settings.get(name)}).values
    except SettingsError as error:
        raise PlanError(f"the plan's settings do not say the {name} of its inputs") from error
    return found.get(name, {})
