"""Certificates of plans, made and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.files.agreement import read_as_planned, types_by_block
from memplan_cli.api.files.sources import on_files
from memplan_cli.errors import ModelError, PlanError
from memplan_cli.planning.plan_file import bounds_of

if TYPE_CHECKING:
    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.checking.certificates.planned_graph import CertifiedModel
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.certificate import Certificate, Certified, RecomputeProof
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.ordering.terms import Terms
    from memplan_cli.planning.planner import PlannedProgram


def certificate_for(file: ModelFile, planned: PlannedProgram) -> Certificate:
    """Return the certificate of a plan that was just made.

    Raises:
        MemplanError: the model cannot be read once more.
    """
    from memplan_cli.features.certificates.certify import certificate_of
    from memplan_cli.features.recompute.bound import Bound

    def prove_recompute(program: Program, terms: Terms, bound: int) -> RecomputeProof:
        return Bound(program, terms).witness(bound)

    return certificate_of(planned, _original(file, planned), prove_recompute)


def _original(file: ModelFile, planned: PlannedProgram) -> Program | None:
    """Return the program before nodes were copied, where a bound is about it."""
    report = planned.plan.report
    if report.recompute.bound is None or report.folded.tensors:
        return None
    from memplan_cli.api.files.assuming import settle

    return settle(file.lazy, file.path, planned.settings).loaded.program


def verify_certificate(
    model: ModelSource, plan_file: FilePath, certificate_file: FilePath
) -> Certified:
    """Check a certificate against a plan and a model, without the searches that found it.

    Args:
        model: The model that the plan was made of, or the one that was written with it;
            or a CSV file of buffers.
        plan_file: The plan; or the CSV file with their offsets.
        certificate_file: The certificate.

    Raises:
        MemplanError: a file cannot be read, or the model is another one.
    """
    return on_files(
        (model,), lambda path: _verify(path, Path(plan_file), Path(certificate_file))
    )


def _verify(model: Path, plan_file: Path, certificate_file: Path) -> Certified:
    from memplan_cli.checking.certificates.verify import verify
    from memplan_cli.core.results.certificate import read_certificate
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.planning.plan_file import read_plan

    certificate = read_certificate(certificate_file)
    if model.suffix == ".csv":
        from memplan_cli.checking.certificates.arenas import check_packing

        return check_packing(certificate, _bytes(model), _bytes(plan_file))
    plan = read_plan(plan_file)
    return verify(certificate, plan, model_of(load_model(model), plan, model))


def _bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        ModelError: it cannot be read, or has no end.
    """
    from memplan_cli.core.untrusted_files import refuse_endless

    refuse_endless(path, ModelError)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error


def model_of(model: ModelProto, plan: Plan, path: Path) -> CertifiedModel:
    """Return what a certificate needs of a model.

    Raises:
        PlanError: the plan is of another model, or does not say for which sizes it was made.
    """
    from memplan_cli.checking.certificates.planned_graph import (
        CertifiedModel,
        keep_written_order,
        move_to_planned_order,
    )
    from memplan_cli.core.program import blocks
    from memplan_cli.onnx_io.load import graph_digest
    from memplan_cli.onnx_io.metadata import read_notes

    is_written = read_notes(model).get("digest") == plan.digest
    if not is_written and graph_digest(model) != plan.graph_sha256:
        raise PlanError(
            f"{path} is neither the model that the plan was made of nor the one written with it",
            hint="name the model that was planned, or its .memplan.onnx",
        )
    changed = plan.report.recompute.nodes or plan.report.folded.tensors
    if changed and not is_written:
        raise PlanError(
            f"the plan has nodes that {path} does not have, or leaves some out",
            hint="name the model that was written with the plan",
        )
    loaded = read_as_planned(model, plan)
    program, types = loaded.program, types_by_block(loaded)
    # Nodes without names are called by their place in the file that was planned.
    paths = [b.path for b in blocks(program.body)]
    if is_written:
        paths = [order.block for order in plan.order]
    return CertifiedModel(
        model.graph,
        keep_written_order if is_written else move_to_planned_order,
        dict(zip(paths, types, strict=False)),
        bounds_of(plan),
    )
