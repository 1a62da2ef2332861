"""Plans: everything decided about one model, as data and as JSON, and its safety check."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.json_types import Json  # noqa: TC001 - a type to read by
from memplan_cli.core.problem import Buffer, BufferId, Layout, LiveRange, Problem, violations
from memplan_cli.core.results import plan_text
from memplan_cli.core.results.placements import (  # noqa: TC001 - types to read by
    ArenaFacts,
    BlockOrder,
    Placement,
    Release,
)
from memplan_cli.core.results.report import Report  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import Keys, to_json
from memplan_cli.errors import InvalidLayoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SCHEMA = "memplan.plan/1"

_WITHOUT_REPORT = ("by_id", "problems")
"""What a plan works out once, if somebody asks, and without a look at its report."""


@dataclass(frozen=True)
class Plan:
    """The whole answer for one model, in the layout of ``memplan.plan/1``."""

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
    arenas: tuple[ArenaFacts, ...]
    tensors: Sequence[Placement]
    releases: Sequence[Release]
    report: Report = field(repr=False)

    @cached_property
    def by_id(self) -> Mapping[str, Placement]:
        """Every placement by ``block/name``."""
        return {tensor.id: tensor for tensor in self.tensors}

    @cached_property
    def problems(self) -> tuple[tuple[Problem, Layout], ...]:
        """Each arena as a packing problem and its answer, aliases united.

        Raises:
            InvalidLayoutError: a tensor or an alias names what is not there, or is placed
            elsewhere.
        """
        return tuple(_problems(self))

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of all that was decided; what was measured is not in it."""
        text = sha256()
        for name, value in self._fields():
            if name not in (b"report", b"producer"):
                text.update(name + b": ")
                for part in value:
                    text.update(part)
        return text.hexdigest()

    def with_report(self, report: Report) -> Plan:
        """Return the plan with more evidence; what was worked out without it is kept."""
        fresh, known = replace(self, report=report), vars(self)
        vars(fresh).update((name, known[name]) for name in _WITHOUT_REPORT if name in known)
        return fresh

    def dumps(self) -> str:
        """Return the plan file's text: same plan, same bytes."""
        return b"".join(self.encoded()).decode(errors="surrogatepass")

    def encoded(self) -> Iterator[bytes]:
        """Yield the plan file's bytes, piece by piece."""
        before = b"{"
        for name, value in self._fields():
            yield before + b'\n "' + name + b'": '
            yield from value
            before = b","
        yield b"\n}\n"

    def _fields(self) -> Iterator[tuple[bytes, Iterable[bytes]]]:
        """Yield every field of the plan file with its text, in parts.

        The text of the long lists is made anew each time: kept, it would be the largest part of a
        plan in memory.
        """
        lists = {
            "order": plan_text.orders(self.order),
            "tensors": plan_text.placements(self.tensors),
            "releases": plan_text.release_lines(self.releases),
        }
        for name, value in to_json(replace(self, order=(), tensors=(), releases=())).items():
            if name in lists:
                yield name.encode(), map(plan_text.utf8, plan_text.listed(lists[name]))
            else:
                yield name.encode(), [plan_text.utf8(plan_text.small(value))]


def check(plan: Plan) -> None:
    """Refuse a plan that is not safe to run.

    Raises:
        InvalidLayoutError: tensors overlap, stick out, or share bytes without reason.
    """
    for problem, layout in plan.problems:
        found = violations(problem, layout)
        if found:
            names = ", ".join(repr(str(b)[:120]) for b in found[0].buffers[:4])
            raise InvalidLayoutError(f"the plan is not safe: {found[0].reason}: {names}")


def _problems(plan: Plan) -> Iterator[tuple[Problem, Layout]]:
    arenas = {arena.id for arena in plan.arenas}
    if len(arenas) != len(plan.arenas):
        raise InvalidLayoutError("two arenas have one id")
    _refuse_odd(plan.tensors)
    spans: dict[int, dict[BufferId, _Span]] = {arena: {} for arena in arenas}
    offsets: dict[int, dict[BufferId, int]] = {arena: {} for arena in arenas}
    shared = _storage_of_shared(plan.tensors)
    for tensor in plan.tensors:
        arena, size, first, last = tensor.arena, tensor.bytes, tensor.first, tensor.last
        identity = BufferId(tensor.id)
        if arena not in arenas:
            raise InvalidLayoutError(f"tensor {identity!r} is placed in no arena of the plan")
        if tensor.alias_of is not None:
            location = arena, tensor.offset, size, tensor.pinned
            _refuse_apart(identity, tensor.alias_of, location, shared)
            identity = BufferId(tensor.alias_of)
        known = spans[arena].get(identity)
        if known is None:
            spans[arena][identity] = size, first, last
            offsets[arena][identity] = tensor.offset
        else:
            most, start, end = known
            spans[arena][identity] = max(size, most), min(first, start), max(last, end)
    for facts in plan.arenas:
        buffers = [
            Buffer(identity, size, LiveRange(first, last))
            for identity, (size, first, last) in spans.pop(facts.id).items()
        ]
        yield (
            Problem(tuple(buffers), facts.alignment),
            Layout(offsets[facts.id], facts.height),
        )


_Span = tuple[int, int, int]
"""Bytes, and the ticks of first use and after the last, of what shares them."""


def _refuse_odd(tensors: Sequence[Placement]) -> None:
    """Refuse a tensor that is placed twice, and a pinned one that does not last."""
    if len({tensor.id for tensor in tensors}) != len(tensors):
        raise InvalidLayoutError("the plan places one tensor twice")
    end = max((tensor.last for tensor in tensors), default=0)
    for tensor in tensors:
        if tensor.pinned is not None and (tensor.first, tensor.last) != (0, end):
            raise InvalidLayoutError(
                f"tensor {tensor.id[:120]!r} is pinned and does not last the whole run"
            )


_Location = tuple[int, int, int, "str | None"]
"""A tensor's arena, offset and bytes, and why it is pinned."""


def _storage_of_shared(tensors: Sequence[Placement]) -> Mapping[str, _Location | None]:
    """Return the locations of tensors that others share; None for those that share too."""
    shared = {tensor.alias_of for tensor in tensors} - {None}
    if not shared:
        return {}
    return {
        tensor.id: None
        if tensor.alias_of is not None
        else (tensor.arena, tensor.offset, tensor.bytes, tensor.pinned)
        for tensor in tensors
        if tensor.id in shared
    }


def _refuse_apart(
    tensor: str, alias_of: str, location: _Location, shared: Mapping[str, _Location | None]
) -> None:
    """Refuse a tensor that is not placed where the one is whose bytes it shares."""
    base = shared.get(alias_of)
    if base is None:
        raise InvalidLayoutError(
            f"tensor {tensor!r} shares the bytes of {alias_of!r}, which has none"
        )
    if base[:3] != location[:3] or base[3] or location[3]:
        raise InvalidLayoutError(
            f"tensor {tensor!r} shares the bytes of {alias_of!r} but is placed elsewhere"
        )
