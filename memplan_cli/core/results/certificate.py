"""Certificates: the proof of the lower bound of a plan's order, and verdicts on all its bounds.

Nodes are denoted by their index in the planned order of the main graph, tensors by name or by their
index in `OrderProof.tensors`. `memplan_cli.checking.certificates` describes and checks each proof:
its module `cuts` defines shares and the multiples of constraints in a `Hold`, `search` defines moves
and free groups, `groups` the rules of fusions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.json_types import Natural, Positive, Sha256, one_of
from memplan_cli.core.serialization import SPARSE, Keys, to_json
from memplan_cli.errors import PlanError, refuse_endless, unreadable

if TYPE_CHECKING:
    from pathlib import Path


SCHEMA = "memplan.certificate/1"

MAX_FILE_BYTES = 64 << 20
"""Larger files of certificates are refused."""

NOT_CHECKABLE = "none"
"""The method of a bound without a proof, because it is unknown or too large."""


class Fusion(NamedTuple):
    """Two groups of nodes, of which one runs right after the other in some optimal order.

    ``late``: ``node`` frees no memory, and ``into`` is its only successor: it runs right before it.
    ``early``: ``into`` is the only predecessor of ``node``, which frees at least the bytes that it
    allocates: it runs right after it.
    """

    node: Natural
    into: Natural
    rule: Annotated[str, one_of("late", "early")]


class Share(NamedTuple):
    """Bytes of a tensor that are assigned to one of its consumers.

    The node of the step stands for any consumer that runs after it in every order.
    """

    tensor: Natural
    reader: Natural
    bytes: Positive


class Hold(NamedTuple):
    """A multiple, in bytes, of the constraint that node ``first`` runs before node ``second``."""

    first: Natural
    second: Natural
    bytes: Positive


@dataclass(frozen=True, slots=True)
class Dual:
    """A solution of the dual of a linear program, which bounds the bytes live at a step.

    Attributes:
        shares: bytes of tensors that are live at the step in some orders only.
        holds: multiples of the constraints on the order.
        replaced: the tensor whose bytes the step's result is assumed to reuse, if any.
    """

    json_keys: ClassVar[Keys] = ("replaced", "shares", "holds")

    shares: tuple[Share, ...]
    holds: tuple[Hold, ...]
    replaced: Natural | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Cut:
    """A lower bound of the bytes live at the step of a node, in every order of the others.

    Attributes:
        node: the node.
        duals: one for each tensor whose bytes the node's result may reuse, or a single one.
        before: a node that is assumed to run before it.
        after: a node that is assumed to run after it.
    """

    json_keys: ClassVar[Keys] = ("node", "before", "after", "duals")

    node: Natural
    duals: tuple[Dual, ...]
    before: Natural | None = field(default=None, metadata=SPARSE)
    after: Natural | None = field(default=None, metadata=SPARSE)


class Move(NamedTuple):
    """A transition between two states of the search.

    Attributes:
        nodes: the node that runs; none in the first move of a search.
        free: nodes that run after it without increasing the live bytes.
        to: the index of the next state.
    """

    nodes: tuple[Natural, ...]
    free: tuple[Natural, ...]
    to: Positive


@dataclass(frozen=True, slots=True)
class OrderProof:
    """The proof that no order of the nodes has a live peak below a bound.

    Methods: ``cut``: the step of one node needs the bound in every order. ``pair``: whichever of two
    nodes runs first, a step needs the bound. ``search``: no sequence of nodes that stays below the
    bound runs all nodes. ``inside``: a subgraph of a node needs the bound, with the bytes that are
    always live.

    Attributes:
        bound: the bound in bytes.
        method: how it is proved.
        tensors: the tensors that the other parts refer to by index.
        fusions: pairs of nodes that may run one right after the other.
        cuts: the bounds of single steps.
        states: all states that are reachable below the bound, each with its transitions.
        inside: the block of the subgraph.
        why: the reason why there is no proof.
    """

    bound: Natural
    method: Annotated[str, one_of("cut", "pair", "search", "inside", NOT_CHECKABLE)]
    tensors: tuple[str, ...] = field(default=(), metadata=SPARSE)
    fusions: tuple[Fusion, ...] = field(default=(), metadata=SPARSE)
    cuts: tuple[Cut, ...] = field(default=(), metadata=SPARSE)
    states: tuple[tuple[Move, ...], ...] = field(default=(), metadata=SPARSE)
    inside: str = field(default="", metadata=SPARSE)
    why: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class BlockProof:
    """The proof of a bound for the nodes of a subgraph, without the bytes of its inputs.

    Proofs of outer blocks use the bound for the node that has the subgraph.
    """

    block: str
    order: OrderProof


@dataclass(frozen=True, slots=True)
class Certificate:
    """The proof of the bound of a plan's order, in the layout of ``memplan.certificate/1``.

    Attributes:
        version: the version of memplan that made it.
        graph_sha256: the digest of the planned graph.
        plan_sha256: the digest of the plan.
        order: the proof of the order's bound; null if the plan has none.
        blocks: proofs for subgraphs that the proof of the order uses, inner ones first.
    """

    schema: ClassVar[str] = SCHEMA
    producer: ClassVar[str] = "memplan"
    json_keys: ClassVar[Keys] = (
        ("producer.name", "producer"),
        ("producer.version", "version"),
        "graph_sha256",
        "plan_sha256",
        "order",
        "blocks",
    )

    version: str
    graph_sha256: Sha256
    plan_sha256: Sha256
    order: OrderProof | None
    blocks: tuple[BlockProof, ...] = field(default=(), metadata=SPARSE)

    def dumps(self) -> str:
        """Return the text of the certificate's file, a line per key. It is deterministic."""
        lines = [
            f'"{name}": {json.dumps(value, separators=(",", ":"))}'
            for name, value in to_json(self).items()
        ]
        return "{\n " + ",\n ".join(lines) + "\n}\n"


def read_certificate(path: Path) -> Certificate:
    """Read the file of a certificate, with all types and ranges checked. It is not verified.

    Raises:
        PlanError: the file cannot be read, is too large, or is not a certificate.
    """
    refuse_endless(path, PlanError)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error, PlanError) from None
    if len(text) > MAX_FILE_BYTES:
        raise PlanError(
            f"{path} is too large: a certificate has at most {MAX_FILE_BYTES} bytes"
        )
    try:
        return certificate_from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {str(error)[:200]}") from error
    except PlanError as error:  # the same error, with the path before its message
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error


def certificate_from_json(data: object) -> Certificate:
    """Return the certificate that parsed JSON represents.

    Raises:
        PlanError: the JSON does not have the format of a certificate.
    """
    try:
        return from_json(Certificate, data, "the certificate")
    except MisfitError as error:
        raise PlanError(str(error)) from error


VERIFIED, REFUSED, NOT_CHECKED = "verified", "refused", "not checkable"


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """The verdict on one bound of a plan.

    Attributes:
        part: the bounded part: the order, an arena or recomputation.
        bound: the bound, in multiples of ``unit``.
        status: whether the proof of the bound was verified.
        method: the method of the proof.
        reason: the reason why the bound is not verified; empty if it is.
        unit: the unit of the arena; ``1`` is a byte.
    """

    part: str
    bound: int
    status: Annotated[str, one_of(VERIFIED, REFUSED, NOT_CHECKED)]
    method: str
    reason: str
    unit: str = "1"


@dataclass(frozen=True, slots=True)
class CertificateVerdict:
    """The verdicts on all parts of a certificate."""

    json_keys: ClassVar[Keys] = ("passed", "parts")

    parts: tuple[PartVerdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every bound of the plan was verified."""
        return all(part.status == VERIFIED for part in self.parts)
