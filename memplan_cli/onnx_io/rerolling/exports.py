"""Which nodes a loop is better without, and which of its values are read outside of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.flow import INFINITE, SINK, SOURCE, Network
from memplan_cli.onnx_io.nodes import NODE
from memplan_cli.onnx_io.rerolling.links import Carried, Within, linked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.onnx_io.rerolling.graph import UnrolledGraph
    from memplan_cli.onnx_io.rerolling.links import Linked, Place

_FEW = 8
"""One in so many steps may be peeled, rather than keep a value of all of them."""

_WORK = 50_000_000
"""Edges that are looked at for a cut, at most: without, it is not the least."""


@dataclass(frozen=True, slots=True)
class Export:
    """A value that is read outside of the steps, or is a result.

    Attributes:
        steps: those whose is read.
        concat: the node that joins those of all steps, if none else reads them.
    """

    steps: tuple[int, ...]
    concat: int | None


@dataclass(frozen=True, slots=True)
class Exports:
    """Steps, and what is read outside of them, by row and output."""

    linked: Linked
    read: Mapping[Place, Export]


def exports(graph: UnrolledGraph, found: Linked) -> Exports | None:
    """Return the steps that are worth a loop, and what it has to give; None if there are none.

    A value that is read outside is kept for all steps at once. So nodes are left outside where
    keeping what they read takes less, and steps at an end of which more is read are peeled.
    """
    again: Linked | None = found
    while again is not None:
        read = _read_outside(graph, again)
        lost = _cheaper_outside(graph, again, read)
        steps = again.steps.without(lost)
        if not lost:
            first, end = _without_ends(again, read)
            if (first, end) == (steps.first, steps.end):
                return Exports(again, read)
            steps = replace(steps, first=first, end=end)
        again = linked(graph, steps)
    return None


def _read_outside(graph: UnrolledGraph, found: Linked) -> dict[Place, Export]:
    steps, inside = found.steps, found.steps.places()
    carried = found.carried()
    read: dict[Place, Export] = {}
    for row in range(len(steps.rows)):
        for output in range(len(graph.nodes[steps.node(row, steps.first)].output)):
            names = [
                graph.nodes[steps.node(row, step)].output[output] for step in steps.range()
            ]
            outside = [
                [each for each in graph.readers.get(name, ()) if each[0] not in inside]
                for name in names
            ]
            at = tuple(
                step
                for step, name, readers in zip(steps.range(), names, outside, strict=True)
                if readers or name in graph.results
            )
            if at:
                final = (row, output) in carried
                read[row, output] = Export(at, _concat(graph, names, outside, final=final))
    return read


def _concat(
    graph: UnrolledGraph,
    names: Sequence[str],
    outside: Sequence[Sequence[Place]],
    *,
    final: bool,
) -> int | None:
    """Return the one node that joins a value of each step in turn, read by none else outside.

    The last one is read by others too where a loop gives it besides (``final``).
    """
    found = []
    for number, (name, readers) in enumerate(zip(names, outside, strict=True), 1):
        joins = [each for each in readers if graph.nodes[each[0]].op_type == "Concat"]
        shared = len(readers) > 1 or name in graph.results
        if len(joins) != 1 or (shared and not (final and number == len(names))):
            return None
        found.append(joins[0])
    node, start = found[0]
    in_turn = found == [(node, start + at) for at in range(len(found))]
    return node if in_turn and graph.axis_of(node, names[0]) is not None else None


def _cheaper_outside(
    graph: UnrolledGraph, found: Linked, read: Mapping[Place, Export]
) -> set[int]:
    """Return rows without which a loop keeps less, each with all that need it: a minimum cut.

    Rows on the source's side are in the loop, the recurrence in any case. One that is not takes
    its nodes; a value that leaves the loop is kept for all steps. What a Concat reads whole is
    there either way.
    """
    steps, network = found.steps, Network()
    rows, recurrent = network.nodes(len(steps.rows)), _recurrence(found)
    for row, node in enumerate(rows):
        network.edge(SOURCE, node, INFINITE if row in recurrent else NODE * len(steps))
    values: dict[Place, int] = {}

    def value(place: Place) -> int:
        if place not in values:
            values[place] = network.node()
            name = graph.nodes[steps.node(place[0], steps.middle)].output[place[1]]
            size = (graph.bytes_of(name) or 0) * len(steps)
            network.edge(rows[place[0]], values[place], size)
        return values[place]

    for (row, _), link in found.links.items():
        if isinstance(link, Within | Carried):
            network.edge(value((link.row, link.output)), rows[row], INFINITE)
            network.edge(rows[row], rows[link.row], INFINITE)
    last, carried = (steps.end - 1,), found.carried()
    for place, export in read.items():
        if export.concat is None and not (place in carried and export.steps == last):
            network.edge(value(place), SINK, INFINITE)
    network.flow(_WORK)
    outside = network.reaching_sink()
    return {row for row, node in enumerate(rows) if outside[node]}


def _recurrence(found: Linked) -> set[int]:
    """Return the most rows that all need each other, in this step or in one before."""
    readers: dict[int, set[int]] = {}
    makers: dict[int, set[int]] = {}
    for (row, _), link in found.links.items():
        if isinstance(link, Within | Carried):
            readers.setdefault(link.row, set()).add(row)
            makers.setdefault(row, set()).add(link.row)
    largest, seen = set[int](), set[int]()
    for row, _ in found.carried():  # every circle goes by way of the step before
        if row not in seen:
            together = _reached(readers, row) & _reached(makers, row)
            largest = max(largest, together, key=len)
            seen |= together
    return largest


def _reached(following: Mapping[int, set[int]], row: int) -> set[int]:
    """Return the rows behind one, itself if a way leads back."""
    found, stack = set[int](), [row]
    while stack:
        new = following.get(stack.pop(), set()) - found
        found |= new
        stack += new
    return found


def _without_ends(found: Linked, read: Mapping[Place, Export]) -> tuple[int, int]:
    """Return the steps without the few at an end that alone have a value read outside."""
    steps, carried = found.steps, found.carried()
    first, end = steps.first, steps.end
    few = len(steps) // _FEW
    for place, export in read.items():
        at = export.steps
        if place in carried and at == (steps.end - 1,):
            continue
        if at[0] >= steps.end - few:
            end = min(end, at[0])
        elif at[-1] < steps.first + few:
            first = max(first, at[-1] + 1)
    return first, end
