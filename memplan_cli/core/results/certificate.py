"""Certificates: what shows that the bounds of one plan hold, as data and as JSON.

Nodes are places in the planned order of the outermost block, tensors are named. What each
witness shows, and how it is checked, is said in `memplan_cli.checking.certificates`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from memplan_cli.core.deserialization import Check, MisfitError, from_json, one_of
from memplan_cli.core.results.placements import Natural, Positive  # noqa: TC001 - types to read by
from memplan_cli.core.serialization import Key, Keys, sparse, to_json
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "memplan.certificate/1"

MOST_BYTES = 64 << 20
"""Files of certificates that are larger are not read."""

NOT_CHECKABLE = "none"
"""The method of a bound for which there is no witness of a sensible size."""

Digest = Annotated[
    str,
    Check(
        "a SHA-256 in hexadecimal",
        lambda text: len(text) == 64 and not set(text) - set("0123456789abcdef"),
    ),
]


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
    """Weights of a linear program's constraints, whose sum bounds what is live at a step.

    ``replaced`` is the tensor whose bytes the step's result is taken to reuse, if any.
    """

    json_keys: ClassVar[Keys] = (*sparse("replaced"), "shares", "holds")

    shares: tuple[Share, ...]
    holds: tuple[Hold, ...]
    replaced: Natural | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """What is live at least at the step of ``node``, in whatever order the others run.

    ``before`` and ``after`` name a node that is taken to run before it, or after it. There is
    one dual for each tensor that the node's result may replace, else one.
    """

    json_keys: ClassVar[Keys] = ("node", *sparse("before", "after"), "duals")

    node: Natural
    duals: tuple[Dual, ...]
    before: Natural | None = None
    after: Natural | None = None


class Move(NamedTuple):
    """A way on from a state: ``nodes`` run, then ``free`` ones that leave no more live."""

    nodes: tuple[Natural, ...]
    free: tuple[Natural, ...]
    to: Positive


@dataclass(frozen=True, slots=True)
class OrderProof:
    """Why no order of the nodes has a live peak below ``bound``.

    ``cut``: one step needs as much. ``pair``: of two nodes one runs first, and in either case
    a step needs as much. ``search``: all states that can be reached with less, each with the
    moves that lead on; none of them has run everything. ``inside``: a subgraph of one of the
    nodes, whose block is named, needs as much beside what is always live.
    """

    json_keys: ClassVar[Keys] = (
        "bound",
        "method",
        *sparse("tensors", "fusions", "cuts", "states", "inside", "why"),
    )

    bound: Natural
    method: Annotated[str, one_of("cut", "pair", "search", "inside", NOT_CHECKABLE)]
    tensors: tuple[str, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    cuts: tuple[Cut, ...] = ()
    states: tuple[tuple[Move, ...], ...] = ()
    inside: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class BlockProof:
    """Why the nodes of a subgraph need as much in any order, beside what the subgraph is given.

    Proofs of the blocks around it count the bound at the subgraph's node.
    """

    block: str
    order: OrderProof


class SlotLoad(NamedTuple):
    """So many tensors of one kind, of at least ``bytes``, are live at a tick."""

    dtype: str
    shape: tuple[Natural | str, ...] | None
    number: Positive
    bytes: Natural
    tick: Natural


@dataclass(frozen=True, slots=True)
class ArenaProof:
    """Why an arena cannot be lower than ``bound``: its load at one tick, or its slots."""

    json_keys: ClassVar[Keys] = ("arena", "bound", "method", *sparse("tick", "slots", "why"))

    arena: Natural
    bound: Natural
    method: Annotated[str, one_of("load", "slots", NOT_CHECKABLE)]
    tick: Natural | None = None
    slots: tuple[SlotLoad, ...] = ()
    why: str = ""


class Passage(NamedTuple):
    """Bytes that pass from a value to one that is made of it, or ``""``: to the reader."""

    value: str
    made: str
    bytes: Positive


@dataclass(frozen=True, slots=True)
class Way:
    """What must be there for a reader of the kept value while that is made.

    ``alone`` says that a copy makes the kept value and no optional output besides.
    """

    reader: str
    alone: bool
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class RecomputeProof:
    """Why no order, with whatever copies of nodes, has a live peak below ``bound``.

    ``step``: one node touches as much. ``kept``: a value is made and kept until it is read,
    and what cannot be made beside it must be there before. Nodes go by their first result here.
    """

    json_keys: ClassVar[Keys] = ("bound", "method", *sparse("node", "kept", "ways", "why"))

    bound: Natural
    method: Annotated[str, one_of("step", "kept", NOT_CHECKABLE)]
    node: str = ""
    kept: str = ""
    ways: tuple[Way, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The witnesses of one plan, in the layout of ``memplan.certificate/1``.

    ``blocks`` are subgraphs on whose bounds the proof of the order leans, inner ones first.
    """

    schema: ClassVar[str] = SCHEMA
    producer: ClassVar[str] = "memplan"
    json_keys: ClassVar[Keys] = (
        "schema",
        Key("producer.name", "producer"),
        Key("producer.version", "version"),
        "graph_sha256",
        "plan_sha256",
        "order",
        *sparse("blocks"),
        "arenas",
        "recompute",
    )

    version: str
    graph_sha256: Digest
    plan_sha256: Digest
    order: OrderProof | None
    arenas: tuple[ArenaProof, ...]
    recompute: RecomputeProof | None
    blocks: tuple[BlockProof, ...] = ()

    def dumps(self) -> str:
        """Return the certificate file's text: same certificate, same bytes."""
        lines = [
            f'"{name}": {json.dumps(value, separators=(",", ":"))}'
            for name, value in to_json(self).items()
        ]
        return "{\n " + ",\n ".join(lines) + "\n}\n"


def read_certificate(path: Path) -> Certificate:
    """Read a certificate's file, every type and range in it checked.

    Raises:
        PlanError: it cannot be read, is too large, or is none.
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
