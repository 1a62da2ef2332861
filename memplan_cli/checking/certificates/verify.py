"""The verdict on a certificate of a plan, in time linear in the certificate and the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from memplan_cli.checking.certificates.arenas import check_arena
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.checking.certificates.planned_graph import CertifiedModel, PlannedGraph
    from memplan_cli.checking.timeline import Block
    from memplan_cli.core.results.certificate import (
        ArenaProof,
        BlockProof,
        Certificate,
        OrderProof,
        RecomputeProof,
    )
    from memplan_cli.core.results.plan import Plan

    Proof = ArenaProof | OrderProof | RecomputeProof


def verify(certificate: Certificate, plan: Plan, model: CertifiedModel) -> CertificateVerdict:
    """Return the verdicts on all parts of a certificate, and on bounds of the plan without a proof.

    The nodes of the model's graph are moved into the plan's order. If the plan is not one of this
    model, there is no other verdict. The caller has compared the digest of the model with the
    plan's. So digests of the certificate are compared with those of the plan.
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
    return CertificateVerdict(tuple(_part_verdicts(certificate, planned)))


def _part_verdicts(certificate: Certificate, planned: PlannedGraph) -> Iterator[PartVerdict]:
    """Yield the verdicts on the bounds of the order, of each arena and of recomputation.

    Two more parts are refused: proofs of subgraphs that no check reads, and a list of arenas other than the plan's.
    """
    plan, order = planned.plan, certificate.order
    report = plan.report
    check_order = partial(_check_order, planned, certificate.blocks)
    yield from _bound_verdict("order", report.memory.order_bound, order, check_order)
    # Only `_check_order` reads the proofs of subgraphs. Without it they would pass unchecked.
    if certificate.blocks and (order is None or order.method == NOT_CHECKABLE):
        reason = "it shows what subgraphs need, but nothing of the order that relies on it"
        yield _refusal("blocks", reason)
    proofs = {proof.arena: proof for proof in certificate.arenas}
    for arena in plan.arenas:
        check = partial(check_arena, arena, planned.tensors, report.level)
        for verdict in _bound_verdict(
            f"arena {arena.id}", arena.lower_bound, proofs.get(arena.id), check
        ):
            yield replace(verdict, unit=arena.unit)
    if [proof.arena for proof in certificate.arenas] != [arena.id for arena in plan.arenas]:
        yield _refusal(
            "arenas", "it has not one proof for each arena of the plan, in the plan's order"
        )
    yield from _bound_verdict(
        "recompute",
        report.recompute.bound,
        certificate.recompute,
        partial(_check_recomputation, planned),
    )


def _refusal(part: str, reason: str, bound: int = 0) -> PartVerdict:
    """Return the refusal of a part whose proof was not checked, and so has no method; 0: it has no bound."""
    return PartVerdict(part, bound, REFUSED, "", reason)


def _bound_verdict(
    part: str, bound: int | None, proof: Proof | None, check: Callable[[Any], None]
) -> Iterator[PartVerdict]:
    """Yield the verdict on one bound; nothing if neither plan nor certificate has it.

    ``bound`` is that of the plan; ``check`` raises a `ProofError` if the certificate's proof of it
    is wrong.
    """
    if bound is None and proof is None:
        return
    if bound is None:
        yield _refusal(part, "the plan has no such bound")
    elif proof is None:
        reason = "the plan has this bound, but the certificate has no proof of it"
        yield _refusal(part, reason, bound)
    else:
        status, reason = _status(proof, bound, check)
        yield PartVerdict(part, bound, status, str(proof.method), reason)


def _status(proof: Proof, bound: int, check: Callable[[Any], None]) -> tuple[str, str]:
    """Return whether a proof shows a bound, and the reason if it does not: ``(status, reason)``."""
    if proof.bound != bound:
        reason = f"the proof is for a bound of {proof.bound} bytes, the plan has {bound}"
        return REFUSED, reason
    if proof.method == NOT_CHECKABLE:
        return NOT_CHECKED, proof.why
    try:
        check(proof)
    except ProofError as error:
        return REFUSED, str(error)
    return VERIFIED, ""


def _check_order(
    planned: PlannedGraph, block_proofs: Sequence[BlockProof], proof: OrderProof
) -> None:
    """Check the proofs of subgraphs one after the other, then the proof of the main graph.

    A proof may rely on the bounds of subgraphs with an earlier proof.

    Raises:
        ProofError: with the reason.
    """
    _require_fixed_sizes(planned)
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
    - ``cut``: the step of one node needs as much in any order (see `cuts`);
    - ``pair``: whichever of two nodes runs first, the step of one of them needs as much;
    - ``search``: no order can run all nodes with less (see `search`);
    - `NOT_CHECKABLE`: a bound without a proof, which is refused.

    Nodes may be fused first (see `groups`), but for ``inside``. ``proven_bytes`` are bounds of
    subgraphs that are checked already, by path.

    Raises:
        ProofError: with the reason.
    """
    require(proof.method != NOT_CHECKABLE, "it relies on a block without a witness")
    graph = block_groups(block, planned, proven_bytes)
    if proof.method == "inside":
        _check_inside(block, graph.pinned_bytes, proof, proven_bytes)
        return
    fuse_groups(graph, proof.fusions)
    if proof.method == "search":
        check_search(graph, proof.states, proof.bound)
        return
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
    """Check a proof by the proven bytes of a subgraph of one of a block's nodes, and the pinned bytes.

    Raises:
        ProofError: they are less than the proof states, or the subgraph has no proof.
    """
    own_paths = {subgraph.path for node in block.nodes for subgraph in node.subgraphs}
    path, name = proof.inside, repr(proof.inside[:120])
    require(
        path in own_paths and path in proven_bytes,
        f"there is no proof for a subgraph {name} of one of the nodes",
    )
    needed = pinned_bytes + proven_bytes[path]
    require(needed >= proof.bound, f"{name} needs {needed}, not {proof.bound}")


def _check_recomputation(planned: PlannedGraph, proof: RecomputeProof) -> None:
    """Check that the inputs and outputs of one node of the main graph reach the bound.

    Its step needs them in any order, even if nodes run again. The proof names the node by its first
    output.

    Raises:
        ProofError: with the reason.
    """
    _require_fixed_sizes(planned)
    main = planned.timeline.main
    node_by_output = {
        value.tensor_id: node.index
        for node in main.nodes
        for value in node.outputs
        if value is not None
    }
    output = proof.node
    name = repr(output[:120])
    require(output in node_by_output, f"{name} is not the output of a node")
    needed = block_groups(main, planned, {}).least_bytes_at(node_by_output[output])
    require(
        needed >= proof.bound,
        f"the node that computes {name} needs {needed} bytes, not {proof.bound}",
    )


def _require_fixed_sizes(planned: PlannedGraph) -> None:
    """Refuse a plan of symbolic sizes, which have no one largest node or peak.

    Raises:
        ProofError: a size depends on a symbol.
    """
    require(
        all(arena.unit == "1" for arena in planned.plan.arenas),
        "sizes of the plan depend on symbols, and orders have no one peak",
    )
