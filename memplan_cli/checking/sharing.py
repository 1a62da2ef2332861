"""Bytes that a plan lets several tensors share: each such sharing needs a reason in the model.

Where a tensor is written, everything else on its bytes must be dead, be the same value (a
view), be what the node reads where it writes, be the result of the branch that ran, or belong
to a branch that does not run.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memplan_cli.checking.operators import OVERWRITES, SAME_BYTES
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.checking.clock import Node, Value
    from memplan_cli.checking.rows import Placed
    from memplan_cli.checking.subject import Subject
    from memplan_cli.core.results.placements import Placement


def check_sharing(subject: Subject, placed: Placed) -> Iterator[str]:
    """Yield every pair of tensors that share bytes and must not."""
    groups: defaultdict[str, list[tuple[Placement, Value]]] = defaultdict(list)
    for identity, (row, value) in placed.rows.items():
        if row.alias_of is not None:
            yield from _misplaced(row, placed, subject.plan.report.level)
            groups[row.alias_of].append((row, value))
        else:
            groups[identity].append((row, value))
    shared = {base: members for base, members in groups.items() if len(members) > 1}
    if not shared:
        return
    contents = _Contents()
    buffers: dict[int, str] = {}
    for base, members in shared.items():
        buffers.update((id(value), base) for _, value in members)
    for members in shared.values():
        yield from _overwritten(members, contents, buffers)
    for node in subject.clock.nodes():
        if node.repeats:
            yield from _carried(node, buffers)


def _misplaced(row: Placement, placed: Placed, level: int) -> Iterator[str]:
    base = placed.rows.get(row.alias_of or "")
    name = f"tensor {row.id[:120]!r}"
    if level < 2:
        yield f"{name} shares bytes, which nothing does at level {level}"
    elif base is None or base[0].alias_of is not None:
        yield f"{name} shares the bytes of {str(row.alias_of)[:120]!r}, which has none"
    else:
        other = base[0]
        here = row.arena, row.offset, row.bytes, row.slot
        if here != (other.arena, other.offset, other.bytes, other.slot):
            yield f"{name} shares the bytes of {other.id[:120]!r}, and lies elsewhere"
        if row.pinned or other.pinned:
            yield f"{name} shares the bytes of {other.id[:120]!r}, and one of them is pinned"


class _Contents:
    """Which values hold the same bytes: those that are views of one."""

    def __init__(self) -> None:
        self._known: dict[int, Value] = {}

    def of(self, value: Value) -> Value:
        """Return the value that this one is a view of, or itself."""
        way = []
        while (found := self._known.get(id(value))) is None:
            base = viewed(value)
            if base is None:
                found = value
                break
            way.append(value)
            value = base
        for each in (*way, value):
            self._known[id(each)] = found
        return found


def viewed(value: Value) -> Value | None:
    """Return the value whose bytes a node shows in another shape as this one."""
    maker = value.maker
    if maker is None or maker.kind not in SAME_BYTES or not maker.inputs:
        return None
    return maker.inputs[0] if maker.outputs[0] is value else None


def _overwritten(
    members: Sequence[tuple[Placement, Value]], contents: _Contents, buffers: Mapping[int, str]
) -> Iterator[str]:
    """Yield what is written while another value on the same bytes is still needed."""
    live: list[tuple[Placement, Value]] = []
    for row, value in sorted(members, key=_first):
        live = [member for member in live if member[1].last >= value.first]
        for other_row, other in live:
            if _exclude(value, other):
                continue
            same_size = _same_size(row, other_row)
            if same_size and contents.of(value) is contents.of(other):
                continue
            if other.last == value.first and same_size and _may_follow(value, other, buffers):
                continue
            yield (
                f"tensor {row.id[:120]!r} is written at tick {value.first} over "
                f"{other_row.id[:120]!r}, which is needed until tick {other.last}"
            )
        live.append((row, value))


def _first(member: tuple[Placement, Value]) -> tuple[int, int]:
    return member[1].first, member[1].last


def _same_size(one: Placement, other: Placement) -> bool:
    """Whether two tensors take as many bytes whatever the dims are, within bounds too."""
    if one.bytes != other.bytes:
        return False
    if one.shape == other.shape and one.dtype == other.dtype:
        return True
    sizes = size_of(one.shape, one.dtype), size_of(other.shape, other.dtype)
    return sizes[0] is not None and sizes[0] == sizes[1]


def _may_follow(value: Value, other: Value, buffers: Mapping[int, str]) -> bool:
    """Whether the node that makes a value may write it over another, which ends there."""
    node = value.maker
    if node is None:
        return False
    if node.runs_one:
        return any(
            made is value and at < len(body.outputs) and body.outputs[at] is other
            for body in node.bodies
            if other.region is body
            for at, made in enumerate(node.outputs)
        )
    if node.bodies or node.outputs[0] is not value:
        return False
    allowed = OVERWRITES.get(node.kind, ())
    bytes_of = buffers[id(value)]
    reads = [
        (at, each)
        for at, each in enumerate(node.inputs)
        if each is not None and buffers.get(id(each)) == bytes_of
    ]
    return bool(reads) and all(at in allowed and each is other for at, each in reads)


def _exclude(one: Value, other: Value) -> bool:
    """Whether two values belong to different branches of one node."""
    if one.region is other.region:
        return False
    branches = {id(node): body for node, body in _branches(one)}
    return any(
        id(node) in branches and branches[id(node)] != body for node, body in _branches(other)
    )


def _branches(value: Value) -> Iterator[tuple[Node, int]]:
    region = value.region
    while region.parent is not None:
        if region.parent.runs_one:
            yield region.parent, id(region)
        region = region.parent.region


def _carried(node: Node, buffers: Mapping[int, str]) -> Iterator[str]:
    """Yield what a subgraph gives to its next turn on the bytes of what it is given in this."""
    for body in node.bodies:
        given = {buffers[id(value)]: value for value in body.inputs if id(value) in buffers}
        for value in body.outputs:
            base = buffers.get(id(value), "")
            if base in given and value is not given[base]:
                yield (
                    f"tensor {value.identity[:120]!r} goes to the next turn and shares the "
                    f"bytes of {given[base].identity[:120]!r}, which this turn is given"
                )
