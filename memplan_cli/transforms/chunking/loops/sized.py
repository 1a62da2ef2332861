"""A program of unknown sizes looked at with numbers for them: what can be cut shows at primes.

A dim that is a prime of its own is the product or the quotient of no others, so shapes that
agree at primes agree for all sizes. Two sets of primes are looked at: what is a coincidence of
one is none of the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS, qualified_name
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of
from memplan_cli.transforms.chunking.axes.table import edit
from memplan_cli.transforms.chunking.axes.terms import Edit, Role
from memplan_cli.transforms.chunking.axes.windows import PADDED
from memplan_cli.transforms.chunking.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.transforms.chunking.axes.terms import Facts, Node, Part, Split

_LEAST_PRIME = 61
"""Sizes that are smaller still are looked at as if they were so large."""

_TOLD_SHAPES = {"Reshape": 1, "Expand": 1, "Resize": 3}
"""Operators that are told the shape of what they make, and by which input."""


def primes_for(
    program: Program, most: Mapping[str, int]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return two numbers for each symbol, near the largest that it can be."""
    taken = {dim for var in program.vars.values() for dim in var.shape or ()}
    symbols = sorted({name for dim in taken for name in symbols_of(dim)})
    found: tuple[dict[str, int], dict[str, int]] = {}, {}
    for name in symbols:
        near = _primes_from(max(most.get(name, 0), _LEAST_PRIME))
        for each in found:
            each[name] = next(number for number in near if number not in taken)
            taken.add(each[name])
    return found


def _primes_from(most: int) -> Iterator[int]:
    """Yield primes, downwards and then upwards."""
    yield from filter(_is_prime, range(most, 2, -1))
    number = most + 1
    while True:
        if _is_prime(number):
            yield number
        number += 1


def _is_prime(number: int) -> bool:
    return all(number % each for each in range(2, int(number**0.5) + 1))


def graph_at(
    program: Program, dims: Mapping[str, int], facts: Facts, kept: Collection[VarId]
) -> Graph:
    """Return the graph of a program with numbers for its sizes, of splits that a loop can write."""
    return Graph.of(with_numbers(program, dims), facts, kept, _is_plain)


def with_numbers(program: Program, dims: Mapping[str, int]) -> Program:
    """Return a program with numbers for its sizes."""
    vars_ = {
        var: told._replace(shape=tuple(bind_dim(dim, dims) for dim in told.shape))
        if told.shape is not None
        else told
        for var, told in program.vars.items()
    }
    return replace(program, vars=vars_)


def _is_plain(node: Node, split: Split) -> bool:
    """Whether pieces read no halo, and are computed as the whole is, whatever the sizes.

    How many columns a product has, or positions a convolution, decides about its rounding.
    """
    if split.role in (Role.COLUMNS, Role.TILES):
        return False
    parts = filter(None, (*split.inputs, *split.outputs))
    if any(part.before or part.after for part in parts):
        return False
    # What other sizes have for padding, the operator's own attributes say.
    is_known = qualified_name(node.op) in PADDED or shape_input(node.op) is not None
    return is_known or edit(node, split, (0, 1)) == Edit()


def shape_input(op: Op) -> int | None:
    """Return the input that tells an op the shape of what it makes: a piece is told its own."""
    position = _TOLD_SHAPES.get(op.type) if op.domain in STANDARD_DOMAINS else None
    is_there = position is not None and len(op.inputs) > position and op.inputs[position]
    return position if is_there and "axes" not in op.attributes else None


def same_split(graph: Graph, at: int, split: Split) -> Split | None:
    """Return the split of an op that is another graph's, at other sizes."""
    return next(
        (each for each in graph.splits(at) if _signature(each) == _signature(split)), None
    )


def _signature(split: Split) -> tuple[object, ...]:
    return split.role, tuple(map(_axis, split.inputs)), tuple(map(_axis, split.outputs))


def _axis(part: Part | None) -> int | None:
    return None if part is None else part.axis
