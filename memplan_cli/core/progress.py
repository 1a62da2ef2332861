"""Progress messages: a callable that takes lines of text, and one that ignores them."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line of text."""


def silent(text: str) -> None:
    """Ignore a line."""
    del text
