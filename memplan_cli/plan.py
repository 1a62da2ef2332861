"""Everything decided about one model, as data, as JSON, and checked when it comes back.

A plan file is untrusted input: schema, ranges, aliases and overlaps are checked whenever
one is read, with the checker that every fresh plan has passed too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli import plan_text
from memplan_cli.errors import InvalidLayoutError, PlanError
from memplan_cli.print_log import refusals
from memplan_cli.problem import Buffer, BufferId, Layout, LiveRange, Problem, violations
from memplan_cli.report import Json, Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SCHEMA = "memplan.plan/1"

MAX_BYTES = 1 << 62
"""Sizes and offsets above this are no memory of any machine."""


@dataclass(frozen=True, slots=True)
class ArenaFacts:
    """One contiguous region; the integers are multiples of ``unit``."""

    id: int
    unit: str
    height: int
    lower_bound: int
    alignment: int


class Placement(NamedTuple):
    """One tensor's place: bytes ``[offset, offset + bytes)`` for ticks ``[first, last)``.

    ``slot`` is its slot's number at levels 0 and 1. ``alias_of`` names the tensor whose
    bytes it shares, in the same block unless given as ``block/name``. ``pinned`` is why
    it keeps storage of its own for the whole run.
    """

    name: str
    block: str
    dtype: str
    shape: tuple[int | str, ...]
    bytes: int
    arena: int
    offset: int
    slot: int | None
    first: int
    last: int
    alias_of: str | None = None
    pinned: str | None = None

    @property
    def id(self) -> str:
        """Return ``block/name``, or the name at the top."""
        return f"{self.block}/{self.name}" if self.block else self.name


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """The nodes of one block in the planned order: names, or ``#index`` in the file."""

    block: str
    nodes: tuple[str, ...]


class Release(NamedTuple):
    """Tensors that nothing needs after this node: the ancestor's delete op."""

    step: int
    node: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The whole answer for one model, in the layout of ``memplan.plan/1``."""

    version: str
    graph_sha256: str
    settings: Json
    order: tuple[BlockOrder, ...]
    arenas: tuple[ArenaFacts, ...]
    tensors: tuple[Placement, ...]
    releases: tuple[Release, ...]
    report: Report = field(repr=False)

    @cached_property
    def by_id(self) -> Mapping[str, Placement]:
        """Every placement by ``block/name``."""
        return {tensor.id: tensor for tensor in self.tensors}

    @cached_property
    def problems(self) -> tuple[tuple[Problem, Layout], ...]:
        """Each arena as a packing problem and its answer, aliases united.

        Raises:
            InvalidLayoutError: a tensor or an alias names what is not there, or lies elsewhere.
        """
        return tuple(_problems(self))

    @cached_property
    def not_reused(self) -> tuple[tuple[Placement, str], ...]:
        """The tensors that take no memory over, in order of birth, and why."""
        return tuple(refusals(self.tensors))

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of all that was decided; what was measured is not in it."""
        text = sha256()
        for name, value in self._fields():
            if name not in (b"report", b"producer"):
                text.update(name + b": ")
                text.update(value)
        return text.hexdigest()

    def with_report(self, report: Report) -> Plan:
        """Return the plan with more evidence: what was worked out of it is not lost."""
        fresh = replace(self, report=report)
        for name in ("by_id", "problems", "not_reused", "_lists"):
            if name in self.__dict__:
                fresh.__dict__[name] = self.__dict__[name]
        return fresh

    def to_json(self) -> Json:
        """Return the layout of the contract."""
        return {
            "schema": SCHEMA,
            "producer": {"name": "memplan", "version": self.version},
            "model": {"sha256": self.report.model.sha256, "graph_sha256": self.graph_sha256},
            "settings": self.settings,
            "order": [{"block": o.block, "nodes": list(o.nodes)} for o in self.order],
            "arenas": [
                {k: getattr(arena, k) for k in arena.__slots__} for arena in self.arenas
            ],
            "tensors": [{**t._asdict(), "shape": list(t.shape)} for t in self.tensors],
            "releases": [
                {"step": r.step, "node": r.node, "tensors": list(r.tensors)}
                for r in self.releases
            ],
            "unplanned": [{"name": r.name, "reason": r.reason} for r in self.report.unplanned],
            "report": self.report.to_json(),
        }

    def dumps(self) -> str:
        """Return the plan file's text: same plan, same bytes."""
        return self.encoded().decode(errors="surrogatepass")

    def encoded(self) -> bytes:
        """Return the plan file's bytes."""
        pieces = [b"{"]
        for name, value in self._fields():
            pieces += (b"," if pieces[1:] else b"", b'\n "', name, b'": ', value)
        return b"".join([*pieces, b"\n}\n"])

    def _fields(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every field of the plan file with its text."""
        lists = self._lists
        for name, value in replace(self, order=(), tensors=(), releases=()).to_json().items():
            yield name.encode(), lists.get(name) or plan_text.utf8(plan_text.small(value))

    @cached_property
    def _lists(self) -> Mapping[str, bytes]:
        """The text of the long lists."""
        order = [{"block": o.block, "nodes": o.nodes} for o in self.order]
        return {
            "order": plan_text.utf8(plan_text.small(order)),
            "tensors": plan_text.utf8(plan_text.listed(plan_text.placements(self.tensors))),
            "releases": plan_text.utf8(
                plan_text.listed(plan_text.release_lines(self.releases))
            ),
        }


def read_plan(path: Path) -> Plan:
    """Read a plan file and check all of it.

    Raises:
        PlanError: it cannot be read, is no plan, or its layout is not safe.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {str(error)[:200]}") from error
    try:
        plan = plan_from_json(data)
        check(plan)
    except PlanError as error:
        raise type(error)(f"{path}: {error}", hint=error.hint) from error
    return plan


def plan_from_json(data: Any) -> Plan:  # noqa: ANN401 - untrusted JSON
    """Turn JSON into a plan, types checked; `check` says whether it is safe.

    Raises:
        PlanError: it is not of this schema.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise PlanError(f"this is not a plan of schema {SCHEMA}")
    try:
        return Plan(
            version=_text(data["producer"]["version"]),
            graph_sha256=_text(data["model"]["graph_sha256"]),
            settings=_table(data["settings"]),
            order=tuple(
                BlockOrder(_text(o["block"]), tuple(map(_text, o["nodes"])))
                for o in data["order"]
            ),
            arenas=tuple(_arena(item) for item in data["arenas"]),
            tensors=tuple(_placement(item) for item in data["tensors"]),
            releases=tuple(
                Release(_number(r["step"]), _text(r["node"]), tuple(map(_text, r["tensors"])))
                for r in data["releases"]
            ),
            report=Report.from_json(data["report"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"the plan is not of schema {SCHEMA}: {type(error).__name__} {str(error)[:200]}"
        ) from error


def check(plan: Plan) -> None:
    """Refuse a plan that is not safe to run.

    Raises:
        InvalidLayoutError: tensors overlap, stick out, or share bytes without reason.
    """
    if len(plan.by_id) != len(plan.tensors):
        raise InvalidLayoutError("the plan places one tensor twice")
    end = max((tensor.last for tensor in plan.tensors), default=0)
    for tensor in plan.tensors:
        if tensor.pinned is not None and (tensor.first, tensor.last) != (0, end):
            raise InvalidLayoutError(
                f"tensor {tensor.id[:120]!r} is pinned and does not last the whole run"
            )
    for problem, layout in plan.problems:
        found = violations(problem, layout)
        if found:
            names = ", ".join(repr(str(b)[:120]) for b in found[0].buffers[:4])
            raise InvalidLayoutError(f"the plan is not safe: {found[0].reason}: {names}")


def _problems(plan: Plan) -> Iterator[tuple[Problem, Layout]]:
    arenas = {arena.id: arena for arena in plan.arenas}
    if len(arenas) != len(plan.arenas):
        raise InvalidLayoutError("two arenas have one id")
    groups: dict[int, dict[BufferId, list[Placement]]] = {arena: {} for arena in arenas}
    for identity, tensor in plan.by_id.items():
        if tensor.arena not in groups:
            raise InvalidLayoutError(f"tensor {identity!r} lies in no arena of the plan")
        owner = identity if tensor.alias_of is None else _owner(plan, tensor)
        groups[tensor.arena].setdefault(BufferId(owner), []).append(tensor)
    for arena in plan.arenas:
        members = groups[arena.id]
        buffers = tuple([_united(owner, tensors) for owner, tensors in members.items()])
        offsets = {owner: tensors[0].offset for owner, tensors in members.items()}
        yield Problem(buffers, arena.alignment), Layout(offsets, arena.height)


def _united(owner: BufferId, tensors: Sequence[Placement]) -> Buffer:
    """Return the buffer of tensors that share their bytes."""
    if len(tensors) == 1:
        return Buffer(owner, tensors[0].bytes, LiveRange(tensors[0].first, tensors[0].last))
    return Buffer(
        owner,
        max([tensor.bytes for tensor in tensors]),
        LiveRange(min([t.first for t in tensors]), max([t.last for t in tensors])),
    )


def _owner(plan: Plan, tensor: Placement) -> str:
    """Return the tensor whose bytes an alias shares."""
    owner = plan.by_id.get(tensor.alias_of or "")
    if owner is None or owner.alias_of is not None:
        raise InvalidLayoutError(
            f"tensor {tensor.id!r} shares the bytes of {tensor.alias_of!r}, which has none"
        )
    if (
        (owner.arena, owner.offset, owner.bytes) != (tensor.arena, tensor.offset, tensor.bytes)
        or tensor.pinned
        or owner.pinned
    ):
        raise InvalidLayoutError(
            f"tensor {tensor.id!r} shares the bytes of {owner.id!r} but lies elsewhere"
        )
    return owner.id


def _arena(item: Json) -> ArenaFacts:
    alignment = _number(item["alignment"])
    if alignment < 1:
        raise PlanError("an arena's alignment is below 1")
    return ArenaFacts(
        _number(item["id"]),
        _text(item["unit"]),
        _number(item["height"]),
        _number(item["lower_bound"]),
        alignment,
    )


def _placement(item: Json) -> Placement:
    first, last = _number(item["first"]), _number(item["last"])
    if first >= last:
        raise PlanError(f"tensor {item['name']!r} dies before it lives")
    slot, alias, pinned = item["slot"], item["alias_of"], item["pinned"]
    return Placement(
        _text(item["name"]),
        _text(item["block"]),
        _text(item["dtype"]),
        tuple(dim if isinstance(dim, str) else _number(dim) for dim in item["shape"]),
        _number(item["bytes"]),
        _number(item["arena"]),
        _number(item["offset"]),
        None if slot is None else _number(slot),
        first,
        last,
        None if alias is None else _text(alias),
        None if pinned is None else _text(pinned),
    )


def _number(value: Any) -> int:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanError(f"the plan has {str(value)[:80]!r} where a whole number belongs")
    if not 0 <= value < MAX_BYTES:
        raise PlanError(f"the plan has {value}, which is out of range")
    return value


def _table(value: Any) -> Json:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, dict):
        raise PlanError(f"the plan has {str(value)[:80]!r} where a table belongs")
    return value


def _text(value: Any) -> str:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, str):
        raise PlanError(f"the plan has {str(value)[:80]!r} where a text belongs")
    return value
