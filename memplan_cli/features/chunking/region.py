"""Regions: ops that are computed piece by piece together, grown from one large tensor.

A region is a set of ops, each with one of its splits, whose pieces fit together: what one op
of the region makes for another is sliced along the same axis on both sides. It grows both ways
from a tensor by the op that makes its border, the bytes that stay whole, the least.

    q, k -> [ MatMul -> Mul -> Softmax -> MatMul ] -> y       border: q, k, v, y
                    scores, 100 times as large                inside: in pieces
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.features.chunking.axes.terms import Role
from memplan_cli.features.chunking.graph import outside

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.program import VarId
    from memplan_cli.features.chunking.axes.terms import Part, Split
    from memplan_cli.features.chunking.graph import Graph

_MOST_OPS = 400
"""Ops of a region: what bounds the time of growing one."""

_LIGHTER = 0.9
"""A light op that makes so much of what is whole is part of a region, not a choice."""


@dataclass(frozen=True, slots=True)
class Region:
    """Ops of the top block by index, each with how it is split.

    Attributes:
        splits: By op.
        given: What the region reads from other ops and from inputs, weights left out.
        results: What it makes for others: put together again.
        copied: Those of its ops that are also computed whole, for others: light ones.
        seed: The tensor it was grown from, and the axis that was sliced there.
    """

    splits: Mapping[int, Split]
    given: tuple[VarId, ...]
    results: tuple[VarId, ...]
    seed: VarId
    axis: int
    copied: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it this region and no other."""
        return *sorted(self.splits.items()), *sorted(self.copied)


def regions_of(graph: Graph, seed: VarId, axis: int) -> Iterator[Region]:
    """Yield regions around a tensor, sliced along one of its axes, each holding less whole.

    What is light and makes much less whole is part of a region, not a choice.
    """
    least = 0
    for stage, following in pairwise(chain(growing(graph, seed, axis), [None])):
        if stage is None or (len(stage[0].splits) > 1 and stage[1] >= least):
            continue
        region, least = stage
        if following is None or not _is_lighter(region, following, least * _LIGHTER):
            yield _without_ends(graph, region)


def growing(graph: Graph, seed: VarId, axis: int) -> Iterator[tuple[Region, int]]:
    """Yield each region that grows from a tensor, with the bytes that it leaves whole."""
    start = graph.flow.producer.get(seed)
    if start is None:
        return
    for split in graph.splits(start):
        part = split.outputs[graph.ops[start].outputs.index(seed)]
        if part is not None and part.axis == axis:
            yield from _grown(graph, {start: split}, seed, axis)


def _grown(
    graph: Graph, first: Mapping[int, Split], seed: VarId, axis: int
) -> Iterator[tuple[Region, int]]:
    ops, copied = dict(first), frozenset[int]()
    if not all(_fits(graph, {}, at, split) for at, split in ops.items()):
        return
    while len(ops) < _MOST_OPS:
        given, results = outside(graph, ops, copied)
        region = Region(dict(ops), tuple(given), tuple(results), seed, axis, copied)
        yield region, held(graph, ops, copied)
        found = min(_steps(graph, ops, copied), default=None)
        if found is None:
            return
        ops[found.at] = graph.splits(found.at)[found.number]
        copied |= {found.at} if found.is_copy else set()
        copied -= {at for at in copied if _is_own(graph, ops, at)}


def _is_own(graph: Graph, ops: Mapping[int, Split], at: int) -> bool:
    """Whether all that read what an op makes are in the region by now."""
    return all(
        var not in graph.results and all(consumer in ops for consumer in graph.consumers(var))
        for var in graph.ops[at].outputs
    )


def _is_lighter(region: Region, following: tuple[Region, int], most: float) -> bool:
    """Whether a region that follows has a light op more, and at most so much whole."""
    grown, whole = following
    joined = [split for at, split in grown.splits.items() if at not in region.splits]
    is_light = all(split.role is Role.FREE for split in joined)
    return is_light and grown.copied == region.copied and bool(joined) and whole <= most


def _without_ends(graph: Graph, region: Region) -> Region:
    """Return a region without those last ops that make more whole than they read."""
    left, copied = dict(region.splits), region.copied
    least = border(graph, left, copied)
    for at in sorted(region.splits, reverse=True):
        made = graph.ops[at].outputs
        if at in copied or any(r in left for var in made for r in graph.consumers(var)):
            continue
        without = {each: split for each, split in left.items() if each != at}
        less = border(graph, without, copied) if without.keys() - copied else least
        if less < least:
            left, least = without, less
    if len(left) == len(region.splits):
        return region
    given, results = outside(graph, left, copied)
    return replace(region, splits=left, given=tuple(given), results=tuple(results))


class _Step(NamedTuple):
    """An op that can join: the border with it, the tensor that it is at, which one."""

    border: int
    size: int
    is_copy: bool
    at: int
    number: int


def border(graph: Graph, ops: Mapping[int, Split], copied: Collection[int] = ()) -> int:
    """Return the bytes that a region reads and makes whole."""
    given, results = outside(graph, ops, copied)
    return sum(graph.bytes(var) for var in (*given, *results))


def held(graph: Graph, ops: Mapping[int, Split], copied: Collection[int] = ()) -> int:
    """Return the bytes that are whole while a region runs: its border, and what passes it by."""
    given, results = outside(graph, ops, copied)
    own = [at for at in ops if at not in copied]
    beside = graph.passing(min(own), max(own), {*given, *results})
    return sum(map(graph.bytes, (*given, *results))) + beside


def _steps(graph: Graph, ops: Mapping[int, Split], copied: frozenset[int]) -> Iterator[_Step]:
    """Yield ops that can join, light ones that others read too as copies."""
    beside, above = _beside(graph, ops, copied)
    for at, size in sorted(beside.items()):
        for number, split in enumerate(graph.splits(at)):
            if not _fits(graph, ops, at, split):
                continue
            joined = copied
            if not _is_convex(graph, ops, at, copied):
                if at not in above or not _is_light(graph, at, split):
                    continue
                joined = copied | {at}
            size_with = border(graph, {**ops, at: split}, joined)
            yield _Step(size_with, -size, at in joined, at, number)


def _beside(
    graph: Graph, ops: Mapping[int, Split], copied: frozenset[int]
) -> tuple[Mapping[int, int], frozenset[int]]:
    """Return the ops beside a region with the largest tensor between, and which are above it."""
    given, results = outside(graph, ops, copied)
    beside: dict[int, int] = {}
    for var in given:
        at = graph.flow.producer.get(var)
        if at is not None:
            beside[at] = max(beside.get(at, 0), graph.bytes(var))
    above = frozenset(beside)
    for var in results:
        for at in graph.consumers(var):
            if at not in ops:
                beside[at] = max(beside.get(at, 0), graph.bytes(var))
    return beside, above


def _is_light(graph: Graph, at: int, split: Split) -> bool:
    """Whether an op may be computed a second time: no product, and one tensor that it reads."""
    read = [var for var in graph.flow.reads[at] if var not in graph.weights]
    return split.role is Role.FREE and len(read) == 1


def _fits(graph: Graph, ops: Mapping[int, Split], at: int, split: Split) -> bool:
    """Whether an op's pieces are those that the region makes and reads."""
    op = graph.ops[at]
    for var, part in zip(op.inputs, split.inputs, strict=True):
        above = graph.flow.producer.get(var)
        if above in ops and not _is_same(part, _made_part(graph, ops, above, var)):
            return False
    return all(
        _is_read_so(graph, ops, var, part)
        for var, part in zip(op.outputs, split.outputs, strict=True)
        if var
    )


def _is_read_so(graph: Graph, ops: Mapping[int, Split], var: VarId, part: Part | None) -> bool:
    consumers = graph.consumers(var)
    if part is None:
        # Made whole by every piece, so it can be nobody's.
        return not consumers and var not in graph.results
    return all(
        _is_same(there, part)
        for at in consumers
        if at in ops
        for name, there in zip(graph.ops[at].inputs, ops[at].inputs, strict=True)
        if name == var
    )


def _made_part(
    graph: Graph, ops: Mapping[int, Split], at: int | None, var: VarId
) -> Part | None:
    return None if at is None else ops[at].outputs[graph.ops[at].outputs.index(var)]


def _is_same(one: Part | None, other: Part | None) -> bool:
    return one is not None and other is not None and one.axis == other.axis


def _is_convex(
    graph: Graph, ops: Mapping[int, Split], at: int, copied: frozenset[int]
) -> bool:
    """Whether nothing outside lies between the region and an op that joins."""
    last, first = max((*ops, at)), min((*ops, at))
    after = [
        consumer
        for each in (*ops, at)
        if each not in copied
        for var in graph.ops[each].outputs
        for consumer in graph.consumers(var)
    ]
    seen: set[int] = set()
    while after:
        each = after.pop()
        if each in seen or each in ops or each == at or not first < each < last:
            continue
        seen.add(each)
        for var in graph.ops[each].outputs:
            for consumer in graph.consumers(var):
                if (consumer in ops and consumer not in copied) or consumer == at:
                    return False
                after.append(consumer)
    return True
