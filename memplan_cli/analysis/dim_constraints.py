"""Constraints that ops put on symbolic dimensions, and small values that satisfy them.

Dims that are added, multiplied or stacked have to agree, and no dim is below one. Constraints
are evaluated for given values; nothing is proved. The values found here are assumed for unbound
dims if no runtime can be asked, and are the first ones that a runtime is asked about otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import islice, zip_longest
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import names_of
from memplan_cli.core.program import walk
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Dim, Op, Program, Shape

COMMON_LENGTHS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 100, 112, 128),
    *(160, 192, 197, 224, 256, 257, 320, 384, 400, 448, 480, 512, 576, 577, 600, 640, 768),
    *(800, 1024, 1025, 1280, 1500, 1536, 1600, 2048, 3000, 3200, 4096, 8000, 8192, 16000),
    *(16384, 32000, 48000),
)
"""Dims that models are exported for: image sides, patches, tokens, audio samples."""

STRIDES = (1, 2, 4, 8, 14, 16, 32)
"""Factors by which convolutions and patch embeddings usually shrink a dim."""

_MAX_LENGTH = 1 << 16
_MAX_CONSTRAINTS = 4000
_MAX_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class DimConstraint:
    """A relation between products of dims, such as ``batch * 12 == heads``.

    Attributes:
        relation: ``equal``, ``broadcastable`` (equal or 1) or ``positive``.
        products: the products that are related, each a tuple of factors.
    """

    relation: str
    products: tuple[tuple[Dim, ...], ...]

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbolic dims in it."""
        return frozenset().union(
            *(symbols_of(dim) for factors in self.products for dim in factors)
        )

    def is_satisfied(self, values: Mapping[str, int]) -> bool:
        """Return whether the relation holds for these values; True if any dim stays unknown or symbolic."""
        products = []
        for factors in self.products:
            bound_dims = [bind_dim(dim, values) for dim in factors]
            numbers = [dim for dim in bound_dims if isinstance(dim, int)]
            if len(numbers) < len(factors):
                return True
            products.append(prod(numbers))
        return _RELATIONS[self.relation](products)


_RELATIONS: Mapping[str, Callable[[Sequence[int]], bool]] = {
    "equal": lambda products: len(set(products)) == 1,
    "broadcastable": lambda products: len(set(products) - {1}) <= 1,
    "positive": lambda products: min(products) > 0,
}


def dim_constraints(program: Program) -> tuple[DimConstraint, ...]:
    """Return the constraints on the symbolic dims of a program, at most 4000, each once."""
    distinct = dict.fromkeys(_all_constraints(program))
    return tuple(islice(distinct, _MAX_CONSTRAINTS))


def _all_constraints(program: Program) -> Iterator[DimConstraint]:
    """Yield that each symbolic dim is positive, then the constraints of each op."""
    dims = (dim for var in program.vars.values() for dim in var.shape or ())
    for dim in dict.fromkeys(dim for dim in dims if isinstance(dim, str)):
        yield DimConstraint("positive", ((dim,),))
    for _, op in walk(program.body):
        rule = _RULES.get(op.type) if not op.domain else None
        if rule is None:
            continue
        shapes = [program.vars[var].shape if var else None for var in op.inputs]
        yield from (
            constraint for constraint in rule(op, shapes, program) if constraint.symbols
        )


def _elementwise(
    _: Op, shapes: Sequence[Shape | None], __: Program
) -> Iterator[DimConstraint]:
    """All inputs broadcast to one shape."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) == len(shapes):
        yield from _broadcasting(known)


def _broadcasting(shapes: Sequence[Shape]) -> Iterator[DimConstraint]:
    """Yield that the dims of each axis, counted from the last, are equal or 1."""
    for axis_dims in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        distinct = dict.fromkeys(dim for dim in axis_dims if dim != 1)
        if len(distinct) > 1:
            yield DimConstraint("broadcastable", tuple((dim,) for dim in distinct))


def _matmul(_: Op, shapes: Sequence[Shape | None], __: Program) -> Iterator[DimConstraint]:
    """``[..., m, k] @ [..., k, n]``: both k are equal and the batch dims broadcast."""
    left, right = (*shapes, None, None)[:2]
    if not left or not right:
        return
    right_k = right[-2] if len(right) > 1 else right[0]
    if left[-1] != right_k:
        yield DimConstraint("equal", ((left[-1],), (right_k,)))
    yield from _broadcasting((left[:-2], right[:-2]))


def _reshape(
    op: Op, shapes: Sequence[Shape | None], program: Program
) -> Iterator[DimConstraint]:
    """Input and output have the same number of elements."""
    output = program.vars[op.outputs[0]].shape
    if shapes and shapes[0] is not None and output is not None and shapes[0] != output:
        yield DimConstraint("equal", (tuple(shapes[0]), tuple(output)))


def _concat(op: Op, shapes: Sequence[Shape | None], _: Program) -> Iterator[DimConstraint]:
    """The inputs agree on every axis but the one that is concatenated."""
    axis = op.attributes.get("axis")
    known = [shape for shape in shapes if shape is not None]
    if not isinstance(axis, int) or len({len(shape) for shape in known}) != 1:
        return
    for position, axis_dims in enumerate(zip(*known, strict=True)):
        distinct = dict.fromkeys(axis_dims)
        if position != axis % len(known[0]) and len(distinct) > 1:
            yield DimConstraint("equal", tuple((dim,) for dim in distinct))


_RULES: Mapping[
    str, Callable[[Op, Sequence[Shape | None], Program], Iterator[DimConstraint]]
] = {
    **dict.fromkeys(names_of(lambda operator: operator.broadcasts), _elementwise),
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Concat": _concat,
}


@dataclass(frozen=True, slots=True)
class UnboundDims:
    """The symbolic dims for which values are assumed.

    Attributes:
        free: per dim to assume, whether it is the leading dim of an input (the batch). Leading
            dims are increased last.
        bound: the values of the other dims.
    """

    free: Mapping[str, bool]
    bound: Mapping[str, int]


def smallest_satisfying_dims(
    constraints: Sequence[DimConstraint], dims: UnboundDims
) -> dict[str, int]:
    """Return small values for the free dims that satisfy as many constraints as a search finds.

    All dims start at 1. In each round the first violated constraint is satisfied by changing one of
    its dims. A constraint that no change satisfies is given up.
    """
    is_leading = dims.free
    values = dict.fromkeys(dims.free, 1)
    constraints_on: dict[str, list[DimConstraint]] = defaultdict(list)
    for constraint in constraints:
        for name in constraint.symbols:
            constraints_on[name].append(constraint)
    abandoned: set[DimConstraint] = set()
    for _ in range(_MAX_ROUNDS):  # changes may violate each other in turn, without an end
        all_values = {**dims.bound, **values}
        violated = next(
            (c for c in constraints if c not in abandoned and not c.is_satisfied(all_values)),
            None,
        )
        if violated is None:
            break
        # Leading dims last: a larger batch makes all tensors larger, so it stays 1 if another dim can change.
        names = sorted(
            violated.symbols & values.keys(), key=lambda name: (is_leading[name], name)
        )
        change = _best_change(violated, names, constraints_on, all_values)
        if change is None:
            abandoned.add(violated)
        else:
            name, value = change
            values[name] = value
    return values


def _best_change(
    violated: DimConstraint,
    names: Iterable[str],
    constraints_on: Mapping[str, Sequence[DimConstraint]],
    values: Mapping[str, int],
) -> tuple[str, int] | None:
    """Return the dim and the value that satisfy a constraint and violate the fewest others on that dim.

    Ties go to the first of ``names``, then to the smallest value. None if no value tried satisfies it.
    """
    ranked = []
    lengths = sorted({*COMMON_LENGTHS, *_lengths_in(violated)})
    for priority, name in enumerate(names):
        for value in lengths:
            changed = {**values, name: value}
            if violated.is_satisfied(changed):
                violations = sum(not c.is_satisfied(changed) for c in constraints_on[name])
                ranked.append((violations, priority, value, name))
                if violations == 0:  # larger values of this dim are no better
                    break
    if not ranked:
        return None
    _, _, value, name = min(ranked)
    return name, value


def _lengths_in(constraint: DimConstraint) -> frozenset[int]:
    """Return values to try for a dim of a constraint, besides `COMMON_LENGTHS`: at most 65,536.

    A dim that satisfies the constraint is often one of its numbers, or all numbers of a product
    together, or that times a stride. In ``t * 6 == 12 * 16``, ``t`` is 32: 16 with stride 2.
    """
    lengths: set[int] = set()
    for factors in constraint.products:
        numbers = [dim for dim in factors if isinstance(dim, int)]
        lengths.update(numbers)
        lengths.add(prod(numbers))
    multiples = {length * stride for length in lengths for stride in STRIDES}
    return frozenset(value for value in multiples if 0 < value <= _MAX_LENGTH)
