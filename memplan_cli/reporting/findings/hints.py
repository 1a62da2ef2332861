"""Hints for totals that are not known: the options that bind what is missing."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan_cli.core.results.report import Report

FILL_GAPS = (
    "some sizes are known only in a run: say them with --shape NAME=D,D, look at one run "
    "with --profile-shapes, or count the rest alone with --allow-partial"
)
"""For sizes that no symbol decides."""

_MOST_NAMED = 4
"""Symbols that one hint names."""


def bind(symbols: Iterable[str]) -> str:
    """Return how to bind symbols; of no symbols, how to bind one."""
    names = sorted(symbols)
    words = " ".join(f"--dim {quote(f'{name}=1')}" for name in names[:_MOST_NAMED])
    more = " .." if len(names) > _MOST_NAMED else ""
    return f"bind every symbol, like {words or '--dim batch=1'}{more}"


def symbols_in(units: Iterable[str]) -> tuple[str, ...]:
    """Return the names that units are made of, sorted: ``batch*(new + past)`` has three."""
    names = {name for unit in units if unit != "1" for name in symbols_of(unit)}
    return tuple(sorted(names))


def bindable(report: Report, symbols: Iterable[str]) -> tuple[str, ...]:
    """Return the symbols that inputs have: nobody could give the others a number.

    Those are decided by data in a run, or were made up by whoever wrote the file.
    """
    text = report.symbolic.get("inputs")
    if text is None and report.memory.inputs is not None:
        return ()
    known = None if text is None else symbols_of(text)
    return tuple(name for name in symbols if known is None or name in known)


def how_to_know(symbols: Iterable[str], *, gaps: bool) -> str:
    """Return what to do about a total that symbols or gaps keep from being known."""
    names = tuple(symbols)
    if not gaps:
        return bind(names)
    return f"{bind(names)}; {FILL_GAPS}" if names else FILL_GAPS
