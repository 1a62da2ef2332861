"""How many pieces, and how long each is, as expressions of the sizes of a request.

A piece has as many rows as a target of bytes allows, and no more than there are; pieces are
of one length, so rows are dealt out evenly and the last ones of the last piece are repeated:

    most  = min(extent, max(least, floor(target/unit)))     unit: bytes of a piece of one row
    trips = ceiling(extent/most)
    rows  = ceiling(extent/trips)                           never more than most
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import (
    Polynomial,
    call_in,
    called,
    multiplied,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Dim, Shape


@dataclass(frozen=True, slots=True)
class Count:
    """The pieces of one loop.

    Attributes:
        rows: The symbol that stands for the rows of a piece.
        trips: The symbol that stands for the number of pieces.
        extent: The length of the axis that is cut.
        least: Rows below which a kernel might round another way.
        unit: Bytes of a piece of one row; symbols of outer loops may be in it.
    """

    rows: str
    trips: str
    extent: Dim
    least: int
    unit: Polynomial

    @property
    def floor(self) -> int:
        """The fewest rows that pieces are made with: dealt out evenly, half of them are left."""
        return 1 if self.least <= 1 else 2 * self.least

    def terms(self, target: int, known: Mapping[str, Polynomial]) -> dict[str, Polynomial]:
        """Return what its two symbols stand for."""
        extent = substituted(as_terms(self.extent), known)
        unit = substituted(self.unit, known)
        allowed = called("floor", [{(): target}, unit])
        wide = called("max", [{(): self.floor}, allowed])
        most = called("min", [extent, wide])
        trips = called("ceiling", [extent, most])
        return {self.trips: trips, self.rows: called("ceiling", [extent, trips])}


def resolved(counts: tuple[Count, ...], target: int) -> dict[str, Polynomial]:
    """Return what the symbols of loops stand for, outer loops first."""
    known: dict[str, Polynomial] = {}
    for count in counts:
        known |= count.terms(target, known)
    return known


def numbers(counts: tuple[Count, ...], target: int, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the values of all symbols at one size of a request."""
    found = dict(dims)
    for count in counts:
        extent, unit = valued(as_terms(count.extent), found), valued(count.unit, found)
        most = min(extent, max(count.floor, target // max(unit, 1)))
        trips = -(-extent // max(most, 1))
        found |= {count.trips: trips, count.rows: -(-extent // max(trips, 1))}
    return found


def valued(terms: Polynomial, dims: Mapping[str, int]) -> int:
    """Return the value of an expression all of whose symbols are known."""
    value = as_dim(substituted(terms, {name: {(): each} for name, each in dims.items()}))
    if not isinstance(value, int):
        raise ValueError(f"{value} has symbols that are not known")  # noqa: TRY004
    return value


def substituted(terms: Polynomial, known: Mapping[str, Polynomial]) -> Polynomial:
    """Put expressions in for the symbols that are known."""
    if not known:
        return terms
    return total(
        multiplied([_atom(atom, known) for atom in monomial], factor)
        for monomial, factor in terms.items()
    )


def _atom(atom: str, known: Mapping[str, Polynomial]) -> Polynomial:
    if atom in known:
        return {product: value for product, value in known[atom].items() if value}
    call = call_in(atom)
    if call is None:
        return {(atom,): 1}
    name, arguments = call
    return called(name, [substituted(argument, known) for argument in arguments])


def with_dims(shape: Shape | None, known: Mapping[str, Polynomial]) -> Shape | None:
    """Return a shape with expressions in place of the symbols that are known."""
    if shape is None or not known:
        return shape
    return tuple(
        as_dim(substituted(parse_dim(dim), known)) if isinstance(dim, str) else dim
        for dim in shape
    )


def as_terms(dim: Dim) -> Polynomial:
    """Return a dim, a number or an expression, as a sum of products."""
    if isinstance(dim, str):
        return parse_dim(dim)
    return {(): dim} if dim else {}
