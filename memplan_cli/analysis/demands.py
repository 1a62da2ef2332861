"""What the ops of a program demand of its dims, and the least numbers that meet it.

Sizes that are added, multiplied or put beside each other have to agree, and none is below
one. Each demand is looked at with numbers in place of symbols; nothing is proved. It is how
dims that nobody bound are assumed where no runtime can be asked, and what a runtime is asked
first where one can.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import names_of
from memplan_cli.core.program import walk
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Dim, Op, Program, Shape

LADDER = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 100, 112, 128),
    *(160, 192, 197, 224, 256, 257, 320, 384, 400, 448, 480, 512, 576, 577, 600, 640, 768),
    *(800, 1024, 1025, 1280, 1500, 1536, 1600, 2048, 3000, 3200, 4096, 8000, 8192, 16000),
    *(16384, 32000, 48000),
)
"""Lengths that models are made for: sides of images, patches, tokens, samples of sound."""

STRIDES = (1, 2, 4, 8, 14, 16, 32)
"""What lengths are divided by on their way to a number that a file holds."""

_LONGEST = 1 << 16
_MOST_DEMANDS = 4000
_MOST_ROUNDS = 24

Dims = dict[str, int]


@dataclass(frozen=True, slots=True)
class Demand:
    """Groups of dims, each a product, and what their values have to be to each other."""

    kind: str
    sides: tuple[tuple[Dim, ...], ...]

    @property
    def symbols(self) -> frozenset[str]:
        """The names that it is about."""
        return frozenset().union(*(symbols_of(dim) for side in self.sides for dim in side))

    def is_met(self, dims: Mapping[str, int]) -> bool:
        """Whether it is, at these numbers; what is not known then, is."""
        values = []
        for side in self.sides:
            bound = [bind_dim(dim, dims) for dim in side]
            if not all(isinstance(dim, int) for dim in bound):
                return not any(isinstance(d, int) and d < 0 for d in bound)
            values.append(prod(dim for dim in bound if isinstance(dim, int)))
        return _HOLDS[self.kind](values)


def _alike(values: Sequence[int]) -> bool:
    return len(set(values)) == 1


def _broadcast(values: Sequence[int]) -> bool:
    return len(set(values) - {1}) <= 1


def _lengths(values: Sequence[int]) -> bool:
    return min(values) > 0


_HOLDS: Mapping[str, Callable[[Sequence[int]], bool]] = {
    "alike": _alike,
    "broadcast": _broadcast,
    "lengths": _lengths,
}


def demands(program: Program) -> tuple[Demand, ...]:
    """Return what the ops demand of dims in which there are symbols, each demand once."""
    found: dict[Demand, None] = {}
    for demand in _all_demands(program):
        found[demand] = None
        if len(found) >= _MOST_DEMANDS:
            break
    return tuple(found)


def _all_demands(program: Program) -> Iterator[Demand]:
    seen: set[str] = set()
    for var in program.vars.values():
        for dim in var.shape or ():
            if isinstance(dim, str) and dim not in seen:
                seen.add(dim)
                yield Demand("lengths", ((dim,),))
    for _, op in walk(program.body):
        shapes = [program.vars[var].shape if var else None for var in op.inputs]
        rule = _RULES.get(op.type) if not op.domain else None
        for demand in rule(op, shapes, program) if rule else ():
            if demand.symbols:
                yield demand


def _elementwise(_: Op, shapes: Sequence[Shape | None], __: Program) -> Iterator[Demand]:
    known = [shape for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        yield from _broadcasting(known)


def _broadcasting(shapes: Sequence[Shape]) -> Iterator[Demand]:
    for together in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        different = dict.fromkeys(dim for dim in together if dim != 1)
        if len(different) > 1:
            yield Demand("broadcast", tuple((dim,) for dim in different))


def _matmul(_: Op, shapes: Sequence[Shape | None], __: Program) -> Iterator[Demand]:
    one, other = (*shapes, None, None)[:2]
    if not one or not other:
        return
    inner = other[-2] if len(other) > 1 else other[0]
    if one[-1] != inner:
        yield Demand("alike", ((one[-1],), (inner,)))
    yield from _broadcasting((one[:-2], other[:-2]))


def _reshape(op: Op, shapes: Sequence[Shape | None], program: Program) -> Iterator[Demand]:
    made = program.vars[op.outputs[0]].shape
    if shapes and shapes[0] is not None and made is not None and shapes[0] != made:
        yield Demand("alike", (tuple(shapes[0]), tuple(made)))


def _concat(op: Op, shapes: Sequence[Shape | None], _: Program) -> Iterator[Demand]:
    axis = op.attributes.get("axis")
    known = [shape for shape in shapes if shape is not None]
    if not isinstance(axis, int) or len({len(shape) for shape in known}) != 1:
        return
    for position, together in enumerate(zip(*known, strict=True)):
        different = dict.fromkeys(together)
        if position != axis % len(known[0]) and len(different) > 1:
            yield Demand("alike", tuple((dim,) for dim in different))


_RULES: Mapping[str, Callable[[Op, Sequence[Shape | None], Program], Iterator[Demand]]] = {
    **dict.fromkeys(names_of(lambda each: each.broadcasts), _elementwise),
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Concat": _concat,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Dims to be assumed.

    Attributes:
        free: each with whether it leads: what leads is the last to grow.
        fixed: numbers that others have.
    """

    free: Mapping[str, bool]
    fixed: Mapping[str, int]


def least_agreeing(asked: Sequence[Demand], wanted: Wanted, start: int = 1) -> Dims:
    """Return small numbers for free dims that meet as many demands as a search finds.

    A leading dim begins at 1, the others at ``start``. One unmet demand after the other is
    met by the least number of one of its dims that leaves the fewest unmet.
    """
    found = {name: 1 if leads else start for name, leads in wanted.free.items()}
    about = {name: [d for d in asked if name in d.symbols] for name in wanted.free}
    given_up: set[Demand] = set()
    for _ in range(_MOST_ROUNDS):
        at = {**wanted.fixed, **found}
        unmet = next((d for d in asked if d not in given_up and not d.is_met(at)), None)
        if unmet is None:
            break
        names = sorted(unmet.symbols & found.keys(), key=lambda n: (wanted.free[n], n))
        change = _best_change(unmet, names, about, at)
        if change is None:
            given_up.add(unmet)
        else:
            found[change[0]] = change[1]
    return found


def _lengths_in(demand: Demand) -> frozenset[int]:
    """Return the numbers that a demand names, and what strides make them of."""
    named = {dim for side in demand.sides for dim in side if isinstance(dim, int)}
    named |= {prod(d for d in side if isinstance(d, int)) for side in demand.sides}
    found = {number * stride for number in named for stride in STRIDES}
    return frozenset(value for value in found if 0 < value <= _LONGEST)


def _best_change(
    unmet: Demand, names: Iterable[str], about: Mapping[str, Sequence[Demand]], at: Dims
) -> tuple[str, int] | None:
    """Return the dim and number that meet a demand and leave the fewest others unmet."""
    ranked = []
    lengths = sorted({*LADDER, *_lengths_in(unmet)})
    for place, name in enumerate(names):
        for value in (*lengths, at[name] + 1):
            moved = {**at, name: value}
            if value != at[name] and unmet.is_met(moved):
                left = sum(not demand.is_met(moved) for demand in about[name])
                ranked.append((left, place, value, name))
                if left == 0:
                    break
    if not ranked:
        return None
    _, _, value, name = min(ranked)
    return name, value
