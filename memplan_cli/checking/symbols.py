"""A plan over symbols: what its tensors take at the report's dims, and its expressions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.checking.bindings import dims_at
from memplan_cli.checking.resident import most_with, results_at
from memplan_cli.checking.sums import (
    added,
    canonical,
    factor_of,
    is_symbolic,
    samples,
    value_of,
)
from memplan_cli.core.symbolic.dims import canonical_dim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.checking.edges import Edges
    from memplan_cli.checking.layout import Storage
    from memplan_cli.checking.rows import Placed
    from memplan_cli.checking.subject import Subject
    from memplan_cli.checking.sums import Sum

Claim = tuple[str, object, object]
"""The name of a number, what is said of it and the value counted."""

_TITLES = {f"level {level}": f"the bytes of level {level}" for level in range(3)}


def factors_of(
    subject: Subject, dims: Mapping[str, int] | None = None
) -> Mapping[int, int | None]:
    """Return what the bytes of each arena are multiplied by at some dims, the report's."""
    at = dims_at(subject) if dims is None else dims
    return {arena.id: factor_of(arena.unit, at) for arena in subject.plan.arenas}


def in_numbers(
    subject: Subject, everything: Sequence[Storage], dims: Mapping[str, int] | None = None
) -> Sequence[Storage] | None:
    """Return storages with bytes at some dims, the report's; None where a symbol has none."""
    factors, found = factors_of(subject, dims), []
    for storage in everything:
        factor = factors.get(storage.arena) if storage.bytes else 1
        if factor is None:
            return None
        found.append(replace(storage, bytes=storage.bytes * factor))
    return found


def sums_of(subject: Subject, placed: Placed, edges: Edges) -> Mapping[str, Sum | None]:
    """Return what a report has expressions for, by unit."""
    plan = subject.plan
    units = {arena.id: arena.unit for arena in plan.arenas}
    naive = added(*({units[row.arena]: row.bytes} for row, _ in placed.rows.values()))
    planned = added(*({arena.unit: arena.height} for arena in plan.arenas))
    found: dict[str, Sum | None] = {
        "inputs": edges.inputs,
        "outputs": edges.outputs,
        "naive": naive,
        "planned": planned,
        f"level {plan.report.level}": planned,
    }
    if edges.inputs is not None and edges.outputs is not None:
        saved = {unit: -size for unit, size in edges.donated.items()}
        parts = ({"1": edges.weights}, edges.inputs, edges.outputs, planned, saved)
        found["total"] = added(*parts)
    return found


def check_symbols(
    subject: Subject,
    edges: Edges,
    sums: Mapping[str, Sum | None],
    everything: Sequence[Storage],
    held: Sequence[Storage] | None,
) -> Iterator[Claim]:
    """Yield the expressions of a report, and its numbers as these come to."""
    report = subject.plan.report
    naive = sums["naive"]
    if naive is None or not is_symbolic(naive):
        yield "what is said in symbols, where all are numbers", dict(report.symbolic), {}
        return
    if report.partial and not report.symbolic and report.memory.planned is None:
        return
    for name, counted in sums.items():
        said = report.symbolic.get(name)
        wanted = None if counted is None else canonical(counted)
        yield f"{name} in symbols", None if said is None else canonical_dim(said), wanted
    yield from _peaks(subject, edges, everything, held)
    yield from _at_dims(subject)


def _peaks(
    subject: Subject,
    edges: Edges,
    everything: Sequence[Storage],
    held: Sequence[Storage] | None,
) -> Iterator[Claim]:
    """Yield the most bytes live at one tick at several dims: no form is common to maxima."""
    symbolic, level = subject.plan.report.symbolic, subject.plan.report.level
    slotted = any(storage.members[0].slot is not None for storage in everything)
    live, resident = symbolic.get("live_peak"), symbolic.get("resident")
    units = [arena.unit for arena in subject.plan.arenas]
    for dims in samples([*units, *(unit for _, unit, _ in edges.results)]):
        numbers = in_numbers(subject, everything, dims)
        if live is not None and numbers is not None and not (slotted and level == 2):
            yield "live_peak in symbols", value_of(live, dims), most_with(numbers, ())
        made = results_at(edges, dims)
        numbers = None if held is None else in_numbers(subject, held, dims)
        if resident is not None and numbers is not None and made is not None:
            yield "resident in symbols", value_of(resident, dims), most_with(numbers, made)


def _at_dims(subject: Subject) -> Iterator[Claim]:
    """Yield each number that is said in symbols too, as these come to at the report's dims."""
    report, memory, dims = subject.plan.report, subject.plan.report.memory, dims_at(subject)
    numbers: dict[str, int | None] = {
        "inputs": memory.inputs,
        "outputs": memory.outputs,
        "naive": memory.naive,
        "live_peak": memory.live_peak,
        "resident": memory.resident,
        "planned": memory.planned,
        "total": memory.total,
    }
    numbers |= {f"level {level}": size for level, size in report.levels.items()}
    for name, text in report.symbolic.items():
        if name not in numbers:
            yield f"{name[:40]} in symbols", text, None
        elif (said := numbers[name]) is not None:
            yield _TITLES.get(name, name), said, value_of(text, dims)
