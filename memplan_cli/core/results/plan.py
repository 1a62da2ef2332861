"""Plans: everything that was decided about one model, as data and as JSON, and a safety check."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.json_types import Json  # noqa: TC001 - a type to read by
from memplan_cli.core.problem import Buffer, BufferId, Layout, LiveRange, Problem, violations
from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.placements import (  # noqa: TC001 - types to read by
    BlockOrder,
    Placement,
    PlannedArena,
    Release,
)
from memplan_cli.core.results.report import Report  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import Keys, to_json
from memplan_cli.errors import InvalidLayoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.rewrites import Fallback


_ITEMS_PER_PART = 1000

_ENCODE = json.JSONEncoder(ensure_ascii=False).encode


def _utf8(text: str) -> bytes:
    """Encode text. Lone surrogates, which a damaged model may hold, are kept."""
    return text.encode(errors="surrogatepass")


def _value_text(value: object) -> str:
    """Return the JSON text of a key's value, indented below the key; a list has one item per line."""
    if isinstance(value, list):
        return "".join(list_text(map(_ENCODE, value)))
    return json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\n ")


def list_text(items: Iterable[str]) -> Iterator[str]:
    """Yield, in parts, the JSON text of a list whose items are JSON texts already.

    Parts have 1000 items: joining all items of a large plan at once would take its memory twice.
    """
    # Without any items only `after` is yielded: an empty list.
    remaining, before, after = iter(items), "[\n  ", "[]"
    while part := ",\n  ".join(islice(remaining, _ITEMS_PER_PART)):
        yield before
        yield part
        before, after = ",\n  ", "\n ]"
    yield after


def _order_text(order: BlockOrder) -> str:
    """Return the JSON text of a block's order.

    Names are encoded in parts: the encoder keeps a text for each item until its end, which for all names of
    a large block takes some 130 bytes a name.
    """
    starts = range(0, len(order.nodes), _ITEMS_PER_PART)
    lists = (_ENCODE(order.nodes[start : start + _ITEMS_PER_PART]) for start in starts)
    parts = (names.removeprefix("[").removesuffix("]") for names in lists)
    return f'{{"block": {_ENCODE(order.block)}, "nodes": [{", ".join(parts)}]}}'


SCHEMA = "memplan.plan/1"


@dataclass(frozen=True)
class Plan:
    """Everything decided about one model, in the layout of ``memplan.plan/1``.

    Attributes:
        version: the version of memplan that made it.
        graph_sha256: the digest of the planned graph.
        settings: the settings that it was made with.
        order: the order of the nodes of each block.
        arenas: the contiguous regions of memory.
        tensors: the place of each planned tensor.
        releases: the tensors that are dead after each node.
        report: all numbers about the plan.
    """

    schema: ClassVar[str] = SCHEMA
    producer: ClassVar[str] = "memplan"
    json_keys: ClassVar[Keys] = (
        ("producer.name", "producer"),
        ("producer.version", "version"),
        ("model.sha256", "report.model.sha256"),
        ("model.graph_sha256", "graph_sha256"),
        "settings",
        "order",
        "arenas",
        "tensors",
        "releases",
        ("unplanned", "report.unplanned"),
        "report",
    )

    version: str
    graph_sha256: str
    settings: Json
    order: tuple[BlockOrder, ...]
    arenas: tuple[PlannedArena, ...]
    tensors: Sequence[Placement]
    releases: Sequence[Release]
    report: Report

    def __repr__(self) -> str:
        """Return one line with the model and the bytes: a plan may have 100,000 tensors."""
        report, memory = self.report, self.report.memory
        planned, naive = (
            "unknown" if size is None else format_size(size)
            for size in (memory.planned, memory.naive)
        )
        target = "" if report.target == "portable" else f" for {report.target}"
        notes = ", of the known sizes only" if report.partial else ""
        if any(dim.source == "assumed" for dim in report.bindings.values()):
            notes += ", at assumed sizes"
        return (
            f"<Plan of {report.model.path!r}{target}: level {report.level}, {planned} for the "
            f"intermediates, {naive} without reuse{notes}>"
        )

    @cached_property
    def by_id(self) -> Mapping[str, Placement]:
        """Every placement by ``block/name``."""
        return {tensor.id: tensor for tensor in self.tensors}

    @cached_property
    def units(self) -> Mapping[int, str]:
        """The unit of each arena, such as ``1`` or ``batch``, by arena id."""
        return {arena.id: arena.unit for arena in self.arenas}

    @cached_property
    def problems(self) -> tuple[tuple[Problem, Layout], ...]:
        """Each arena as a packing problem and its layout; tensors on the same bytes are one buffer.

        Raises:
            InvalidLayoutError: two arenas have one id, a tensor is placed twice, names an arena or an
                alias that does not exist, or is not placed on the bytes of its alias, or a pinned
                tensor is not live for the whole run.
        """
        return tuple(_problems(self))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all fields of the plan file but the report and the producer."""
        text = sha256()
        for name, value in self._fields():
            if name not in (b"report", b"producer"):
                text.update(name + b": ")
                for part in value:
                    text.update(part)
        return text.hexdigest()

    def with_report(self, report: Report) -> Plan:
        """Return the plan with another report."""
        return replace(self, report=report)

    def with_warnings(self, *warnings: str) -> Plan:
        """Return the plan with further warnings in its report."""
        everything = (*self.report.warnings, *warnings)
        return self.with_report(replace(self.report, warnings=everything))

    def with_fallbacks(self, *fallbacks: Fallback) -> Plan:
        """Return the plan with further fallbacks in its report, each once."""
        everything = tuple(dict.fromkeys((*self.report.fallbacks, *fallbacks)))
        return self.with_report(replace(self.report, fallbacks=everything))

    def dumps(self) -> str:
        """Return the text of the plan file. It is deterministic."""
        return b"".join(self.encoded()).decode(errors="surrogatepass")

    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes of the plan file in parts."""
        yield b"{"
        separator = b""
        for name, value in self._fields():
            yield separator + b'\n "' + name + b'": '
            yield from value
            separator = b","
        yield b"\n}\n"

    def _fields(self) -> Iterator[tuple[bytes, Iterable[bytes]]]:
        """Yield every field of the plan file: its name, and its JSON text in parts.

        Lists that may have 100,000 rows are encoded row by row, to save memory.
        """
        lists = {
            "order": map(_order_text, self.order),
            "tensors": (_ENCODE(tensor._asdict()) for tensor in self.tensors),
            "releases": (_ENCODE(release._asdict()) for release in self.releases),
        }
        # Empty lists take no time to encode, and keep the places of their keys.
        for name, value in to_json(replace(self, order=(), tensors=(), releases=())).items():
            if name in lists:
                yield name.encode(), map(_utf8, list_text(lists[name]))
            else:
                yield name.encode(), [_utf8(_value_text(value))]


def check(plan: Plan) -> None:
    """Raise an error if a plan is not safe to run.

    Raises:
        InvalidLayoutError: tensors that are live together overlap, or one lies outside its arena.
    """
    for problem, layout in plan.problems:
        for violation in violations(problem, layout):
            names = ", ".join(repr(str(buffer)[:120]) for buffer in violation.buffers[:4])
            raise InvalidLayoutError(f"the plan is not safe: {violation.reason}: {names}")


def _problems(plan: Plan) -> Iterator[tuple[Problem, Layout]]:
    """Yield each arena as a packing problem and its layout, in the order of ``plan.arenas``.

    A tensor and its aliases, which have equal bytes, are one buffer with the id of that tensor. It
    is live from the first tick of any of them to the last.

    Raises:
        InvalidLayoutError: see `Plan.problems`.
    """
    arena_ids = {arena.id for arena in plan.arenas}
    if len(arena_ids) != len(plan.arenas):
        raise InvalidLayoutError("two arenas have one id")
    _refuse_invalid_rows(plan.tensors)
    bases = {tensor.id: tensor for tensor in plan.tensors if tensor.alias_of is None}
    tensors_of: dict[int, list[Placement]] = {arena: [] for arena in arena_ids}
    for tensor in plan.tensors:
        if tensor.arena not in arena_ids:
            raise InvalidLayoutError(f"tensor {tensor.id!r} is placed in no arena of the plan")
        if tensor.alias_of is not None:
            _refuse_wrong_alias(tensor, tensor.alias_of, bases)
        tensors_of[tensor.arena].append(tensor)
    for arena in plan.arenas:
        yield _problem_of(arena, tensors_of[arena.id])


def _problem_of(arena: PlannedArena, tensors: Sequence[Placement]) -> tuple[Problem, Layout]:
    """Return an arena as a packing problem and its layout, with one buffer for each base tensor."""
    buffers: dict[BufferId, Buffer] = {}
    offsets: dict[BufferId, int] = {}
    for tensor in tensors:
        buffer_id = BufferId(tensor.alias_of or tensor.id)
        live = LiveRange(tensor.first, tensor.last)
        if buffer_id in buffers:  # the tensor or another alias of it came before
            other = buffers[buffer_id].live
            live = LiveRange(min(live.start, other.start), max(live.end, other.end))
        # Aliases have the bytes and the offset of their base (`_refuse_wrong_alias`).
        buffers[buffer_id] = Buffer(buffer_id, tensor.bytes, live)
        offsets[buffer_id] = tensor.offset
    problem = Problem(tuple(buffers.values()), arena.alignment)
    return problem, Layout(offsets, arena.height)


def _refuse_invalid_rows(tensors: Sequence[Placement]) -> None:
    """Raise an error if a tensor is placed twice, or is pinned and not live for the whole run."""
    if len({tensor.id for tensor in tensors}) != len(tensors):
        raise InvalidLayoutError("the plan places one tensor twice")
    end = max((tensor.last for tensor in tensors), default=None)
    for tensor in tensors:
        if tensor.pinned is not None and (tensor.first, tensor.last) != (0, end):
            raise InvalidLayoutError(
                f"tensor {tensor.id[:120]!r} is pinned and is not live for the whole run"
            )


def _refuse_wrong_alias(
    alias: Placement, base_id: str, bases: Mapping[str, Placement]
) -> None:
    """Raise an error if an alias has no base, is placed elsewhere, or if either is pinned.

    ``bases`` are the tensors that are no aliases, by id.
    """
    base = bases.get(base_id)
    claim = f"tensor {alias.id[:120]!r} shares the bytes of {base_id[:120]!r}"
    if base is None:
        raise InvalidLayoutError(f"{claim}, which has no bytes of its own in the plan")
    if (alias.arena, alias.offset, alias.bytes) != (base.arena, base.offset, base.bytes):
        raise InvalidLayoutError(f"{claim} but is placed elsewhere")
    if alias.pinned is not None or base.pinned is not None:
        raise InvalidLayoutError(f"{claim}, and one of both is pinned")
