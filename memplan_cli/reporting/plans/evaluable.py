"""Expressions over symbols as nested lists that a page's script evaluates.

A sum is a list of products ``[number, atoms]``; an atom is the place of a symbol in the
page's list, or a function with its sums: ``["floor", [sum, sum]]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import call_in, names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.symbolic.polynomials import Polynomial


def symbols_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of every symbol in some expressions, sorted."""
    return tuple(sorted(frozenset[str]().union(*(names_in(parse_dim(t)) for t in texts))))


def evaluable(text: str, places: Mapping[str, int]) -> list[object] | None:
    """Return an expression for the script; None where a name in it is no symbol there."""
    terms = parse_dim(text)
    return _sum(terms, places) if names_in(terms) <= places.keys() else None


def _sum(terms: Polynomial, places: Mapping[str, int]) -> list[object]:
    return [[value, [_atom(atom, places) for atom in atoms]] for atoms, value in terms.items()]


def _atom(atom: str, places: Mapping[str, int]) -> object:
    call = call_in(atom)
    if call is None:
        return places[atom]
    name, arguments = call
    return [name, [_sum(each, places) for each in arguments]]
