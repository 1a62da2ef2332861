"""Who is told, in lines of text, what is being done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line of text."""


def silent(text: str) -> None:
    """Tell nobody."""
    del text
