"""What comes with a model, goes into it and comes out of it, in bytes; what hangs on weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.checking.clock import Kind
from memplan_cli.checking.operators import WIDTHS
from memplan_cli.checking.rows import byte_size
from memplan_cli.checking.sums import added

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan_cli.checking.clock import Value
    from memplan_cli.checking.subject import Subject
    from memplan_cli.checking.sums import Sum
    from memplan_cli.core.symbolic.bounds import Bounds


@dataclass(frozen=True, slots=True)
class Edges:
    """Bytes that cross the edges of a model, by unit; None where one size is not known."""

    weights: int
    inputs: Sum | None
    outputs: Sum | None
    donated: Sum
    """Of the outputs that take an input's memory."""
    results: tuple[tuple[int, str, int], ...]
    """The tick at which each output is made, with its unit and its bytes; without donated ones."""


def edges_of(subject: Subject, bounds: Bounds) -> Edges:
    """Return the bytes of what comes with the model, goes into it and comes out of it."""
    weights = 0
    for value in subject.clock.values():
        if value.kind is Kind.WEIGHT:
            dtype, shape = subject.type_of(value)
            if shape is not None and dtype in WIDTHS:
                dims = [dim for dim in shape if isinstance(dim, int)]
                known = len(dims) == len(shape) and min(dims, default=0) >= 0
                weights += -(-prod(dims) * WIDTHS[dtype] // 8) if known else 0
    top = subject.clock.top
    made = dict.fromkeys(v for v in top.outputs if v.kind in (Kind.MADE, Kind.GIVEN))
    names = {name for _, name in subject.plan.report.donated.pairs}
    saved = _sum(subject, [value for value in made if value.name in names], bounds)
    inputs, outputs = _sum(subject, top.inputs, bounds), _sum(subject, made, bounds)
    results = tuple(
        (value.first, unit, size)
        for value in made
        if value.name not in names
        for unit, size in (_sum(subject, [value], bounds) or {}).items()
    )
    return Edges(weights, inputs, outputs, saved or {}, results)


def _sum(subject: Subject, values: Iterable[Value], bounds: Bounds) -> Sum | None:
    """Return the bytes of some values by unit, or None where one's are not known."""
    sizes = []
    for value in values:
        dtype, shape = subject.type_of(value)
        if dtype not in (*WIDTHS, "unknown"):
            continue  # texts and containers have no bytes that a shape tells
        if shape is None or dtype not in WIDTHS:
            return None
        size, unit = byte_size(shape, dtype, bounds)
        if size < 0:
            return None
        sizes.append({unit: size})
    return added(*sizes)


def foldable(subject: Subject) -> Iterator[str]:
    """Yield what is said to be foldable and hangs on more than weights."""
    by_name = {value.identity: value for value in subject.clock.values()}
    known: dict[int, bool] = {}
    for tensor in subject.plan.report.foldable:
        value = by_name.get(tensor.name)
        if value is None or not _is_constant(value, known):
            yield f"tensor {tensor.name[:120]!r} is said to be foldable, and hangs on inputs"


def _is_constant(value: Value, known: dict[int, bool]) -> bool:
    """Whether a value hangs on weights alone; what a value is made of is looked at first."""
    stack = [value]
    while stack:
        node = stack[-1].maker
        if stack[-1].kind is Kind.WEIGHT or node is None:
            known[id(stack[-1])] = stack[-1].kind is Kind.WEIGHT
        if id(stack[-1]) in known:
            stack.pop()
            continue
        assert node is not None  # noqa: S101 - else it is known
        reads = [each for each in node.inputs if each is not None]
        reads += [each for body in node.bodies for each in body.captured.values()]
        if unknown := [each for each in reads if id(each) not in known]:
            stack += unknown
        else:
            known[id(stack[-1])] = all(known[id(each)] for each in reads)
    return known[id(value)]
