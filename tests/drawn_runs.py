"""Requests of a run as hypothesis draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.runtime.simulation.trace import Request

if TYPE_CHECKING:
    from collections.abc import Iterable


def drawn_run(pairs: Iterable[tuple[int, int]], unit: int) -> list[Request]:
    """Ask for so many units in turn, and give back the n-th of what is live after each.

    An ``n`` beyond what is live gives nothing back; in the end everything is.
    """
    found: list[Request] = []
    live: list[int] = []
    for ticket, (size, drop) in enumerate(pairs):
        found.append(Request(ticket, size * unit))
        live.append(ticket)
        if drop < len(live):
            found.append(Request(live.pop(drop), -1))
    return [*found, *(Request(ticket, -1) for ticket in live)]
