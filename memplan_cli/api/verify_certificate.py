"""``memplan verify-certificate``: check the bounds of a plan without the searches that found them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.models.plan_files import read_as_planned, types_by_block
from memplan_cli.api.models.sources import model_paths
from memplan_cli.errors import PlanError
from memplan_cli.planning.plan_file import bounds_of

if TYPE_CHECKING:
    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.checking.certificates.planned_graph import CertifiedModel
    from memplan_cli.core.results.certificate import CertificateVerdict
    from memplan_cli.core.results.plan import Plan


def verify_certificate(
    model: ModelSource, plan_file: FilePath, certificate_file: FilePath
) -> CertificateVerdict:
    """Check a certificate against a plan and a model, without the searches that found it.

    Args:
        model: The model that the plan was made of, or the one that was written with it.
        plan_file: The plan.
        certificate_file: The certificate.

    Raises:
        MemplanError: a file cannot be read, or the model is another one.
    """
    from memplan_cli.checking.certificates.verify import verify
    from memplan_cli.core.results.certificate import read_certificate
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.planning.plan_file import read_plan

    with model_paths(model) as files:
        path, plan_path = files.path, Path(plan_file)
        certificate = read_certificate(Path(certificate_file))
        plan = read_plan(plan_path)
        verdict = verify(certificate, plan, certified_model(load_model(path), plan, path))
        # A model in memory has a file in a temporary folder, which the verdict must not name.
        return files.without_temporary_folder(verdict)


def certified_model(model: ModelProto, plan: Plan, path: Path) -> CertifiedModel:
    """Return what the check of a certificate needs of a model: its graph, order, types and bounds.

    The model is the original, or was written with the plan. The check puts the nodes of the original into the
    plan's order, in which the nodes of a written model are already.

    Raises:
        PlanError: the plan is of another model, has nodes that ``model`` does not have, or lacks
            the sizes that it was made for.
    """
    from memplan_cli.checking.certificates.planned_graph import (
        CertifiedModel,
        keep_written_order,
        move_to_planned_order,
    )
    from memplan_cli.core.program import blocks
    from memplan_cli.onnx_io.metadata import read_notes

    # A model that memplan writes has the digest of its plan in its metadata.
    is_written_with_plan = read_notes(model).get("digest") == plan.digest
    if not is_written_with_plan:
        _require_planned_graph(model, plan, path)
    loaded = read_as_planned(model, plan)  # raises if the plan lacks its sizes
    block_types = types_by_block(loaded)  # in the order of the model's blocks
    if is_written_with_plan:
        # The plan lists the paths in this order too. The model's own paths can differ from them, because a path
        # contains the index of a node without a name, and the nodes were reordered.
        paths_in_plan = [order.block for order in plan.order]
        if len(paths_in_plan) != len(block_types):
            raise PlanError(
                f"{path} has {len(block_types)} blocks, and the plan {len(paths_in_plan)}"
            )
        reorder_nodes = keep_written_order
    else:
        paths_in_plan = [block.path for block in blocks(loaded.program.body)]
        reorder_nodes = move_to_planned_order
    types_by_path = dict(zip(paths_in_plan, block_types, strict=True))
    return CertifiedModel(model.graph, reorder_nodes, types_by_path, bounds_of(plan))


def _require_planned_graph(model: ModelProto, plan: Plan, path: Path) -> None:
    """Raise PlanError unless a model is the one that was planned, and has exactly the nodes of the plan."""
    from memplan_cli.onnx_io.load import graph_digest

    if graph_digest(model) != plan.graph_sha256:
        raise PlanError(
            f"{path} is neither the model that was planned nor the model that was written",
            hint="name the model that was planned, or its .memplan.onnx",
        )
    if plan.report.recompute.nodes or plan.report.folded.tensors:
        raise PlanError(
            f"the plan has nodes that {path} does not have, or leaves some out",
            hint="name the model that was written with the plan",
        )
