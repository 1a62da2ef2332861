"""Where each input of a step comes from: the step, the one before, or outside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from memplan_cli.onnx_io.rerolling.steps import LEAST, WORTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.onnx_io.rerolling.graph import UnrolledGraph
    from memplan_cli.onnx_io.rerolling.steps import Steps

_KEPT = 2
"""One in so many steps, at least, is left when others are peeled for an input."""


@dataclass(frozen=True, slots=True)
class Same:
    """One value from outside, for all steps."""

    name: str


@dataclass(frozen=True, slots=True)
class Within:
    """What another node of the step makes: its row, and its output."""

    row: int
    output: int


@dataclass(frozen=True, slots=True)
class Carried:
    """What a node of the step before makes, and what the first step reads in its place."""

    row: int
    output: int
    initial: str


@dataclass(frozen=True, slots=True)
class Constants:
    """A small constant of its own for each step."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """Part after part of what a node splits along an axis, from the front or from the back.

    Attributes:
        node: it splits.
        axis: along it all parts have one length.
        names: the parts, by step.
        backwards: whether the first step reads the last of them.
    """

    node: int
    axis: int
    names: tuple[str, ...]
    backwards: bool


Link = Same | Within | Carried | Constants | Parts
Place = tuple[int, int]
"""A row, and an input or an output of its nodes."""


@dataclass(frozen=True, slots=True)
class Linked:
    """Steps, and of each input of theirs where it comes from."""

    steps: Steps
    links: Mapping[Place, Link]

    def carried(self) -> dict[Place, str]:
        """Return the outputs that the next step reads, and what the first one reads instead."""
        links = self.links.values()
        return {
            (link.row, link.output): link.initial
            for link in links
            if isinstance(link, Carried)
        }


def linked(graph: UnrolledGraph, steps: Steps) -> Linked | None:
    """Return steps with their links: with fewer rows and steps, where those have none.

    None where too few are left.
    """
    while steps.saves >= WORTH and len(steps) >= LEAST:
        search = _Search(graph, steps, steps.places())
        ranges, lost = search.ranges()
        if lost:
            steps = steps.without(lost)
            continue
        whole = steps.first, steps.end
        there = [*ranges, whole]
        first, end = max(found[0] for found in there), min(found[1] for found in there)
        if (first, end) == whole:
            links = {place: search.link(*place) for place in search.inputs()}
            if not _disagree(links):
                return Linked(steps, links)
            first += 1
        steps = replace(steps, first=first, end=end)
    return None


def _disagree(links: Mapping[Place, Link]) -> bool:
    """Whether the first step reads several values in place of one that is carried."""
    found: dict[Place, set[str]] = {}
    for link in links.values():
        if isinstance(link, Carried):
            found.setdefault((link.row, link.output), set()).add(link.initial)
    return any(len(names) > 1 for names in found.values())


@dataclass(frozen=True, slots=True)
class _Way:
    """How a value comes to a step; steps to which it comes in one way have equal ones.

    Attributes:
        kind: ``never`` is what no loop can do.
        maker: a row where a step makes it, a node where one splits it.
        output: of that.
        name: of a value from outside.
    """

    kind: Literal["within", "carried", "constant", "part", "outside", "never"]
    maker: int = 0
    output: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Search:
    graph: UnrolledGraph
    steps: Steps
    places: dict[int, Place]

    def inputs(self) -> list[Place]:
        """Return each row with each of its inputs."""
        return [(row, place) for row in range(len(self.steps.rows)) for place in self._of(row)]

    def _of(self, row: int) -> range:
        node = self.graph.nodes[self.steps.node(row, self.steps.middle)]
        return range(len(node.input))

    def ranges(self) -> tuple[list[tuple[int, int]], set[int]]:
        """Return the steps of inputs, and the rows that have an input with too few.

        Who needs such a row has too few itself.
        """
        found, lost = {}, set[int]()
        rows = set(range(len(self.steps.rows)))
        while rows:
            now = set()
            for row in rows:
                found[row] = [self.range_of(row, place) for place in self._of(row)]
                if None in found[row]:
                    now.add(row)
            rows = self._without(now) - lost - now
            lost |= now
        kept = (each for row in found.keys() - lost for each in found[row] if each is not None)
        return list(kept), lost

    def _without(self, rows: set[int]) -> set[int]:
        """Take rows away; return those that read them."""
        steps, graph = self.steps, self.graph
        nodes = [steps.node(row, step) for row in rows for step in steps.range()]
        for node in nodes:
            del self.places[node]
        names = (name for node in nodes for name in graph.nodes[node].output)
        readers = (reader for name in names for reader, _ in graph.readers.get(name, ()))
        return {self.places[reader][0] for reader in readers if reader in self.places}

    def range_of(self, row: int, place: int) -> tuple[int, int] | None:
        """Return the steps about the middle to which an input comes in one way; None if few."""
        steps, names = self.steps, self._names(row, place)
        at = steps.middle - steps.first
        ways = self._ways(names)
        first = end = at
        while first and ways[first - 1] == ways[at]:
            first -= 1
        while end < len(ways) and ways[end] == ways[at]:
            end += 1
        if (
            ways[at].kind == "carried"
            and first
            and self._begins(*names[first - 1 : first + 1])
        ):
            first -= 1
        if ways[at].kind == "never" or (end - first) * _KEPT < len(ways):
            return None
        return steps.first + first, steps.first + end

    def _begins(self, initial: str, carried: str) -> bool:
        """Whether a value may stand for what a step before the first one would have made."""
        types, maker = self.graph.types, self.graph.makers.get(initial)
        outside = maker is None or maker[0] not in self.places
        return outside and initial in types and types[initial] == types.get(carried)

    def _ways(self, names: tuple[str, ...]) -> list[_Way]:
        ways = [
            self._way(name, step) for name, step in zip(names, self.steps.range(), strict=True)
        ]
        at = len(ways) // 2
        one, other = ways[at - 1], ways[at]
        if one.kind == other.kind == "part" and one.maker == other.maker:
            turn = other.output - one.output
            ways = [
                replace(way, output=way.output - turn * step) if way.kind == "part" else way
                for step, way in enumerate(ways)
            ]
            return ways if abs(turn) <= 1 else [_Way("never")] * len(ways)
        return ways

    def _way(self, name: str, step: int) -> _Way:
        graph = self.graph
        maker = graph.makers.get(name)
        if maker is not None and maker[0] in self.places:
            row, made = self.places[maker[0]]
            ago = step - made
            if ago not in (0, 1):
                return _Way("never")
            return _Way("carried" if ago else "within", row, maker[1])
        if graph.is_small(name):
            return _Way("constant")
        if maker is not None and maker[0] in graph.even_splits:
            return _Way("part", *maker)
        return _Way("outside", name=name)

    def link(self, row: int, place: int) -> Link:
        """Return where an input comes from, in steps that are all alike."""
        names = self._names(row, place)
        if len(set(names)) == 1:
            return Same(names[0])
        way = self._way(names[-1], self.steps.end - 1)
        if way.kind == "within":
            return Within(way.maker, way.output)
        if way.kind == "carried":
            return Carried(way.maker, way.output, names[0])
        if way.kind == "constant":
            return Constants(names) if _differ(self.graph, names) else Same(names[0])
        axis = self.graph.axis_of(way.maker, names[0])
        backwards = way.output < self.graph.makers[names[0]][1]
        return Parts(way.maker, axis or 0, names, backwards)

    def _names(self, row: int, place: int) -> tuple[str, ...]:
        steps, nodes = self.steps, self.graph.nodes
        return tuple(nodes[steps.node(row, step)].input[place] for step in steps.range())


def _differ(graph: UnrolledGraph, names: tuple[str, ...]) -> bool:
    """Whether small constants have different values."""
    from onnx.numpy_helper import to_array

    return len({to_array(graph.constants[name]).tobytes() for name in names}) > 1
