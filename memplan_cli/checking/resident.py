"""What a runtime holds at most: intermediates and outputs, of which only views share bytes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memplan_cli.checking.layout import Storage
from memplan_cli.checking.sharing import viewed
from memplan_cli.checking.sums import factor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.checking.clock import Value
    from memplan_cli.checking.edges import Edges
    from memplan_cli.checking.rows import Placed
    from memplan_cli.checking.subject import Subject
    from memplan_cli.core.results.placements import Placement

Made = tuple[int, int]
"""The tick at which an output is made, and its bytes."""


def held(subject: Subject, placed: Placed) -> Sequence[Storage] | None:
    """Return the tensors of a plan with one storage for each value and its views.

    None where nodes have subgraphs: what passes their edges shares by rules of its own.
    """
    if len(subject.clock.regions) > 1:
        return None
    rows = {id(value): row for row, value in placed.rows.values()}
    found: dict[int, Storage] = {}
    for row, value in placed.rows.values():
        base = _base(value, rows)
        first, last = (row.first, row.last) if row.pinned else (value.first, value.last + 1)
        known = found.get(id(base))
        if known is None:
            known = Storage(base.name, row.arena, row.offset, row.bytes, first, last, [])
            found[id(base)] = known
        known.first, known.last = min(known.first, first), max(known.last, last)
    return list(found.values())


def _base(value: Value, rows: Mapping[int, Placement]) -> Value:
    """Return the value that a value is a view of, in the end."""
    while (other := viewed(value)) is not None:
        one, base = rows[id(value)], rows.get(id(other))
        if base is None or one.pinned or base.pinned:
            break
        if (one.bytes, one.arena) != (base.bytes, base.arena):
            break
        value = other
    return value


def results_at(edges: Edges, dims: Mapping[str, int]) -> Sequence[Made] | None:
    """Return the outputs at some dims; None where one's bytes are no number."""
    found = []
    for tick, unit, size in edges.results:
        factor = factor_of(unit, dims)
        if factor is None or edges.outputs is None:
            return None
        found.append((tick, size * factor))
    return None if edges.outputs is None else found


def most_with(numbers: Sequence[Storage], results: Sequence[Made]) -> int:
    """Return the most bytes needed at one tick, with those of outputs from theirs on."""
    changes: defaultdict[int, int] = defaultdict(int)
    for tick, size in results:
        changes[tick] += size
    for storage in numbers:
        changes[storage.first] += storage.bytes
        changes[storage.last] -= storage.bytes
    live = most = 0
    for tick in sorted(changes):
        live += changes[tick]
        most = max(most, live)
    return most
