"""The certificate of a plan: a proof of the lower bound of its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId
from memplan_cli.core.results.certificate import Certificate
from memplan_cli.core.symbolic.bounds import largest_size
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.core.version import VERSION
from memplan_cli.planning.allocation import aliasing_of

if TYPE_CHECKING:
    from memplan_cli.core.results.certificate import BlockProof, OrderProof
    from memplan_cli.ordering.block_graph import StorageFacts
    from memplan_cli.planning.planner import PlannedProgram


def certificate_of(planned: PlannedProgram) -> Certificate:
    """Return the certificate of a plan that was just made."""
    plan = planned.plan
    order, blocks = _order_proofs(planned)
    return Certificate(
        version=VERSION,
        graph_sha256=plan.graph_sha256,
        plan_sha256=plan.digest,
        order=order,
        blocks=blocks,
    )


def _storage_facts(planned: PlannedProgram) -> StorageFacts:
    """Return the bytes of each planned tensor, and which tensors share them.

    The plan's bytes are counted. Symbolic sizes are needed too: only tensors whose sizes are equal
    for all values of the symbols share bytes.
    """
    from memplan_cli.ordering.block_graph import storage_facts
    from memplan_cli.ordering.records import PlannedVars

    plan, program = planned.plan, planned.program
    bytes_to_count = {VarId(tensor.id): tensor.bytes for tensor in plan.tensors}
    vars_ = [program.vars[identity] for identity in bytes_to_count]
    known = {
        var.id: size for var in vars_ if (size := size_of(var.shape, var.dtype)) is not None
    }
    # Of a symbolic size, the largest within the bounds.
    sizes = {var: largest_size(size, planned.settings.bounds) for var, size in known.items()}
    pinned = [VarId(tensor.id) for tensor in plan.tensors if tensor.pinned is not None]
    planned_vars = PlannedVars(sizes, pinned, aliasing_of(plan.report.level))
    return storage_facts(program, planned_vars, bytes_to_count)


def _order_proofs(
    planned: PlannedProgram,
) -> tuple[OrderProof | None, tuple[BlockProof, ...]]:
    """Return the proof that no order has a live peak below the plan's bound, and those it rests on.

    The second value has the proofs of the subgraphs whose bounds the first uses. None and no
    proofs if the plan states no bound of its order.
    """
    from memplan_cli.ordering.witnesses import nested_witness

    bound = planned.plan.report.memory.order_bound
    if bound is None:
        return None, ()
    return nested_witness(planned.program.body, _storage_facts(planned), bound)
