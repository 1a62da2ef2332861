"""Allocation in closed form where at most two buffers are ever live.

One is at the bottom, the other at the top; the next to start takes the side that is free. The
arena is as tall as the largest pair, which is the lower bound. Chains of ops, the most common
of all networks, need nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan_cli.packing.pieces import Piece, Placement


def is_pairwise(piece: Piece) -> bool:
    """Whether no section has three buffers."""
    # As many starts as ends come before a section, but for those live in it.
    live = [0] * (max(piece.end) + 1)
    for start, end in zip(piece.start, piece.end, strict=True):
        live[start] += 1
        live[end] -= 1
    count = 0
    for change in live:
        count += change
        if count > 2:
            return False
    return True


def pairwise(piece: Piece) -> Placement:
    """Place a piece for which ``is_pairwise`` holds at its load."""
    load = piece.load
    offsets = [0] * len(piece.size)
    bottom_until = 0
    # Columns come in order of start; if the bottom is taken, the top is free.
    for index, (start, end) in enumerate(zip(piece.start, piece.end, strict=True)):
        if bottom_until <= start:
            bottom_until = end
        else:
            offsets[index] = load - piece.size[index]
    return tuple(offsets)
