"""Steps that do the same, grown node by node from one node of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.onnx_io.rerolling.graph import UnrolledGraph

LEAST = 6
"""Steps that are worth a loop."""

WORTH = 200
"""Nodes that a loop has to take away: a megabyte of a session's."""

_PEELED = 2
"""Steps at either end that may be left as they are for one more node in all others."""

Row = tuple[int | None, ...]
"""The nodes, by step, that have one place in it."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Nodes in rows: each row has one node in each step from ``first`` to before ``end``.

    Attributes:
        rows: of a node of each step.
        first: the first step that all rows have.
        end: the one behind the last.
    """

    rows: tuple[Row, ...]
    first: int
    end: int

    def __len__(self) -> int:
        """Return how many steps there are."""
        return max(0, self.end - self.first)

    @property
    def saves(self) -> int:
        """The nodes of all steps but one."""
        return (len(self) - 1) * len(self.rows)

    @property
    def middle(self) -> int:
        """A step that no end disturbs."""
        return (self.first + self.end) // 2

    def range(self) -> range:
        """Return the steps."""
        return range(self.first, self.end)

    def node(self, row: int, step: int) -> int:
        """Return a node of a step that all rows have."""
        found = self.rows[row][step]
        if found is None:
            raise IndexError(step)
        return found

    def places(self) -> dict[int, tuple[int, int]]:
        """Return the row and the step of each node."""
        return {
            self.node(row, step): (row, step)
            for row in range(len(self.rows))
            for step in self.range()
        }

    def without(self, rows: set[int]) -> Steps:
        """Return the steps with fewer nodes."""
        kept = tuple(row for number, row in enumerate(self.rows) if number not in rows)
        return replace(self, rows=kept)


def chains(graph: UnrolledGraph) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield nodes that do the same one after the other, and the depths of all nodes.

    Those that nothing but their kind tells from others come first, and of them most.
    """
    seen = set[tuple[int, ...]]()
    for names in graph.classes:
        classes: dict[int, list[int]] = {}
        for number, name in enumerate(names):
            if graph.kinds[number] is not None:
                classes.setdefault(name, []).append(number)
        large = [tuple(nodes) for nodes in classes.values() if len(nodes) >= LEAST]
        for nodes in sorted(set(large) - seen, key=lambda nodes: (-len(nodes), nodes)):
            depths = graph.depths(nodes)
            if [depths[node] for node in nodes] == list(range(1, len(nodes) + 1)):
                yield nodes, depths
        seen.update(large)


def grown(graph: UnrolledGraph, nodes: Sequence[int], depths: Sequence[int]) -> Steps:
    """Return the steps of which a chain has one node each, with all that go along.

    What all nodes of a row read, or what reads them, becomes a row where it does the same in each
    step and belongs to one step alone; rows that some steps lack come when no others are left, and
    those steps are peeled. Nothing joins a step that needs a later one.
    """
    growth = _Growth(graph, depths, Steps((), 0, len(nodes)))
    growth.join(nodes, 0)
    looked = 0
    while looked < len(growth.steps.rows):
        growth.look_from(looked, 0)
        looked += 1
        if looked == len(growth.steps.rows):
            any(growth.look_from(row, _PEELED) for row in range(looked))
    return growth.steps


@dataclass(slots=True)
class _Growth:
    graph: UnrolledGraph
    depths: Sequence[int]
    steps: Steps
    taken: set[int] = field(default_factory=set)

    def join(self, row: Sequence[int | None], peeled: int) -> bool:
        """Add a row where all steps have it, but for a few at the ends; return whether."""
        steps = self.steps
        there = [step for step in steps.range() if row[step] is not None]
        nodes = [row[step] for step in there]
        if not there or len(set(nodes)) < len(nodes):
            return False
        first, end = there[0], there[-1] + 1
        lacking = max(first - steps.first, steps.end - end)
        if len(nodes) < end - first or len(nodes) < LEAST or lacking > peeled:
            return False
        self.taken.update(node for node in nodes if node is not None)
        self.steps = Steps((*steps.rows, tuple(row)), first, end)
        return True

    def look_from(self, row: int, peeled: int) -> bool:
        """Add what makes the inputs of a row, and what reads its outputs; return whether.

        Where steps are ``peeled`` for it, the first alone.
        """
        joined = False
        for nodes in chain(self._makers(row), self._readers(row)):
            joined |= self.join(nodes, peeled)
            if joined and peeled:
                break
        return joined

    def _makers(self, row: int) -> Iterator[Sequence[int | None]]:
        """Yield what makes the inputs of a row."""
        graph, steps = self.graph, self.steps
        for place in range(len(graph.nodes[steps.node(row, steps.middle)].input)):
            made = [
                None if node is None else graph.makers.get(graph.nodes[node].input[place])
                for node in steps.rows[row]
            ]
            sample = made[steps.middle]
            if sample is not None and sample[0] not in self.taken:
                kind = graph.kinds[sample[0]]
                yield [
                    maker[0] if maker and self._fits(maker, kind, sample[1]) else None
                    for maker in made
                ]

    def _fits(self, maker: tuple[int, int], kind: object, output: int) -> bool:
        node, made = maker
        same = kind is not None and self.graph.kinds[node] == kind
        return same and made == output and node not in self.taken

    def _readers(self, row: int) -> Iterator[Sequence[int | None]]:
        """Yield what reads the outputs of a row."""
        sample = self.steps.node(row, self.steps.middle)
        for output, name in enumerate(self.graph.nodes[sample].output):
            for reader, place in self.graph.readers.get(name, ()) if name else ():
                if reader not in self.taken and self.graph.kinds[reader] is not None:
                    yield [
                        None
                        if node is None
                        else self._reader(node, output, reader, place, step)
                        for step, node in enumerate(self.steps.rows[row])
                    ]

    def _reader(self, node: int, output: int, like: int, place: int, step: int) -> int | None:
        """Return the one node that reads an output as another step's does."""
        graph = self.graph
        found = [
            reader
            for reader, at in graph.readers.get(graph.nodes[node].output[output], ())
            if at == place
            and reader not in self.taken
            and graph.kinds[reader] == graph.kinds[like]
            and self.depths[reader] <= step + 1
        ]
        if len(found) > 1:
            names = graph.classes[-1]
            found = [reader for reader in found if names[reader] == names[like]]
        return found[0] if len(found) == 1 else None
