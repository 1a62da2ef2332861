"""Outputs that may lie where an input was: nothing may need the input when they are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memplan_cli.checking.operators import OVERWRITES, SAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.checking.clock import Clock, Node, Value
    from memplan_cli.checking.subject import Subject


def check_donation(subject: Subject) -> Iterator[str]:
    """Yield each donated pair that is none, or whose input is needed after its output is made."""
    top = subject.clock.top
    given = {value.name: value for value in top.inputs}
    made = {value.name: value for value in top.outputs}
    seen: set[str] = set()
    readers = _readers(subject.clock) if subject.plan.report.donated.pairs else {}
    for one, other in subject.plan.report.donated.pairs:
        pair = f"{one[:120]!r} is donated to {other[:120]!r}"
        writer = made[other].maker if other in made else None
        if one not in given or writer is None:
            yield f"{pair}: the model has no such input, or makes no such output"
            continue
        if not seen.isdisjoint((one, other)):
            yield f"{pair}, and one of them is in another pair"
        seen.update((one, other))
        if subject.type_of(given[one]) != subject.type_of(made[other]):
            yield f"{pair}, which is of another type or shape"
        late = _needed_late(given[one], made[other], writer, readers)
        views = _views(given[one], readers)
        if not late and any(id(v) in views for v in top.outputs if v is not made[other]):
            late = "the caller"
        if late:
            yield f"{pair}, and {late} needs it when that is written"


Readers = Mapping[int, Sequence["Node"]]
"""By the identity of a value the nodes that read it, themselves or in their subgraphs."""


def _readers(clock: Clock) -> Readers:
    found: defaultdict[int, list[Node]] = defaultdict(list)
    for node in clock.nodes():
        captured = (value for body in node.bodies for value in body.captured.values())
        for value in dict.fromkeys(id(v) for v in (*node.inputs, *captured) if v is not None):
            found[value].append(node)
    return found


def _needed_late(given: Value, made: Value, writer: Node, readers: Readers) -> str:
    """Return the node that reads an input, or a view of it, too late for an output."""
    views = _views(given, readers)
    reading = {id(node): node for view in views for node in readers.get(view, ())}
    for node in sorted(reading.values(), key=lambda node: node.start):
        if not (node.start > writer.end or node is writer):
            continue
        shown = [value for value in node.inputs if value is not None and id(value) in views]
        captured = any(id(v) in views for body in node.bodies for v in body.captured.values())
        alone = not captured and all(value is given for value in shown)
        if node is writer and alone and _writes_over(node, given, made):
            continue
        return repr((node.proto.name or node.proto.op_type)[:120])
    return ""


def _views(given: Value, readers: Readers) -> set[int]:
    """Return the identities of a value and of all that shows its bytes."""
    views, waiting = {id(given)}, [given]
    while waiting:
        value = waiting.pop()
        for node in readers.get(id(value), ()):
            shows = node.kind in SAME_BYTES and any(each is value for each in node.inputs)
            view = node.outputs[0] if shows and node.outputs else None
            if view is None:
                continue
            views.add(id(view))
            waiting.append(view)
    return views


def _writes_over(node: Node, given: Value, made: Value) -> bool:
    """Whether a node reads an input only where it writes an output."""
    if not node.outputs or node.outputs[0] is not made:
        return False
    allowed = OVERWRITES.get(node.kind, ())
    places = [at for at, value in enumerate(node.inputs) if value is given]
    return bool(places) and all(at in allowed for at in places)
