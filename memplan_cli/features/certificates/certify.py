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
    from memplan_cli.core.symbolic.sizes import Size
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
    """Return the bytes of each planned tensor, and which tensors share bytes in every order.

    The bytes are the numbers of the plan. Whether two tensors can share bytes depends on their sizes with
    symbols: tensors of ``4*n`` and ``4*m`` bytes never share, though both may have 400 bytes in the plan.
    """
    from memplan_cli.ordering.block_graph import storage_facts
    from memplan_cli.ordering.records import PlannedVars

    plan, program = planned.plan, planned.program
    bytes_to_count = {VarId(tensor.id): tensor.bytes for tensor in plan.tensors}
    sizes: dict[VarId, Size] = {}
    for identity in bytes_to_count:
        var = program.vars[identity]
        size = size_of(var.shape, var.dtype)
        if size is not None:
            # A symbol with a range is replaced by the upper end, as in the plan. Other symbols stay.
            sizes[identity] = largest_size(size, planned.settings.bounds)
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
