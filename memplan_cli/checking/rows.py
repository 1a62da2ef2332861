"""The tensors that a plan places held against the values that the model's nodes make."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.checking.operators import WIDTHS
from memplan_cli.core.symbolic.bounds import at_most
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.checking.clock import Value
    from memplan_cli.checking.subject import Subject
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.symbolic.bounds import Bounds

_GRADIENT = "a gradient that the update consumes (skip_grads)"
_COPY = "__recompute"


@dataclass(slots=True)
class Placed:
    """The rows of a plan beside their values."""

    rows: dict[str, tuple[Placement, Value]] = field(default_factory=dict)
    believed: list[str] = field(default_factory=list)
    """Tensors whose size the model does not say: it was seen in a run, or asked of a runtime."""


def check_rows(subject: Subject, bounds: Bounds, placed: Placed) -> Iterator[str]:
    """Yield where the plan's tensors are not the model's; collect those that are."""
    values = _intermediates(subject)
    for row in subject.plan.tensors:
        value = values.get(row.id)
        if value is None:
            yield f"the plan places {row.id[:120]!r}, which no node of the model makes"
            continue
        placed.rows[row.id] = row, value
    yield from _missing(subject, values, placed)
    excluded = _excluded(subject)
    end = max(subject.clock.ticks, 1)
    units = {arena.id: arena.unit for arena in subject.plan.arenas}
    for identity, (row, value) in placed.rows.items():
        dtype, shape = subject.type_of(value)
        yield from _typed(row, dtype, shape, placed)
        yield from check_size(row, units.get(row.arena, ""), bounds)
        yield from _pinned(row, excluded, subject)
        first, last = (0, end) if row.pinned else (value.first, value.last + 1)
        if (row.first, row.last) != (first, last):
            yield (
                f"tensor {identity[:120]!r} is said to be live from tick {row.first} to "
                f"{row.last}, by the model's nodes it is from {first} to {last}"
            )


def _intermediates(subject: Subject) -> dict[str, Value]:
    """Return what a plan has to find memory for, by ``block/name``."""
    results = {id(value) for value in subject.clock.top.outputs}
    found = {}
    for region in subject.clock.regions:
        start = f"{region.path}/" if region.path else ""
        for name, value in region.values.items():
            value.identity = start + name
            if value.is_intermediate and id(value) not in results:
                found[value.identity] = value
    return found


def _missing(subject: Subject, values: Mapping[str, Value], placed: Placed) -> Iterator[str]:
    """Yield what the model makes and the plan leaves out without a reason that holds."""
    reasons = {refusal.name: refusal.reason for refusal in subject.plan.report.unplanned}
    for identity, value in values.items():
        if identity in placed.rows:
            continue
        dtype, shape = subject.type_of(value)
        if size_of(shape, dtype) is not None:
            yield f"tensor {identity[:120]!r} has a size, and the plan has no place for it"
        elif identity not in reasons and _COPY not in value.name:
            yield f"tensor {identity[:120]!r} is neither placed nor among the unplanned"
    for name, reason in reasons.items():
        if name not in values:
            yield f"unplanned is {name[:120]!r}, which no node of the model makes"
        elif name in placed.rows and placed.rows[name][0].pinned != reason:
            yield f"tensor {name[:120]!r} is placed, and unplanned for {reason[:120]!r}"


def _typed(row: Placement, dtype: str, shape: Shape | None, placed: Placed) -> Iterator[str]:
    if dtype == "unknown" or shape is None:
        placed.believed.append(row.id)
    if dtype not in ("unknown", row.dtype):
        yield f"tensor {row.id[:120]!r} is said to be of {row.dtype[:40]!r}, it is of {dtype}"
    if shape is None:
        return
    if None in shape:
        placed.believed.append(row.id)
    same = len(shape) == len(row.shape) and all(
        dim is None or dim == said for dim, said in zip(shape, row.shape, strict=True)
    )
    if not same:
        yield (
            f"tensor {row.id[:120]!r} is said to have the shape {list(row.shape)}, its node "
            f"makes it {list(shape)}"
        )


def check_size(row: Placement, unit: str, bounds: Bounds) -> Iterator[str]:
    """Yield that a tensor's bytes are not those of its dtype and shape, if they are not."""
    count, wanted = byte_size(row.shape, row.dtype, bounds)
    if (count, wanted) != (row.bytes, unit if row.bytes else wanted):
        yield (
            f"tensor {row.id[:120]!r} is said to take {row.bytes}*{unit[:80]!r} bytes, it takes "
            f"{count}*{wanted}"
        )


def byte_size(shape: Shape, dtype: str, bounds: Bounds) -> tuple[int, str]:
    """Return a tensor's bytes as a number and what it is a multiple of; -1 if it has none."""
    numbers = [dim for dim in shape if isinstance(dim, int)]
    if len(numbers) == len(shape) and dtype in WIDTHS:
        return -(-prod(numbers) * WIDTHS[dtype] // 8), "1"
    size = size_of(shape, dtype)
    if size is None:
        return -1, "nothing that is known"
    most = at_most(size, bounds)
    return most.coefficient, most.unit if most.symbols else "1"


def _pinned(row: Placement, excluded: Mapping[str, str], subject: Subject) -> Iterator[str]:
    """Yield why a tensor must, or must not, have memory of its own for the whole run."""
    pattern, loss = excluded.get(row.id), subject.plan.report.loss
    reasons = [] if pattern is None else [f"excluded by {pattern!r}"]
    if row.id == loss:
        reasons.append("the loss")
    if reasons and row.pinned is None and _COPY not in row.name:
        yield f"tensor {row.id[:120]!r} has no memory of its own, and is {reasons[0][:120]}"
    if subject.plan.settings.get("skip_grads") and subject.plan.report.phases.get("backward"):
        reasons.append(_GRADIENT)
    if row.pinned is not None and row.pinned not in reasons:
        yield (
            f"tensor {row.id[:120]!r} is pinned for {row.pinned[:120]!r}, which the settings "
            "do not ask for"
        )


def _excluded(subject: Subject) -> dict[str, str]:
    """Return what the settings exclude, with the first pattern that means it."""
    chosen = subject.plan.settings
    block = chosen.get("mem_param")
    patterns = [*(block.get("exclude_blob", ()) if isinstance(block, dict) else ())]
    patterns += chosen.get("exclude") or ()
    if not patterns:
        return {}
    names: dict[str, list[str]] = {}
    for value in subject.clock.values():
        names.setdefault(value.name, []).append(value.identity)
    everything = [identity for found in names.values() for identity in found]
    excluded: dict[str, str] = {}
    for pattern in map(str, patterns):
        meant = names.get(pattern) or [
            identity
            for name, found in names.items()
            if fnmatchcase(name, pattern)
            for identity in found
        ]
        meant = meant or [one for one in everything if fnmatchcase(one, pattern)]
        for identity in meant:
            excluded.setdefault(identity, pattern)
    return excluded
