"""The verdict on the bounds of a plan, in time linear in the certificate and the model.

A certificate proves the bound of the order. The bounds of arenas and of recomputation need no proof: they
are counted from the plan's tensors, whose sizes and live ranges are those of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.checking.arena_bounds import arena_bounds
from memplan_cli.checking.certificates.cuts import check_cuts
from memplan_cli.checking.certificates.groups import block_groups, fuse_groups
from memplan_cli.checking.certificates.planned_graph import (
    ProofError,
    UnknownSizeError,
    planned_graph,
    require,
)
from memplan_cli.checking.certificates.search import check_search
from memplan_cli.core.results.certificate import (
    NOT_CHECKABLE,
    NOT_CHECKED,
    REFUSED,
    VERIFIED,
    CertificateVerdict,
    PartVerdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.checking.certificates.planned_graph import CertifiedModel, PlannedGraph
    from memplan_cli.checking.timeline import Block
    from memplan_cli.core.results.certificate import BlockProof, Certificate, OrderProof
    from memplan_cli.core.results.plan import Plan

_SYMBOLIC = "sizes of the plan depend on symbols, and orders have no one peak"
"""Why the bounds of an order and of recomputation are refused."""


def verify(certificate: Certificate, plan: Plan, model: CertifiedModel) -> CertificateVerdict:
    """Return the verdicts on all bounds of a plan: of its order by a certificate, of the rest by counting.

    ``model.graph`` is changed: its nodes are moved into the plan's order. That it has the digest ``plan.graph_sha256``
    is not checked here. There is a single verdict if a size is unknown (not checked), if the nodes or tensors do
    not fit the plan (refused), or if the certificate names another plan or model by its digests (refused).
    """
    try:
        planned = planned_graph(plan, model)
    except ProofError as error:
        status = NOT_CHECKED if isinstance(error, UnknownSizeError) else REFUSED
        return CertificateVerdict((PartVerdict("model", 0, status, "", str(error)),))
    reason = ""
    if certificate.plan_sha256 != plan.digest:
        reason = "the certificate is of another plan: their digests differ"
    elif certificate.graph_sha256 != plan.graph_sha256:
        reason = "the certificate is of another model: their digests differ"
    if reason:
        return CertificateVerdict((_refusal("certificate", reason),))
    verdicts = (
        *_order_verdicts(certificate, planned),
        *_arena_verdicts(plan),
        *_recompute_verdict(planned),
    )
    return CertificateVerdict(verdicts)


def _refusal(part: str, reason: str, bound: int = 0) -> PartVerdict:
    """Return the refusal of a part whose proof was not checked, and so has no method; 0: it has no bound."""
    return PartVerdict(part, bound, REFUSED, "", reason)


def _order_verdicts(certificate: Certificate, planned: PlannedGraph) -> Iterator[PartVerdict]:
    """Yield the verdict on the order's bound; nothing if neither plan nor certificate has it.

    Proofs of subgraphs that no check reads are refused too.
    """
    bound, proof = planned.plan.report.memory.order_bound, certificate.order
    if bound is None and proof is not None:
        yield _refusal("order", "the plan has no such bound")
    elif bound is not None and proof is None:
        reason = "the plan has this bound, but the certificate has no proof of it"
        yield _refusal("order", reason, bound)
    elif bound is not None and proof is not None:
        status, reason = _order_status(proof, bound, certificate.blocks, planned)
        yield PartVerdict("order", bound, status, str(proof.method), reason)
    # Only the check of the order reads the proofs of subgraphs. Without it they would pass unchecked.
    if certificate.blocks and (proof is None or proof.method == NOT_CHECKABLE):
        reason = "it shows what subgraphs need, but nothing of the order that relies on it"
        yield _refusal("blocks", reason)


def _order_status(
    proof: OrderProof, bound: int, block_proofs: Sequence[BlockProof], planned: PlannedGraph
) -> tuple[str, str]:
    """Return whether a proof shows the order's bound, and the reason if it does not: ``(status, reason)``."""
    if proof.bound != bound:
        reason = f"the proof is for a bound of {proof.bound} bytes, the plan has {bound}"
        return REFUSED, reason
    if proof.method == NOT_CHECKABLE:
        return NOT_CHECKED, proof.why
    try:
        _check_order(planned, block_proofs, proof)
    except ProofError as error:
        return REFUSED, str(error)
    return VERIFIED, ""


def _arena_verdicts(plan: Plan) -> Iterator[PartVerdict]:
    """Yield whether the lower bound that the plan states for each arena is at most what its tensors need.

    `arena_bounds` counts what they need: at level 2 all bytes that are live at one tick (load); below, the
    slots, each of which is reused whole.
    """
    method = "load" if plan.report.level == 2 else "slots"
    bytes_needed = arena_bounds(plan)
    for arena in plan.arenas:
        part, bound, needed = f"arena {arena.id}", arena.lower_bound, bytes_needed[arena.id]
        reason = "" if needed >= bound else f"its tensors need {needed} bytes, not {bound}"
        status = REFUSED if reason else VERIFIED
        yield PartVerdict(part, bound, status, method, reason, arena.unit)


def _recompute_verdict(planned: PlannedGraph) -> Iterator[PartVerdict]:
    """Yield the verdict on the bound of recomputation, if the plan has such a bound.

    The bound holds if the inputs and outputs of some node of the main graph have as many bytes: they are live
    when this node runs, in any order and even if nodes run again.
    """
    bound = planned.plan.report.recompute.bound
    if bound is None:
        return
    reason = ""
    if not _has_fixed_sizes(planned):
        reason = _SYMBOLIC
    else:
        # Each group is one node. Bounds of subgraphs are left out: they are proven for nodes that run once.
        graph = block_groups(planned.timeline.main, planned, subgraph_bytes={})
        needed = max(map(graph.least_bytes_at, graph.groups), default=0)
        if needed < bound:
            reason = f"no node needs more than {needed} bytes, not {bound}"
    yield PartVerdict("recompute", bound, REFUSED if reason else VERIFIED, "step", reason)


def _check_order(
    planned: PlannedGraph, block_proofs: Sequence[BlockProof], proof: OrderProof
) -> None:
    """Check the proofs of subgraphs one after the other, then the proof of the main graph.

    A proof may rely on the bounds of subgraphs with an earlier proof.

    Raises:
        ProofError: with the reason.
    """
    require(_has_fixed_sizes(planned), _SYMBOLIC)
    subgraphs = {block.path: block for block in planned.timeline.blocks[1:]}
    proven_bytes: dict[str, int] = {}
    for block_proof in block_proofs:
        path = block_proof.block
        name = f"block {path[:120]!r}"
        require(path in subgraphs, f"the model has no {name}")
        require(path not in proven_bytes, f"{name} has two proofs")
        _check_block(subgraphs[path], planned, block_proof.order, proven_bytes)
        proven_bytes[path] = block_proof.order.bound
    _check_block(planned.timeline.main, planned, proof, proven_bytes)


def _check_block(
    block: Block, planned: PlannedGraph, proof: OrderProof, proven_bytes: Mapping[str, int]
) -> None:
    """Check that any order of the nodes of a block needs the bytes that a proof states.

    The methods of a proof:

    - ``inside``: a subgraph of a node needs as much in any order of its own nodes;
    - ``search``: no order can run all nodes with less;
    - ``cut``: one node needs as much while it runs, in any order;
    - ``pair``: whichever of two nodes runs first, one of them needs as much while it runs.

    ``proven_bytes`` are the bounds of subgraphs that are checked already, by path.

    Raises:
        ProofError: the proof is wrong, or its method is `NOT_CHECKABLE`: the certificate states only the bound.
    """
    require(proof.method != NOT_CHECKABLE, "it relies on a block without a witness")
    graph = block_groups(block, planned, proven_bytes)
    if proof.method == "inside":
        _check_inside(block, graph.pinned_bytes, proof, proven_bytes)
        return
    # The other methods need fewer states or cuts if nodes that can run one right after the other count as one.
    fuse_groups(graph, proof.fusions)
    if proof.method == "search":
        check_search(graph, proof.states, proof.bound)
        return
    # A cut is the bound of one node. A certificate with any other method than these two cannot be read.
    expected_cuts = {"cut": 1, "pair": 2}[proof.method]
    require(
        len(proof.cuts) == expected_cuts,
        f"a {proof.method} has not {len(proof.cuts)} cuts",
    )
    require(not proof.states, f"a {proof.method} has no states")
    check_cuts(graph, proof.cuts, proof.tensors, proof.bound)


def _check_inside(
    block: Block, pinned_bytes: int, proof: OrderProof, proven_bytes: Mapping[str, int]
) -> None:
    """Check that a subgraph of one of a block's nodes is proven to need what a proof states.

    The pinned bytes are live at every step of the block. They are added, because the proof of a subgraph counts
    only its own tensors.

    Raises:
        ProofError: the bytes are less, or the subgraph has no proof.
    """
    own_paths = {subgraph.path for node in block.nodes for subgraph in node.subgraphs}
    path, name = proof.inside, repr(proof.inside[:120])
    require(
        path in own_paths and path in proven_bytes,
        f"there is no proof for a subgraph {name} of one of the nodes",
    )
    needed = pinned_bytes + proven_bytes[path]
    require(needed >= proof.bound, f"{name} needs {needed}, not {proof.bound}")


def _has_fixed_sizes(planned: PlannedGraph) -> bool:
    """Return whether all sizes of a plan are numbers: else it has no one largest node or peak."""
    return all(arena.unit == "1" for arena in planned.plan.arenas)
