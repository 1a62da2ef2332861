"""Certificates: the proofs of one plan's lower bounds, and the verdicts of checking them.

Nodes are indices in the planned order of the main graph, tensors are named. What each witness
shows, and how it is checked, is described in `memplan_cli.checking.certificates`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.files import refuse_endless
from memplan_cli.core.json_types import Natural, Positive, Sha256, one_of
from memplan_cli.core.serialization import SPARSE, Keys, to_json
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path


SCHEMA = "memplan.certificate/1"

MOST_BYTES = 64 << 20
"""Files of certificates that are larger are not read."""

NOT_CHECKABLE = "none"
"""The method of a bound for which there is no witness of a sensible size."""


class Fusion(NamedTuple):
    """Two groups of nodes that may run one right after the other in some best order.

    ``late``: ``node`` frees nothing and has one successor, ``into``: it runs just before.
    ``early``: ``into`` is its one predecessor and it frees what it takes: just after.
    """

    node: Natural
    into: Natural
    rule: Annotated[str, one_of("late", "early")]


class Share(NamedTuple):
    """Bytes of a tensor that are charged to one of its readers.

    Where the tensor is there after the step in any case, the step's own node is the reader.
    """

    tensor: Natural
    reader: Natural
    bytes: Positive


class Hold(NamedTuple):
    """Bytes by which one node's precedence over another counts."""

    first: Natural
    second: Natural
    bytes: Positive


@dataclass(frozen=True, slots=True)
class Dual:
    """Dual weights of a linear program, whose sum bounds the bytes live at a step.

    Attributes:
        shares: the weights of tensors.
        holds: the weights of precedences.
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
        duals: one for each tensor that the node's result may replace, or one.
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
        nodes: nodes that run.
        free: nodes that run after them and leave no more bytes live.
        to: the state that is reached.
    """

    nodes: tuple[Natural, ...]
    free: tuple[Natural, ...]
    to: Positive


@dataclass(frozen=True, slots=True)
class OrderProof:
    """The proof that no order of the nodes has a live peak below a bound.

    Methods: ``cut``: one step needs as much. ``pair``: of two nodes one runs first, and in
    either case a step needs as much. ``search``: no state that is reachable with less has run
    all nodes. ``inside``: a subgraph of one of the nodes needs as much, with the bytes that are
    always live.

    Attributes:
        bound: the bound in bytes.
        method: how it is proved.
        tensors: the tensors that the other parts refer to by index.
        fusions: pairs of nodes that may run one right after the other.
        cuts: the bounds of single steps.
        states: all states that are reachable with less, each with its transitions.
        inside: the block of the subgraph.
        why: why there is no proof.
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
    """The proof of a bound for the nodes of a subgraph, without the subgraph's inputs.

    Proofs of the blocks around it use the bound at the subgraph's node.
    """

    block: str
    order: OrderProof


class SlotLoad(NamedTuple):
    """Tensors of one dtype and shape that are live at the same tick.

    Attributes:
        dtype: their element type.
        shape: their shape; null: any.
        number: how many there are.
        bytes: each has at least this size.
        tick: the tick.
    """

    dtype: str
    shape: tuple[Natural | str, ...] | None
    number: Positive
    bytes: Natural
    tick: Natural


@dataclass(frozen=True, slots=True)
class ArenaProof:
    """The proof that an arena cannot be smaller than a bound.

    Attributes:
        arena: the arena.
        bound: the bound, in multiples of the arena's unit.
        method: how it is proved: by the load at one tick, or by tensors that need slots.
        tick: the tick of the load.
        slots: the tensors that need slots.
        why: why there is no proof.
    """

    arena: Natural
    bound: Natural
    method: Annotated[str, one_of("load", "slots", NOT_CHECKABLE)]
    tick: Natural | None = field(default=None, metadata=SPARSE)
    slots: tuple[SlotLoad, ...] = field(default=(), metadata=SPARSE)
    why: str = field(default="", metadata=SPARSE)


class Passage(NamedTuple):
    """Bytes that a value contributes to another one.

    Attributes:
        value: the value.
        made: the value that is computed from it; empty: the reader.
        bytes: the bytes.
    """

    value: str
    made: str
    bytes: Positive


@dataclass(frozen=True, slots=True)
class Way:
    """The bytes that must be live for a reader of the kept value while that is computed.

    Attributes:
        reader: the reader.
        alone: whether a copy computes the kept value and no optional output.
        passages: the bytes, from value to value.
    """

    reader: str
    alone: bool
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class RecomputeProof:
    """The proof that no order has a live peak below a bound, whatever nodes run twice.

    Methods: ``step``: one node reads and writes as much. ``kept``: a value is kept until it is
    read, and values that cannot be computed beside it are live before. Nodes are named by their
    first output.

    Attributes:
        bound: the bound in bytes.
        method: how it is proved.
        node: the node of ``step``.
        kept: the value of ``kept``.
        ways: for each reader of the kept value, the bytes that must be live.
        why: why there is no proof.
    """

    bound: Natural
    method: Annotated[str, one_of("step", "kept", NOT_CHECKABLE)]
    node: str = field(default="", metadata=SPARSE)
    kept: str = field(default="", metadata=SPARSE)
    ways: tuple[Way, ...] = field(default=(), metadata=SPARSE)
    why: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The proofs of the bounds of one plan, in the layout of ``memplan.certificate/1``.

    Attributes:
        version: the version of memplan that wrote it.
        graph_sha256: the digest of the planned graph.
        plan_sha256: the digest of the plan.
        order: the proof of the order's bound.
        arenas: the proofs of the arenas' bounds.
        recompute: the proof of the bound with recomputation.
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
        "arenas",
        "recompute",
    )

    version: str
    graph_sha256: Sha256
    plan_sha256: Sha256
    order: OrderProof | None
    arenas: tuple[ArenaProof, ...]
    recompute: RecomputeProof | None
    blocks: tuple[BlockProof, ...] = field(default=(), metadata=SPARSE)

    def dumps(self) -> str:
        """Return the text of the certificate's file. It is deterministic."""
        lines = [
            f'"{name}": {json.dumps(value, separators=(",", ":"))}'
            for name, value in to_json(self).items()
        ]
        return "{\n " + ",\n ".join(lines) + "\n}\n"


def read_certificate(path: Path) -> Certificate:
    """Read a certificate's file, and check all types and ranges in it.

    Raises:
        PlanError: it cannot be read, is too large, or is not a certificate.
    """
    refuse_endless(path, PlanError)
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise PlanError(f"{path} is too large: a certificate has {MOST_BYTES} bytes at most")
    try:
        return certificate_from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {str(error)[:200]}") from error
    except PlanError as error:
        raise type(error)(f"{path}: {error}", hint=error.hint) from error


def certificate_from_json(data: object) -> Certificate:
    """Turn JSON into a certificate.

    Raises:
        PlanError: it is not of this schema.
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
        part: what is bounded: the order, an arena or recomputation.
        bound: the bound, in multiples of ``unit``.
        status: whether the witness of the bound was verified.
        method: the kind of the witness.
        reason: why the bound is not verified; empty if it is.
        unit: the unit of the arena.
    """

    part: str
    bound: int
    status: Annotated[str, one_of(VERIFIED, REFUSED, NOT_CHECKED)]
    method: str
    reason: str
    unit: str = "1"


@dataclass(frozen=True, slots=True)
class Certified:
    """The verdicts on all parts of a certificate."""

    json_keys: ClassVar[Keys] = ("passed", "parts")

    parts: tuple[PartVerdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every bound of the plan was verified."""
        return all(part.status == VERIFIED for part in self.parts)
