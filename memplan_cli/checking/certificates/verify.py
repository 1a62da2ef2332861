"""A certificate checked part by part, in time linear in it and in the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from memplan_cli.checking.certificates.arenas import check_arena
from memplan_cli.checking.certificates.cuts import check_cuts
from memplan_cli.checking.certificates.fusions import fuse
from memplan_cli.checking.certificates.graph import planned_clock
from memplan_cli.checking.certificates.recomputation import check_recomputation
from memplan_cli.checking.certificates.refused import RefusedError, UnknownError, refuse_unless
from memplan_cli.checking.certificates.states import check_states
from memplan_cli.checking.certificates.tasks import read_tasks
from memplan_cli.checking.certificates.tensors import find_roots, read_tensors
from memplan_cli.checking.operators import OVERWRITES
from memplan_cli.core.results.certificate import NOT_CHECKABLE
from memplan_cli.core.results.certified import (
    NOT_CHECKED,
    REFUSED,
    VERIFIED,
    Certified,
    PartVerdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onnx import GraphProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.certificates.graph import Arrange
    from memplan_cli.checking.certificates.tasks import Tasks
    from memplan_cli.checking.certificates.tensors import Tensor
    from memplan_cli.checking.clock import Clock, Region
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.certificate import (
        ArenaProof,
        BlockProof,
        Certificate,
        OrderProof,
        RecomputeProof,
    )
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

    Proof = ArenaProof | OrderProof | RecomputeProof

_LEVEL_THAT_SHARES = 2


@dataclass(frozen=True, slots=True)
class Model:
    """The model of a plan, as far as a certificate needs it.

    Attributes:
        graph: Its outermost graph.
        arrange: Puts a block's nodes into the planned order.
        types: Dtype and shape by name, of each block by its path.
        bounds: Of the dims that the plan's sizes are the largest for.
    """

    graph: GraphProto
    arrange: Arrange
    types: Mapping[str, Mapping[str, tuple[str, Shape | None]]]
    bounds: Bounds


def verify(certificate: Certificate, plan: Plan, model: Model) -> Certified:
    """Check every part of a certificate; what the plan proves and it leaves out is refused."""
    try:
        subject = _Subject.of(plan, model)
    except RefusedError as error:
        status = NOT_CHECKED if isinstance(error, UnknownError) else REFUSED
        return Certified((PartVerdict("model", 0, status, "", str(error)),))
    try:
        refuse_unless(
            certificate.plan_sha256 == plan.digest,
            "the certificate is of another plan: their digests differ",
        )
        refuse_unless(
            certificate.graph_sha256 == plan.graph_sha256,
            "the certificate is of another model: their digests differ",
        )
    except RefusedError as error:
        return Certified((PartVerdict("certificate", 0, REFUSED, "", str(error)),))
    return Certified(tuple(_parts(certificate, subject)))


@dataclass(frozen=True, slots=True)
class _Subject:
    """The plan, the model's graph in its order, and its tensors."""

    plan: Plan
    clock: Clock
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, plan: Plan, model: Model) -> _Subject:
        pinned = {row.name for row in plan.tensors if row.pinned and not row.block}
        exposed = pinned if plan.settings.get("expose") else set()
        clock = planned_clock(model.graph, plan.order, model.arrange, exposed)
        return cls(plan, clock, read_tensors(clock, plan, model.types, model.bounds))

    def roots(self) -> Mapping[str, str]:
        """Return the tensor whose bytes each tensor that is not pinned shows."""
        if self.plan.report.level == _LEVEL_THAT_SHARES:
            return find_roots(self.clock, self.tensors)
        return {n: n for n, tensor in self.tensors.items() if tensor.row.pinned is None}

    def overwrites(self) -> Mapping[str, tuple[int, ...]]:
        """Return the inputs that results may be written over."""
        return OVERWRITES if self.plan.report.level == _LEVEL_THAT_SHARES else {}


def _parts(certificate: Certificate, subject: _Subject) -> Iterator[PartVerdict]:
    report = subject.plan.report
    bound, proof = report.memory.order_bound, certificate.order
    check_order = partial(_check_order, subject, certificate.blocks)
    yield from _part("order", bound, proof, check_order)
    if certificate.blocks and (proof is None or proof.method == NOT_CHECKABLE):
        reason = "it shows what subgraphs need, and nothing of the order that leans on it"
        yield PartVerdict("blocks", 0, REFUSED, "", reason)
    by_arena = {each.arena: each for each in certificate.arenas}
    for arena in subject.plan.arenas:
        check = partial(check_arena, arena, subject.tensors, report.level)
        for verdict in _part(
            f"arena {arena.id}", arena.lower_bound, by_arena.get(arena.id), check
        ):
            yield replace(verdict, unit=arena.unit)
    if [each.arena for each in certificate.arenas] != [
        each.id for each in subject.plan.arenas
    ]:
        reason = "it has not one proof for each arena of the plan, in the plan's order"
        yield PartVerdict("arenas", 0, REFUSED, "", reason)
    again = certificate.recompute
    yield from _part(
        "recompute", report.recompute.bound, again, partial(_check_recompute, subject)
    )


def _part(
    name: str, bound: int | None, proof: Proof | None, check: Callable[[Any], None]
) -> Iterator[PartVerdict]:
    """Yield the verdict on one bound, if the plan or the certificate has it."""
    if bound is None and proof is None:
        return
    if proof is None or bound is None:
        reason = "the plan has this bound, and the certificate shows nothing of it"
        if bound is None:
            reason = "the plan has no such bound"
        yield PartVerdict(name, bound or 0, REFUSED, "", reason)
        return
    method = str(proof.method)
    if proof.bound != bound:
        reason = f"it is about a bound of {proof.bound} bytes, the plan says {bound}"
        yield PartVerdict(name, bound, REFUSED, method, reason)
        return
    if method == NOT_CHECKABLE:
        yield PartVerdict(name, bound, NOT_CHECKED, method, proof.why)
        return
    try:
        check(proof)
    except RefusedError as error:
        yield PartVerdict(name, bound, REFUSED, method, str(error))
    else:
        yield PartVerdict(name, bound, VERIFIED, method, "")


def _check_order(subject: _Subject, blocks: Sequence[BlockProof], proof: OrderProof) -> None:
    plan = subject.plan
    refuse_unless(
        all(arena.unit == "1" for arena in plan.arenas),
        "sizes of the plan depend on symbols, and orders have no one peak",
    )
    regions = {region.path: region for region in subject.clock.regions[1:]}
    roots, overwrites = subject.roots(), subject.overwrites()
    inside: dict[str, int] = {}
    for each in blocks:
        name = f"block {each.block[:120]!r}"
        refuse_unless(each.block in regions, f"the model has no {name}")
        refuse_unless(each.block not in inside, f"{name} has two proofs")
        region = regions[each.block]
        tasks = read_tasks(region, subject.tensors, roots, overwrites, inside)
        _check_block(tasks, region, each.order, inside)
        inside[each.block] = each.order.bound
    top = subject.clock.top
    tasks = read_tasks(top, subject.tensors, roots, overwrites, inside)
    _check_block(tasks, top, proof, inside)


def _check_block(
    tasks: Tasks, block: Region, proof: OrderProof, inside: Mapping[str, int]
) -> None:
    """Refuse a proof that does not show its bound for the nodes of one block."""
    refuse_unless(proof.method != NOT_CHECKABLE, "a block without a witness is leant on")
    if proof.method == "inside":
        own = {body.path for node in block.nodes for body in node.bodies}
        refuse_unless(
            proof.inside in own and proof.inside in inside,
            f"nothing is shown of a subgraph {proof.inside[:120]!r} of one of the nodes",
        )
        found = tasks.always + inside[proof.inside]
        refuse_unless(
            found >= proof.bound, f"{proof.inside[:120]!r} needs {found}, not {proof.bound}"
        )
        return
    fuse(tasks, proof.fusions)
    if proof.method == "search":
        check_states(tasks, proof.states, proof.bound)
        return
    wanted = {"cut": 1, "pair": 2}[proof.method]
    refuse_unless(
        len(proof.cuts) == wanted, f"a {proof.method} has not {len(proof.cuts)} cuts"
    )
    refuse_unless(not proof.states, f"a {proof.method} has no states")
    check_cuts(tasks, proof.cuts, proof.tensors, proof.bound)


def _check_recompute(subject: _Subject, proof: RecomputeProof) -> None:
    check_recomputation(subject.clock, subject.tensors, subject.overwrites(), proof)
